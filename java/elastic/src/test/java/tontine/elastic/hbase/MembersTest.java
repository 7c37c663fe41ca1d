package tontine.elastic.hbase;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import tontine.elastic.Member;
import tontine.elastic.hbase.ExcludeFile.Line;

final class MembersTest {
    private static Map<String, Member> members(Seen seen, String... lines) {
        List<Line> read = Stream.of(lines).map(Line::read).toList();
        return Members.of(seen.look(), read, Set.of(), Map.of()).stream()
                .collect(Collectors.toMap(Member::address, member -> member));
    }

    private static String state(Seen seen, int number, String... lines) {
        Member member = members(seen, lines).get(Seen.address(number));
        return member == null ? "absent" : member.state().word();
    }

    @Test
    void a_member_serves_with_four_fifths_of_the_mean() {
        Seen seen = new Seen().with(1, 6).with(2, 6).with(3, 6).with(4, 2);
        assertEquals("serving", state(seen, 3));
        assertEquals("standby", state(seen, 4), "nothing comes to it, so its join is to be asked for again");
        assertEquals("it has 2 of its share of 5 regions", members(seen).get("10.0.0.4").detail());
        seen.regions.add(new Region("late", "t", "OPENING", Seen.address(1), Seen.address(4), true));
        assertEquals("joining", state(seen, 4));
        assertEquals("serving", state(new Seen().with(1, 6).with(2, 6).with(3, 6).with(4, 4), 4));
    }

    @Test
    void where_there_are_fewer_regions_than_servers_one_without_any_serves() {
        assertEquals("serving", state(new Seen().with(1, 1).with(2, 1).with(3, 0), 3));
    }

    @Test
    void a_drain_is_done_when_regions_and_blocks_are_gone() {
        String moves = "# tontine moves-regions uuid-4 10.0.0.4:9866";
        String drains = "10.0.0.4:9866 # tontine drains uuid-4";
        Seen base = new Seen().with(1, 6).with(2, 6);
        assertEquals("draining", state(base.with(4, 6), 4, moves), "before anything was done");

        Seen regions = new Seen().with(1, 6).with(2, 6).leaving(4, 3, DataNode.Service.NORMAL);
        assertEquals("draining", state(regions, 4, moves));
        assertEquals("3 regions are on it", members(regions, moves).get("10.0.0.4").detail());

        Seen opened = new Seen().with(1, 6).with(2, 6).leaving(4, 0, DataNode.Service.LEFT);
        opened.region("r", "t", "OPENING", Seen.address(4), Seen.address(1));
        assertEquals("draining", state(opened, 4, drains), "a region has not arrived elsewhere");

        Seen blocks = new Seen().with(1, 6).with(2, 6).leaving(4, 0, DataNode.Service.LEAVING);
        assertEquals("draining", state(blocks, 4, drains));
        assertEquals(500, members(blocks, drains).get("10.0.0.4").permille());

        Seen done = new Seen().with(1, 6).with(2, 6).leaving(4, 0, DataNode.Service.LEFT);
        assertEquals("drained", state(done, 4, drains));
    }

    @Test
    void a_region_server_that_started_again_in_mid_drain_is_not_drained() {
        Seen seen = new Seen().with(1, 6).with(2, 6).leaving(4, 0, DataNode.Service.LEFT);
        seen.servers.set(2, Seen.server(4, false));
        assertEquals("draining", state(seen, 4, "10.0.0.4:9866 # tontine drains uuid-4"));
    }

    @Test
    void a_drain_by_another_hand_is_seen_as_one() {
        Seen seen = new Seen().with(1, 6).with(2, 6).leaving(4, 0, DataNode.Service.NORMAL);
        assertEquals("draining", state(seen, 4));
        assertTrue(members(seen).get("10.0.0.4").detail().contains("by hand"));
    }

    @Test
    void who_has_the_address_of_a_forgotten_one_waits_and_the_forgotten_one_is_not_told() {
        String forgot = "10.0.0.4:9866 # tontine forgot uuid-4";
        Seen gone = new Seen().with(1, 6);
        gone.dataNodes.add(Seen.dataNode(4, DataNode.Service.LEFT));
        assertEquals("absent", state(gone, 4, forgot));
        Seen next = new Seen().with(1, 6).with(4, 0);
        next.dataNodes.set(1, new DataNode("uuid-44", Seen.address(4), 9866, 9867, 9864, DataNode.Service.LEFT, 500, false));
        assertEquals("waiting", state(next, 4, forgot));
    }

    @Test
    void without_one_of_its_processes_a_member_is_down() {
        Seen noServer = new Seen().with(1, 6).with(4, 6);
        noServer.servers.remove(1);
        assertEquals("down", state(noServer, 4));
        Seen silent = new Seen().with(1, 6).with(4, 6);
        silent.dataNodes.set(1, new DataNode("uuid-4", Seen.address(4), 9866, 9867, 9864, DataNode.Service.NORMAL, 31_000, false));
        assertEquals("down", state(silent, 4));
        Seen dead = new Seen().with(1, 6).with(4, 6);
        dead.servers.remove(1);
        dead.dataNodes.set(1, new DataNode("uuid-4", Seen.address(4), 9866, 9867, 9864, DataNode.Service.LEAVING, 90_000, true));
        assertEquals("down", state(dead, 4, "10.0.0.4:9866 # tontine drains uuid-4"));
    }
}
