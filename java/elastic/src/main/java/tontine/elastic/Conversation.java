package tontine.elastic;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.NullNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.Phaser;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;

/**
 * The side of the contract that every adapter has in common: JSON-RPC 2.0, one message a line.
 *
 * <p>Each call has its own thread, so one that hangs keeps no other waiting. Its answer is due in time: after
 * {@link #CALL_TIME_MAX} it is an error, whatever becomes of the call. What came before standard input ended is
 * answered; then the conversation is over.
 *
 * <p>Must never: write anything but answers, answer a call twice, or write a line above the limit.
 */
public final class Conversation {
    /** The longest line of either side, in bytes, without its end. */
    static final int LINE_BYTES_MAX = 1 << 20;
    /** How long a call may take: a little less than a controller waits by default. */
    public static final Duration CALL_TIME_MAX = Duration.ofSeconds(9);
    /** Calls at once. A controller has a few; further ones wait, and their time runs. */
    private static final int CALLS_MAX = 16;

    static final ObjectMapper JSON = new ObjectMapper().enable(DeserializationFeature.FAIL_ON_TRAILING_TOKENS);

    private final Verbs verbs;
    private final Duration callTimeMax;
    /** Calls without an answer, and the conversation itself. */
    private final Phaser open = new Phaser(1);
    private final ExecutorService calls = Executors.newFixedThreadPool(CALLS_MAX, threads("call"));
    private final ScheduledExecutorService deadlines =
            Executors.newSingleThreadScheduledExecutor(threads("deadlines"));

    public Conversation(Engine engine) {
        this(engine, CALL_TIME_MAX);
    }

    Conversation(Engine engine, Duration callTimeMax) {
        this.verbs = new Verbs(engine);
        this.callTimeMax = callTimeMax;
    }

    /** Threads that do not keep the process. */
    public static ThreadFactory threads(String name) {
        return work -> {
            Thread thread = new Thread(work, name);
            thread.setDaemon(true);
            return thread;
        };
    }

    /** Answers calls until the input ends. */
    public void run(InputStream input, OutputStream answers) throws IOException {
        Lines lines = new Lines(input);
        for (byte[] line = lines.next(); line != null; line = lines.next()) {
            begin(line, answers);
        }
        // Each call is answered within its time, so this ends.
        open.arriveAndAwaitAdvance();
        calls.shutdownNow();
        deadlines.shutdownNow();
    }

    private void begin(byte[] line, OutputStream answers) {
        if (line == Lines.TOO_LONG) {
            String message = "the line has more than " + LINE_BYTES_MAX + " bytes; send less in one message";
            write(answers, failed(NullNode.instance, Failure.of(Failure.NO_REQUEST, message)));
            return;
        }
        if (new String(line, StandardCharsets.UTF_8).isBlank()) {
            return;
        }
        Request request;
        try {
            request = Request.read(line);
        } catch (Request.Broken broken) {
            write(answers, failed(broken.id, broken.failure));
            return;
        }
        open.register();
        // The first of the two answers: the call, or its deadline.
        AtomicBoolean answered = new AtomicBoolean();
        Future<?> call = calls.submit(() -> {
            ObjectNode answer = answer(request);
            if (answered.compareAndSet(false, true)) {
                close(request, answers, answer);
            }
        });
        deadlines.schedule(() -> {
            if (answered.compareAndSet(false, true)) {
                call.cancel(true);
                Failure late = Failure.passing(request.method() + " was given up after " + callTimeMax.toMillis()
                        + " ms: a member does not answer. The next call may go on without it");
                Log.say(late.getMessage());
                close(request, answers, failed(request.id(), late));
            }
        }, callTimeMax.toMillis(), TimeUnit.MILLISECONDS);
    }

    /** A notification is carried out, and nobody hears what came of it. */
    private void close(Request request, OutputStream answers, ObjectNode answer) {
        if (request.id() != null) {
            write(answers, answer);
        }
        open.arriveAndDeregister();
    }

