package tontine.elastic.cassandra;

import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.function.Predicate;
import tontine.elastic.Evidence;
import tontine.elastic.MemberState;
import tontine.elastic.Subject;

/**
 * What the members said, put together. Pure: it is handed what was seen, and hands back what follows.
 *
 * <p>A member is known by its host id. Its own word says what it does; whether it is in the ring, and whether it can be
 * reached, is for the others to say.
 *
 * <p>Must never: take a member's own word, or the silence of another one, for evidence.
 */
final class Ring {
    /** What is said of a member whose drain begins or goes on. */
    static final String NO_WAY_BACK = "a decommission cannot be cancelled";

    private final Map<String, Look> looks;
    private final Map<String, String> failures;
    /** Those whose word about the ring counts. */
    private final List<Look> judges;

    /**
     * Of what was seen in one round.
     *
     * @param looks what members said, by the address at which they were asked
     * @param failures why others did not answer, by address
     */
    Ring(Map<String, Look> looks, Map<String, String> failures) {
        this.looks = looks;
        this.failures = failures;
        this.judges = looks.values().stream().filter(Look::isInRing).toList();
    }

    /** A member and how far it is. */
    record Place(String id, String address, MemberState state, String detail) {}

    /** Whether anybody answered whose word counts. */
    boolean isSeen() {
        return !judges.isEmpty();
    }

    List<Look> judges() {
        return judges;
    }

    Map<String, String> failures() {
        return failures;
    }

    /** Addresses that own tokens, by the word of any judge. */
    Set<String> owners() {
        Set<String> owners = new TreeSet<>();
        judges.forEach(judge -> owners.addAll(judge.owners().values()));
        return owners;
    }

    /** Addresses worth asking: those in the ring, and those that are about to be. */
    Set<String> addresses() {
        Set<String> addresses = owners();
        for (Look judge : judges) {
            addresses.addAll(judge.joining());
            judge.gossip().forEach((address, gossip) -> {
                if (!gossip.isGone()) {
                    addresses.add(address);
                }
            });
        }
        return addresses;
    }

    /** The own word of a member; null where it was not heard. */
    Look own(String id) {
        return looks.values().stream().filter(look -> look.hostId().equals(id)).findFirst().orElse(null);
    }

    /** The address of a member, if anybody knows it; of one that has left, as long as gossip tells of it. */
    String addressOf(String id) {
        Look own = own(id);
        if (own != null) {
            return own.address();
        }
        for (Look judge : judges) {
            for (Map.Entry<String, String> one : judge.hostIds().entrySet()) {
                if (one.getValue().equals(id)) {
                    return one.getKey();
                }
            }
            for (Map.Entry<String, Look.Gossip> one : judge.gossip().entrySet()) {
                if (id.equals(one.getValue().hostId())) {
                    return one.getKey();
                }
            }
        }
        return null;
    }

    /** Whether any judge lists a member: as an owner, or as one that joins, leaves or moves. */
    boolean lists(String id) {
        return judges.stream().anyMatch(judge -> lists(judge, id, null));
    }

    /** Why nothing else may begin: members that come, go or cannot be reached. Null where all is at rest. */
    String unrest() {
        return unrestBeside(null);
    }

    /** The same, but for one address. */
    String unrestBeside(String except) {
        for (Look judge : judges) {
            String why = unrest(judge, address -> !address.equals(except));
            if (why != null) {
                return why;
            }
        }
        if (judges.stream().map(Look::owners).distinct().count() > 1) {
            return "the members do not agree about the ring yet";
        }
        return null;
    }

    /** All members, and processes that become one. */
    List<Place> members() {
        Map<String, String> known = new TreeMap<>();
        for (Look judge : judges) {
            judge.gossip().forEach((address, gossip) -> {
                if (gossip.hostId() != null && !gossip.isGone()) {
                    known.put(gossip.hostId(), address);
                }
            });
        }
        for (Look judge : judges) {
            judge.hostIds().forEach((address, id) -> {
                if (judge.ringAddresses().contains(address)) {
                    known.put(id, address);
                }
            });
        }
        looks.values().forEach(look -> known.put(look.hostId(), look.address()));
        List<Place> places = new ArrayList<>();
        known.forEach((id, address) -> places.add(place(id, address)));
        return places;
    }

