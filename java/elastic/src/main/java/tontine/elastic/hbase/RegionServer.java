package tontine.elastic.hbase;

import org.apache.hadoop.hbase.ServerName;

/**
 * A region server that the master counts as live.
 *
 * @param name changes with each start of its process
 * @param address its host, as an IP address
 * @param webPort where its figures are; 0 if it has none
 * @param shutOut whether the master gives it no regions (HBase says *decommissioned*)
 * @param operations requests in a second, by its last report
 * @param storeBytes of all its regions, by its last report
 * @param reportAgeMs how old that report is, in milliseconds
 */
record RegionServer(
        ServerName name, String address, int webPort, boolean shutOut, double operations, double storeBytes,
        long reportAgeMs) {}
