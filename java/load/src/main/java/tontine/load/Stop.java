package tontine.load;

import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/** Whether the run was asked to end: by SIGTERM or SIGINT. It then still writes what it has seen. */
final class Stop {
    private static final long FINISH_SECONDS_MAX = 90;

    private final CountDownLatch ended = new CountDownLatch(1);
    private volatile boolean isAsked;

    Stop() {
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            isAsked = true;
            try {
                ended.await(FINISH_SECONDS_MAX, TimeUnit.SECONDS);
            } catch (InterruptedException hurried) {
                Thread.currentThread().interrupt();
            }
        }));
    }

    boolean isAsked() {
        return isAsked;
    }

    /** All is written. */
    void end() {
        ended.countDown();
    }
}
