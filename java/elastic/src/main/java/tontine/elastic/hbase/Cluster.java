package tontine.elastic.hbase;

import java.io.IOException;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.hbase.ClusterMetrics;
import org.apache.hadoop.hbase.HConstants;
import org.apache.hadoop.hbase.ServerMetrics;
import org.apache.hadoop.hbase.ServerName;
import org.apache.hadoop.hbase.Size;
import org.apache.hadoop.hbase.TableName;
import org.apache.hadoop.hbase.client.AsyncAdmin;
import org.apache.hadoop.hbase.client.AsyncConnection;
import org.apache.hadoop.hbase.client.ConnectionFactory;
import org.apache.hadoop.hbase.client.Result;
import org.apache.hadoop.hbase.client.Scan;
import org.apache.hadoop.hdfs.DistributedFileSystem;
import org.apache.hadoop.hdfs.protocol.DatanodeInfo;
import org.apache.hadoop.hdfs.protocol.HdfsConstants.DatanodeReportType;
import tontine.elastic.Failure;

/** Connections to HBase's master and HDFS's NameNode, and what they say. */
final class Cluster implements AutoCloseable {
    static final String MASTER = "HBase's master";
    static final String NAME_NODE = "the NameNode";
    private static final String CATALOGUE = "the region server with hbase:meta";
    /** The first call also loads the client's classes, some thousand. */
    private static final int CONNECT_MS_MAX = 6_000;

    final Calls calls = new Calls();
    private final Configuration settings;
    private final Map<String, String> addresses = new ConcurrentHashMap<>();
    private AsyncConnection hbase;
    private DistributedFileSystem files;

    Cluster(Configuration settings) {
        this.settings = settings;
    }

    Configuration settings() {
        return settings;
    }

    /** The connection to HBase; begun anew until it could be made. It finds another master by itself. */
    private synchronized AsyncConnection hbase() throws Failure {
        if (hbase == null) {
            hbase = Calls.answer("HBase's ZooKeeper at " + settings.get(HConstants.ZOOKEEPER_QUORUM),
                    ConnectionFactory.createAsyncConnection(settings), CONNECT_MS_MAX);
        }
        return hbase;
    }

    AsyncAdmin master() throws Failure {
        return hbase().getAdmin();
    }

    /** A master that is given longer: for what it answers only when it is done. It goes on when nobody waits any more. */
    AsyncAdmin patient(long ms) throws Failure {
        return hbase().getAdminBuilder().setRpcTimeout(ms, TimeUnit.MILLISECONDS)
                .setOperationTimeout(ms, TimeUnit.MILLISECONDS).setMaxAttempts(1).build();
    }

    synchronized DistributedFileSystem nameNode() throws Failure {
        if (files == null) {
            files = Calls.answer(NAME_NODE, calls.begin(() -> {
                FileSystem found = FileSystem.newInstance(settings);
                if (found instanceof DistributedFileSystem hdfs) {
                    return hdfs;
                }
                throw Failure.refused("fs.defaultFS is " + found.getUri() + ", which is no HDFS; see core-site.xml");
            }), CONNECT_MS_MAX);
        }
        return files;
    }

    /** What both say now. */
    Look look() throws Failure {
        DistributedFileSystem hdfs = nameNode();
        Future<List<DataNode>> dataNodes = calls.begin(() -> dataNodes(hdfs));
        Future<ClusterMetrics> metrics = master().getClusterMetrics(EnumSet.of(
                ClusterMetrics.Option.LIVE_SERVERS, ClusterMetrics.Option.REGIONS_IN_TRANSITION));
        Future<List<ServerName>> shutOut = master().listDecommissionedRegionServers();
        Future<List<Result>> rows = hbase().getTable(TableName.META_TABLE_NAME)
                .scanAll(new Scan().addFamily(HConstants.CATALOG_FAMILY).setCaching(1_000));
        Future<String> catalogue = calls.begin(() -> hbase().getRegionLocator(TableName.META_TABLE_NAME)
                .getRegionLocation(HConstants.EMPTY_START_ROW, true).get().getServerName().getHostname());
        ClusterMetrics told = Calls.answer(MASTER, metrics);
        List<ServerName> closed = Calls.answer(MASTER, shutOut);
        List<RegionServer> servers = new ArrayList<>();
        for (ServerMetrics server : told.getLiveServerMetrics().values()) {
            servers.add(server(server, closed.contains(server.getServerName())));
        }
        Set<String> moving = new HashSet<>();
        told.getRegionStatesInTransition().forEach(one -> moving.add(one.getRegion().getEncodedName()));
        List<Region> regions = new ArrayList<>();
        for (Result row : Calls.answer(CATALOGUE, rows)) {
            regions.addAll(CatalogueRow.read(row, moving, this::address));
        }
        Region itself = Region.catalogue(address(Calls.answer(CATALOGUE, catalogue)), false);
        regions.add(moving.contains(itself.name()) ? Region.catalogue(itself.at(), true) : itself);
        return new Look(Calls.answer(NAME_NODE, dataNodes), servers, regions);
    }

    private RegionServer server(ServerMetrics told, boolean shutOut) throws Failure {
        double bytes = told.getRegionMetrics().values().stream()
                .mapToDouble(region -> region.getStoreFileSize().get(Size.Unit.BYTE)).sum();
        long age = Math.max(0, System.currentTimeMillis() - told.getReportTimestamp());
        return new RegionServer(told.getServerName(), address(told.getServerName().getHostname()),
                Math.max(0, told.getInfoServerPort()), shutOut, told.getRequestCountPerSecond(), bytes, age);
    }

    private List<DataNode> dataNodes(DistributedFileSystem hdfs) throws IOException {
        List<DataNode> found = new ArrayList<>();
        for (DatanodeInfo one : hdfs.getDataNodeStats(DatanodeReportType.LIVE)) {
            found.add(dataNode(one, false));
        }
        for (DatanodeInfo one : hdfs.getDataNodeStats(DatanodeReportType.DEAD)) {
            found.add(dataNode(one, true));
        }
        return found;
    }

    private static DataNode dataNode(DatanodeInfo told, boolean dead) {
        DataNode.Service service = switch (told.getAdminState()) {
            case NORMAL -> DataNode.Service.NORMAL;
            case DECOMMISSION_INPROGRESS -> DataNode.Service.LEAVING;
            case DECOMMISSIONED -> DataNode.Service.LEFT;
            case ENTERING_MAINTENANCE, IN_MAINTENANCE -> DataNode.Service.MAINTENANCE;
        };
        long silent = Math.max(0, System.currentTimeMillis() - told.getLastUpdate());
        return new DataNode(told.getDatanodeUuid(), told.getIpAddr(), told.getXferPort(), told.getIpcPort(),
                told.getInfoPort(), service, silent, dead);
    }

    /**
     * The IP address of a host.
     *
     * <p>Must never: answer anything else where no name service knows the host. Its region server would be at no member's
     * address, and a member be proved empty that has regions.
     */
    String address(String host) throws Failure {
        String known = addresses.get(host);
        if (known == null) {
            try {
                known = InetAddress.getByName(host).getHostAddress();
            } catch (UnknownHostException unknown) {
                throw Failure.passing("no name service knows the address of " + host
                        + ", so nobody can tell whose regions are there. See to DNS or /etc/hosts where this adapter runs");
            }
            addresses.put(host, known);
        }
        return known;
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    @Override
    public void close() {
        calls.close();
        try {
            if (hbase != null) {
                hbase.close();
            }
            if (files != null) {
                files.close();
            }
        } catch (IOException ended) {
            // The process ends after this.
        }
    }
}
