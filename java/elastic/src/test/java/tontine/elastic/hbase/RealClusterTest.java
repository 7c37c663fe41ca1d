package tontine.elastic.hbase;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.File;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.LocatedFileStatus;
import org.apache.hadoop.fs.RemoteIterator;
import org.apache.hadoop.hbase.HBaseConfiguration;
import org.apache.hadoop.hdfs.DistributedFileSystem;
import org.apache.hadoop.hdfs.protocol.LocatedBlock;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.MethodOrderer;
import org.junit.jupiter.api.Order;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestMethodOrder;

/** The adapter on a real HBase, which one test hands on to the next: it takes half a minute to start. */
@Tag("full")
@TestMethodOrder(MethodOrderer.OrderAnnotation.class)
final class RealClusterTest {
    private static final String FIRST = "127.0.7.11";
    private static final String SECOND = "127.0.7.12";
    private static final String THIRD = "127.0.7.13";
    private static final String FOURTH = "127.0.7.14";
    private static final int ROWS = 6_000;
    private static final Duration SOON = Duration.ofMinutes(5);
    private static final Path TONTINE = Path.of(System.getProperty("tontine", "../../target/proof/tontine")).toAbsolutePath();

    private static Path folder;
    private static RealCluster cluster;
    private static Child adapter;
    private static Rows rows;
    /** Rows that are never written again, and whose files have one copy each. */
    private static Rows single;
    private static Process controller;

    @BeforeAll
    static void start() throws Exception {
        folder = Files.createTempDirectory("elastic-hbase");
        cluster = new RealCluster(folder);
        cluster.start();
        adapter = child();
        String script = adapter.result("boot", "token", "t-1").get("script").asText();
        for (String address : List.of(FIRST, SECOND, THIRD)) {
            cluster.member(address, script);
        }
        RealCluster.await("three DataNodes run", SOON, () -> {
            try (DistributedFileSystem hdfs = (DistributedFileSystem) FileSystem.newInstance(settings())) {
                return hdfs.getDataNodeStats().length == 3;
            }
        });
        cluster.master();
        RealCluster.await("three members serve", SOON, () -> states(FIRST, SECOND, THIRD).equals("serving serving serving"));
        rows = new Rows(settings(), "rows", 2);
        rows.create(ROWS);
        single = new Rows(settings(), "single", 1);
        single.create(ROWS);
        rows.work();
    }

    @AfterAll
    static void stop() throws Exception {
        if (controller != null) {
            controller.destroy();
            controller.waitFor(20, TimeUnit.SECONDS);
        }
        if (rows != null) {
            rows.close();
        }
        if (single != null) {
            single.close();
        }
        if (adapter != null) {
            adapter.close();
        }
        cluster.stop();
        if (System.getenv("KEEP") == null) {
            run(new File("."), "rm", "-rf", folder.toString());
        }
    }

    private static Child child() throws Exception {
        return new Child(cluster.adapter(), folder.resolve("adapter.log").toFile());
    }

    private static Configuration settings() {
        Configuration settings = HBaseConfiguration.create();
        for (String file : List.of("core-site.xml", "hdfs-site.xml", "hbase-site.xml")) {
            settings.addResource(new org.apache.hadoop.fs.Path(folder.resolve("client").resolve(file).toUri()));
        }
        return settings;
    }

    private static String states(String... addresses) throws Exception {
        JsonNode members = adapter.result("observe", null, null).get("members");
        List<String> states = new ArrayList<>();
        for (String address : addresses) {
            for (JsonNode member : members) {
                if (member.get("address").asText().equals(address)) {
                    states.add(member.get("state").asText());
                }
            }
        }
        return String.join(" ", states);
    }

    private static String id(String address) throws Exception {
        return adapter.member(address).get("id").asText();
    }

    private static JsonNode evidence(String member) throws Exception {
        return adapter.result("evidence", "member", member);
    }

    private static int code(String method, String member) throws Exception {
        return adapter.call(method, "member", member).path("error").path("code").asInt();
    }

    private static String run(File at, String... words) throws Exception {
        ProcessBuilder builder = new ProcessBuilder(words).directory(at).redirectErrorStream(true);
        builder.environment().put("TONTINE_COORDINATION", "dir:" + folder.resolve("coordination"));
        Process process = builder.start();
        String said = new String(process.getInputStream().readAllBytes());
        assertEquals(0, process.waitFor(), String.join(" ", words) + ": " + said);
        return said;
    }

    private static void say(String what, long since) {
        System.out.printf("%s: %.1f s%n", what, (System.nanoTime() - since) / 1e9);
    }

