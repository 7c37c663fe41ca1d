//! What is under way, and up to where everything is acknowledged.
//!
//! Batches finish in any order. Two rules follow: a batch waits while one of its keys is under way, so that of two
//! values of a key the later one in the file wins; and only what is acknowledged without a gap may be left out when
//! the load is resumed.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::batch::Batch;
use crate::input::Position;

/// The batches under way.
#[derive(Debug, Default)]
pub(super) struct Window {
    keys: BTreeSet<Bytes>,
    started: u64,
    /// Batches before this number are all acknowledged.
    settled: u64,
    /// Ends of acknowledged batches that others still stand before. Invariant: all numbers are above `settled`.
    ahead: BTreeMap<u64, Position>,
    acknowledged: Position,
}

impl Window {
    pub(super) fn new(start: Position) -> Self {
        Window { acknowledged: start, ..Window::default() }
    }

    /// Whether the batch must wait, because one of its keys is under way.
    pub(super) fn conflicts(&self, batch: &Batch) -> bool {
        batch.entries.iter().any(|(key, ..)| self.keys.contains(key))
    }

    /// Takes note that the batch is under way, and numbers it.
    pub(super) fn start(&mut self, batch: &Batch) -> u64 {
        for (key, ..) in &batch.entries {
            let new = self.keys.insert(key.clone());
            assert!(new, "a key is under way twice");
        }
        self.started += 1;
        self.started - 1
    }

    /// Takes note that every record of the batch is acknowledged.
    pub(super) fn finish(&mut self, number: u64, batch: &Batch) {
        assert!(number >= self.settled && number < self.started, "a batch finishes once, after its start");
        for (key, ..) in &batch.entries {
            self.keys.remove(key);
        }
        self.ahead.insert(number, batch.end);
        while let Some(end) = self.ahead.remove(&self.settled) {
            self.acknowledged = end;
            self.settled += 1;
        }
    }

    /// Everything before this place is acknowledged.
    pub(super) fn acknowledged(&self) -> Position {
        self.acknowledged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(keys: &[&'static str], line: u64) -> Batch {
        let entries = keys.iter().map(|&key| (key.into(), Bytes::new(), None)).collect();
        Batch { entries, end: Position { byte: line * 10, line }, ..Batch::default() }
    }

    #[test]
    fn only_a_prefix_without_a_gap_is_acknowledged() {
        let mut window = Window::new(Position { byte: 5, line: 0 });
        let batches = [batch(&["a"], 1), batch(&["b"], 2), batch(&["c"], 3)];
        let numbers: Vec<u64> = batches.iter().map(|batch| window.start(batch)).collect();
        window.finish(numbers[1], &batches[1]);
        window.finish(numbers[2], &batches[2]);
        assert_eq!(window.acknowledged(), Position { byte: 5, line: 0 });
        window.finish(numbers[0], &batches[0]);
        assert_eq!(window.acknowledged(), Position { byte: 30, line: 3 });
    }

    #[test]
    fn a_key_under_way_holds_back_the_next_batch_with_it() {
        let mut window = Window::new(Position::default());
        let (first, second) = (batch(&["a", "b"], 1), batch(&["b", "c"], 2));
        let number = window.start(&first);
        assert!(window.conflicts(&second));
        window.finish(number, &first);
        assert!(!window.conflicts(&second));
    }
}
