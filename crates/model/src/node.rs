//! Nodes and zones: who stores, and which of them fail together.

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::Unknown;

/// One storage process. Given once, never reused for another data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(pub u32);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n{}", self.0)
    }
}

/// One failure domain: a rack, a room, a site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Zone(pub String);

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How much of the data a node shall carry, compared with others: one of weight 200 carries twice what one of weight
/// 100 does. Never 0: a node that shall carry nothing is [`Role::Leaving`] or [`Role::Standby`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Weight(u32);

/// Why a number is no weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a node's weight is 1 to {}, got {given} (100 is an ordinary node)", Weight::MAX.0)]
pub struct WeightError {
    /// The number as given.
    pub given: u32,
}

impl Weight {
    /// The largest: shares of small nodes beside it still round to whole partitions.
    pub const MAX: Weight = Weight(100_000);

    /// Checks the bounds.
    pub fn new(weight: u32) -> Result<Self, WeightError> {
        if (1..=Self::MAX.0).contains(&weight) {
            Ok(Weight(weight))
        } else {
            Err(WeightError { given: weight })
        }
    }

    /// The number.
    pub fn get(self) -> u32 {
        self.0
    }
}

impl Default for Weight {
    /// An ordinary node: 100.
    fn default() -> Self {
        Weight(100)
    }
}

impl TryFrom<u32> for Weight {
    type Error = WeightError;
    fn try_from(weight: u32) -> Result<Self, WeightError> {
        Weight::new(weight)
    }
}

impl From<Weight> for u32 {
    fn from(weight: Weight) -> u32 {
        weight.0
    }
}

/// What the cluster wants of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// It holds its share of the data.
    #[default]
    Serving,
    /// It gives away what it holds, takes nothing new, and is removed when it holds nothing.
    Leaving,
    /// It is a member without data: it takes part in collection rounds, may hold hints, and is given a share when an
    /// operator says so.
    Standby,
}

/// What everybody knows about one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Its id.
    pub id: NodeId,
    /// Its failure domain.
    pub zone: Zone,
    /// `host:port` of the native protocol.
    pub native: String,
    /// `host:port` of the RESP front door, if it has one.
    pub resp: Option<String>,
    /// `host:port` of the HTTP front door, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<String>,
    /// Its share of the data, compared with others. Default: 100.
    #[serde(default, skip_serializing_if = "is_default")]
    pub weight: Weight,
    /// What the cluster wants of it. Default: [`Role::Serving`].
    #[serde(default, skip_serializing_if = "is_default")]
    pub role: Role,
    /// It will never answer again: an operator said so, and it answered nobody. Moves go on without it, and its process
    /// does not start any more. Such a node is [`Role::Leaving`], too. Default: no.
    #[serde(default, skip_serializing_if = "is_default")]
    pub gone: bool,
    /// It is called with TLS, never without: it said so when it registered or came to another address. Default: no.
    #[serde(default, skip_serializing_if = "is_default")]
    pub tls: bool,
    /// Fields of a later program.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// The prefix of the `host:port` of a process that is called with TLS.
pub const TLS_SCHEME: &str = "tls://";

impl Node {
    /// An ordinary node: weight 100, serving, without HTTP.
    pub fn new(id: NodeId, zone: Zone, native: impl Into<String>, resp: Option<String>) -> Self {
        let (http, weight, role, gone, tls, unknown) = Default::default();
        Node { id, zone, native: native.into(), resp, http, weight, role, gone, tls, unknown }
    }

    /// Where its native protocol is called, as a network takes it: with [`TLS_SCHEME`] where it must be.
    pub fn dialed(&self) -> String {
        let scheme = if self.tls { TLS_SCHEME } else { "" };
        format!("{scheme}{}", self.native)
    }
}

impl Node {
    /// The address of this node that another of these nodes has, if one has, and which.
    pub fn address_taken<'a>(&self, nodes: impl IntoIterator<Item = &'a Node>) -> Option<(&str, NodeId)> {
        let own = [Some(&self.native), self.resp.as_ref(), self.http.as_ref()];
        nodes.into_iter().filter(|other| other.id != self.id).find_map(|other| {
            let theirs = [Some(&other.native), other.resp.as_ref(), other.http.as_ref()];
            let taken = own.into_iter().flatten().find(|address| theirs.contains(&Some(*address)));
            taken.map(|address| (address.as_str(), other.id))
        })
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// What speaks against a node's being dead.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "code", content = "facts", rename_all = "kebab-case")]
pub enum LifeSign {
    /// It is registered with the coordination service.
    Registered,
    /// A process listens at its address, if only one that is stopped.
    Listens,
    /// No other node says whether it hears from it.
    NoWitness,
    /// Another node does not say whether it hears from it.
    WitnessSilent {
        /// That one.
        witness: NodeId,
        /// Why it was not heard.
        detail: String,
    },
    /// Another node heard from it a moment ago.
    Heard {
        /// That one.
        witness: NodeId,
        /// Seconds since.
        seconds: u64,
        /// Seconds of silence that are needed.
        needed: u64,
    },
    /// Another node has not heard from it, but has only just started.
    WitnessNew {
        /// That one.
        witness: NodeId,
        /// For how many seconds it runs.
        seconds: u64,
        /// Seconds of silence that are needed.
        needed: u64,
    },
}
