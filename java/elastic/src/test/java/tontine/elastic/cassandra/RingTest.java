package tontine.elastic.cassandra;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.function.UnaryOperator;
import org.junit.jupiter.api.Test;
import tontine.elastic.Evidence;
import tontine.elastic.Subject;

class RingTest {
    /** A cluster of a, b and c, each with one token, in which one thing after the other can be made otherwise. */
    private static final class Cluster {
        private final Map<String, Look> looks = new TreeMap<>();
        private final Map<String, String> failures = new HashMap<>();

        Cluster(String... addresses) {
            for (String address : addresses) {
                looks.put(address, look(address, List.of(addresses)));
            }
        }

        private static Look look(String address, List<String> all) {
            Map<String, String> ids = new TreeMap<>();
            Map<String, String> owners = new TreeMap<>();
            Map<String, Look.Gossip> gossip = new TreeMap<>();
            for (String one : all) {
                ids.put(one, "id-" + one);
                owners.put("token-" + one, one);
                gossip.put(one, new Look.Gossip("id-" + one, "NORMAL"));
            }
            return new Look(address, "id-" + address, "NORMAL", true, false, new TreeSet<>(all), Set.of(), Set.of(),
                    Set.of(), Set.of(), ids, owners, "schema", false, gossip, List.of(),
                    new Look.Figures(0, null, null, null, null, null));
        }

        Cluster with(String address, UnaryOperator<Look> change) {
            looks.put(address, change.apply(looks.get(address)));
            return this;
        }

        Cluster silent(String address) {
            looks.remove(address);
            failures.put(address, address + " does not answer");
            return this;
        }

        Ring ring() {
            return new Ring(looks, failures);
        }

        String states() {
            List<String> words = new ArrayList<>();
            for (Ring.Place place : ring().members()) {
                words.add(place.address() + " " + place.state().word());
            }
            return String.join(", ", words);
        }

        Evidence of(String member) {
            return ring().evidence(new Subject(member, null));
        }

        Evidence at(String address) {
            return ring().evidence(new Subject(null, address));
        }
    }

    private static boolean proves(Evidence evidence) {
        return !evidence.witnesses().isEmpty() && Boolean.TRUE.equals(evidence.ownsNothing())
                && Boolean.TRUE.equals(evidence.nothingMoves()) && Boolean.TRUE.equals(evidence.nothingShort());
    }

    private static Look mode(Look look, String mode) {
        return new Look(look.address(), look.hostId(), mode, look.servesClients(), look.decommissionFailed(),
                look.live(), look.unreachable(), look.joining(), look.leaving(), look.moving(), look.hostIds(),
                look.owners(), look.schema(), look.removes(), look.gossip(), look.streams(), look.figures());
    }

    private static Look lists(Look look, Set<String> unreachable, Set<String> joining, Set<String> leaving) {
        Set<String> live = new TreeSet<>(look.live());
        live.removeAll(unreachable);
        return new Look(look.address(), look.hostId(), look.mode(), look.servesClients(), look.decommissionFailed(),
                live, unreachable, joining, leaving, look.moving(), look.hostIds(), look.owners(), look.schema(),
                look.removes(), look.gossip(), look.streams(), look.figures());
    }

    private static Look schema(Look look, String schema, boolean removes) {
        return new Look(look.address(), look.hostId(), look.mode(), look.servesClients(), look.decommissionFailed(),
                look.live(), look.unreachable(), look.joining(), look.leaving(), look.moving(), look.hostIds(),
                look.owners(), schema, removes, look.gossip(), look.streams(), look.figures());
    }

    private static Look clients(Look look, boolean serves) {
        return new Look(look.address(), look.hostId(), look.mode(), serves, look.decommissionFailed(),
                look.live(), look.unreachable(), look.joining(), look.leaving(), look.moving(), look.hostIds(),
                look.owners(), look.schema(), look.removes(), look.gossip(), look.streams(), look.figures());
    }

    private static Look streamsWith(Look look, String peer) {
        return new Look(look.address(), look.hostId(), look.mode(), look.servesClients(), look.decommissionFailed(),
                look.live(), look.unreachable(), look.joining(), look.leaving(), look.moving(), look.hostIds(),
                look.owners(), look.schema(), look.removes(), look.gossip(),
                List.of(new Look.Stream(Set.of(peer), 20, 0)), look.figures());
    }

    /** What gossip says of an address, for a member that is in nobody's ring. */
    private static Look hears(Look look, String address, String id, String status) {
        Map<String, Look.Gossip> gossip = new TreeMap<>(look.gossip());
        gossip.put(address, new Look.Gossip(id, status));
        return new Look(look.address(), look.hostId(), look.mode(), look.servesClients(), look.decommissionFailed(),
                look.live(), look.unreachable(), look.joining(), look.leaving(), look.moving(), look.hostIds(),
                look.owners(), look.schema(), look.removes(), gossip, look.streams(), look.figures());
    }

