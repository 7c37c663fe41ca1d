package tontine.load;

import java.io.IOException;
import java.util.concurrent.CompletionStage;

/** An engine under load. */
interface Target extends AutoCloseable {
    /** Makes what records are kept in, unless it is there. */
    void prepare() throws Exception;

    /** The value of a key; null if there is none. */
    CompletionStage<byte[]> read(String key);

    /** Writes a value; done when the engine has acknowledged it. */
    CompletionStage<?> write(String key, byte[] value);

    @Override
    void close() throws IOException;

    /** Opens the engine of the options. */
    static Target open(Options options) throws Exception {
        var engine = options.text("engine");
        return switch (engine) {
            case "cassandra" -> new CassandraTarget(options);
            case "hbase" -> new HBaseTarget(options);
            case "redis" -> new RedisTarget(options);
            default -> throw new IllegalArgumentException(
                    "there is no engine \"" + engine + "\"; there is cassandra, hbase and redis");
        };
    }
}
