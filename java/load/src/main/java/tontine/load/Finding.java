package tontine.load;

/** What came of an operation. */
enum Finding {
    /** A read found a version that it may find; a write was acknowledged. */
    RIGHT,
    /** The engine, or its client, gave an error. */
    FAILED,
    /** A read found nothing, where each record was loaded before. */
    ABSENT,
    /** A read found what was never written. */
    WRONG,
    /** A read found less than what had been acknowledged before it began. */
    STALE,
    /** It could not begin in time: too many others were under way. */
    UNSTARTED,
}
