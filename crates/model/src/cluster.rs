//! The cluster as its agreed documents describe it at one generation.

mod buckets;
mod change;
mod check;
mod document;
mod numbers;
mod stores;
mod users;

use std::borrow::Cow;
use std::fmt;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Unknown;
use crate::access::Users;
use crate::artifacts::ReadOnlyStore;
use crate::generation::Generation;
use crate::key::Token;
use crate::node::{Node, NodeId};
use crate::ring::{Partition, Ring};
use crate::routing::{PreferenceList, replicas_to_come};
use crate::store::{FallbackOrder, Store, StoreName};

pub use check::ClusterError;
pub use document::{FORM, FORM_CLOSED, FORM_GOLDEN, FORM_MAX, FORM_PLACED, refused_form};
pub use numbers::{Accepted, NumbersError};
pub use stores::{ArtifactsError, CreateStoreError};

/// An order that a document carries out: its number, and when it was given, in milliseconds since 1970. Numbers begin anew
/// where orders were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ordered {
    /// Its number.
    pub order: u64,
    /// When it was given.
    pub given_ms: u64,
}

/// Whether one cluster may be called by both names ([`Cluster::called`]): where one of them has no id, the name tells.
pub fn is_one_cluster(one: &str, other: &str) -> bool {
    let is_id = |id: &str| id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let parts = |called| match str::rsplit_once(called, '/') {
        Some((name, id)) if is_id(id) => (name, Some(id)),
        _ => (called, None),
    };
    let ((name, id), (other_name, other_id)) = (parts(one), parts(other));
    name == other_name && id.zip(other_id).is_none_or(|(id, other)| id == other)
}

/// What tells a cluster from all others: drawn when it is founded, and never changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterId(pub u64);

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl Serialize for ClusterId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ClusterId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ClusterId, D::Error> {
        let text = String::deserialize(deserializer)?;
        u64::from_str_radix(&text, 16).map(ClusterId).map_err(D::Error::custom)
    }
}

/// Everything a client or a node needs to route: nodes, ring and stores of one generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// The cluster's name; nodes of another cluster are refused.
    pub name: String,
    /// What tells it from other clusters of that name. One that an earlier program founded has none.
    pub id: Option<ClusterId>,
    /// Generation of this document.
    pub generation: Generation,
    /// Requests formed under an older generation than this are refused and handed the newer document (D5), whatever
    /// their partition.
    pub generation_accepted_min: Generation,
    /// The generation in which the set of nodes changed last; what depends on no more than that set is keyed by it.
    pub nodes_changed: Generation,
    /// All nodes, sorted by id.
    pub nodes: Vec<Node>,
    /// Who owns which partition.
    pub ring: Ring,
    /// How many buckets the token space has, a power of two that never changes.
    pub buckets: u32,
    /// All stores that take writes, sorted by name.
    pub stores: Vec<Store>,
    /// All read-only stores, sorted by name. Programs that do not know them pass over them.
    pub read_only: Vec<ReadOnlyStore>,
    /// Who may use the cluster, and for what. Without users, anyone may.
    pub users: Users,
    /// The order that was carried out last by a document: whoever finds it without an answer answers it, and does nothing
    /// twice.
    pub ordered: Option<Ordered>,
    /// Fields of a later program.
    pub unknown: Unknown,
}

impl Cluster {
    /// A cluster as it is first published: of generation 1, and with as few buckets as its partitions can be made of.
    pub fn new(name: impl Into<String>, nodes: Vec<Node>, ring: Ring, stores: Vec<Store>) -> Self {
        Cluster {
            name: name.into(),
            id: None,
            generation: Generation(1),
            generation_accepted_min: Generation(1),
            nodes_changed: Generation(1),
            nodes,
            buckets: ring.buckets_min(),
            ring,
            stores,
            read_only: Vec::new(),
            users: Users::default(),
            ordered: None,
            unknown: Unknown::new(),
        }
    }

    /// What it is called where clusters are told apart: the name, and the id behind a slash if it has one.
    pub fn called(&self) -> String {
        match self.id {
            Some(id) => format!("{}/{id}", self.name),
            None => self.name.clone(),
        }
    }

