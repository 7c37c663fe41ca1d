package tontine.elastic.hbase;

import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.TimeUnit;

/**
 * HBase on HDFS on the loopback interface: ZooKeeper, a NameNode and a master on 127.0.7.1, and members that start as the
 * adapter says. All that it starts ends with it.
 */
final class RealCluster {
    static final String HEAD = "127.0.7.1";
    private static final Path ENGINE = Path.of(System.getProperty("engine.hbase", "target/engines/hbase")).toAbsolutePath();
    private static final List<String> OPENS = List.of("java.base/java.lang", "java.base/java.nio", "java.base/sun.nio.ch",
            "java.base/java.lang.reflect", "java.base/java.util", "java.base/java.net", "java.base/java.io",
            "java.base/java.util.concurrent", "java.base/jdk.internal.ref", "java.base/jdk.internal.misc");

    final Path folder;
    final Path exclude;
    private final Map<String, Process> processes = new LinkedHashMap<>();

    RealCluster(Path folder) throws IOException {
        this.folder = folder;
        this.exclude = folder.resolve("exclude");
        Files.createFile(exclude);
        for (String page : List.of("hdfs", "datanode")) {
            Files.createDirectories(folder.resolve("web/webapps").resolve(page));
        }
        configure(folder.resolve("client"), false);
        configure(folder.resolve("member"), true);
        Files.writeString(folder.resolve("zoo.cfg"), "tickTime=1000\ndataDir=" + folder.resolve("zk")
                + "\nclientPort=2181\nclientPortAddress=" + HEAD + "\nadmin.enableServer=false\nmaxClientCnxns=300\n");
    }

    /** Starts ZooKeeper and the NameNode. */
    void start() throws Exception {
        java("zookeeper", "128m", "org.apache.zookeeper.server.quorum.QuorumPeerMain", folder.resolve("zoo.cfg").toString());
        Process format = java("format", "256m", "org.apache.hadoop.hdfs.server.namenode.NameNode", "-format", "-nonInteractive");
        if (!format.waitFor(60, TimeUnit.SECONDS) || format.exitValue() != 0) {
            throw new IllegalStateException("HDFS was not formatted; see " + folder.resolve("format.log"));
        }
        java("name-node", "256m", "org.apache.hadoop.hdfs.server.namenode.NameNode");
    }

    /** Starts the master, which gives up where no DataNode is there yet. */
    void master() throws IOException {
        java("master", "384m", "org.apache.hadoop.hbase.master.HMaster", "start");
    }

    /** Starts a member with a script of the adapter, as a provider would. */
    Process member(String address, String script) throws IOException {
        Path data = Files.createDirectories(folder.resolve("machine-" + address));
        Path file = Files.writeString(folder.resolve("boot-" + address + ".sh"), script);
        ProcessBuilder builder = new ProcessBuilder("/bin/sh", file.toString());
        builder.environment().put("MACHINE_ADDRESS", address);
        builder.environment().put("MACHINE_DATA", data.toString());
        return begin("member-" + address, builder);
    }

    private Process java(String name, String heap, String... words) throws IOException {
        List<String> command = new ArrayList<>(List.of("/bin/sh", "-c", command(heap, folder.resolve("member") + "") + " \"$@\"", name));
        command.addAll(List.of(words));
        ProcessBuilder builder = new ProcessBuilder(command);
        builder.environment().put("MACHINE_ADDRESS", HEAD);
        builder.environment().put("MACHINE_DATA", folder.resolve("head").toString());
        return begin(name, builder);
    }

    private Process begin(String name, ProcessBuilder builder) throws IOException {
        Process process = builder.redirectInput(new File("/dev/null")).redirectErrorStream(true)
                .redirectOutput(folder.resolve(name + ".log").toFile()).start();
        processes.put(name, process);
        return process;
    }

    /** A Java command line with the engine's jars, for a shell. */
    private String command(String heap, String configuration) {
        String opens = String.join(" ", OPENS.stream().map(one -> "--add-opens " + one + "=ALL-UNNAMED").toList());
        String path = String.join(":", configuration, folder.resolve("web").toString(),
                Path.of("target/test-classes").toAbsolutePath().toString(), ENGINE + "/lib/*");
        return "exec java -Xmx" + heap + " -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss256k -Djava.net.preferIPv4Stack=true "
                + opens + " --add-exports java.security.jgss/sun.security.krb5=ALL-UNNAMED -cp \"" + path + "\"";
    }

    /** The command line of the adapter for this cluster. */
    List<String> adapter() {
        return List.of("java", "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-jar",
                Path.of("target/elastic.jar").toAbsolutePath().toString(), "hbase",
                "--config", folder.resolve("client").toString(),
                "--member-config", folder.resolve("member").toString(),
                "--exclude-file", exclude.toString(),
                "--data-node", command("192m", "$HADOOP_CONF_DIR") + " org.apache.hadoop.hdfs.server.datanode.DataNode",
                "--region-server", command("256m", "$HBASE_CONF_DIR")
                        + " org.apache.hadoop.hbase.regionserver.HRegionServer start");
    }