    /** Every row as it was written, and every block of HDFS with its copies, none of them on these machines. */
    private static void nothingIsLost(String... gone) throws Exception {
        long since = System.nanoTime();
        assertEquals(0, rows.missing(), "rows that are not as they were written");
        assertEquals(0, single.missing(), "rows of which there is one copy");
        say("every row read", since);
        RealCluster.await("all blocks have their copies", SOON, () -> lacking(gone) == 0);
        say("every block has its copies", since);
    }

    private static int lacking(String... gone) throws Exception {
        int lacking = 0;
        try (DistributedFileSystem hdfs = (DistributedFileSystem) FileSystem.newInstance(settings())) {
            RemoteIterator<LocatedFileStatus> files = hdfs.listFiles(new org.apache.hadoop.fs.Path("/"), true);
            while (files.hasNext()) {
                LocatedFileStatus file = files.next();
                for (LocatedBlock block : hdfs.getClient().getLocatedBlocks(file.getPath().toUri().getPath(), 0).getLocatedBlocks()) {
                    long there = Arrays.stream(block.getLocations()).filter(one -> !List.of(gone).contains(one.getIpAddr())).count();
                    lacking += there < file.getReplication() ? 1 : 0;
                }
            }
        }
        return lacking;
    }

    @Test
    @Order(1)
    void the_adapter_keeps_the_contract() throws Exception {
        List<String> command = new ArrayList<>(List.of(TONTINE.toString(), "adapter", "check", "--"));
        command.addAll(cluster.adapter());
        System.out.println(run(folder.toFile(), command.toArray(new String[0])));
    }

    @Test
    @Order(1)
    void members_measure_the_processor_time_of_both_processes() throws Exception {
        RealCluster.await("processor time", SOON, () ->
                adapter.member(FIRST).path("measures").path("processor").path("value").asDouble() > 0);
        System.out.println(adapter.member(FIRST));
    }

    @Test
    @Order(2)
    void a_drain_goes_on_where_the_adapter_was_killed_and_is_taken_back() throws Exception {
        String third = id(THIRD);
        long began = System.nanoTime();
        adapter.result("drain", "member", third);
        adapter.kill();
        adapter = child();
        assertEquals("draining", adapter.state(THIRD));
        RealCluster.await("it is drained, and until then nothing proves that", SOON, () -> {
            boolean proved = Child.proves(evidence(third));
            boolean drained = adapter.state(THIRD).equals("drained");
            assertTrue(drained || !proved, "a proof before it was drained");
            return drained;
        });
        say("drained with regions", began);
        RealCluster.await("the others prove that nothing is on it", SOON, () -> Child.proves(evidence(third)));
        say("proved", began);
        assertFalse(evidence(third).get("witnesses").toString().contains(third));
        assertEquals(0, lacking(THIRD));
        adapter.result("cancel", "member", third);
        assertEquals("standby", adapter.state(THIRD));
        assertFalse(Child.proves(evidence(third)));
        long joins = System.nanoTime();
        adapter.result("join", "member", third);
        RealCluster.await("it serves again", SOON, () -> adapter.state(THIRD).equals("serving"));
        say("joined", joins);
        assertEquals(third, id(THIRD));
        assertFalse(Child.proves(evidence(third)));
        nothingIsLost();
    }

    @Test
    @Order(3)
    void the_controller_grows_and_shrinks_it() throws Exception {
        String java = "command = [" + String.join(", ", cluster.adapter().stream()
                .map(word -> "'''" + word + "'''").toList()) + "]";
        Files.writeString(folder.resolve("adapters.toml"), "[engines.hbase]\n" + java + "\n[providers.local]\ncommand = ['"
                + TONTINE + "', 'adapter', 'local', '--dir', '" + folder.resolve("machines") + "', '--addresses', '"
                + FOURTH + "-127.0.7.20']\n");
        Files.writeString(folder.resolve("shop.toml"),
                "engine = \"hbase\"\nprovider = \"local\"\nmachine-type = \"local\"\nmin = 3\nmax = 4\n");
        Files.createDirectories(folder.resolve("coordination"));
        elastic("apply", "shop.toml");
        control();
        elastic("adopt", "shop", "--member", id(FIRST), "--member", id(SECOND), "--member", id(THIRD));
        System.out.println(elastic("status", "shop"));

        long grows = System.nanoTime();
        System.out.println(elastic("plan", "shop", "+1"));
        say("grown from three to four", grows);
        assertEquals("serving serving serving serving", states(FIRST, SECOND, THIRD, FOURTH));
        String fourth = id(FOURTH);
        assertTrue(adapter.member(FOURTH).get("measures").get("regions").get("value").asInt() >= 2);
        assertEquals(0, rows.missing());

        long shrinks = System.nanoTime();
        System.out.println(elastic("plan", "shop", "-1"));
        say("shrunk from four to three", shrinks);
        RealCluster.await("the engine forgets it", SOON, () -> adapter.state(FOURTH).equals("absent"));
        assertTrue(Child.proves(evidence(fourth)));
        System.out.println(elastic("status", "shop"));
        nothingIsLost(FOURTH);
    }

