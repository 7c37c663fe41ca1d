//! A write that breaks a rule on purpose: it hears or says something else than the machine inside it.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use super::*;
use crate::quorum::options::saturated;
use crate::quorum::planted::{Bug, planted};

/// A [`Write`], or what a planted bug makes of it.
#[derive(Clone, Debug)]
pub(super) struct PlantedWrite {
    write: Write,
    /// An answer that a late one keeps back.
    kept_back: Option<WriteAction>,
    own: NodeId,
}

impl Deref for PlantedWrite {
    type Target = Write;

    fn deref(&self) -> &Write {
        &self.write
    }
}

impl DerefMut for PlantedWrite {
    fn deref_mut(&mut self) -> &mut Write {
        &mut self.write
    }
}

impl PlantedWrite {
    pub(super) fn start(
        candidates: Candidates<'_>,
        origin: Origin,
        options: QuorumOptions,
        now: Moment,
        actions: &mut WriteActions,
    ) -> Self {
        let lonely = preference(3, 0);
        let candidates = match planted(Bug::NoStandIn) {
            true => Candidates { preference: &lonely, ..candidates },
            false => candidates,
        };
        let hedge_after =
            if planted(Bug::NeverHedges) { Duration::from_secs(1) } else { options.hedge_after };
        let options = QuorumOptions {
            required: options.required - u8::from(planted(Bug::OneAnswerTooFew)),
            sloppy: options.sloppy || planted(Bug::StrictCountsHints),
            hedge_after,
            spared: if planted(Bug::SparesTheOtherSet) { options.spared.swapped() } else { options.spared },
            ..options
        };
        let possible = origin.possible || planted(Bug::ParksTooEarly);
        let write = Write::start(candidates, Origin { possible, ..origin }, options, now, actions);
        let mut planted_write = PlantedWrite { write, kept_back: None, own: origin.own };
        for slot in &mut planted_write.write.slots {
            slot.sets = match slot.sets {
                Sets::Old if planted(Bug::OldSetSuffices) => Sets::Both,
                _ if planted(Bug::SetsCountTogether) => Sets::Both,
                sets => sets,
            };
        }
        if planted(Bug::ForgetsOwnCopy) {
            planted_write.write.origin.own = OUTSIDER;
        }
        planted_write.distort(actions);
        planted_write
    }

    pub(super) fn step(&mut self, event: WriteEvent, now: Moment, actions: &mut WriteActions) {
        let event = match event {
            WriteEvent::Acknowledged { node, .. }
                if planted(Bug::DropsLateAck)
                    && self.write.reply_of(node).is_some_and(|reply| *reply != WriteReply::Awaited) =>
            {
                return;
            }
            WriteEvent::Acknowledged { node, superseded, .. } if planted(Bug::OtherGenerationCounts) => {
                WriteEvent::Acknowledged { node, generation: GENERATION, superseded }
            }
            WriteEvent::Failed { node, error: ReplicaError::Lost } if planted(Bug::LostIsRefused) => {
                WriteEvent::Failed { node, error: ReplicaError::Overloaded }
            }
            WriteEvent::Failed { node, error } if planted(Bug::RefusalReplacesLost) => {
                if let Some(reply @ WriteReply::Failed(_)) = self.write.reply_of(node) {
                    *reply = WriteReply::Failed(error);
                }
                event
            }
            event => event,
        };
        self.write.step(event, now, actions);
        self.distort(actions);
    }

    pub(super) fn deadline(&self) -> Option<Moment> {
        match self.kept_back {
            Some(_) => Some(at(DEADLINE)),
            None => self.write.deadline(),
        }
    }

    fn distort(&mut self, actions: &mut WriteActions) {
        let twice = |slot: &&Slot| slot.reply == WriteReply::Acknowledged && slot.hinted;
        let beside = self.write.slots.iter().filter(twice).count();
        for action in actions.iter_mut() {
            match action {
                WriteAction::Answer(WriteOutcome::Done { acks, sloppy, .. }) => {
                    *sloppy &= !planted(Bug::HidesSloppiness);
                    *acks += if planted(Bug::HintCountsBesideReplica) { saturated(beside) } else { 0 };
                }
                WriteAction::Refresh { possible, .. } if planted(Bug::RefreshForgetsPossible) => {
                    *possible = self.write.is_possible();
                }
                _ => {}
            }
        }
        let own = self.own;
        actions.retain(|action| match action {
            WriteAction::ParkHint { target } if planted(Bug::ForgetsOwnCopy) => *target != own,
            WriteAction::ParkHint { target } if planted(Bug::NoHintsForNew) => *target != NodeId(3),
            WriteAction::ParkHint { .. } => !planted(Bug::ForgetsStragglers),
            _ => true,
        });
        let answer = actions.iter().position(|action| matches!(action, WriteAction::Answer(_)));
        if let Some(position) = answer.filter(|_| planted(Bug::AnswersTwice)) {
            actions.push(actions[position].clone());
        }
        if let Some(position) = answer.filter(|_| planted(Bug::AnswersLate)) {
            self.kept_back = Some(actions.remove(position));
        }
        if self.write.now >= at(DEADLINE) {
            actions.extend(self.kept_back.take());
        }
    }
}
