package tontine.elastic.cassandra;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import tontine.elastic.Failure;

class BootTest {
    @TempDir
    Path folder;

    private Path template(String yaml) throws IOException {
        Path template = Files.createDirectories(folder.resolve("template"));
        Files.writeString(template.resolve("cassandra.yaml"), yaml);
        Files.writeString(template.resolve("start"), "printf '%s' \"started with $(cat \"$MACHINE_DATA/conf/cassandra.yaml\")\"");
        return template;
    }

    /** What a machine at this address prints, and whether it failed. */
    private String run(List<String> seeds, String address, String yaml) throws Exception {
        Path data = Files.createDirectories(folder.resolve("a & b|c"));
        ProcessBuilder shell = new ProcessBuilder("/bin/sh", "-c", Boot.script(seeds, template(yaml)));
        shell.environment().put("MACHINE_ADDRESS", address);
        shell.environment().put("MACHINE_DATA", data.toString());
        shell.environment().put("MACHINE_TOKEN", "t-1");
        Process process = shell.redirectErrorStream(true).start();
        String said = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        return (process.waitFor() == 0 ? "" : "FAILED ") + said.strip();
    }

    @Test
    void a_member_is_never_among_its_own_seeds() throws Exception {
        List<String> seeds = List.of("10.0.0.1:7000", "10.0.0.2", "10.0.0.12", "[::1]:7000");
        assertEquals(
                "started with 10.0.0.1:7000,10.0.0.2,10.0.0.12,[::1]:7000", run(seeds, "10.0.0.3", "@SEEDS@"));
        assertEquals("started with 10.0.0.2,10.0.0.12,[::1]:7000", run(seeds, "10.0.0.1", "@SEEDS@"));
        assertEquals("started with 10.0.0.1:7000,10.0.0.12,[::1]:7000", run(seeds, "10.0.0.2", "@SEEDS@"));
        assertEquals("started with 10.0.0.1:7000,10.0.0.2,10.0.0.12", run(seeds, "::1", "@SEEDS@"));
        String alone = run(List.of("10.0.0.1:7000"), "10.0.0.1", "@SEEDS@");
        assertTrue(alone.startsWith("FAILED") && alone.contains("--seed"), alone);
        assertFalse(alone.contains("started"), alone);
    }

    @Test
    void the_files_of_the_template_are_filled_in_as_they_are() throws Exception {
        String yaml = "seeds: @SEEDS@ $HOME `x` \\n 'a' @ADDRESS@ @TOKEN@ & é\n";
        assertEquals(
                "started with seeds: 10.0.0.1 $HOME `x` \\n 'a' 10.0.0.9 t-1 & é",
                run(List.of("10.0.0.1"), "10.0.0.9", yaml).replace("\n", ""));
        // The path of the data has signs that sed would take for its own.
        assertEquals("started with a " + folder + "/a & b|c", run(List.of("a"), "b", "@SEEDS@ @DATA@"));
    }

    @Test
    void a_template_that_could_lose_data_is_refused() throws Exception {
        for (String yaml : List.of("seeds: 10.0.0.1", "@SEEDS@\nauto_bootstrap: false", "@SEEDS@\n auto_bootstrap: 'no'")) {
            Path template = template(yaml);
            Failure failure = assertThrows(Failure.class, () -> Boot.script(List.of("10.0.0.1"), template), yaml);
            assertEquals(Failure.PASSING, failure.code());
            assertTrue(failure.getMessage().contains("template"), failure.getMessage());
        }
        assertThrows(Failure.class, () -> Boot.script(List.of("10.0.0.1"), folder.resolve("none")));
    }
}
