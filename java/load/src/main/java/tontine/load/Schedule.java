package tontine.load;

import java.util.ArrayList;
import java.util.List;

/** Operations a second over time: one rate for good, or steps, each with its seconds. The last one stays. */
final class Schedule {
    private record Step(double rate, double until) {}

    private final List<Step> steps = new ArrayList<>();

    /** @param text `500`, or `500x60,2000x120` */
    Schedule(String text) {
        var until = 0.0;
        for (var step : text.split(",")) {
            var parts = step.split("x", 2);
            try {
                until += parts.length == 2 ? Double.parseDouble(parts[1]) : 0;
                steps.add(new Step(Double.parseDouble(parts[0]), until));
            } catch (NumberFormatException unreadable) {
                throw new IllegalArgumentException("--rate is 500 or 500x60,2000x120, not \"" + text + "\"", unreadable);
            }
            if (!(steps.get(steps.size() - 1).rate > 0)) {
                throw new IllegalArgumentException("a rate is above 0: \"" + text + "\"");
            }
        }
    }

    /** The rate after so many seconds. */
    double at(double seconds) {
        for (var step : steps) {
            if (seconds < step.until) {
                return step.rate;
            }
        }
        return steps.get(steps.size() - 1).rate;
    }

    /** Seconds of all steps; 0 for one rate. */
    double seconds() {
        return steps.get(steps.size() - 1).until;
    }
}
