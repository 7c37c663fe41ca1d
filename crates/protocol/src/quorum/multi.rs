//! What multi-get and multi-put share: key indexes and grouping by node.

use std::collections::BTreeMap;

use model::{Moment, NodeId};

/// A key's position in its multi-request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyIndex(pub u32);

impl KeyIndex {
    /// The position as an index into the request's keys.
    pub fn position(self) -> usize {
        self.0 as usize
    }

    /// The index of a position; a request has at most [`model::limits::MULTI_KEYS_MAX`] keys.
    pub(super) fn at(position: usize) -> Self {
        KeyIndex(u32::try_from(position).expect("multi-requests are far shorter than 2^32 keys"))
    }
}

/// Things for nodes, collected per node; nodes in ascending order.
#[derive(Debug)]
pub(super) struct PerNode<T>(BTreeMap<NodeId, Vec<T>>);

impl<T> Default for PerNode<T> {
    fn default() -> Self {
        PerNode(BTreeMap::new())
    }
}

impl<T> PerNode<T> {
    pub(super) fn push(&mut self, node: NodeId, thing: T) {
        self.0.entry(node).or_default().push(thing);
    }

    /// Each node with its things, in the order in which they were pushed.
    pub(super) fn into_groups(self) -> impl Iterator<Item = (NodeId, Vec<T>)> {
        self.0.into_iter()
    }
}

/// When a multi-request must be woken: the earliest deadline among its keys, or earlier.
///
/// Keys whose deadline moved away do not move it; the wake-up that comes too early finds out. So an event costs
/// time for the keys that it names, not for all.
#[derive(Debug, Default)]
pub(super) struct Alarm {
    wake_at: Option<Moment>,
}

impl Alarm {
    /// Makes sure that it rings at `deadline` at the latest.
    pub(super) fn set_by(&mut self, deadline: Option<Moment>) {
        if let Some(deadline) = deadline {
            self.wake_at = Some(self.wake_at.map_or(deadline, |wake_at| wake_at.min(deadline)));
        }
    }

    /// Forgets everything, before all keys set it anew.
    pub(super) fn clear(&mut self) {
        self.wake_at = None;
    }

    pub(super) fn wake_at(&self) -> Option<Moment> {
        self.wake_at
    }
}
