package tontine.elastic.cassandra;

import java.time.Duration;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import tontine.elastic.Log;
import tontine.elastic.MemberState;

/**
 * Cleanups after joins: the older members drop what they do not own any more, one at a time, while the ring is at rest.
 *
 * <p>What is due is a cache. If this process ends before a cleanup, nothing is lost but room on disks, and
 * {@code nodetool cleanup} makes up for it.
 */
final class Cleanups {
    /** How long a cleanup may take until it counts as lost; it goes on then, and is begun again. */
    private static final Duration TIME_MAX = Duration.ofHours(12);
    /** Rest after a cleanup that failed. */
    private static final long REST_NANOS = Duration.ofSeconds(30).toNanos();
    /** Failures in a row of one member until somebody else must see to it. */
    private static final int FAILURES_MAX = 5;

    private final Members members;
    /** Members that were seen to join. */
    private final Set<String> joining = new TreeSet<>();
    /** Members that have a cleanup to do, the first one first. */
    private final Set<String> due = new LinkedHashSet<>();
    /** The member whose cleanup is under way. */
    private String running;
    private int failures;
    private long restsUntil;

    Cleanups(Members members) {
        this.members = members;
    }

    /** Notes who has joined, and begins the next cleanup if the ring is at rest. */
    synchronized void goOn(Ring ring, List<Ring.Place> places) {
        for (Ring.Place place : places) {
            Look own = ring.own(place.id());
            // One that merely starts again is shown as joining, too.
            if (place.state() == MemberState.JOINING && (own == null || own.mode().equals("JOINING"))) {
                joining.add(place.id());
            } else if (place.state() == MemberState.SERVING && joining.remove(place.id())) {
                places.stream().map(Ring.Place::id).filter(id -> !id.equals(place.id())).forEach(due::add);
            }
        }
        Set<String> serving = new TreeSet<>();
        places.stream().filter(place -> place.state() == MemberState.SERVING).forEach(place -> serving.add(place.id()));
        joining.retainAll(places.stream().map(Ring.Place::id).toList());
        due.retainAll(serving);
        boolean rests = restsUntil != 0 && System.nanoTime() - restsUntil < 0;
        if (running == null && !due.isEmpty() && !rests && ring.unrest() == null) {
            running = due.iterator().next();
            begin(running, ring.own(running));
        }
    }

    private void begin(String id, Look own) {
        if (own == null) {
            running = null;
            return;
        }
        Log.say("cleanup of " + id + " (" + own.address() + ") begins");
        Connection connection = members.at(own.address());
        members.begin(() -> {
            try {
                connection.cleanUp(TIME_MAX);
                ended(id, null);
            } catch (Exception failed) {
                ended(id, connection.words(failed));
            }
        });
    }

    private synchronized void ended(String id, String failure) {
        running = null;
        if (failure == null) {
            Log.say("cleanup of " + id + " is done");
            failures = 0;
            due.remove(id);
            return;
        }
        failures++;
        restsUntil = System.nanoTime() + REST_NANOS;
        boolean goesOn = failures < FAILURES_MAX;
        Log.say("cleanup of " + id + " failed: " + failure
                + (goesOn ? "; it is begun again" : "; run `nodetool cleanup` on it"));
        if (!goesOn) {
            failures = 0;
            due.remove(id);
        }
    }

    /** What a member does, for people; null if nothing. */
    synchronized String detailOf(String id) {
        return id.equals(running) ? "its cleanup after a join is under way" : null;
    }

    /** The member whose cleanup is under way or due; null if there is none. */
    synchronized String next() {
        return running != null ? running : due.stream().findFirst().orElse(null);
    }
}
