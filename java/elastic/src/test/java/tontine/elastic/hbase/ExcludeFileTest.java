package tontine.elastic.hbase;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import tontine.elastic.Failure;
import tontine.elastic.hbase.ExcludeFile.Intent;
import tontine.elastic.hbase.ExcludeFile.Line;

final class ExcludeFileTest {
    private static final DataNode FOUR = Seen.dataNode(4, DataNode.Service.NORMAL);
    private static final DataNode FIVE = Seen.dataNode(5, DataNode.Service.NORMAL);
    /** Another machine that was given the address of the fourth. */
    private static final DataNode NEXT =
            new DataNode("uuid-44", FOUR.address(), 9866, 9867, 9864, DataNode.Service.LEFT, 500, false);

    private static List<Line> lines(String... texts) {
        return Stream.of(texts).map(Line::read).toList();
    }

    private static List<String> texts(List<Line> lines) {
        return lines.stream().map(Line::text).toList();
    }

    @Test
    void an_intent_outlives_the_process_and_is_changed_in_its_place() {
        List<Line> first = ExcludeFile.with(lines("# racks", "10.0.0.9"), FOUR, Intent.MOVES_REGIONS);
        assertEquals(List.of("# racks", "10.0.0.9", "# tontine moves-regions uuid-4 10.0.0.4:9866"), texts(first));
        assertEquals(Intent.MOVES_REGIONS, ExcludeFile.intent(first, FOUR));
        assertNull(ExcludeFile.intent(first, FIVE));
        assertFalse(first.stream().anyMatch(line -> line.excludes(FOUR)), "the NameNode must not hear of it yet");

        List<Line> second = ExcludeFile.with(first, FOUR, Intent.DRAINS);
        assertEquals(List.of("# racks", "10.0.0.9", "10.0.0.4:9866 # tontine drains uuid-4"), texts(second));
        assertTrue(second.stream().anyMatch(line -> line.excludes(FOUR)));
        assertEquals(List.of("# racks", "10.0.0.9"), texts(ExcludeFile.without(second, FOUR)));
    }

    @Test
    void what_another_hand_excluded_is_taken_back_too_and_nothing_else() {
        List<Line> found = lines("10.0.0.4", "10.0.0.4:9866", "10.0.0.4:9999", "10.0.0.5:9866");
        assertEquals(List.of("10.0.0.4:9999", "10.0.0.5:9866"), texts(ExcludeFile.without(found, FOUR)));
    }

    @Test
    void a_forgotten_one_stays_excluded_while_the_name_node_lists_it() {
        List<Line> found = lines("10.0.0.4:9866 # tontine forgot uuid-4", "10.0.0.5:9866 # tontine drains uuid-5");
        assertEquals(found, ExcludeFile.pruned(found, List.of(FOUR, FIVE)));
        assertEquals(found.subList(1, 2), ExcludeFile.pruned(found, List.of(NEXT)), "only what was forgotten is pruned");
    }

    @Test
    void who_comes_to_the_address_of_a_forgotten_one_was_not_asked_to_leave() {
        List<Line> found = lines("10.0.0.4:9866 # tontine forgot uuid-4");
        assertTrue(ExcludeFile.isLeftOver(found, NEXT));
        assertFalse(ExcludeFile.isLeftOver(found, FOUR));
        assertFalse(ExcludeFile.isLeftOver(lines("10.0.0.4:9866"), NEXT), "a hand asked it to leave");
        assertFalse(ExcludeFile.isLeftOver(lines(), NEXT));
    }

    @Test
    void lines_that_only_look_like_ours_are_left_alone() {
        for (String text : List.of("# tontine", "# tontine eats uuid-4", "10.0.0.4:9866 # drains uuid-4", "# by tontine")) {
            assertNull(Line.read(text).intent(), text);
        }
    }

    @Test
    void the_file_is_replaced_as_a_whole(@TempDir Path folder) throws Exception {
        Path file = folder.resolve("exclude");
        ExcludeFile exclude = new ExcludeFile(file);
        Failure missing = assertThrows(Failure.class, exclude::lines);
        assertTrue(missing.getMessage().contains("dfs.hosts.exclude"), missing.getMessage());
        Files.writeString(file, "10.0.0.9\n");
        exclude.alone(() -> {
            exclude.write(ExcludeFile.with(exclude.lines(), FOUR, Intent.DRAINS));
            return null;
        });
        assertEquals("10.0.0.9\n10.0.0.4:9866 # tontine drains uuid-4\n", Files.readString(file));
        try (Stream<Path> left = Files.list(folder)) {
            assertEquals(List.of("exclude", "exclude.lock"), left.map(one -> one.getFileName().toString()).sorted().toList());
        }
    }
}
