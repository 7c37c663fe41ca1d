package tontine.elastic.hbase;

import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.Future;
import org.apache.hadoop.hbase.HConstants;
import org.apache.hadoop.hbase.ServerName;
import org.apache.hadoop.hbase.client.ColumnFamilyDescriptor;
import org.apache.hadoop.hbase.client.TableDescriptor;
import tontine.elastic.Engine;
import tontine.elastic.Evidence;
import tontine.elastic.Facts;
import tontine.elastic.Failure;
import tontine.elastic.Measured;
import tontine.elastic.Member;
import tontine.elastic.MemberState;
import tontine.elastic.Options;
import tontine.elastic.Subject;
import tontine.elastic.hbase.ExcludeFile.Intent;
import tontine.elastic.hbase.ExcludeFile.Line;

/**
 * The members of an HBase on HDFS: each a DataNode and a region server on one address.
 *
 * <p>Must never: have a DataNode leave that has regions beside it, or give its copies up before HDFS has others.
 */
public final class HBaseEngine implements Engine {
    private final Settings settings;
    private final Cluster cluster;
    private final ExcludeFile exclude;
    private final Chores chores;
    private final Pages pages = new Pages();
    private final Measures measures = new Measures();

    private HBaseEngine(Settings settings) {
        this.settings = settings;
        this.cluster = new Cluster(settings.configuration());
        this.exclude = new ExcludeFile(settings.excludeFile());
        this.chores = new Chores(cluster, exclude);
    }

    /** By the options that {@code java/elastic/README.md} lists. */
    public static HBaseEngine of(List<String> words) throws Options.Mistake {
        return new HBaseEngine(Settings.of(words));
    }

    @Override
    public Facts describe() throws Failure {
        String name = "hbase at " + cluster.settings().get(HConstants.ZOOKEEPER_QUORUM);
        return new Facts(name, 1, true, true, membersMin(), Measures.NAMES);
    }

    /** The highest replication of files: that of HDFS, or that of a column family which wants more. */
    private int membersMin() throws Failure {
        if (settings.membersMin() > 0) {
            return settings.membersMin();
        }
        Future<List<TableDescriptor>> tables = cluster.master().listTableDescriptors(true);
        int most = Math.max(cluster.settings().getInt("dfs.replication", 1), cluster.calls.answer(Cluster.NAME_NODE,
                () -> (int) cluster.nameNode().getServerDefaults().getReplication()));
        for (TableDescriptor table : Calls.answer(Cluster.MASTER, tables)) {
            for (ColumnFamilyDescriptor family : table.getColumnFamilies()) {
                most = Math.max(most, family.getDFSReplication());
            }
        }
        return Math.max(1, most);
    }

    @Override
    public String boot(String token) throws Failure {
        return BootScript.of(settings);
    }

    @Override
    public List<Member> observe() throws Failure {
        Look look = cluster.look();
        chores.go();
        Map<String, Map<String, Measured>> measured = measures.all(look);
        String trouble = chores.trouble();
        return Members.of(look, exclude.lines(), chores.joining(), measured).stream()
                .map(member -> isUnderWay(member.state()) && trouble != null ? withTrouble(member, trouble) : member)
                .toList();
    }

    private static boolean isUnderWay(MemberState state) {
        return state == MemberState.JOINING || state == MemberState.DRAINING;
    }

    private static Member withTrouble(Member member, String trouble) {
        String detail = (member.detail() == null ? "" : member.detail() + "; ") + trouble;
        return new Member(member.id(), member.address(), member.state(), member.permille(), detail, member.measures());
    }

    @Override
    public void join(String member) throws Failure {
        Look look = cluster.look();
        DataNode one = known(look, member);
        takeBack(look, one);
        if (look.server(one.address()) == null) {
            throw Failure.passing("the master knows no live region server at " + one.address()
                    + " yet; see the log of its machine if that lasts");
        }
        chores.join(member);
    }

