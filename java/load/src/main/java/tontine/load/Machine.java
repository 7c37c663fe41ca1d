package tontine.load;

import com.sun.management.OperatingSystemMXBean;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;

/** Processor time of this process and of the whole box, since the last look. */
final class Machine {
    /**
     * @param cpu processors that this process used
     * @param idle the share of its processors that it left unused, 0 to 1
     * @param boxIdle the share of all processors that nobody used, 0 to 1
     */
    record Use(double cpu, double idle, double boxIdle) {}

    private final OperatingSystemMXBean system =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    private final double allowed;
    private long at = System.nanoTime();
    private long used = system.getProcessCpuTime();
    private long[] box = box();

    /** @param allowed how many processors this process may use */
    Machine(double allowed) {
        this.allowed = allowed;
    }

    Use look() {
        var now = System.nanoTime();
        var usedNow = system.getProcessCpuTime();
        var boxNow = box();
        var cpu = (usedNow - used) / (double) Math.max(1, now - at);
        var boxIdle = (boxNow[0] - box[0]) / (double) Math.max(1, boxNow[1] - box[1]);
        at = now;
        used = usedNow;
        box = boxNow;
        return new Use(cpu, Math.max(0, 1 - cpu / allowed), boxIdle);
    }

    /** Ticks that all processors were idle, and all ticks. */
    private static long[] box() {
        try {
            var line = Files.readAllLines(Path.of("/proc/stat")).get(0).trim().split(" +");
            var all = 0L;
            // The last two, of guests, are among the others.
            for (var at = 1; at < Math.min(line.length, 9); at++) {
                all += Long.parseLong(line[at]);
            }
            return new long[] {Long.parseLong(line[4]) + Long.parseLong(line[5]), all};
        } catch (IOException none) {
            return new long[] {0, 0};
        }
    }
}
