//! What has become of a plan.

use serde::{Deserialize, Serialize};

use super::{CameOf, PlanDocument, PlanRefusal, Size, Waiting, Wish};
use crate::cluster::NumbersError;
use crate::generation::Generation;
use crate::node::NodeId;
use crate::ring::PartitionId;
use crate::store::StoreName;

/// What has become of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// It is carried out.
    Applying,
    /// No partition takes a step until it is resumed.
    Paused,
    /// It is carried out.
    Done,
    /// What moves goes back.
    Aborting,
    /// It was ended by an order: what had not settled is where it was.
    Aborted,
    /// As [`Phase::Aborted`], by no order: the ring was no longer what the plan was computed from.
    Failed,
}

impl Phase {
    /// Whether nothing follows.
    pub fn has_ended(self) -> bool {
        matches!(self, Phase::Done | Phase::Aborted | Phase::Failed)
    }

    /// As it is written.
    pub fn word(self) -> &'static str {
        match self {
            Phase::Applying => "applying",
            Phase::Paused => "paused",
            Phase::Done => "done",
            Phase::Aborting => "aborting",
            Phase::Aborted => "aborted",
            Phase::Failed => "failed",
        }
    }
}

/// Why a plan could not go on, though nobody ended it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "code", content = "facts", rename_all = "kebab-case")]
pub enum Reason {
    /// A partition was changed by something else than this plan.
    PartitionChanged {
        /// The partition.
        partition: PartitionId,
    },
    /// A store was changed by something else than this plan.
    StoreChanged {
        /// The store.
        store: StoreName,
    },
    /// The bounds of partitions were changed by something else than this plan.
    BoundsChanged,
    /// The cluster document has no room for another move.
    NoRoom,
    /// Bounds cannot be changed any more as the plan says.
    BoundsRefused {
        /// Why not.
        because: PlanRefusal,
    },
    /// The numbers of the store cannot be changed any more as the plan says.
    NumbersRefused {
        /// Why not.
        because: NumbersError,
    },
    /// A move cannot begin: the document would not hold together.
    CannotBegin {
        /// What would not hold.
        detail: String,
    },
}

/// What holds a plan up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "code", content = "facts", rename_all = "kebab-case")]
pub enum PlanHeld {
    /// A node whose word counts does not answer.
    Silent {
        /// The node.
        node: NodeId,
        /// Why it was not heard.
        detail: String,
    },
    /// This many partitions wait for the same.
    Waits {
        /// For what.
        waiting: Waiting,
        /// How many partitions.
        partitions: usize,
    },
}

/// How far a plan is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanState {
    /// What has become of it.
    pub phase: Phase,
    /// The order that changed the phase last.
    pub order: u64,
    /// Why it could not go on, if it could not.
    pub reason: Option<Reason>,
    /// The generation under which it began to go back. It has ended only under a later one: whoever has not heard of its
    /// abort cannot begin a move any more.
    pub aborted_under: Option<Generation>,
    /// When it was applied, in milliseconds since 1970.
    pub begun_ms: u64,
    /// When it ended.
    pub ended_ms: Option<u64>,
    /// How far its moves are.
    pub progress: Progress,
    /// At what rate data comes, by the last seconds; `None` until that is known.
    pub bytes_per_second: Option<u64>,
    /// About how long it will take yet: by its estimate at first, and then by what was measured; `None` when nobody knows.
    pub seconds_left: Option<u64>,
    /// It was paused, or waited long for nodes that were away, so how long it took tells nothing.
    pub was_paused: bool,
    /// For whom its moves wait: what holds most of them up first, up to a limit.
    pub waiting: Vec<PlanHeld>,
    /// What came of a decision of the autopilot, once that can be said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub came_of: Option<CameOf>,
}

/// How far the moves of a plan are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Moves that have not begun, or are back where they were.
    pub waiting: usize,
    /// Moves at the step *copying*.
    pub copying: usize,
    /// Moves at the step *joint*.
    pub joint: usize,
    /// Moves at the step *reading-new*.
    pub reading_new: usize,
    /// Moves at *reading-new*, on their way back.
    pub back: usize,
    /// Moves that have settled.
    pub settled: usize,
    /// What nodes that enter have brought in, since their processes started.
    pub copied: Size,
}

/// A plan that is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Planned {
    /// Its number.
    pub number: u64,
    /// The plan.
    pub plan: PlanDocument,
    /// How far it is; `None` when it was never applied.
    pub state: Option<PlanState>,
}

impl Planned {
    /// What has become of it, in a word.
    pub fn word(&self) -> &'static str {
        self.state.as_ref().map_or("created", |state| state.phase.word())
    }

    /// Whether it was applied, and has not ended.
    pub fn is_under_way(&self) -> bool {
        self.state.as_ref().is_some_and(|state| !state.phase.has_ended())
    }

    /// Whether the autopilot made it, and nobody has said yet what came of it.
    pub fn awaits_outcome(&self) -> bool {
        let ended =
            self.state.as_ref().is_some_and(|state| state.phase == Phase::Done && state.came_of.is_none());
        ended && self.plan.decision.is_some()
    }

    /// What is told of it where there are many.
    pub fn summary(&self) -> PlanSummary {
        PlanSummary {
            number: self.number,
            wish: Some(self.plan.wish.clone()),
            phase: self.state.as_ref().map(|state| state.phase),
            partitions: self.plan.change.partitions(),
            settled: self.state.as_ref().map_or(0, |state| state.progress.settled),
            created_ms: self.plan.created_ms,
            by: self.plan.by.clone(),
            unread: None,
        }
    }
}

/// A plan in short.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanSummary {
    /// Its number.
    pub number: u64,
    /// What was wished for; `None` of one that could not be read.
    pub wish: Option<Wish>,
    /// What has become of it; `None` of one that was never applied.
    pub phase: Option<Phase>,
    /// How many partitions it is about.
    pub partitions: usize,
    /// How many of them have settled.
    pub settled: usize,
    /// When it was created, in milliseconds since 1970.
    pub created_ms: u64,
    /// Who ordered it.
    pub by: String,
    /// Why it could not be read: a later version created it.
    pub unread: Option<String>,
}

impl PlanSummary {
    /// What has become of it, in a word.
    pub fn word(&self) -> &'static str {
        match (&self.unread, self.phase) {
            (Some(_), _) => "not-understood",
            (None, None) => "created",
            (None, Some(phase)) => phase.word(),
        }
    }

    /// Of one that could not be read.
    pub fn unread(number: u64, detail: String) -> PlanSummary {
        let (by, unread) = (String::new(), Some(detail));
        PlanSummary { number, wish: None, phase: None, partitions: 0, settled: 0, created_ms: 0, by, unread }
    }
}

/// What is told of plans.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanPage {
    /// The plan that was asked for, if it is there.
    pub plan: Option<Planned>,
    /// Why it cannot be read, if it is there and cannot be: a later version created it.
    pub unread: Option<String>,
    /// Which state of the plan this is: another number for each, and 0 for none.
    pub version: u64,
    /// All plans in short, if they were asked for, the oldest first.
    pub plans: Vec<PlanSummary>,
}