    private void configure(Path to, boolean isMember) throws IOException {
        Files.createDirectories(to);
        Map<String, String> core = new LinkedHashMap<>();
        core.put("fs.defaultFS", "hdfs://" + HEAD + ":8020");
        if (isMember) {
            core.put("hadoop.rpc.socket.factory.class.default", OwnAddress.class.getName());
        }
        Map<String, String> hdfs = new LinkedHashMap<>();
        hdfs.put("dfs.replication", "2");
        hdfs.put("dfs.permissions.enabled", "false");
        hdfs.put("dfs.namenode.http-address", HEAD + ":9870");
        hdfs.put("dfs.namenode.name.dir", folder.resolve("names").toString());
        hdfs.put("dfs.hosts.exclude", exclude.toString());
        hdfs.put("dfs.namenode.datanode.registration.ip-hostname-check", "false");
        hdfs.put("dfs.namenode.decommission.interval", "2");
        hdfs.put("dfs.namenode.redundancy.interval.seconds", "1");
        hdfs.put("dfs.namenode.heartbeat.recheck-interval", "5000");
        hdfs.put("dfs.heartbeat.interval", "1");
        hdfs.put("dfs.datanode.data.dir", "${env.MACHINE_DATA}/hdfs");
        hdfs.put("dfs.datanode.hostname", "${env.MACHINE_ADDRESS}");
        hdfs.put("dfs.datanode.address", "${env.MACHINE_ADDRESS}:9866");
        hdfs.put("dfs.datanode.ipc.address", "${env.MACHINE_ADDRESS}:9867");
        hdfs.put("dfs.datanode.http.address", "${env.MACHINE_ADDRESS}:9864");
        Map<String, String> hbase = new LinkedHashMap<>();
        hbase.put("hbase.rootdir", "hdfs://" + HEAD + ":8020/hbase");
        hbase.put("hbase.cluster.distributed", "true");
        hbase.put("hbase.zookeeper.quorum", HEAD);
        hbase.put("hbase.master.ipc.address", HEAD);
        hbase.put("hbase.master.hostname", HEAD);
        hbase.put("hbase.master.info.port", "-1");
        hbase.put("hbase.master.store.region.walroll.period.ms", "20000");
        hbase.put("hbase.regionserver.ipc.address", "${env.MACHINE_ADDRESS}");
        hbase.put("hbase.regionserver.hostname", "${env.MACHINE_ADDRESS}");
        hbase.put("hbase.regionserver.info.bindAddress", "${env.MACHINE_ADDRESS}");
        hbase.put("hbase.regionserver.handler.count", "10");
        hbase.put("zookeeper.session.timeout", "12000");
        write(to.resolve("core-site.xml"), core);
        write(to.resolve("hdfs-site.xml"), hdfs);
        write(to.resolve("hbase-site.xml"), hbase);
        Files.writeString(to.resolve("log4j.properties"), """
                log4j.rootLogger=WARN,C
                log4j.appender.C=org.apache.log4j.ConsoleAppender
                log4j.appender.C.layout=org.apache.log4j.PatternLayout
                log4j.appender.C.layout.ConversionPattern=%d{HH:mm:ss} %p %c{1}: %m%n
                """);
    }

    private static void write(Path to, Map<String, String> settings) throws IOException {
        StringBuilder text = new StringBuilder("<configuration>\n");
        settings.forEach((name, value) -> text.append("<property><name>").append(name).append("</name><value>")
                .append(value).append("</value></property>\n"));
        Files.writeString(to, text.append("</configuration>\n"));
    }

    /** Waits until something holds, and says what did not. */
    static void await(String what, Duration most, Callable<Boolean> holds) throws Exception {
        long until = System.nanoTime() + most.toNanos();
        Exception last = null;
        do {
            try {
                if (holds.call()) {
                    return;
                }
                last = null;
            } catch (Exception failure) {
                last = failure;
            }
            Thread.sleep(300);
        } while (System.nanoTime() < until);
        throw new AssertionError("not within " + most.toSeconds() + " s: " + what, last);
    }

    /** Ends a process and what it started, at once. */
    void kill(String name) throws InterruptedException {
        Process process = processes.remove(name);
        List<ProcessHandle> below = process.descendants().toList();
        // A script first, so that it starts nothing again.
        process.destroyForcibly();
        below.forEach(ProcessHandle::destroyForcibly);
        process.waitFor(20, TimeUnit.SECONDS);
    }

    void stop() throws InterruptedException {
        for (String name : List.copyOf(processes.keySet())) {
            kill(name);
        }
    }
}
