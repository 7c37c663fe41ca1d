package tontine.elastic;

import java.util.List;

/**
 * What an engine adapter does: the verbs of {@code docs/reference/adapters.md}, for one cluster.
 *
 * <p>Several threads may call at once. A call is interrupted after {@link Conversation#CALL_TIME_MAX}, and its answer
 * is lost then; what it began goes on. Each call may be repeated, and nothing may be lost if this process is killed.
 */
public interface Engine extends AutoCloseable {
    /** What never changes while the adapter runs, and the fewest members. */
    Facts describe() throws Failure;

    /** The script with which a machine of this token starts: the same for each call. */
    String boot(String token) throws Failure;

    /** All members, and processes that wait to become one. */
    List<Member> observe() throws Failure;

    /** Gives a member its share. Returns when that has begun. */
    void join(String member) throws Failure;

    /** Has data leave a member. Returns when that has begun. */
    void drain(String member) throws Failure;

    /** Takes a drain back. */
    void cancel(String member) throws Failure;

    /** Makes sure that the engine knows a member no more. */
    void forget(String member) throws Failure;

    /** What the others say of one. */
    Evidence evidence(Subject subject) throws Failure;

    /** Lets go of connections; the process ends after it. */
    @Override
    void close();
}
