//! Writing back before the answer: what a get answers is held by enough replicas that no later get misses it.
//!
//! ```text
//!   Collecting ── enough answers ──▶ Settling ── `held` replicas hold all of it ──▶ answer, Repairing
//!                                      ▲  │ write back to one more, when one fails or is late
//!                                      └──┘ a late answer brings something new: another round
//! ```
//!
//! A replica holds the merged set when it has answered with all of it, or has acknowledged it in this round. Rounds
//! tell acknowledgements of the merged set apart from those of what it was before; there is at most one per answer.
//!
//! While the partition moves, enough replicas of the old set and enough of the new one must hold it: a later get may
//! ask either.
//!
//! Source of the idea: the second phase of reads in H. Attiya, A. Bar-Noy and D. Dolev, "Sharing memory robustly in
//! message-passing systems" (1995).

use model::{Generation, Moment, NodeId, Sets};

use super::interface::{GetAction, GetActions, GetFailure, GetOutcome};
use super::{Get, GetMember, GetPhase, GetReply};
use crate::quorum::counts::Tallies;
use crate::quorum::replica_error::ReplicaError;

/// How far a member has come with what was written back to it in this round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WrittenBack {
    /// Nothing was.
    No,
    /// It has been sent the merged set.
    Awaited,
    /// It did not take it.
    Failed(ReplicaError),
    /// It holds it.
    Acknowledged,
}

impl Get {
    /// Takes in that a node holds what was written back to it.
    pub(super) fn stored(&mut self, node: NodeId, generation: Generation, round: u8) {
        let earlier = round != self.round;
        if self.options.counts(generation) && !earlier {
            self.set_written_back(node, WrittenBack::Acknowledged);
        }
    }

    /// Takes in that a node has not taken what was written back to it.
    pub(super) fn not_stored(&mut self, node: NodeId, round: u8, error: ReplicaError) {
        if round == self.round {
            self.set_written_back(node, WrittenBack::Failed(error));
        }
    }

    fn set_written_back(&mut self, node: NodeId, state: WrittenBack) {
        let sent = |member: &&mut GetMember| member.node == node && member.written_back != WrittenBack::No;
        if let Some(member) = self.members.iter_mut().find(sent)
            && member.written_back != WrittenBack::Acknowledged
        {
            member.written_back = state;
        }
    }

    /// The merged set has grown: what was written back is too little now.
    pub(super) fn begin_round(&mut self) {
        self.round = self.round.wrapping_add(1);
        self.members.iter_mut().for_each(|member| member.written_back = WrittenBack::No);
    }

    /// How many replicas hold the merged set.
    pub(super) fn holders(&self) -> u8 {
        self.holding().least()
    }

    /// How many replicas of each set hold the merged set, with what the set is spared.
    fn holding(&self) -> Tallies {
        Tallies::with(self.options.spared, self.sets(GetMember::holds))
    }

    /// The sets of those that count in this sense.
    fn sets(&self, counts: impl Fn(&GetMember) -> bool) -> impl Iterator<Item = Sets> {
        self.members.iter().filter(move |member| counts(member)).map(|member| member.sets)
    }

    /// Answers when enough replicas hold the merged set; until then sends it to as many as are missing.
    pub(super) fn write_back(&mut self, actions: &mut GetActions) {
        let (holders, held) = (self.holders(), self.options.held);
        if holders >= held {
            return self.answer_done(actions);
        }
        let possible = Tallies::with(self.options.spared, self.sets(GetMember::may_hold)).least();
        if possible < held || self.now >= self.options.deadline {
            self.phase = GetPhase::Finished;
            let reason = GetFailure::NotHeld { holders, required: held };
            let errors = self.errors();
            return actions.push(GetAction::Answer(GetOutcome::Failed { reason, errors }));
        }
        self.send_back(actions);
    }

    /// Sends the merged set until as many as are missing can be expected to acknowledge it.
    fn send_back(&mut self, actions: &mut GetActions) {
        let (now, waved_at) = (self.now, self.waved_at);
        let late = |member: &GetMember| waved_at < member.late_at && member.late_at <= now;
        let awaited = |member: &&GetMember| member.written_back == WrittenBack::Awaited;
        let is_fresh = |member: &GetMember| awaited(&member) && member.late_at > now;
        let lacking = self.holding().lacking(self.options.held);
        let mut missing = lacking.without(Tallies::of(self.sets(is_fresh)));
        let wave = self.waves + u32::from(self.members.iter().filter(awaited).any(late));
        let late_at = self.options.late_at(now, wave);
        while let Some(position) = self.next_to_write_back(|sets| missing.wants(sets)) {
            (self.waves, self.waved_at) = (wave, now);
            let member = &mut self.members[position];
            member.written_back = WrittenBack::Awaited;
            member.late_at = if member.suspected { now } else { late_at };
            if !member.suspected {
                missing.take(member.sets);
            }
            let (node, round, set) = (member.node, self.round, self.merged.clone());
            actions.push(GetAction::WriteBack { node, round, set });
        }
    }

    /// Whom to write back to next: who is known to lack something, then who was not heard of, then who failed.
    fn next_to_write_back(&self, helps: impl Fn(Sets) -> bool) -> Option<usize> {
        let rank = |member: &GetMember| match member.reply {
            GetReply::Answered { .. } => 0,
            GetReply::Unasked if !member.suspected => 1,
            GetReply::Unasked | GetReply::Awaited => 2,
            GetReply::Failed(_) => 3,
        };
        let open = |member: &GetMember| {
            !member.holds() && member.written_back == WrittenBack::No && helps(member.sets)
        };
        let open = self.members.iter().enumerate().filter(|(_, member)| open(member));
        open.min_by_key(|(_, member)| rank(member)).map(|(position, _)| position)
    }

    /// When a settling machine must be woken.
    pub(super) fn settling_deadline(&self) -> Moment {
        let end = self.options.deadline;
        if self.next_to_write_back(|_| true).is_none() {
            return end;
        }
        let fresh =
            |member: &&GetMember| member.written_back == WrittenBack::Awaited && member.late_at > self.now;
        self.members.iter().filter(fresh).fold(end, |end, member| end.min(member.late_at))
    }
}

impl GetMember {
    /// Whether it is known to hold the merged set.
    pub(super) fn holds(&self) -> bool {
        self.reply == GetReply::Answered { current: true } || self.written_back == WrittenBack::Acknowledged
    }

    /// Whether it holds the merged set or may be found to.
    fn may_hold(&self) -> bool {
        let refused = matches!(self.written_back, WrittenBack::Failed(_));
        self.holds() || !refused || self.reply == GetReply::Awaited
    }
}
