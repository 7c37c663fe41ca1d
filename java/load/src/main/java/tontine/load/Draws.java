package tontine.load;

import java.util.Arrays;
import java.util.SplittableRandom;

/**
 * Which record comes next: each as likely as the other, or by Zipf's law with theta 0.99, popular ones scattered.
 *
 * <p>For Zipf it goes by the cumulated weights themselves: exact, and 8 bytes a record.
 */
final class Draws {
    private static final double THETA = 0.99;

    private final SplittableRandom dice;
    private final int records;
    private final double[] below;

    Draws(int records, String distribution, long seed) {
        this.records = records;
        dice = new SplittableRandom(seed);
        below = switch (distribution) {
            case "uniform" -> null;
            case "zipf" -> cumulated(records);
            default -> throw new IllegalArgumentException(
                    "--keys is uniform or zipf, not \"" + distribution + "\"");
        };
    }

    private static double[] cumulated(int records) {
        var below = new double[records];
        var sum = 0.0;
        for (var rank = 0; rank < records; rank++) {
            sum += Math.pow(rank + 1, -THETA);
            below[rank] = sum;
        }
        return below;
    }

    int next() {
        if (below == null) {
            return dice.nextInt(records);
        }
        var found = Arrays.binarySearch(below, dice.nextDouble() * below[records - 1]);
        var rank = Math.min(found < 0 ? -found - 1 : found, records - 1);
        return (int) Long.remainderUnsigned(Records.mixed(rank), records);
    }

    /** Whether something of this likelihood happens. */
    boolean happens(double likelihood) {
        return dice.nextDouble() < likelihood;
    }

    /** Arrivals that are independent of each other: the share of an even gap until the next one. */
    double gap() {
        return -Math.log(1 - dice.nextDouble());
    }
}
