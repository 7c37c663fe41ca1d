package tontine.elastic.cassandra;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import tontine.elastic.Evidence;
import tontine.elastic.Facts;
import tontine.elastic.Failure;
import tontine.elastic.Member;
import tontine.elastic.MemberState;
import tontine.elastic.Options;
import tontine.elastic.Subject;

/** The whole adapter over real JMX, with members that a test invents. */
class CassandraEngineTest {
    private static final List<String> ALL = List.of("10.0.0.1", "10.0.0.2", "10.0.0.3");

    @TempDir
    Path folder;

    private final Map<String, FakeMember> members = new TreeMap<>();
    private CassandraEngine engine;

    @BeforeEach
    void begin() throws Exception {
        for (String address : ALL) {
            members.put(address, new FakeMember(address, ALL, "user", "secret"));
        }
        engine = CassandraEngine.of(options("user secret"));
    }

    @AfterEach
    void end() throws Exception {
        engine.close();
        for (FakeMember member : members.values()) {
            member.close();
        }
    }

    private List<String> options(String login, String... further) throws Exception {
        Path credentials = folder.resolve("login");
        Files.writeString(credentials, login);
        Files.setPosixFilePermissions(credentials, PosixFilePermissions.fromString("rw-------"));
        Path template = Files.createDirectories(folder.resolve("template"));
        Files.writeString(template.resolve("cassandra.yaml"), "seeds: \"@SEEDS@\"\n");
        Files.writeString(template.resolve("start"), "exec true\n");
        List<String> words = new ArrayList<>(List.of("--seed", "10.0.0.1", "--seed", "10.0.0.2:7000",
                "--template", template.toString(), "--credentials", credentials.toString()));
        members.forEach((address, member) -> words.addAll(List.of("--jmx", address + "=127.0.0.1:" + member.port)));
        words.addAll(List.of(further));
        return words;
    }

    private FakeMember at(String address) {
        return members.get(address);
    }

    private Map<String, Member> observed() throws Failure {
        Map<String, Member> observed = new TreeMap<>();
        engine.observe().forEach(member -> observed.put(member.address(), member));
        return observed;
    }

    /** Why a drain fails. On a busy machine it may only have begun, or an answer may be late. */
    private Failure drainFails(String address) throws InterruptedException {
        for (int tries = 1; tries < 20; tries++) {
            try {
                engine.drain(FakeMember.id(address));
            } catch (Failure failure) {
                if (!failure.getMessage().contains("in time")) {
                    return failure;
                }
            }
            Thread.sleep(200);
        }
        throw new AssertionError("it drains");
    }

    /** A member was told just this, and a separate thread does so. */
    private void wasTold(String address, List<String> words) throws InterruptedException {
        for (int tries = 1; tries < 100 && !at(address).told.equals(words); tries++) {
            Thread.sleep(100);
        }
        assertEquals(words, at(address).told);
    }

    private static boolean proves(Evidence evidence) {
        return !evidence.witnesses().isEmpty() && Boolean.TRUE.equals(evidence.ownsNothing())
                && Boolean.TRUE.equals(evidence.nothingMoves()) && Boolean.TRUE.equals(evidence.nothingShort());
    }

    @Test
    void members_are_found_by_the_seeds_and_measured() throws Exception {
        assertEquals(new Facts("Cassandra cluster fake", 1, false, true, 2, Rates.NAMES), engine.describe());
        Map<String, Member> first = observed();
        assertEquals(ALL, List.copyOf(first.keySet()));
        assertEquals(MemberState.SERVING, first.get("10.0.0.3").state());
        assertNull(first.get("10.0.0.3").measures().get("operations"), "one look gives no rate");
        Thread.sleep(1000);
        at("10.0.0.3").counts.put("Count", 60L);
        Member now = observed().get("10.0.0.3");
        // Four counters of fifty each, in a little more than a second.
        double operations = now.measures().get("operations").value();
        assertTrue(operations > 5 && operations < 200, operations + " operations a second");
        assertEquals(60, now.measures().get("live-bytes").value());
        assertEquals(3, now.measures().get("pending-compactions").value());
    }