    @Test
    @Order(4)
    void nothing_is_lost_in_resizes_with_kills() throws Exception {
        long seed = Long.getLong("seed", System.nanoTime());
        int resizes = Integer.getInteger("resizes", 2);
        System.out.println("seed " + seed + ", " + resizes + " resizes");
        Random dice = new Random(seed);
        for (int at = 0; at < resizes; at++) {
            boolean grows = at % 2 == 0;
            long began = System.nanoTime();
            elastic("plan", "--no-wait", "shop", grows ? "+1" : "-1");
            for (int kill = 0; kill < 2; kill++) {
                Thread.sleep(dice.nextInt(15_000));
                controller.destroyForcibly().waitFor();
                control();
            }
            int wanted = grows ? 4 : 3;
            RealCluster.await("they are " + wanted, SOON, () -> {
                String status = elastic("status", "shop");
                // Its machines that end are lines of the table, too.
                return status.startsWith("fleet shop: " + wanted + " serve, " + wanted + " wanted")
                        && status.lines().filter(line -> line.contains("@127.0.7.")).count() == wanted;
            });
            say((grows ? "grown" : "shrunk") + " with two kills of the controller", began);
            nothingIsLost();
        }
        controller.destroy();
        controller.waitFor();
    }

    private static void control() throws Exception {
        ProcessBuilder run = new ProcessBuilder(TONTINE.toString(), "elastic", "run", "--adapters", "adapters.toml");
        run.directory(folder.toFile()).redirectErrorStream(true)
                .redirectOutput(ProcessBuilder.Redirect.appendTo(folder.resolve("controller.log").toFile()));
        run.environment().put("TONTINE_COORDINATION", "dir:" + folder.resolve("coordination"));
        controller = run.start();
    }

    private static String elastic(String... words) throws Exception {
        List<String> command = new ArrayList<>(List.of(TONTINE.toString(), "elastic"));
        command.addAll(List.of(words));
        return run(folder.toFile(), command.toArray(new String[0]));
    }

    @Test
    @Order(5)
    void a_machine_at_the_address_of_a_forgotten_one_becomes_another_member() throws Exception {
        long since = System.nanoTime();
        cluster.member(FOURTH, adapter.result("boot", "token", "t-2").get("script").asText());
        RealCluster.await("it is there", SOON, () -> List.of("standby", "joining", "serving").contains(adapter.state(FOURTH)));
        String fourth = id(FOURTH);
        adapter.result("join", "member", fourth);
        RealCluster.await("it serves", SOON, () -> adapter.state(FOURTH).equals("serving"));
        say("another member serves at an address", since);
        assertTrue(Files.readString(cluster.exclude).isBlank(), Files.readString(cluster.exclude));
    }

    @Test
    @Order(6)
    void what_dies_with_data_is_proved_to_be_empty_only_when_the_others_have_all() throws Exception {
        String fourth = id(FOURTH);
        // What has one copy would be lost with its machine.
        single.drop();
        long since = System.nanoTime();
        cluster.kill("member-" + FOURTH);
        assertFalse(Child.proves(evidence(fourth)));
        RealCluster.await("it is down", SOON, () -> adapter.state(FOURTH).equals("down"));
        say("it is down", since);
        assertEquals(-32_001, code("cancel", fourth));
        RealCluster.await("the others have all", SOON, () -> Child.proves(evidence(fourth)));
        say("the others have all", since);
        assertEquals(0, rows.missing());
        adapter.result("forget", "member", fourth);
        adapter.result("forget", "member", fourth);
        assertEquals("absent", adapter.state(FOURTH));
    }

    @Test
    @Order(7)
    void nobody_may_leave_whose_copies_the_others_cannot_hold() throws Exception {
        String third = id(THIRD);
        long since = System.nanoTime();
        adapter.result("drain", "member", third);
        RealCluster.await("one is drained", SOON, () -> adapter.state(THIRD).equals("drained"));
        say("one is drained", since);
        assertEquals(-32_001, code("drain", id(SECOND)));
        adapter.result("cancel", "member", third);
        assertEquals(-32_001, code("drain", "00000000-0000-0000-0000-000000000000@127.0.7.99"));
        rows.rest();
        System.out.println(rows.written() + " rows written, " + rows.reads + " reads, " + rows.failed + " failed");
        assertEquals(0, rows.missing());
        RealCluster.await("all blocks have their copies", SOON, () -> lacking() == 0);
        assertEquals(0, rows.wrong.get());
        assertEquals(0, rows.failed.get());
    }
}
