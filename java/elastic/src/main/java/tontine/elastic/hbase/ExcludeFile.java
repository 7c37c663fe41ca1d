package tontine.elastic.hbase;

import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.List;
import tontine.elastic.Failure;

/**
 * The NameNode's exclude file: which DataNodes shall leave. What is intended with a member is kept there, too, so that
 * it outlives this process.
 *
 * <pre>
 * # tontine moves-regions UUID 10.0.0.14:9866     its regions go first; for the NameNode a comment
 * 10.0.0.14:9866 # tontine drains UUID            its blocks go
 * 10.0.0.14:9866 # tontine forgot UUID            its machine is gone; until the NameNode has forgotten it, too
 * </pre>
 *
 * <p>A forgotten DataNode stays excluded while the NameNode lists it. Otherwise the NameNode might count copies on a
 * machine that was ended, and delete others as too many. All other lines are left as they are.
 *
 * <p>Must never: be written in part, or by two at once.
 */
final class ExcludeFile {
    private static final String OURS = "tontine";

    /** What a line of ours intends. */
    enum Intent {
        MOVES_REGIONS("moves-regions"),
        DRAINS("drains"),
        FORGOT("forgot");

        private final String word;

        Intent(String word) {
            this.word = word;
        }

        static Intent of(String word) {
            for (Intent intent : values()) {
                if (intent.word.equals(word)) {
                    return intent;
                }
            }
            return null;
        }
    }

    /**
     * One line.
     *
     * @param text as it is in the file
     * @param place the host, or host and port, that the NameNode excludes; null if none
     * @param intent what we intend; null if the line is not ours
     * @param uuid of the DataNode that our line means
     */
    record Line(String text, String place, Intent intent, String uuid) {
        static Line read(String text) {
            int comment = text.indexOf('#');
            String place = (comment < 0 ? text : text.substring(0, comment)).strip();
            String[] words = comment < 0 ? new String[0] : text.substring(comment + 1).strip().split("\\s+");
            Intent intent = words.length >= 3 && words[0].equals(OURS) ? Intent.of(words[1]) : null;
            return new Line(text, place.isEmpty() ? null : place, intent, intent == null ? null : words[2]);
        }

        static Line of(Intent intent, DataNode dataNode) {
            String mark = "# " + OURS + " " + intent.word + " " + dataNode.uuid();
            return read(intent == Intent.MOVES_REGIONS
                    ? mark + " " + dataNode.place()
                    : dataNode.place() + " " + mark);
        }

        /** Whether the NameNode excludes this DataNode by this line. */
        boolean excludes(DataNode dataNode) {
            return dataNode.place().equals(place) || dataNode.address().equals(place);
        }
    }

    /** Some work on the file that nobody else may disturb. */
    interface Work<T> {
        T run() throws Failure, IOException;
    }

    private final Path file;

    ExcludeFile(Path file) {
        this.file = file;
    }

    /** Does something while no other call, and no other process of this adapter, does the like. */
    synchronized <T> T alone(Work<T> work) throws Failure {
        Path lock = file.resolveSibling(file.getFileName() + ".lock");
        try (FileChannel channel = FileChannel.open(lock, StandardOpenOption.CREATE, StandardOpenOption.WRITE)) {
            // Held until the channel is closed.
            channel.lock();
            return work.run();
        } catch (IOException broken) {
            throw Failure.passing("the exclude file cannot be changed: " + broken + ". Let this adapter write " + file
                    + " and files beside it");
        }
    }

    /** All lines. A file that is missing is a mistake: the NameNode would exclude nobody by it. */
    List<Line> lines() throws Failure {
        try {
            return Files.readAllLines(file, StandardCharsets.UTF_8).stream().map(Line::read).toList();
        } catch (IOException broken) {
            throw Failure.passing("the exclude file cannot be read: " + broken + ". Create " + file
                    + ", and name it in the NameNode's dfs.hosts.exclude");
        }
    }

    /** What is intended with a DataNode; null if nothing is. */
    static Intent intent(List<Line> lines, DataNode dataNode) {
        return lines.stream().filter(line -> dataNode.uuid().equals(line.uuid())).map(Line::intent)
                .reduce((first, last) -> last).orElse(null);
    }

    /** Whether a DataNode is excluded only because an earlier one at its address was forgotten. */
    static boolean isLeftOver(List<Line> lines, DataNode dataNode) {
        List<Line> excluding = lines.stream().filter(line -> line.excludes(dataNode)).toList();
        return !excluding.isEmpty() && excluding.stream().allMatch(line ->
                line.intent() == Intent.FORGOT && !dataNode.uuid().equals(line.uuid()));
    }

    /** Lines with another intent for a DataNode. Those that lead to nothing else than its exclusion are replaced. */
    static List<Line> with(List<Line> lines, DataNode dataNode, Intent intent) {
        List<Line> kept = without(lines, dataNode);
        kept.add(Line.of(intent, dataNode));
        return kept;
    }

    /** Lines by which nothing is intended with a DataNode, and by which it is not excluded, whoever wrote that. */
    static List<Line> without(List<Line> lines, DataNode dataNode) {
        return new ArrayList<>(lines.stream()
                .filter(line -> !line.excludes(dataNode) && !dataNode.uuid().equals(line.uuid()))
                .toList());
    }

    /** Lines without those of forgotten DataNodes that the NameNode does not list any more. */
    static List<Line> pruned(List<Line> lines, List<DataNode> listed) {
        return lines.stream()
                .filter(line -> line.intent() != Intent.FORGOT
                        || listed.stream().anyMatch(one -> one.uuid().equals(line.uuid())))
                .toList();
    }

    /** Replaces the file as a whole. Only within {@link #alone}. */
    void write(List<Line> lines) throws IOException {
        StringBuilder text = new StringBuilder();
        lines.forEach(line -> text.append(line.text()).append('\n'));
        Path next = file.resolveSibling(file.getFileName() + ".next");
        try (FileChannel channel = FileChannel.open(next, StandardOpenOption.CREATE,
                StandardOpenOption.TRUNCATE_EXISTING, StandardOpenOption.WRITE)) {
            channel.write(StandardCharsets.UTF_8.encode(text.toString()));
            channel.force(true);
        }
        Files.move(next, file, StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING);
    }
}
