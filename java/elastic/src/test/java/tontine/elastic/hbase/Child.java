package tontine.elastic.hbase;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/** A process of the adapter, spoken to as a controller does. */
final class Child implements AutoCloseable {
    private static final ObjectMapper JSON = new ObjectMapper();

    private final Process process;
    private final BufferedReader answers;
    private int calls;

    Child(List<String> command, File log) throws IOException {
        process = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.appendTo(log)).start();
        answers = process.inputReader();
    }

    /** The answer to a call: a result or an error. A call that takes longer than a controller waits fails. */
    synchronized JsonNode call(String method, String name, String value) throws Exception {
        ObjectNode call = JSON.createObjectNode();
        call.put("jsonrpc", "2.0").put("id", ++calls).put("method", method);
        ObjectNode params = call.putObject("params").put("fleet", "test");
        if (name != null) {
            params.put(name, value);
        }
        process.outputWriter().write(call + "\n");
        process.outputWriter().flush();
        String line = CompletableFuture.supplyAsync(() -> {
            try {
                return answers.readLine();
            } catch (IOException ended) {
                return null;
            }
        }).get(10, TimeUnit.SECONDS);
        JsonNode answer = JSON.readTree(line);
        if (answer.path("id").asInt() != calls) {
            throw new AssertionError("the answer of another call: " + line);
        }
        return answer;
    }

    JsonNode result(String method, String name, String value) throws Exception {
        JsonNode answer = call(method, name, value);
        if (!answer.has("result")) {
            throw new IllegalStateException(method + " of " + value + ": " + answer);
        }
        return answer.get("result");
    }

    JsonNode member(String address) throws Exception {
        for (JsonNode member : result("observe", null, null).get("members")) {
            if (member.path("address").asText().equals(address)) {
                return member;
            }
        }
        return JSON.createObjectNode();
    }

    String state(String address) throws Exception {
        return member(address).path("state").asText("absent");
    }

    static boolean proves(JsonNode evidence) {
        return !evidence.path("witnesses").isEmpty() && evidence.path("owns_nothing").asBoolean()
                && evidence.path("nothing_moves").asBoolean() && evidence.path("nothing_short").asBoolean();
    }

    void kill() throws InterruptedException {
        process.destroyForcibly().waitFor();
    }

    @Override
    public void close() {
        process.destroyForcibly();
    }
}
