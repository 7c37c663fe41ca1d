package tontine.elastic.hbase;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.UnaryOperator;
import org.apache.hadoop.hbase.Cell;
import org.apache.hadoop.hbase.CellUtil;
import org.apache.hadoop.hbase.ServerName;
import org.apache.hadoop.hbase.client.RegionInfo;
import org.apache.hadoop.hbase.client.Result;
import org.apache.hadoop.hbase.exceptions.DeserializationException;
import org.apache.hadoop.hbase.util.Bytes;

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

    /** The replicas that the row tells of; none of a row that is no region's. */
    static List<Region> read(Result row, Set<String> moving, UnaryOperator<String> address) {
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
            RegionInfo region = first;
            replicas.forEach((number, columns) -> regions.add(replica(region, number, columns, moving, address)));
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
            UnaryOperator<String> address) {
        RegionInfo region = number.isEmpty() ? first : org.apache.hadoop.hbase.client.RegionInfoBuilder
                .newBuilder(first).setReplicaId(Integer.parseInt(number, REPLICA_RADIX)).build();
        String state = columns.getOrDefault("state", "");
        String server = columns.get("server");
        String named = columns.get("sn");
        String at = server == null ? null : address.apply(server.substring(0, server.lastIndexOf(':')));
        String next = null;
        if (named != null) {
            String there = address.apply(ServerName.valueOf(named).getHostname());
            if (OPENING.contains(state)) {
                next = there;
            } else if (at == null) {
                at = there;
            }
        }
        return new Region(region.getEncodedName(), region.getTable().getNameAsString(), state, at, next,
                moving.contains(region.getEncodedName()));
    }
}
