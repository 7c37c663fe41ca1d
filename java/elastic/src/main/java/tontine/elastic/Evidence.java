package tontine.elastic;

import java.util.List;

/**
 * What the other members say of one. What is not known is null, and unknown is no.
 *
 * @param witnesses the members that were asked; never the one in question
 * @param ownsNothing whether it owns nothing
 * @param nothingMoves whether nothing moves from it or to it
 * @param nothingShort whether nothing is short of a copy
 * @param detail what is lacking, for people; null if nothing is
 */
public record Evidence(
        List<String> witnesses, Boolean ownsNothing, Boolean nothingMoves, Boolean nothingShort, String detail) {}
