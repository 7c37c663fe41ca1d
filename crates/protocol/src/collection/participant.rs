//! What one node knows of rounds, and what it accepts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use model::{Epoch, Generation, Moment, StoreName, Timestamp, VersionSet};

use super::RoundId;

/// Rounds that may be under way at one node at the same time: one is usual, two when initiators disagree.
pub const GUARDS_MAX: usize = 4;

/// How long a node keeps the keys of a round clean for a fence that does not come.
pub const GUARD_TIME: Duration = Duration::from_secs(60);

/// Fences that are remembered for the second time they are asked for.
const FENCED_MAX: usize = 16;

/// What a node remembers of rounds over restarts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Remembered {
    /// Contents read before this are not accepted.
    pub epoch: Epoch,
    /// Contents formed under an older document than this are not accepted: it is that of the epoch's round.
    pub generation: Generation,
    /// No write is stamped with a timestamp up to this: a tombstone that is forgotten had it.
    pub floor: Timestamp,
}

/// What a starting node's disk turns out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// It holds nothing yet: the node begins with the completed epoch.
    Fresh(Epoch),
    /// It is where it should be.
    Sound,
    /// It remembers less than this completed epoch, so it is a copy of earlier days: its records may be what others
    /// have forgotten the deletion of. They must be set aside before the node begins with that epoch.
    RolledBack(Epoch),
}

/// Judges a disk: `fresh` when it was empty, `remembered` what it says, `completed` what the coordination service
/// says.
pub fn judge_start(fresh: bool, remembered: Remembered, completed: Epoch) -> Start {
    match remembered.epoch < completed {
        true if fresh => Start::Fresh(completed),
        true => Start::RolledBack(completed),
        false => Start::Sound,
    }
}

/// An epoch that came with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heard {
    /// The epoch.
    pub epoch: Epoch,
    /// The document under which the message was formed.
    pub generation: Generation,
}

/// A round's first question.
#[derive(Clone, Debug)]
pub struct Confirm {
    /// Which round.
    pub round: RoundId,
    /// The document of the round.
    pub generation: Generation,
    /// The keys, each with the tombstones that shall be forgotten.
    pub keys: Arc<BTreeMap<(StoreName, Bytes), VersionSet>>,
}

/// Why a node takes no part, or accepts nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundRefusal {
    /// Read before this epoch.
    StaleEpoch(Epoch),
    /// Formed under an older document than that of the epoch's round.
    StaleGeneration,
    /// The round belongs to another document than this node follows.
    OtherGeneration,
    /// This node does not know what it confirmed: it was started since, or it is too long ago.
    NoGuard,
    /// Too many rounds are under way.
    TooManyRounds,
    /// The epoch is not greater than the node's when it confirmed.
    EpochTooSmall,
    /// This node has not compared its disk with the coordination service yet.
    NotCompared,
}

/// What to do about a fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceStep {
    /// Make this durable, then call [`Participant::fenced`], then answer.
    Remember(Remembered),
    /// It was carried out by this process before: answer.
    Already,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Guard {
    round: RoundId,
    generation: Generation,
    /// The node's epoch when it confirmed.
    epoch: Epoch,
    until: Moment,
    keys: Arc<BTreeMap<(StoreName, Bytes), VersionSet>>,
}

/// One node's part in all rounds.
///
/// The driver keeps it behind a lock that is *shared* while a merge is admitted and stored, and *exclusive* for
/// whatever changes it, so that a merge is stored entirely before or entirely after an epoch is adopted or a guard
/// is set.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Participant {
    /// What it remembers; at least what is on the disk.
    known: Remembered,
    compared: bool,
    guards: Vec<Guard>,
    /// Rounds fenced by this process, the newest last.
    fenced: Vec<RoundId>,
}

impl Participant {
    /// Begins with what the disk says. Until [`Participant::compare`], it takes over no epoch.
    pub fn new(remembered: Remembered) -> Self {
        Participant { known: remembered, compared: false, guards: Vec::new(), fenced: Vec::new() }
    }

    /// The disk was compared with the service and is what it should be, or was made so.
    pub fn compare(&mut self, epoch: Epoch) {
        self.known.epoch = self.known.epoch.max(epoch);
        self.compared = true;
        self.check();
    }

    /// Whether the disk was compared.
    pub fn is_compared(&self) -> bool {
        self.compared
    }

    /// What contents read now are tagged with. Take it *before* reading.
    pub fn epoch(&self) -> Epoch {
        self.known.epoch
    }

    /// What it remembers.
    pub fn known(&self) -> Remembered {
        self.known
    }

    /// Whether contents with this tag, in a message formed under `generation`, may be stored here.
    ///
    /// # Errors
    /// `StaleEpoch`, `StaleGeneration`.
    pub fn accepts_contents(&self, tag: Epoch, generation: Generation) -> Result<(), RoundRefusal> {
        if generation < self.known.generation {
            return Err(RoundRefusal::StaleGeneration);
        }
        if tag < self.known.epoch {
            return Err(RoundRefusal::StaleEpoch(self.known.epoch));
        }
        Ok(())
    }

