package tontine.elastic.cassandra;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import java.time.Duration;
import java.util.Map;
import java.util.Random;
import java.util.Set;
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
        shop.elastic("apply", shop.path("shop.toml").toString()).succeeds();
        shop.startController();
        try (Processes.Adapter adapter = shop.newAdapter()) {
            for (String founder : Shop.FOUNDERS) {
                String member = "--member=" + id(adapter, founder);
                // The controller's own adapter may not have answered yet.
                Processes.await("adopted", PATIENCE,
                        () -> Processes.sure(() -> shop.elastic("adopt", "shop", member).exit() == 0));
            }
        }
        shop.killController();
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
        shop.startController();
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

    /** Whether evidence of a machine that never became a member proves that it may be ended. */
    private static boolean isProved(Processes.Adapter adapter, String address) throws Exception {
        JsonNode evidence = adapter.result("evidence", Map.of("address", address));
        return evidence.get("witnesses").size() > 0 && evidence.path("owns_nothing").asBoolean()
                && evidence.path("nothing_moves").asBoolean() && evidence.path("nothing_short").asBoolean();
    }

    @Test
    @Order(3)
    void what_hangs_or_dies_is_told_and_proves_nothing() throws Exception {
        String address = "127.0.0.224";
        try (Processes.Adapter adapter = shop.newAdapter()) {
            shop.startByHand(address, adapter.result("boot", Map.of("token", "t-1")).get("script").asText());
            Processes.await("it joins", PATIENCE, () -> Processes.sure(() -> states(adapter).containsKey(address)));
            assertEquals("joining", states(adapter).get(address));
            assertFalse(isProved(adapter, address), "it may serve at any moment");
            JsonNode drained = adapter.call("drain", Map.of("member", id(adapter, address)));
            assertEquals(-32_000, drained.at("/error/code").asInt(), drained.toString());
            shop.signal(address, "KILL");
            long began = System.nanoTime();
            Processes.await("the others drop it", PATIENCE, () -> Processes.sure(() -> isProved(adapter, address)));
            System.out.println("one that died while it joined was dropped after " + seconds(began));
            assertFalse(states(adapter).containsKey(address));

            String founder = Shop.FOUNDERS.get(2);
            shop.signal(founder, "STOP");
            began = System.nanoTime();
            assertFalse(isProved(adapter, address), "one of the others does not answer");
            assertTrue(System.nanoTime() - began < Duration.ofSeconds(9).toNanos(), seconds(began));
            Processes.await("it is down", PATIENCE,
                    () -> Processes.sure(() -> "down".equals(states(adapter).get(founder))));
            shop.signal(founder, "CONT");
            Processes.await("it serves again", PATIENCE,
                    () -> Processes.sure(() -> "serving".equals(states(adapter).get(founder))));
        }
        keys.compareAll("after a member hung");
    }

    @Test
    @Order(4)
    void random_resizes_with_kills_lose_nothing() throws Exception {
        long seed = Long.getLong("resizes.seed", System.nanoTime());
        int resizes = Integer.getInteger("resizes", 3);
        System.out.println(resizes + " resizes, -Dresizes.seed=" + seed);
        Random dice = new Random(seed);
        shop.startController();
        keys.beginLoad();
        int members = 3;
        for (int number = 1; number <= resizes; number++) {
            boolean grows = members == 3 || (number > 2 && members < 5 && dice.nextBoolean());
            // The first two are without kills, to be measured.
            Kill further = grows && number % 2 == 1 ? Kill.MACHINE : Kill.CONTROLLER;
            Kill kill = number <= 2 ? Kill.NOTHING : further;
            resize(number, grows ? members + 1 : members - 1, kill, dice.nextInt(15_000));
            members += grows ? 1 : -1;
        }
        keys.endLoad();
        keys.compareAll("after all resizes");
        for (; members > 3; members--) {
            shop.elastic("plan", "shop", "-1").succeeds();
        }
        shop.killController();
    }

    /** What is killed during a resize. */
    private enum Kill { NOTHING, CONTROLLER, MACHINE }

    private static void resize(int number, int target, Kill kill, int afterMs) throws Exception {
        Set<String> before = shop.machines().keySet();
        boolean grows = target > 3 + before.size();
        long decommissions = said("begins; ") + said("is done, by its own word");
        long began = System.nanoTime();
        shop.elastic("plan", "shop", grows ? "+1" : "-1", "--no-wait").succeeds();
        if (kill == Kill.NOTHING) {
            measure(grows, began, decommissions);
        } else {
            Thread.sleep(afterMs);
        }
        if (kill == Kill.CONTROLLER) {
            shop.killController();
            shop.startController();
        }
        if (kill == Kill.MACHINE) {
            Processes.await("a process", PATIENCE, () -> shop.killMachineThatIsNotOf(before));
        }
        Processes.await("resize " + number + ": " + target + " members serve", PATIENCE.multipliedBy(2),
                () -> shop.isSettledAt(target));
        System.out.println("resize " + number + " to " + target + ", killed after " + afterMs + " ms: " + kill + ", "
                + seconds(began));
        keys.compareAll("resize " + number);
    }

    /** How often adapters of controllers told this of a decommission. */
    private static long said(String words) {
        return shop.processes.count(shop.path("controller.log"), "decommission of .*" + words);
    }

    /** What the controller adds to what the members take by themselves. */
    private static void measure(boolean grows, long began, long decommissions) throws Exception {
        if (grows) {
            Processes.await("a process", PATIENCE, () -> !shop.membersOfMachines().isEmpty());
            String started = seconds(began);
            String address = shop.membersOfMachines().keySet().iterator().next();
            Processes.await("it takes requests", PATIENCE, () -> Shop.takesRequests(address));
            System.out.println("grown: process after " + started + ", first served operation after " + seconds(began));
            return;
        }
        ProcessHandle process = shop.membersOfMachines().values().iterator().next();
        Processes.await("it begins", PATIENCE, () -> said("begins; ") + said("is done, by") > decommissions);
        String begun = seconds(began);
        Processes.await("it is done", PATIENCE, () -> said("begins; ") + said("is done, by") > decommissions + 1);
        String done = seconds(began);
        process.onExit().join();
        System.out.println("shrunk: decommission began after " + begun + ", done after " + done + ", process ended after "
                + seconds(began));
    }

    @Test
    @Order(5)
    void by_hand_it_takes_as_long_and_the_seed_trap_is_convicted() throws Exception {
        String address = "127.0.0.225";
        String script;
        try (Processes.Adapter adapter = shop.newAdapter()) {
            script = adapter.result("boot", Map.of("token", "t-2")).get("script").asText();
        }
        long began = System.nanoTime();
        shop.startByHand(address, script);
        shop.awaitCql(address);
        System.out.println("by hand, start to first served operation: " + seconds(began));
        keys.compareAll("with a member that was started by hand");
        began = System.nanoTime();
        shop.nodetool(address, "decommission").succeeds();
        shop.endByHand(address);
        System.out.println("by hand, nodetool decommission to end: " + seconds(began));
        keys.compareAll("without it");

        // Planted: the same script, in which a member may be among its own seeds. It skips its bootstrap.
        String trapped = "127.0.0.226";
        String planted = script.replace("if [ -z", "seeds=$seeds,$MACHINE_ADDRESS:24700\nif [ -z");
        shop.startByHand(trapped, planted);
        shop.awaitCql(trapped);
        assertThrows(AssertionError.class, () -> keys.compareAll("with a member among its own seeds"));
    }
}
