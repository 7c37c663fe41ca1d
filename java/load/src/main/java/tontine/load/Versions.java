package tontine.load;

/**
 * Which versions of each record a read may find.
 *
 * <p>A version is above all of earlier runs, so a run needs no memory of them. One write of a record is under way at a
 * time. A write that failed may still happen later, so from then on its record may show each version since the last
 * that was acknowledged before.
 */
final class Versions {
    private final long first;
    private final long[] newest;
    private final long[] acknowledged;
    private final boolean[] writing;
    private final boolean[] doubtful;

    /** @param first above every version of earlier runs */
    Versions(int records, long first) {
        this.first = first;
        newest = new long[records];
        acknowledged = new long[records];
        writing = new boolean[records];
        doubtful = new boolean[records];
    }

    /** The version of a write that begins, or -1 if one of this record is under way. */
    synchronized long begin(int record) {
        if (writing[record]) {
            return -1;
        }
        writing[record] = true;
        newest[record] = newest[record] == 0 ? first : newest[record] + 1;
        return newest[record];
    }

    /** A write of this record has ended. */
    synchronized void end(int record, long version, boolean isAcknowledged) {
        writing[record] = false;
        if (!isAcknowledged) {
            doubtful[record] = true;
        } else if (!doubtful[record]) {
            acknowledged[record] = version;
        }
    }

    /** The oldest version that a read may find which begins now. */
    synchronized long oldest(int record) {
        return acknowledged[record];
    }

    /** What a read found that began when `oldest` was so. */
    synchronized Finding judge(int record, long oldest, long version) {
        var isOurs = version >= first;
        if (version < 0 || isOurs && version > newest[record]) {
            return Finding.WRONG;
        }
        return version < oldest ? Finding.STALE : Finding.RIGHT;
    }
}
