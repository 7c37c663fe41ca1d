package tontine.load;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Arrays;
import java.util.List;
import org.junit.jupiter.api.Test;

final class RatesTest {
    @Test
    void stepsFollowEachOtherAndTheLastOneStays() {
        var schedule = new Schedule("500x60,2000x120");
        assertEquals(500, schedule.at(59.9));
        assertEquals(2000, schedule.at(60));
        assertEquals(2000, schedule.at(500));
        assertEquals(180, schedule.seconds());
        assertEquals(0, new Schedule("700").seconds());
        for (var refused : new String[] {"", "0", "-3x5", "NaN", "5xx"}) {
            assertThrows(IllegalArgumentException.class, () -> new Schedule(refused), refused);
        }
    }

    @Test
    void capacityIsFoundFromBelowAndFromAbove() {
        for (var first : new double[] {100, 1000, 9000}) {
            var found = Capacity.find(first, 1e6, rate -> rate <= 3456);
            assertTrue(found <= 3456 && found > 3456 / 1.06, "from " + first + ": " + found);
        }
        assertEquals(0, Capacity.find(1000, 1e6, rate -> false));
        assertEquals(5000, Capacity.find(1000, 5000, rate -> true));
    }

    @Test
    void fewRecordsTakeMostOfZipfAndEachIsDrawnOfUniform() {
        var zipf = new int[1000];
        var even = new int[1000];
        var popular = new Draws(1000, "zipf", 1);
        var alike = new Draws(1000, "uniform", 1);
        for (var draw = 0; draw < 100_000; draw++) {
            zipf[popular.next()]++;
            even[alike.next()]++;
        }
        var most = Arrays.stream(zipf).max().orElseThrow();
        assertTrue(most > 11_000 && most < 20_000, "the most popular one has " + most);
        assertTrue(Arrays.stream(even).min().orElseThrow() > 50);
    }

    @Test
    void optionsThatNobodyReadsAreRefused() {
        var options = new Options(List.of("--rate", "5", "--sedonds", "9"));
        assertEquals(5, options.number("rate", 1));
        assertThrows(IllegalArgumentException.class, options::finish);
        assertThrows(IllegalArgumentException.class, () -> new Options(List.of("--rate")));
    }

    @Test
    void latenciesAreThoseOfOperationsThatWentWell() {
        var tally = new Tally();
        for (var operation = 1; operation <= 100; operation++) {
            tally.end(Finding.RIGHT, 0, 500_000, operation * 1_000_000L);
        }
        tally.end(Finding.ABSENT, 0, 0, 9_000_000_000L);
        tally.giveUp();
        var sum = new Tally();
        sum.add(tally);
        assertEquals(100, sum.count(Finding.RIGHT));
        assertEquals(1, sum.count(Finding.ABSENT));
        assertEquals(1, sum.count(Finding.UNSTARTED));
        assertEquals(102, sum.all());
        assertEquals(99, sum.latency(99), 0.2);
        assertEquals(50, sum.latency(50), 0.2);
        assertEquals(49.5, sum.served(50), 0.2);
    }
}