    @Test
    void a_drain_is_never_forced_and_waits_for_what_else_moves() throws Exception {
        at("10.0.0.2").list("Joining", "10.0.0.4");
        assertEquals(Failure.PASSING, drainFails("10.0.0.3").code());
        at("10.0.0.2").ring(ALL);
        at("10.0.0.1").list("Unreachable", "10.0.0.2");
        assertTrue(drainFails("10.0.0.3").getMessage().contains("10.0.0.2 cannot be reached"));
        at("10.0.0.1").ring(ALL);
        engine.drain(FakeMember.id("10.0.0.3"));
        wasTold("10.0.0.3", List.of("decommission[false]"));
        Failure cancelled = assertThrows(Failure.class, () -> engine.cancel(FakeMember.id("10.0.0.3")));
        assertEquals(Failure.REFUSED, cancelled.code());
        assertTrue(cancelled.getMessage().contains("cannot be cancelled"));
    }

    @Test
    void a_drain_that_would_leave_too_few_copies_or_no_seed_is_refused_for_good() throws Exception {
        for (String address : ALL) {
            at(address).ring(List.of("10.0.0.1", "10.0.0.3"));
        }
        assertEquals(Failure.REFUSED, drainFails("10.0.0.3").code(), "two members, and two copies");
        for (String address : ALL) {
            at(address).ring(List.of("10.0.0.1", "10.0.0.3", "10.0.0.5"));
        }
        Failure seed = drainFails("10.0.0.1");
        assertEquals(Failure.REFUSED, seed.code());
        assertTrue(seed.getMessage().contains("--seed"), seed.getMessage());
        assertEquals(List.of(), at("10.0.0.1").told);
        assertEquals(Failure.REFUSED, drainFails("10.0.0.9").code(), "nobody knows it");
    }

    @Test
    void a_drain_that_failed_half_way_is_shown_and_may_be_asked_for_again() throws Exception {
        at("10.0.0.3").state.put("decommission fails with", "Stream failed");
        Failure failed = drainFails("10.0.0.3");
        assertEquals(Failure.PASSING, failed.code());
        assertTrue(failed.getMessage().contains("Stream failed"), failed.getMessage());
        at("10.0.0.3").state.put("OperationMode", "DECOMMISSION_FAILED");
        at("10.0.0.3").state.put("DecommissionFailed", true);
        at("10.0.0.1").list("Leaving", "10.0.0.3");
        Member member = observed().get("10.0.0.3");
        assertEquals(MemberState.SERVING, member.state());
        assertTrue(member.detail().contains("failed half way"), member.detail());
        assertTrue(drainFails("10.0.0.3").getMessage().contains("tried again"), "not in each turn");
        assertFalse(proves(engine.evidence(new Subject(FakeMember.id("10.0.0.3"), null))));
        // An adapter that knows nothing of it asks again at once.
        engine.close();
        engine = CassandraEngine.of(options("user secret"));
        at("10.0.0.3").state.remove("decommission fails with");
        engine.drain(FakeMember.id("10.0.0.3"));
        wasTold("10.0.0.3", List.of("decommission[false]", "decommission[false]"));
    }

    @Test
    void a_member_that_is_gone_is_forgotten_and_one_that_is_down_is_not() throws Exception {
        engine.forget(FakeMember.id("10.0.0.9"));
        Failure serves = assertThrows(Failure.class, () -> engine.forget(FakeMember.id("10.0.0.3")));
        assertEquals(Failure.REFUSED, serves.code());
        at("10.0.0.3").close();
        at("10.0.0.1").list("Unreachable", "10.0.0.3");
        at("10.0.0.2").list("Unreachable", "10.0.0.3");
        assertEquals(MemberState.DOWN, observed().get("10.0.0.3").state());
        Failure down = assertThrows(Failure.class, () -> engine.forget(FakeMember.id("10.0.0.3")));
        assertTrue(down.getMessage().contains("removenode"), down.getMessage());
        members.remove("10.0.0.3");
    }

    @Test
    void after_a_join_the_others_are_cleaned_up_one_at_a_time() throws Exception {
        at("10.0.0.3").state.put("NativeTransportRunning", false);
        assertEquals(MemberState.JOINING, observed().get("10.0.0.3").state(), "it starts again, and joins nothing");
        at("10.0.0.3").state.put("NativeTransportRunning", true);
        assertEquals(MemberState.SERVING, observed().get("10.0.0.3").state());
        assertEquals(List.of(), at("10.0.0.1").told);
        at("10.0.0.3").state.put("OperationMode", "JOINING");
        assertEquals(MemberState.JOINING, observed().get("10.0.0.3").state());
        at("10.0.0.3").state.put("OperationMode", "NORMAL");
        List<String> all = List.of("forceKeyspaceCleanup[1, shop, []]", "forceKeyspaceCleanup[1, system_auth, []]");
        long deadline = System.nanoTime() + 30_000_000_000L;
        while (at("10.0.0.1").told.size() + at("10.0.0.2").told.size() < 4 && System.nanoTime() < deadline) {
            observed();
            Thread.sleep(50);
        }
        wasTold("10.0.0.1", all);
        wasTold("10.0.0.2", all);
        assertEquals(List.of(), at("10.0.0.3").told, "it has just come");
        observed();
        Thread.sleep(200);
        assertEquals(all, at("10.0.0.1").told, "once is enough");
    }

