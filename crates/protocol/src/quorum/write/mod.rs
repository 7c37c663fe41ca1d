//! The quorum of a put or a delete.
//!
//! The coordinator has stamped the write before the machine starts, and has applied it if it is a replica. The
//! first wave merges the write at all other replicas. Each replica is a *slot*; a slot is *covered* when its replica
//! has acknowledged, or, in a sloppy quorum, when a fallback has: a stand-in that holds a durable hint for it.
//!
//! ```text
//!   slot n2 ── Merge ──▶ n2   slow until hedge_after, suspected, or failed
//!      └────── SendHint ─▶ n4  holder of the hint for n2; when n4 fails too, the next fallback …
//!                └─ none left: ParkHint, the coordinator keeps the hint itself; never counted
//! ```
//!
//! **Why slots are counted, not nodes.** When a hint is delivered, its holder drops it. A replica's own copy and a
//! hint for that same replica are one copy soon after, so they count as one. W covered slots are W copies on W nodes
//! now, and still are after every hint has been delivered.
//!
//! **While the partition moves** the slots are those of the old and of the new replicas, each node once, and W of both
//! sets must be covered: wherever this module counts, it counts in the set where there are fewer.
//!
//! **Why parking may wait.** A parked hint will be delivered, so a write that has been parked has not failed. As
//! long as nobody can have applied the write nothing is parked: when every node refuses it, the caller hears
//! *failed*, and that is the truth. A strict quorum holds back its hints for fallbacks in the same way, for there
//! they cannot help the outcome.
//!
//! The write goes on after the answer until each replica has acknowledged or has a durable hint. A replica that
//! acknowledges after its hint was written leaves the hint in place: delivering it is a merge that changes nothing.

#[cfg(test)]
mod explore;
mod interface;

use model::{Generation, Moment, NodeId, Sets};
use smallvec::SmallVec;

pub use interface::{Local, Origin, WriteAction, WriteActions, WriteEvent, WriteOutcome};

use super::counts::Tallies;
use super::machine::machine;
use super::options::{Candidates, FALLBACKS_MAX, QuorumOptions};
use super::replica_error::{Errors, ReplicaError};

/// The quorum of one put or delete.
#[derive(Clone, Debug)]
pub struct Write {
    /// One per replica, in order of preference.
    slots: SmallVec<[Slot; 3]>,
    /// Fallbacks that were asked to hold a hint; each at most once.
    stand_ins: SmallVec<[StandIn; 2]>,
    /// Fallbacks in the order in which they are used.
    fallbacks: SmallVec<[NodeId; FALLBACKS_MAX]>,
    /// Fallbacks before this position have been used.
    next: usize,
    origin: Origin,
    options: QuorumOptions,
    phase: WritePhase,
    /// The latest time that the machine was told; never goes back.
    now: Moment,
    /// Until when more than the required acknowledgements are waited for.
    patience: Moment,
    /// Waves of stand-ins for late replicas.
    waves: u32,
    /// Whether any acknowledgement said so.
    superseded: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WritePhase {
    /// The caller waits.
    Collecting,
    /// The caller has its answer; replicas without acknowledgement or hint are still cared for.
    Placing,
    /// Nothing is left to do.
    Finished,
}

/// One replica and what became of its copy.
#[derive(Clone, Copy, Debug)]
struct Slot {
    node: NodeId,
    sets: Sets,
    suspected: bool,
    reply: WriteReply,
    late_at: Moment,
    /// Whether a fallback has acknowledged a hint for it.
    hinted: bool,
    /// Whether the coordinator was told to keep a hint for it, or it is the coordinator's own.
    parked: bool,
}

/// A fallback that was sent a hint for a slot.
#[derive(Clone, Copy, Debug)]
struct StandIn {
    holder: NodeId,
    slot: usize,
    reply: WriteReply,
    late_at: Moment,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteReply {
    Unasked,
    Awaited,
    Failed(ReplicaError),
    Acknowledged,
}

machine!(Write, WriteEvent, WriteActions);

impl Write {
    /// Starts a write that the coordinator has stamped.
    ///
    /// The answer may be among the first actions: when too few replicas exist, or the deadline has passed.
    pub fn start(
        candidates: Candidates<'_>,
        origin: Origin,
        options: QuorumOptions,
        now: Moment,
        actions: &mut WriteActions,
    ) -> Self {
        let options = options.bounded(candidates.preference);
        let late_at = options.late_at(now, 0);
        let mut write = Write {
            slots: SmallVec::new(),
            stand_ins: SmallVec::new(),
            fallbacks: candidates.fallbacks(Some(origin.own)),
            next: 0,
            origin,
            options,
            phase: WritePhase::Collecting,
            now,
            patience: late_at,
            waves: 0,
            superseded: false,
        };
        for (node, sets) in candidates.preference.sets() {
            let reply = match origin.local {
                Local::Applied if node == origin.own => WriteReply::Awaited,
                Local::Refused(error) if node == origin.own => WriteReply::Failed(error),
                _ if now >= options.deadline => WriteReply::Unasked,
                _ => {
                    actions.push(WriteAction::Merge { node });
                    WriteReply::Awaited
                }
            };
            let suspected = node != origin.own && candidates.is_suspected(node);
            let late_at = if suspected { now } else { late_at };
            write.slots.push(Slot { node, sets, suspected, reply, late_at, hinted: false, parked: false });
        }
        write.settle(actions);
        write
    }

