package tontine.elastic.cassandra;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.Map;
import java.util.Set;
import org.junit.jupiter.api.Test;
import tontine.elastic.Measured;

class RatesTest {
    private final Rates rates = new Rates();

    /** The measures by a look at this second: a hundred operations in each, and half of two processors. */
    private Map<String, Measured> at(long second) {
        long nanos = second * 1_000_000_000L;
        return rates.of("m", new Look.Figures(nanos, nanos, 2, 100 * second, 7L, 0));
    }

    @Test
    void a_rate_is_never_over_more_than_a_minute() {
        Set<String> gauges = Set.of("live-bytes", "pending-compactions");
        assertEquals(gauges, at(0).keySet(), "the first look");
        assertEquals(100, at(60).get("operations").value(), 1e-6);
        assertEquals(50, at(61).get("processor").value(), 1e-6);
        assertEquals(gauges, at(122).keySet(), "a mean over a gap tells of another time");
        assertEquals(100, at(123).get("operations").value(), 1e-6);
    }
}
