//! The cluster as its agreed documents describe it at one generation.

use serde::{Deserialize, Serialize};

use crate::key::Token;
use crate::node::{Node, NodeId};
use crate::ring::{Partition, Ring};
use crate::routing::PreferenceList;
use crate::store::{FallbackOrder, Store, StoreName};

/// Number of an agreed document: it only grows, and the older one always loses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Generation(pub u64);

/// Everything a client or a node needs to route: nodes, ring and stores of one generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cluster {
    /// The cluster's name; nodes of another cluster are refused.
    pub name: String,
    /// Generation of this document.
    pub generation: Generation,
    /// Requests formed under an older generation than this are refused and handed the newer document (D5).
    pub generation_accepted_min: Generation,
    /// All nodes, sorted by id.
    pub nodes: Vec<Node>,
    /// Who owns which partition.
    pub ring: Ring,
    /// All stores, sorted by name.
    pub stores: Vec<Store>,
}

impl Cluster {
    /// The store with this name.
    pub fn store(&self, name: &str) -> Option<&Store> {
        self.stores.iter().find(|store| store.name.as_str() == name)
    }

    /// The store with this name, as an owned name for lookups elsewhere.
    pub fn store_names(&self) -> impl Iterator<Item = &StoreName> {
        self.stores.iter().map(|store| &store.name)
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
            FallbackOrder::Any => PreferenceList::of(store, partition).spread(&self.nodes, token),
            FallbackOrder::Proximity => PreferenceList::of(store, partition).by_zone(&self.nodes),
        };
        (partition, list)
    }
}
