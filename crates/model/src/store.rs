//! Stores: named collections of keys with their own replication, quorums and resolver.

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::Unknown;
use crate::generation::Generation;
use crate::key::Token;
use crate::limits::{SIBLINGS_MAX, STORE_NAME_BYTES_MAX, VALUE_BYTES_MAX};
use crate::placement::Placement;
use crate::ring::Step;

/// A store's name: 1 to 64 bytes of `a-z 0-9 _ -`, starting with a letter.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct StoreName(String);

impl StoreName {
    /// Checks the characters and the length.
    pub fn new(name: impl Into<String>) -> Result<Self, StoreError> {
        let name = name.into();
        let well_formed = name.len() <= STORE_NAME_BYTES_MAX
            && name.starts_with(|c: char| c.is_ascii_lowercase())
            && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'-');
        if well_formed { Ok(StoreName(name)) } else { Err(StoreError::Name { name }) }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for StoreName {
    type Error = StoreError;
    fn try_from(name: String) -> Result<Self, StoreError> {
        StoreName::new(name)
    }
}

impl From<StoreName> for String {
    fn from(name: StoreName) -> String {
        name.0
    }
}

impl fmt::Display for StoreName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a store does with concurrent versions of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resolver {
    /// Keep them all; the application merges.
    Siblings,
    /// Keep the one with the greatest hybrid logical timestamp, ties by actor.
    LastWriteWins,
}

/// In which order a store turns to the nodes that are no replicas of a key, when replicas are down: who takes the
/// hints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FallbackOrder {
    /// As the partition lists them: the next on the ring. Hints of one partition gather at one node.
    #[default]
    Consistent,
    /// Every key begins at another node, so that all nodes together stand in for one that is down.
    Any,
    /// Nodes in the zone of the replica that is down first, so that a copy stays in that zone.
    Proximity,
}

/// What a get does when the replicas that answered it disagree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reads {
    /// It answers what they hold together, and repairs those that are behind afterwards. Of a write that nobody
    /// acknowledged, a later get may then know nothing.
    #[default]
    Fast,
    /// It writes back what they hold together, until so many replicas hold it that no later get misses it, and
    /// answers then. Reads never go backwards, and what was read is as safe as what was acknowledged.
    Monotonic,
}

/// How many replicas a store has and how many must answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Consistency {
    /// N: replicas of each key.
    pub replicas: u8,
    /// R: replicas that must answer a get.
    pub reads_required: u8,
    /// W: replicas (or, sloppily, fallbacks) that must acknowledge a put or delete.
    pub writes_required: u8,
}

/// One store as the cluster's documents define it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Store {
    /// Its name.
    pub name: StoreName,
    /// N, R and W.
    pub consistency: Consistency,
    /// What happens to concurrent versions.
    pub resolver: Resolver,
    /// Whether fallbacks may acknowledge for replicas that are down.
    pub sloppy: bool,
    /// Who stands in for replicas that are down. Default: [`FallbackOrder::Consistent`].
    pub fallbacks: FallbackOrder,
    /// What a get does when replicas disagree. Default: [`Reads::Fast`].
    pub reads: Reads,
    /// Where its keys lie. Settled when it is created.
    #[serde(default, skip_serializing_if = "Placement::is_hash")]
    pub placement: Placement,
    /// Largest value in bytes.
    pub value_bytes_max: usize,
    /// Most concurrent versions of one key.
    pub siblings_max: usize,
    /// Requests for it that were formed under an older generation are refused, because its numbers changed then. 0 as
    /// long as they never did. Never above the document's generation.
    #[serde(default, skip_serializing_if = "is_first")]
    pub since: Generation,
    /// The numbers that it changes to, while it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coming: Option<NumbersToCome>,
    /// Fields of a later program.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// The numbers that a store changes to, and how far all its partitions have come. No list changes: the old replicas of a
/// partition are the first N of its list, the new ones the first of them by these numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumbersToCome {
    /// How far.
    pub step: Step,
    /// What becomes [`Store::consistency`].
    pub consistency: Consistency,
    /// Fields of a later program.
    #[serde(flatten)]
    pub unknown: Unknown,
}

