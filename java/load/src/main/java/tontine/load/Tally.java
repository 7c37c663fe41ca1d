package tontine.load;

import java.util.EnumMap;
import java.util.Map;
import org.HdrHistogram.Histogram;

/**
 * What operations came to, and how long they took.
 *
 * <p>A latency counts from the moment for which the operation was meant. *Served* counts from when it was sent, so it
 * leaves out how long it waited here; it looks better the more an engine falls behind. One thread at a time.
 */
final class Tally {
    private static final long LONGEST_US = 600_000_000;

    private final Map<Finding, Long> counts = new EnumMap<>(Finding.class);
    private final Histogram latency = new Histogram(1, LONGEST_US, 3);
    private final Histogram served = new Histogram(1, LONGEST_US, 3);
    private final Histogram lag = new Histogram(1, LONGEST_US, 2);

    /** An operation has ended. Only those that went well have latencies. Times are in nanoseconds. */
    void end(Finding finding, long meant, long sent, long ended) {
        counts.merge(finding, 1L, Long::sum);
        if (finding == Finding.RIGHT) {
            latency.recordValue(micros(ended - meant));
            served.recordValue(micros(ended - sent));
        }
    }

    /** An operation could not begin in time. */
    void giveUp() {
        counts.merge(Finding.UNSTARTED, 1L, Long::sum);
    }

    /** An operation that did not have to wait for others began this much late. */
    void late(long nanos) {
        lag.recordValue(micros(nanos));
    }

    private static long micros(long nanos) {
        return Math.max(1, Math.min(LONGEST_US, nanos / 1000));
    }

    long count(Finding finding) {
        return counts.getOrDefault(finding, 0L);
    }

    /** All operations that ended, or were given up. */
    long all() {
        return counts.values().stream().mapToLong(Long::longValue).sum();
    }

    /** Milliseconds below which so many percent of the latencies are; NaN if there are none. */
    double latency(double percent) {
        return percentile(latency, percent);
    }

    double served(double percent) {
        return percentile(served, percent);
    }

    double lag(double percent) {
        return percentile(lag, percent);
    }

    /** The mean of all latencies in milliseconds; NaN if there are none. */
    double mean() {
        return latency.getTotalCount() == 0 ? Double.NaN : latency.getMean() / 1000;
    }

    private static double percentile(Histogram of, double percent) {
        return of.getTotalCount() == 0 ? Double.NaN : of.getValueAtPercentile(percent) / 1000.0;
    }

    /** Adds what another one has. */
    void add(Tally other) {
        other.counts.forEach((finding, count) -> counts.merge(finding, count, Long::sum));
        latency.add(other.latency);
        served.add(other.served);
        lag.add(other.lag);
    }
}
