//! What multi-get and multi-put share: one machine per key, key indexes and grouping by node.

use std::collections::BTreeMap;

use model::{Moment, NodeId};

use super::machine::Machine;

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

/// The machines of a multi-request, one per key, numbered in the order in which they were added.
#[derive(Debug)]
pub(super) struct Machines<M> {
    machines: Vec<M>,
    /// When they must be woken: the earliest deadline among them, or earlier.
    ///
    /// Machines whose deadline moved away do not move it; the wake-up that comes too early finds out. So an event
    /// costs time for the keys that it names, not for all.
    wake_at: Option<Moment>,
    /// Machines whose caller waits.
    unanswered: usize,
    /// Machines that have something left to do.
    unfinished: usize,
}

impl<M: Machine> Machines<M> {
    pub(super) fn new() -> Self {
        Machines { machines: Vec::new(), wake_at: None, unanswered: 0, unfinished: 0 }
    }

    /// Adds the machine of the next key.
    pub(super) fn push(&mut self, machine: M) -> KeyIndex {
        self.unanswered += usize::from(machine.is_unanswered());
        self.unfinished += usize::from(machine.deadline().is_some());
        self.wake_by(machine.deadline());
        self.machines.push(machine);
        KeyIndex::at(self.machines.len() - 1)
    }

    /// Tells one key's machine what has happened; false when there is none that listens.
    pub(super) fn step(
        &mut self,
        key: KeyIndex,
        event: M::Event,
        now: Moment,
        actions: &mut M::Actions,
    ) -> bool {
        let Some(machine) = self.machines.get_mut(key.position()) else { return false };
        if machine.deadline().is_none() {
            return false;
        }
        let waited = machine.is_unanswered();
        machine.step(event, now, actions);
        let deadline = machine.deadline();
        self.unanswered -= usize::from(waited && !machine.is_unanswered());
        self.unfinished -= usize::from(deadline.is_none());
        self.wake_by(deadline);
        assert!(self.unanswered <= self.unfinished, "a key without an answer is not finished");
        true
    }

    /// Every key, to be told that time has passed; each sets anew when it must be woken.
    pub(super) fn wake(&mut self) -> impl Iterator<Item = KeyIndex> + use<M> {
        self.wake_at = None;
        (0..self.machines.len()).map(KeyIndex::at)
    }

    /// When they must be told that time has passed, at the latest; `None` when nothing is left to do.
    pub(super) fn deadline(&self) -> Option<Moment> {
        if self.unfinished == 0 { None } else { self.wake_at }
    }

    /// How many have a caller that waits.
    pub(super) fn unanswered(&self) -> usize {
        self.unanswered
    }

    /// What the counts say must be true of the machines.
    pub(super) fn check(&self) {
        let count = |of: fn(&M) -> bool| self.machines.iter().filter(|&machine| of(machine)).count();
        assert_eq!(self.unanswered, count(M::is_unanswered), "keys whose caller waits");
        assert_eq!(self.unfinished, count(|machine| machine.deadline().is_some()), "keys with work left");
        let earliest = self.machines.iter().filter_map(M::deadline).min();
        let woken = |earliest| self.wake_at.is_some_and(|wake_at| wake_at <= earliest);
        assert!(earliest.is_none_or(woken), "a key's deadline would be missed");
    }

    fn wake_by(&mut self, deadline: Option<Moment>) {
        if let Some(deadline) = deadline {
            self.wake_at = Some(self.wake_at.map_or(deadline, |wake_at| wake_at.min(deadline)));
        }
    }
}
