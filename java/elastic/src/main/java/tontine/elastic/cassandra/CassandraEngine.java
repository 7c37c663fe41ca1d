package tontine.elastic.cassandra;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import tontine.elastic.Engine;
import tontine.elastic.Evidence;
import tontine.elastic.Facts;
import tontine.elastic.Failure;
import tontine.elastic.Measured;
import tontine.elastic.Member;
import tontine.elastic.Options;
import tontine.elastic.Subject;

/**
 * The members of a Cassandra cluster, by JMX.
 *
 * <p>A member joins by its bootstrap alone, as soon as its process runs. It leaves by a decommission, which is never
 * forced and cannot be cancelled. Each call asks the members anew; what is kept between calls are connections, the
 * figures of earlier looks, and cleanups that are due.
 */
public final class CassandraEngine implements Engine {
    private final Settings settings;
    private final Members members;
    private final Cleanups cleanups;
    private final Drains drains;
    private final Rates rates = new Rates();

    private CassandraEngine(Settings settings) {
        this.settings = settings;
        this.members = new Members(settings);
        this.cleanups = new Cleanups(members);
        this.drains = new Drains(settings, members, cleanups);
    }

    /** By the options that {@code java/elastic/README.md} lists. */
    public static CassandraEngine of(List<String> words) throws Options.Mistake {
        return new CassandraEngine(Settings.read(words));
    }

    @Override
    public Facts describe() throws Failure {
        String address = members.round().judges().get(0).address();
        Connection connection = members.at(address);
        Duration limit = Members.ANSWER_TIME_MAX;
        return members.within(address, () -> new Facts(
                "Cassandra cluster " + connection.cluster(limit), 1, false, true, connection.replicas(limit),
                Rates.NAMES));
    }

    @Override
    public String boot(String token) throws Failure {
        Ring ring = members.round();
        Set<String> serving = new TreeSet<>();
        for (Look judge : ring.judges()) {
            if (judge.mode().equals("NORMAL")) {
                serving.add(judge.address());
            }
        }
        if (settings.seedAddresses().stream().noneMatch(serving::contains)) {
            throw Failure.passing("no machine can start: none of the seeds " + String.join(", ", settings.seeds())
                    + " serves. Name members that serve with --seed; now these do: " + String.join(", ", serving));
        }
        // A machine joins as soon as it starts, and Cassandra may end its bootstrap with an error then.
        String unrest = ring.unrest();
        if (unrest != null) {
            throw Failure.passing("no machine can start now: " + unrest + ". This passes when the ring is at rest");
        }
        return Boot.script(settings.seeds(), settings.template());
    }

    @Override
    public List<Member> observe() throws Failure {
        Ring ring = members.round();
        List<Ring.Place> places = ring.members();
        if (settings.cleansAfterJoins()) {
            cleanups.goOn(ring, places);
        }
        List<Member> observed = new ArrayList<>();
        for (Ring.Place place : places) {
            Look own = ring.own(place.id());
            Map<String, Measured> measures = own == null ? Map.of() : rates.of(place.id(), own.figures());
            String detail = place.detail() != null ? place.detail() : cleanups.detailOf(place.id());
            observed.add(new Member(
                    place.id(), place.address(), place.state(), permille(place, own), detail, measures));
        }
        rates.keepOnly(new TreeSet<>(places.stream().map(Ring.Place::id).toList()));
        return observed;
    }

    /** How much of its streams is done, while it has any. */
    private static Integer permille(Ring.Place place, Look own) {
        if (own == null || own.streams().isEmpty()) {
            return null;
        }
        double percent = switch (place.state()) {
            case JOINING -> own.streams().stream().mapToDouble(Look.Stream::received).average().orElse(0);
            case DRAINING -> own.streams().stream().mapToDouble(Look.Stream::sent).average().orElse(0);
            default -> -1;
        };
        return percent < 0 ? null : (int) Math.min(1000, Math.round(10 * percent));
    }

    @Override
    public void join(String member) throws Failure {
        Ring ring = members.round();
        Look own = ring.own(member);
        if (own != null && own.mode().equals("DECOMMISSIONED")) {
            throw Failure.refused(member + " has left for good: Cassandra takes it in again only with an empty"
                    + " directory, which is another member");
        }
        if (own == null && !ring.lists(member)) {
            throw Failure.refused("there is no member " + member + "; a machine joins when its process starts");
        }
    }

    @Override
    public void drain(String member) throws Failure {
        drains.drain(member, members.round());
    }

    @Override
    public void cancel(String member) throws Failure {
        throw Failure.refused("the drain of " + member + " goes on: " + Ring.NO_WAY_BACK);
    }

    @Override
    public void forget(String member) throws Failure {
        Ring ring = members.round();
        if (!ring.lists(member)) {
            return;
        }
        String address = ring.addressOf(member);
        if (!ring.owners().contains(address)) {
            throw Failure.passing(member + " owns nothing, and the others drop it by themselves within a minute");
        }
        Look own = ring.own(member);
        if (own != null) {
            throw Failure.refused(member + " (" + address + ") is in the ring and answers; drain it first");
        }
        throw Failure.refused(member + " (" + address + ") is in the ring and does not answer. Start its process, or"
                + " run `nodetool removenode " + member + "` on another member if its data is lost");
    }

    @Override
    public Evidence evidence(Subject subject) throws Failure {
        return members.round().evidence(subject);
    }

    @Override
    public void close() {
        members.close();
    }
}
