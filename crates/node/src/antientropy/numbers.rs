//! What repair counts, for whoever scrapes the node. Must never: decide anything by these numbers.

use std::sync::Arc;

use protocol::antientropy::Outcome;

use super::AntiEntropy;
use crate::metrics::{Counter, Kind, Metrics};

/// Handles of the counters.
pub(super) struct Numbers {
    complete: Counter,
    incomplete: Counter,
    keys: Counter,
    pulled: Counter,
    pushed: Counter,
    bytes: Counter,
    pub(super) counted_records: Counter,
    pub(super) scrubbed_records: Counter,
    pub(super) scrubbed_bytes: Counter,
    pub(super) corrupt_records: Counter,
    pub(super) corrupt_hints: Counter,
    pub(super) wrong_leaves: Counter,
}

impl Numbers {
    pub(super) fn new(metrics: &Metrics) -> Numbers {
        let counter = |name, help| metrics.counter(name, help, &[]);
        let sessions = |outcome| {
            let help = "Comparisons with a peer.";
            metrics.counter("tontine_antientropy_sessions_total", help, &[("outcome", outcome)])
        };
        let sets = |way| {
            let help = "Sets exchanged by comparisons.";
            metrics.counter("tontine_antientropy_sets_total", help, &[("way", way)])
        };
        Numbers {
            complete: sessions("complete"),
            incomplete: sessions("incomplete"),
            keys: counter("tontine_antientropy_keys_differing_total", "Keys found to differ."),
            pulled: sets("pulled"),
            pushed: sets("pushed"),
            bytes: counter("tontine_antientropy_bytes_total", "Bytes exchanged by comparisons."),
            counted_records: counter(
                "tontine_antientropy_counted_records_total",
                "Records read to count hash trees.",
            ),
            scrubbed_records: counter("tontine_scrub_records_total", "Records read by the scrub."),
            scrubbed_bytes: counter("tontine_scrub_bytes_total", "Bytes read by the scrub."),
            corrupt_records: counter(
                "tontine_scrub_corrupt_records_total",
                "Records that the scrub found corrupt.",
            ),
            corrupt_hints: counter(
                "tontine_scrub_corrupt_hints_total",
                "Hints that the scrub found corrupt.",
            ),
            wrong_leaves: counter(
                "tontine_scrub_wrong_leaves_total",
                "Leaves whose sum was not that of their records.",
            ),
        }
    }

    pub(super) fn ended(&self, outcome: &Outcome) {
        if outcome.complete {
            self.complete.increment()
        } else {
            self.incomplete.increment()
        }
        self.keys.add(outcome.keys as u64);
        self.pulled.add(outcome.pulled as u64);
        self.pushed.add(outcome.pushed as u64);
        self.bytes.add(outcome.bytes);
    }
}

/// Shows what others count.
pub(super) fn watch(antientropy: &Arc<AntiEntropy>, metrics: &Metrics) {
    let watch = |kind, name, help, read: fn(&AntiEntropy) -> u64| {
        let weak = Arc::downgrade(antientropy);
        metrics.watch(kind, name, help, &[], move || {
            weak.upgrade().map_or(0.0, |antientropy| read(&antientropy) as f64)
        });
    };
    watch(
        Kind::Gauge,
        "tontine_antientropy_doubtful_trees",
        "Hash trees that wait to be counted.",
        |antientropy| {
            let view = antientropy.replica().view().get();
            view.stores().iter().map(|store| store.trees().summary().1 as u64).sum()
        },
    );
    watch(
        Kind::Gauge,
        "tontine_antientropy_tree_bytes",
        "Memory of the leaves of hash trees.",
        |antientropy| {
            let view = antientropy.replica().view().get();
            view.stores().iter().map(|store| store.trees().summary().2 as u64).sum()
        },
    );
    watch(
        Kind::Counter,
        "tontine_antientropy_repaired_records_total",
        "Corrupt records replaced.",
        |antientropy| {
            let view = antientropy.replica().view().get();
            view.stores().iter().map(|store| store.trees().repaired()).sum()
        },
    );
    watch(
        Kind::Counter,
        "tontine_node_corrupt_reads_total",
        "Requests that met a corrupt record, which was then repaired from replicas.",
        |antientropy| {
            let view = antientropy.replica().view().get();
            view.stores().iter().map(|store| store.trees().corrupt_met()).sum()
        },
    );
    watch(Kind::Gauge, "tontine_refill_incomplete_partitions", "Partitions being refilled.", |antientropy| {
        antientropy.refill().lock().progress().0 as u64
    });
    watch(
        Kind::Gauge,
        "tontine_refill_lost_partitions",
        "Partitions that were lost in all.",
        |antientropy| antientropy.refill().lock().progress().1 as u64,
    );
    watch(
        Kind::Counter,
        "tontine_refill_records_total",
        "Records that refilling brought back.",
        |antientropy| antientropy.refill().lock().records(),
    );
    watch(
        Kind::Counter,
        "tontine_refill_bytes_total",
        "Bytes that travelled for refilling.",
        |antientropy| antientropy.refill().lock().bytes(),
    );
}
