import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.stream.Collectors;

/** Beside the program of docs/guides/java.md: writers go on until a file appears, and say what came of it. */
public final class Rolling {
    private static final int WRITERS = 4;
    private static final int ITEMS_MAX = 30;

    private static final Queue<String> errors = new ConcurrentLinkedQueue<>();
    private static final Queue<String> missing = new ConcurrentLinkedQueue<>();
    private static final Map<String, List<Integer>> acknowledged = new ConcurrentHashMap<>();

    public static void main(String[] arguments) throws InterruptedException {
        String key = arguments[0];
        Path ends = Path.of(arguments[1]);
        try (var tontine = new Carts.Tontine(Arrays.asList(arguments).subList(2, arguments.length))) {
            List<Thread> writers = new ArrayList<>();
            for (int number = 0; number < WRITERS; number++) {
                String prefix = key + ":" + number + ":";
                writers.add(new Thread(() -> {
                    for (int count = 0; !Files.exists(ends); count++) {
                        String cart = prefix + count;
                        List<Integer> done = new ArrayList<>();
                        for (int item = 0; item < ITEMS_MAX && !Files.exists(ends); item++) {
                            try {
                                add(Carts.read(tontine, cart), cart, item, done,
                                        (seen, items) -> Carts.write(tontine, cart, seen, items));
                            } catch (RuntimeException error) {
                                errors.add(error.toString());
                            }
                            pause();
                        }
                        acknowledged.put(cart, done);
                    }
                }));
            }
            writers.forEach(Thread::start);
            for (Thread writer : writers) {
                writer.join();
            }
        }
        String carts = acknowledged.entrySet().stream()
                .map(cart -> quoted(cart.getKey()) + ": " + cart.getValue())
                .collect(Collectors.joining(", ", "{", "}"));
        System.out.printf("{\"errors\": %s, \"missing\": %s, \"acknowledged\": %s}%n",
                list(errors), list(missing), carts);
    }

    private interface Write {
        void run(byte[] seen, Set<String> items);
    }

    /** Adds one item to a cart after what was read there. */
    private static void add(List<byte[]> answer, String cart, int item, List<Integer> done, Write write) {
        Set<String> found = new TreeSet<>();
        for (byte[] value : answer.subList(1, answer.size())) {
            found.addAll(Arrays.asList(new String(value, StandardCharsets.UTF_8).split(",")));
        }
        found.remove("");
        done.stream().filter(known -> !found.contains(known.toString())).forEach(known -> missing.add(cart + " " + known));
        found.add(String.valueOf(item));
        write.run(answer.get(0), found);
        done.add(item);
    }

    private static void pause() {
        try {
            Thread.sleep(2);
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    private static String list(Collection<String> texts) {
        return texts.stream().map(Rolling::quoted).collect(Collectors.joining(", ", "[", "]"));
    }

    private static String quoted(String text) {
        return '"' + text.replace("\\", "\\\\").replace("\"", "\\\"").replace("\n", " ") + '"';
    }
}