    @Test
    void a_member_that_hangs_costs_no_call_its_time_and_proves_nothing() throws Exception {
        assertTrue(proves(engine.evidence(new Subject(null, "10.0.0.9"))));
        at("10.0.0.3").hangs = true;
        assertHangs();
        at("10.0.0.3").hangs = false;
        assertTrue(proves(engine.evidence(new Subject(null, "10.0.0.9"))), "it answers again");
        engine.close();
        // It accepts connections, and never says a word.
        try (ServerSocket silent = new ServerSocket(0, 50, InetAddress.getLoopbackAddress())) {
            engine = CassandraEngine.of(options("user secret", "--jmx", "10.0.0.3=127.0.0.1:" + silent.getLocalPort()));
            assertHangs();
        }
    }

    private void assertHangs() throws Failure {
        long began = System.nanoTime();
        Evidence evidence = engine.evidence(new Subject(null, "10.0.0.9"));
        assertFalse(proves(evidence));
        assertTrue(evidence.detail().contains("10.0.0.3"), evidence.detail());
        assertEquals(MemberState.SERVING, observed().get("10.0.0.1").state());
        assertTrue(System.nanoTime() - began < 2 * 7_000_000_000L);
    }

    @Test
    void wrong_credentials_are_told_as_such_and_never_shown() throws Exception {
        engine.close();
        engine = CassandraEngine.of(options("user wr0ng"));
        Failure rejected = assertThrows(Failure.class, engine::observe);
        assertEquals(Failure.CREDENTIALS, rejected.code());
        assertFalse(rejected.getMessage().contains("wr0ng"), rejected.getMessage());
        assertTrue(rejected.getMessage().contains("login"), rejected.getMessage());
        // A file that is mended counts without a new start.
        options("user secret");
        assertEquals(3, engine.observe().size());
        Files.setPosixFilePermissions(folder.resolve("login"), PosixFilePermissions.fromString("rw-r--r--"));
        Options.Mistake open = assertThrows(Options.Mistake.class, () -> CassandraEngine.of(List.of(
                "--seed", "::1", "--template", "b", "--credentials", folder.resolve("login").toString())));
        assertTrue(open.getMessage().contains("chmod 600"), open.getMessage());
    }

    @Test
    void mistakes_on_the_command_line_name_what_helps() {
        for (List<String> words : List.of(
                List.of("--template", "b"), List.of("--seed", "10.0.0.1"), List.of("--seed", "db1", "--template", "b"),
                List.of("--seed", "::1", "--template", "b", "--jmx", "x"),
                List.of("--seed", "::1", "--template", "b", "--cleanup", "never"),
                List.of("--seed", "::1", "--template", "b", "--credentials", "/none"))) {
            Options.Mistake mistake = assertThrows(Options.Mistake.class, () -> Settings.read(words));
            assertTrue(mistake.getMessage().contains("--"), mistake.getMessage());
        }
    }

    @Test
    void no_machine_starts_while_another_member_comes_or_goes() throws Exception {
        String script = engine.boot("t-1");
        for (String list : List.of("Joining", "Leaving", "Moving")) {
            at("10.0.0.2").list(list, "10.0.0.4");
            Failure failure = assertThrows(Failure.class, () -> engine.boot("t-1"), list);
            assertEquals(Failure.PASSING, failure.code());
            assertTrue(failure.getMessage().contains("10.0.0.4 "), failure.getMessage());
            at("10.0.0.2").ring(ALL);
        }
        assertEquals(script, engine.boot("t-1"));
    }

    @Test
    void no_machine_starts_while_no_seed_serves() throws Exception {
        assertTrue(engine.boot("t-1").contains("'10.0.0.1' '10.0.0.2:7000'"));
        assertEquals(engine.boot("t-1"), engine.boot("t-1"));
        at("10.0.0.1").state.put("OperationMode", "LEAVING");
        at("10.0.0.2").state.put("OperationMode", "LEAVING");
        Failure failure = assertThrows(Failure.class, () -> engine.boot("t-2"));
        assertTrue(failure.getMessage().contains("now these do: 10.0.0.3"), failure.getMessage());
    }
}
