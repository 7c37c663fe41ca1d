package tontine.load;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CompletionException;
import java.util.concurrent.atomic.LongAdder;

/** Reasons of failures, each told once on standard error, and counted. */
final class Failures {
    private static final int KINDS_MAX = 50;
    private static final int LENGTH_MAX = 200;
    private static final Map<String, LongAdder> COUNTS = new ConcurrentHashMap<>();

    private Failures() {}

    static void tell(Throwable failure) {
        var cause = failure instanceof CompletionException && failure.getCause() != null ? failure.getCause() : failure;
        var kind = cause.getClass().getSimpleName();
        if (COUNTS.size() < KINDS_MAX || COUNTS.containsKey(kind)) {
            COUNTS.computeIfAbsent(kind, first -> {
                var said = String.valueOf(cause.getMessage());
                System.err.println(kind + ": " + said.substring(0, Math.min(LENGTH_MAX, said.length())));
                return new LongAdder();
            }).increment();
        }
    }

    static Map<String, LongAdder> counts() {
        return COUNTS;
    }
}
