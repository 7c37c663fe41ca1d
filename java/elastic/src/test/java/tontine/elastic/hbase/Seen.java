package tontine.elastic.hbase;

import java.util.ArrayList;
import java.util.List;
import org.apache.hadoop.hbase.ServerName;

/** A cluster as it might be seen, for tests of what follows from that. */
final class Seen {
    final List<DataNode> dataNodes = new ArrayList<>();
    final List<RegionServer> servers = new ArrayList<>();
    final List<Region> regions = new ArrayList<>();

    static DataNode dataNode(int number, DataNode.Service service) {
        return new DataNode("uuid-" + number, address(number), 9866, 9867, 9864, service, 500, false);
    }

    static String address(int number) {
        return "10.0.0." + number;
    }

    static RegionServer server(int number, boolean shutOut) {
        return new RegionServer(ServerName.valueOf(address(number), 16020, 1_000 + number), address(number), 16030,
                shutOut, 10, 1_000, 100);
    }

    /** A member that serves, with so many regions of a table. */
    Seen with(int number, int count) {
        dataNodes.add(dataNode(number, DataNode.Service.NORMAL));
        servers.add(server(number, false));
        for (int at = 0; at < count; at++) {
            region("r" + number + "-" + at, "t", Region.OPEN, address(number), null);
        }
        return this;
    }

    Seen region(String name, String table, String state, String at, String next) {
        regions.add(new Region(name, table, state, at, next, next != null));
        return this;
    }

    /** As `with`, but its region server is shut out, and its DataNode is at this. */
    Seen leaving(int number, int count, DataNode.Service service) {
        with(number, count);
        dataNodes.set(dataNodes.size() - 1, dataNode(number, service));
        servers.set(servers.size() - 1, server(number, true));
        return this;
    }

    Look look() {
        return new Look(dataNodes, servers, regions);
    }
}