    private ObjectNode answer(Request request) {
        JsonNode id = request.id() == null ? NullNode.instance : request.id();
        try {
            ObjectNode answer = JSON.createObjectNode();
            answer.put("jsonrpc", "2.0").set("id", id);
            return answer.set("result", verbs.call(request.method(), request.params()));
        } catch (Failure failure) {
            Log.say(request.method() + ": " + failure.getMessage());
            return failed(id, failure);
        } catch (RuntimeException defect) {
            Log.say(request.method() + ": " + defect);
            return failed(id, Failure.passing("a defect of the adapter: " + defect));
        }
    }

    static ObjectNode failed(JsonNode id, Failure failure) {
        ObjectNode answer = JSON.createObjectNode();
        answer.put("jsonrpc", "2.0").set("id", id);
        answer.putObject("error").put("code", failure.code()).put("message", Log.oneLine(failure.getMessage()));
        return answer;
    }

    private static void write(OutputStream answers, ObjectNode answer) {
        byte[] line = bytes(answer);
        if (line.length > LINE_BYTES_MAX) {
            String message = "the answer has " + line.length + " bytes, and a line has " + LINE_BYTES_MAX + " at most";
            line = bytes(failed(answer.get("id"), Failure.refused(message)));
        }
        synchronized (answers) {
            try {
                answers.write(line);
                answers.write('\n');
                answers.flush();
            } catch (IOException gone) {
                // The controller has ended, and its end of standard input ends this process.
                Log.say("an answer cannot be written: " + gone.getMessage());
            }
        }
    }

    private static byte[] bytes(ObjectNode answer) {
        try {
            return JSON.writeValueAsBytes(answer);
        } catch (JsonProcessingException defect) {
            throw new IllegalStateException("a tree can always be written", defect);
        }
    }

    /** What a line asks for. The id is null for a call that wants no answer. */
    record Request(JsonNode id, String method, ObjectNode params) {
        /** A line that cannot be called, and the id under which that is said. */
        static final class Broken extends Exception {
            private static final long serialVersionUID = 1L;
            final transient JsonNode id;
            final transient Failure failure;

            Broken(JsonNode id, int code, String message) {
                super(message);
                boolean usable = id != null && (id.isNumber() || id.isTextual());
                this.id = usable ? id : NullNode.instance;
                this.failure = Failure.of(code, message);
            }
        }

        static Request read(byte[] line) throws Broken {
            JsonNode document;
            try {
                document = JSON.readTree(line);
            } catch (IOException broken) {
                throw new Broken(null, Failure.NO_JSON, "the line is no JSON: " + firstLine(broken.getMessage()));
            }
            JsonNode id = document.get("id");
            if (!document.isObject() || !"2.0".equals(document.path("jsonrpc").asText())) {
                throw new Broken(id, Failure.NO_REQUEST, "a request is an object with \"jsonrpc\": \"2.0\"");
            }
            if (!document.path("method").isTextual()) {
                throw new Broken(id, Failure.NO_REQUEST, "a request names its method");
            }
            if (id != null && !id.isNumber() && !id.isTextual()) {
                throw new Broken(null, Failure.NO_REQUEST, "an id is a number or a text");
            }
            JsonNode params = document.path("params");
            if (params.isMissingNode() || params.isNull()) {
                params = JSON.createObjectNode();
            }
            if (!(params instanceof ObjectNode object)) {
                throw new Broken(id, Failure.PARAMS, "params is an object");
            }
            return new Request(id, document.get("method").asText(), object);
        }

        private static String firstLine(String message) {
            return message.lines().findFirst().orElse("");
        }
    }

    /** Lines of bounded length. */
    static final class Lines {
        /** Stands for a line above the limit, of which nothing is kept. */
        static final byte[] TOO_LONG = new byte[0];

        private final InputStream input;

        Lines(InputStream input) {
            this.input = new BufferedInputStream(input);
        }

        /** The next line without its end; null at the end. */
        byte[] next() throws IOException {
            ByteArrayOutputStream line = new ByteArrayOutputStream();
            int read = input.read();
            if (read < 0) {
                return null;
            }
            boolean tooLong = false;
            for (; read >= 0 && read != '\n'; read = input.read()) {
                if (line.size() < LINE_BYTES_MAX) {
                    line.write(read);
                } else {
                    tooLong = true;
                }
            }
            return tooLong ? TOO_LONG : line.toByteArray();
        }
    }
}