    private Place place(String id, String address) {
        Look own = looks.get(address);
        if (own != null && !own.hostId().equals(id)) {
            own = null;
        }
        List<Look> others = judges.stream().filter(judge -> !judge.address().equals(address)).toList();
        boolean isAway = isMajority(others, judge -> judge.unreachable().contains(address));
        if (own == null) {
            return unheard(id, address, others, isAway);
        }
        return switch (own.mode()) {
            case "DECOMMISSIONED" -> new Place(id, address, MemberState.DRAINED, "it has left the ring");
            case "LEAVING" -> new Place(id, address, MemberState.DRAINING, NO_WAY_BACK);
            case "DECOMMISSION_FAILED" -> new Place(id, address, MemberState.SERVING,
                    "its decommission failed half way; drain it again, or restart its process so that it stays");
            case "DRAINING", "DRAINED" -> new Place(id, address, MemberState.DOWN,
                    "nodetool drain stopped its service; restart its process");
            case "JOINING_FAILED" -> new Place(id, address, MemberState.JOINING,
                    "its bootstrap failed; `nodetool bootstrap resume` on it goes on");
            case "NORMAL", "MOVING" -> inRing(own, others, isAway);
            default -> new Place(id, address, MemberState.JOINING, null);
        };
    }

    private static Place inRing(Look own, List<Look> others, boolean isAway) {
        String id = own.hostId();
        String address = own.address();
        if (isAway) {
            return new Place(id, address, MemberState.DOWN, "most others do not reach it");
        }
        if (!others.isEmpty() && !isMajority(others, judge -> judge.owners().containsValue(address))) {
            return new Place(id, address, MemberState.JOINING, "most others have not heard that it serves");
        }
        if (!own.servesClients()) {
            return new Place(id, address, MemberState.JOINING, "it takes no requests of clients yet");
        }
        String detail = own.mode().equals("MOVING") ? "its tokens move" : null;
        return new Place(id, address, MemberState.SERVING, detail);
    }

    /** A member that did not answer, by the word of the others. */
    private Place unheard(String id, String address, List<Look> others, boolean isAway) {
        String why = failures.getOrDefault(address, "it was not asked");
        boolean owns = others.stream().anyMatch(judge -> judge.owners().containsValue(address));
        if (isAway) {
            return new Place(id, address, MemberState.DOWN, why);
        }
        if (others.stream().anyMatch(judge -> judge.leaving().contains(address))) {
            return new Place(id, address, MemberState.DRAINING, NO_WAY_BACK + "; " + why);
        }
        return new Place(id, address, owns ? MemberState.SERVING : MemberState.JOINING, why);
    }

    private static boolean isMajority(Collection<Look> judges, Predicate<Look> says) {
        return 2 * judges.stream().filter(says).count() > judges.size();
    }

    private static boolean lists(Look judge, String id, String address) {
        for (Map.Entry<String, String> one : judge.hostIds().entrySet()) {
            boolean isIt = one.getValue().equals(id) || (id == null && one.getKey().equals(address));
            if (isIt && (judge.ringAddresses().contains(one.getKey()) || judge.leaving().contains(one.getKey())
                    || judge.moving().contains(one.getKey()))) {
                return true;
            }
        }
        for (Map.Entry<String, Look.Gossip> one : judge.gossip().entrySet()) {
            Look.Gossip gossip = one.getValue();
            boolean isIt = id == null ? one.getKey().equals(address) : id.equals(gossip.hostId());
            if (isIt && !gossip.isGone()) {
                return true;
            }
        }
        return id == null && judge.ringAddresses().contains(address);
    }

    private static String unrest(Look judge, Predicate<String> counts) {
        Map<String, Set<String>> lists = new TreeMap<>(Map.of(
                "joins", judge.joining(), "leaves", judge.leaving(), "moves", judge.moving(),
                "cannot be reached", judge.unreachable()));
        for (Map.Entry<String, Set<String>> list : lists.entrySet()) {
            for (String address : list.getValue()) {
                boolean isKnown = judge.ringAddresses().contains(address) || !list.getKey().equals("cannot be reached");
                if (isKnown && counts.test(address)) {
                    return address + " " + list.getKey() + ", by the word of " + judge.address();
                }
            }
        }
        return judge.removes() ? judge.address() + " carries out a removenode" : null;
    }

