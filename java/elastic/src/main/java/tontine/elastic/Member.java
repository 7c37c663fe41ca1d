package tontine.elastic;

import java.util.Map;

/**
 * A member, as {@code observe} tells it.
 *
 * @param id never changes, and is never given again
 * @param address as its provider writes it, without a port; null if unknown
 * @param permille how much of its joining or draining is done; null if unknown
 * @param detail what it waits for; null if nothing
 * @param measures only what is known: a missing value is never 0
 */
public record Member(
        String id, String address, MemberState state, Integer permille, String detail, Map<String, Measured> measures) {}
