//! How the doors of thin clients close when their node stops. What a request is to HTTP, a command is to Redis.
//!
//! ```text
//!   SIGTERM ──▶ after answers ──────▶ between commands ──────▶ (native requests are refused, too) ──▶ end
//!               new connections are   so does one that waits   what still goes on is answered
//!               refused; one that is  for its next command     SHUTTINGDOWN
//!               answered closes
//! ```
//!
//! A client that waits for each answer so finds the end of its connection right behind an answer, with nothing under
//! way: it goes on at another address without an error. One that sends without waiting finds it behind the last
//! answer; what crossed the end on its way was not carried out.
//!
//! Must never: close between a command that has come whole and its answer, or carry out what comes after the end.

use std::sync::atomic::{AtomicU8, Ordering};

use tokio::sync::Notify;

/// What the door does with its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DoorStage {
    /// It serves them.
    Open,
    /// It closes each behind its next answer, and takes no new ones.
    AfterAnswers,
    /// It closes each as soon as it is between two commands.
    BetweenCommands,
}

/// Where the door is on its way to its end. Stages only grow.
#[derive(Debug, Default)]
pub(super) struct Closing {
    stage: AtomicU8,
    begun: Notify,
}

impl Closing {
    pub(super) fn stage(&self) -> DoorStage {
        match self.stage.load(Ordering::Acquire) {
            0 => DoorStage::Open,
            1 => DoorStage::AfterAnswers,
            _ => DoorStage::BetweenCommands,
        }
    }

    /// Goes on to a stage; whoever sleeps must be woken afterwards.
    pub(super) fn reach(&self, stage: DoorStage) {
        self.stage.fetch_max(stage as u8, Ordering::AcqRel);
        self.begun.notify_waiters();
    }

    /// Completes when the door takes no new connections any more.
    pub(super) async fn begun(&self) {
        let mut begun = std::pin::pin!(self.begun.notified());
        begun.as_mut().enable();
        if self.stage() == DoorStage::Open {
            begun.await;
        }
    }
}

/// Whether one connection is to close.
#[derive(Debug)]
pub(super) struct Leaving {
    /// Commands that it had sent when it last waited at an open door; `None` when one of them was under way.
    seen: Option<u64>,
}

impl Default for Leaving {
    fn default() -> Self {
        Leaving { seen: Some(0) }
    }
}

impl Leaving {
    /// Whether a connection that has sent this many commands closes now. Nothing more has come on it, and it is
    /// `between` two commands or not.
    pub(super) fn is_due(&mut self, stage: DoorStage, commands: u64, between: bool) -> bool {
        match stage {
            DoorStage::Open => {
                self.seen = between.then_some(commands);
                false
            }
            DoorStage::AfterAnswers => between && self.seen != Some(commands),
            DoorStage::BetweenCommands => between,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_closes_after_its_next_answer_and_a_quiet_one_in_the_next_stage() {
        let mut busy = Leaving::default();
        assert!(!busy.is_due(DoorStage::Open, 2, false), "the door is open");
        assert!(!busy.is_due(DoorStage::AfterAnswers, 2, false), "its second command is under way");
        assert!(busy.is_due(DoorStage::AfterAnswers, 2, true), "and answered");
        let mut quiet = Leaving::default();
        assert!(!quiet.is_due(DoorStage::Open, 2, true));
        assert!(!quiet.is_due(DoorStage::AfterAnswers, 2, true), "its next command may be on its way");
        assert!(!quiet.is_due(DoorStage::AfterAnswers, 3, false));
        assert!(quiet.is_due(DoorStage::AfterAnswers, 3, true), "it came, and is answered");
        let mut late = Leaving::default();
        assert!(!late.is_due(DoorStage::AfterAnswers, 0, true), "it has just been opened");
        assert!(late.is_due(DoorStage::AfterAnswers, 1, true));
        let mut idle = Leaving::default();
        assert!(!idle.is_due(DoorStage::Open, 2, true));
        assert!(!idle.is_due(DoorStage::AfterAnswers, 2, true));
        assert!(idle.is_due(DoorStage::BetweenCommands, 2, true), "none came");
        assert!(!Leaving::default().is_due(DoorStage::BetweenCommands, 2, false), "half a command has come");
    }

    #[test]
    fn stages_only_grow() {
        let closing = Closing::default();
        assert_eq!(closing.stage(), DoorStage::Open);
        closing.reach(DoorStage::BetweenCommands);
        closing.reach(DoorStage::AfterAnswers);
        assert_eq!(closing.stage(), DoorStage::BetweenCommands);
    }
}