    /// Takes in what has happened by `now`, and says what to do.
    pub fn step(&mut self, event: WriteEvent, now: Moment, actions: &mut WriteActions) {
        self.now = self.now.max(now);
        if self.phase == WritePhase::Finished {
            return;
        }
        match event {
            WriteEvent::Acknowledged { node, generation, superseded } => {
                if self.options.counts(generation) && self.acknowledge(node) {
                    self.superseded |= superseded;
                }
            }
            WriteEvent::Failed { node, error } => {
                self.fail(node, error);
                if let Some(generation) = self.newer_generation(node, error) {
                    self.phase = WritePhase::Finished;
                    let possible = self.is_possible() || self.is_anything_awaited();
                    actions.push(WriteAction::Refresh { generation, possible });
                    return;
                }
            }
            WriteEvent::Elapsed => {}
        }
        self.settle(actions);
    }

    /// When the machine must be told that time has passed; `None` when it has nothing left to do.
    pub fn deadline(&self) -> Option<Moment> {
        let end = match self.phase {
            WritePhase::Finished => return None,
            WritePhase::Placing => return Some(self.options.deadline),
            WritePhase::Collecting => self.options.deadline,
        };
        if self.covered() >= self.options.required {
            return Some(end.min(self.patience));
        }
        if !self.options.sloppy || self.next == self.fallbacks.len() {
            return Some(end);
        }
        let slots = self.slots.iter().enumerate().filter(|(_, slot)| !self.is_covered(slot));
        let fresh = slots.filter_map(|(position, _)| self.late_at(position));
        Some(fresh.fold(end, Moment::min))
    }

    /// Whether the caller still waits.
    pub fn is_unanswered(&self) -> bool {
        self.phase == WritePhase::Collecting
    }

    /// The generation of a refusal that ends this request: from a node that was asked, while the caller waits.
    fn newer_generation(&mut self, node: NodeId, error: ReplicaError) -> Option<Generation> {
        let ReplicaError::StaleGeneration { generation } = error else { return None };
        let newer = self.phase == WritePhase::Collecting && generation > self.options.generation;
        (newer && self.reply_of(node).is_some()).then_some(generation)
    }

