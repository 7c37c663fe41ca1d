//! The index: where the newest record of every key lies. 24 bytes an entry, and one of the table.
//!
//! An entry does not hold the key: whoever follows it reads the record and compares. Token and fingerprint agree for
//! two keys once in 2⁹⁶ pairs, and then both have an entry.

use std::sync::atomic::AtomicU64;

use hashbrown::HashTable;
use model::Token;
use parking_lot::{Mutex, RwLock};
use smallvec::SmallVec;

use super::format::padded;
use crate::hash::{spread, stripe};

/// Tables per partition.
pub(super) const STRIPES: usize = 8;

/// Where one record lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) token: Token,
    pub(super) fingerprint: u32,
    pub(super) segment: u32,
    pub(super) offset: u32,
    /// Header, key and value, without padding.
    pub(super) length: u32,
}

impl Slot {
    pub(super) fn hash(&self) -> u64 {
        spread(self.token, self.fingerprint)
    }

    /// Bytes that it takes in its segment.
    pub(super) fn space(&self) -> u64 {
        padded(self.length as usize) as u64
    }

    /// True for the entry of the same record.
    fn is(&self, other: &Slot) -> bool {
        self.segment == other.segment && self.offset == other.offset
    }
}

/// The index of one partition.
#[derive(Default)]
pub(super) struct PartitionIndex {
    pub(super) stripes: [Stripe; STRIPES],
    pub(super) records: AtomicU64,
    /// Of keys and records.
    pub(super) bytes: AtomicU64,
}

impl PartitionIndex {
    pub(super) fn stripe(&self, token: Token, fingerprint: u32) -> &Stripe {
        &self.stripes[stripe(spread(token, fingerprint), STRIPES)]
    }
}

/// One table. A cache line of its own.
#[derive(Default)]
#[repr(align(64))]
pub(super) struct Stripe {
    /// Held from reading a key's record to the entry of its new one, so that updates of a key follow each other and
    /// whoever holds it sees every record that was appended for this stripe. Taken before any other lock.
    pub(super) gate: Mutex<()>,
    table: RwLock<HashTable<Slot>>,
}

/// Almost always none or one.
pub(super) type Slots = SmallVec<[Slot; 2]>;

impl Stripe {
    /// All entries for this token and fingerprint.
    pub(super) fn find(&self, token: Token, fingerprint: u32) -> Slots {
        let table = self.table.read();
        let here = table.iter_hash(spread(token, fingerprint));
        here.filter(|slot| slot.token == token && slot.fingerprint == fingerprint).copied().collect()
    }

    /// True when the entry is still there.
    pub(super) fn holds(&self, slot: &Slot) -> bool {
        self.table.read().find(slot.hash(), |other| other.is(slot)).is_some()
    }

    pub(super) fn insert(&self, slot: Slot) {
        self.table.write().insert_unique(slot.hash(), slot, Slot::hash);
    }

    /// Puts `new` where `old` is; false when `old` is there no more. Both are of the same key.
    pub(super) fn replace(&self, old: &Slot, new: Slot) -> bool {
        match self.table.write().find_mut(old.hash(), |other| other.is(old)) {
            Some(slot) => {
                *slot = new;
                true
            }
            None => false,
        }
    }

    pub(super) fn remove(&self, slot: &Slot) -> bool {
        match self.table.write().find_entry(slot.hash(), |other| other.is(slot)) {
            Ok(entry) => {
                entry.remove();
                true
            }
            Err(_) => false,
        }
    }

    /// Takes everything out.
    pub(super) fn clear(&self) -> HashTable<Slot> {
        std::mem::take(&mut *self.table.write())
    }

    pub(super) fn reserve(&self, more: usize) {
        self.table.write().reserve(more, Slot::hash);
    }

    pub(super) fn for_each(&self, mut visit: impl FnMut(&Slot)) {
        self.table.read().iter().for_each(&mut visit);
    }

    pub(super) fn allocation_bytes(&self) -> usize {
        self.table.read().allocation_size()
    }
}
