//! What was decided about the size of a fleet, from what, and what came of it.

use serde::{Deserialize, Serialize};

use super::policy::Rule;
use crate::WallMillis;

/// A value by which was decided.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// The member.
    pub member: String,
    /// What was measured.
    pub measure: String,
    /// Its mean over the rule's span; none where it is not known.
    pub mean: Option<f64>,
    /// How old its newest sample was, in milliseconds.
    pub age_ms: Option<u64>,
    /// How much of the rule's span its samples cover, in milliseconds; none where there is no sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub covered_ms: Option<u64>,
}

/// Why nothing was done although rules wanted it, or could not be judged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "code", rename_all = "kebab-case")]
pub enum HeldChange {
    /// Too few members have fresh samples.
    Samples {
        /// This many have.
        fresh: u32,
        /// This many must.
        wanted: u32,
        /// When measuring began anew, because the size changed, if that is less than the span of the rules ago.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        since: Option<WallMillis>,
        /// From when on samples cover the time, of as many members as must have some; none where too few have any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        covers: Option<WallMillis>,
        /// So much time they must cover, in seconds; 0 in documents of programs that did not say it.
        #[serde(default)]
        wants_s: u64,
    },
    /// Members were never used enough to tell what they carry.
    Unlearned,
    /// The fleet has its fewest members.
    Fewest {
        /// This many.
        min: u32,
    },
    /// Those that would be left do not carry the load within the objective while one of them is lost.
    Carries {
        /// Operations in a second, of all members.
        load: u64,
        /// What they carry with one lost.
        carries: u64,
        /// This many would be left.
        left: u32,
    },
    /// It has the most.
    Most {
        /// This many.
        max: u32,
    },
    /// It would cost too much.
    Budget {
        /// What the fleet would cost, in millionths.
        cost: u64,
        /// What it may, in millionths.
        most: u64,
        /// `hour` or `day`.
        span: String,
    },
    /// Something is under way.
    UnderWay,
    /// A change was made lately.
    Rests {
        /// For this many seconds more.
        seconds: u64,
    },
    /// Machines failed in a row.
    Paused,
    /// The last growths brought next to nothing, so another one would not help.
    NoGain {
        /// This many in a row.
        growths: u32,
    },
    /// A removal would cost more than it saves until its machine is wanted again.
    Costs {
        /// What it costs, in millionths.
        cost: u64,
        /// What it saves, in millionths.
        saves: u64,
    },
    /// The mode carries nothing out.
    Mode,
    /// The provider or the engine did not answer.
    Unheard {
        /// Which, and why.
        detail: String,
    },
    /// The provider refuses to end machines.
    Preflight {
        /// Its words.
        detail: String,
    },
    /// The provider has no such type, or no room for one more.
    Provider {
        /// Why.
        detail: String,
    },
    /// The engine is in no state for it: a member is down, or serves and is not of the fleet.
    Engine {
        /// Why.
        detail: String,
    },
    /// An order names something that is not there, or not any more.
    Order {
        /// What, and what helps.
        detail: String,
    },
}

/// What the rules want.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RuleVerdict {
    /// One member more.
    Add,
    /// One less.
    Remove,
    /// As many as there are.
    Stay,
    /// They cannot tell.
    Unknown,
}

/// Why it was decided.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "code", rename_all = "kebab-case")]
pub enum Reason {
    /// An operator ordered a size.
    Ordered {
        /// Who, as the system calls them.
        by: String,
    },
    /// This rule holds.
    Rule {
        /// Which.
        rule: Rule,
    },
    /// The load that is measured.
    Load {
        /// Operations in a second.
        load: u64,
        /// What the members that serve carry within the objective.
        carries: u64,
    },
    /// The expected load.
    Forecast {
        /// Operations in a second.
        load: u64,
        /// Within this many seconds: as long as a machine takes to become useful.
        within: u64,
    },
    /// The policy's bounds want it.
    Bounds,
    /// A machine failed, and another one takes its place.
    Replaces {
        /// Its token.
        token: String,
    },
}

fn is_none(count: &u32) -> bool {
    *count == 0
}

/// A decision: what it was made from, what was expected, and what came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// Its number in this fleet, from 1.
    pub number: u64,
    /// When.
    pub at: WallMillis,
    /// This many members served then.
    pub members: u32,
    /// What the rules wanted.
    pub verdict: RuleVerdict,
    /// This many members are wanted from then on.
    pub target: u32,
    /// Why.
    pub reasons: Vec<Reason>,
    /// Whether it set the target: by itself, or because an operator ordered or approved it.
    #[serde(default)]
    pub set: bool,
    /// What stopped it, if it is not carried out; what holds it up, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<HeldChange>,
    /// So many of those that it added had stood by.
    #[serde(default, skip_serializing_if = "is_none")]
    pub from_standby: u32,
    /// The values by which was decided.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub readings: Vec<Reading>,
    /// What the means were expected to become, in the measure of the rule, where that can be said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<f64>,
    /// What they became once it was done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub came: Option<f64>,
    /// When it was done, or given up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<WallMillis>,
}
