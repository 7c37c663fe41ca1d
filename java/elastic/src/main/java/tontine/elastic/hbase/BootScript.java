package tontine.elastic.hbase;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.stream.Stream;
import tontine.elastic.Failure;

/**
 * The script with which a machine becomes a member: it writes the configuration, and keeps a DataNode and a region
 * server running. The configuration may say {@code ${env.MACHINE_ADDRESS}} and {@code ${env.MACHINE_DATA}}, which both read
 * from their environment. Nothing in it depends on the token or on the time, so each call gives the same.
 */
final class BootScript {
    /** Some clouds take no more with a machine: EC2 16 KiB. */
    static final int BYTES_MAX = 16 << 10;
    private static final String END = "END-OF-FILE-BY-TONTINE";

    private BootScript() {}

    static String of(Settings settings) throws Failure {
        StringBuilder script = new StringBuilder("""
                #!/bin/sh
                # A DataNode and a region server on one address. Each is started again when it ends.
                set -eu
                : "${MACHINE_ADDRESS:?}" "${MACHINE_DATA:?}"
                export MACHINE_ADDRESS MACHINE_DATA
                cd "$MACHINE_DATA"
                """);
        if (settings.members() != null) {
            script.append("""
                    mkdir -p conf
                    export HADOOP_CONF_DIR="$MACHINE_DATA/conf" HBASE_CONF_DIR="$MACHINE_DATA/conf"
                    """);
            for (Path file : files(settings.members())) {
                append(script, file);
            }
        }
        script.append("data_node() { (").append(settings.dataNode()).append("\n) }\n");
        script.append("region_server() { (").append(settings.regionServer()).append("\n) }\n");
        script.append("""
                keep() { while :; do "$@" || echo "$1 ended with status $?" >&2; sleep 5; done; }
                keep data_node &
                keep region_server &
                wait
                """);
        int bytes = script.toString().getBytes(StandardCharsets.UTF_8).length;
        if (bytes > BYTES_MAX) {
            throw Failure.refused("the boot script would have " + bytes + " bytes, and machines take " + BYTES_MAX
                    + "; make the files in " + settings.members() + " smaller");
        }
        return script.toString();
    }

    private static List<Path> files(Path folder) throws Failure {
        try (Stream<Path> found = Files.list(folder)) {
            List<Path> files = found.filter(Files::isRegularFile).sorted().toList();
            if (files.isEmpty()) {
                throw Failure.passing(
                        "--member-config " + folder + " has no files; put hdfs-site.xml and the like there");
            }
            return files;
        } catch (IOException broken) {
            throw Failure.passing("--member-config " + folder + " cannot be read: " + broken);
        }
    }

    private static void append(StringBuilder script, Path file) throws Failure {
        String name = file.getFileName().toString();
        if (!name.matches("[A-Za-z0-9_.-]+")) {
            throw Failure.passing(file + " has a name with other signs than letters, digits, _, . and -; rename it");
        }
        try {
            String text = Files.readString(file);
            if (text.lines().anyMatch(END::equals)) {
                throw Failure.passing(file + " has a line " + END + ", which ends files in the script; remove it");
            }
            script.append("cat >'conf/").append(name).append("' <<'").append(END).append("'\n").append(text);
            script.append(text.endsWith("\n") || text.isEmpty() ? "" : "\n").append(END).append('\n');
        } catch (IOException broken) {
            throw Failure.passing(file + " cannot be read as text: " + broken);
        }
    }
}
