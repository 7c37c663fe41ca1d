package tontine.elastic;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.Map;

/** Reads the parameters of each verb, calls the engine, and writes its answer as the contract has it. */
final class Verbs {
    private static final int PROTOCOL = 1;
    private static final int TOKEN_BYTES_MAX = 100;

    private final Engine engine;

    Verbs(Engine engine) {
        this.engine = engine;
    }

    JsonNode call(String method, ObjectNode params) throws Failure {
        ObjectNode result = Conversation.JSON.createObjectNode();
        switch (method) {
            case "describe" -> {
                fleet(params);
                facts(result, engine.describe());
            }
            case "boot" -> {
                fleet(params);
                result.put("script", engine.boot(token(params)));
            }
            case "observe" -> {
                fleet(params);
                ArrayNode members = result.putArray("members");
                for (Member member : engine.observe()) {
                    member(members.addObject(), member);
                }
            }
            case "join" -> engine.join(member(params));
            case "drain" -> engine.drain(member(params));
            case "cancel" -> engine.cancel(member(params));
            case "forget" -> engine.forget(member(params));
            case "evidence" -> evidence(result, engine.evidence(subject(params)));
            default -> throw Failure.of(Failure.NO_METHOD, "there is no method \"" + method
                    + "\"; this adapter knows describe, boot, observe, join, drain, cancel, forget, evidence");
        }
        return result;
    }

    /** An adapter is for one cluster, so only that the fleet is named matters. */
    private static void fleet(ObjectNode params) throws Failure {
        text(params, "fleet");
    }

    private static String member(ObjectNode params) throws Failure {
        fleet(params);
        return text(params, "member");
    }

    private static String token(ObjectNode params) throws Failure {
        String token = text(params, "token");
        if (token.length() > TOKEN_BYTES_MAX || !token.matches("[A-Za-z0-9_.-]+")) {
            throw Failure.params("a token is 1 to " + TOKEN_BYTES_MAX + " letters, digits, -, _ and .");
        }
        return token;
    }

    private static Subject subject(ObjectNode params) throws Failure {
        fleet(params);
        if (params.hasNonNull("member")) {
            return new Subject(text(params, "member"), null);
        }
        if (params.hasNonNull("address")) {
            return new Subject(null, text(params, "address"));
        }
        throw Failure.params("evidence is of a member or of an address, and neither is named");
    }

    private static String text(ObjectNode params, String name) throws Failure {
        JsonNode value = params.path(name);
        if (!value.isTextual() || value.asText().isEmpty()) {
            throw Failure.params("the parameters lack the text " + name + "; docs/reference/adapters.md lists them");
        }
        return value.asText();
    }

    private static void facts(ObjectNode result, Facts facts) {
        result.put("name", facts.name());
        result.put("protocol", PROTOCOL);
        result.put("acts_max", facts.actsMax());
        result.put("drain_cancellable", facts.drainCancellable());
        result.put("joins_at_boot", facts.joinsAtBoot());
        result.put("members_min", facts.membersMin());
        ArrayNode measures = result.putArray("measures");
        facts.measures().forEach(measures::add);
    }

    private static void member(ObjectNode result, Member member) {
        result.put("id", member.id());
        putKnown(result, "address", member.address());
        result.put("state", member.state().word());
        if (member.permille() != null) {
            result.put("permille", member.permille());
        }
        putKnown(result, "detail", member.detail());
        ObjectNode measures = result.putObject("measures");
        for (Map.Entry<String, Measured> measure : member.measures().entrySet()) {
            Measured measured = measure.getValue();
            if (Double.isFinite(measured.value())) {
                measures.putObject(measure.getKey()).put("value", measured.value()).put("age_ms", measured.ageMs());
            }
        }
    }

    private static void evidence(ObjectNode result, Evidence evidence) {
        ArrayNode witnesses = result.putArray("witnesses");
        evidence.witnesses().forEach(witnesses::add);
        putKnown(result, "owns_nothing", evidence.ownsNothing());
        putKnown(result, "nothing_moves", evidence.nothingMoves());
        putKnown(result, "nothing_short", evidence.nothingShort());
        putKnown(result, "detail", evidence.detail());
    }

    private static void putKnown(ObjectNode result, String name, String value) {
        if (value != null) {
            result.put(name, Log.oneLine(value));
        }
    }

    private static void putKnown(ObjectNode result, String name, Boolean value) {
        if (value != null) {
            result.put(name, value);
        }
    }
}
