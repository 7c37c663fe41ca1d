//! What must hold of a whole cluster document, whoever wrote it.
//!
//! A node that is handed a document which does not hold together stays with its copy. What a list of partitions must
//! be by itself, [`Ring::new`](crate::Ring::new) checks.

use std::collections::BTreeSet;

use thiserror::Error;

use super::Cluster;
use super::buckets::is_bucket_count;
use crate::artifacts::ReadOnlyError;
use crate::generation::Generation;
use crate::limits::{NODES_MAX, PARTITIONS_MAX};
use crate::node::NodeId;
use crate::placement::PlacementError;
use crate::ring::{Partition, PartitionId, Step};
use crate::store::{StoreError, StoreName};

/// Why a cluster document makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ClusterError {
    /// A cluster has 1 to [`NODES_MAX`] nodes.
    #[error("a cluster has 1 to {NODES_MAX} nodes, this document lists {count}")]
    Nodes {
        /// How many were given.
        count: usize,
    },
    /// Node ids are unique.
    #[error("the document lists node {node} twice")]
    NodeTwice {
        /// The offender.
        node: NodeId,
    },
    /// Store names are unique.
    #[error("the document defines store {} twice", .store.as_str())]
    StoreTwice {
        /// The offender.
        store: StoreName,
    },
    /// A store's N, R and W do not fit each other.
    #[error("store {}: {error}", .store.as_str())]
    Store {
        /// The offender.
        store: StoreName,
        /// What is wrong.
        error: StoreError,
    },
    /// A store's keys cannot lie so.
    #[error("store {}: {error}", .store.as_str())]
    Placement {
        /// The offender.
        store: StoreName,
        /// What is wrong.
        error: PlacementError,
    },
    /// Numbers of one store change at a time, and none while a partition moves.
    #[error("store {} changes its numbers while {beside}", .store.as_str())]
    Beside {
        /// The store.
        store: StoreName,
        /// What else changes.
        beside: String,
    },
    /// A read-only store contradicts itself.
    #[error("read-only store {}: {error}", .store.as_str())]
    ReadOnly {
        /// The offender.
        store: StoreName,
        /// What is wrong.
        error: ReadOnlyError,
    },
    /// The ring may only name nodes that the document lists.
    #[error("partition {partition} lists node {node}, which the document does not know")]
    NodeUnknown {
        /// The partition.
        partition: PartitionId,
        /// The node.
        node: NodeId,
    },
    /// A next list must have N nodes for each store.
    #[error(
        "partition {partition} moves to {listed} nodes, and store {} needs {replicas} replicas",
        .store.as_str()
    )]
    TooFew {
        /// The partition.
        partition: PartitionId,
        /// How many its next list has.
        listed: usize,
        /// The store that needs more.
        store: StoreName,
        /// Its N, or the number of nodes when that is less.
        replicas: usize,
    },
    /// The token space has a power of two buckets.
    #[error("the token space has {buckets} buckets; their number is a power of two up to {PARTITIONS_MAX}")]
    Buckets {
        /// How many were given.
        buckets: u32,
    },
    /// A partition is made of whole buckets.
    #[error("partition {partition} does not begin where one of the {buckets} buckets begins")]
    OffTheGrid {
        /// The partition.
        partition: PartitionId,
        /// How many buckets there are.
        buckets: u32,
    },
    /// No number in a document is from the future.
    #[error("generation {} is named for {what}, and the document is only of generation {}", .named.0, .own.0)]
    Future {
        /// What it is named for.
        what: String,
        /// The number.
        named: Generation,
        /// The document's own.
        own: Generation,
    },
}

