package tontine.load;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Collections;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hbase.HBaseConfiguration;
import org.apache.hadoop.hbase.TableName;
import org.apache.hadoop.hbase.client.AsyncAdmin;
import org.apache.hadoop.hbase.client.AsyncConnection;
import org.apache.hadoop.hbase.client.AsyncTable;
import org.apache.hadoop.hbase.client.BalanceRequest;
import org.apache.hadoop.hbase.client.ColumnFamilyDescriptorBuilder;
import org.apache.hadoop.hbase.client.ConnectionFactory;
import org.apache.hadoop.hbase.client.Get;
import org.apache.hadoop.hbase.client.Put;
import org.apache.hadoop.hbase.client.TableDescriptorBuilder;

/** An HBase cluster, found by its ZooKeeper. The table is split evenly beforehand. */
final class HBaseTarget implements Target {
    private static final TableName TABLE = TableName.valueOf("load");
    private static final byte[] FAMILY = {'f'};
    private static final byte[] COLUMN = {'v'};
    private static final long PREPARE_SECONDS_MAX = 300;
    private static final long CONNECT_SECONDS_MAX = 180;

    private final AsyncConnection connection;
    private final AsyncTable<?> table;
    private final int regions;

    HBaseTarget(Options options) throws Exception {
        regions = options.whole("regions", 24);
        var at = options.addresses().get(0);
        var settings = HBaseConfiguration.create();
        settings.set("hbase.zookeeper.quorum", at.getHostString());
        settings.setInt("hbase.zookeeper.property.clientPort", at.getPort());
        settings.setLong("hbase.client.operation.timeout", options.timeout().toMillis());
        settings.setLong("hbase.rpc.timeout", options.timeout().toMillis());
        connection = connected(settings);
        table = connection.getTable(TABLE);
    }

    /** A master that has just started is not in ZooKeeper yet. */
    private static AsyncConnection connected(Configuration settings) throws Exception {
        var until = System.nanoTime() + TimeUnit.SECONDS.toNanos(CONNECT_SECONDS_MAX);
        while (true) {
            try {
                return ConnectionFactory.createAsyncConnection(settings).get(60, TimeUnit.SECONDS);
            } catch (ExecutionException early) {
                if (System.nanoTime() > until) {
                    throw early;
                }
                Thread.sleep(500);
            }
        }
    }

    @Override
    public void prepare() throws Exception {
        var admin = admin();
        if (admin.tableExists(TABLE).get(PREPARE_SECONDS_MAX, TimeUnit.SECONDS)) {
            return;
        }
        var family = ColumnFamilyDescriptorBuilder.of(FAMILY);
        var described = TableDescriptorBuilder.newBuilder(TABLE).setColumnFamily(family).build();
        var made = regions < 2 ? admin.createTable(described) : admin.createTable(described, bounds(regions));
        made.get(PREPARE_SECONDS_MAX, TimeUnit.SECONDS);
    }

    /** Writes what is in memory to files of HDFS. */
    void flush() throws Exception {
        admin().flush(TABLE).get(PREPARE_SECONDS_MAX, TimeUnit.SECONDS);
    }

    /**
     * Gives each region server its share of the regions, and waits until it has them.
     *
     * @return how many regions of the table each has
     */
    Map<String, Integer> balance() throws Exception {
        var admin = admin();
        var until = System.nanoTime() + TimeUnit.SECONDS.toNanos(PREPARE_SECONDS_MAX);
        admin.balancerSwitch(true).get(60, TimeUnit.SECONDS);
        while (true) {
            admin.balance(BalanceRequest.newBuilder().setIgnoreRegionsInTransition(true).build()).get(PREPARE_SECONDS_MAX, TimeUnit.SECONDS);
            var counts = counts();
            var most = Collections.max(counts.values());
            var least = Collections.min(counts.values());
            var metrics = admin.getClusterMetrics().get(60, TimeUnit.SECONDS);
            if (metrics.getRegionStatesInTransition().isEmpty() && most - least <= 2) {
                return counts;
            }
            if (System.nanoTime() > until) {
                throw new IllegalStateException("regions are not balanced: " + counts);
            }
            Thread.sleep(500);
        }
    }

    /** Regions of the table by region server. */
    private Map<String, Integer> counts() throws Exception {
        var counts = new TreeMap<String, Integer>();
        var admin = admin();
        for (var server : admin.getRegionServers().get(60, TimeUnit.SECONDS)) {
            var regions = admin.getRegions(server).get(60, TimeUnit.SECONDS);
            var ours = regions.stream().filter(region -> region.getTable().equals(TABLE)).count();
            counts.put(server.getHostname() + ":" + server.getPort(), (int) ours);
        }
        return counts;
    }

    private AsyncAdmin admin() {
        return connection.getAdminBuilder()
                .setOperationTimeout(PREPARE_SECONDS_MAX, TimeUnit.SECONDS)
                .setRpcTimeout(60, TimeUnit.SECONDS)
                .build();
    }

    /** The keys at which so many regions of equal size begin, but for the first. */
    static byte[][] bounds(int regions) {
        var bounds = new byte[regions - 1][];
        for (var at = 1; at < regions; at++) {
            bounds[at - 1] = String.format("%08x", ((long) at << 32) / regions).getBytes(StandardCharsets.US_ASCII);
        }
        return bounds;
    }

    @Override
    public CompletionStage<byte[]> read(String key) {
        var get = new Get(key.getBytes(StandardCharsets.US_ASCII)).addColumn(FAMILY, COLUMN);
        return table.get(get).thenApply(row -> row.getValue(FAMILY, COLUMN));
    }

    @Override
    public CompletionStage<?> write(String key, byte[] value) {
        return table.put(new Put(key.getBytes(StandardCharsets.US_ASCII)).addColumn(FAMILY, COLUMN, value));
    }

    @Override
    public void close() throws IOException {
        connection.close();
    }
}
