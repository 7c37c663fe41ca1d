package tontine.elastic;

import java.util.List;

/**
 * The answer to {@code describe}.
 *
 * @param name what people call the cluster
 * @param actsMax how many members may join or leave at once
 * @param drainCancellable whether a drain that has begun can be taken back
 * @param joinsAtBoot whether a member joins by itself as soon as its machine starts
 * @param membersMin the fewest members with which the engine keeps all copies
 * @param measures names of the measures that {@code observe} gives
 */
public record Facts(
        String name, int actsMax, boolean drainCancellable, boolean joinsAtBoot, int membersMin,
        List<String> measures) {}
