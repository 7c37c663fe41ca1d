package tontine.elastic;

import java.util.Locale;

/** How far a member is. */
public enum MemberState {
    /** Its process runs, and is no member yet. */
    WAITING,
    /** Data comes to it. */
    JOINING,
    /** It serves. */
    SERVING,
    /** It is a member and holds nothing, ready to serve. */
    STANDBY,
    /** Data leaves it. */
    DRAINING,
    /** The engine says that nothing is on it. That proves nothing. */
    DRAINED,
    /** It is a member and cannot be reached. */
    DOWN;

    /** As it is on the wire. */
    public String word() {
        return name().toLowerCase(Locale.ROOT);
    }
}
