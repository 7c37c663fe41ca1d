//! What repair counts, for whoever scrapes the node. Must never: decide anything by these numbers.

use std::sync::Arc;

use protocol::antientropy::SessionOutcome;

use super::AntiEntropy;
use crate::metrics::{Counter, Metrics};

/// Handles of the counters.
pub(super) struct AntiEntropyCounters {
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

impl AntiEntropyCounters {
    pub(super) fn new(metrics: &Metrics) -> AntiEntropyCounters {
        let counter = |name| metrics.counter(name, &[]);
        let sessions =
            |outcome| metrics.counter("tontine_antientropy_sessions_total", &[("outcome", outcome)]);
        let sets = |way| metrics.counter("tontine_antientropy_sets_total", &[("way", way)]);
        AntiEntropyCounters {
            complete: sessions("complete"),
            incomplete: sessions("incomplete"),
            keys: counter("tontine_antientropy_keys_differing_total"),
            pulled: sets("pulled"),
            pushed: sets("pushed"),
            bytes: counter("tontine_antientropy_bytes_total"),
            counted_records: counter("tontine_antientropy_counted_records_total"),
            scrubbed_records: counter("tontine_scrub_records_total"),
            scrubbed_bytes: counter("tontine_scrub_bytes_total"),
            corrupt_records: counter("tontine_scrub_corrupt_records_total"),
            corrupt_hints: counter("tontine_scrub_corrupt_hints_total"),
            wrong_leaves: counter("tontine_scrub_wrong_leaves_total"),
        }
    }

    pub(super) fn ended(&self, outcome: &SessionOutcome) {
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
    let watch = |name, read: fn(&AntiEntropy) -> u64| {
        let weak = Arc::downgrade(antientropy);
        metrics.watch(name, &[], move || weak.upgrade().map_or(0.0, |antientropy| read(&antientropy) as f64));
    };
    watch("tontine_antientropy_doubtful_trees", |antientropy| {
        let view = antientropy.replica().view().get();
        view.stores().iter().map(|store| store.trees().summary().1 as u64).sum()
    });
    watch("tontine_antientropy_tree_bytes", |antientropy| {
        let view = antientropy.replica().view().get();
        view.stores().iter().map(|store| store.trees().summary().2 as u64).sum()
    });
    watch("tontine_antientropy_repaired_records_total", |antientropy| {
        let view = antientropy.replica().view().get();
        view.stores().iter().map(|store| store.trees().repaired()).sum()
    });
    watch("tontine_node_corrupt_reads_total", |antientropy| {
        let view = antientropy.replica().view().get();
        view.stores().iter().map(|store| store.trees().corrupt_met()).sum()
    });
}
