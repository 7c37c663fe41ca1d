package tontine.elastic.hbase;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * Which regions move next, so that a server gets its share or loses all it has.
 *
 * <p>Pure, and anew from what is seen each time: nothing of an earlier plan is needed to go on with it. HBase's own
 * offload gives regions to random servers and does not try again, and its balancer may find that no move is worth it.
 */
final class Moves {
    /** A region, and the server that is to have it. */
    record Move(Region region, RegionServer to) {}

    private final Look look;
    /** Regions of each table on each address, moves of this plan included. */
    private final Map<String, Map<String, List<Region>>> on = new HashMap<>();

    private Moves(Look look) {
        this.look = look;
        for (Region region : look.regions()) {
            if (region.isOpen() && region.at() != null) {
                of(region.at(), region.table()).add(region);
            }
        }
    }

    /** Moves to a server until it has its share, at most so many. */
    static List<Move> toShare(Look look, RegionServer member, int most) {
        Moves plan = new Moves(look);
        List<Move> moves = new ArrayList<>();
        long coming = look.regionsTo(member.address());
        while (moves.size() < most && plan.count(member.address()) + coming < look.share()) {
            Region region = plan.nextFor(member);
            if (region == null) {
                break;
            }
            plan.move(region, member.address());
            moves.add(new Move(region, member));
        }
        return moves;
    }

    /** Moves from a server to those that have least, at most so many. */
    static List<Move> away(Look look, String address, int most) {
        Moves plan = new Moves(look);
        List<Move> moves = new ArrayList<>();
        List<RegionServer> others =
                look.open().stream().filter(server -> !server.address().equals(address)).toList();
        for (Region region : look.regions()) {
            if (moves.size() == most || others.isEmpty()) {
                break;
            }
            if (region.isOpen() && !region.moves() && address.equals(region.at())) {
                RegionServer to = others.stream().min(plan.leastOf(region.table())).orElseThrow();
                plan.move(region, to.address());
                moves.add(new Move(region, to));
            }
        }
        return moves;
    }

    /** Of the fullest server, a region of the table of which it has most beside the member. */
    private Region nextFor(RegionServer member) {
        List<RegionServer> donors = look.open().stream()
                .filter(server -> !server.address().equals(member.address()) && count(server.address()) > look.share())
                .sorted(Comparator.<RegionServer>comparingLong(server -> -count(server.address()))
                        .thenComparing(RegionServer::address))
                .toList();
        for (RegionServer donor : donors) {
            Region region = on.getOrDefault(donor.address(), Map.of()).entrySet().stream()
                    .sorted(Comparator.<Map.Entry<String, List<Region>>>comparingLong(table ->
                                    of(member.address(), table.getKey()).size() - table.getValue().size())
                            .thenComparing(Map.Entry::getKey))
                    .flatMap(table -> table.getValue().stream())
                    .filter(one -> !one.moves() && !one.isCatalogue() && donor.address().equals(one.at()))
                    .findFirst()
                    .orElse(null);
            if (region != null) {
                return region;
            }
        }
        return null;
    }

    private Comparator<RegionServer> leastOf(String table) {
        return Comparator.<RegionServer>comparingLong(server -> count(server.address()))
                .thenComparingInt(server -> of(server.address(), table).size())
                .thenComparing(RegionServer::address);
    }

    private void move(Region region, String to) {
        of(region.at(), region.table()).remove(region);
        of(to, region.table()).add(region);
    }

    private List<Region> of(String address, String table) {
        return on.computeIfAbsent(address, one -> new HashMap<>()).computeIfAbsent(table, one -> new ArrayList<>());
    }

    private long count(String address) {
        return on.getOrDefault(address, Map.of()).values().stream().mapToLong(List::size).sum();
    }
}
