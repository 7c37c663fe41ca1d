package tontine.elastic.cassandra;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import java.util.regex.Pattern;
import java.util.stream.Stream;

/** Processes of a test in a scratch folder. All of them end with the test. */
final class Processes implements AutoCloseable {
    static final ObjectMapper JSON = new ObjectMapper();

    private static final int PASSING_TRIES_MAX = 20;

    final Path folder;
    private final List<Process> started = new ArrayList<>();

    Processes() throws IOException {
        folder = Files.createTempDirectory("elastic-cassandra-");
    }

    /** What a command printed. */
    record Said(int exit, String output) {
        Said succeeds() {
            if (exit != 0) {
                throw new AssertionError("exit " + exit + ": " + output);
            }
            return this;
        }

        JsonNode json() {
            try {
                return JSON.readTree(output);
            } catch (IOException broken) {
                throw new UncheckedIOException(output, broken);
            }
        }
    }

    /** A process in the background; its output goes to a file. */
    Process start(String name, Map<String, String> environment, String... command) throws IOException {
        ProcessBuilder builder = new ProcessBuilder(command).directory(folder.toFile()).redirectErrorStream(true);
        builder.redirectOutput(ProcessBuilder.Redirect.appendTo(folder.resolve(name + ".log").toFile()));
        builder.environment().putAll(environment);
        Process process = builder.start();
        started.add(process);
        return process;
    }

    /** A command that ends; what it prints on standard error is shown. */
    Said run(Duration limit, String... command) throws IOException, InterruptedException {
        ProcessBuilder builder = new ProcessBuilder(command).directory(folder.toFile());
        Process process = builder.redirectError(ProcessBuilder.Redirect.INHERIT).start();
        started.add(process);
        String output = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        if (!process.waitFor(limit.toMillis(), TimeUnit.MILLISECONDS)) {
            throw new AssertionError(String.join(" ", command) + " does not end");
        }
        return new Said(process.exitValue(), output);
    }

    /** An adapter, asked as a controller does. */
    final class Adapter implements AutoCloseable {
        private final Process process;
        private final BufferedWriter requests;
        private final BufferedReader answers;
        private int last;

        Adapter(String... command) throws IOException {
            process = new ProcessBuilder(command).redirectError(
                    ProcessBuilder.Redirect.appendTo(folder.resolve("adapter.log").toFile())).start();
            started.add(process);
            requests = process.outputWriter(StandardCharsets.UTF_8);
            answers = process.inputReader(StandardCharsets.UTF_8);
        }

        /** The whole answer. */
        JsonNode call(String method, Map<String, String> params) throws IOException {
            var request = JSON.createObjectNode().put("jsonrpc", "2.0").put("id", ++last).put("method", method);
            var object = request.putObject("params").put("fleet", "shop");
            params.forEach(object::put);
            requests.write(JSON.writeValueAsString(request) + "\n");
            requests.flush();
            return JSON.readTree(answers.readLine());
        }

        /** The result of a call that must succeed; what may pass is tried again, as a controller does. */
        JsonNode result(String method, Map<String, String> params) throws IOException, InterruptedException {
            for (int tries = 1; ; tries++) {
                JsonNode answer = call(method, params);
                if (answer.has("result")) {
                    return answer.get("result");
                }
                if (answer.at("/error/code").asInt() != -32_000 || tries == PASSING_TRIES_MAX) {
                    throw new AssertionError(method + ": " + answer);
                }
                Thread.sleep(1000);
            }
        }

        @Override
        public void close() throws IOException {
            requests.close();
        }
    }

    /** Does what may fail where nothing may. */
    static <T> T sure(java.util.concurrent.Callable<T> work) {
        try {
            return work.call();
        } catch (Exception failed) {
            throw new IllegalStateException(failed);
        }
    }

    /** Waits until something is so. */
    static void await(String what, Duration limit, Supplier<Boolean> isSo) throws InterruptedException {
        long deadline = System.nanoTime() + limit.toNanos();
        while (!isSo.get()) {
            if (System.nanoTime() - deadline > 0) {
                throw new AssertionError("not within " + limit.toSeconds() + " s: " + what);
            }
            Thread.sleep(100);
        }
    }

    /** How many lines of a log match. */
    long count(Path log, String pattern) {
        Pattern wanted = Pattern.compile(pattern);
        try (Stream<String> lines = Files.lines(log)) {
            return lines.filter(line -> wanted.matcher(line).find()).count();
        } catch (IOException | UncheckedIOException none) {
            return 0;
        }
    }

    /** The last lines of a log. */
    String tail(Path log) {
        try (Stream<String> lines = Files.lines(log)) {
            List<String> all = lines.toList();
            return String.join("\n", all.subList(Math.max(0, all.size() - 15), all.size()));
        } catch (IOException | UncheckedIOException none) {
            return "no " + log;
        }
    }

    @Override
    public void close() throws IOException {
        started.forEach(Process::destroy);
        for (Process process : started) {
            process.onExit().completeOnTimeout(process, 15, TimeUnit.SECONDS).join();
            process.destroyForcibly().onExit().join();
        }
        try (Stream<Path> files = Files.walk(folder)) {
            files.sorted(Comparator.reverseOrder()).forEach(file -> file.toFile().delete());
        }
    }
}