    @Test
    void states_go_by_a_members_own_word_and_by_that_of_the_others() {
        assertEquals("a serving, b serving, c serving", new Cluster("a", "b", "c").states());
        assertEquals("a serving, b serving, c draining",
                new Cluster("a", "b", "c").with("c", look -> mode(look, "LEAVING")).states());
        assertEquals("a serving, b serving, c joining",
                new Cluster("a", "b", "c").with("c", look -> clients(look, false)).states());
        assertEquals("a serving, b serving, c serving",
                new Cluster("a", "b", "c").with("c", look -> mode(look, "DECOMMISSION_FAILED")).states());
        assertEquals("a serving, b serving, c down",
                new Cluster("a", "b", "c").with("c", look -> mode(look, "DRAINED")).states());
        UnaryOperator<Look> away = look -> lists(look, Set.of("c"), Set.of(), Set.of());
        assertEquals("a serving, b serving, c down", new Cluster("a", "b", "c").with("a", away).with("b", away).states());
        assertEquals("a serving, b serving, c serving", new Cluster("a", "b", "c").with("a", away).states(),
                "one of two is no majority");
    }

    @Test
    void a_member_that_does_not_answer_is_what_the_others_say() {
        assertEquals("a serving, b serving, c serving", new Cluster("a", "b", "c").silent("c").states());
        UnaryOperator<Look> away = look -> lists(look, Set.of("c"), Set.of(), Set.of());
        assertEquals("a serving, b serving, c down",
                new Cluster("a", "b", "c").silent("c").with("a", away).with("b", away).states());
        UnaryOperator<Look> leaves = look -> lists(look, Set.of(), Set.of(), Set.of("c"));
        assertEquals("a serving, b serving, c draining",
                new Cluster("a", "b", "c").silent("c").with("a", leaves).with("b", leaves).states());
        assertFalse(new Cluster("a").silent("a").ring().isSeen());
    }

    @Test
    void one_that_joins_is_seen_before_it_has_tokens_and_one_that_left_is_gone() {
        UnaryOperator<Look> hears = look -> hears(look, "d", "id-d", null);
        assertEquals("a serving, b serving, c serving, d joining",
                new Cluster("a", "b", "c").with("a", hears).states());
        UnaryOperator<Look> left = look -> hears(look, "d", "id-d", "LEFT");
        assertEquals("a serving, b serving, c serving", new Cluster("a", "b", "c").with("a", left).states());
        Look gone = mode(Cluster.look("d", List.of("a", "b", "c")), "DECOMMISSIONED");
        Cluster cluster = new Cluster("a", "b", "c").with("a", left);
        cluster.looks.put("d", gone);
        assertEquals("a serving, b serving, c serving, d drained", cluster.states());
    }

    @Test
    void a_member_in_the_ring_is_never_proved_to_be_empty() {
        Evidence evidence = new Cluster("a", "b", "c").of("id-c");
        assertEquals(List.of("id-a", "id-b"), evidence.witnesses());
        assertEquals(false, evidence.ownsNothing());
        assertFalse(proves(new Cluster("a", "b", "c").at("c")), "by its address, it is the same member");
        // Its own word that it has left counts for nothing.
        assertFalse(proves(new Cluster("a", "b", "c").with("c", look -> mode(look, "DECOMMISSIONED")).of("id-c")));
    }

    @Test
    void one_that_all_others_have_dropped_is_proved_to_be_empty() {
        assertTrue(proves(new Cluster("a", "b", "c").of("id-d")));
        assertTrue(proves(new Cluster("a", "b", "c").at("d")));
        UnaryOperator<Look> left = look -> hears(look, "d", "id-d", "LEFT");
        assertTrue(proves(new Cluster("a", "b", "c").with("a", left).with("b", left).of("id-d")));
        // Its address may have a new member since; its id tells them apart.
        assertTrue(proves(new Cluster("a", "b", "c").of("id-of-old")));
        UnaryOperator<Look> reused = look -> hears(look, "a", "id-a", "NORMAL");
        assertTrue(proves(new Cluster("a", "b", "c").with("b", reused).of("id-of-old-a")));
    }

