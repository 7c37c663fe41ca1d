package tontine.elastic.hbase;

import java.util.Set;

/**
 * A region, as the master has written it into its catalogue.
 *
 * @param name its encoded name
 * @param table the table that it is of
 * @param state the master's word for it
 * @param at the address of the server that has it, or has left it without closing it; null if none
 * @param next the address of the server that opens it; null if none does
 * @param moves whether the master has a procedure for it
 */
record Region(String name, String table, String state, String at, String next, boolean moves) {
    static final String OPEN = "OPEN";
    /** Of these, no server has anything: of disabled tables, and what was split or merged into others. */
    private static final Set<String> NOWHERE = Set.of("", "CLOSED", "OFFLINE", "SPLIT", "MERGED");
    private static final String CATALOGUE = "hbase:meta";

    /** Whether no server has anything of it, whichever had it last. */
    static boolean isNowhere(String state, boolean moves) {
        return !moves && NOWHERE.contains(state);
    }

    boolean isOpen() {
        return OPEN.equals(state);
    }

    /** Whether a server at this address has it, gets it, or has left it without closing it. */
    boolean touches(String address) {
        boolean there = address.equals(at) || address.equals(next);
        return there && !isNowhere(state, moves);
    }

    boolean isOn(String address) {
        return address.equals(at) && !NOWHERE.contains(state) && next == null;
    }

    boolean comesTo(String address) {
        return address.equals(next);
    }

    /** The catalogue itself only moves when it must. */
    boolean isCatalogue() {
        return CATALOGUE.equals(table);
    }

    static Region catalogue(String at, boolean moves) {
        return new Region("1588230740", CATALOGUE, OPEN, at, null, moves);
    }
}
