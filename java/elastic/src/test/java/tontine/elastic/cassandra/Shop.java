package tontine.elastic.cassandra;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;

/** A cluster of real members, a fleet over it, and what is needed to control it. */
final class Shop implements AutoCloseable {
    static final int CQL_PORT = 24042;
    private static final Duration PATIENCE = Duration.ofSeconds(240);
    /** The founders' addresses; machines of the fleet have others. */
    static final List<String> FOUNDERS = List.of("127.0.0.221", "127.0.0.222", "127.0.0.223");
    private static final Pattern MACHINE = Pattern.compile("jmxremote\\.host=(127[0-9.]+)");
    private static final String MACHINES = "127.0.0.231-127.0.0.239";

    final Processes processes = new Processes();
    private final Path libraries = Path.of(System.getProperty("engine.cassandra"), "lib");
    private final String tontine = System.getProperty("tontine");
    private final Path here = Path.of("").toAbsolutePath();
    private final Path template = processes.folder.resolve("template");
    private final Path secrets = processes.folder.resolve("secrets");
    private final Map<String, Process> byHand = new TreeMap<>();
    private Process controller;

    Shop() throws IOException {
        Files.createDirectories(secrets);
        secret("jmx.password", "monitor s3cret\n");
        secret("jmx.access", "monitor readwrite\n");
        secret("login", "monitor s3cret\n");
        Files.createDirectories(template);
        try (Stream<Path> files = Files.list(here.resolve("engines/cassandra/template"))) {
            for (Path file : files.toList()) {
                String text = Files.readString(file).replace("@LIBRARIES@", libraries.toString())
                        .replace("@SECRETS@", secrets.toString());
                Files.writeString(template.resolve(file.getFileName()), text);
            }
        }
        Files.writeString(path("adapters.toml"), "[engines.cassandra]\ndeadline = 30\ncommand = " + list(adapter())
                + "\n[providers.local]\ncommand = " + list(provider()) + "\n");
        Files.writeString(path("shop.toml"), """
                engine = "cassandra"
                provider = "local"
                machine-type = "local"
                min = 3
                max = 5
                mode = "auto"
                """);
    }

    private void secret(String name, String text) throws IOException {
        Path file = secrets.resolve(name);
        Files.writeString(file, text);
        Files.setPosixFilePermissions(file, PosixFilePermissions.fromString("rw-------"));
    }

    Path path(String name) {
        return processes.folder.resolve(name);
    }

    private static String list(List<String> words) throws IOException {
        return Processes.JSON.writeValueAsString(words);
    }

    /** The command line of the adapter. */
    List<String> adapter(String... further) {
        List<String> words = new ArrayList<>(List.of(
                "java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx64m", "-jar", here.resolve("target/elastic.jar").toString(), "cassandra",
                "--template", template.toString(), "--jmx-port", "24199",
                "--credentials", secrets.resolve("login").toString()));
        FOUNDERS.forEach(founder -> words.addAll(List.of("--seed", founder + ":24700")));
        words.addAll(List.of(further));
        return words;
    }

    Processes.Adapter newAdapter() throws IOException {
        return processes.new Adapter(adapter().toArray(String[]::new));
    }

    private List<String> provider() {
        return List.of(tontine, "adapter", "local", "--dir", path("machines").toString(), "--addresses", MACHINES);
    }

    /** The founders, who have no data to fetch and so begin at once. */
    void found() throws Exception {
        for (String founder : FOUNDERS) {
            Path data = Files.createDirectories(path(founder).resolve("conf"));
            for (String name : List.of("cassandra.yaml", "logback.xml", "java17.options", "start")) {
                String text = Files.readString(template.resolve(name)).replace("@ADDRESS@", founder)
                        .replace("@DATA@", data.getParent().toString()).replace("@SEEDS@", FOUNDERS.get(0) + ":24700")
                        .replace("auto_bootstrap: true", "auto_bootstrap: false")
                        .replaceAll("allocate_tokens_for_local_replication_factor.*", "");
                Files.writeString(data.resolve(name), text);
            }
            byHand.put(founder, start(founder, data.getParent(), "conf/start"));
        }
        for (String founder : FOUNDERS) {
            awaitCql(founder);
        }
    }

    private Process start(String address, Path data, String script) throws IOException {
        Map<String, String> environment = Map.of(
                "MACHINE_ADDRESS", address, "MACHINE_DATA", data.toString(), "MACHINE_TOKEN", "by-hand");
        return processes.start(address, environment, "/bin/sh", data.resolve(script).toString());
    }

    /** Starts a member as an operator would who has the script. */
    void startByHand(String address, String script) throws IOException {
        Path data = Files.createDirectories(path(address));
        Files.writeString(data.resolve("boot"), script);
        byHand.put(address, start(address, data, "boot"));
    }

