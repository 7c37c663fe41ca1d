package tontine.load;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.HashSet;
import org.junit.jupiter.api.Test;

final class RecordsTest {
    @Test
    void aValueProvesItsKeyAndItsVersion() {
        var records = new Records(1024);
        var value = records.value(7, 41);
        assertEquals(1024, value.length);
        assertEquals(41, records.version(7, value));
        assertEquals(-1, records.version(8, value), "of another record");
        for (var at : new int[] {0, 31, 32, 1023}) {
            var torn = value.clone();
            torn[at] ^= 1;
            assertEquals(-1, records.version(7, torn), "byte " + at);
        }
        assertEquals(-1, new Records(1000).version(7, value), "of another length");
    }

    @Test
    void keysDifferAndSpreadOverRegions() {
        var keys = new HashSet<String>();
        var counts = new int[4];
        for (var number = 0; number < 4000; number++) {
            var key = Records.key(number);
            keys.add(key);
            counts[Integer.parseInt(key.substring(0, 1), 16) / 4]++;
        }
        assertEquals(4000, keys.size());
        for (var count : counts) {
            assertTrue(count > 850 && count < 1150, "a quarter has " + count);
        }
        assertEquals("40000000", new String(HBaseTarget.bounds(4)[0]));
    }

    @Test
    void readsMayFindWhatIsUnderWayAndNothingOlderThanWhatWasAcknowledged() {
        var versions = new Versions(3, 100);
        assertEquals(Finding.RIGHT, versions.judge(0, 0, 5), "of an earlier run");
        assertEquals(Finding.WRONG, versions.judge(0, 0, -1));
        assertEquals(100, versions.begin(0));
        assertEquals(-1, versions.begin(0), "one write of a record at a time");
        assertEquals(Finding.RIGHT, versions.judge(0, 0, 100), "under way");
        assertEquals(Finding.WRONG, versions.judge(0, 0, 101), "never written");
        versions.end(0, 100, true);
        assertEquals(Finding.STALE, versions.judge(0, versions.oldest(0), 5));
        assertEquals(101, versions.begin(0));
        versions.end(0, 101, false);
        assertEquals(Finding.RIGHT, versions.judge(0, versions.oldest(0), 100), "it failed, or did not");
        assertEquals(Finding.RIGHT, versions.judge(0, versions.oldest(0), 101));
    }
}