    /// Whether [`Participant::hear`] would change anything: cheap, for the shared lock.
    pub fn is_news(&self, epoch: Epoch) -> bool {
        epoch > self.known.epoch
    }

    /// Takes over an epoch that somebody else knows, if this node may: it follows a document that names it as a
    /// member and is not older than the message's (`standing`; `None` when it is no member). A node that was removed
    /// and does not know it has confirmed nothing, and must not pass for one that has.
    pub fn hear(&mut self, heard: Heard, standing: Option<Generation>) {
        let stands = standing.is_some_and(|own| own >= heard.generation);
        if self.compared && stands {
            self.known.epoch = self.known.epoch.max(heard.epoch);
        }
        self.check();
    }

    /// The tombstones to merge into whatever is stored for this key, record or hint, before it is stored.
    pub fn guarded<'a>(
        &'a self,
        store: &'a StoreName,
        key: &'a Bytes,
    ) -> impl Iterator<Item = &'a VersionSet> {
        self.guards.iter().filter_map(move |guard| guard.keys.get(&(store.clone(), key.clone())))
    }

    /// Whether nothing is guarded: cheap, for every merge.
    pub fn guards_nothing(&self) -> bool {
        self.guards.is_empty()
    }

    /// Begins to guard a round's keys. Then the driver cleans the records and hints of these keys by merging the
    /// tombstones into those that are not clean, syncs all of it to the device, and answers.
    ///
    /// # Errors
    /// `OtherGeneration`, `TooManyRounds`, `NotCompared`.
    pub fn confirm(&mut self, confirm: Confirm, own: Generation, now: Moment) -> Result<(), RoundRefusal> {
        self.expire(now);
        if !self.compared {
            return Err(RoundRefusal::NotCompared);
        }
        if confirm.generation != own {
            return Err(RoundRefusal::OtherGeneration);
        }
        self.guards.retain(|guard| guard.round != confirm.round);
        if self.guards.len() >= GUARDS_MAX {
            return Err(RoundRefusal::TooManyRounds);
        }
        let Confirm { round, generation, keys } = confirm;
        let (epoch, until) = (self.known.epoch, now.after(GUARD_TIME));
        self.guards.push(Guard { round, generation, epoch, until, keys });
        self.check();
        Ok(())
    }

    /// Whether this node may fence, and what it must remember first.
    ///
    /// # Errors
    /// `NoGuard`, `EpochTooSmall`: the round ends.
    pub fn fence(
        &mut self,
        round: RoundId,
        epoch: Epoch,
        floor: Timestamp,
        now: Moment,
    ) -> Result<FenceStep, RoundRefusal> {
        self.expire(now);
        if self.fenced.contains(&round) {
            return Ok(FenceStep::Already);
        }
        let Some(guard) = self.guards.iter().find(|guard| guard.round == round) else {
            return Err(RoundRefusal::NoGuard);
        };
        if guard.epoch >= epoch {
            return Err(RoundRefusal::EpochTooSmall);
        }
        Ok(FenceStep::Remember(Remembered {
            epoch: self.known.epoch.max(epoch),
            generation: self.known.generation.max(guard.generation),
            floor: self.known.floor.max(floor),
        }))
    }

    /// The fence's memory is durable: from now on older contents are refused.
    pub fn fenced(&mut self, round: RoundId, remembered: Remembered) {
        self.known.epoch = self.known.epoch.max(remembered.epoch);
        self.known.generation = self.known.generation.max(remembered.generation);
        self.known.floor = self.known.floor.max(remembered.floor);
        self.guards.retain(|guard| guard.round != round);
        if !self.fenced.contains(&round) {
            self.fenced.push(round);
        }
        if self.fenced.len() > FENCED_MAX {
            self.fenced.remove(0);
        }
        self.check();
    }

    /// The round is over, and this node's fence was not asked for, or refused: its keys need no guard any more.
    pub fn release(&mut self, round: RoundId) {
        self.guards.retain(|guard| guard.round != round);
    }

    /// What holds after every step.
    fn check(&self) {
        assert!(self.guards.len() <= GUARDS_MAX, "no more rounds are under way than may be");
        assert!(self.fenced.len() <= FENCED_MAX, "no more fences are remembered than may be");
        for (position, guard) in self.guards.iter().enumerate() {
            assert!(
                guard.epoch <= self.known.epoch,
                "a guard began under an epoch that this node had reached"
            );
            assert!(
                self.guards[..position].iter().all(|earlier| earlier.round != guard.round),
                "each round has one guard"
            );
        }
    }

    fn expire(&mut self, now: Moment) {
        self.guards.retain(|guard| guard.until > now);
    }
}
