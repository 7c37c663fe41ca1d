package tontine.elastic.hbase;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Set;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hbase.HBaseConfiguration;
import tontine.elastic.Options;

/**
 * The options.
 *
 * @param clients folder with core-site.xml, hdfs-site.xml and hbase-site.xml of this adapter
 * @param members folder with the configuration that members start with; null if machines have one of their own
 * @param excludeFile the file that the NameNode's dfs.hosts.exclude names
 * @param membersMin the fewest members; 0 for what the replication of files says
 * @param dataNode the command that runs a DataNode in the foreground
 * @param regionServer the command that runs a region server in the foreground
 */
record Settings(
        Path clients, Path members, Path excludeFile, int membersMin, String dataNode, String regionServer) {
    private static final int MEMBERS_MOST = 10_000;

    static Settings of(List<String> words) throws Options.Mistake {
        Options options = Options.read(words,
                Set.of("config", "member-config", "exclude-file", "members-min", "data-node", "region-server"));
        Path clients = folder("config", options.one("config"));
        for (String file : List.of("core-site.xml", "hbase-site.xml")) {
            if (!Files.isReadable(clients.resolve(file))) {
                throw new Options.Mistake("--config " + clients + " has no " + file + " that can be read");
            }
        }
        String members = options.one("member-config", null);
        Path exclude = Path.of(options.one("exclude-file")).toAbsolutePath();
        if (!Files.isReadable(exclude)) {
            throw new Options.Mistake("--exclude-file " + exclude
                    + " cannot be read; create it, and name it in the NameNode's dfs.hosts.exclude");
        }
        return new Settings(clients, members == null ? null : folder("member-config", members), exclude,
                options.number("members-min", 0, 0, MEMBERS_MOST), options.one("data-node", "exec hdfs datanode"),
                options.one("region-server", "exec hbase regionserver start"));
    }

    private static Path folder(String option, String value) throws Options.Mistake {
        Path folder = Path.of(value).toAbsolutePath();
        if (!Files.isDirectory(folder)) {
            throw new Options.Mistake("--" + option + " " + value + " is no folder");
        }
        return folder;
    }

    /** The configuration of clients, with times that fit into a call whatever the files say. */
    Configuration configuration() {
        Configuration settings = HBaseConfiguration.create();
        for (String file : List.of("core-site.xml", "hdfs-site.xml", "hbase-site.xml")) {
            if (Files.exists(clients.resolve(file))) {
                settings.addResource(new org.apache.hadoop.fs.Path(clients.resolve(file).toUri()));
            }
        }
        long ms = Calls.MS_MAX;
        for (String limit : List.of("hbase.rpc.timeout", "hbase.rpc.read.timeout", "hbase.rpc.write.timeout",
                "hbase.client.operation.timeout", "hbase.client.meta.operation.timeout",
                "hbase.client.scanner.timeout.period", "hbase.client.meta.scanner.timeout",
                "ipc.client.rpc-timeout.ms", "dfs.client.socket-timeout")) {
            settings.setLong(limit, ms);
        }
        for (String limit : List.of("hbase.ipc.client.socket.timeout.connect", "ipc.client.connect.timeout")) {
            settings.setLong(limit, ms / 2);
        }
        settings.setInt("hbase.client.retries.number", 2);
        settings.setInt("hbase.client.pause", 200);
        settings.setInt("zookeeper.recovery.retry", 2);
        settings.setInt("zookeeper.recovery.retry.intervalmill", 300);
        settings.setInt("ipc.client.connect.max.retries", 1);
        settings.setInt("ipc.client.connect.max.retries.on.timeouts", 0);
        settings.setInt("ipc.client.connect.retry.interval", 300);
        settings.setInt("dfs.client.failover.max.attempts", 3);
        settings.setInt("dfs.client.retry.max.attempts", 1);
        return settings;
    }
}
