package tontine.elastic.hbase;

import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.hadoop.hbase.ServerName;
import tontine.elastic.Conversation;
import tontine.elastic.Failure;
import tontine.elastic.Log;
import tontine.elastic.hbase.ExcludeFile.Intent;
import tontine.elastic.hbase.ExcludeFile.Line;

/**
 * What verbs began and what goes on without them: regions move, DataNodes leave. One thread takes a step after the other,
 * each from what is seen then, so another process of this adapter goes on where this one was killed.
 *
 * <p>What is intended with a leaving member is in the exclude file. That regions move to a joining one is known here
 * alone: where that is lost, the member stands by with less than its share, and its join is asked for again.
 */
final class Chores implements AutoCloseable {
    /** Regions of one member that move at once. Each is away for a moment, and its stores are written out before. */
    private static final int MOVES_MAX = 8;
    /** How long moves may take until others are thought of; the master goes on with them. */
    private static final long MOVES_MS_MAX = 30_000;
    /** Between two rolls of one server's log: a roll makes a new file. */
    private static final long ROLL_MS_MIN = 10_000;

    private final Cluster cluster;
    private final ExcludeFile exclude;
    private final Set<String> joining = ConcurrentHashMap.newKeySet();
    private final Map<String, Long> rolled = new HashMap<>();
    private final AtomicBoolean asked = new AtomicBoolean();
    private final ExecutorService thread = Executors.newSingleThreadExecutor(Conversation.threads("chores"));
    private volatile String trouble;

    Chores(Cluster cluster, ExcludeFile exclude) {
        this.cluster = cluster;
        this.exclude = exclude;
    }

    Set<String> joining() {
        return joining;
    }

    /** Why the last step failed; null if it did not. */
    String trouble() {
        return trouble;
    }

    void join(String member) {
        joining.add(member);
        go();
    }

    /** No regions move to it any more. */
    void leave(String member) {
        joining.remove(member);
    }

    /** Goes on with what is to be done, in the background. */
    void go() {
        if (asked.compareAndSet(false, true)) {
            thread.execute(this::steps);
        }
    }

    private void steps() {
        asked.set(false);
        try {
            boolean more = true;
            while (more) {
                String met = null;
                List<Moves.Move> moves = step(cluster.look());
                int done = moved(moves);
                if (done < moves.size()) {
                    met = (moves.size() - done) + " of " + moves.size() + " regions did not move; the log says why";
                }
                trouble = met;
                more = done > 0;
            }
        } catch (Failure failure) {
            trouble = failure.getMessage();
            Log.say("a step failed, and is taken again at the next look: " + trouble);
        } catch (IOException | RuntimeException defect) {
            trouble = defect.toString();
            Log.say("a step failed, and is taken again at the next look: " + trouble);
        }
    }

    /** One step of everything; what is to move next. */
    private List<Moves.Move> step(Look look) throws Failure, IOException {
        prune(look);
        List<Moves.Move> moves = new ArrayList<>();
        for (DataNode one : look.dataNodes()) {
            Intent intent = ExcludeFile.intent(exclude.lines(), one);
            if (intent == Intent.MOVES_REGIONS || intent == Intent.DRAINS) {
                joining.remove(one.member());
                moves.addAll(drain(look, one));
            } else if (joining.contains(one.member())) {
                moves.addAll(join(look, one));
            }
        }
        joining.removeIf(member -> look.dataNode(member) == null);
        return moves;
    }

    private List<Moves.Move> join(Look look, DataNode one) {
        RegionServer server = look.server(one.address());
        List<Moves.Move> moves = server == null ? List.of() : Moves.toShare(look, server, MOVES_MAX);
        if (moves.isEmpty() && look.regionsTo(one.address()) == 0) {
            joining.remove(one.member());
        }
        return moves;
    }

    /** Shuts the server out, moves its regions, and then has the DataNode leave. */
    private List<Moves.Move> drain(Look look, DataNode one) throws Failure, IOException {
        RegionServer server = look.server(one.address());
        if (server != null && !server.shutOut()) {
            alone(one, () -> Calls.answer(Cluster.MASTER,
                    cluster.master().decommissionRegionServers(List.of(server.name()), false)));
        }
        if (look.regions().stream().anyMatch(region -> region.touches(one.address()))) {
            return Moves.away(look, one.address(), MOVES_MAX);
        }
        if (server != null && !server.shutOut()) {
            // Regions may have come to it until now.
            return List.of();
        }
        if (one.service() == DataNode.Service.NORMAL) {
            alone(one, () -> {
                exclude.write(ExcludeFile.with(exclude.lines(), one, Intent.DRAINS));
                refresh();
                return null;
            });
        } else if (one.isHeard()) {
            rollLogs(one);
        }
        return List.of();
    }

    /** Does something, unless the drain was taken back meanwhile. */
    private void alone(DataNode one, ExcludeFile.Work<?> work) throws Failure {
        exclude.alone(() -> {
            Intent intent = ExcludeFile.intent(exclude.lines(), one);
            return intent == Intent.MOVES_REGIONS || intent == Intent.DRAINS ? work.run() : null;
        });
    }

    /** Has the NameNode read the exclude file. */
    void refresh() throws Failure {
        cluster.calls.answer(Cluster.NAME_NODE, () -> {
            cluster.nameNode().refreshNodes();
            return null;
        });
    }

    private void prune(Look look) throws Failure {
        List<Line> lines = exclude.lines();
        if (ExcludeFile.pruned(lines, look.dataNodes()).size() < lines.size()) {
            exclude.alone(() -> {
                exclude.write(ExcludeFile.pruned(exclude.lines(), look.dataNodes()));
                refresh();
                return null;
            });
        }
    }

    /** Files that are written go on to their DataNodes even if these leave; a log ends when its server begins another. */
    private void rollLogs(DataNode one) throws Failure {
        OpenFiles open = OpenFiles.on(cluster, one);
        long now = System.nanoTime() / 1_000_000;
        for (ServerName server : open.servers()) {
            Long last = rolled.get(server.getServerName());
            if (last == null || now - last >= ROLL_MS_MIN) {
                rolled.put(server.getServerName(), now);
                Calls.answer("the region server " + server.getHostname(), cluster.master().rollWALWriter(server));
            }
        }
    }

    /** Carries moves out; how many were done. */
    private int moved(List<Moves.Move> moves) throws Failure {
        CompletableFuture<?>[] begun = new CompletableFuture<?>[moves.size()];
        for (int at = 0; at < begun.length; at++) {
            Moves.Move move = moves.get(at);
            begun[at] = cluster.patient(MOVES_MS_MAX).move(Cluster.bytes(move.region().name()), move.to().name());
        }
        Calls.settle(begun, MOVES_MS_MAX);
        int done = 0;
        for (int at = 0; at < begun.length; at++) {
            if (begun[at].isDone() && !begun[at].isCompletedExceptionally()) {
                done++;
            } else {
                String what = moves.get(at).region().name() + " to " + moves.get(at).to().address();
                Log.say("region " + what + " did not move: "
                        + Calls.failure(Cluster.MASTER, begun[at].handle((none, failure) -> failure).getNow(null))
                                .getMessage());
            }
        }
        return done;
    }

    @Override
    public void close() {
        thread.shutdownNow();
    }
}
