package tontine.elastic.hbase;

/**
 * A DataNode, as the NameNode knows it.
 *
 * @param uuid what it wrote on its disk when it was new; never given again
 * @param address its IP address, as the NameNode sees it
 * @param transferPort the port that names it in the exclude file, beside the address
 * @param rpcPort where it may be asked; 0 if unknown
 * @param webPort where its figures are; 0 if unknown
 * @param service what the NameNode intends with it
 * @param silentMs since it was last heard, in milliseconds
 * @param dead whether the NameNode has given it up, and counts none of its copies
 */
record DataNode(
        String uuid, String address, int transferPort, int rpcPort, int webPort, Service service, long silentMs,
        boolean dead) {

    /** After how long a silence another DataNode is asked for its copies first: HDFS's own default, in milliseconds. */
    static final long SILENT_MS_MAX = 30_000;

    /** What the NameNode intends with a DataNode. */
    enum Service {
        /** It takes blocks. */
        NORMAL,
        /** Its blocks are copied to others. */
        LEAVING,
        /** The NameNode says that all of its blocks have their copies elsewhere. */
        LEFT,
        /** It is away for a while, and nothing is copied. */
        MAINTENANCE
    }

    /** An id that never changes and is never given again: its address says which machine it is on. */
    String member() {
        return uuid + "@" + address;
    }

    /** How the exclude file names it. */
    String place() {
        return address + ":" + transferPort;
    }

    boolean isHeard() {
        return !dead && silentMs <= SILENT_MS_MAX;
    }
}
