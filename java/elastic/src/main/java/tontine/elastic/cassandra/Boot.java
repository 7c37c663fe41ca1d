package tontine.elastic.cassandra;

import java.io.IOException;
import java.nio.charset.MalformedInputException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Stream;
import tontine.elastic.Failure;

/**
 * The script with which a member starts: it writes the files of the template, filled in, and runs {@code start}.
 *
 * <p>Must never: let a member stand among its own seeds. Such a member skips its bootstrap and serves at once, and
 * reads then find nothing.
 */
final class Boot {
    /** Bytes of all files of a template. */
    private static final int BYTES_MAX = 256 << 10;
    private static final String END = "END-OF-A-FILE-OF-THE-TEMPLATE";

    private Boot() {}

    /** The same for each call, as long as seeds and template stay. */
    static String script(List<String> seeds, Path template) throws Failure {
        Map<String, String> files = read(template);
        StringBuilder script = new StringBuilder(HEAD.formatted(String.join(" ", quoted(seeds))));
        files.forEach((name, text) -> script.append("put ").append(name).append(" <<'" + END + "'\n")
                .append(text).append(text.endsWith("\n") ? "" : "\n").append(END + "\n"));
        return script.append("exec /bin/sh \"$MACHINE_DATA/conf/start\"\n").toString();
    }

    private static final String HEAD = """
            #!/bin/sh
            # Starts a member of Cassandra that joins by its bootstrap.
            set -eu
            seeds=
            for seed in %s; do
                case $seed in
                    "$MACHINE_ADDRESS" | "$MACHINE_ADDRESS":* | "[$MACHINE_ADDRESS]" | "[$MACHINE_ADDRESS]":*) ;;
                    *) seeds=$seeds${seeds:+,}$seed ;;
                esac
            done
            if [ -z "$seeds" ]; then
                echo "the only seed is $MACHINE_ADDRESS itself, and a member among its own seeds skips its bootstrap;" \\
                    "name another member that serves with --seed" >&2
                exit 1
            fi
            mkdir -p "$MACHINE_DATA/conf"
            for_sed() { printf '%%s' "$1" | sed 's/[&|\\\\]/\\\\&/g'; }
            fill="s|@ADDRESS@|$(for_sed "$MACHINE_ADDRESS")|g;s|@DATA@|$(for_sed "$MACHINE_DATA")|g"
            fill="$fill;s|@SEEDS@|$(for_sed "$seeds")|g;s|@TOKEN@|$(for_sed "$MACHINE_TOKEN")|g"
            put() { sed "$fill" >"$MACHINE_DATA/conf/$1"; }
            """;

    private static List<String> quoted(List<String> seeds) {
        return seeds.stream().map(seed -> "'" + seed + "'").toList();
    }

    /** The files of a template by name, checked. */
    static Map<String, String> read(Path template) throws Failure {
        Map<String, String> files = new TreeMap<>();
        long bytes = 0;
        try (Stream<Path> listed = Files.list(template)) {
            for (Path file : listed.filter(Files::isRegularFile).toList()) {
                String name = file.getFileName().toString();
                if (!name.matches("[A-Za-z0-9_.-]+")) {
                    throw lacking(template, "the name " + name + " has other signs than letters, digits, _, . and -");
                }
                bytes += Files.size(file);
                if (bytes > BYTES_MAX) {
                    throw lacking(template, "its files have more than " + BYTES_MAX + " bytes");
                }
                String text = Files.readString(file);
                if (text.lines().anyMatch(END::equals) || text.indexOf('\0') >= 0) {
                    throw lacking(template, name + " has a line " + END + ", or is no text");
                }
                files.put(name, text);
            }
        } catch (MalformedInputException binary) {
            throw lacking(template, "a file is no UTF-8");
        } catch (IOException unreadable) {
            throw lacking(template, unreadable.toString());
        }
        String yaml = files.get("cassandra.yaml");
        if (yaml == null || !files.containsKey("start")) {
            throw lacking(template, "it needs the files cassandra.yaml and start");
        }
        if (!yaml.contains("@SEEDS@")) {
            throw lacking(template, "cassandra.yaml does not say @SEEDS@, so a member might be its own seed");
        }
        if (yaml.lines().anyMatch(line -> line.matches("\\s*auto_bootstrap\\s*:\\s*[\"']?(?i:false|no|off).*"))) {
            throw lacking(template, "cassandra.yaml turns auto_bootstrap off, so a new member would lack its data");
        }
        return files;
    }

    private static Failure lacking(Path template, String why) {
        return Failure.passing("no machine can start with the template " + template + ": " + why
                + "; java/elastic/README.md says what it holds");
    }
}
