//! One machine of a fleet, and how far it is.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::policy::Money;
use crate::WallMillis;

/// What tells one request for a machine from all others, for ever: the fleet's own random name and a number.
///
/// A machine with such a token is ours, also where its answer was lost and no document names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Token(pub String);

impl Token {
    /// The token of this number in the fleet of this random name.
    pub fn new(uid: &str, number: u64) -> Token {
        Token(format!("{uid}-{number}"))
    }

    /// Its number, if it is of the fleet of this random name.
    pub fn number(&self, uid: &str) -> Option<u64> {
        self.0.strip_prefix(uid)?.strip_prefix('-')?.parse().ok()
    }
}

impl fmt::Display for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// How far a machine is, and with it what is intended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MachineState {
    /// It was decided, and its provider is asked for it.
    Requested,
    /// Its provider has it; its engine has not heard of it.
    Booting,
    /// Its engine takes it in.
    Joining,
    /// It serves.
    Serving,
    /// It has booted and its engine knows it; it holds nothing, and is kept for a rise of load.
    Ready,
    /// Data leaves it.
    Draining,
    /// Its engine says that it is empty; evidence is asked for.
    Empty,
    /// It may be ended, and nobody takes that back.
    Terminating,
    /// It missed a deadline or was refused: it goes as soon as evidence shows that nothing is on it.
    Failed,
}

impl MachineState {
    /// All of them, in the order of a life.
    pub const ALL: [MachineState; 9] = [
        MachineState::Requested,
        MachineState::Booting,
        MachineState::Joining,
        MachineState::Serving,
        MachineState::Ready,
        MachineState::Draining,
        MachineState::Empty,
        MachineState::Terminating,
        MachineState::Failed,
    ];

    /// Its word in documents and tables.
    pub fn name(self) -> &'static str {
        match self {
            MachineState::Requested => "requested",
            MachineState::Booting => "booting",
            MachineState::Joining => "joining",
            MachineState::Serving => "serving",
            MachineState::Ready => "ready",
            MachineState::Draining => "draining",
            MachineState::Empty => "empty",
            MachineState::Terminating => "terminating",
            MachineState::Failed => "failed",
        }
    }

    /// Whether it is on its way to serve or to stand by.
    pub fn is_coming(self) -> bool {
        matches!(self, MachineState::Requested | MachineState::Booting | MachineState::Joining)
    }

    /// Whether it is on its way out.
    pub fn is_leaving(self) -> bool {
        matches!(
            self,
            MachineState::Draining | MachineState::Empty | MachineState::Terminating | MachineState::Failed
        )
    }
}

/// A machine of a fleet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// With what it was asked for. An adopted machine has one that its provider has never seen.
    pub token: Token,
    /// What its provider calls it, once that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// Its host or address, once that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// What its engine calls it, once that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member: Option<String>,
    /// Its type at the provider.
    #[serde(rename = "type")]
    pub kind: String,
    /// What an hour costs.
    pub price_per_hour: Money,
    /// How far it is.
    pub state: MachineState,
    /// Since when it is that far.
    pub since: WallMillis,
    /// Since when it is paid for.
    pub began: WallMillis,
    /// The decision or order that wanted it to be that far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<u64>,
    /// Whether it is kept for a rise of load instead of joining. Only of one that has not joined: requested, booting or ready.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub standby: bool,
    /// Whether an operator adopted it: no token of ours is at its provider.
    #[serde(default)]
    pub adopted: bool,
    /// Since when its provider says that it has ended, or does not list it; of one without a provider, since when its engine
    /// does not list it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gone: Option<WallMillis>,
    /// Why it is that far, for people: what failed, or what it waits for. Nothing is decided by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl Machine {
    /// Whether it is on its way to serve; one that is to stand by is not.
    pub fn is_coming(&self) -> bool {
        !self.standby && (self.state.is_coming() || self.state == MachineState::Ready)
    }

    /// Whether it was adopted without an instance: it is counted, and never drained or ended.
    pub fn is_unmanaged(&self) -> bool {
        self.adopted && self.instance.is_none()
    }
}
