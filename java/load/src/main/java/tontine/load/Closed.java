package tontine.load;

import java.util.EnumMap;
import java.util.Map;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.Semaphore;
import java.util.stream.IntStream;

/** Work on each record once, with a number of them under way: loading, and reading all. */
final class Closed {
    private static final int TRIES_MAX = 8;
    private static final long PAUSE_MS = 250;

    private final Target target;
    private final Records records;
    private final int count;
    private final int underWayMax;

    Closed(Target target, Options options) {
        this.target = target;
        count = options.whole("records", 100_000);
        records = new Records(options.whole("value-bytes", 1024));
        underWayMax = options.whole("under-way", 64);
    }

    /** Writes each record; one that fails is written again. Returns how many were never acknowledged. */
    int load() throws InterruptedException {
        var version = System.currentTimeMillis() << 16;
        var left = all();
        for (var tries = 0; tries < TRIES_MAX && left.length > 0; tries++) {
            if (tries > 0) {
                Thread.sleep(PAUSE_MS << tries);
            }
            var failed = new ConcurrentLinkedQueue<Integer>();
            each(left, (record, end) -> target.write(Records.key(record), records.value(record, version))
                    .whenComplete((done, failure) -> {
                        if (failure != null) {
                            failed.add(record);
                            Failures.tell(failure);
                        }
                        end.run();
                    }));
            left = failed.stream().mapToInt(Integer::intValue).toArray();
        }
        return left.length;
    }

    /** Reads each record once. */
    Map<Finding, Integer> sweep() throws InterruptedException {
        var counts = new EnumMap<Finding, Integer>(Finding.class);
        each(all(), (record, end) -> target.read(Records.key(record)).whenComplete((value, failure) -> {
            var finding = failure != null ? Finding.FAILED
                    : value == null ? Finding.ABSENT
                    : records.version(record, value) < 0 ? Finding.WRONG
                    : Finding.RIGHT;
            if (failure != null) {
                Failures.tell(failure);
            }
            synchronized (counts) {
                counts.merge(finding, 1, Integer::sum);
            }
            end.run();
        }));
        return counts;
    }

    private int[] all() {
        return IntStream.range(0, count).toArray();
    }

    private interface Work {
        void begin(int record, Runnable end);
    }

    private void each(int[] numbers, Work work) throws InterruptedException {
        var room = new Semaphore(underWayMax);
        for (var number : numbers) {
            room.acquire();
            work.begin(number, room::release);
        }
        room.acquire(underWayMax);
    }
}
