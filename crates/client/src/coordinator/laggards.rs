//! Tells gets which nodes to read last, and takes in what they find: [`Lagging`] for many gets at once.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use model::{Moment, NodeId};
use parking_lot::Mutex;
use protocol::quorum::Lagging;
use smallvec::SmallVec;

/// What one coordinator's gets have found.
#[derive(Debug, Default)]
pub(super) struct Laggards {
    /// Gets that were begun.
    gets: AtomicU64,
    /// Whether any node may lag, so that asking costs a load while all is well.
    any: AtomicBool,
    lagging: Mutex<Lagging>,
}

impl Laggards {
    /// Counts gets that begin.
    pub(super) fn begin(&self, gets: usize) {
        self.gets.fetch_add(gets as u64, Ordering::Relaxed);
    }

    /// The nodes to read last at `now`.
    pub(super) fn nodes(&self, now: Moment) -> SmallVec<[NodeId; 4]> {
        if !self.any.load(Ordering::Relaxed) {
            return SmallVec::new();
        }
        let lagging = self.lagging.lock();
        let nodes: SmallVec<_> = lagging.nodes(now).collect();
        self.any.store(!nodes.is_empty(), Ordering::Relaxed);
        nodes
    }

    /// Takes in that so many gets found a node behind.
    pub(super) fn found_behind(&self, node: NodeId, times: usize, now: Moment) {
        let mut lagging = self.lagging.lock();
        for _ in 0..times {
            if lagging.found_behind(node, self.gets.load(Ordering::Relaxed), now) {
                self.any.store(true, Ordering::Relaxed);
            }
        }
    }
}
