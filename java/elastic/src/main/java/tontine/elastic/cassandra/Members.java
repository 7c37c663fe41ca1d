package tontine.elastic.cassandra;

import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
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
 * <p>Which addresses are asked is a cache: the seeds, and whatever earlier rounds told of. A member that hangs costs a
 * round its limit, and then its sockets are closed.
 */
final class Members {
    /** How long one member may take to answer. Two such waits fit into a call, with room for what follows. */
    static final Duration LOOK_TIME_MAX = Duration.ofMillis(3500);

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

    /** Something that takes long, on a thread of its own. */
    void begin(Runnable work) {
        threads.execute(work);
    }

    /** Asks all members, first those that are known, then those that these tell of. Fails where no member answers. */
    Ring round() throws Failure {
        Map<String, Look> looks = new TreeMap<>();
        Map<String, String> failures = new TreeMap<>();
        Map<String, Throwable> causes = new HashMap<>();
        ask(known, looks, failures, causes);
        Set<String> further = new TreeSet<>(new Ring(looks, failures).addresses());
        further.removeAll(known);
        ask(further, looks, failures, causes);
        Ring ring = new Ring(looks, failures);
        if (!ring.isSeen()) {
            throw unseen(failures, causes);
        }
        known.addAll(further);
        // One that is in no ring and does not answer is asked no more. The seeds are asked again and again.
        known.removeIf(one -> !looks.containsKey(one) && !ring.addresses().contains(one)
                && !settings.seedAddresses().contains(one));
        return ring;
    }

    private Failure unseen(Map<String, String> failures, Map<String, Throwable> causes) {
        String why = failures.isEmpty()
                ? "those that answer are in no ring yet" : String.join("; ", failures.values());
        String message = "no member of the ring answers: " + why + ". Name members that serve with --seed";
        boolean isRejected = causes.values().stream().anyMatch(SecurityException.class::isInstance);
        return isRejected ? Failure.credentials(message) : Failure.passing(message);
    }

    private void ask(Collection<String> addresses, Map<String, Look> looks, Map<String, String> failures,
            Map<String, Throwable> causes) {
        Map<String, Future<Look>> asked = new LinkedHashMap<>();
        for (String address : addresses) {
            asked.put(address, threads.submit(() -> at(address).look(LOOK_TIME_MAX)));
        }
        long deadline = System.nanoTime() + LOOK_TIME_MAX.toNanos();
        for (Map.Entry<String, Future<Look>> one : asked.entrySet()) {
            Connection connection = at(one.getKey());
            try {
                long left = Math.max(0, deadline - System.nanoTime());
                looks.put(one.getKey(), one.getValue().get(left, TimeUnit.NANOSECONDS));
                continue;
            } catch (ExecutionException failed) {
                causes.put(one.getKey(), failed.getCause());
            } catch (TimeoutException late) {
                one.getValue().cancel(true);
                connection.abandon();
                causes.put(one.getKey(), late);
            } catch (InterruptedException interrupted) {
                one.getValue().cancel(true);
                causes.put(one.getKey(), interrupted);
                Thread.currentThread().interrupt();
            }
            failures.put(one.getKey(), connection.words(causes.get(one.getKey())));
        }
    }

    /** Something that one member does at once, within the limit of a look. */
    <T> T within(String address, java.util.concurrent.Callable<T> call) throws Failure {
        Future<T> begun = threads.submit(call);
        Connection connection = at(address);
        try {
            return begun.get(LOOK_TIME_MAX.toMillis(), TimeUnit.MILLISECONDS);
        } catch (ExecutionException failed) {
            String words = connection.words(failed.getCause());
            throw failed.getCause() instanceof SecurityException ? Failure.credentials(words) : Failure.passing(words);
        } catch (TimeoutException late) {
            connection.abandon();
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
