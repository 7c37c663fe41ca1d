package tontine.elastic;

import java.io.IOException;
import java.io.OutputStream;
import java.io.PrintStream;
import java.util.Arrays;
import java.util.List;
import tontine.elastic.cassandra.CassandraEngine;
import tontine.elastic.hbase.HBaseEngine;

/** {@code java -jar elastic.jar ENGINE OPTIONS}: an engine adapter on standard input and output. */
public final class Main {
    private static final String USAGE = "java -jar elastic.jar cassandra|hbase OPTIONS; java/elastic/README.md lists them";

    private Main() {}

    public static void main(String[] arguments) throws IOException {
        OutputStream answers = System.out;
        // Whatever a library prints, standard output has answers and nothing else.
        System.setOut(new PrintStream(System.err, true));
        List<String> words = Arrays.asList(arguments);
        try (Engine engine = engine(words)) {
            new Conversation(engine).run(System.in, answers);
        } catch (Options.Mistake mistake) {
            Log.say(mistake.getMessage() + "\nUsage: " + USAGE);
            System.exit(2);
        }
        // Libraries leave threads behind that would keep the process.
        System.exit(0);
    }

    private static Engine engine(List<String> words) throws Options.Mistake {
        if (words.isEmpty()) {
            throw new Options.Mistake("name an engine");
        }
        List<String> options = words.subList(1, words.size());
        return switch (words.get(0)) {
            case "cassandra" -> CassandraEngine.of(options);
            case "hbase" -> HBaseEngine.of(options);
            default -> throw new Options.Mistake("there is no engine " + words.get(0) + "; there are cassandra and hbase");
        };
    }
}
