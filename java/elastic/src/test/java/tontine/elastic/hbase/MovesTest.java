package tontine.elastic.hbase;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;

final class MovesTest {
    /** What a cluster looks like when some moves were done. */
    private static Seen after(Seen seen, List<Moves.Move> moves) {
        for (Moves.Move move : moves) {
            seen.regions.replaceAll(region -> region.equals(move.region())
                    ? new Region(region.name(), region.table(), region.state(), move.to().address(), null, false)
                    : region);
        }
        return seen;
    }

    private static Map<String, Long> counts(Seen seen) {
        Map<String, Long> counts = new HashMap<>();
        seen.servers.forEach(server -> counts.put(server.address(), seen.look().regionsOn(server.address())));
        return counts;
    }

    @Test
    void a_new_member_gets_its_share_in_steps_and_nobody_else_moves() {
        Seen seen = new Seen().with(1, 9).with(2, 7).with(3, 8).with(4, 0);
        int moved = 0;
        for (List<Moves.Move> moves; !(moves = toFourth(seen)).isEmpty(); moved += moves.size()) {
            assertTrue(moves.size() <= 4);
            after(seen, moves);
        }
        assertEquals(6, moved);
        assertEquals(Map.of("10.0.0.1", 6L, "10.0.0.2", 6L, "10.0.0.3", 6L, "10.0.0.4", 6L), counts(seen));
    }

    private static List<Moves.Move> toFourth(Seen seen) {
        return Moves.toShare(seen.look(), Seen.server(4, false), 4);
    }

    @Test
    void what_comes_already_is_not_asked_for_twice() {
        Seen seen = new Seen().with(1, 5).with(2, 5).with(3, 2).with(4, 0);
        for (int at = 0; at < 4; at++) {
            seen.region("on-its-way-" + at, "t", "OPENING", Seen.address(3), Seen.address(4));
        }
        assertEquals(List.of(), Moves.toShare(seen.look(), seen.servers.get(3), 8));
    }

    @Test
    void a_new_member_gets_some_of_each_table() {
        Seen seen = new Seen().with(1, 0).with(2, 0);
        for (int at = 0; at < 6; at++) {
            seen.region("a" + at, "a", Region.OPEN, Seen.address(1), null);
            seen.region("b" + at, "b", Region.OPEN, Seen.address(1), null);
        }
        after(seen, Moves.toShare(seen.look(), seen.servers.get(1), 8));
        for (String table : List.of("a", "b")) {
            assertEquals(3, seen.regions.stream().filter(one -> one.table().equals(table) && one.isOn(Seen.address(2))).count());
        }
    }

    @Test
    void the_catalogue_stays_where_it_is_unless_it_must_go() {
        Seen seen = new Seen().with(1, 0).with(2, 0);
        seen.regions.add(Region.catalogue(Seen.address(1), false));
        seen.region("a", "a", Region.OPEN, Seen.address(1), null);
        List<Moves.Move> moves = Moves.toShare(seen.look(), seen.servers.get(1), 8);
        assertEquals(List.of("a"), moves.stream().map(move -> move.region().name()).toList());
        assertEquals(2, Moves.away(seen.look(), Seen.address(1), 8).size());
    }

    @Test
    void who_leaves_gives_its_regions_to_those_that_have_least() {
        Seen seen = new Seen().with(1, 2).with(2, 5).leaving(3, 1, DataNode.Service.NORMAL).leaving(4, 5, DataNode.Service.NORMAL);
        List<Moves.Move> moves = Moves.away(seen.look(), Seen.address(4), 8);
        assertEquals(5, moves.size());
        assertEquals(Map.of("10.0.0.1", 6L, "10.0.0.2", 6L, "10.0.0.3", 1L, "10.0.0.4", 0L), counts(after(seen, moves)));
    }

    @Test
    void where_nobody_can_take_them_regions_stay() {
        Seen seen = new Seen().leaving(1, 3, DataNode.Service.NORMAL);
        assertEquals(List.of(), Moves.away(seen.look(), Seen.address(1), 8));
    }
}
