//! The index: where the newest record of every key lies. 24 bytes an entry, and one of the table.
//!
//! An entry does not hold the key: whoever follows it reads the record and compares. Token and fingerprint agree for
//! two keys once in 2⁹⁶ pairs, and then both have an entry.
//!
//! Reading takes a look at a table. Changing takes the gate of the key first, so an entry changes only through a
//! [`Gate`], which also keeps the sums of the partition.

use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::HashTable;
use model::{PartitionId, Token};
use parking_lot::{Mutex, MutexGuard, RwLock};
use smallvec::SmallVec;

use super::format::{RECORD_HEADER_BYTES, padded};
use crate::hash::{spread, stripe};
use crate::partitions::Partitions;

/// Tables per partition.
const STRIPES: usize = 8;

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

    /// Bytes of its key and value.
    fn bytes(&self) -> u64 {
        let length = u64::from(self.length);
        debug_assert!(length >= RECORD_HEADER_BYTES as u64, "a record has a header: {self:?}");
        length - RECORD_HEADER_BYTES as u64
    }

    /// Where the record ends in its segment.
    pub(super) fn end(&self) -> u64 {
        u64::from(self.offset) + u64::from(self.length)
    }

    /// Segment and offset, which name the record.
    pub(super) fn place(&self) -> (u32, u32) {
        (self.segment, self.offset)
    }

    /// True for the entry of the same record.
    fn is(&self, other: &Slot) -> bool {
        self.place() == other.place()
    }

    /// True for entries that may be of the same key.
    fn is_alike(&self, other: &Slot) -> bool {
        self.token == other.token && self.fingerprint == other.fingerprint
    }
}

/// The index of all partitions.
#[derive(Default)]
pub(super) struct Index {
    partitions: Partitions<PartitionIndex>,
}

impl Index {
    pub(super) fn get(&self, partition: PartitionId) -> Option<&PartitionIndex> {
        self.partitions.get(partition)
    }

    pub(super) fn get_or_create(&self, partition: PartitionId) -> &PartitionIndex {
        self.partitions.get_or_create(partition)
    }

    /// All partitions that ever had a record, by id.
    pub(super) fn iter(&self) -> impl Iterator<Item = (PartitionId, &PartitionIndex)> {
        self.partitions.iter()
    }

    /// Shows every entry.
    pub(super) fn for_each(&self, mut visit: impl FnMut(&Slot)) {
        self.iter().for_each(|(_, partition)| partition.for_each(&mut visit));
    }
}

/// The index of one partition.
#[derive(Default)]
pub(super) struct PartitionIndex {
    stripes: [Stripe; STRIPES],
    /// Entries of all tables.
    records: AtomicU64,
    /// Bytes of their keys and values.
    bytes: AtomicU64,
}

/// Almost always none or one.
pub(super) type Slots = SmallVec<[Slot; 2]>;

impl PartitionIndex {
    fn stripe(&self, token: Token, fingerprint: u32) -> &Stripe {
        &self.stripes[stripe(spread(token, fingerprint), STRIPES)]
    }

    /// Entries.
    pub(super) fn records(&self) -> u64 {
        self.records.load(Ordering::Relaxed)
    }

    /// Bytes of keys and values.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Bytes of memory.
    pub(super) fn memory_bytes(&self) -> usize {
        let tables = self.stripes.iter().map(|stripe| stripe.table.read().allocation_size());
        tables.sum::<usize>() + size_of::<PartitionIndex>()
    }

    /// All entries for this token and fingerprint.
    pub(super) fn find(&self, token: Token, fingerprint: u32) -> Slots {
        self.stripe(token, fingerprint).find(token, fingerprint)
    }

    /// Shows every entry, table by table.
    pub(super) fn for_each(&self, mut visit: impl FnMut(&Slot)) {
        self.stripes.iter().for_each(|stripe| stripe.for_each(&mut visit));
    }

