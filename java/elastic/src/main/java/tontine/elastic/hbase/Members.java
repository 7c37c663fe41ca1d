package tontine.elastic.hbase;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import tontine.elastic.Measured;
import tontine.elastic.Member;
import tontine.elastic.MemberState;
import tontine.elastic.hbase.ExcludeFile.Intent;
import tontine.elastic.hbase.ExcludeFile.Line;

/**
 * Tells members from what the master, the NameNode and the exclude file say. Pure.
 *
 * <p>A member is a DataNode with the region server at its address. A region server without a DataNode is no member, as
 * it has no name that lasts; a DataNode without a region server is one that is down.
 */
final class Members {
    /** What of a drain is done when all regions are off. */
    private static final int REGIONS_OFF_PERMILLE = 500;
    private static final int WHOLE_PERMILLE = 1_000;

    private final Look look;
    private final List<Line> lines;
    private final Set<String> joining;

    private Members(Look look, List<Line> lines, Set<String> joining) {
        this.look = look;
        this.lines = lines;
        this.joining = joining;
    }

    /** All members, those that were forgotten left out. `joining` are those to which this process moves regions. */
    static List<Member> of(Look look, List<Line> lines, Set<String> joining,
            Map<String, Map<String, Measured>> measures) {
        Members members = new Members(look, lines, joining);
        List<Member> all = new ArrayList<>();
        for (DataNode one : look.dataNodes()) {
            if (ExcludeFile.intent(lines, one) != Intent.FORGOT) {
                Told told = members.told(one);
                all.add(new Member(one.member(), one.address(), told.state, told.permille, told.detail,
                        measures.getOrDefault(one.member(), Map.of())));
            }
        }
        return all;
    }

    private record Told(MemberState state, Integer permille, String detail) {}

    private Told told(DataNode one) {
        RegionServer server = look.server(one.address());
        if (leaves(one, server)) {
            return leaving(one, server);
        }
        if (server == null) {
            return new Told(MemberState.DOWN, null, "the master knows no live region server at " + one.address());
        }
        if (!one.isHeard()) {
            return new Told(MemberState.DOWN, null,
                    "the NameNode has not heard its DataNode for " + one.silentMs() / 1_000 + " s");
        }
        if (one.service() == DataNode.Service.MAINTENANCE) {
            return new Told(MemberState.DOWN, null, "its DataNode is in maintenance");
        }
        if (one.service() != DataNode.Service.NORMAL) {
            return new Told(MemberState.WAITING, null,
                    "its DataNode is excluded because of an earlier one at its address, which is about to be lifted");
        }
        return serving(one, server);
    }

    /** Whether it shall leave, or somebody began to make it leave by hand. */
    private boolean leaves(DataNode one, RegionServer server) {
        boolean intended = ExcludeFile.intent(lines, one) != null;
        boolean excluded = one.service() == DataNode.Service.LEAVING || one.service() == DataNode.Service.LEFT;
        boolean shutOut = server != null && server.shutOut();
        return intended || shutOut || (excluded && !ExcludeFile.isLeftOver(lines, one));
    }

    private Told leaving(DataNode one, RegionServer server) {
        long touching = look.regions().stream().filter(region -> region.touches(one.address())).count();
        boolean shutOut = server == null || server.shutOut();
        if (touching == 0 && shutOut && one.service() == DataNode.Service.LEFT) {
            return new Told(MemberState.DRAINED, null, null);
        }
        if (server == null && !one.isHeard()) {
            return new Told(MemberState.DOWN, null, "it ended while it was drained");
        }
        if (touching > 0) {
            long share = Math.max(1, Math.max(look.share(), touching));
            int left = (int) (touching * (WHOLE_PERMILLE - REGIONS_OFF_PERMILLE) / share);
            return new Told(MemberState.DRAINING, WHOLE_PERMILLE - REGIONS_OFF_PERMILLE - left,
                    touching + " regions are on it");
        }
        if (!shutOut) {
            return new Told(MemberState.DRAINING, 0, "the master is about to be told to give it no regions");
        }
        String detail = one.service() == DataNode.Service.LEAVING
                ? "HDFS copies its blocks to others"
                : "its DataNode is about to be excluded";
        boolean byHand = ExcludeFile.intent(lines, one) == null && one.service() == DataNode.Service.NORMAL;
        return new Told(MemberState.DRAINING, REGIONS_OFF_PERMILLE, byHand
                ? "its region server was decommissioned by hand, and its DataNode was not"
                : detail);
    }

    private Told serving(DataNode one, RegionServer server) {
        long has = look.regionsOn(server.address());
        if (has >= look.shareLeast()) {
            return new Told(MemberState.SERVING, null, null);
        }
        int permille = (int) (WHOLE_PERMILLE * has / Math.max(1, look.share()));
        String detail = "it has " + has + " of its share of " + look.share() + " regions";
        boolean comes = joining.contains(one.member()) || look.regionsTo(server.address()) > 0;
        return comes
                ? new Told(MemberState.JOINING, permille, detail)
                : new Told(MemberState.STANDBY, null, detail);
    }
}
