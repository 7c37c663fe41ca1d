//! A get that breaks a rule on purpose: it hears or says something else than the machine inside it.

use std::ops::Deref;
use std::time::Duration;

use super::*;
use crate::quorum::planted::{Bug, planted};

/// A [`Get`], or what a planted bug makes of it.
#[derive(Clone, Debug)]
pub(super) struct PlantedGet {
    get: Get,
    /// An answer that a late one keeps back.
    kept_back: Option<GetAction>,
}

impl Deref for PlantedGet {
    type Target = Get;

    fn deref(&self) -> &Get {
        &self.get
    }
}

impl PlantedGet {
    pub(super) fn start(
        candidates: Candidates<'_>,
        own: Option<NodeId>,
        options: QuorumOptions,
        now: Moment,
        actions: &mut GetActions,
    ) -> Self {
        let hedge_after =
            if planted(Bug::NeverHedges) { Duration::from_secs(1) } else { options.hedge_after };
        let options = QuorumOptions {
            required: options.required - u8::from(planted(Bug::OneAnswerTooFew)),
            held: options.held.saturating_sub(u8::from(planted(Bug::OneHolderTooFew))),
            sloppy: (options.sloppy || planted(Bug::StrictCountsHints)) && !planted(Bug::StandsInForNobody),
            wall: if planted(Bug::ExpiredIsFound) { WallMillis(0) } else { options.wall },
            hedge_after,
            spared: if planted(Bug::SparesTheOtherSet) { options.spared.swapped() } else { options.spared },
            ..options
        };
        let mut get = Get::start(candidates, own, options, now, actions);
        if planted(Bug::AsksWhoOnlyWrites) {
            get.askable = get.members.len();
        }
        for member in &mut get.members {
            member.sets = match member.sets {
                Sets::Old if planted(Bug::OldSetSuffices) => Sets::Both,
                _ if planted(Bug::SetsCountTogether) => Sets::Both,
                sets => sets,
            };
        }
        let mut planted_get = PlantedGet { get, kept_back: None };
        planted_get.distort(actions);
        planted_get
    }

    pub(super) fn step(&mut self, event: GetEvent, now: Moment, actions: &mut GetActions) {
        let event = match event {
            GetEvent::Answered { node, set, .. } if planted(Bug::OtherGenerationCounts) => {
                GetEvent::Answered { node, generation: GENERATION, set }
            }
            GetEvent::Stored { node, round, .. } if planted(Bug::OtherGenerationCounts) => {
                GetEvent::Stored { node, generation: GENERATION, round }
            }
            GetEvent::Stored { node, generation, .. } if planted(Bug::EarlierRoundCounts) => {
                GetEvent::Stored { node, generation, round: self.get.round }
            }
            event => event,
        };
        let (asked, ended) = (self.get.next, self.get.phase == GetPhase::Finished);
        if planted(Bug::UnaskedCounts) && matches!(event, GetEvent::Answered { .. }) {
            self.get.next = self.get.members.len();
        }
        let is_current = |member: &GetMember| member.reply == GetReply::Answered { current: true };
        let current: Vec<bool> = self.get.members.iter().map(is_current).collect();
        self.get.step(event, now, actions);
        if planted(Bug::UnaskedCounts) {
            self.get.next = self.get.next.min(asked.max(1));
        }
        if planted(Bug::RepairForgetsEarlier) {
            self.forget_earlier(&current, actions);
        }
        if planted(Bug::RepairsFallbacks) && !ended && self.get.phase == GetPhase::Finished {
            let stale = |member: &&GetMember| {
                member.fallback && member.reply == GetReply::Answered { current: false }
            };
            let set = &self.get.merged;
            let repair = |member: &GetMember| GetAction::Repair { node: member.node, set: set.clone() };
            actions.extend(self.get.members.iter().filter(stale).map(repair));
        }
        self.answer_early(actions);
        self.distort(actions);
    }

    /// Answers with what was heard, though too few replicas are among those who said it.
    fn answer_early(&mut self, actions: &mut GetActions) {
        let get = &mut self.get;
        if planted(Bug::ReplacesSlowReplicas) {
            for member in &mut get.members {
                member.replaced_at = member.late_at;
            }
        }
        let QuorumOptions { required, held, .. } = get.options;
        if get.phase != GetPhase::Collecting || held > 0 || get.answered() < required {
            return;
        }
        if planted(Bug::FallbackDenies) || (planted(Bug::TombstoneIsFound) && get.merged.winner().is_some()) {
            get.answer_done(actions);
        } else if planted(Bug::GivesUpOnReplicas) {
            let reason =
                GetFailure::InsufficientReplicas { answered: get.tallies()[0].answered as u8, required };
            get.phase = GetPhase::Finished;
            actions.push(GetAction::Answer(GetOutcome::Failed { reason, errors: get.errors() }));
        }
    }

    pub(super) fn deadline(&self) -> Option<Moment> {
        match self.kept_back {
            Some(_) => Some(at(DEADLINE)),
            None => self.get.deadline(),
        }
    }

    /// Members that were equal to the merged set before the step pass for equal after it.
    fn forget_earlier(&mut self, current: &[bool], actions: &mut GetActions) {
        for (member, _) in self.get.members.iter_mut().zip(current).filter(|(_, current)| **current) {
            member.reply = GetReply::Answered { current: true };
            let node = member.node;
            actions.retain(|action| !matches!(action, GetAction::Repair { node: to, .. } if *to == node));
        }
    }

    fn distort(&mut self, actions: &mut GetActions) {
        for action in actions.iter_mut() {
            if let GetAction::Answer(GetOutcome::Done { sloppy, .. }) = action {
                *sloppy &= !planted(Bug::HidesSloppiness);
            }
        }
        let silent: Vec<NodeId> =
            self.get.members[self.get.askable..].iter().map(|member| member.node).collect();
        actions.retain(|action| match action {
            GetAction::Repair { node, .. } if planted(Bug::RepairsReadersOnly) => !silent.contains(node),
            _ => true,
        });
        let answer = actions.iter().position(|action| matches!(action, GetAction::Answer(_)));
        if let Some(position) = answer.filter(|_| planted(Bug::AnswersTwice)) {
            actions.push(actions[position].clone());
        }
        if let Some(position) = answer.filter(|_| planted(Bug::AnswersLate)) {
            self.kept_back = Some(actions.remove(position));
        }
        if self.get.now >= at(DEADLINE) {
            actions.extend(self.kept_back.take());
        }
    }
}
