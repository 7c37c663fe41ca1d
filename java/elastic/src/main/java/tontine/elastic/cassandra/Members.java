package tontine.elastic.cassandra;

import java.time.Duration;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import tontine.elastic.Conversation;
import tontine.elastic.Failure;

/**
 * The connections to all members, and rounds in which all of them are asked at once.
 *
 * <p>Which addresses are asked is a cache: the seeds, and whatever earlier rounds told of. A member that is slow to
 * connect goes on with that between rounds. One that hangs for long has its sockets closed.
 */
final class Members {
    /** How long one member may take for something that a call waits for. */
    static final Duration ANSWER_TIME_MAX = Duration.ofSeconds(2);
    /** How long a round waits for some, when others have answered. */
    private static final Duration OTHERS_TIME_MAX = Duration.ofSeconds(4);
    /** How long a round takes at most: with the answer of one member after it, it fits into a call. */
    private static final Duration ROUND_TIME_MAX = Duration.ofMillis(6500);
    /** How long a look may hang until the sockets of its member are closed. */
    private static final Duration HANGS_TIME_MAX = Duration.ofSeconds(20);

    private final Settings settings;
    private final Map<String, Connection> connections = new ConcurrentHashMap<>();
    private final Set<String> known = ConcurrentHashMap.newKeySet();
    private final ExecutorService threads = Executors.newCachedThreadPool(Conversation.threads("member"));

    Members(Settings settings) {
        this.settings = settings;
        Sockets.install();
        known.addAll(settings.seedAddresses());
    }

    Connection at(String address) {
        return connections.computeIfAbsent(address, one -> new Connection(one, settings));
    }

    /** Something that takes long, on its own thread. */
    void begin(Runnable work) {
        threads.execute(work);
    }

    /** Asks all members, first those that are known, then those that these tell of. Fails where no member answers. */
    Ring round() throws Failure {
        long began = System.nanoTime();
        Map<String, Look> looks = new TreeMap<>();
        Map<String, Throwable> causes = new TreeMap<>();
        ask(known, began, looks, causes);
        Set<String> further = new TreeSet<>(ring(looks, causes).addresses());
        further.removeAll(known);
        ask(further, began, looks, causes);
        Ring ring = ring(looks, causes);
        if (!ring.isSeen()) {
            throw unseen(ring.failures(), causes);
        }
        known.addAll(further);
        // One that is in no ring and does not answer is asked no more. The seeds are asked again and again.
        known.removeIf(one -> !looks.containsKey(one) && !ring.addresses().contains(one)
                && !settings.seedAddresses().contains(one));
        connections.keySet().retainAll(known);
        return ring;
    }

    private Ring ring(Map<String, Look> looks, Map<String, Throwable> causes) {
        Map<String, String> failures = new TreeMap<>();
        causes.forEach((address, cause) -> failures.put(address, at(address).words(cause)));
        return new Ring(looks, failures);
    }

    private Failure unseen(Map<String, String> failures, Map<String, Throwable> causes) {
        String why = failures.isEmpty()
                ? "those that answer are in no ring yet" : String.join("; ", failures.values());
        String message = "no member of the ring answers: " + why + ". Name members that serve with --seed";
        boolean isRejected = causes.values().stream().anyMatch(SecurityException.class::isInstance);
        return isRejected ? Failure.credentials(message) : Failure.passing(message);
    }

    private void ask(Collection<String> addresses, long began, Map<String, Look> looks,
            Map<String, Throwable> causes) {
        Map<String, Future<Look>> asked = new LinkedHashMap<>();
        for (String address : addresses) {
            at(address).abandonIfItHangs(HANGS_TIME_MAX);
            asked.put(address, threads.submit(() -> at(address).look(HANGS_TIME_MAX)));
        }
        await(asked.values(), began);
        asked.forEach((address, look) -> {
            try {
                looks.put(address, look.get(0, TimeUnit.NANOSECONDS));
            } catch (ExecutionException failed) {
                causes.put(address, failed.getCause());
            } catch (TimeoutException | InterruptedException late) {
                causes.put(address, new TimeoutException());
            }
        });
    }

    /** Until all have ended, or the time is over: that of the round, or a shorter one where some have answered. */
    private static void await(Collection<Future<Look>> asked, long began) {
        while (!asked.stream().allMatch(Future::isDone)) {
            boolean isAny = asked.stream().anyMatch(Future::isDone);
            Duration limit = isAny ? OTHERS_TIME_MAX : ROUND_TIME_MAX;
            if (System.nanoTime() - began > limit.toNanos()) {
                return;
            }
            try {
                Thread.sleep(5);
            } catch (InterruptedException interrupted) {
                Thread.currentThread().interrupt();
                return;
            }
        }
    }

    /** Something that one member does at once, within its limit. */
    <T> T within(String address, java.util.concurrent.Callable<T> call) throws Failure {
        Future<T> begun = threads.submit(call);
        Connection connection = at(address);
        try {
            return begun.get(ANSWER_TIME_MAX.toMillis(), TimeUnit.MILLISECONDS);
        } catch (ExecutionException failed) {
            String words = connection.words(failed.getCause());
            throw failed.getCause() instanceof SecurityException ? Failure.credentials(words) : Failure.passing(words);
        } catch (TimeoutException late) {
            throw Failure.passing(connection.words(late));
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            throw Failure.passing("the call to " + address + " was interrupted");
        }
    }

    void close() {
        threads.shutdownNow();
    }
}
