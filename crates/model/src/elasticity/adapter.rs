//! What adapters say: the results of the verbs of providers and engines, as they are in JSON.
//!
//! `docs/reference/adapters.md` is the contract. Fields that an adapter does not know are left out; fields that we do not know
//! are passed over.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::policy::Money;

/// The version of the contract that this program speaks.
pub const PROTOCOL: u32 = 1;

/// The answer to `describe` of a provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProviderFacts {
    /// What people call it.
    pub name: String,
    /// The version of the contract that it speaks.
    pub protocol: u32,
    /// What machines can be had.
    pub types: Vec<MachineType>,
    /// How many machines may run at once, those of others included, where the provider limits that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<u32>,
    /// What the operator should know, such as that processors are not capped here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// A type of machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineType {
    /// Its name.
    pub name: String,
    /// What an hour of it costs.
    pub price_per_hour: Money,
    /// Its processors, in thousandths, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processors_milli: Option<u64>,
    /// Its memory in bytes, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
}

/// A machine, as its provider sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    /// What the provider calls it.
    pub id: String,
    /// The token with which it was asked for, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// Host or address under which its engine is reached, once that is known. No port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// How far it is.
    pub state: InstanceState,
    /// Its type.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Why it is that far, for people, such as what it said last before it ended by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// How far a machine is at its provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InstanceState {
    /// It was asked for, and does not run yet.
    Pending,
    /// It runs.
    Running,
    /// It is being ended.
    Ending,
    /// It has ended, and costs nothing.
    Ended,
}

/// The answer to `list`: the machines that carry the tag of one fleet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instances {
    /// Those machines.
    pub instances: Vec<Instance>,
}

/// The answer to `describe` of an engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineFacts {
    /// What people call it.
    pub name: String,
    /// The version of the contract that it speaks.
    pub protocol: u32,
    /// How many members may join or leave at once.
    pub acts_max: u32,
    /// Whether a drain that has begun can be taken back.
    pub drain_cancellable: bool,
    /// Whether a member joins by itself as soon as its machine starts. None of them can stand by then, and starting one is an
    /// act.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub joins_at_boot: bool,
    /// The fewest members with which it keeps all copies.
    pub members_min: u32,
    /// Names of the measures that `observe` gives of each member.
    #[serde(default)]
    pub measures: Vec<String>,
}

/// The answer to `boot`: with what a machine starts. Providers pass it on as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Boot {
    /// A script for `/bin/sh`. It finds `MACHINE_ADDRESS`, `MACHINE_DATA`, `MACHINE_TOKEN` in its environment.
    pub script: String,
}

/// The answer to `observe`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Members {
    /// All members that the engine knows, and processes that wait to become one.
    pub members: Vec<Member>,
}

/// A member, as its engine sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Member {
    /// What the engine calls it; it never changes and is never given again.
    pub id: String,
    /// Its host or address without a port, as its provider gives it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// How far it is.
    pub state: MemberState,
    /// How much of its joining or draining is done, in permille, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permille: Option<u32>,
    /// What it waits for, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Its measures, with the age of each value.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub measures: BTreeMap<String, Measured>,
}

/// A value that was measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The value; processors in percent of what the machine may use.
    pub value: f64,
    /// How old it is, in milliseconds.
    pub age_ms: u64,
}

/// How far a member is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemberState {
    /// Its process runs and is no member yet.
    Waiting,
    /// Data comes to it.
    Joining,
    /// It serves.
    Serving,
    /// It is a member and holds nothing, ready to serve.
    Standby,
    /// Data leaves it.
    Draining,
    /// The engine says that nothing is on it. That proves nothing.
    Drained,
    /// It is a member and cannot be reached.
    Down,
}

/// The answer to `evidence`: what the *other* members say of one. What is not known is left out, and unknown is no.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// The members that were asked, without the one in question.
    pub witnesses: Vec<String>,
    /// Whether it owns nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owns_nothing: Option<bool>,
    /// Whether nothing moves from it or to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nothing_moves: Option<bool>,
    /// Whether nothing is short of a copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nothing_short: Option<bool>,
    /// What is lacking, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

impl Evidence {
    /// Whether it proves that its member may be ended: others said so, and each of the three is known and true.
    pub fn proves(&self) -> bool {
        let known = [self.owns_nothing, self.nothing_moves, self.nothing_short];
        !self.witnesses.is_empty() && known.iter().all(|said| *said == Some(true))
    }
}
