//! Every metric that a node has: name, type, labels, unit, and what an operator should know about it.
//!
//! The text is what a scraper gets as HELP and what `docs/reference/metrics.md` says; `tidy` holds the page against
//! this table, and a metric that is not in it panics when it is registered.
//!
//! Must never: rename a metric or change its meaning; dashboards and alerts outlive the code.

/// What is said of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Described {
    /// Its name.
    pub name: &'static str,
    /// `counter`, `gauge` or `histogram`.
    pub kind: &'static str,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// What one of it is.
    pub unit: &'static str,
    /// What it counts or measures.
    pub meaning: &'static str,
}

macro_rules! metrics {
    ($($kind:ident $name:literal [$($label:literal)*] $unit:literal $meaning:literal;)*) => {
        /// All metrics, by name.
        pub const TABLE: &[Described] = &[$(Described {
            name: $name,
            kind: stringify!($kind),
            labels: &[$($label,)*],
            unit: $unit,
            meaning: $meaning,
        },)*];
    };
}

metrics! {
    counter "tontine_antientropy_bytes_total" [] "bytes"
        "Bytes sent and received while replicas were compared with their peers.";
    counter "tontine_antientropy_counted_records_total" [] "records"
        "Records read to rebuild hash trees that could not be trusted after a crash.";
    gauge "tontine_antientropy_doubtful_trees" [] "trees"
        "Hash trees that still have to be rebuilt before their partitions can be compared.";
    counter "tontine_antientropy_keys_differing_total" [] "keys"
        "Keys on which a comparison found this node and a peer to differ.";
    counter "tontine_antientropy_repaired_records_total" [] "records"
        "Corrupt records that were replaced by a good copy from another replica.";
    counter "tontine_antientropy_sessions_total" ["outcome"] "comparisons"
        "Comparisons with a peer that ended, by outcome: complete or incomplete.";
    counter "tontine_antientropy_sets_total" ["way"] "keys"
        "Keys that comparisons brought up to date: pulled to this node or pushed to a peer.";
    gauge "tontine_antientropy_tree_bytes" [] "bytes"
        "Memory that hash trees take.";
    gauge "tontine_collection_epoch" [] "1"
        "The collection epoch that this node follows; nodes that differ for long do not hear each other.";
    counter "tontine_artifacts_corrupt_chunks_total" ["place"] "chunks"
        "Chunks of artifacts whose digests or checksums do not hold: from a source, from a replica, or here. They are fetched again.";
    counter "tontine_artifacts_delta_bytes_total" [] "bytes"
        "Bytes that this node fetched as deltas of artifacts; they are among the fetched bytes.";
    counter "tontine_artifacts_fetched_bytes_total" ["origin"] "bytes"
        "Bytes of artifacts that this node fetched, from a source or from a replica.";
    counter "tontine_artifacts_given_bytes_total" [] "bytes"
        "Bytes of artifacts that this node gave to other nodes.";
    counter "tontine_artifacts_held_seconds_total" [] "seconds"
        "Time that fetching waited for its turn, over all chunks: the budget was spent, or requests were late.";
    counter "tontine_artifacts_merged_bytes_total" [] "bytes"
        "Bytes of chunks that this node made of deltas instead of fetching them.";
    gauge "tontine_artifacts_pace_bytes_per_second" [] "bytes a second"
        "Bytes a second that this node may fetch now. It falls while requests are late.";
    gauge "tontine_artifacts_rate_bytes_per_second" [] "bytes a second"
        "Bytes a second that this node fetched a moment ago, 0 while nothing is fetched.";
    counter "tontine_artifacts_scrub_bytes_total" [] "bytes"
        "Bytes of artifacts that the scrub read, which verifies all files in the background.";
    counter "tontine_artifacts_scrub_damaged_files_total" [] "files"
        "Files of artifacts that the scrub found damaged; they are replaced. Check the disk.";
    counter "tontine_artifacts_scrub_passes_total" [] "passes"
        "Passes of the scrub over all files of artifacts that came to their end.";
    counter "tontine_artifacts_unused_deltas_total" [] "deltas"
        "Deltas of artifacts that were corrupt or made another chunk; the whole chunks were fetched.";
    counter "tontine_chores_failed_rounds_total" ["chore"] "rounds"
        "Rounds of a chore, which is work in the background, that failed; tontine status says why.";
    counter "tontine_chores_panics_total" ["chore"] "rounds"
        "Rounds of a chore that met a bug and panicked; the chore was started again. Report the bug.";
    gauge "tontine_chores_round_age_seconds" ["chore"] "seconds"
        "Time since the last round of a chore ended, or since it began when none has. One that reads everything has rounds as long as the scrub period.";
    counter "tontine_chores_rounds_total" ["chore"] "rounds"
        "Rounds of a chore that ended, failed ones included.";
    counter "tontine_collection_records_total" [] "records"
        "Tombstones that collection rounds started by this node removed for good.";
    counter "tontine_collection_rounds_broken_total" [] "rounds"
        "Collection rounds of this node that broke off; they are started again.";
    counter "tontine_collection_rounds_total" [] "rounds"
        "Collection rounds that this node completed.";
    gauge "tontine_collection_rounds_waiting" [] "1"
        "1 while tombstones cannot be removed because a node is away, otherwise 0.";
    gauge "tontine_collection_tombstones_pending" [] "keys"
        "Deleted keys whose tombstones still take up space here.";
    counter "tontine_coordinated_gets_total" [] "keys"
        "Keys that clients had this node get, at all doors, read-modify-write included.";
    counter "tontine_coordinated_puts_total" [] "keys"
        "Keys that clients had this node put or delete, at all doors.";
    gauge "tontine_disk_available_bytes" [] "bytes"
        "Free bytes on the disk of the data directory, as the operating system reports them.";
    gauge "tontine_disk_failed" [] "1"
        "1 when storage has stopped after a failed write or sync, otherwise 0: replace the disk or restart the node.";
    gauge "tontine_disk_room_bytes" [] "bytes"
        "Bytes that writes may still take before the node refuses them: the free space above its reserve.";
    histogram "tontine_disk_sync_duration_seconds" [] "seconds"
        "Time that a sync of a file to the disk took. Durable writes wait for it.";
    counter "tontine_expiry_bytes_reaped_total" [] "bytes"
        "Bytes of expired values that were removed.";
    gauge "tontine_expiry_keys_pending" [] "keys"
        "Keys with a time to live that has not passed yet.";
    counter "tontine_expiry_values_reaped_total" [] "values"
        "Expired values that were removed.";
    counter "tontine_gossip_downs_total" [] "1"
        "Times that this node came to believe that a peer is down.";
    counter "tontine_gossip_exchanges_failed_total" [] "exchanges"
        "Gossip messages to a peer that got no answer.";
    counter "tontine_gossip_exchanges_total" [] "exchanges"
        "Gossip messages sent to a peer.";
    gauge "tontine_gossip_nodes" ["state"] "nodes"
        "Other nodes by what this node believes about them: alive, suspected, down or left.";
    counter "tontine_gossip_suspicions_total" [] "1"
        "Times that this node came to suspect a peer. Many without a node down point to an overloaded node or network.";
    counter "tontine_handoff_batches_failed_total" [] "batches"
        "Batches of hints that their target did not take in full; they are sent again.";
    gauge "tontine_handoff_hint_bytes" [] "bytes"
        "Bytes of hints held for other nodes. At the limit (--hint-bytes-max) further hints are refused.";
    counter "tontine_handoff_hints_damaged_total" [] "hints"
        "Hints dropped because their checksum failed; comparing replicas brings their targets up to date.";
    counter "tontine_handoff_hints_delivered_total" [] "hints"
        "Hints that reached the node that had missed the write.";
    counter "tontine_handoff_hints_expired_total" [] "hints"
        "Hints given up as too old, after enough other replicas had the write.";
    gauge "tontine_handoff_hints_pending" [] "hints"
        "Hints held for nodes that missed a write. Grows while a node is down and drains when it is back.";
    counter "tontine_handoff_hints_readdressed_total" [] "hints"
        "Hints that were sent to the present replicas of their keys because their target is no replica any more.";
    counter "tontine_handoff_hints_refused_total" [] "hints"
        "Hints refused at the limit of bytes. The writes themselves were acknowledged by other replicas.";
    gauge "tontine_http_connections" [] "connections"
        "Open connections of HTTP clients.";
    gauge "tontine_http_event_readers" [] "connections"
        "Connections of HTTP clients that read events as they happen.";
    counter "tontine_http_requests_total" ["store" "outcome"] "requests"
        "HTTP requests by store (- for none) and outcome: done, absent, refused, unavailable or unknown.";
    counter "tontine_node_corrupt_reads_total" [] "reads"
        "Reads that met a record with a wrong checksum. Other replicas answered; check the disk.";
    counter "tontine_node_errors_total" ["code"] "answers"
        "Requests answered with an error, by the code of docs/reference/errors.md; rejected-command counts Redis commands that were wrong.";
    counter "tontine_node_events_total" [] "events"
        "Events recorded; the node keeps the last 4096.";
    gauge "tontine_node_generation" [] "1"
        "The generation of the cluster document that the node follows.";
    gauge "tontine_node_links" [] "connections"
        "Open connections of the native protocol: clients and other nodes.";
    histogram "tontine_node_request_duration_seconds" ["door" "operation"] "seconds"
        "Time from a request's arrival to its answer, by door (native, redis or http) and operation. Commands that are answered together count with the time of the last one.";
    counter "tontine_node_requests_total" [] "requests"
        "Requests of the native protocol, from clients and other nodes.";
    gauge "tontine_node_uptime_seconds" [] "seconds"
        "Time since the node started; it falls when the node restarts.";
    counter "tontine_process_cpu_seconds_total" [] "seconds"
        "Time that all threads of the node's process ran on a processor; 0 where the system does not say.";
    gauge "tontine_process_resident_bytes" [] "bytes"
        "Memory that the operating system has given to the node's process.";
    gauge "tontine_refill_incomplete_partitions" [] "partitions"
        "Partitions that this node lost and has not got back from its peers yet; 0 when it is whole.";
    gauge "tontine_processors" [] "processors"
        "Processors that the node's process may use: those that it may run on, or less where a control group bounds it.";
    counter "tontine_refill_bytes_total" [] "bytes"
        "Bytes received for partitions that this node had lost, or that moved here.";
    gauge "tontine_refill_entering_partitions" [] "partitions"
        "Partitions that a plan moves here and that have not arrived yet.";
    gauge "tontine_refill_lost_partitions" [] "partitions"
        "Partitions that this node lost in all, refilled or not.";
    counter "tontine_refill_records_total" [] "records"
        "Records that came for partitions that this node had lost, or that moved here.";
    counter "tontine_repair_reads_refused_total" [] "repairs"
        "Read repairs that were not begun because too many were under way.";
    counter "tontine_repair_reads_total" [] "repairs"
        "Stale replicas that a get found and brought up to date.";
    counter "tontine_replica_gets_total" [] "keys"
        "Keys whose gets this node answered as a replica.";
    counter "tontine_replica_puts_total" [] "keys"
        "Writes that this node merged as a replica, without those that it stamped.";
    counter "tontine_resp_commands_total" [] "commands"
        "Commands of Redis clients.";
    gauge "tontine_resp_connections" [] "connections"
        "Open connections of Redis clients.";
    counter "tontine_scrub_bytes_total" [] "bytes"
        "Bytes read by the scrub, which verifies checksums in the background.";
    counter "tontine_scrub_corrupt_hints_total" [] "hints"
        "Hints that the scrub found with a wrong checksum.";
    counter "tontine_scrub_corrupt_records_total" [] "records"
        "Records that the scrub found with a wrong checksum; replicas bring them back. Check the disk.";
    counter "tontine_scrub_records_total" [] "records"
        "Records whose checksum the scrub verified.";
    counter "tontine_scrub_wrong_leaves_total" [] "leaves"
        "Leaves of hash trees that did not match their records and were recomputed.";
    counter "tontine_stamped_puts_total" [] "keys"
        "Writes that this node stamped as a replica.";
    gauge "tontine_store_disk_bytes" ["store"] "bytes"
        "Bytes that the store's files take on the disk, including what compaction has yet to free.";
    counter "tontine_store_gets_sloppy_total" ["store"] "gets"
        "Gets, driven by this node, that gave a value although fewer than R replicas had answered.";
    counter "tontine_store_gets_unavailable_total" ["store"] "gets"
        "Gets, driven by this node for clients and for what commands decide by, that failed, mostly because too few replicas answered.";
    gauge "tontine_store_live_bytes" ["store"] "bytes"
        "Bytes of the store's current records on this node.";
    gauge "tontine_store_memory_bytes" ["store"] "bytes"
        "Memory that the store's index and caches take.";
    gauge "tontine_store_records" ["store"] "records"
        "Records of the store on this node, replicas and tombstones included.";
    gauge "tontine_tls_certificate_expires_seconds" [] "seconds"
        "Unix time at which the certificate that the node shows expires; 0 where it has none.";
    counter "tontine_worker_seconds_total" [] "seconds"
        "Time that the node's workers ran on a processor; 0 where the system does not say.";
    counter "tontine_worker_waiting_seconds_total" [] "seconds"
        "Time that the node's workers had work and no processor; 0 where the system does not say.";
}

/// What is said of the metric with this name.
pub(super) fn find(name: &str) -> Option<&'static Described> {
    TABLE.iter().find(|described| described.name == name)
}
