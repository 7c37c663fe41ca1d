import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.HdfsConfiguration;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/**
 * Hadoop's file system on loopback for tests: a name node and a data node in this process, below a directory.
 * It prints `port N` when it serves, and ends when its standard input does.
 */
public final class Hdfs {
    public static void main(String[] arguments) throws Exception {
        Configuration settings = new HdfsConfiguration();
        settings.set(MiniDFSCluster.HDFS_MINIDFS_BASEDIR, arguments[0]);
        settings.set("dfs.replication", "1");
        MiniDFSCluster cluster = new MiniDFSCluster.Builder(settings).numDataNodes(1).build();
        cluster.waitActive();
        System.out.println("port " + cluster.getNameNodePort());
        while (System.in.read() >= 0) {
            continue;
        }
        cluster.shutdown();
    }
}
