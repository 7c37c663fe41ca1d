//! The hash trees of one store at this node: one for each partition, under a lock that writes of the partition hold
//! from before the engine's update until the tree has taken it in.
//!
//! A tree is remembered from a clean stop to the next start, in a file that is removed before anything is written:
//! so a file that is there belongs to the records that are there. Without one, trees of partitions with records are
//! doubtful until the records have been counted.
//!
//! Must never: let a record change without its tree, or say that a tree is right when nobody knows.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use model::{PartitionId, Ring, Token};
use parking_lot::{Mutex, MutexGuard};
use protocol::merkle::{Change, Digest, Tree};
use storage::Partitions;

/// The trees of one store.
#[derive(Default)]
pub struct Trees {
    slots: Partitions<Slot>,
    /// Partitions that are incomplete; while there are none, nobody looks for them.
    incomplete: AtomicUsize,
    /// Corrupt records that were replaced.
    repaired: AtomicU64,
}

#[derive(Default)]
struct Slot {
    /// `None` until the ring has said which tokens the partition has.
    tree: Mutex<Option<Tree>>,
    /// The records of the partition were lost here and are being fetched.
    incomplete: AtomicBool,
}

/// What is known of the records before anybody has counted them.
#[derive(Default)]
pub(crate) struct Beginning {
    /// Trees of a clean stop.
    pub(crate) remembered: BTreeMap<PartitionId, Tree>,
    /// Partitions with records, by what the engine says.
    pub(crate) records: BTreeMap<PartitionId, u64>,
}

/// A partition's tree while nobody else can change its records.
pub(super) struct Locked<'a>(MutexGuard<'a, Option<Tree>>);

impl Locked<'_> {
    pub(super) fn tree(&mut self) -> Option<&mut Tree> {
        self.0.as_mut()
    }
}

impl Trees {
    /// Gives each partition of the ring its tree. One that has other tokens than before begins as it would at a start.
    pub(super) fn shape(&self, ring: &Ring, beginning: impl FnOnce() -> Beginning) {
        let bounds = bounds(ring);
        let differs = |(id, tokens): &&(PartitionId, RangeInclusive<Token>)| {
            let slot = self.slots.get(*id);
            slot.is_none_or(|slot| slot.tree.lock().as_ref().is_none_or(|tree| tree.tokens() != *tokens))
        };
        if bounds.iter().find(differs).is_none() {
            return;
        }
        let Beginning { mut remembered, records } = beginning();
        for (id, tokens) in bounds {
            let mut tree = self.slots.get_or_create(id).tree.lock();
            if tree.as_ref().is_some_and(|tree| tree.tokens() == tokens) {
                continue;
            }
            let found = records.get(&id).copied().unwrap_or(0);
            let known = remembered.remove(&id);
            *tree = Some(match known {
                Some(known) if known.tokens() == tokens && known.records() == Some(found) => known,
                _ if found == 0 => Tree::empty(&tokens),
                _ => Tree::doubtful(&tokens),
            });
        }
    }

    /// Keeps writers of a partition away; `None` for one that the ring does not have.
    pub(super) fn lock(&self, partition: PartitionId) -> Option<Locked<'_>> {
        self.slots.get(partition).map(|slot| Locked(slot.tree.lock()))
    }

    /// Looks at a partition's tree.
    pub(crate) fn look<T>(&self, partition: PartitionId, look: impl FnOnce(&Tree) -> T) -> Option<T> {
        self.slots.get(partition)?.tree.lock().as_ref().map(look)
    }

    /// Partitions whose tree must be counted.
    pub(crate) fn uncounted(&self) -> Vec<PartitionId> {
        let wants = |slot: &Slot| slot.tree.lock().as_ref().is_some_and(Tree::wants_count);
        self.slots.iter().filter(|(_, slot)| wants(slot)).map(|(id, _)| id).collect()
    }

    /// Trees, how many of them are doubtful, and bytes of memory for leaves.
    pub(crate) fn summary(&self) -> (usize, usize, usize) {
        self.slots.iter().fold((0, 0, 0), |(trees, doubtful, bytes), (_, slot)| {
            let tree = slot.tree.lock();
            let Some(tree) = tree.as_ref() else { return (trees, doubtful, bytes) };
            (trees + 1, doubtful + usize::from(tree.sum().is_none()), bytes + tree.bytes())
        })
    }

    /// All trees that are counted, to be remembered.
    pub(crate) fn counted(&self) -> Vec<(PartitionId, Tree)> {
        let counted = |slot: &Slot| slot.tree.lock().as_ref().filter(|tree| tree.sum().is_some()).cloned();
        self.slots.iter().filter_map(|(id, slot)| Some((id, counted(slot)?))).collect()
    }

    /// Corrupt records that were replaced since the start.
    pub(crate) fn repaired(&self) -> u64 {
        self.repaired.load(Ordering::Relaxed)
    }

    pub(super) fn note_repaired(&self) {
        self.repaired.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether the partition's records were lost here and are not back yet.
    pub(crate) fn is_incomplete(&self, partition: PartitionId) -> bool {
        self.incomplete.load(Ordering::Acquire) > 0
            && self.slots.get(partition).is_some_and(|slot| slot.incomplete.load(Ordering::Acquire))
    }

    /// Says that the partition's records are lost here, or that they are back.
    pub(crate) fn set_incomplete(&self, partition: PartitionId, incomplete: bool) {
        let slot = self.slots.get_or_create(partition);
        match (slot.incomplete.swap(incomplete, Ordering::AcqRel), incomplete) {
            (false, true) => self.incomplete.fetch_add(1, Ordering::AcqRel),
            (true, false) => self.incomplete.fetch_sub(1, Ordering::AcqRel),
            _ => 0,
        };
    }
}

/// Partitions with their tokens.
pub(crate) fn bounds(ring: &Ring) -> Vec<(PartitionId, RangeInclusive<Token>)> {
    let partitions = ring.partitions();
    let ends = partitions.iter().skip(1).map(|next| next.start - 1).chain([u64::MAX]);
    partitions.iter().zip(ends).map(|(p, end)| (p.id, Token(p.start)..=Token(end))).collect()
}

/// What a write does to the sums; `None` when one of the two records cannot be read.
pub(super) fn difference(key: &[u8], before: Option<&Bytes>, after: Option<&Bytes>) -> Option<Change> {
    let digest = |record: Option<&Bytes>| {
        record.map(|record| digest_of(key, record)).map_or(Some(None), |d| d.map(Some))
    };
    Some(Change { removed: digest(before)?, added: digest(after)? })
}

/// The digest of a stored record; `None` when it does not decode.
pub(super) fn digest_of(key: &[u8], record: &Bytes) -> Option<Digest> {
    match wire::versions::peek_single(record).ok()? {
        Some(single) => Some(Digest::of_single(key, single.dot)),
        None => Some(Digest::of(key, &wire::versions::decode_record(record).ok()?.set)),
    }
}
