package tontine.elastic.cassandra;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;

/**
 * What one member said of itself and of the others, at one moment. Addresses have no port.
 *
 * @param address the address at which it was asked
 * @param hostId its own id
 * @param mode Cassandra's operation mode, such as NORMAL or LEAVING
 * @param servesClients whether it takes requests of clients
 * @param decommissionFailed whether its last decommission failed
 * @param live those that it reaches; a member of the ring, or a process that becomes one
 * @param unreachable those that it does not reach
 * @param joining those that join
 * @param leaving those that leave
 * @param moving those whose tokens move
 * @param hostIds ids by address
 * @param owners owners by token
 * @param schema the version of its schema
 * @param removes whether it carries out a {@code removenode}
 * @param gossip what it heard of each address, those that have left included
 * @param streams its streams
 * @param figures counters and gauges
 */
record Look(
        String address, String hostId, String mode, boolean servesClients, boolean decommissionFailed,
        Set<String> live, Set<String> unreachable, Set<String> joining, Set<String> leaving, Set<String> moving,
        Map<String, String> hostIds, Map<String, String> owners, String schema, boolean removes,
        Map<String, Gossip> gossip, List<Stream> streams, Figures figures) {

    /** What gossip says of an address: its id and its status, either of which may be null. */
    record Gossip(String hostId, String status) {
        /** Whether it has left, or was removed: gossip tells of such for three days. */
        boolean isGone() {
            return status != null && (status.equals("LEFT") || status.equals("removed"));
        }
    }

    /** A stream: the addresses of its other ends, and percents of what is received and sent. */
    record Stream(Set<String> peers, double received, double sent) {}

    /**
     * Counters and gauges; those that are not known are null.
     *
     * @param nanos when they were read, by {@link System#nanoTime}
     * @param processorNanos processor time of the process
     * @param processors processors that it may use
     * @param operations requests of clients that it coordinated
     * @param liveBytes bytes of live data
     * @param pendingCompactions compactions that wait
     */
    record Figures(
            long nanos, Long processorNanos, Integer processors, Long operations, Long liveBytes,
            Integer pendingCompactions) {}

    /** Whether it has a place in its own ring, so that its word about the ring counts. */
    boolean isInRing() {
        return owners.containsValue(address) && !mode.equals("DECOMMISSIONED");
    }

    /** Addresses that have tokens, or are about to. */
    Set<String> ringAddresses() {
        Set<String> addresses = new java.util.TreeSet<>(owners.values());
        addresses.addAll(joining);
        return addresses;
    }

    /**
     * Reads what {@code AllEndpointStatesWithPort} tells: a line with an address, and below it lines
     * {@code KEY:VERSION:VALUE}.
     */
    static Map<String, Gossip> gossip(String text) {
        Map<String, List<String>> entries = new TreeMap<>();
        List<String> fields = new ArrayList<>();
        for (String line : text.lines().toList()) {
            if (line.isBlank()) {
                continue;
            }
            if (Character.isWhitespace(line.charAt(0))) {
                fields.add(line.strip());
            } else {
                fields = entries.computeIfAbsent(Addresses.withoutPort(line.strip()), address -> new ArrayList<>());
            }
        }
        Map<String, Gossip> gossip = new TreeMap<>();
        entries.forEach((address, lines) -> {
            String status = field(lines, "STATUS_WITH_PORT");
            status = status != null ? status : field(lines, "STATUS");
            String word = status == null ? null : status.split(",", 2)[0];
            gossip.put(address, new Gossip(field(lines, "HOST_ID"), word));
        });
        return gossip;
    }

    private static String field(List<String> lines, String name) {
        for (String line : lines) {
            String[] parts = line.split(":", 3);
            if (parts.length == 3 && parts[0].equals(name)) {
                return parts[2];
            }
        }
        return null;
    }
}
