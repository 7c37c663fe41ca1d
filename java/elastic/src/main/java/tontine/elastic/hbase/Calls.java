package tontine.elastic.hbase;

import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.hadoop.hbase.security.AccessDeniedException;
import org.apache.hadoop.security.AccessControlException;
import tontine.elastic.Conversation;
import tontine.elastic.Failure;

/**
 * Calls to others, each within a time. Clients of Hadoop and HBase try again for minutes by themselves; here a call that
 * is not answered is given up, and its thread goes on alone until its own limits end it.
 */
final class Calls implements AutoCloseable {
    /** How long one call to another may take, in milliseconds: several fit into the time of a verb. */
    static final long MS_MAX = 4_000;

    private final ExecutorService threads = Executors.newCachedThreadPool(Conversation.threads("hbase"));

    /** Begins a call that blocks. */
    <T> Future<T> begin(Callable<T> call) {
        return threads.submit(call);
    }

    /** The answer of a call that was begun. */
    static <T> T answer(String of, Future<T> call) throws Failure {
        return answer(of, call, MS_MAX);
    }

    static <T> T answer(String of, Future<T> call, long msMax) throws Failure {
        try {
            return call.get(msMax, TimeUnit.MILLISECONDS);
        } catch (TimeoutException late) {
            call.cancel(true);
            throw Failure.passing(of + " did not answer within " + msMax + " ms. See whether it runs");
        } catch (InterruptedException interrupted) {
            call.cancel(true);
            Thread.currentThread().interrupt();
            throw Failure.passing("the time of the call is over");
        } catch (ExecutionException failed) {
            throw failure(of, failed.getCause());
        }
    }

    <T> T answer(String of, Callable<T> call) throws Failure {
        return answer(of, begin(call));
    }

    /** What became of a call, in the words of the contract. */
    static Failure failure(String of, Throwable cause) {
        if (cause == null) {
            return Failure.passing(of + " did not answer in time");
        }
        for (Throwable one = cause; one != null; one = one.getCause()) {
            if (one instanceof Failure told) {
                return told;
            }
            boolean denied = one instanceof AccessDeniedException || one instanceof AccessControlException
                    || one instanceof javax.security.sasl.SaslException;
            if (denied) {
                return Failure.credentials(of + " refused these credentials: " + first(one)
                        + ". Run this adapter as a user who may do that (HADOOP_USER_NAME, or kinit)");
            }
        }
        return Failure.passing(of + " failed: " + first(cause));
    }

    /** The first line of what is at the bottom of a failure; of a remote one, the rest is a trace. */
    private static String first(Throwable failure) {
        Throwable bottom = failure;
        while (bottom.getCause() != null) {
            bottom = bottom.getCause();
        }
        String message = bottom.getMessage() == null ? "" : ": " + bottom.getMessage().lines().findFirst().orElse("");
        return bottom.getClass().getSimpleName() + message;
    }

    /** Waits for all, whatever becomes of each. */
    static void settle(CompletableFuture<?>[] calls, long msMax) {
        try {
            CompletableFuture.allOf(calls).get(msMax, TimeUnit.MILLISECONDS);
        } catch (ExecutionException | TimeoutException each) {
            // Each is asked by its caller.
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    @Override
    public void close() {
        threads.shutdownNow();
    }
}
