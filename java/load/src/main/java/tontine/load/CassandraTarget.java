package tontine.load;

import com.datastax.oss.driver.api.core.CqlSession;
import com.datastax.oss.driver.api.core.config.DefaultDriverOption;
import com.datastax.oss.driver.api.core.config.DriverConfigLoader;
import com.datastax.oss.driver.api.core.cql.PreparedStatement;
import com.datastax.oss.driver.api.core.cql.SimpleStatement;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.concurrent.CompletionStage;

/** A Cassandra cluster, by CQL. Requests go to a member that has the key; new members are learned from the others. */
final class CassandraTarget implements Target {
    private static final String TABLE = "load.records";

    private final CqlSession session;
    private final int copies;
    private PreparedStatement get;
    private PreparedStatement put;

    CassandraTarget(Options options) {
        copies = options.whole("copies", 1);
        var settings = DriverConfigLoader.programmaticBuilder()
                .withDuration(DefaultDriverOption.REQUEST_TIMEOUT, options.timeout())
                .withDuration(DefaultDriverOption.CONNECTION_INIT_QUERY_TIMEOUT, Duration.ofSeconds(20))
                .withDuration(DefaultDriverOption.CONTROL_CONNECTION_TIMEOUT, Duration.ofSeconds(20))
                .withDuration(DefaultDriverOption.RECONNECTION_MAX_DELAY, Duration.ofSeconds(5))
                .withString(DefaultDriverOption.REQUEST_CONSISTENCY, options.text("consistency", "ONE"))
                .withInt(DefaultDriverOption.CONNECTION_MAX_REQUESTS, 16_384)
                .build();
        session = CqlSession.builder()
                .addContactPoints(options.addresses())
                .withLocalDatacenter("datacenter1")
                .withConfigLoader(settings)
                .build();
    }

    @Override
    public void prepare() {
        var wait = Duration.ofSeconds(120);
        for (var statement : new String[] {
            "CREATE KEYSPACE IF NOT EXISTS load WITH replication = {'class': 'SimpleStrategy', 'replication_factor': "
                    + copies + "}",
            "CREATE TABLE IF NOT EXISTS " + TABLE + " (key text PRIMARY KEY, value blob)",
        }) {
            session.execute(SimpleStatement.newInstance(statement)
                    .setTimeout(wait));
        }
        get = session.prepare("SELECT value FROM " + TABLE + " WHERE key = ?");
        put = session.prepare("INSERT INTO " + TABLE + " (key, value) VALUES (?, ?)");
    }

    @Override
    public CompletionStage<byte[]> read(String key) {
        return session.executeAsync(get.bind(key)).thenApply(rows -> {
            var row = rows.one();
            var value = row == null ? null : row.getByteBuffer(0);
            return value == null ? null : bytes(value);
        });
    }

    private static byte[] bytes(ByteBuffer buffer) {
        var bytes = new byte[buffer.remaining()];
        buffer.get(bytes);
        return bytes;
    }

    @Override
    public CompletionStage<?> write(String key, byte[] value) {
        return session.executeAsync(put.bind(key, ByteBuffer.wrap(value)));
    }

    @Override
    public void close() {
        session.close();
    }
}