    @Override
    public void drain(String member) throws Failure {
        Look look = cluster.look();
        DataNode one = known(look, member);
        Intent intent = ExcludeFile.intent(exclude.lines(), one);
        if (intent == null) {
            long others = look.dataNodes().stream().filter(other -> !other.equals(one) && look.takes(other)).count();
            int least = membersMin();
            if (others < least) {
                throw Failure.refused("without " + one.address() + " " + others + " members would serve, and copies need "
                        + least + "; add a member first");
            }
            exclude.alone(() -> {
                if (ExcludeFile.intent(exclude.lines(), one) == null) {
                    exclude.write(ExcludeFile.with(exclude.lines(), one, Intent.MOVES_REGIONS));
                }
                return null;
            });
        }
        chores.leave(member);
        chores.go();
    }

    @Override
    public void cancel(String member) throws Failure {
        Look look = cluster.look();
        DataNode one = known(look, member);
        if (look.server(one.address()) == null || !one.isHeard()) {
            throw Failure.refused(one.address() + " cannot be reached, so its drain cannot be taken back");
        }
        takeBack(look, one);
    }

    /** Lets regions and blocks come to a member again, whoever began to have them leave. */
    private void takeBack(Look look, DataNode one) throws Failure {
        exclude.alone(() -> {
            List<Line> lines = exclude.lines();
            List<Line> kept = ExcludeFile.without(lines, one);
            if (kept.size() < lines.size()) {
                exclude.write(kept);
            }
            if (one.service() != DataNode.Service.NORMAL || kept.size() < lines.size()) {
                chores.refresh();
            }
            openToRegions(look, one.address());
            return null;
        });
    }

    /** The master keeps its mark by the server's name, also of one that has ended; all of an address go. */
    private void openToRegions(Look look, String address) throws Failure {
        for (ServerName server : Calls.answer(Cluster.MASTER, cluster.master().listDecommissionedRegionServers())) {
            if (isAt(look, server, address)) {
                Calls.answer(Cluster.MASTER, cluster.master().recommissionRegionServer(server, List.of()));
            }
        }
    }

    /** Whether a server is at an address. One that has ended, and whose name is gone, is at none. */
    private boolean isAt(Look look, ServerName server, String address) throws Failure {
        try {
            return cluster.address(server.getHostname()).equals(address);
        } catch (Failure unknown) {
            if (look.servers().stream().anyMatch(live -> live.name().equals(server))) {
                throw unknown;
            }
            return false;
        }
    }

    @Override
    public void forget(String member) throws Failure {
        Look look = cluster.look();
        DataNode one = look.dataNode(member);
        if (one == null || ExcludeFile.intent(exclude.lines(), one) == Intent.FORGOT) {
            chores.go();
            return;
        }
        RegionServer server = look.server(one.address());
        if (server != null && !server.shutOut()) {
            throw Failure.refused(one.address() + " serves; drain it first");
        }
        if (server != null) {
            throw Failure.passing("the region server at " + one.address()
                    + " still runs for the master; it is forgotten when its session in ZooKeeper has ended");
        }
        Evidence evidence = Proof.of(cluster, pages, look, one.address(), List.of(one));
        if (!Boolean.TRUE.equals(evidence.ownsNothing()) || !Boolean.TRUE.equals(evidence.nothingShort())) {
            throw Failure.passing(one.address() + " cannot be forgotten: "
                    + Objects.requireNonNullElse(evidence.detail(), "something may be on it"));
        }
        exclude.alone(() -> {
            exclude.write(ExcludeFile.with(exclude.lines(), one, Intent.FORGOT));
            chores.refresh();
            openToRegions(look, one.address());
            return null;
        });
    }

    @Override
    public Evidence evidence(Subject subject) throws Failure {
        Look look = cluster.look();
        String address = subject.address();
        if (address == null) {
            int at = subject.member().lastIndexOf('@');
            if (at < 0) {
                throw Failure.params(subject.member() + " is no member: an id is UUID@ADDRESS");
            }
            address = subject.member().substring(at + 1);
        }
        String place = cluster.address(address);
        List<DataNode> here = look.dataNodes().stream().filter(one -> one.address().equals(place)).toList();
        return Proof.of(cluster, pages, look, place, here);
    }

    private static DataNode known(Look look, String member) throws Failure {
        DataNode one = look.dataNode(member);
        if (one == null) {
            throw Failure.refused(member + " is no member: the NameNode lists no such DataNode");
        }
        return one;
    }

    @Override
    public void close() {
        chores.close();
        cluster.close();
    }
}
