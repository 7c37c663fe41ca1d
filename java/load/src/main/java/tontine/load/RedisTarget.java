package tontine.load;

import io.lettuce.core.ClientOptions;
import io.lettuce.core.RedisURI;
import io.lettuce.core.TimeoutOptions;
import io.lettuce.core.cluster.ClusterClientOptions;
import io.lettuce.core.cluster.ClusterTopologyRefreshOptions;
import io.lettuce.core.cluster.RedisClusterClient;
import io.lettuce.core.cluster.api.StatefulRedisClusterConnection;
import io.lettuce.core.codec.ByteArrayCodec;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.concurrent.CompletionStage;

/** A Redis Cluster. MOVED and ASK are followed; each MOVED brings a new look at who has which slots. */
final class RedisTarget implements Target {
    private final RedisClusterClient client;
    private final StatefulRedisClusterConnection<byte[], byte[]> connection;

    RedisTarget(Options options) {
        var nodes = options.addresses().stream()
                .map(at -> RedisURI.builder().withHost(at.getHostString()).withPort(at.getPort())
                        .withTimeout(options.timeout()).build())
                .toList();
        client = RedisClusterClient.create(nodes);
        var topology = ClusterTopologyRefreshOptions.builder()
                .enableAllAdaptiveRefreshTriggers()
                .adaptiveRefreshTriggersTimeout(Duration.ofSeconds(1))
                .build();
        client.setOptions(ClusterClientOptions.builder()
                .topologyRefreshOptions(topology)
                .timeoutOptions(TimeoutOptions.enabled(options.timeout()))
                .disconnectedBehavior(ClientOptions.DisconnectedBehavior.REJECT_COMMANDS)
                .maxRedirects(16)
                // A server that has just joined is asked before the next look shows it.
                .validateClusterNodeMembership(false)
                .build());
        connection = client.connect(ByteArrayCodec.INSTANCE);
    }

    @Override
    public void prepare() {
        connection.sync().ping();
    }

    @Override
    public CompletionStage<byte[]> read(String key) {
        return connection.async().get(key.getBytes(StandardCharsets.US_ASCII));
    }

    @Override
    public CompletionStage<?> write(String key, byte[] value) {
        return connection.async().set(key.getBytes(StandardCharsets.US_ASCII), value);
    }

    @Override
    public void close() {
        connection.close();
        client.shutdown(Duration.ZERO, Duration.ofSeconds(2));
    }
}
