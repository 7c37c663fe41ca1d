//! Which writes a deletion may have taken along, and by when.
//!
//! A deletion may be forgotten together with everything that it covered (`protocol::collection`). Then no node holds
//! the deleted write any more, nor anything that replaced it, and a judge of what must be there has to let it go. It
//! lets go of no more than it must:
//!
//! - *Time.* Nothing is forgotten but by a whole collection round. The round begins after the deletion was asked, or
//!   after a node may have reaped the expired value, and it ends before the answer that misses the write.
//! - *Causality.* Where siblings are kept, a deletion takes along what its context covers. Where the last write wins,
//!   it takes along what has no later timestamp: each set that was merged keeps only the latest of all that it met.
//!
//! A value that expires, and a deletion, may take itself along.

use std::collections::BTreeMap;
use std::time::Duration;

use model::{Moment, Vector};

use super::{Attribution, StoreKey, siblings};
use crate::history::{Action, Basis, History, Operation, OperationId, Outcome};

/// What deletions and expired values may have taken along.
pub(crate) struct Forgetting<'a> {
    history: &'a History,
    known: &'a Attribution,
    /// Deletions and puts that expire, of each key.
    takers: BTreeMap<StoreKey, Vec<OperationId>>,
    reaped_after: Duration,
}

impl<'a> Forgetting<'a> {
    /// Of this history; no node reaps a value sooner than `reaped_after` from when it may read as absent.
    pub(crate) fn new(history: &'a History, known: &'a Attribution, reaped_after: Duration) -> Self {
        let mut takers: BTreeMap<StoreKey, Vec<OperationId>> = BTreeMap::new();
        for (id, operation) in history.all() {
            let takes = operation.action == Action::Delete || operation.expires.is_some();
            if takes && !matches!(operation.outcome, Outcome::Failed(_)) {
                takers.entry((operation.store, operation.key.clone())).or_default().push(id);
            }
        }
        Forgetting { history, known, takers, reaped_after }
    }

    /// The deletion or expired value with which the write may have been forgotten by `at`.
    pub(crate) fn taker(&self, write: OperationId, at: Moment) -> Option<OperationId> {
        let mut takers = self.takers(self.history.operation(write));
        takers.find(|&taker| self.may_be_forgotten(taker, at) && self.may_cover(taker, write))
    }

    /// Whether anything of the operation's key may have been forgotten by `at`.
    pub(crate) fn is_touched(&self, operation: &Operation, at: Moment) -> bool {
        self.takers(operation).any(|taker| self.may_be_forgotten(taker, at))
    }

    /// The deletion or expiring value that may hide the write from whoever asks before `at`, forgotten or not.
    pub(crate) fn hider(&self, write: OperationId, at: Moment) -> Option<OperationId> {
        let mut takers = self.takers(self.history.operation(write));
        takers.find(|&taker| self.history.operation(taker).invoked < at && self.may_cover(taker, write))
    }

    fn takers(&self, operation: &Operation) -> impl Iterator<Item = OperationId> {
        let place = (operation.store, operation.key.clone());
        self.takers.get(&place).into_iter().flatten().copied()
    }

    /// Whether a whole round fits between the moment from which the taker may be collected and `at`.
    fn may_be_forgotten(&self, taker: OperationId, at: Moment) -> bool {
        let taker = self.history.operation(taker);
        let from = match (&taker.action, taker.expires) {
            (Action::Put(_), Some(expires)) => expires.after(self.reaped_after),
            _ => taker.invoked,
        };
        self.history.may_be_collected(from, at)
    }

    /// Whether the write may have been replaced by the taker, or by something that the taker replaced.
    fn may_cover(&self, taker: OperationId, write: OperationId) -> bool {
        if taker == write {
            return true;
        }
        let (by, of) = (self.known.event(taker), self.known.event(write));
        if self.history.operation(taker).store == siblings::STORE {
            return match (replaced_by(self.history, self.history.operation(taker)), of) {
                (Some(vector), Some((dot, _))) => vector.covers(dot),
                _ => true,
            };
        }
        match (by, of) {
            (Some((_, later)), Some((_, earlier))) => later >= earlier,
            _ => true,
        }
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
