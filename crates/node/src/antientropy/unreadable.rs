//! Where records lie here that cannot be read: who takes a partition over must not take its donor for whole.
//!
//! A page or a list of keys leaves such a record out. The place is remembered, and told to whoever compares, until a
//! record can be read there again. Then the peer is asked once more.
//!
//! Must never: forget a place at which a record still cannot be read.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use model::{PartitionId, Token};
use parking_lot::Mutex;
use storage::{Met, StorageError};

use super::trees::digest_of;
use crate::stores::LocalStore;

/// Places that are remembered of one partition. With more, it counts as unreadable until the node is started again.
const PLACES_MAX: usize = 4096;

/// Places of one store.
#[derive(Default)]
pub(crate) struct Unreadable {
    /// There is at least one; while there is none, nobody takes the lock.
    any: AtomicBool,
    places: Mutex<BTreeMap<PartitionId, BTreeSet<Token>>>,
}

impl Unreadable {
    /// A record with this token could not be read.
    pub(crate) fn note(&self, partition: PartitionId, token: Token) {
        let mut places = self.places.lock();
        let of = places.entry(partition).or_default();
        if of.len() < PLACES_MAX {
            of.insert(token);
        }
        self.any.store(true, Ordering::Release);
    }

    fn of(&self, partition: PartitionId) -> BTreeSet<Token> {
        if !self.any.load(Ordering::Acquire) {
            return BTreeSet::new();
        }
        self.places.lock().get(&partition).cloned().unwrap_or_default()
    }

    fn mended(&self, partition: PartitionId, token: Token) {
        let mut places = self.places.lock();
        if let Some(of) = places.get_mut(&partition)
            // One that is full may have left some out.
            && of.len() < PLACES_MAX
        {
            of.remove(&token);
        }
        places.retain(|_, of| !of.is_empty());
        self.any.store(!places.is_empty(), Ordering::Release);
    }
}

impl LocalStore {
    /// Where records of the partition lie that cannot be read, as far as anybody has met them.
    pub(crate) fn unreadable(&self, partition: PartitionId) -> BTreeSet<Token> {
        let known = self.trees().unreadable();
        let mut places = known.of(partition);
        if places.len() >= PLACES_MAX {
            // Others may have been left out.
            return places;
        }
        places.retain(|&token| {
            let still = self.is_unreadable(partition, token);
            if !still {
                known.mended(partition, token);
            }
            still
        });
        places
    }

    /// The partitions in which such records lie.
    pub(crate) fn with_unreadable(&self) -> Vec<PartitionId> {
        if !self.trees().unreadable().any.load(Ordering::Acquire) {
            return Vec::new();
        }
        let known: Vec<PartitionId> = self.trees().unreadable().places.lock().keys().copied().collect();
        known.into_iter().filter(|id| !self.unreadable(*id).is_empty()).collect()
    }

    /// Whether a record with this token cannot be read. When the disk does not answer nobody knows: then it cannot.
    fn is_unreadable(&self, partition: PartitionId, token: Token) -> bool {
        let mut found = false;
        let walked: Result<(), StorageError> = self.engine().walk(partition, token..=token, &mut |_, met| {
            found |= match met {
                Met::Record { key, record } => digest_of(key, record).is_none(),
                Met::Corrupt => true,
            };
            ControlFlow::Continue(())
        });
        found || walked.is_err()
    }
}
