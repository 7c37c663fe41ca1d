package tontine.elastic.cassandra;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import tontine.elastic.Measured;

/** Figures of members as measures. A rate is over the time since an earlier look, so the first look gives none. */
final class Rates {
    static final List<String> NAMES = List.of("processor", "operations", "live-bytes", "pending-compactions");
    /** The shortest span of a rate: below it, one burst is taken for much. */
    private static final long SPAN_NANOS_MIN = 900_000_000L;
    /** The longest: a mean over more tells of another time. */
    private static final long SPAN_NANOS_MAX = 60_000_000_000L;

    private final Map<String, Look.Figures> before = new ConcurrentHashMap<>();
    private final Map<String, Look.Figures> last = new ConcurrentHashMap<>();

    /** The measures of a member by this look. */
    Map<String, Measured> of(String id, Look.Figures now) {
        Look.Figures newest = last.get(id);
        if (newest != null && now.nanos() - newest.nanos() >= SPAN_NANOS_MIN) {
            before.put(id, newest);
            last.put(id, now);
        } else if (newest == null) {
            last.put(id, now);
        }
        Map<String, Measured> measures = new LinkedHashMap<>();
        long ageMs = Math.max(0, (System.nanoTime() - now.nanos()) / 1_000_000);
        Look.Figures base = before.get(id);
        if (base != null && now.nanos() - base.nanos() <= SPAN_NANOS_MAX) {
            put(measures, "processor", processor(base, now), ageMs);
            put(measures, "operations", operations(base, now), ageMs);
        }
        put(measures, "live-bytes", value(now.liveBytes()), ageMs);
        put(measures, "pending-compactions", value(now.pendingCompactions()), ageMs);
        return measures;
    }

    /** Forgets members that are gone. */
    void keepOnly(java.util.Set<String> ids) {
        before.keySet().retainAll(ids);
        last.keySet().retainAll(ids);
    }

    private static void put(Map<String, Measured> measures, String name, Double value, long ageMs) {
        if (value != null) {
            measures.put(name, new Measured(value, ageMs));
        }
    }

    private static Double value(Number number) {
        return number == null ? null : number.doubleValue();
    }

    /** Processor time of its process, in percent of what it may use. Null where a process began anew. */
    private static Double processor(Look.Figures base, Look.Figures now) {
        if (base.processorNanos() == null || now.processorNanos() == null || now.processors() == null) {
            return null;
        }
        long used = now.processorNanos() - base.processorNanos();
        long span = now.nanos() - base.nanos();
        return used < 0 || span <= 0 ? null : 100.0 * used / span / now.processors();
    }

    /** Operations in a second. Null where a counter went back. */
    private static Double operations(Look.Figures base, Look.Figures now) {
        if (base.operations() == null || now.operations() == null) {
            return null;
        }
        long done = now.operations() - base.operations();
        long span = now.nanos() - base.nanos();
        return done < 0 || span <= 0 ? null : done * 1e9 / span;
    }
}
