package tontine.elastic.hbase;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import tontine.elastic.Measured;

/**
 * What members measure. The master's figures come with its look; processor time, reads and updates come from the pages of
 * the member's two processes, where these have pages.
 *
 * <p>Processor time is a rate between two looks of this process, so the first look has none. It is forgotten without
 * harm.
 */
final class Measures {
    static final List<String> NAMES =
            List.of("processor", "operations", "reads", "updates", "regions", "store-bytes");

    private static final String SYSTEM = "java.lang:type=OperatingSystem";
    private static final String SERVER = "Hadoop:service=HBase,name=RegionServer,sub=Server";
    /** Two looks that are nearer tell nothing: processor time is counted in steps of 10 ms. */
    private static final long NEAREST_MS = 400;
    /** A rate over more than this tells of another time. */
    private static final long FARTHEST_MS = 60_000;
    /** A region server reckons its rates anew every five seconds, so they may be so old. */
    private static final long RATE_AGE_MS = 5_000;

    /** Processor time of both processes, in nanoseconds, and when that was. */
    private record Used(long startcode, double nanos, double processors, long atMs) {}

    private final Pages pages = new Pages();
    private final Map<String, Used> before = new ConcurrentHashMap<>();
    private final Map<String, Measured> processors = new ConcurrentHashMap<>();

    /** The measures of every member that has a region server, by member. */
    Map<String, Map<String, Measured>> all(Look look) {
        Map<String, CompletableFuture<JsonNode[]>> asked = new HashMap<>();
        for (DataNode one : look.dataNodes()) {
            RegionServer server = look.server(one.address());
            if (server != null && server.webPort() > 0) {
                asked.put(one.member(), pages(one, server));
            }
        }
        Calls.settle(asked.values().toArray(new CompletableFuture<?>[0]), 2 * Pages.TIME_MAX.toMillis());
        Map<String, Map<String, Measured>> all = new HashMap<>();
        for (DataNode one : look.dataNodes()) {
            RegionServer server = look.server(one.address());
            if (server != null) {
                CompletableFuture<JsonNode[]> came = asked.get(one.member());
                JsonNode[] beans = came == null || !came.isDone() ? null : came.join();
                all.put(one.member(), of(look, one, server, beans));
            }
        }
        before.keySet().retainAll(all.keySet());
        processors.keySet().retainAll(all.keySet());
        return all;
    }

    private CompletableFuture<JsonNode[]> pages(DataNode dataNode, RegionServer server) {
        CompletableFuture<JsonNode> process = pages.bean(server.address(), server.webPort(), SYSTEM);
        CompletableFuture<JsonNode> requests = pages.bean(server.address(), server.webPort(), SERVER);
        CompletableFuture<JsonNode> store = pages.bean(dataNode.address(), dataNode.webPort(), SYSTEM);
        return process.thenCombine(requests, (first, second) -> new JsonNode[] {first, second})
                .thenCombine(store, (two, third) -> new JsonNode[] {two[0], two[1], third});
    }

    private Map<String, Measured> of(Look look, DataNode dataNode, RegionServer server, JsonNode[] beans) {
        Map<String, Measured> measures = new LinkedHashMap<>();
        if (beans != null) {
            Measured processor = processor(dataNode.member(), server, beans[0], beans[2]);
            if (processor != null) {
                measures.put("processor", processor);
            }
            rate(measures, "reads", beans[1].path("readRequestRatePerSecond"));
            rate(measures, "updates", beans[1].path("writeRequestRatePerSecond"));
        }
        measures.put("operations", new Measured(server.operations(), server.reportAgeMs()));
        measures.put("regions", new Measured(look.regionsOn(server.address()), 0));
        measures.put("store-bytes", new Measured(server.storeBytes(), server.reportAgeMs()));
        return measures;
    }

    private static void rate(Map<String, Measured> measures, String name, JsonNode value) {
        if (value.isNumber()) {
            measures.put(name, new Measured(value.asDouble(), RATE_AGE_MS));
        }
    }

    private Measured processor(String member, RegionServer server, JsonNode process, JsonNode store) {
        JsonNode count = process.path("AvailableProcessors");
        if (!process.path("ProcessCpuTime").isNumber() || !store.path("ProcessCpuTime").isNumber()
                || !count.isNumber()) {
            return null;
        }
        long now = System.nanoTime() / 1_000_000;
        double nanos = process.path("ProcessCpuTime").asDouble() + store.path("ProcessCpuTime").asDouble();
        Used used = new Used(server.name().getStartCode(), nanos, count.asDouble(), now);
        Used last = before.get(member);
        if (last != null && last.startcode == used.startcode && now - last.atMs < NEAREST_MS) {
            Measured known = processors.get(member);
            return known == null ? null : new Measured(known.value(), now - last.atMs);
        }
        before.put(member, used);
        processors.remove(member);
        if (last == null || last.startcode != used.startcode || nanos < last.nanos
                || now - last.atMs > FARTHEST_MS) {
            return null;
        }
        double share = (nanos - last.nanos) / 1e6 / (now - last.atMs) / Math.max(1, used.processors);
        Measured measured = new Measured(100 * share, 0);
        processors.put(member, measured);
        return measured;
    }
}
