package tontine.load;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.junit.jupiter.api.Test;

final class DriverTest {
    private static final int RECORDS = 50;

    /** A map, whose answers a test may spoil. */
    private static class Kept implements Target {
        final Map<String, byte[]> values = new ConcurrentHashMap<>();

        @Override
        public void prepare() {}

        @Override
        public CompletionStage<byte[]> read(String key) {
            return CompletableFuture.completedFuture(values.get(key));
        }

        @Override
        public CompletionStage<?> write(String key, byte[] value) {
            values.put(key, value);
            return CompletableFuture.completedFuture(null);
        }

        @Override
        public void close() {}
    }

    private static Options options(String... more) {
        var words = new ArrayList<>(List.of("--records", "" + RECORDS, "--value-bytes", "64"));
        words.addAll(List.of(more));
        return new Options(words);
    }

    private static Tally ran(Target target, double rate, double seconds, String... more) throws Exception {
        var driver = new Driver(target, options(more));
        var stop = new Stop();
        driver.run(new Schedule("" + rate), seconds, stop);
        stop.end();
        driver.finish();
        return driver.take();
    }

    @Test
    void aWholeEngineHasEveryReadRight() throws Exception {
        var target = new Kept();
        assertEquals(0, new Closed(target, options()).load());
        var tally = ran(target, 2000, 0.5, "--writes", "0.5");
        assertEquals(tally.all(), tally.count(Finding.RIGHT));
        assertTrue(tally.all() > 700, "it had " + tally.all());
        assertEquals(Map.of(Finding.RIGHT, RECORDS), new Closed(target, options()).sweep());
    }

    @Test
    void eachWayToLoseARecordIsToldApart() throws Exception {
        var target = new Kept() {
            @Override
            public CompletionStage<byte[]> read(String key) {
                return key.compareTo("8") < 0 ? super.read(key)
                        : CompletableFuture.failedFuture(new IllegalStateException("this half does not answer"));
            }
        };
        new Closed(target, options()).load();
        var before = Map.copyOf(target.values);
        target.values.remove(Records.key(first(0)));
        target.values.put(Records.key(first(1)), target.values.get(Records.key(first(2))));
        var counts = new Closed(target, options()).sweep();
        assertEquals(1, counts.get(Finding.ABSENT));
        assertEquals(1, counts.get(Finding.WRONG));
        assertEquals(RECORDS, counts.values().stream().mapToInt(Integer::intValue).sum());
        assertTrue(counts.get(Finding.FAILED) > 10);

        // All writes of this run are taken back before they are read.
        var forgetful = new Kept();
        forgetful.values.putAll(before);
        var forgets = new Kept() {
            @Override
            public CompletionStage<byte[]> read(String key) {
                return forgetful.read(key);
            }
        };
        var tally = ran(forgets, 2000, 0.5, "--writes", "0.5");
        assertTrue(tally.count(Finding.STALE) > 50, "it had " + tally.count(Finding.STALE));
    }

    /** A record of the half that answers. */
    private static int first(int skipped) {
        for (var number = 0; ; number++) {
            if (Records.key(number).compareTo("8") < 0 && skipped-- == 0) {
                return number;
            }
        }
    }

    @Test
    void whatFindsNoRoomIsGivenUpAndIsNotCalledLate() throws Exception {
        var answers = new ConcurrentLinkedQueue<CompletableFuture<byte[]>>();
        var silent = new Kept() {
            @Override
            public CompletionStage<byte[]> read(String key) {
                var answer = new CompletableFuture<byte[]>();
                answers.add(answer);
                return answer;
            }
        };
        var driver = new Driver(silent, options("--under-way", "2", "--patience", "0.1"));
        var stop = new Stop();
        driver.run(new Schedule("500"), 0.4, stop);
        stop.end();
        answers.forEach(answer -> answer.completeExceptionally(new IllegalStateException("it ends")));
        driver.finish();
        var tally = driver.take();
        assertEquals(2, tally.count(Finding.FAILED));
        assertTrue(tally.count(Finding.UNSTARTED) > 100, "it had " + tally.count(Finding.UNSTARTED));
        assertTrue(tally.lag(100) < 90, "two began, and at once: " + tally.lag(100));
    }
}
