//! What a run counts of its harm and of what came of it: for judges, and for the line that says what was played.

use super::*;

impl World {
    /// Notes that a fault takes copies from a node, now.
    pub(crate) fn strike(&self, position: usize) {
        self.strikes.note(self.executor.now(), self.machines[position].id);
    }

    /// Nodes from which faults took copies at `since` or later.
    pub fn struck_since(&self, since: Moment) -> Vec<NodeId> {
        self.strikes.since(since)
    }

    /// When faults took copies from a node, so far.
    pub fn strikes(&self) -> Vec<Moment> {
        self.strikes.moments()
    }

    /// A client was told that a write is done.
    pub(crate) fn acknowledged(&self) {
        self.acknowledgements.fetch_add(1, Ordering::Relaxed);
    }

    /// Writes so far that clients were told are done.
    pub fn acknowledgements(&self) -> u64 {
        self.acknowledgements.load(Ordering::Relaxed)
    }

    /// Batches of hints that failed so far, as the nodes that run tell.
    pub fn failed_batches(&self) -> u64 {
        const NAME: &str = "tontine_handoff_batches_failed_total ";
        let nodes = (0..self.machines.len()).filter_map(|position| self.node(position));
        let failed = |text: &str| {
            let number = text.lines().find_map(|line| line.strip_prefix(NAME));
            number.and_then(|number| number.parse::<u64>().ok()).unwrap_or(0)
        };
        nodes.map(|node| failed(&node.metrics().text())).sum()
    }

    /// This many more batches of hints have failed while a node had no room for requests.
    pub(crate) fn crowded(&self, batches: u64) {
        self.crowded.fetch_add(batches, Ordering::Relaxed);
    }

    /// Harm of this kind is done.
    pub(crate) fn harmed(&self, kind: String) {
        *self.harm.lock().entry(kind).or_default() += 1;
    }

    /// How often each kind of harm was done so far.
    pub fn harm(&self) -> BTreeMap<String, u64> {
        self.harm.lock().clone()
    }

    /// All of them.
    pub fn crowded_batches(&self) -> u64 {
        self.crowded.load(Ordering::Relaxed)
    }

    /// Times that reads found nothing in memory and were begun again elsewhere.
    pub fn refused_reads(&self) -> u64 {
        self.machines.iter().map(|machine| machine.disk.refused_reads()).sum()
    }
}