    /// What is known of a node that was asked.
    fn reply_of(&mut self, node: NodeId) -> Option<&mut WriteReply> {
        let slots = self.slots.iter_mut().map(|slot| (slot.node, &mut slot.reply));
        let stand_ins = self.stand_ins.iter_mut().map(|stand_in| (stand_in.holder, &mut stand_in.reply));
        let mut asked = slots.chain(stand_ins).filter(|(_, reply)| **reply != WriteReply::Unasked);
        asked.find(|(asked, _)| *asked == node).map(|(_, reply)| reply)
    }

    /// Takes in an acknowledgement, also of a node that was reported as failed; false when nobody asked the node.
    fn acknowledge(&mut self, node: NodeId) -> bool {
        let Some(reply) = self.reply_of(node) else { return false };
        *reply = WriteReply::Acknowledged;
        if let Some(stand_in) = self.stand_ins.iter().find(|stand_in| stand_in.holder == node) {
            self.slots[stand_in.slot].hinted = true;
        }
        true
    }

    /// Takes in a failure. One that may have been applied is never replaced by one that certainly was not.
    fn fail(&mut self, node: NodeId, error: ReplicaError) {
        if let Some(reply) = self.reply_of(node) {
            *reply = match *reply {
                WriteReply::Unasked | WriteReply::Awaited => WriteReply::Failed(error),
                WriteReply::Failed(known) if known.is_definite() => WriteReply::Failed(error),
                known @ (WriteReply::Failed(_) | WriteReply::Acknowledged) => known,
            };
        }
    }

    /// Brings the machine to rest: nothing is left that it could do now.
    fn settle(&mut self, actions: &mut WriteActions) {
        if self.now >= self.options.deadline {
            self.give_up_waiting();
        } else {
            self.stand_in_for_failed(actions);
            self.stand_in_for_late(actions);
        }
        if self.phase == WritePhase::Collecting {
            self.answer(actions);
        }
        self.park(actions);
        if self.phase == WritePhase::Placing && self.slots.iter().all(Slot::is_placed) {
            self.phase = WritePhase::Finished;
        }
        debug_assert!(
            self.deadline().is_none_or(|deadline| deadline > self.now),
            "a machine at rest waits for the future"
        );
        debug_assert!(
            self.phase != WritePhase::Collecting || self.is_anything_awaited(),
            "a machine whose caller waits expects some reply"
        );
        if cfg!(debug_assertions) {
            self.check();
        }
    }

    /// What holds between its fields after every step.
    fn check(&self) {
        assert!(self.next <= self.fallbacks.len(), "fallbacks are used in their order, each at most once");
        assert!(self.stand_ins.len() <= self.next, "a stand-in was a fallback");
        assert!(self.options.required >= 1 && self.options.preferred >= self.options.required);
        for (position, slot) in self.slots.iter().enumerate() {
            let of_slot = self.stand_ins.iter().filter(|stand_in| stand_in.slot == position);
            let held = of_slot.map(|stand_in| stand_in.reply).any(|reply| reply == WriteReply::Acknowledged);
            assert!(slot.hinted == held, "a slot is hinted when a fallback has acknowledged its hint");
            let twice = self.slots[..position].iter().any(|other| other.node == slot.node);
            assert!(!twice, "each replica has one slot");
        }
        for stand_in in &self.stand_ins {
            assert!(stand_in.slot < self.slots.len(), "a hint is for a replica");
            assert!(stand_in.reply != WriteReply::Unasked, "a stand-in was asked");
        }
    }

    /// At the deadline: every reply that is still awaited may or may not have been applied.
    fn give_up_waiting(&mut self) {
        let slots = self.slots.iter_mut().map(|slot| &mut slot.reply);
        for reply in slots.chain(self.stand_ins.iter_mut().map(|stand_in| &mut stand_in.reply)) {
            if *reply == WriteReply::Awaited {
                *reply = WriteReply::Failed(ReplicaError::Lost);
            }
        }
        self.next = self.fallbacks.len();
    }

