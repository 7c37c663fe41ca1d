//! What a node says of partitions that move: how far it is with those that it enters, and what it still holds of others.
//!
//! One message maps to [`NodeFacts`], by which `protocol::rebalance::steps` decides; both ways are written here.

use std::collections::BTreeMap;

use model::{Generation, NodeId, PartitionId, StoreName};
use protocol::rebalance::{Entered, NodeFacts};

use super::store_ref::StoreRef;
use crate::codec::fields;

fields! {
    /// Asks a node how far it is with what moves.
    pub struct MovesGet {}
}

fields! {
    /// How far a node is with what moves.
    pub struct MovesGot {
        /// The incarnation under which it says all of this.
        pub incarnation: u64,
        /// It has adopted the document of this generation: that is durable here, and nothing that was admitted under an
        /// older one is still being carried out.
        pub adopted: Generation,
        /// Partitions that it enters.
        pub entered: Vec<PartitionEntered>,
        /// Records that it holds of partitions that are not its own.
        pub leftovers: Vec<Leftover>,
        /// Hints that it holds.
        pub hints: u64,
    }
}

fields! {
    /// How far a node is with a partition that it enters.
    pub struct PartitionEntered {
        /// Which.
        pub partition: PartitionId,
        /// It had adopted the document of this generation when it said so, and what follows was done since.
        pub generation: Generation,
        /// Whether it has brought in all that it must, for each store of which it becomes a replica.
        pub whole: bool,
        /// By store: the old replicas that it has merged with, each of which was whole and had adopted `generation`.
        pub merged: Vec<(StoreRef, Vec<NodeId>)>,
        /// Records that it has brought in since its process started.
        pub records: u64,
        /// Bytes that travelled for them.
        pub bytes: u64,
    }
}

fields! {
    /// Records of a partition that is not this node's own, which it gives back and drops.
    pub struct Leftover {
        /// Of which store.
        pub store: StoreRef,
        /// Of which partition, as the node's files name it.
        pub partition: PartitionId,
        /// How many.
        pub records: u64,
    }
}

impl PartitionEntered {
    /// As a message says it.
    pub fn of(partition: PartitionId, entered: &Entered, (records, bytes): (u64, u64)) -> Self {
        let merged = entered.merged.iter();
        let merged = merged.map(|(store, nodes)| (StoreRef::from(store), nodes.iter().copied().collect()));
        let Entered { generation, whole, .. } = *entered;
        PartitionEntered { partition, generation, whole, merged: merged.collect(), records, bytes }
    }

    /// What a step may depend on; a store that can have no such name is left out.
    pub fn entered(&self, incarnation: u64) -> Entered {
        let merged = self.merged.iter().filter_map(|(store, nodes)| {
            Some((StoreName::new(store.as_str()).ok()?, nodes.iter().copied().collect()))
        });
        let PartitionEntered { generation, whole, .. } = *self;
        Entered { incarnation, generation, whole, merged: merged.collect() }
    }
}

impl MovesGot {
    /// What a step may depend on. The node's present incarnation is the one that it says; whoever knows better, because
    /// the node is registered under another one, says that instead.
    pub fn facts(&self) -> NodeFacts {
        let entered: BTreeMap<PartitionId, Entered> =
            self.entered.iter().map(|told| (told.partition, told.entered(self.incarnation))).collect();
        NodeFacts {
            incarnation: Some(self.incarnation),
            adopted: Some((self.incarnation, self.adopted)),
            gone: false,
            entered,
        }
    }
}
