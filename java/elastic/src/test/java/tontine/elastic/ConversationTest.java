package tontine.elastic;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;

class ConversationTest {
    /** An engine whose members hang, flood or have a defect, by their name. */
    private static final class Odd implements Engine {
        @Override
        public Facts describe() {
            return new Facts("odd", 1, false, true, 1, List.of("processor"));
        }

        @Override
        public String boot(String token) {
            return "x".repeat(Conversation.LINE_BYTES_MAX);
        }

        @Override
        public List<Member> observe() {
            Map<String, Measured> measures = Map.of("processor", new Measured(Double.NaN, 1));
            return List.of(new Member("m", null, MemberState.SERVING, null, null, measures));
        }

        @Override
        public void join(String member) throws Failure {
            throw Failure.refused("no\n such thing");
        }

        @Override
        public void drain(String member) {
            try {
                Thread.sleep(60_000);
            } catch (InterruptedException interrupted) {
                Thread.currentThread().interrupt();
            }
        }

        @Override
        public void cancel(String member) {
            throw new IllegalStateException("a defect");
        }

        @Override
        public void forget(String member) {}

        @Override
        public Evidence evidence(Subject subject) {
            return new Evidence(List.of("w"), true, null, false, subject.toString());
        }

        @Override
        public void close() {}
    }

    private static List<JsonNode> answers(String... lines) throws IOException {
        ByteArrayOutputStream output = new ByteArrayOutputStream();
        byte[] input = String.join("\n", lines).getBytes(StandardCharsets.UTF_8);
        new Conversation(new Odd(), Duration.ofMillis(700)).run(new ByteArrayInputStream(input), output);
        List<JsonNode> answers = new ArrayList<>();
        for (String line : output.toString(StandardCharsets.UTF_8).lines().toList()) {
            answers.add(Conversation.JSON.readTree(line));
        }
        return answers;
    }

    private static JsonNode answer(String line) throws IOException {
        List<JsonNode> answers = answers(line);
        assertEquals(1, answers.size(), line);
        return answers.get(0);
    }

    private static JsonNode called(String method, String params) throws IOException {
        return answer("{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"" + method + "\",\"params\":" + params + "}");
    }

    private static void fails(String line, String id, int code) throws IOException {
        JsonNode answer = answer(line);
        assertEquals(id, answer.get("id").toString(), line);
        assertEquals(code, answer.at("/error/code").asInt(), line);
        assertTrue(answer.at("/error/message").asText().length() > 5, line);
    }

    @Test
    void requests_are_answered_under_their_ids_and_mistakes_are_told_apart() throws IOException {
        fails("{", "null", -32_700);
        fails("{} {}", "null", -32_700);
        fails("[]", "null", -32_600);
        fails("{\"id\":7,\"method\":\"describe\"}", "7", -32_600);
        fails("{\"jsonrpc\":\"2.0\",\"id\":\"a\"}", "\"a\"", -32_600);
        fails("{\"jsonrpc\":\"2.0\",\"id\":[],\"method\":\"describe\"}", "null", -32_600);
        fails("{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"describe\",\"params\":[]}", "7", -32_602);
        fails("{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"describe\"}", "7", -32_602);
        fails("{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"no\",\"params\":{\"fleet\":\"f\"}}", "7", -32_601);
        assertEquals(List.of(), answers("{\"jsonrpc\":\"2.0\",\"method\":\"describe\"}", "  "), "no answer is due");
        assertEquals(
                "{\"name\":\"odd\",\"protocol\":1,\"acts_max\":1,\"drain_cancellable\":false,"
                        + "\"joins_at_boot\":true,\"members_min\":1,\"measures\":[\"processor\"]}",
                called("describe", "{\"fleet\":\"f\",\"new\":1}").get("result").toString());
    }

    @Test
    void what_an_engine_says_is_written_as_the_contract_has_it() throws IOException {
        assertEquals("{}", called("forget", "{\"fleet\":\"f\",\"member\":\"m\"}").get("result").toString());
        assertEquals(
                "{\"code\":-32001,\"message\":\"no such thing\"}",
                called("join", "{\"fleet\":\"f\",\"member\":\"m\"}").get("error").toString());
        assertEquals(-32_000, called("cancel", "{\"fleet\":\"f\",\"member\":\"m\"}").at("/error/code").asInt());
        assertEquals(
                "{\"witnesses\":[\"w\"],\"owns_nothing\":true,\"nothing_short\":false,\"detail\":\"a\"}",
                called("evidence", "{\"fleet\":\"f\",\"address\":\"a\"}").get("result").toString());
        assertEquals(-32_602, called("evidence", "{\"fleet\":\"f\"}").at("/error/code").asInt());
        assertEquals(-32_602, called("boot", "{\"fleet\":\"f\",\"token\":\"../x\"}").at("/error/code").asInt());
        JsonNode member = called("observe", "{\"fleet\":\"f\"}").at("/result/members/0");
        assertEquals("{\"id\":\"m\",\"state\":\"serving\",\"measures\":{}}", member.toString(), "NaN is no value");
    }

    @Test
    void one_call_that_hangs_keeps_no_other_waiting_and_is_answered_in_time() throws IOException {
        long began = System.nanoTime();
        List<JsonNode> answers = answers(
                "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"drain\",\"params\":{\"fleet\":\"f\",\"member\":\"m\"}}",
                "{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"describe\",\"params\":{\"fleet\":\"f\"}}");
        assertEquals(2, answers.size());
        assertEquals(2, answers.get(0).get("id").asInt(), "the second one did not wait");
        assertEquals(-32_000, answers.get(1).at("/error/code").asInt());
        assertTrue(Duration.ofNanos(System.nanoTime() - began).toSeconds() < 5);
    }

    @Test
    void an_answer_above_the_limit_is_an_error() throws IOException {
        assertEquals(-32_001, called("boot", "{\"fleet\":\"f\",\"token\":\"t\"}").at("/error/code").asInt());
    }

    @Test
    void a_line_is_bounded_and_the_next_one_is_found_behind_it() throws IOException {
        byte[] input = new byte[2 * Conversation.LINE_BYTES_MAX + 8];
        Arrays.fill(input, (byte) 'x');
        input[Conversation.LINE_BYTES_MAX] = '\n';
        input[2 * Conversation.LINE_BYTES_MAX + 2] = '\n';
        Conversation.Lines lines = new Conversation.Lines(new ByteArrayInputStream(input));
        assertEquals(Conversation.LINE_BYTES_MAX, lines.next().length);
        assertEquals(Conversation.Lines.TOO_LONG, lines.next());
        assertEquals("xxxxx", new String(lines.next(), StandardCharsets.UTF_8));
        assertNull(lines.next());
    }

    @Test
    void options_are_read_and_mistakes_name_the_remedy() throws Options.Mistake {
        Options options = Options.read(List.of("--a", "1", "--b", "x", "--b", "y"), java.util.Set.of("a", "b", "c"));
        assertEquals(1, options.number("a", 5, 0, 9));
        assertEquals(5, options.number("c", 5, 0, 9));
        assertEquals(List.of("x", "y"), options.all("b"));
        for (List<String> words : List.of(List.of("--d", "1"), List.of("a"), List.of("--a"))) {
            String message = org.junit.jupiter.api.Assertions.assertThrows(
                            Options.Mistake.class, () -> Options.read(words, java.util.Set.of("a", "b")))
                    .getMessage();
            assertTrue(message.contains(words.get(0)), message);
        }
    }
}
