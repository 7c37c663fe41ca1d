package tontine.elastic.hbase;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.hadoop.hbase.Cell;
import org.apache.hadoop.hbase.CellUtil;
import org.apache.hadoop.hbase.ServerName;
import org.apache.hadoop.hbase.client.RegionInfo;
import org.apache.hadoop.hbase.client.Result;
import org.apache.hadoop.hbase.exceptions.DeserializationException;
import org.apache.hadoop.hbase.util.Bytes;
import tontine.elastic.Failure;

/**
 * A row of HBase's catalogue: a region and where its replicas are.
 *
 * <p>Columns are {@code info:server} (where it is open, or was last), {@code info:sn} (where it is to be opened, or is)
 * and {@code info:state}; those of further replicas end in {@code _} and the replica's number in hexadecimal.
 */
final class CatalogueRow {
    /** In these states the server in {@code info:sn} is the next one. */
    private static final Set<String> OPENING = Set.of("OPENING", "FAILED_OPEN");
    private static final int REPLICA_RADIX = 16;

    private CatalogueRow() {}

    /** Finds the address of a host. */
    interface Addresses {
        String of(String host) throws Failure;
    }

    /** The replicas that the row tells of; none of a row that is no region's. */
    static List<Region> read(Result row, Set<String> moving, Addresses addresses) throws Failure {
        Map<String, Map<String, String>> replicas = new HashMap<>();
        RegionInfo first = null;
        for (Cell cell : row.listCells()) {
            String column = Bytes.toString(CellUtil.cloneQualifier(cell));
            byte[] value = CellUtil.cloneValue(cell);
            if (column.equals("regioninfo")) {
                first = region(value);
                continue;
            }
            int tail = column.indexOf('_');
            String name = tail < 0 ? column : column.substring(0, tail);
            if (Set.of("server", "sn", "state").contains(name)) {
                String replica = tail < 0 ? "" : column.substring(tail + 1);
                replicas.computeIfAbsent(replica, one -> new HashMap<>()).put(name, Bytes.toString(value));
            }
        }
        List<Region> regions = new ArrayList<>();
        if (first != null) {
            for (Map.Entry<String, Map<String, String>> one : replicas.entrySet()) {
                regions.add(replica(first, one.getKey(), one.getValue(), moving, addresses));
            }
        }
        return regions;
    }

    private static RegionInfo region(byte[] value) {
        try {
            return RegionInfo.parseFrom(value);
        } catch (DeserializationException none) {
            return null;
        }
    }

    private static Region replica(RegionInfo first, String number, Map<String, String> columns, Set<String> moving,
            Addresses addresses) throws Failure {
        RegionInfo region = number.isEmpty() ? first : org.apache.hadoop.hbase.client.RegionInfoBuilder
                .newBuilder(first).setReplicaId(Integer.parseInt(number, REPLICA_RADIX)).build();
        String state = columns.getOrDefault("state", "");
        boolean moves = moving.contains(region.getEncodedName());
        String at = null;
        String next = null;
        // The server of one that is nowhere may have ended long ago, and no name service knows it any more.
        if (!Region.isNowhere(state, moves)) {
            String server = columns.get("server");
            String named = columns.get("sn");
            at = server == null ? null : addresses.of(server.substring(0, server.lastIndexOf(':')));
            boolean opens = OPENING.contains(state);
            if (named != null && (opens || at == null)) {
                String there = addresses.of(ServerName.valueOf(named).getHostname());
                next = opens ? there : null;
                at = opens ? at : there;
            }
        }
        return new Region(region.getEncodedName(), region.getTable().getNameAsString(), state, at, next, moves);
    }
}