impl Cluster {
    /// Checks what must hold of the whole document. Every document that was read has passed.
    ///
    /// # Errors
    /// With the first thing that does not hold.
    pub fn check(&self) -> Result<(), ClusterError> {
        let count = self.nodes.len();
        if !(1..=NODES_MAX).contains(&count) {
            return Err(ClusterError::Nodes { count });
        }
        let mut nodes = BTreeSet::new();
        if let Some(twice) = self.nodes.iter().find(|node| !nodes.insert(node.id)) {
            return Err(ClusterError::NodeTwice { node: twice.id });
        }
        let mut names = BTreeSet::new();
        for store in &self.stores {
            if !names.insert(&store.name) {
                return Err(ClusterError::StoreTwice { store: store.name.clone() });
            }
            let invalid = |error| ClusterError::Store { store: store.name.clone(), error };
            store.consistency.validate().map_err(invalid)?;
            store.numbers_to_come().validate().map_err(invalid)?;
            let misplaced = |error| ClusterError::Placement { store: store.name.clone(), error };
            store.placement.check(self.buckets).map_err(misplaced)?;
            if store.since > self.generation {
                self.check_past(&format!("store {}", store.name), store.since)?;
            }
        }
        self.check_changing()?;
        for store in &self.read_only {
            if !names.insert(&store.name) {
                return Err(ClusterError::StoreTwice { store: store.name.clone() });
            }
            let invalid = |error| ClusterError::ReadOnly { store: store.name.clone(), error };
            store.check().map_err(invalid)?;
        }
        self.check_buckets()?;
        self.check_past("the oldest requests that are accepted", self.generation_accepted_min)?;
        self.check_past("the set of nodes", self.nodes_changed)?;
        self.ring.partitions().iter().try_for_each(|partition| self.check_partition(partition, &nodes))
    }

    /// Each store has at most two sets of replicas for a partition.
    fn check_changing(&self) -> Result<(), ClusterError> {
        let mut changing = self.stores.iter().filter(|store| store.coming.is_some());
        let Some(store) = changing.next() else { return Ok(()) };
        let moving = || self.ring.partitions().iter().find(|partition| partition.coming.is_some());
        let other = changing.next().map(|other| format!("store {} does, too", other.name));
        match other.or_else(|| moving().map(|partition| format!("partition {} moves", partition.id))) {
            Some(beside) => Err(ClusterError::Beside { store: store.name.clone(), beside }),
            None => Ok(()),
        }
    }

    fn check_buckets(&self) -> Result<(), ClusterError> {
        let buckets = self.buckets;
        if !is_bucket_count(buckets) {
            return Err(ClusterError::Buckets { buckets });
        }
        match self.off_the_grid() {
            Some(partition) => Err(ClusterError::OffTheGrid { partition: partition.id, buckets }),
            None => Ok(()),
        }
    }

    fn check_past(&self, what: &str, named: Generation) -> Result<(), ClusterError> {
        if named <= self.generation {
            return Ok(());
        }
        Err(ClusterError::Future { what: what.to_owned(), named, own: self.generation })
    }

    fn check_partition(&self, partition: &Partition, nodes: &BTreeSet<NodeId>) -> Result<(), ClusterError> {
        let id = partition.id;
        if partition.since > self.generation {
            self.check_past(&format!("partition {id}"), partition.since)?;
        }
        let coming = partition.coming.as_ref().map_or(&[][..], |coming| &coming.nodes);
        let named = partition.nodes.iter().chain(coming).chain(&partition.owner);
        if let Some(&node) = named.into_iter().find(|node| !nodes.contains(node)) {
            return Err(ClusterError::NodeUnknown { partition: id, node });
        }
        // One that goes back to fewer nodes than it has been given is on its way already.
        if coming.is_empty() || partition.step() == Some(Step::ReadingNew) {
            return Ok(());
        }
        for (name, replicas) in self.store_names().zip(self.replica_counts()) {
            let replicas = replicas.min(nodes.len());
            if coming.len() < replicas {
                let (listed, store) = (coming.len(), name.clone());
                return Err(ClusterError::TooFew { partition: id, listed, store, replicas });
            }
        }
        Ok(())
    }
}
