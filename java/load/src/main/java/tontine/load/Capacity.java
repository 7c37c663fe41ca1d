package tontine.load;

import java.util.function.DoublePredicate;

/**
 * The greatest rate that an engine serves within an objective.
 *
 * <p>It doubles the rate until one is not served, and then halves the gap until it is within a twentieth.
 */
final class Capacity {
    private static final double NEAR = 1.05;
    private static final int STEPS_MAX = 40;

    private Capacity() {}

    /**
     * @param first where to begin
     * @param most where to end in any case
     * @param isServed tries a rate
     * @return the greatest rate that was served; 0 if even a fiftieth of the first one was not
     */
    static double find(double first, double most, DoublePredicate isServed) {
        var served = 0.0;
        var refused = Double.POSITIVE_INFINITY;
        var rate = first;
        for (var step = 0; step < STEPS_MAX; step++) {
            if (isServed.test(rate)) {
                served = rate;
            } else {
                refused = rate;
            }
            if (served >= most || refused < first / 50 || refused <= served * NEAR) {
                break;
            }
            rate = Double.isInfinite(refused) ? Math.min(2 * served, most)
                    : served == 0 ? refused / 2
                    : (served + refused) / 2;
        }
        return served;
    }
}
