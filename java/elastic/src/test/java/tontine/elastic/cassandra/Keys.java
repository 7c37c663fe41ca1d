package tontine.elastic.cassandra;

import com.datastax.oss.driver.api.core.ConsistencyLevel;
import com.datastax.oss.driver.api.core.CqlSession;
import com.datastax.oss.driver.api.core.config.DefaultDriverOption;
import com.datastax.oss.driver.api.core.config.DriverConfigLoader;
import com.datastax.oss.driver.api.core.cql.AsyncResultSet;
import com.datastax.oss.driver.api.core.cql.PreparedStatement;
import com.datastax.oss.driver.api.core.cql.Row;
import java.net.InetSocketAddress;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * Keys with one copy each, so that a member that is ended too early, or that skipped its bootstrap, shows: with more
 * copies the others would hide it. Every value tells its key and how often it was written.
 */
final class Keys implements AutoCloseable {
    private static final int AT_ONCE = 64;
    private static final int VALUE_BYTES = 256;

    private final CqlSession session;
    private final PreparedStatement write;
    private final PreparedStatement read;
    /** How many keys were written and acknowledged, from 0 on. */
    private volatile int count;
    private final AtomicInteger failures = new AtomicInteger();
    private final AtomicInteger absent = new AtomicInteger();
    private final AtomicInteger operations = new AtomicInteger();
    private volatile boolean stopped;
    private Thread load;

    Keys(List<String> addresses, int port) {
        DriverConfigLoader config = DriverConfigLoader.programmaticBuilder()
                .withDuration(DefaultDriverOption.REQUEST_TIMEOUT, Duration.ofSeconds(12))
                .withDuration(DefaultDriverOption.CONNECTION_INIT_QUERY_TIMEOUT, Duration.ofSeconds(12))
                .withDuration(DefaultDriverOption.CONTROL_CONNECTION_TIMEOUT, Duration.ofSeconds(12))
                .withString(DefaultDriverOption.REQUEST_CONSISTENCY, ConsistencyLevel.ONE.name())
                .withBoolean(DefaultDriverOption.REQUEST_DEFAULT_IDEMPOTENCE, true)
                .build();
        var builder = CqlSession.builder().withConfigLoader(config).withLocalDatacenter("datacenter1");
        addresses.forEach(address -> builder.addContactPoint(new InetSocketAddress(address, port)));
        session = builder.build();
        session.execute("CREATE KEYSPACE IF NOT EXISTS shop WITH replication ="
                + " {'class': 'SimpleStrategy', 'replication_factor': 1}");
        session.execute("CREATE TABLE IF NOT EXISTS shop.keys (key text PRIMARY KEY, value text)");
        write = session.prepare("INSERT INTO shop.keys (key, value) VALUES (?, ?)");
        read = session.prepare("SELECT value FROM shop.keys WHERE key = ?");
    }

    private static String key(int number) {
        return "key-" + number;
    }

    private static String value(int number) {
        String unit = "value of " + number + "; ";
        return unit.repeat(VALUE_BYTES / unit.length() + 1);
    }

    private CompletionStage<AsyncResultSet> write(int number) {
        return session.executeAsync(write.bind(key(number), value(number)));
    }

    /** Writes keys until there are so many. */
    void fill(int until) throws Exception {
        Deque<CompletionStage<AsyncResultSet>> open = new ArrayDeque<>();
        for (int number = count; number < until; number++) {
            open.add(write(number));
            if (open.size() >= AT_ONCE) {
                open.remove().toCompletableFuture().get();
            }
        }
        for (CompletionStage<AsyncResultSet> one : open) {
            one.toCompletableFuture().get();
        }
        count = until;
    }

    /** Reads every key back, with one member's word for each; tells those that are absent or have another value. */
    void compareAll(String when) throws Exception {
        int wrong = 0;
        Deque<CompletionStage<AsyncResultSet>> open = new ArrayDeque<>();
        int all = count;
        for (int asked = 0, told = 0; told < all;) {
            while (asked < all && open.size() < AT_ONCE) {
                open.add(session.executeAsync(read.bind(key(asked++))));
            }
            Row row = open.remove().toCompletableFuture().get().one();
            if (row == null || !value(told).equals(row.getString(0))) {
                wrong++;
            }
            told++;
        }
        System.out.println(when + ": " + all + " keys compared, " + wrong + " absent or wrong");
        if (wrong > 0) {
            throw new AssertionError(when + ": " + wrong + " of " + all + " keys are absent or wrong");
        }
    }

    /** From now on keys are written and read all the time, by one client that waits for each answer. */
    void beginLoad() {
        stopped = false;
        load = new Thread(() -> {
            Random dice = new Random(7);
            while (!stopped) {
                try {
                    if (operations.incrementAndGet() % 4 == 0) {
                        write(count).toCompletableFuture().get();
                        count++;
                    } else {
                        int number = dice.nextInt(count);
                        Row row = session.execute(read.bind(key(number))).one();
                        if (row == null || !value(number).equals(row.getString(0))) {
                            absent.incrementAndGet();
                        }
                    }
                    Thread.sleep(2);
                } catch (InterruptedException ended) {
                    return;
                } catch (Exception failed) {
                    System.out.println("an operation failed: " + failed);
                    failures.incrementAndGet();
                }
            }
        }, "load");
        load.start();
    }

    /** Ends the load, and says what came of it. None may be absent. */
    void endLoad() throws InterruptedException {
        stopped = true;
        load.join();
        System.out.println("under way: " + operations + " operations, " + failures + " failed, " + absent + " absent");
        if (absent.get() > 0) {
            throw new AssertionError(absent + " reads found nothing, or another value");
        }
    }

    @Override
    public void close() {
        stopped = true;
        session.close();
    }
}
