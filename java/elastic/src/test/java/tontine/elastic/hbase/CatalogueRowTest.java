package tontine.elastic.hbase;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hbase.Cell;
import org.apache.hadoop.hbase.CellBuilderFactory;
import org.apache.hadoop.hbase.CellBuilderType;
import org.apache.hadoop.hbase.TableName;
import org.apache.hadoop.hbase.client.RegionInfo;
import org.apache.hadoop.hbase.client.RegionInfoBuilder;
import org.apache.hadoop.hbase.client.Result;
import org.apache.hadoop.hbase.util.Bytes;
import org.junit.jupiter.api.Test;
import tontine.elastic.Failure;

final class CatalogueRowTest {
    private static final RegionInfo INFO = RegionInfoBuilder.newBuilder(TableName.valueOf("t")).build();

    private static Cell cell(String column, byte[] value) {
        return CellBuilderFactory.create(CellBuilderType.DEEP_COPY).setRow(INFO.getRegionName())
                .setFamily(Bytes.toBytes("info")).setQualifier(Bytes.toBytes(column)).setTimestamp(1)
                .setType(Cell.Type.Put).setValue(value).build();
    }

    private static List<Region> read(Set<String> moving, String... columns) throws Failure {
        List<Cell> cells = new ArrayList<>(List.of(cell("regioninfo", RegionInfo.toByteArray(INFO))));
        for (int at = 0; at < columns.length; at += 2) {
            cells.add(cell(columns[at], Bytes.toBytes(columns[at + 1])));
        }
        return CatalogueRow.read(Result.create(cells), moving, host -> host.replace("host", "10.0.0."));
    }

    private static Region one(String... columns) throws Failure {
        List<Region> regions = read(Set.of(), columns);
        assertEquals(1, regions.size());
        return regions.get(0);
    }

    @Test
    void an_open_region_is_where_it_was_opened() throws Failure {
        Region region = one("server", "host4:16020", "serverstartcode", "x", "sn", "host4,16020,7", "state", "OPEN");
        assertTrue(region.isOn("10.0.0.4") && region.isOpen());
        assertFalse(region.touches("10.0.0.5"));
        assertEquals("t", region.table());
    }

    @Test
    void a_region_that_is_being_opened_is_of_both_until_it_is_open() throws Failure {
        Region region = one("server", "host4:16020", "sn", "host5,16020,7", "state", "OPENING");
        assertTrue(region.comesTo("10.0.0.5") && region.touches("10.0.0.4") && region.touches("10.0.0.5"));
        assertFalse(region.isOn("10.0.0.4"));
    }

    @Test
    void what_a_dead_server_has_left_open_is_still_on_it() throws Failure {
        assertTrue(one("server", "host4:16020", "sn", "host4,16020,7", "state", "ABNORMALLY_CLOSED").touches("10.0.0.4"));
        assertTrue(one("server", "host4:16020", "sn", "host4,16020,7", "state", "CLOSING").touches("10.0.0.4"));
        assertTrue(one("server", "host4:16020", "sn", "host4,16020,7", "state", "A-NEW-STATE").touches("10.0.0.4"));
    }

    @Test
    void a_closed_region_is_nowhere_unless_it_moves() throws Failure {
        String[] closed = {"server", "host4:16020", "sn", "host4,16020,7", "state", "CLOSED"};
        assertFalse(one(closed).touches("10.0.0.4"), "of a disabled table");
        assertTrue(read(Set.of(INFO.getEncodedName()), closed).get(0).touches("10.0.0.4"));
        assertFalse(one("server", "host4:16020", "state", "SPLIT").touches("10.0.0.4"));
    }

    @Test
    void each_replica_of_a_region_counts() throws Failure {
        List<Region> regions = read(Set.of(), "server", "host4:16020", "state", "OPEN",
                "server_0001", "host5:16020", "sn_0001", "host5,16020,7", "state_0001", "OPEN");
        assertEquals(2, regions.stream().map(Region::name).distinct().count());
        assertEquals(1, regions.stream().filter(region -> region.isOn("10.0.0.5")).count());
    }

    @Test
    void a_row_without_a_region_tells_of_none() throws Failure {
        Result row = Result.create(List.of(cell("state", Bytes.toBytes("OPEN"))));
        assertEquals(List.of(), CatalogueRow.read(row, Set.of(), host -> host));
    }

    @Test
    void a_host_without_an_address_is_a_failure_only_where_a_region_may_be_on_it() throws Failure {
        try (Cluster cluster = new Cluster(new Configuration(false))) {
            assertEquals("10.0.0.4", cluster.address("10.0.0.4"));
            for (int time = 1; time <= 2; time++) {
                Failure unknown = assertThrows(Failure.class, () -> cluster.address("gone.invalid"));
                assertEquals(Failure.PASSING, unknown.code());
            }
            String server = "gone.invalid:16020";
            Result closed = Result.create(List.of(cell("regioninfo", RegionInfo.toByteArray(INFO)),
                    cell("server", Bytes.toBytes(server)), cell("state", Bytes.toBytes("CLOSED"))));
            assertEquals(1, CatalogueRow.read(closed, Set.of(), cluster::address).size());
            Set<String> moving = Set.of(INFO.getEncodedName());
            assertThrows(Failure.class, () -> CatalogueRow.read(closed, moving, cluster::address));
        }
    }
}
