//! Whether the numbers of a store may change: N, R and W, while it is used.
//!
//! What may be refused by the document alone is refused here, before a plan is made and again when it begins. Which step
//! may follow is decided elsewhere: `protocol::rebalance`.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::Cluster;
use crate::node::{NodeId, Role, Zone};
use crate::ring::{PartitionId, Step};
use crate::store::{Consistency, Store, StoreError, StoreName};

/// Why the numbers of a store cannot change.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[serde(tag = "code", content = "facts", rename_all = "kebab-case")]
pub enum NumbersError {
    /// There is no store of this name that takes writes.
    #[error("the cluster has no store {store:?} that takes writes")]
    NoStore {
        /// The name as given.
        store: String,
    },
    /// It has these numbers.
    #[error("store {store} has N={}, R={} and W={} already", .numbers.replicas, .numbers.reads_required, .numbers.writes_required)]
    Same {
        /// The store.
        store: StoreName,
        /// Its numbers.
        numbers: Consistency,
    },
    /// A store changes already.
    #[error("store {store} changes its numbers already (step {step}); one store changes at a time")]
    Changes {
        /// That store.
        store: StoreName,
        /// How far it has come.
        step: Step,
    },
    /// Partitions are on their way.
    #[error("partition {partition} is moving (step {step}), and no store changes meanwhile")]
    Moves {
        /// One of them.
        partition: PartitionId,
        /// How far it has come.
        step: Step,
    },
    /// There are fewer nodes that stay than the store wants replicas.
    #[error("the store wants {replicas} replicas of each key, and the cluster has {nodes} nodes that stay")]
    Nodes {
        /// The next N.
        replicas: u8,
        /// Nodes that do not leave.
        nodes: usize,
    },
    /// Some partition lists fewer nodes than the store wants replicas.
    #[error(
        "the store wants {replicas} replicas of each key, and partition {partition} lists {listed} nodes"
    )]
    Listed {
        /// The next N.
        replicas: u8,
        /// The partition with the shortest list.
        partition: PartitionId,
        /// How many nodes it lists.
        listed: usize,
    },
    /// The new replicas of some partition lie in fewer zones than they could.
    #[error(
        "the {replicas} replicas of partition {partition} would lie in {zones} zones, and could lie in {possible}"
    )]
    Zones {
        /// The next N.
        replicas: u8,
        /// The partition.
        partition: PartitionId,
        /// In how many zones its new replicas lie.
        zones: usize,
        /// In how many they could.
        possible: usize,
    },
    /// At present each get meets each acknowledged write, and by the new numbers it need not.
    #[error("with N={}, R={} and W={} a get may miss an acknowledged write, because R + W is not above N", .numbers.replicas, .numbers.reads_required, .numbers.writes_required)]
    Weaker {
        /// The next numbers.
        numbers: Consistency,
    },
    /// The numbers do not fit each other.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What an operator accepts of a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accepted {
    /// Replicas in fewer zones than they could lie in.
    pub fewer_zones: bool,
    /// Gets that may miss acknowledged writes, where they could not before.
    pub weaker: bool,
}

impl Cluster {
    /// Checks that the numbers of this store may begin to change to these; the store.
    ///
    /// # Errors
    /// With the first reason why they may not.
    pub fn check_numbers(
        &self,
        name: &str,
        to: Consistency,
        accepted: Accepted,
    ) -> Result<&Store, NumbersError> {
        let store = self.store(name).ok_or_else(|| NumbersError::NoStore { store: name.to_owned() })?;
        to.validate()?;
        if let Some((store, step)) = self.changing().and_then(|store| Some((store, store.step()?))) {
            return Err(NumbersError::Changes { store: store.name.clone(), step });
        }
        let moving = |partition: &crate::Partition| Some((partition.id, partition.step()?));
        if let Some((partition, step)) = self.ring.partitions().iter().find_map(moving) {
            return Err(NumbersError::Moves { partition, step });
        }
        if store.consistency == to {
            return Err(NumbersError::Same { store: store.name.clone(), numbers: to });
        }
        let replicas = to.replicas;
        let nodes = self.nodes.iter().filter(|node| node.role != Role::Leaving && !node.gone).count();
        if usize::from(replicas) > nodes {
            return Err(NumbersError::Nodes { replicas, nodes });
        }
        let shortest = self.ring.partitions().iter().min_by_key(|partition| partition.nodes.len());
        if let Some(shortest) = shortest.filter(|shortest| shortest.nodes.len() < replicas.into()) {
            let (partition, listed) = (shortest.id, shortest.nodes.len());
            return Err(NumbersError::Listed { replicas, partition, listed });
        }
        if !accepted.fewer_zones {
            self.check_zones(replicas)?;
        }
        if store.consistency.quorums_intersect() && !to.quorums_intersect() && !accepted.weaker {
            return Err(NumbersError::Weaker { numbers: to });
        }
        Ok(store)
    }

    /// Checks that this many replicas of each partition lie in as many zones as they could.
    fn check_zones(&self, replicas: u8) -> Result<(), NumbersError> {
        let staying = self.nodes.iter().filter(|node| node.role != Role::Leaving && !node.gone);
        let all: BTreeSet<&Zone> = staying.map(|node| &node.zone).collect();
        let possible = all.len().min(replicas.into());
        let zone = |id: &NodeId| self.node(*id).map(|node| &node.zone);
        for partition in self.ring.partitions() {
            let first = partition.nodes.iter().take(replicas.into());
            let zones = first.filter_map(zone).collect::<BTreeSet<_>>().len();
            if zones < possible {
                return Err(NumbersError::Zones { replicas, partition: partition.id, zones, possible });
            }
        }
        Ok(())
    }
}
