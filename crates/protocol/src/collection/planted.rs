//! Bugs that this room's tests plant, to prove that the exploration would find them.
//!
//! Each wraps a machine: it changes what the machine hears or what it says, so the code that decides has no branch
//! for it. Bugs of drivers are planted in the exploration's own driver.

use std::collections::BTreeSet;

use bytes::Bytes;
use model::{Epoch, Generation, Moment, NodeId, StoreName, Timestamp, VersionSet};

use super::{
    Confirm, FenceStep, Heard, Participant, Remembered, Round, RoundAction, RoundEvent, RoundId,
    RoundRefusal, RoundStage, Start, judge_start,
};

/// A rule that a test can break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bug {
    /// The epoch is fixed before everybody has confirmed.
    OpensEarly,
    /// A round goes on although one node has not confirmed.
    SkipsAConfirm,
    /// A round collects a key that one node could not make clean.
    CollectsWhatWasLeftOut,
    /// A round goes on although one node has not fenced.
    SkipsAFence,
    /// A round collects without asking again whether everybody is still there.
    SkipsTheCheck,
    /// A round collects although the cluster document has changed.
    IgnoresTheDocument,
    /// A node that has forgotten what it confirmed fences all the same.
    FencesWithoutGuard,
    /// What comes in between confirming and fencing is not cleaned.
    GuardsNothing,
    /// Contents read before the epoch are accepted.
    AcceptsStaleTags,
    /// A node takes over an epoch under a document that it has not seen.
    HearsUnderAnyDocument,
    /// Contents formed under a document from before the round are accepted.
    AcceptsOldDocuments,
    /// A disk that remembers less than was completed is taken for sound.
    TrustsEveryDisk,
    /// A node that has not compared its disk with the service takes over epochs.
    HearsBeforeComparing,
    // What follows is done by drivers; the exploration's own driver breaks it.
    /// Confirming does not sync.
    SkipsSync,
    /// The epoch is not remembered before the fence is answered.
    ForgetsTheEpoch,
    /// A record or hint that cannot be read is taken for clean, and left where it is.
    PassesOverDamage,
    /// Hints are not looked at.
    LeavesHints,
    /// Hints that hold nothing but the tombstones are dropped before everybody has confirmed.
    DropsHintsEarly,
    /// Records are removed whatever they hold.
    CollectsAnything,
    /// The greatest timestamp that was forgotten is forgotten, too.
    ForgetsTheFloor,
    /// The epoch of a content is taken after the content was read.
    TagsLate,
}

crate::planted::plantable!(Bug);

/// [`judge_start`], or what a planted bug makes of it.
pub(super) fn judge_planted_start(fresh: bool, remembered: Remembered, completed: Epoch) -> Start {
    match planted(Bug::TrustsEveryDisk) {
        true => Start::Sound,
        false => judge_start(fresh, remembered, completed),
    }
}

/// A [`Participant`] that breaks the planted rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct PlantedParticipant(Participant);

impl PlantedParticipant {
    pub(super) fn new(remembered: Remembered) -> Self {
        PlantedParticipant(Participant::new(remembered))
    }

    pub(super) fn compare(&mut self, epoch: Epoch) {
        self.0.compare(epoch);
    }

    pub(super) fn is_compared(&self) -> bool {
        self.0.is_compared()
    }

    pub(super) fn epoch(&self) -> Epoch {
        self.0.epoch()
    }

    pub(super) fn known(&self) -> Remembered {
        self.0.known()
    }

    pub(super) fn accepts_contents(&self, tag: Epoch, generation: Generation) -> Result<(), RoundRefusal> {
        let generation = if planted(Bug::AcceptsOldDocuments) { Generation(u64::MAX) } else { generation };
        match self.0.accepts_contents(tag, generation) {
            Err(RoundRefusal::StaleEpoch(_)) if planted(Bug::AcceptsStaleTags) => Ok(()),
            answer => answer,
        }
    }

    pub(super) fn hear(&mut self, heard: Heard, standing: Option<Generation>) {
        let standing = match planted(Bug::HearsUnderAnyDocument) {
            true => Some(heard.generation),
            false => standing,
        };
        let stands = standing.is_some_and(|own| own >= heard.generation);
        if planted(Bug::HearsBeforeComparing) && !self.0.is_compared() && stands {
            // One that has not compared guards nothing yet, so nothing else is lost.
            let known = self.0.known();
            self.0 = Participant::new(Remembered { epoch: known.epoch.max(heard.epoch), ..known });
        }
        self.0.hear(heard, standing);
    }