    /// Sends a hint for each replica that failed or is suspected, unless one is held or under way.
    fn stand_in_for_failed(&mut self, actions: &mut WriteActions) {
        let held_back = !self.options.sloppy && !self.is_possible();
        if held_back {
            return;
        }
        let late_at = self.options.late_at(self.now, self.waves);
        for position in 0..self.slots.len() {
            let slot = &self.slots[position];
            if slot.is_down() && !slot.is_placed() && !self.is_hint_awaited(position) {
                self.send_hint(position, late_at, actions);
            }
        }
    }

    /// In a sloppy quorum, sends as many hints for late replicas as acknowledgements are missing that can be
    /// counted on.
    fn stand_in_for_late(&mut self, actions: &mut WriteActions) {
        let required = self.options.required;
        if self.phase != WritePhase::Collecting || !self.options.sloppy || self.next == self.fallbacks.len() {
            return;
        }
        if self.covered() >= required {
            return;
        }
        let covered = |write: &Self, position: usize| write.is_covered(&write.slots[position]);
        let expected = |position: usize| covered(self, position) || self.late_at(position).is_some();
        let mut missing = self.tallies(|position, _| expected(position)).lacking(required);
        let late_at = self.options.late_at(self.now, self.waves + 1);
        let next = self.next;
        for position in 0..self.slots.len() {
            let sets = self.slots[position].sets;
            if missing.wants(sets) && !covered(self, position) && self.late_at(position).is_none() {
                self.send_hint(position, late_at, actions);
                missing.take(sets);
            }
        }
        self.waves += u32::from(self.next > next);
    }

    /// Sends a hint for a slot to the next fallback, if one is left.
    fn send_hint(&mut self, slot: usize, late_at: Moment, actions: &mut WriteActions) {
        let Some(&holder) = self.fallbacks.get(self.next) else { return };
        self.next += 1;
        self.stand_ins.push(StandIn { holder, slot, reply: WriteReply::Awaited, late_at });
        actions.push(WriteAction::SendHint { holder, target: self.slots[slot].node });
    }

    /// Answers as soon as it is decided how.
    fn answer(&mut self, actions: &mut WriteActions) {
        let QuorumOptions { required, preferred, .. } = self.options;
        let (covered, reachable) = (self.covered(), self.reachable());
        let patient = self.now < self.patience && reachable > covered;
        if covered >= preferred || (covered >= required && !patient) {
            self.phase = WritePhase::Placing;
            let acknowledged = self.tallies(|_, slot| slot.reply == WriteReply::Acknowledged).least();
            actions.push(WriteAction::Answer(WriteOutcome::Done {
                acks: covered,
                sloppy: acknowledged < required,
                superseded: self.superseded,
            }));
        } else if reachable < required && self.is_possible() && !self.is_own_awaited() {
            self.phase = WritePhase::Placing;
            let errors = self.errors();
            let outcome = WriteOutcome::Indeterminate { acks: covered, required, errors };
            actions.push(WriteAction::Answer(outcome));
        } else if !self.is_anything_awaited() {
            self.phase = WritePhase::Finished;
            actions.push(WriteAction::Answer(WriteOutcome::Failed { required, errors: self.errors() }));
        }
    }

    /// Parks a hint for each replica that failed and for which no hint is under way, once the write may be applied
    /// anywhere. That is when no fallback is left: until then each failed slot has a hint.
    fn park(&mut self, actions: &mut WriteActions) {
        if !self.is_possible() {
            return;
        }
        for position in 0..self.slots.len() {
            let slot = &self.slots[position];
            if slot.has_failed() && !slot.is_placed() && !self.is_hint_awaited(position) {
                let target = slot.node;
                self.slots[position].parked = true;
                // The own node needs no hint for itself: it has the write, or its disk could not hold the hint.
                if target != self.origin.own {
                    actions.push(WriteAction::ParkHint { target });
                }
            }
        }
    }

    /// Whether the slot counts.
    fn is_covered(&self, slot: &Slot) -> bool {
        slot.reply == WriteReply::Acknowledged || (self.options.sloppy && slot.hinted)
    }

