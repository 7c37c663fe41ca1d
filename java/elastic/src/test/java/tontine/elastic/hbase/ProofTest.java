package tontine.elastic.hbase;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Test;

final class ProofTest {
    private static final List<String> COUNTS =
            List.of("MissingBlocks", "CorruptBlocks", "LowRedundancyBlocks", "PendingReconstructionBlocks");

    private final ObjectNode blocks = new ObjectMapper().createObjectNode().put("tag.HAState", "active");
    private final ObjectNode state = new ObjectMapper().createObjectNode().put("FSState", "Operational");
    private final List<String> lacking = new ArrayList<>();

    private Boolean counted() {
        lacking.clear();
        return Proof.counts(blocks, state, lacking);
    }

    @Test
    void each_count_of_the_name_node_stops_a_proof_by_itself() {
        COUNTS.forEach(count -> blocks.put(count, 0));
        assertEquals(true, counted());
        for (String count : COUNTS) {
            blocks.put(count, 3);
            assertEquals(false, counted(), count);
            assertTrue(lacking.get(0).startsWith("3 blocks of HDFS"), lacking.toString());
            blocks.put(count, 0);
        }
    }

    @Test
    void what_the_name_node_does_not_say_is_unknown() {
        for (String count : COUNTS) {
            COUNTS.forEach(one -> blocks.put(one, 0));
            blocks.remove(count);
            assertNull(counted(), count);
            blocks.put(count, "0");
            assertNull(counted(), count + " as a text");
        }
        COUNTS.forEach(count -> blocks.put(count, 0));
        assertNull(Proof.counts(blocks, state.deepCopy().put("FSState", "safeMode"), lacking));
        assertNull(Proof.counts(blocks.deepCopy().put("tag.HAState", "standby"), state, lacking));
        assertNull(Proof.counts(new ObjectMapper().createObjectNode(), state, lacking), "no page at all");
    }
}
