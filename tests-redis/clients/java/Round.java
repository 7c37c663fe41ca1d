import io.lettuce.core.KeyValue;
import io.lettuce.core.LettuceFutures;
import io.lettuce.core.RedisClient;
import io.lettuce.core.ScanArgs;
import io.lettuce.core.ScanIterator;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.api.sync.RedisCommands;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.TimeUnit;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.JedisPooled;
import redis.clients.jedis.Pipeline;
import redis.clients.jedis.Response;
import redis.clients.jedis.AbstractTransaction;
import redis.clients.jedis.params.ScanParams;
import redis.clients.jedis.params.SetParams;
import redis.clients.jedis.resps.ScanResult;

/** Clients of Java with their defaults: `Round HOST PORT PREFIX`; a line of JSON for each probe. */
public final class Round {
    private interface Work {
        void run() throws Exception;
    }

    private static void probe(String client, Class<?> of, String name, Work work) {
        String result = "yes";
        try {
            work.run();
        } catch (Exception error) {
            result = String.valueOf(error.getMessage());
        }
        String jar = of.getProtectionDomain().getCodeSource().getLocation().getPath();
        String version = jar.replaceAll(".*-([0-9][0-9.]*[0-9])(\\.RELEASE)?\\.jar$", "$1");
        result = result.replace("\\", "\\\\").replace("\"", "\\\"").replace("\n", " ");
        System.out.printf(
            "{\"client\": \"%s\", \"version\": \"%s\", \"probe\": \"%s\", \"result\": \"%s\"}%n",
            client, version, name, result);
    }

    private static void same(Object got, Object wanted) {
        if (!wanted.equals(got)) {
            throw new IllegalStateException(got + " instead of " + wanted);
        }
    }

    public static void main(String[] arguments) {
        String host = arguments[0];
        int port = Integer.parseInt(arguments[1]);
        jedis(host, port, arguments[2] + ":jedis:");
        lettuce(host, port, arguments[2] + ":lettuce:");
        System.exit(0);
    }

    private static void jedis(String host, int port, String prefix) {
        try (JedisPooled client = new JedisPooled(host, port)) {
            probe("Jedis", Jedis.class, "strings", () -> {
                same(client.set(prefix + "a", "1", SetParams.setParams().ex(100)), "OK");
                same(client.get(prefix + "a"), "1");
                same(client.mget(prefix + "a", prefix + "none"), Arrays.asList("1", null));
                same(client.ttl(prefix + "a") > 90, true);
                same(client.del(prefix + "a"), 1L);
            });
            probe("Jedis", Jedis.class, "pipeline", () -> {
                try (Pipeline pipeline = (Pipeline) client.pipelined()) {
                    pipeline.set(prefix + "p", "1");
                    Response<String> read = pipeline.get(prefix + "p");
                    pipeline.sync();
                    same(read.get(), "1");
                }
            });
            probe("Jedis", Jedis.class, "scan", () -> {
                List<String> met = new ArrayList<>();
                String cursor = ScanParams.SCAN_POINTER_START;
                do {
                    ScanResult<String> page =
                        client.scan(cursor, new ScanParams().match(prefix + "*").count(1000));
                    met.addAll(page.getResult());
                    cursor = page.getCursor();
                } while (!cursor.equals(ScanParams.SCAN_POINTER_START));
                same(met, List.of(prefix + "p"));
            });
            probe("Jedis", Jedis.class, "transaction", () -> {
                try (AbstractTransaction transaction = client.multi()) {
                    transaction.set(prefix + "t", "1");
                    transaction.exec();
                }
            });
            probe("Jedis", Jedis.class, "nothing of a transaction", () -> same(client.exists(prefix + "t"), false));
        }
    }

    private static void lettuce(String host, int port, String prefix) {
        RedisClient client = RedisClient.create("redis://" + host + ":" + port);
        try (StatefulRedisConnection<String, String> connection = client.connect()) {
            RedisCommands<String, String> commands = connection.sync();
            probe("Lettuce", RedisClient.class, "strings", () -> {
                same(commands.setex(prefix + "a", 100, "1"), "OK");
                same(commands.get(prefix + "a"), "1");
                same(
                    commands.mget(prefix + "a", prefix + "none"),
                    List.of(KeyValue.just(prefix + "a", "1"), KeyValue.empty(prefix + "none")));
                same(commands.ttl(prefix + "a") > 90, true);
                same(commands.del(prefix + "a"), 1L);
            });
            probe("Lettuce", RedisClient.class, "pipeline", () -> {
                var set = connection.async().set(prefix + "p", "1");
                var read = connection.async().get(prefix + "p");
                same(LettuceFutures.awaitAll(30, TimeUnit.SECONDS, set, read), true);
                same(read.get(), "1");
            });
            probe("Lettuce", RedisClient.class, "scan", () -> {
                List<String> met = new ArrayList<>();
                ScanIterator.scan(commands, ScanArgs.Builder.limit(1000).match(prefix + "*"))
                    .forEachRemaining(met::add);
                same(met, List.of(prefix + "p"));
            });
            probe("Lettuce", RedisClient.class, "transaction", () -> {
                commands.multi();
                commands.set(prefix + "t", "1");
                commands.exec();
            });
        }
        // A connection of its own: the one before may still believe that it is inside a transaction.
        try (StatefulRedisConnection<String, String> connection = client.connect()) {
            probe("Lettuce", RedisClient.class, "nothing of a transaction",
                () -> same(connection.sync().exists(prefix + "t"), 0L));
        }
        client.shutdown(0, 0, TimeUnit.SECONDS);
    }
}