    /// Takes the gate of a key: no record is between its append and its entry while it is held.
    pub(super) fn gate(&self, token: Token, fingerprint: u32) -> Gate<'_> {
        let stripe = self.stripe(token, fingerprint);
        Gate { partition: self, stripe, _held: stripe.gate.lock() }
    }

    /// Takes gate after gate, and shows what can be changed under each.
    pub(super) fn gates(&self) -> impl Iterator<Item = Gate<'_>> {
        self.stripes.iter().map(|stripe| Gate { partition: self, stripe, _held: stripe.gate.lock() })
    }

    /// Takes all gates at once, always in the same order; nobody else holds two.
    pub(super) fn all_gates(&self) -> AllGates<'_> {
        AllGates { partition: self, _held: self.gates().map(|gate| gate._held).collect() }
    }

    /// True when no gate is held and there is no entry: nobody is between an append and an entry either.
    pub(super) fn is_empty_and_still(&self) -> bool {
        let still = || self.stripes.iter().all(|stripe| stripe.gate.try_lock().is_some());
        self.records() == 0 && still() && self.records() == 0
    }

    /// Enters many records at once, none of which has an entry.
    pub(super) fn fill(&self, slots: &[Slot]) {
        for stripe in &self.stripes {
            // A little more than an even share, so that few tables grow while they fill.
            let share = slots.len() / STRIPES + slots.len() / (STRIPES * 8);
            stripe.table.write().reserve(share, Slot::hash);
        }
        slots.iter().for_each(|slot| self.stripe(slot.token, slot.fingerprint).insert(*slot));
        self.records.fetch_add(slots.len() as u64, Ordering::Relaxed);
        self.bytes.fetch_add(slots.iter().map(Slot::bytes).sum(), Ordering::Relaxed);
    }

    /// Panics unless the sums are those of the tables. Takes all gates and looks at every entry.
    pub(super) fn validate(&self) {
        let gates = self.all_gates();
        let (mut records, mut bytes) = (0, 0);
        gates.partition.for_each(|slot| (records, bytes) = (records + 1, bytes + slot.bytes()));
        assert_eq!(
            (self.records(), self.bytes()),
            (records, bytes),
            "the sums of a partition are those of its entries"
        );
    }
}

/// One table. It has its own cache line.
#[derive(Default)]
#[repr(align(64))]
struct Stripe {
    /// Held from reading a key's record to the entry of its new one, so that updates of a key follow each other and
    /// whoever holds it sees every record that was appended for this stripe. Taken before any other lock.
    gate: Mutex<()>,
    table: RwLock<HashTable<Slot>>,
}

impl Stripe {
    fn find(&self, token: Token, fingerprint: u32) -> Slots {
        let table = self.table.read();
        let here = table.iter_hash(spread(token, fingerprint));
        here.filter(|slot| slot.token == token && slot.fingerprint == fingerprint).copied().collect()
    }

    fn insert(&self, slot: Slot) {
        self.table.write().insert_unique(slot.hash(), slot, Slot::hash);
    }

    fn for_each(&self, mut visit: impl FnMut(&Slot)) {
        self.table.read().iter().for_each(&mut visit);
    }
}

/// One table, while nobody else changes it.
pub(super) struct Gate<'a> {
    partition: &'a PartitionIndex,
    stripe: &'a Stripe,
    _held: MutexGuard<'a, ()>,
}

