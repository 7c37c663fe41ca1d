package tontine.elastic.hbase;

import com.fasterxml.jackson.databind.JsonNode;
import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Future;
import org.apache.hadoop.hbase.client.RegionInfo;
import org.apache.hadoop.hdfs.DFSUtilClient;
import org.apache.hadoop.hdfs.protocol.ClientDatanodeProtocol;
import org.apache.hadoop.hdfs.protocol.DatanodeID;
import org.apache.hadoop.ipc.RPC;
import tontine.elastic.Evidence;
import tontine.elastic.Failure;

/**
 * What the others say of an address: each region server which regions it has, each DataNode that it runs, the master where
 * it has assigned regions, and the NameNode where copies are. All are asked anew.
 *
 * <p>A DataNode that has left still stores its blocks, and says so. So it owns nothing if the NameNode needs none of its
 * copies: it is decommissioned, given up, or unknown.
 *
 * <p>Must never: take silence for a yes.
 */
final class Proof {
    private static final String NAME_SYSTEM = "Hadoop:service=NameNode,name=FSNamesystem";
    private static final String NAME_STATE = "Hadoop:service=NameNode,name=FSNamesystemState";
    private static final int WEB_PORT = 9_870;

    private final Cluster cluster;
    private final Look look;
    private final String address;
    private final List<DataNode> here;
    private final List<String> lacking = new ArrayList<>();

    private Proof(Cluster cluster, Look look, String address, List<DataNode> here) {
        this.cluster = cluster;
        this.look = look;
        this.address = address;
        this.here = here;
    }

    /**
     * Evidence of what is at an address.
     *
     * @param here the DataNodes at it: of a member its own, of a machine all that the NameNode lists there
     */
    static Evidence of(Cluster cluster, Pages pages, Look look, String address, List<DataNode> here) {
        Proof proof = new Proof(cluster, look, address, here);
        Boolean owns = proof.ownsNothing();
        Boolean moves = proof.nothingMoves();
        List<String> witnesses = new ArrayList<>();
        Boolean covered = proof.othersHaveAll(witnesses);
        Boolean copies = proof.nothingLacksACopy(pages);
        Boolean whole = covered == null || copies == null
                ? (Boolean.FALSE.equals(covered) || Boolean.FALSE.equals(copies) ? Boolean.FALSE : null)
                : Boolean.valueOf(covered && copies);
        String detail = proof.lacking.isEmpty() ? null : String.join("; ", proof.lacking);
        return new Evidence(witnesses, owns, moves, whole, detail);
    }

    private boolean lacks(String what) {
        lacking.add(what);
        return false;
    }

    private Boolean ownsNothing() {
        boolean nothing = true;
        long regions = look.regions().stream().filter(region -> region.touches(address)).count();
        if (regions > 0) {
            nothing = lacks("the master has " + regions + " regions on " + address);
        }
        for (DataNode one : here) {
            if (!one.dead() && one.service() != DataNode.Service.LEFT) {
                nothing = lacks("the NameNode counts on the copies of its DataNode " + one.place());
            }
        }
        return nothing;
    }

    private Boolean nothingMoves() {
        boolean nothing = true;
        RegionServer server = look.server(address);
        if (server != null && !server.shutOut()) {
            nothing = lacks("the master may give it regions at any time, as it is not drained");
        }
        boolean moves = look.regions().stream().anyMatch(region ->
                region.comesTo(address) || (region.moves() && region.touches(address)));
        if (moves) {
            nothing = lacks("regions move from it or to it");
        }
        for (DataNode one : here) {
            if (one.service() == DataNode.Service.LEAVING) {
                nothing = lacks("HDFS copies its blocks to others");
            }
            try {
                List<String> written = one.dead() ? List.of() : OpenFiles.on(cluster, one).paths();
                if (!written.isEmpty()) {
                    nothing = lacks(written.size() + " files that are being written have a block on it, such as "
                            + written.get(0));
                }
            } catch (Failure unknown) {
                lacks(unknown.getMessage());
                return nothing ? null : Boolean.FALSE;
            }
        }
        return nothing;
    }