    pub(super) fn guarded<'a>(
        &'a self,
        store: &'a StoreName,
        key: &'a Bytes,
    ) -> impl Iterator<Item = &'a VersionSet> {
        self.0.guarded(store, key).filter(|_| !planted(Bug::GuardsNothing))
    }

    pub(super) fn confirm(
        &mut self,
        confirm: Confirm,
        own: Generation,
        now: Moment,
    ) -> Result<(), RoundRefusal> {
        self.0.confirm(confirm, own, now)
    }

    pub(super) fn fence(
        &mut self,
        round: RoundId,
        epoch: Epoch,
        floor: Timestamp,
        now: Moment,
    ) -> Result<FenceStep, RoundRefusal> {
        let known = self.0.known();
        let turned = Remembered { epoch: known.epoch.max(epoch), ..known };
        match self.0.fence(round, epoch, floor, now) {
            Err(RoundRefusal::NoGuard) if planted(Bug::FencesWithoutGuard) || planted(Bug::SkipsAConfirm) => {
                Ok(FenceStep::Remember(turned))
            }
            Err(RoundRefusal::EpochTooSmall) if planted(Bug::OpensEarly) => {
                Ok(FenceStep::Remember(Remembered { floor: known.floor.max(floor), ..turned }))
            }
            answer => answer,
        }
    }

    pub(super) fn fenced(&mut self, round: RoundId, remembered: Remembered) {
        self.0.fenced(round, remembered);
    }

    pub(super) fn release(&mut self, round: RoundId) {
        self.0.release(round);
    }
}

/// A [`Round`] that breaks the planted rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct PlantedRound {
    round: Round,
    generation: Generation,
    /// Nodes whose answer the present stage has not heard.
    unheard: BTreeSet<NodeId>,
    /// Of a round that opens its epoch early: that epoch.
    opened: Epoch,
}

impl PlantedRound {
    pub(super) fn start(
        nodes: impl IntoIterator<Item = NodeId>,
        keys: u32,
        generation: Generation,
        now: Moment,
        actions: &mut Vec<RoundAction>,
    ) -> Self {
        let unheard: BTreeSet<NodeId> = nodes.into_iter().collect();
        let round = Round::start(unheard.iter().copied(), keys, generation, now, actions);
        if planted(Bug::OpensEarly) {
            actions.clear();
            actions.push(RoundAction::Open(Epoch(0)));
        }
        PlantedRound { round, generation, unheard, opened: Epoch(0) }
    }

    pub(super) fn stage(&self) -> RoundStage {
        self.round.stage()
    }

    pub(super) fn step(&mut self, event: RoundEvent, actions: &mut Vec<RoundAction>) {
        match event {
            RoundEvent::Opened(epoch) if planted(Bug::OpensEarly) => {
                self.opened = epoch;
                actions.extend(self.unheard.iter().map(|&node| RoundAction::Confirm(node)));
            }
            RoundEvent::Confirmed { node, epoch, left_out } => {
                let left_out = if planted(Bug::CollectsWhatWasLeftOut) { Vec::new() } else { left_out };
                self.heard(node, RoundEvent::Confirmed { node, epoch, left_out }, actions);
                if self.round.stage() == RoundStage::Confirming && self.skips(Bug::SkipsAConfirm) {
                    let node = *self.unheard.first().expect("one is left");
                    let left_out = Vec::new();
                    self.heard(node, RoundEvent::Confirmed { node, epoch: Epoch(0), left_out }, actions);
                }
                if planted(Bug::OpensEarly) && self.round.stage() == RoundStage::Opening {
                    actions.retain(|action| !matches!(action, RoundAction::Open(_)));
                    self.pass_on(RoundEvent::Opened(self.opened), actions);
                }
            }
            RoundEvent::Fenced(node) => {
                let stage = self.round.stage();
                self.heard(node, RoundEvent::Fenced(node), actions);
                if self.round.stage() == stage && self.skips(Bug::SkipsAFence) {
                    let node = *self.unheard.first().expect("one is left");
                    self.heard(node, RoundEvent::Fenced(node), actions);
                }
            }
            RoundEvent::Completed(generation) => {
                let own = if planted(Bug::IgnoresTheDocument) { self.generation } else { generation };
                self.pass_on(RoundEvent::Completed(own), actions);
                if planted(Bug::SkipsTheCheck) && self.round.stage() == RoundStage::Checking {
                    actions.clear();
                    for node in std::mem::take(&mut self.unheard) {
                        self.pass_on(RoundEvent::Fenced(node), actions);
                    }
                }
            }
            other => self.pass_on(other, actions),
        }
    }

    /// Whether the stage does not wait for its last node.
    fn skips(&self, bug: Bug) -> bool {
        planted(bug) && self.unheard.len() == 1
    }

    fn heard(&mut self, node: NodeId, event: RoundEvent, actions: &mut Vec<RoundAction>) {
        self.unheard.remove(&node);
        self.pass_on(event, actions);
    }

    /// Lets the machine step; a stage that begins has heard nobody.
    fn pass_on(&mut self, event: RoundEvent, actions: &mut Vec<RoundAction>) {
        let (stage, before) = (self.round.stage(), actions.len());
        self.round.step(event, actions);
        if self.round.stage() != stage {
            let asked = actions[before..].iter().filter_map(|action| match action {
                RoundAction::Confirm(node) | RoundAction::Fence(node, _) => Some(*node),
                _ => None,
            });
            self.unheard = asked.collect();
        }
    }
}
