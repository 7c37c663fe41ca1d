package tontine.elastic.cassandra;

import java.time.Duration;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import tontine.elastic.Failure;
import tontine.elastic.Log;

/**
 * Decommissions. Each runs on its own thread and in the member itself, which goes on if this process ends.
 *
 * <p>Must never: force one, or begin one while anything else moves.
 */
final class Drains {
    /** How long a decommission may take until its thread gives up waiting; the member goes on. */
    private static final Duration TIME_MAX = Duration.ofDays(7);
    /** How long a call waits for a refusal of the member itself. */
    private static final Duration REFUSAL_TIME_MAX = Duration.ofMillis(1500);
    /** Rest after one that failed. */
    private static final long REST_NANOS = Duration.ofSeconds(30).toNanos();

    private static final String NO_ABORT = "Cassandra cannot take a bootstrap back. It leaves when it has joined; if it"
            + " hangs, end its process with kill -9, and the others drop it within a minute";

    private final Settings settings;
    private final Members members;
    private final Cleanups cleanups;
    private final Set<String> running = ConcurrentHashMap.newKeySet();
    private final Map<String, Failed> failed = new ConcurrentHashMap<>();

    /** Why the last one of a member failed, and when. */
    private record Failed(long nanos, String why) {}

    Drains(Settings settings, Members members, Cleanups cleanups) {
        this.settings = settings;
        this.members = members;
        this.cleanups = cleanups;
    }

    /** Has data leave a member, unless it does so already or has done so. */
    void drain(String id, Ring ring) throws Failure {
        Look own = ring.own(id);
        String address = ring.addressOf(id);
        if (!ring.lists(id)) {
            if (address == null) {
                throw Failure.refused("there is no member " + id + "; observe lists them");
            }
            // It has left.
            return;
        }
        if (own == null) {
            throw Failure.passing(id + " cannot leave, because it does not answer: "
                    + ring.failures().getOrDefault(address, address + " was not asked"));
        }
        switch (own.mode()) {
            case "LEAVING", "DECOMMISSIONED" -> {
                return;
            }
            // To stop its process in good order would be worse: it finishes its bootstrap first, and then owns data.
            case "JOINING", "JOINING_FAILED", "STARTING" -> throw Failure.passing(id + " (" + own.address()
                    + ") joins, and " + NO_ABORT);
            default -> {
                if (running.contains(id)) {
                    return;
                }
            }
        }
        check(own, ring);
        begin(own);
    }

    /** Whether it may begin. */
    private void check(Look own, Ring ring) throws Failure {
        String name = own.hostId() + " (" + own.address() + ")";
        Set<String> owners = ring.owners();
        int replicas = members.within(own.address(), () -> members.at(own.address()).replicas(Members.ANSWER_TIME_MAX));
        if (owners.size() <= replicas) {
            throw Failure.refused(name + " cannot leave: keyspaces keep " + replicas + " copies, and there are "
                    + owners.size() + " members. Grow first, or lower the replication of keyspaces");
        }
        boolean isLastSeed = settings.seedAddresses().contains(own.address())
                && settings.seedAddresses().stream().noneMatch(
                        seed -> !seed.equals(own.address()) && owners.contains(seed));
        if (isLastSeed) {
            throw Failure.refused(name + " cannot leave: it is the only seed of the adapter that serves."
                    + " Name others with --seed, and start the adapter anew");
        }
        String next = cleanups.next();
        if (next != null) {
            throw Failure.passing(name + " leaves when the cleanup of " + next + " after a join is done");
        }
        // What it left half way itself does not keep it from trying again.
        String unrest = own.decommissionFailed() ? ring.unrestBeside(own.address()) : ring.unrest();
        if (unrest != null) {
            throw Failure.passing(name + " cannot leave now: " + unrest);
        }
        Failed last = failed.get(own.hostId());
        if (last != null && System.nanoTime() - last.nanos() < REST_NANOS) {
            throw Failure.passing(name + " did not leave: " + last.why() + ". It is tried again in half a minute");
        }
    }

    private void begin(Look own) throws Failure {
        String id = own.hostId();
        if (!running.add(id)) {
            return;
        }
        Log.say("decommission of " + id + " (" + own.address() + ") begins; " + Ring.NO_WAY_BACK);
        failed.remove(id);
        Connection connection = members.at(own.address());
        CountDownLatch ended = new CountDownLatch(1);
        members.begin(() -> {
            try {
                connection.decommission(TIME_MAX);
                Log.say("decommission of " + id + " is done, by its own word");
            } catch (Exception why) {
                String words = connection.words(why);
                Log.say("decommission of " + id + ": " + words);
                failed.put(id, new Failed(System.nanoTime(), words));
            } finally {
                running.remove(id);
                ended.countDown();
            }
        });
        try {
            if (ended.await(REFUSAL_TIME_MAX.toMillis(), TimeUnit.MILLISECONDS) && failed.containsKey(id)) {
                throw Failure.passing(own.address() + " does not leave: " + failed.get(id).why());
            }
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
    }
}
