//! What the explorations of gets and writes share.

use std::time::Duration;

use model::store::{Consistency, NumbersToCome};
use model::{
    Coming, Generation, Moment, NodeId, Partition, PartitionId, PreferenceList, Step, Store, StoreName,
    Unknown, WallMillis,
};

use super::QuorumOptions;

/// Ticks are nanoseconds: enough for machines, which only compare.
pub(super) const HEDGE_AFTER: u64 = 10;
/// Leaves room for two waves of stand-ins, at 10 and at 30.
pub(super) const DEADLINE: u64 = 40;
/// The wall clock at the start of every explored request.
pub(super) const WALL: WallMillis = WallMillis(1000);
/// Generation of every explored request.
pub(super) const GENERATION: Generation = Generation(7);

pub(super) fn at(nanos: u64) -> Moment {
    Moment { nanos }
}

/// Nodes 1.. as replicas, the following ones as fallbacks.
pub(super) fn preference(replicas: u8, fallbacks: u8) -> PreferenceList {
    let consistency = Consistency { replicas, reads_required: 1, writes_required: 1 };
    let store = Store::new(StoreName::new("explored").unwrap(), consistency).unwrap();
    let nodes = (1..=u32::from(replicas + fallbacks)).map(NodeId).collect();
    PreferenceList::of(&store, &Partition::settled(PartitionId(0), 0, nodes))
}

/// A partition that moves from the first of these nodes to the second, with nodes 4 and 5 as fallbacks.
pub(super) fn joint_preference([old, new]: [&[NodeId]; 2]) -> PreferenceList {
    let replicas = old.len() as u8;
    let consistency = Consistency { replicas, reads_required: 1, writes_required: 1 };
    let store = Store::new(StoreName::new("explored").unwrap(), consistency).unwrap();
    let listed = |nodes: &[NodeId]| [nodes, &[NodeId(4), NodeId(5)]].concat();
    let coming = Coming { step: Step::Joint, nodes: listed(new), unknown: Unknown::new() };
    let settled = Partition::settled(PartitionId(0), 0, listed(old));
    PreferenceList::of(&store, &Partition { coming: Some(coming), ..settled })
}

/// The replicas of an explored key: old and new ones, the same while its partition stays put.
pub(super) const SETTLED: [&[NodeId]; 2] = [&[NodeId(1), NodeId(2), NodeId(3)]; 2];
/// One of two replicas gives way to another node.
pub(super) const ONE_OF_TWO_MOVES: [&[NodeId]; 2] = [&[NodeId(1), NodeId(2)], &[NodeId(2), NodeId(3)]];
/// The only replica gives way to another node.
pub(super) const THE_ONLY_ONE_MOVES: [&[NodeId]; 2] = [&[NodeId(1)], &[NodeId(2)]];

/// A store gets a replica more, or has one fewer in the end.
pub(super) const ONE_IS_ADDED: [&[NodeId]; 2] = [&[NodeId(1), NodeId(2)], &[NodeId(1), NodeId(2), NodeId(3)]];
pub(super) const ONE_IS_TAKEN: [&[NodeId]; 2] = [&[NodeId(1), NodeId(2), NodeId(3)], &[NodeId(1), NodeId(2)]];

/// The preference list of an explored key.
pub(super) fn preference_of(sets: [&[NodeId]; 2]) -> PreferenceList {
    match sets {
        SETTLED => preference(3, 2),
        [old, new] if old.len() != new.len() => changing_preference(old.len(), new.len()),
        _ => joint_preference(sets),
    }
}

/// A store changes from this many replicas to this many others, over nodes 1 to 5.
fn changing_preference(old: usize, new: usize) -> PreferenceList {
    let numbers =
        |replicas: usize| Consistency { replicas: replicas as u8, reads_required: 1, writes_required: 1 };
    let mut store = Store::new(StoreName::new("explored").unwrap(), numbers(old)).unwrap();
    let (step, consistency) = (Step::Joint, numbers(new));
    store.coming = Some(NumbersToCome { step, consistency, unknown: Unknown::new() });
    PreferenceList::of(&store, &Partition::settled(PartitionId(0), 0, (1..=5).map(NodeId).collect()))
}

/// How many nodes of a set count, with what the set is spared, in the set where that is less.
pub(super) fn least(sets: [&[NodeId]; 2], spared: [u8; 2], counts: impl Fn(NodeId) -> bool) -> usize {
    let counting = |set: &[NodeId]| set.iter().filter(|&&node| counts(node)).count();
    (0..2).map(|set| counting(sets[set]) + usize::from(spared[set])).min().unwrap()
}

pub(super) fn options(required: u8, preferred: u8, sloppy: bool) -> QuorumOptions {
    QuorumOptions {
        required,
        preferred,
        sloppy,
        held: 0,
        spared: Default::default(),
        hedge_after: Duration::from_nanos(HEDGE_AFTER),
        deadline: at(DEADLINE),
        wall: WALL,
        generation: GENERATION,
        since: GENERATION,
    }
}

/// What an exploration may do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Happening {
    /// The node answers or acknowledges.
    Acknowledges(NodeId),
    /// The node refuses: certainly not applied.
    Refuses(NodeId),
    /// No reply will come: may have been applied.
    Loses(NodeId),
    /// The node knows a newer ring.
    IsAhead(NodeId),
    /// The node takes what was written back to it in this round.
    Stores(NodeId, u8),
    /// Whether the node takes what was written back to it in this round will not be known.
    LosesStore(NodeId, u8),
    /// The node knows a newer ring than that under which something was written back to it in this round.
    IsAheadStoring(NodeId, u8),
    /// The clock reaches this time.
    Elapses(Moment),
}

/// Small numbers, packed into one that names a state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Packed(u128);

impl Packed {
    /// Appends a number of at most `bits` bits.
    pub(super) fn push(&mut self, number: u64, bits: u32) {
        assert!(number < 1 << bits && self.0.leading_zeros() >= bits, "a state must fit its name");
        self.0 = self.0 << bits | u128::from(number);
    }
}

/// `Err` with the reason unless the condition holds.
pub(super) fn ensure(condition: bool, reason: &str) -> Result<(), String> {
    if condition { Ok(()) } else { Err(reason.to_owned()) }
}