    /** What the others say of one. All of them must have answered: what one of them keeps to itself is not known. */
    Evidence evidence(Subject subject) {
        String id = subject.member() != null ? subject.member() : idAt(subject.address());
        String address = subject.address() != null ? subject.address() : addressOf(id);
        Set<String> asked = new TreeSet<>();
        for (Look judge : judges) {
            judge.owners().values().stream().filter(owner -> !isSubject(judge, owner, id, address)).forEach(asked::add);
        }
        List<Look> witnesses = asked.stream().map(looks::get).filter(Objects::nonNull).toList();
        List<String> names = witnesses.stream().map(Look::hostId).toList();
        List<String> silent = asked.stream().filter(one -> !looks.containsKey(one))
                .map(one -> failures.getOrDefault(one, one + " was not asked")).toList();
        if (witnesses.isEmpty() || !silent.isEmpty()) {
            String detail = silent.isEmpty() ? "no other member answers" : String.join("; ", silent);
            return new Evidence(names, null, null, null, detail);
        }
        List<String> lacking = new ArrayList<>();
        boolean ownsNothing = witnesses.stream().noneMatch(witness -> lists(witness, id, address));
        if (!ownsNothing) {
            lacking.add(subject + " " + placeOf(witnesses, id, address));
        }
        String moving = witnesses.stream().filter(witness -> streams(witness, address)).map(Look::address)
                .findFirst().orElse(null);
        if (moving != null) {
            lacking.add("data moves between it and " + moving);
        }
        String shortOf = shortOf(witnesses, id, address);
        if (shortOf != null) {
            lacking.add(shortOf);
        }
        String detail = lacking.isEmpty() ? null : String.join("; ", lacking);
        return new Evidence(names, ownsNothing, moving == null && ownsNothing, shortOf == null, detail);
    }

    /** How the others list it, for people. */
    private static String placeOf(List<Look> witnesses, String id, String address) {
        if (witnesses.stream().anyMatch(one -> one.leaving().contains(address))) {
            return "leaves; " + NO_WAY_BACK;
        }
        long tokens = witnesses.stream().mapToLong(one -> one.owners().entrySet().stream()
                .filter(token -> isSubject(one, token.getValue(), id, address)).count()).max().orElse(0);
        return tokens > 0 ? "owns " + tokens + " tokens" : "runs or ran, and may be about to join";
    }

    /** The id of the member that has an address now; null if none has. */
    private String idAt(String address) {
        for (Look judge : judges) {
            String id = judge.hostIds().get(address);
            if (id != null && judge.ringAddresses().contains(address)) {
                return id;
            }
        }
        return null;
    }

    private static boolean isSubject(Look judge, String owner, String id, String address) {
        String ownerId = judge.hostIds().get(owner);
        return id != null && ownerId != null ? ownerId.equals(id) : owner.equals(address);
    }

    /** Whether a witness has a stream with it. If its address is not known, any stream may be one. */
    private static boolean streams(Look witness, String address) {
        return witness.streams().stream().anyMatch(stream -> address == null || stream.peers().contains(address));
    }

    /** What may be short of a copy: members that come, go, or do not agree. Null where nothing is. */
    private String shortOf(List<Look> witnesses, String id, String address) {
        Look first = witnesses.get(0);
        for (Look witness : witnesses) {
            String why = unrest(witness, one -> !isSubject(witness, one, id, address));
            if (why != null) {
                return why;
            }
            if (!witness.mode().equals("NORMAL")) {
                return witness.address() + " is " + witness.mode();
            }
            if (!witness.owners().equals(first.owners()) || !witness.hostIds().equals(first.hostIds())) {
                return first.address() + " and " + witness.address() + " do not agree about the ring";
            }
            if (!witness.schema().equals(first.schema())) {
                return first.address() + " and " + witness.address() + " have different schemas";
            }
            for (Look other : witnesses) {
                if (!witness.live().contains(other.address())) {
                    return witness.address() + " does not reach " + other.address();
                }
            }
        }
        return null;
    }
}
