//! Which writes a deletion may have taken along, and by when.
//!
//! A deletion may be forgotten together with everything that it covered (`protocol::collection`). Then no node holds
//! the deleted write any more, nor anything that replaced it, and a judge of what must be there has to let it go. It
//! lets go of no more than it must:
//!
//! - *Time.* Nothing is forgotten but by a whole collection round. The round begins after the deletion was asked, or
//!   after a node may have reaped the expired value, and it ends before the answer that misses the write. Since its end
//!   a node was seen to remove its record of the key: a round that met only other keys took nothing of this one.
//! - *Causality.* Where siblings are kept, a deletion takes along what its context covers. Where the last write wins,
//!   it takes along what has no later timestamp: each set that was merged keeps only the latest of all that it met.
//!
//! A value that expires, and a deletion, may take itself along.
//!
//! What lets a value expire later (EXPIRE) takes along as a value that expires, from when a node first stored it. Of
//! such events everything was seen at the engines, so one that was not stored takes nothing.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::time::Duration;

use model::{Dot, Moment, Timestamp, Vector};

use super::{Attribution, StoreKey, siblings};
use crate::history::{Action, Basis, History, Operation, OperationId, Outcome, Touch};

/// What deletions and expired values may have taken along.
pub(crate) struct Forgetting<'a> {
    history: &'a History,
    known: &'a Attribution,
    /// What may take something along, for each key.
    keys: Vec<Vec<Taker>>,
    /// Which key each operation is of.
    places: Vec<usize>,
    /// What may become of each write, once somebody has asked: thousands of gets of a key ask about the same writes.
    fates: Vec<OnceCell<DeletionFate>>,
}

/// The first moments at which a write may be gone.
#[derive(Clone, Copy)]
struct DeletionFate {
    /// Forgotten, with a deletion or an expired value.
    forgotten: Option<Moment>,
    /// Hidden by one, forgotten or not.
    hidden: Option<Moment>,
}

/// A deletion, or a value that expires.
struct Taker {
    /// The write, if it is one of the history: it may take itself along.
    write: Option<OperationId>,
    /// From when it may hide what it covers.
    hides: Moment,
    /// When a round may have forgotten it first.
    forgotten: Option<Moment>,
    /// What it may have replaced.
    covers: Cover,
}

enum Cover {
    All,
    Seen(Vector),
    Until(Timestamp),
}

impl Cover {
    fn may_cover(&self, event: Option<(Dot, Timestamp)>) -> bool {
        let Some((dot, timestamp)) = event else { return true };
        match self {
            Cover::All => true,
            Cover::Seen(vector) => vector.covers(dot),
            Cover::Until(latest) => *latest >= timestamp,
        }
    }
}

impl<'a> Forgetting<'a> {
    /// Of this history; no node reaps a value sooner than `reaped_after` from when it may read as absent.
    pub(crate) fn new(history: &'a History, known: &'a Attribution, reaped_after: Duration) -> Self {
        let fates = vec![OnceCell::new(); history.operations.len()];
        let mut forgetting = Forgetting { history, known, keys: Vec::new(), places: Vec::new(), fates };
        let mut numbers: BTreeMap<StoreKey, usize> = BTreeMap::new();
        for (id, operation) in history.all() {
            let place = (operation.store, operation.key.clone());
            let number = *numbers.entry(place).or_insert_with_key(|place| {
                let touches = known.touches(place).iter().filter(|touch| touch.ends);
                let enders = touches.map(|touch| forgetting.ender(touch, reaped_after)).collect();
                forgetting.keys.push(enders);
                forgetting.keys.len() - 1
            });
            forgetting.places.push(number);
            let takes = match operation.action {
                Action::Put(_) => operation.expires.is_some(),
                Action::Delete => true,
                Action::Get | Action::Touch { .. } => false,
            };
            if takes && !matches!(operation.outcome, Outcome::Failed(_)) {
                let taker = forgetting.taker(id, operation, reaped_after);
                forgetting.keys[number].push(taker);
            }
        }
        forgetting
    }

    fn ender(&self, touch: &Touch, reaped_after: Duration) -> Taker {
        Taker {
            write: None,
            hides: touch.at,
            forgotten: self.history.forgotten_after((&touch.store, &touch.key), touch.at.after(reaped_after)),
            covers: Cover::Until(touch.timestamp),
        }
    }

    fn taker(&self, id: OperationId, write: &Operation, reaped_after: Duration) -> Taker {
        let from = match (&write.action, write.expires) {
            (Action::Put(_), Some(expires)) => expires.after(reaped_after),
            _ => write.invoked,
        };
        let covers = match write.store {
            siblings::STORE => replaced_by(self.history, write).map_or(Cover::All, Cover::Seen),
            _ => self.known.event(id).map_or(Cover::All, |(_, timestamp)| Cover::Until(timestamp)),
        };
        let forgotten = self.history.forgotten_after((write.store, &write.key), from);
        Taker { write: Some(id), hides: write.invoked, forgotten, covers }
    }

    /// Whether the write may have been forgotten by `at`, with a deletion or an expired value.
    pub(crate) fn is_taken(&self, write: OperationId, at: Moment) -> bool {
        self.fate(write).forgotten.is_some_and(|forgotten| forgotten <= at)
    }

    /// Whether anything of the operation's key may have been forgotten by `at`.
    pub(crate) fn is_touched(&self, operation: OperationId, at: Moment) -> bool {
        self.takers(operation).iter().any(|taker| taker.is_forgotten(at))
    }

    /// Whether a deletion or expiring value may hide the write from whoever asks before `at`, forgotten or not.
    pub(crate) fn may_be_hidden(&self, write: OperationId, at: Moment) -> bool {
        self.fate(write).hidden.is_some_and(|hidden| hidden < at)
    }

    fn fate(&self, write: OperationId) -> DeletionFate {
        *self.fates[write.0].get_or_init(|| {
            let event = self.known.event(write);
            let takers = || self.takers(write).iter().filter(|taker| taker.may_take(write, event));
            DeletionFate {
                forgotten: takers().filter_map(|taker| taker.forgotten).min(),
                hidden: takers().map(|taker| taker.hides).min(),
            }
        })
    }

    fn takers(&self, operation: OperationId) -> &[Taker] {
        &self.keys[self.places[operation.0]]
    }
}

impl Taker {
    fn is_forgotten(&self, at: Moment) -> bool {
        self.forgotten.is_some_and(|forgotten| forgotten <= at)
    }

    fn may_take(&self, write: OperationId, event: Option<(Dot, Timestamp)>) -> bool {
        self.write == Some(write) || self.covers.may_cover(event)
    }
}

/// What a write has certainly replaced: what its context covers, or, if it named none, what its answer says that it
/// knew. `None` where nobody can tell.
pub(crate) fn replaced_by(history: &History, write: &Operation) -> Option<Vector> {
    match (write.basis, &write.outcome) {
        (Basis::Blind, _) => Some(Vector::default()),
        (Basis::After(read), _) => match &history.operation(read).outcome {
            Outcome::Got(set) => Some(set.vector().clone()),
            Outcome::Written { context, .. } => Some(context.vector.clone()),
            _ => None,
        },
        (Basis::Overwrite, Outcome::Written { dot, context, .. }) if context.vector.covers(*dot) => {
            Some(context.vector.clone())
        }
        (Basis::Overwrite, _) => None,
    }
}
