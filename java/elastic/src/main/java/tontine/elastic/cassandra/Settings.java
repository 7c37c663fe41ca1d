package tontine.elastic.cassandra;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermission;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.regex.Pattern;
import tontine.elastic.Options;

/**
 * What the command line says, checked once.
 *
 * @param seeds the address of each member that new members ask for the ring, some with a port; never empty
 * @param template the directory with what a machine starts with
 * @param jmxPort the port on which members listen for JMX, each at its own address
 * @param jmx where members listen that do not listen there, as host:port by address
 * @param credentials the file with user and password for JMX; null if members ask for none
 * @param cleansAfterJoins whether the others are cleaned up after a member has joined
 */
record Settings(
        List<String> seeds, Path template, int jmxPort, Map<String, String> jmx, Path credentials,
        boolean cleansAfterJoins) {

    private static final Set<String> KNOWN = Set.of("seed", "template", "jmx-port", "jmx", "credentials", "cleanup");
    private static final Pattern ADDRESS = Pattern.compile(
            "[0-9]+(\\.[0-9]+){3}(:[0-9]+)?|\\[[0-9a-fA-F:.]+\\](:[0-9]+)?|[0-9a-fA-F]*(:[0-9a-fA-F.]*){2,}");
    private static final Set<PosixFilePermission> OF_OTHERS = Set.of(
            PosixFilePermission.GROUP_READ, PosixFilePermission.GROUP_WRITE,
            PosixFilePermission.OTHERS_READ, PosixFilePermission.OTHERS_WRITE);

    static Settings read(List<String> words) throws Options.Mistake {
        Options options = Options.read(words, KNOWN);
        List<String> seeds = options.all("seed");
        if (seeds.isEmpty()) {
            throw new Options.Mistake("--seed is missing: name a member that serves, better two or three");
        }
        for (String seed : seeds) {
            if (!ADDRESS.matcher(seed).matches()) {
                throw new Options.Mistake("--seed " + seed + " is no IP address, with or without a port. By a name, a"
                        + " new member could not tell that it is its own seed");
            }
        }
        Map<String, String> jmx = new LinkedHashMap<>();
        for (String one : options.all("jmx")) {
            int equals = one.indexOf('=');
            if (equals < 1 || !one.substring(equals + 1).matches(".+:[0-9]+")) {
                throw new Options.Mistake("--jmx " + one + " is not ADDRESS=HOST:PORT");
            }
            jmx.put(one.substring(0, equals), one.substring(equals + 1));
        }
        String cleanup = options.one("cleanup", "after-joins");
        if (!cleanup.equals("after-joins") && !cleanup.equals("by-hand")) {
            throw new Options.Mistake("--cleanup " + cleanup + " is neither after-joins nor by-hand");
        }
        String credentials = options.one("credentials", null);
        Settings settings = new Settings(
                List.copyOf(seeds), Path.of(options.one("template")), options.number("jmx-port", 7199, 1, 65535),
                Map.copyOf(jmx), credentials == null ? null : Path.of(credentials), cleanup.equals("after-joins"));
        settings.login();
        return settings;
    }

    /** The addresses of the seeds, without ports. */
    List<String> seedAddresses() {
        return seeds.stream().map(Addresses::withoutPort).toList();
    }

    /** Where a member listens for JMX, as host:port. */
    String jmxOf(String address) {
        return jmx.getOrDefault(address, Addresses.bracketed(address) + ":" + jmxPort);
    }

    /** User and password, read anew so that a changed file counts; null if there are none. */
    String[] login() throws Options.Mistake {
        if (credentials == null) {
            return null;
        }
        try {
            Set<PosixFilePermission> rights = Files.getPosixFilePermissions(credentials);
            if (rights.stream().anyMatch(OF_OTHERS::contains)) {
                throw new Options.Mistake(
                        "the password in " + credentials + " is open to others; run chmod 600 " + credentials);
            }
            String[] words = Files.readString(credentials).strip().split("\\s+");
            if (words.length != 2) {
                throw new Options.Mistake(credentials + " holds no line with a user and a password");
            }
            return words;
        } catch (IOException lacking) {
            throw new Options.Mistake("--credentials " + credentials + " cannot be read: " + lacking);
        }
    }
}
