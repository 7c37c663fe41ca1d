package tontine.elastic.hbase;

import java.util.List;

/** What the master and the NameNode said at one time. Pure: what follows from it is asked of it. */
record Look(List<DataNode> dataNodes, List<RegionServer> servers, List<Region> regions) {
    /**
     * A server whose regions are fewer than this part of the mean lacks its share. HBase's own balancers let a server
     * have a fifth more or less (`hbase.regions.slop`).
     */
    private static final double SHARE_PART = 0.8;

    /** The region server at an address: the one that started last, as an older one is about to be given up. */
    RegionServer server(String address) {
        RegionServer found = null;
        for (RegionServer server : servers) {
            boolean newer = found == null || server.name().getStartCode() > found.name().getStartCode();
            if (server.address().equals(address) && newer) {
                found = server;
            }
        }
        return found;
    }

    /** The DataNode of a member's id; null if the NameNode does not list it. */
    DataNode dataNode(String member) {
        return dataNodes.stream().filter(one -> one.member().equals(member)).findFirst().orElse(null);
    }

    /** Whether regions and blocks may come to it. */
    boolean takes(DataNode dataNode) {
        RegionServer server = server(dataNode.address());
        return dataNode.isHeard() && dataNode.service() == DataNode.Service.NORMAL && server != null
                && !server.shutOut();
    }

    /** The servers that may have regions: live, and not shut out. */
    List<RegionServer> open() {
        return servers.stream().filter(server -> !server.shutOut() && server(server.address()) == server).toList();
    }

    long regionsOn(String address) {
        return regions.stream().filter(region -> region.isOn(address)).count();
    }

    long regionsTo(String address) {
        return regions.stream().filter(region -> region.comesTo(address)).count();
    }

    private double mean() {
        long held = regions.stream().filter(region -> region.isOpen() || region.moves()).count();
        return (double) held / Math.max(1, open().size());
    }

    /** How many regions a server is given that gets its share. */
    long share() {
        return (long) Math.floor(mean());
    }

    /** With how many it is called to serve. */
    long shareLeast() {
        return (long) Math.floor(SHARE_PART * mean());
    }
}
