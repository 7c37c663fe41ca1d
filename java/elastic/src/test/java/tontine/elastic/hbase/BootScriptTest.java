package tontine.elastic.hbase;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import tontine.elastic.Failure;

final class BootScriptTest {
    @TempDir
    Path folder;

    private Settings settings(String dataNode, String regionServer) {
        return new Settings(folder, folder, folder.resolve("exclude"), 0, dataNode, regionServer);
    }

    @Test
    void it_writes_the_configuration_and_starts_again_what_ends() throws Exception {
        Files.writeString(folder.resolve("hdfs-site.xml"), "<a>${env.MACHINE_ADDRESS} $(touch bad) `touch bad`</a>");
        String script = BootScript.of(settings("echo data $MACHINE_ADDRESS $HADOOP_CONF_DIR >>seen; exit 3", "sleep 60"));
        assertEquals(script, BootScript.of(settings("echo data $MACHINE_ADDRESS $HADOOP_CONF_DIR >>seen; exit 3", "sleep 60")));
        Path data = Files.createDirectory(folder.resolve("data"));
        ProcessBuilder builder = new ProcessBuilder("/bin/sh", "-c", script.replace("sleep 5", "sleep 0.2"));
        builder.environment().put("MACHINE_ADDRESS", "127.0.7.9");
        builder.environment().put("MACHINE_DATA", data.toString());
        Process process = builder.redirectErrorStream(true).redirectOutput(folder.resolve("log").toFile()).start();
        try {
            RealCluster.await("it started three times", java.time.Duration.ofSeconds(20),
                    () -> Files.exists(data.resolve("seen")) && Files.readAllLines(data.resolve("seen")).size() >= 3);
        } finally {
            process.descendants().forEach(ProcessHandle::destroyForcibly);
            process.destroyForcibly().waitFor(10, TimeUnit.SECONDS);
        }
        assertEquals("data 127.0.7.9 " + data + "/conf", Files.readAllLines(data.resolve("seen")).get(0));
        assertEquals(Files.readString(folder.resolve("hdfs-site.xml")) + "\n", Files.readString(data.resolve("conf/hdfs-site.xml")));
        assertTrue(Files.notExists(data.resolve("bad")), "a configuration is text, and no commands");
        assertTrue(Files.readString(folder.resolve("log")).contains("data_node ended with status 3"));
    }

    @Test
    void a_configuration_that_no_machine_takes_is_refused() throws Exception {
        Files.writeString(folder.resolve("hdfs-site.xml"), "x".repeat(BootScript.BYTES_MAX));
        assertTrue(assertThrows(Failure.class, () -> BootScript.of(settings("a", "b"))).getMessage().contains("smaller"));
        Files.writeString(folder.resolve("hdfs-site.xml"), "END-OF-FILE-BY-TONTINE\nrm -rf /\n");
        assertTrue(assertThrows(Failure.class, () -> BootScript.of(settings("a", "b"))).getMessage().contains("remove it"));
    }
}
