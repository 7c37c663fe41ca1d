//! Tells gets which nodes to read last, and takes in what they find: [`Lagging`] for many gets at once.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use model::{Moment, NodeId};
use parking_lot::Mutex;
use protocol::quorum::{Behind, Lagging};
use smallvec::SmallVec;

/// What one coordinator's gets have found.
#[derive(Debug, Default)]
pub(super) struct Laggards {
    /// Keys of the gets that were begun.
    gets: AtomicU64,
    /// Whether any node may lag, so that asking costs a load while all is well.
    any: AtomicBool,
    lagging: Mutex<Lagging>,
}

impl Laggards {
    /// Counts the keys of a get that begins.
    pub(super) fn begin(&self, keys: usize) {
        self.gets.fetch_add(keys as u64, Ordering::Relaxed);
    }

    /// Whether any node may lag.
    pub(super) fn is_any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// The nodes to read last at `now`.
    pub(super) fn nodes(&self, now: Moment) -> SmallVec<[NodeId; 4]> {
        if !self.is_any() {
            return SmallVec::new();
        }
        let lagging = self.lagging.lock();
        let nodes: SmallVec<_> = lagging.nodes(now).collect();
        self.any.store(!nodes.is_empty(), Ordering::Relaxed);
        nodes
    }

    /// Takes in that a get found a node behind.
    pub(super) fn found_behind(&self, node: NodeId, behind: Behind, now: Moment) {
        if self.lagging.lock().found_behind(node, behind, self.gets.load(Ordering::Relaxed), now) {
            self.any.store(true, Ordering::Relaxed);
        }
    }
}