    /** Whether the other servers, each asked by itself, have all regions together. Fills in who answered. */
    private Boolean othersHaveAll(List<String> witnesses) {
        Map<RegionServer, Future<List<RegionInfo>>> regions = new LinkedHashMap<>();
        Map<DataNode, Future<Void>> alive = new LinkedHashMap<>();
        try {
            for (RegionServer server : look.servers()) {
                if (!server.address().equals(address)) {
                    regions.put(server, cluster.master().getRegions(server.name()));
                }
            }
        } catch (Failure unknown) {
            lacks(unknown.getMessage());
            return null;
        }
        for (DataNode one : look.dataNodes()) {
            if (!one.dead() && !one.address().equals(address)) {
                alive.put(one, cluster.calls.begin(() -> ask(one)));
            }
        }
        Set<String> held = new HashSet<>();
        Set<String> answered = new HashSet<>();
        boolean all = true;
        for (Map.Entry<RegionServer, Future<List<RegionInfo>>> one : regions.entrySet()) {
            try {
                Calls.answer("the region server at " + one.getKey().address(), one.getValue())
                        .forEach(region -> held.add(region.getEncodedName()));
                answered.add(one.getKey().address());
            } catch (Failure silent) {
                all = lacks(silent.getMessage());
            }
        }
        for (Map.Entry<DataNode, Future<Void>> one : alive.entrySet()) {
            try {
                Calls.answer("the DataNode " + one.getKey().place(), one.getValue());
                if (answered.contains(one.getKey().address())) {
                    witnesses.add(one.getKey().member());
                }
            } catch (Failure silent) {
                // One that has left is needed for nothing.
                all &= one.getKey().service() == DataNode.Service.LEFT || lacks(silent.getMessage());
            }
        }
        if (!all) {
            return null;
        }
        long nowhere = look.regions().stream().filter(Region::isOpen)
                .filter(region -> !held.contains(region.name())).count();
        return nowhere == 0 || lacks(nowhere + " regions are on no other server, or move");
    }

    private Void ask(DataNode one) throws Exception {
        DatanodeID id = new DatanodeID(one.address(), one.address(), one.uuid(), one.transferPort(), one.webPort(), 0,
                one.rpcPort());
        ClientDatanodeProtocol asked = DFSUtilClient.createClientDatanodeProtocolProxy(id, cluster.settings(),
                (int) Calls.MS_MAX, false);
        try {
            asked.getDatanodeInfo();
            return null;
        } finally {
            RPC.stopProxy(asked);
        }
    }

    private Boolean nothingLacksACopy(Pages pages) {
        try {
            InetSocketAddress active = RPC.getServerAddress(cluster.nameNode().getClient().getNamenode());
            String web = cluster.settings().get("dfs.namenode.http-address", "0.0.0.0:" + WEB_PORT);
            int port = Integer.parseInt(web.substring(web.lastIndexOf(':') + 1));
            CompletableFuture<JsonNode> blocks = pages.bean(active.getAddress().getHostAddress(), port, NAME_SYSTEM);
            CompletableFuture<JsonNode> state = pages.bean(active.getAddress().getHostAddress(), port, NAME_STATE);
            Calls.settle(new CompletableFuture<?>[] {blocks, state}, 2 * Pages.TIME_MAX.toMillis());
            if (!blocks.isDone() || !state.isDone()) {
                lacks("the NameNode's page of figures did not come in time");
                return null;
            }
            return counts(blocks.join(), state.join());
        } catch (Failure unknown) {
            lacks(unknown.getMessage());
            return null;
        }
    }

    private Boolean counts(JsonNode blocks, JsonNode state) {
        Boolean whole = counts(blocks, state, lacking);
        for (DataNode one : look.dataNodes()) {
            boolean counted = !one.dead() && one.service() != DataNode.Service.LEFT && !one.address().equals(address);
            if (counted && !one.isHeard()) {
                whole = lacks("the DataNode " + one.place() + " is silent, and its copies are still counted");
            }
        }
        return whole;
    }

    /** Blocks that lack copies wait for one, or are being copied: two counts. Null if the page does not say. */
    static Boolean counts(JsonNode blocks, JsonNode state, List<String> lacking) {
        Map<String, JsonNode> counts = new LinkedHashMap<>();
        counts.put("are missing", blocks.path("MissingBlocks"));
        counts.put("are corrupt", blocks.path("CorruptBlocks"));
        counts.put("lack copies", blocks.path("LowRedundancyBlocks"));
        counts.put("are being copied", blocks.path("PendingReconstructionBlocks"));
        boolean known = counts.values().stream().allMatch(JsonNode::isNumber)
                && blocks.path("tag.HAState").asText().equals("active")
                && state.path("FSState").asText().equals("Operational");
        if (!known) {
            lacking.add("the page /jmx of the NameNode does not say how many blocks lack copies; see that it is"
                    + " the active one and not in safe mode, and that dfs.namenode.http-address names its port");
            return null;
        }
        boolean whole = true;
        for (Map.Entry<String, JsonNode> count : counts.entrySet()) {
            if (count.getValue().asLong() > 0) {
                lacking.add(count.getValue().asLong() + " blocks of HDFS " + count.getKey());
                whole = false;
            }
        }
        return whole;
    }
}
