package tontine.elastic.cassandra;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import java.time.Duration;
import java.util.Map;
import java.util.TreeMap;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.MethodOrderer;
import org.junit.jupiter.api.Order;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestMethodOrder;

/**
 * Real members of Cassandra 5.0, the real controller, and machines of {@code tontine adapter local}. All tests share
 * one cluster, because a member takes half a minute to start; each leaves three members behind.
 */
@Tag("full")
@TestMethodOrder(MethodOrderer.OrderAnnotation.class)
class FullTest {
    private static final int KEYS = 20_000;
    private static final Duration PATIENCE = Duration.ofSeconds(300);

    private static Shop shop;
    private static Keys keys;

    @BeforeAll
    static void found() throws Exception {
        shop = new Shop();
        long began = System.nanoTime();
        shop.found();
        System.out.println("three founders serve after " + seconds(began));
        keys = new Keys(Shop.FOUNDERS, Shop.CQL_PORT);
        keys.fill(KEYS);
    }

    @AfterAll
    static void end() throws Exception {
        if (keys != null) {
            keys.close();
        }
        shop.close();
    }

    private static String seconds(long began) {
        return String.format("%.1f s", (System.nanoTime() - began) / 1e9);
    }

    /** States by address. */
    private static Map<String, String> states(Processes.Adapter adapter) throws Exception {
        Map<String, String> states = new TreeMap<>();
        for (JsonNode member : adapter.result("observe", Map.of()).get("members")) {
            states.put(member.get("address").asText(), member.get("state").asText());
        }
        return states;
    }

    private static String id(Processes.Adapter adapter, String address) throws Exception {
        for (JsonNode member : adapter.result("observe", Map.of()).get("members")) {
            if (member.get("address").asText().equals(address)) {
                return member.get("id").asText();
            }
        }
        throw new AssertionError("no member at " + address);
    }

    @Test
    @Order(1)
    void the_adapter_keeps_the_contract_and_refuses_what_would_lose_data() throws Exception {
        Processes.Said checked = shop.checkAdapter();
        System.out.print(checked.output());
        checked.succeeds();
        try (Processes.Adapter adapter = shop.newAdapter()) {
            String id = id(adapter, Shop.FOUNDERS.get(2));
            JsonNode drained = adapter.call("drain", Map.of("member", id));
            assertEquals(-32_001, drained.at("/error/code").asInt(), "three copies and three members: " + drained);
            JsonNode cancelled = adapter.call("cancel", Map.of("member", id));
            assertEquals(-32_001, cancelled.at("/error/code").asInt(), cancelled.toString());
            assertTrue(cancelled.at("/error/message").asText().contains("cannot be cancelled"));
            JsonNode forgotten = adapter.call("forget", Map.of("member", id));
            assertEquals(-32_001, forgotten.at("/error/code").asInt(), forgotten.toString());
            Thread.sleep(1500);
            JsonNode measures = adapter.result("observe", Map.of()).at("/members/0/measures");
            for (String measure : new String[] {"processor", "operations", "live-bytes", "pending-compactions"}) {
                assertTrue(measures.at("/" + measure + "/value").isNumber(), measure + " in " + measures);
            }
        }
    }

    @Test
    @Order(2)
    void a_fleet_grows_and_shrinks_while_its_controller_is_killed_and_no_key_is_lost() throws Exception {
        shop.elastic("apply", shop.path("shop.toml").toString()).succeeds();
        shop.startController();
        try (Processes.Adapter adapter = shop.newAdapter()) {
            for (String founder : Shop.FOUNDERS) {
                shop.elastic("adopt", "shop", "--member=" + id(adapter, founder)).succeeds();
            }
        }
        keys.beginLoad();
        long began = System.nanoTime();
        shop.elastic("plan", "shop", "+1", "--no-wait").succeeds();
        String address = "127.0.0.231";
        Processes.await("a machine takes requests", PATIENCE, () -> Shop.takesRequests(address));
        System.out.println("request to first served operation: " + seconds(began));
        Processes.await("four members serve", PATIENCE, () -> shop.isSettledAt(4));
        System.out.println("request to serving, in the document: " + seconds(began));
        keys.compareAll("with four members");
        awaitCleanups();
        keys.compareAll("with four members that were cleaned up");
        shrinkThroughAKill(address);
        keys.endLoad();
        keys.compareAll("with three members");
        shop.killController();
    }

    /** The controller's adapter cleans up the founders, one after the other. */
    private static void awaitCleanups() throws Exception {
        var log = shop.path("controller.log");
        Processes.await("three cleanups", PATIENCE, () -> shop.processes.count(log, "cleanup of [^ ]+ is done") == 3);
        assertEquals(3, shop.processes.count(log, "cleanup of [^ ]+ [^ ]+ begins"), "each is cleaned up once");
    }

    private static void shrinkThroughAKill(String address) throws Exception {
        long began = System.nanoTime();
        shop.elastic("plan", "shop", "-1", "--no-wait").succeeds();
        try (Processes.Adapter adapter = shop.newAdapter()) {
            Processes.await("it leaves", PATIENCE,
                    () -> Processes.sure(() -> "draining".equals(states(adapter).get(address))));
            shop.killController();
            JsonNode evidence = adapter.result("evidence", Map.of("address", address));
            assertFalse(evidence.path("owns_nothing").asBoolean(), "it holds data yet: " + evidence);
            assertTrue(evidence.path("detail").asText().contains("cannot be cancelled"), evidence.toString());
        }
        shop.startController();
        Processes.await("three members serve", PATIENCE, () -> shop.isSettledAt(3));
        System.out.println("drain to end, through a kill of the controller: " + seconds(began));
        assertFalse(Shop.takesRequests(address));
    }
}