    /// Whether the other document is of this cluster, too. Of one without an id the name tells.
    pub fn is_also(&self, other: &Cluster) -> bool {
        let is_other = self.id.zip(other.id).is_some_and(|(own, other)| own != other);
        self.name == other.name && !is_other
    }

    /// Whether it may be called so by somebody who belongs to it, and perhaps does not know its id.
    pub fn may_be(&self, called: &str) -> bool {
        is_one_cluster(&self.called(), called)
    }

    /// Requests for a store's keys in this partition that were formed under an older generation are refused.
    pub fn accepted_since(&self, store: &Store, partition: &Partition) -> Generation {
        partition.since.max(store.since).max(self.generation_accepted_min)
    }

    /// Since which generation the present step of this partition's replicas is taken, whether the partition moves or a
    /// store changes: what nodes did before tells nothing of it.
    pub fn stepped_since(&self, partition: &Partition) -> Generation {
        self.changing().map_or(partition.since, |store| partition.since.max(store.since))
    }

    /// The store whose numbers change. Only one does at a time.
    pub fn changing(&self) -> Option<&Store> {
        self.stores.iter().find(|store| store.coming.is_some())
    }

    /// N of each store, of either kind.
    pub(crate) fn replica_counts(&self) -> impl Iterator<Item = usize> {
        let mutable = self.stores.iter().map(Store::replicas_max);
        mutable.chain(self.read_only.iter().map(|store| store.replicas)).map(usize::from)
    }

    /// How each store of either kind is routed.
    pub fn definitions(&self) -> Vec<Store> {
        let read_only = self.read_only.iter().map(ReadOnlyStore::as_store);
        self.stores.iter().cloned().chain(read_only).collect()
    }

    /// N of the store that has most replicas.
    pub fn replicas_max(&self) -> usize {
        self.replica_counts().max().unwrap_or(1)
    }

    /// The part of a partition's list that holds data for some store.
    pub fn replicas_in<'a>(&self, list: &'a [NodeId]) -> &'a [NodeId] {
        &list[..self.replicas_max().min(list.len())]
    }

    /// The read-only store with this name.
    pub fn read_only(&self, name: &str) -> Option<&ReadOnlyStore> {
        self.read_only.iter().find(|store| store.name.as_str() == name)
    }

    /// The store with this name that takes writes.
    pub fn store(&self, name: &str) -> Option<&Store> {
        self.stores.iter().find(|store| store.name.as_str() == name)
    }

    /// How requests of a store of either kind are routed.
    pub fn definition(&self, name: &str) -> Option<Cow<'_, Store>> {
        let read_only = || self.read_only(name).map(|store| Cow::Owned(store.as_store()));
        self.store(name).map(Cow::Borrowed).or_else(read_only)
    }

    /// The names of all stores, of either kind.
    pub fn store_names(&self) -> impl Iterator<Item = &StoreName> {
        self.stores.iter().map(|store| &store.name).chain(self.read_only.iter().map(|store| &store.name))
    }

    /// What is known about a node.
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.iter().find(|node| node.id == id)
    }

    /// The partition of a token and the preference list of a store for it.
    pub fn route(&self, store: &Store, token: Token) -> (&Partition, PreferenceList) {
        let partition = self.ring.partition(token);
        let list = match store.fallbacks {
            FallbackOrder::Consistent => PreferenceList::of(store, partition),
            FallbackOrder::Any => {
                let entering = replicas_to_come(store, partition).unwrap_or_default();
                PreferenceList::of(store, partition).spread(&self.nodes, entering, token)
            }
            FallbackOrder::Proximity => {
                let entering = replicas_to_come(store, partition).unwrap_or_default();
                PreferenceList::of(store, partition).by_zone(&self.nodes, entering)
            }
        };
        (partition, list)
    }
}

#[cfg(test)]
mod tests {
    use super::is_one_cluster;

    #[test]
    fn clusters_of_one_name_are_told_apart_by_their_ids_where_both_have_one() {
        let (first, second) = ("dev/00000000000000aa", "dev/00000000000000bb");
        assert!(is_one_cluster(first, first) && !is_one_cluster(first, second));
        assert!(is_one_cluster("dev", first) && is_one_cluster(first, "dev") && is_one_cluster("dev", "dev"));
        assert!(!is_one_cluster("shop", first) && !is_one_cluster("dev/shop", "dev/cart"));
    }
}