fn is_first(generation: &Generation) -> bool {
    *generation == Generation::default()
}

/// What makes a store definition unusable.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[serde(tag = "code", content = "facts", rename_all = "kebab-case")]
pub enum StoreError {
    /// The name has other characters, or too many.
    #[error("store name {name:?} must be 1 to {STORE_NAME_BYTES_MAX} of a-z 0-9 _ - and start with a letter")]
    Name {
        /// The name as given.
        name: String,
    },
    /// R or W is zero or above N, or N is zero.
    #[error("store needs 1 <= R <= N and 1 <= W <= N, got N={replicas} R={reads} W={writes}")]
    Consistency {
        /// N.
        replicas: u8,
        /// R.
        reads: u8,
        /// W.
        writes: u8,
    },
}

impl Store {
    /// A store with the default limits, sloppy quorums and last-write-wins.
    pub fn new(name: StoreName, consistency: Consistency) -> Result<Self, StoreError> {
        consistency.validate()?;
        Ok(Store {
            name,
            consistency,
            resolver: Resolver::LastWriteWins,
            sloppy: true,
            fallbacks: FallbackOrder::default(),
            reads: Reads::default(),
            placement: Placement::default(),
            value_bytes_max: VALUE_BYTES_MAX,
            siblings_max: SIBLINGS_MAX,
            since: Generation::default(),
            coming: None,
            unknown: Unknown::new(),
        })
    }
}

impl Store {
    /// Where a key of this store falls on the ring.
    pub fn token(&self, key: &[u8]) -> Token {
        self.placement.token(key)
    }

    /// Replicas that must hold what a get answers before it answers, in a set of replicas with these numbers; 0 when none
    /// must.
    ///
    /// W of them make what was read as safe as what was written; N + 1 − R of them are met by every later get, also
    /// where R and W are too small to meet each other.
    pub fn read_holders(&self, numbers: Consistency) -> u8 {
        let Consistency { replicas, reads_required, writes_required } = numbers;
        match self.reads {
            Reads::Fast => 0,
            Reads::Monotonic => writes_required.max(replicas + 1 - reads_required),
        }
    }

    /// How far it has come, while its numbers change.
    pub fn step(&self) -> Option<Step> {
        self.coming.as_ref().map(|coming| coming.step)
    }

    /// The numbers that it changes to, or has when they do not change.
    pub fn numbers_to_come(&self) -> Consistency {
        self.coming.as_ref().map_or(self.consistency, |coming| coming.consistency)
    }

    /// The numbers of the replicas that gets ask.
    pub fn numbers_read(&self) -> Consistency {
        match self.step() {
            Some(Step::ReadingNew) => self.numbers_to_come(),
            _ => self.consistency,
        }
    }

    /// The numbers of the old and the new set of replicas that writes need; the same while they need one.
    pub fn numbers_written(&self) -> (Consistency, Consistency) {
        match self.step() {
            Some(step) if step.writes_both() => (self.consistency, self.numbers_to_come()),
            _ => (self.consistency, self.consistency),
        }
    }

    /// The largest N of its partitions, also while it changes.
    pub fn replicas_max(&self) -> u8 {
        self.consistency.replicas.max(self.numbers_to_come().replicas)
    }
}

impl Consistency {
    /// Checks 1 ≤ R ≤ N and 1 ≤ W ≤ N.
    pub fn validate(&self) -> Result<(), StoreError> {
        let Consistency { replicas, reads_required: reads, writes_required: writes } = *self;
        if replicas >= 1 && (1..=replicas).contains(&reads) && (1..=replicas).contains(&writes) {
            Ok(())
        } else {
            Err(StoreError::Consistency { replicas, reads, writes })
        }
    }

    /// Whether every read quorum meets every write quorum.
    pub fn quorums_intersect(&self) -> bool {
        self.reads_required + self.writes_required > self.replicas
    }
}
