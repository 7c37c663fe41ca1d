//! What a node does in the background: its chores.

use serde::{Deserialize, Serialize};

/// How one chore of a node stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChoreReport {
    /// What people call it; each chore of a node has another name.
    pub chore: String,
    /// What it does now.
    pub state: ChoreState,
    /// For how long it has been so.
    pub seconds: f64,
    /// When it goes on, while it rests.
    pub seconds_left: Option<f64>,
    /// Rounds that have ended, since the node started.
    pub rounds_total: u64,
    /// Rounds in a row that failed or panicked, up to the last one.
    pub failures: u64,
    /// How many of these panicked.
    #[serde(default)]
    pub panics: u64,
    /// Rounds that panicked, since the node started.
    pub panics_total: u64,
    /// What went wrong last, since the node started.
    pub last_error: Option<ChoreError>,
}

impl ChoreReport {
    /// Whether somebody should look at it.
    pub fn is_in_trouble(&self) -> bool {
        self.failures > 0 || self.panics_total > 0
    }
}

/// What went wrong in a round of a chore.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChoreError {
    /// What it was.
    pub error: String,
    /// Since then.
    pub seconds_ago: f64,
}

/// What a chore does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChoreState {
    /// It is in a round.
    Working,
    /// It waits for its next round.
    Resting,
    /// It waits for its next round, and the last one failed or panicked.
    Failed,
    /// It has nothing to work for any more: the node stops.
    Ended,
    /// Something that this program does not know: the node runs a newer one.
    #[serde(other)]
    Unknown,
}

impl ChoreState {
    /// Its name for programs and people.
    pub fn name(self) -> &'static str {
        match self {
            ChoreState::Working => "working",
            ChoreState::Resting => "resting",
            ChoreState::Failed => "failed",
            ChoreState::Ended => "ended",
            ChoreState::Unknown => "unknown",
        }
    }
}
