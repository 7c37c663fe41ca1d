package tontine.load;

import java.util.concurrent.CompletionStage;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Consumer;

/**
 * An open loop: operations become due whether or not the engine keeps up.
 *
 * <p>One thread starts them; the client's threads end and compare them. No more than a number of them are under way. One
 * that cannot begin within the patience is given up, so that a long overload shows as operations lost, and not as a queue
 * from before that hides what a new member brings.
 */
final class Driver {
    /** Arrivals nearer than this begin together. */
    private static final long SLEEP_MIN_NS = 200_000;

    private final Target target;
    private final Records records;
    private final Versions versions;
    private final Draws draws;
    private final double writes;
    private final boolean isEven;
    private final int underWayMax;
    private final long patience;
    private final Semaphore room;
    private long fullUntil = Long.MIN_VALUE;
    private Tally tally = new Tally();

    Driver(Target target, Options options) {
        this.target = target;
        var count = options.whole("records", 100_000);
        records = new Records(options.whole("value-bytes", 1024));
        versions = new Versions(count, System.currentTimeMillis() << 16);
        draws = new Draws(count, options.text("keys", "uniform"), options.whole("seed", 1));
        writes = options.number("writes", 0);
        isEven = options.text("arrivals", "poisson").equals("even");
        underWayMax = options.whole("under-way", 1024);
        patience = (long) (1e9 * options.number("patience", 10));
        room = new Semaphore(underWayMax);
    }

    /** Takes what was tallied since the last call. */
    synchronized Tally take() {
        var taken = tally;
        tally = new Tally();
        return taken;
    }

    int underWay() {
        return underWayMax - room.availablePermits();
    }

    /** Starts operations until it is told to stop, or the time is over. */
    void run(Schedule schedule, double seconds, Stop stop) throws InterruptedException {
        var began = System.nanoTime();
        var due = 0.0;
        while (!stop.isAsked() && due < seconds) {
            var meant = began + (long) (1e9 * due);
            await(meant);
            begin(meant, stop);
            due += (isEven ? 1 : draws.gap()) / schedule.at(due);
        }
    }

    /** Waits until nothing is under way. */
    void finish() throws InterruptedException {
        if (room.tryAcquire(underWayMax, 60, TimeUnit.SECONDS)) {
            room.release(underWayMax);
        }
    }

    private static void await(long meant) {
        for (var left = meant - System.nanoTime(); left > 0; left = meant - System.nanoTime()) {
            LockSupport.parkNanos(Math.max(left, SLEEP_MIN_NS));
        }
    }

    private void begin(long meant, Stop stop) throws InterruptedException {
        while (!room.tryAcquire()) {
            var left = meant + patience - System.nanoTime();
            if (left <= 0 || stop.isAsked()) {
                tell(Tally::giveUp);
                return;
            }
            var isIn = room.tryAcquire(Math.min(left, 100_000_000), TimeUnit.NANOSECONDS);
            fullUntil = System.nanoTime();
            if (isIn) {
                break;
            }
        }
        // What became due before that had to wait for room, and not for this thread.
        if (meant > fullUntil) {
            var late = System.nanoTime() - meant;
            tell(tally -> tally.late(late));
        }
        if (draws.happens(writes)) {
            write(meant);
        } else {
            read(draws.next(), meant);
        }
    }

    private void read(int record, long meant) {
        var oldest = versions.oldest(record);
        var sent = System.nanoTime();
        CompletionStage<byte[]> reading;
        try {
            reading = target.read(Records.key(record));
        } catch (RuntimeException refused) {
            end(Finding.FAILED, meant, sent, refused);
            return;
        }
        reading.whenComplete((value, failure) -> end(
                failure != null ? Finding.FAILED
                        : value == null ? Finding.ABSENT
                        : versions.judge(record, oldest, records.version(record, value)),
                meant, sent, failure));
    }

    private void write(long meant) {
        var record = draws.next();
        var version = versions.begin(record);
        while (version < 0) {
            record = draws.next();
            version = versions.begin(record);
        }
        var written = record;
        var writtenVersion = version;
        var sent = System.nanoTime();
        CompletionStage<?> writing;
        try {
            writing = target.write(Records.key(written), records.value(written, version));
        } catch (RuntimeException refused) {
            versions.end(written, version, false);
            end(Finding.FAILED, meant, sent, refused);
            return;
        }
        writing.whenComplete((done, failure) -> {
            versions.end(written, writtenVersion, failure == null);
            end(failure == null ? Finding.RIGHT : Finding.FAILED, meant, sent, failure);
        });
    }

    private void end(Finding finding, long meant, long sent, Throwable failure) {
        var ended = System.nanoTime();
        tell(tally -> tally.end(finding, meant, sent, ended));
        room.release();
        if (failure != null) {
            Failures.tell(failure);
        }
    }

    /** Tells the tally of this second; one that was taken is told nothing more. */
    private synchronized void tell(Consumer<Tally> what) {
        what.accept(tally);
    }
}