    /** Sends its process a signal. */
    void signal(String address, String name) throws Exception {
        String pid = Long.toString(byHand.get(address).pid());
        processes.run(Duration.ofSeconds(5), "/bin/kill", "-" + name, pid).succeeds();
    }

    /** Cassandra's own tool, as an operator uses it. */
    Processes.Said nodetool(String address, String... words) throws Exception {
        List<String> command = new ArrayList<>(List.of(
                "java", "@" + template.resolve("java17.options"), "-XX:TieredStopAtLevel=1", "-Xmx96m",
                "-Dcassandra.storagedir=" + path("nodetool"), "-cp", libraries + "/*",
                "org.apache.cassandra.tools.NodeTool", "-h", address, "-p", "24199", "-u", "monitor", "-pw", "s3cret"));
        command.addAll(List.of(words));
        return processes.run(PATIENCE, command.toArray(String[]::new));
    }

    void endByHand(String address) {
        byHand.get(address).destroy();
        byHand.get(address).onExit().join();
    }

    void awaitCql(String address) throws InterruptedException {
        Processes.await(address + " takes requests:\n" + processes.tail(path(address + ".log")), PATIENCE,
                () -> takesRequests(address));
    }

    static boolean takesRequests(String address) {
        try (Socket socket = new Socket()) {
            socket.connect(new InetSocketAddress(address, CQL_PORT), 500);
            return true;
        } catch (IOException refused) {
            return false;
        }
    }

    /** A command of {@code tontine elastic}. */
    Processes.Said elastic(String verb, String... words) throws Exception {
        List<String> command = new ArrayList<>(List.of(tontine, "elastic", verb, coordination()));
        command.addAll(List.of(words));
        return processes.run(Duration.ofSeconds(300), command.toArray(String[]::new));
    }

    private String coordination() {
        return "--coordination=dir:" + path("coordination");
    }

    Processes.Said checkAdapter() throws Exception {
        List<String> command = new ArrayList<>(List.of(tontine, "adapter", "check", "--"));
        command.addAll(adapter());
        return processes.run(Duration.ofSeconds(120), command.toArray(String[]::new));
    }

    void startController() throws IOException {
        controller = processes.start("controller", Map.of(), tontine, "elastic", "run", coordination(),
                "--adapters=" + path("adapters.toml"));
    }

    /** Ends it as a power cut would; its adapters end with it. */
    void killController() {
        controller.destroyForcibly().onExit().join();
    }

    JsonNode status() {
        return Processes.sure(() -> elastic("status", "shop", "--json").succeeds().json());
    }

    /** The states of the fleet's machines that are not founders, by address. */
    Map<String, String> machines() {
        Map<String, String> states = new TreeMap<>();
        for (JsonNode machine : status().at("/fleet/machines")) {
            String address = machine.path("address").asText("");
            if (machine.hasNonNull("instance")) {
                states.put(address, machine.get("state").asText());
            }
        }
        return states;
    }

    /** The processes of members on machines of the provider, by address. */
    Map<String, ProcessHandle> membersOfMachines() {
        Map<String, ProcessHandle> found = new TreeMap<>();
        ProcessHandle.allProcesses().forEach(process -> {
            String words = process.info().commandLine().orElse("");
            Matcher host = MACHINE.matcher(words);
            if (words.contains(path("machines").toString()) && host.find()) {
                found.put(host.group(1), process);
            }
        });
        return found;
    }

    /** Kills the member on the newest machine, as a power cut would; whether there was one. */
    boolean killMachineThatIsNotOf(Set<String> before) {
        Map<String, ProcessHandle> newest = membersOfMachines();
        newest.keySet().removeAll(before);
        newest.values().forEach(ProcessHandle::destroyForcibly);
        return !newest.isEmpty();
    }

    /** Whether the fleet has so many members that serve, and nothing under way. */
    boolean isSettledAt(int members) {
        JsonNode machines = status().at("/fleet/machines");
        boolean allServe = true;
        for (JsonNode machine : machines) {
            allServe &= machine.get("state").asText().equals("serving");
        }
        return allServe && machines.size() == members;
    }

    @Override
    public void close() throws IOException {
        if (controller != null) {
            killController();
        }
        // Machines outlive their controller, so they are ended by their provider.
        try (Processes.Adapter provider = processes.new Adapter(provider().toArray(String[]::new))) {
            for (JsonNode instance : provider.result("list", Map.of()).get("instances")) {
                provider.call("terminate", Map.of("instance", instance.get("id").asText()));
            }
            Processes.await("machines end", Duration.ofSeconds(30), () -> Processes.sure(
                    () -> provider.result("list", Map.of()).get("instances").isEmpty()));
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        } finally {
            processes.close();
        }
    }
}