    @Test
    void whatever_a_single_witness_says_or_does_not_say_is_enough_for_no() {
        Map<String, UnaryOperator<Look>> doubts = new TreeMap<>();
        doubts.put("it lists it as one that joins", look -> lists(look, Set.of(), Set.of("d"), Set.of()));
        doubts.put("it heard of it without a status", look -> hears(look, "d", "id-d", null));
        doubts.put("it heard that it was shut down", look -> hears(look, "d", "id-d", "shutdown"));
        doubts.put("it has a stream with it", look -> streamsWith(look, "d"));
        doubts.put("it does not reach another", look -> lists(look, Set.of("c"), Set.of(), Set.of()));
        doubts.put("another one leaves", look -> lists(look, Set.of(), Set.of(), Set.of("c")));
        doubts.put("another one joins", look -> lists(look, Set.of(), Set.of("e"), Set.of()));
        doubts.put("its schema is another", look -> schema(look, "other", false));
        doubts.put("it carries out a removenode", look -> schema(look, "schema", true));
        doubts.put("it begins only", look -> mode(look, "STARTING"));
        doubts.forEach((doubt, change) -> {
            assertFalse(proves(new Cluster("a", "b", "c").with("b", change).at("d")), doubt);
            String detail = new Cluster("a", "b", "c").with("b", change).at("d").detail();
            assertTrue(detail != null && !detail.isEmpty(), doubt);
        });
        Evidence unknown = new Cluster("a", "b", "c").silent("b").of("id-d");
        assertNull(unknown.ownsNothing());
        assertTrue(unknown.detail().contains("b does not answer"), unknown.detail());
        Cluster disagree = new Cluster("a", "b", "c");
        disagree.looks.put("b", Cluster.look("b", List.of("a", "b")));
        assertFalse(proves(disagree.at("d")), "they do not agree about the ring");
    }

    @Test
    void streams_of_others_are_told_apart_unless_its_address_is_not_known() {
        assertTrue(proves(new Cluster("a", "b", "c").with("b", look -> streamsWith(look, "c")).at("d")));
        assertFalse(proves(new Cluster("a", "b", "c").with("b", look -> streamsWith(look, "c")).of("id-d")));
    }

    @Test
    void the_last_member_has_no_witness() {
        Evidence evidence = new Cluster("a").of("id-a");
        assertEquals(List.of(), evidence.witnesses());
        assertFalse(proves(evidence));
    }

    @Test
    void unrest_names_what_is_under_way() {
        assertNull(new Cluster("a", "b", "c").ring().unrest());
        Ring leaves = new Cluster("a", "b", "c").with("b", look -> lists(look, Set.of(), Set.of(), Set.of("c"))).ring();
        assertTrue(leaves.unrest().contains("c leaves"), leaves.unrest());
        // One that has left for good may be listed as not reached for days.
        assertNull(new Cluster("a", "b", "c").with("b", look -> lists(look, Set.of("z"), Set.of(), Set.of()))
                .ring().unrest());
    }

    @Test
    void gossip_and_replication_are_read_as_cassandra_writes_them() {
        Map<String, Look.Gossip> gossip = Look.gossip("""
                /127.0.0.1:7000
                  generation:1795976782
                  STATUS:48:NORMAL,-2165176243587400095
                  HOST_ID:2:fc15a459-0a4f-4e33-98ef-963f753e7e8e
                  STATUS_WITH_PORT:47:NORMAL,-2165176243587400095
                  TOKENS:46:<hidden>

                host/[::1]:7000
                  STATUS_WITH_PORT:716:LEFT,x,17
                /127.0.0.3:7000
                  HOST_ID:2:c520df1a-3c50-48f9-83d3-1859bc1d7f8b
                """);
        assertEquals(Map.of(
                "127.0.0.1", new Look.Gossip("fc15a459-0a4f-4e33-98ef-963f753e7e8e", "NORMAL"),
                "::1", new Look.Gossip(null, "LEFT"),
                "127.0.0.3", new Look.Gossip("c520df1a-3c50-48f9-83d3-1859bc1d7f8b", null)), gossip);
        assertEquals(3, Connection.replicas("SimpleStrategy {replication_factor=3}"));
        assertEquals(5, Connection.replicas("NetworkTopologyStrategy {dc1=3/1, dc2=2}"));
        assertEquals("::1", Addresses.withoutPort("::1"));
        assertEquals("10.0.0.1", Addresses.withoutPort("10.0.0.1:7000"));
    }

    @Test
    void rates_are_missing_until_two_looks_and_where_a_counter_went_back() {
        Rates rates = new Rates();
        long start = System.nanoTime() - 10_000_000_000L;
        assertEquals(Set.of("live-bytes"), rates.of("a", new Look.Figures(start, 0L, 2, 100L, 7L, null)).keySet());
        var measures = rates.of("a", new Look.Figures(start + 2_000_000_000L, 1_000_000_000L, 2, 300L, 7L, 4));
        assertEquals(25, measures.get("processor").value(), 1e-9);
        assertEquals(100, measures.get("operations").value(), 1e-9);
        assertTrue(measures.get("operations").ageMs() >= 7900);
        // A look right after it counts from the one before.
        measures = rates.of("a", new Look.Figures(start + 2_100_000_000L, 1_000_000_000L, 2, 310L, 7L, 4));
        assertEquals(100, measures.get("operations").value(), 1e-9);
        measures = rates.of("a", new Look.Figures(start + 4_000_000_000L, 5L, 2, 3L, 7L, 4));
        assertEquals(Set.of("live-bytes", "pending-compactions"), measures.keySet());
        assertEquals(Set.of("live-bytes"), rates.of("b", new Look.Figures(start, 0L, 2, null, 7L, null)).keySet());
    }
}