    /// How many slots count.
    fn covered(&self) -> u8 {
        self.tallies(|_, slot| self.is_covered(slot)).least()
    }

    /// How many slots count or may yet count. Whenever a fallback is left, each failed slot has a hint under way.
    fn reachable(&self) -> u8 {
        let may_count = |position: usize, slot: &Slot| {
            let hint = self.options.sloppy && self.is_hint_awaited(position);
            self.is_covered(slot) || slot.reply == WriteReply::Awaited || hint
        };
        self.tallies(may_count).least()
    }

    /// How many slots of each set count in this sense, with what the set is spared.
    fn tallies(&self, counts: impl Fn(usize, &Slot) -> bool) -> Tallies {
        let counting = self.slots.iter().enumerate().filter(|&(position, slot)| counts(position, slot));
        Tallies::with(self.options.spared, counting.map(|(_, slot)| slot.sets))
    }

    /// Whether the write may be applied anywhere, now or later. Replies still awaited are not judged.
    fn is_possible(&self) -> bool {
        let applied = |reply: WriteReply| match reply {
            WriteReply::Unasked | WriteReply::Awaited => false,
            WriteReply::Failed(error) => !error.is_definite(),
            WriteReply::Acknowledged => true,
        };
        self.origin.possible
            || self.origin.local == Local::Applied
            || self.slots.iter().any(|slot| applied(slot.reply))
            || self.stand_ins.iter().any(|stand_in| applied(stand_in.reply))
    }

    fn is_anything_awaited(&self) -> bool {
        self.slots.iter().any(|slot| slot.reply == WriteReply::Awaited)
            || self.stand_ins.iter().any(|stand_in| stand_in.reply == WriteReply::Awaited)
    }

    /// Whether the coordinator's own disk has yet to say what became of its copy. That takes no network, and without
    /// it the number of acknowledgements in a bad answer would be one of chance.
    fn is_own_awaited(&self) -> bool {
        let slots = self.slots.iter().map(|slot| (slot.node, slot.reply));
        let mut replies =
            slots.chain(self.stand_ins.iter().map(|stand_in| (stand_in.holder, stand_in.reply)));
        replies.any(|reply| reply == (self.origin.own, WriteReply::Awaited))
    }

    fn is_hint_awaited(&self, slot: usize) -> bool {
        self.stand_ins.iter().any(|stand_in| stand_in.slot == slot && stand_in.reply == WriteReply::Awaited)
    }

    /// Until when a reply for the slot can be counted on; `None` when none can.
    fn late_at(&self, slot: usize) -> Option<Moment> {
        let own = Some((self.slots[slot].reply, self.slots[slot].late_at));
        let hints = self.stand_ins.iter().filter(|stand_in| stand_in.slot == slot);
        let replies = own.into_iter().chain(hints.map(|stand_in| (stand_in.reply, stand_in.late_at)));
        let fresh = replies.filter(|&(reply, late_at)| reply == WriteReply::Awaited && late_at > self.now);
        fresh.map(|(_, late_at)| late_at).max()
    }

    fn errors(&self) -> Errors {
        let slots = self.slots.iter().map(|slot| (slot.node, slot.reply));
        let replies = slots.chain(self.stand_ins.iter().map(|stand_in| (stand_in.holder, stand_in.reply)));
        let error = |(node, reply)| match reply {
            WriteReply::Failed(error) => Some((node, error)),
            _ => None,
        };
        replies.filter_map(error).collect()
    }
}

impl Slot {
    /// Whether its replica did not take the write, as far as is known.
    fn has_failed(&self) -> bool {
        matches!(self.reply, WriteReply::Failed(_) | WriteReply::Unasked)
    }

    /// Whether its replica is better not relied on.
    fn is_down(&self) -> bool {
        self.suspected || self.has_failed()
    }

    /// Whether its copy rests somewhere from where it reaches the replica.
    fn is_placed(&self) -> bool {
        self.reply == WriteReply::Acknowledged || self.hinted || self.parked
    }
}
