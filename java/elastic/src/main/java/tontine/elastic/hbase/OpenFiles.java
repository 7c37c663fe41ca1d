package tontine.elastic.hbase;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import org.apache.hadoop.fs.RemoteIterator;
import org.apache.hadoop.hbase.ServerName;
import org.apache.hadoop.hdfs.DistributedFileSystem;
import org.apache.hadoop.hdfs.protocol.DatanodeInfo;
import org.apache.hadoop.hdfs.protocol.LocatedBlock;
import org.apache.hadoop.hdfs.protocol.OpenFileEntry;
import org.apache.hadoop.hdfs.protocol.OpenFilesIterator.OpenFilesType;
import tontine.elastic.Failure;

/**
 * Files that are being written, and whose last block has a copy on one DataNode.
 *
 * <p>The NameNode calls a DataNode decommissioned while such a block is there, if it has one other copy. So these are
 * looked for: when that DataNode ends, the block is short of a copy until its writer begins another.
 */
record OpenFiles(List<String> paths) {
    /** Of a cluster that writes more files at once, nobody says which are on a member: each is asked for by itself. */
    private static final int FILES_MAX = 2_000;
    private static final String LOGS = "/WALs/";

    static OpenFiles on(Cluster cluster, DataNode dataNode) throws Failure {
        return cluster.calls.answer(Cluster.NAME_NODE, () -> on(cluster.nameNode(), dataNode));
    }

    private static OpenFiles on(DistributedFileSystem hdfs, DataNode dataNode) throws IOException, Failure {
        RemoteIterator<OpenFileEntry> open = hdfs.listOpenFiles(EnumSet.of(OpenFilesType.ALL_OPEN_FILES), "/");
        List<String> paths = new ArrayList<>();
        for (int seen = 0; open.hasNext(); seen++) {
            if (seen == FILES_MAX) {
                throw Failure.passing("more than " + FILES_MAX
                        + " files are being written, so nobody can say which of them are on it");
            }
            String path = open.next().getFilePath();
            if (lastBlockIsOn(hdfs, path, dataNode)) {
                paths.add(path);
            }
        }
        return new OpenFiles(paths);
    }

    private static boolean lastBlockIsOn(DistributedFileSystem hdfs, String path, DataNode dataNode)
            throws IOException {
        LocatedBlock last = hdfs.getClient().getLocatedBlocks(path, 0, Long.MAX_VALUE).getLastLocatedBlock();
        return last != null && Arrays.stream(last.getLocations()).map(DatanodeInfo::getDatanodeUuid)
                .anyMatch(dataNode.uuid()::equals);
    }

    /** The region servers whose logs are among them. */
    Set<ServerName> servers() {
        Set<ServerName> servers = new LinkedHashSet<>();
        for (String path : paths) {
            int at = path.indexOf(LOGS);
            String folder = at < 0 ? "" : path.substring(at + LOGS.length()).split("/")[0];
            if (!path.contains("/MasterData/") && ServerName.isFullServerName(folder)) {
                servers.add(ServerName.valueOf(folder));
            }
        }
        return servers;
    }
}