impl Gate<'_> {
    /// All entries for this token and fingerprint.
    pub(super) fn find(&self, token: Token, fingerprint: u32) -> Slots {
        self.stripe.find(token, fingerprint)
    }

    /// Shows every entry of the table.
    pub(super) fn for_each(&self, visit: impl FnMut(&Slot)) {
        self.stripe.for_each(visit);
    }

    /// True when the entry is still there.
    pub(super) fn holds(&self, slot: &Slot) -> bool {
        self.stripe.table.read().find(slot.hash(), |other| other.is(slot)).is_some()
    }

    /// Points a key at its new record: in the place of the entry that it has, or with a first one.
    pub(super) fn point(&self, before: Option<&Slot>, slot: Slot) {
        match before {
            Some(before) => {
                let replaced = self.replace(before, slot);
                assert!(replaced, "under its gate nobody else touches a key's entry: {before:?}");
            }
            None => {
                self.stripe.insert(slot);
                self.partition.bytes.fetch_add(slot.bytes(), Ordering::Relaxed);
                self.partition.records.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Puts `new` where `old` is; false when `old` is there no more. Both are of the same key.
    pub(super) fn replace(&self, old: &Slot, new: Slot) -> bool {
        debug_assert!(old.is_alike(&new), "one key has one token: {old:?}, {new:?}");
        let replaced = match self.stripe.table.write().find_mut(old.hash(), |other| other.is(old)) {
            Some(slot) => {
                *slot = new;
                true
            }
            None => false,
        };
        if replaced && new.length != old.length {
            let grown = new.bytes().wrapping_sub(old.bytes());
            self.partition.bytes.fetch_add(grown, Ordering::Relaxed);
        }
        replaced
    }

    /// Takes a key's entry out.
    pub(super) fn take_out(&self, slot: &Slot) {
        let removed = match self.stripe.table.write().find_entry(slot.hash(), |other| other.is(slot)) {
            Ok(entry) => {
                entry.remove();
                true
            }
            Err(_) => false,
        };
        assert!(removed, "under its gate nobody else touches a key's entry: {slot:?}");
        let records = self.partition.records.fetch_sub(1, Ordering::Relaxed);
        let bytes = self.partition.bytes.fetch_sub(slot.bytes(), Ordering::Relaxed);
        assert!(
            records >= 1 && bytes >= slot.bytes(),
            "an entry was counted when it came: {records} records of {bytes} bytes, {slot:?}"
        );
    }
}

/// All tables of a partition, while nobody else changes them.
pub(super) struct AllGates<'a> {
    partition: &'a PartitionIndex,
    _held: SmallVec<[MutexGuard<'a, ()>; STRIPES]>,
}

impl AllGates<'_> {
    /// Takes everything out.
    pub(super) fn clear(&self) -> Vec<Slot> {
        let mut slots = Vec::new();
        for stripe in &self.partition.stripes {
            slots.extend(std::mem::take(&mut *stripe.table.write()));
        }
        let bytes: u64 = slots.iter().map(Slot::bytes).sum();
        let counted = (
            self.partition.records.swap(0, Ordering::Relaxed),
            self.partition.bytes.swap(0, Ordering::Relaxed),
        );
        assert_eq!(counted, (slots.len() as u64, bytes), "the sums of a partition are those of its entries");
        slots
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(number: u32, offset: u32, length: u32) -> Slot {
        Slot { token: Token(u64::from(number)), fingerprint: number, segment: 1, offset, length }
    }

    #[test]
    fn sums_follow_the_entries() {
        let index = PartitionIndex::default();
        index.fill(&(0..100).map(|number| slot(number, number * 64, 58)).collect::<Vec<_>>());
        let (first, longer) = (slot(7, 7 * 64, 58), slot(7, 9000, 148));
        let gate = index.gate(first.token, first.fingerprint);
        gate.point(Some(&first), longer);
        assert!(!gate.replace(&first, longer), "it is there no more");
        drop(gate);
        assert_eq!((index.records(), index.bytes()), (100, 99 * 10 + 100));
        index.gate(longer.token, longer.fingerprint).take_out(&longer);
        index.gate(longer.token, longer.fingerprint).point(None, first);
        assert_eq!((index.records(), index.bytes()), (100, 1000));
        index.validate();
        assert_eq!(index.all_gates().clear().len(), 100);
        assert!(index.is_empty_and_still());
        index.validate();
    }

    /// Whoever holds a gate may have appended a record that has no entry yet.
    #[test]
    fn a_partition_without_entries_is_not_still_while_a_gate_is_held() {
        let index = PartitionIndex::default();
        let gate = index.gate(Token(1), 1);
        assert!(!index.is_empty_and_still());
        gate.point(None, slot(1, 64, 58));
        drop(gate);
        assert!(!index.is_empty_and_still());
        index.gate(Token(1), 1).take_out(&slot(1, 64, 58));
        assert!(index.is_empty_and_still());
    }

    #[test]
    fn an_entry_takes_25_bytes_of_tables_that_are_at_least_seven_sixteenths_full() {
        let index = PartitionIndex::default();
        assert_eq!(index.memory_bytes(), size_of::<PartitionIndex>());
        let slots: Vec<Slot> =
            (0..10_000).map(|number: u32| slot(number.wrapping_mul(0x9e37_79b9), number * 64, 58)).collect();
        index.fill(&slots);
        let tables = index.memory_bytes() - size_of::<PartitionIndex>();
        assert!(tables > 10_000 * 25 * 8 / 7 && tables < 10_000 * 25 * 16 / 7, "{tables} bytes");
    }

    #[test]
    #[should_panic(expected = "nobody else touches a key's entry")]
    fn an_entry_that_changes_beside_its_gate_is_noticed() {
        let index = PartitionIndex::default();
        index.gate(Token(1), 1).point(Some(&slot(1, 64, 58)), slot(1, 128, 58));
    }
}
