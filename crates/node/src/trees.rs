//! The hash trees of one store at this node, one for each partition.
//!
//! Partitions share a lock by *stripes*. A write holds its stripe from before the engine's update until it has noted
//! there what it did to the sums; the notes of a stripe are carried over into its trees when there are many, and
//! before anybody looks at one. So a write touches a few lines of memory that are always near, and those of its tree,
//! which are far, are fetched for many writes at once.
//!
//! Whoever reads many records, to count them or to look at them, keeps no writer away meanwhile: it *watches* the tokens
//! that it reads, and takes back what it has read of leaves that were written to.
//!
//! A tree is remembered from a clean stop to the next start, in a file that is removed before anything is written:
//! so a file that is there belongs to the records that are there. Without one, trees of partitions with records are
//! doubtful until the records have been counted.
//!
//! A store whose partitions have one replica each has nobody to compare with and keeps no trees.
//!
//! Must never: let a record change without its tree, or say that a tree is right when nobody knows.

mod unreadable;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use model::{PartitionId, Ring, Token};
use protocol::antientropy::merkle::{Digest, Span, Tree, TreeDelta};
use runtime::locks::{Mutex, MutexGuard};
use storage::Partitions;

pub(crate) use unreadable::PLACES_MAX;
use unreadable::Unreadable;

/// Stripes of a store: enough that workers rarely meet, and few enough that all of them stay near.
const STRIPES: usize = 64;

/// Notes that a stripe gathers: 1 KiB.
const NOTES_MAX: usize = 32;

/// Changes that a watch remembers at most; after more it is of no use.
const CHANGES_MAX: usize = 4096;

/// Places of corrupt records that are remembered until somebody sees to them; the scrub finds others.
const DAMAGED_MAX: usize = 256;

/// Places of corrupt records that somebody has seen to, and that are not told of again while they are as they were.
const SEEN_MAX: usize = 4096;

/// The trees of one store.
pub struct Trees {
    stripes: Box<[Stripe]>,
    /// The records of these partitions were lost here and are being fetched.
    lost: Partitions<AtomicBool>,
    /// How many; while there are none, nobody looks for them.
    incomplete: AtomicUsize,
    /// Corrupt records that were replaced.
    repaired: AtomicU64,
    /// Nobody compares, so no tree is kept.
    alone: AtomicBool,
    /// Numbers of watches.
    watched: AtomicU64,
    /// Requests that met a corrupt record.
    corrupt_met: AtomicU64,
    /// Where they did.
    damaged: Mutex<Damaged>,
    /// Where records lie that cannot be read.
    unreadable: Unreadable,
}

/// Places of corrupt records that requests have met.
#[derive(Default)]
struct Damaged {
    /// Until somebody sees to them; whether the record was replaced meanwhile.
    met: BTreeMap<(PartitionId, Token), bool>,
    /// Somebody has. What nobody can mend is met again and again; it needs no second look.
    seen: BTreeSet<(PartitionId, Token)>,
}

/// On separate cache lines, so that workers do not share what they do not both use.
#[derive(Default)]
#[repr(align(128))]
struct Stripe(Mutex<Kept>);

/// What a stripe keeps.
#[derive(Default)]
struct Kept {
    /// Partitions whose tokens the ring has said, in order.
    ids: Vec<PartitionId>,
    /// Their trees.
    trees: Vec<Tree>,
    notes: Vec<Note>,
    watches: Vec<Watch>,
}

/// Tokens of a partition that somebody reads while writers go on.
struct Watch {
    number: u64,
    partition: PartitionId,
    tokens: RangeInclusive<Token>,
    /// Where records have changed since; `None` when nobody knows.
    changed: Option<Vec<Token>>,
}

/// What a write did, not yet in its tree. Halves, because the whole would be aligned to waste a third.
struct Note {
    token: Token,
    difference: [u64; 2],
    partition: PartitionId,
    records: i32,
}

impl Kept {
    fn place(&self, partition: PartitionId) -> Option<usize> {
        self.ids.binary_search(&partition).ok()
    }

    fn tree(&mut self, partition: PartitionId) -> Option<&mut Tree> {
        let place = self.place(partition)?;
        self.trees.get_mut(place)
    }

    /// Carries the notes over.
    fn settle(&mut self) {
        let Kept { ids, trees, notes, .. } = self;
        let apply = |Note { token, difference: [low, high], partition, records }: Note| {
            let difference = Digest(u128::from(low) | u128::from(high) << 64);
            // A partition that the ring does not have has no sums.
            if let Ok(place) = ids.binary_search(&partition) {
                trees[place].apply(token, TreeDelta { difference, records });
            }
        };
        notes.drain(..).for_each(apply);
    }

    /// Tells whoever reads there that the record has changed; `None` when nobody knows which.
    fn witness(&mut self, partition: PartitionId, token: Option<Token>) {
        for watch in self.watches.iter_mut().filter(|watch| watch.partition == partition) {
            match (token, &mut watch.changed) {
                (Some(token), _) if !watch.tokens.contains(&token) => {}
                (Some(token), Some(changed)) if changed.len() < CHANGES_MAX => changed.push(token),
                _ => watch.changed = None,
            }
        }
    }

    fn unwatch(&mut self, number: u64) -> Option<Watch> {
        let at = self.watches.iter().position(|watch| watch.number == number)?;
        Some(self.watches.swap_remove(at))
    }

    fn insert(&mut self, partition: PartitionId, tree: Tree) {
        self.witness(partition, None);
        match self.ids.binary_search(&partition) {
            Ok(place) => self.trees[place] = tree,
            Err(place) => {
                self.ids.insert(place, partition);
                self.trees.insert(place, tree);
            }
        }
    }
}

/// What is known of the records before anybody has counted them.
#[derive(Default)]
pub(crate) struct Beginning {
    /// Trees of a clean stop.
    pub(crate) remembered: BTreeMap<PartitionId, Tree>,
    /// Partitions with records, by what the engine says.
    pub(crate) records: BTreeMap<PartitionId, u64>,
}

/// A partition's tree, with all that its records have had, while nobody can change them.
pub(crate) struct Locked<'a>(MutexGuard<'a, Kept>, usize);

impl Locked<'_> {
    pub(crate) fn tree(&mut self) -> &mut Tree {
        &mut self.0.trees[self.1]
    }
}

/// Somebody reads tokens of a partition while writers go on, until they [`Watching::end`], or this is dropped.
#[must_use]
pub(crate) struct Watching<'a> {
    trees: &'a Trees,
    number: u64,
    partition: PartitionId,
    /// Nobody watches any more.
    is_over: bool,
    /// What to read.
    pub(crate) tokens: RangeInclusive<Token>,
    /// Bits that the tokens of one leaf share.
    pub(crate) bits: u8,
}

impl<'a> Watching<'a> {
    /// The tree as it is now, and up to which token what was read is still so, if that is at least one leaf of what was
    /// read up to `read`.
    pub(crate) fn end(mut self, read: Token) -> Option<(Locked<'a>, Token)> {
        let trees = self.trees;
        let mut kept = trees.stripe(self.partition).lock();
        self.is_over = true;
        let changed = kept.unwatch(self.number)?.changed?;
        kept.settle();
        let place = kept.place(self.partition)?;
        let locked = Locked(kept, place);
        let leaf = |token| *Span::of(token, self.bits).tokens().start();
        let steady = match changed.into_iter().filter(|token| *token <= read).map(leaf).min() {
            None => read,
            Some(first) if first > *self.tokens.start() => Token(first.0 - 1),
            Some(_) => return None,
        };
        Some((locked, steady))
    }
}

// So that a panic of whoever reads leaves no watch behind, which writers would go on telling.
impl Drop for Watching<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.trees.stripe(self.partition).lock().unwatch(self.number);
        }
    }
}

/// The right to change records of a partition.
pub struct Writing<'a> {
    kept: MutexGuard<'a, Kept>,
    partition: PartitionId,
}

impl Writing<'_> {
    /// Whether anybody wants to know of changes: nobody does before there is a ring, or when nobody compares.
    pub(crate) fn is_noted(&self) -> bool {
        !self.kept.ids.is_empty()
    }

    /// A record with this token has changed.
    pub(crate) fn note(&mut self, token: Token, change: TreeDelta) {
        if change == TreeDelta::default() {
            return;
        }
        if !self.kept.watches.is_empty() {
            self.kept.witness(self.partition, Some(token));
        }
        let TreeDelta { difference: Digest(sum), records } = change;
        let difference = [sum as u64, (sum >> 64) as u64];
        self.kept.notes.push(Note { token, difference, partition: self.partition, records });
        if self.kept.notes.len() >= NOTES_MAX {
            self.kept.settle();
        }
    }

    /// All records of the partition were removed.
    pub(crate) fn emptied(&mut self) {
        self.kept.witness(self.partition, None);
        self.kept.settle();
        if let Some(tree) = self.kept.tree(self.partition) {
            *tree = Tree::empty(&tree.tokens());
        }
    }

    /// Nobody knows any more what the records are.
    pub fn doubt(&mut self) {
        self.kept.witness(self.partition, None);
        self.kept.settle();
        if let Some(tree) = self.kept.tree(self.partition) {
            tree.doubt();
        }
    }
}

impl Default for Trees {
    fn default() -> Self {
        Trees {
            stripes: (0..STRIPES).map(|_| Stripe::default()).collect(),
            lost: Partitions::default(),
            incomplete: AtomicUsize::new(0),
            repaired: AtomicU64::new(0),
            alone: AtomicBool::new(false),
            watched: AtomicU64::new(0),
            corrupt_met: AtomicU64::new(0),
            damaged: Mutex::default(),
            unreadable: Unreadable::default(),
        }
    }
}

impl Trees {
    /// Gives each partition of the ring its tree. One that has other tokens than before begins as it would at a start.
    pub(crate) fn shape(&self, ring: &Ring, beginning: impl FnOnce() -> Beginning) {
        let bounds = bounds(ring);
        let fits = |id: PartitionId, tokens: &RangeInclusive<Token>| {
            self.stripe(id).lock().tree(id).map(|tree| tree.tokens() == *tokens)
        };
        if bounds.iter().all(|(id, tokens)| fits(*id, tokens) == Some(true)) {
            return;
        }
        let Beginning { mut remembered, records } = beginning();
        let was_alone = self.alone.swap(false, Ordering::AcqRel);
        for (id, tokens) in bounds {
            let mut kept = self.stripe(id).lock();
            let before = kept.tree(id).map(|tree| tree.tokens());
            if before.as_ref() == Some(&tokens) {
                continue;
            }
            let found = records.get(&id).copied().unwrap_or(0);
            let tree = match remembered.remove(&id) {
                Some(known) if known.tokens() == tokens && known.records() == Some(found) => known,
                // Nobody has written to a partition that was not there, unless nobody cared.
                _ if found == 0 && before.is_none() && !was_alone => Tree::empty(&tokens),
                _ => Tree::doubtful(&tokens),
            };
            kept.settle();
            kept.insert(id, tree);
        }
    }

    /// Gives all trees up: each partition has one replica, and nobody to compare with. Writes note nothing from here
    /// on, so trees that are shaped later begin doubtful.
    pub(crate) fn give_up(&self) {
        self.alone.store(true, Ordering::Release);
        for stripe in &self.stripes {
            *stripe.0.lock() = Kept::default();
        }
    }

    /// Whether no trees are kept, because nobody compares.
    pub(crate) fn is_alone(&self) -> bool {
        self.alone.load(Ordering::Acquire)
    }

    fn stripe(&self, partition: PartitionId) -> &Mutex<Kept> {
        &self.stripes[partition.0 as usize % STRIPES].0
    }

    /// Keeps other writers of a partition away while its records change.
    pub fn writing(&self, partition: PartitionId) -> Writing<'_> {
        Writing { kept: self.stripe(partition).lock(), partition }
    }

    /// Keeps writers of a partition away; `None` for one that the ring does not have.
    pub(crate) fn lock(&self, partition: PartitionId) -> Option<Locked<'_>> {
        let mut kept = self.stripe(partition).lock();
        kept.settle();
        let place = kept.place(partition)?;
        Some(Locked(kept, place))
    }

    /// Watches the tokens that `choose` names, with the bits of their leaves; `None` when there is nothing to read.
    pub(crate) fn watch(
        &self,
        partition: PartitionId,
        choose: impl FnOnce(&mut Tree) -> Option<(RangeInclusive<Token>, u8)>,
    ) -> Option<Watching<'_>> {
        let mut locked = self.lock(partition)?;
        let (tokens, bits) = choose(locked.tree())?;
        let number = self.watched.fetch_add(1, Ordering::Relaxed);
        let watch = Watch { number, partition, tokens: tokens.clone(), changed: Some(Vec::new()) };
        locked.0.watches.push(watch);
        Some(Watching { trees: self, number, partition, is_over: false, tokens, bits })
    }

    /// Looks at a partition's tree; `None` for one that the ring does not have.
    pub fn look<T>(&self, partition: PartitionId, look: impl FnOnce(&Tree) -> T) -> Option<T> {
        self.lock(partition).map(|mut locked| look(locked.tree()))
    }

    /// What `look` finds of interest in the trees, by partition.
    fn survey<T>(&self, look: impl Fn(&Tree) -> Option<T>) -> BTreeMap<PartitionId, T> {
        let mut found = BTreeMap::new();
        for stripe in &self.stripes {
            let mut kept = stripe.0.lock();
            kept.settle();
            let all = kept.ids.iter().zip(&kept.trees);
            found.extend(all.filter_map(|(id, tree)| Some((*id, look(tree)?))));
        }
        found
    }

    /// Partitions whose tree must be counted.
    pub(crate) fn uncounted(&self) -> Vec<PartitionId> {
        self.survey(|tree| tree.wants_count().then_some(())).into_keys().collect()
    }

    /// Trees, how many of them are doubtful, and bytes of memory for leaves.
    pub(crate) fn summary(&self) -> (usize, usize, usize) {
        let all = self.survey(|tree| Some((usize::from(tree.sum().is_none()), tree.bytes())));
        all.values().fold((0, 0, 0), |(trees, doubtful, bytes), (doubt, more)| {
            (trees + 1, doubtful + doubt, bytes + more)
        })
    }

    /// All trees that are counted, to be remembered.
    pub(crate) fn counted(&self) -> Vec<(PartitionId, Tree)> {
        self.survey(|tree| tree.sum().map(|_| tree.clone())).into_iter().collect()
    }

    /// Corrupt records that were replaced since the start.
    pub(crate) fn repaired(&self) -> u64 {
        self.repaired.load(Ordering::Relaxed)
    }

    /// Requests that met a corrupt record since the start.
    pub(crate) fn corrupt_met(&self) -> u64 {
        self.corrupt_met.load(Ordering::Relaxed)
    }

    /// A request met a corrupt record.
    pub(crate) fn note_corrupt(&self, partition: PartitionId, token: Token) {
        self.corrupt_met.fetch_add(1, Ordering::Relaxed);
        let mut damaged = self.damaged.lock();
        if damaged.met.len() < DAMAGED_MAX && !damaged.seen.contains(&(partition, token)) {
            damaged.met.insert((partition, token), false);
        }
    }

    /// Where requests met corrupt records since this was asked last, but for those that were handed out before and are
    /// as they were.
    pub(crate) fn take_damaged(&self) -> BTreeSet<(PartitionId, Token)> {
        let mut damaged = self.damaged.lock();
        let met = std::mem::take(&mut damaged.met);
        if damaged.seen.len() + met.len() > SEEN_MAX {
            // Rather tell of them once more than grow.
            damaged.seen.clear();
        }
        damaged.seen.extend(met.iter().filter(|(_, replaced)| !**replaced).map(|(place, _)| *place));
        met.into_keys().collect()
    }

    /// The corrupt record of this place is gone: should there be another one later, it is news. The get that met it has
    /// mostly replaced it before anybody has seen to it.
    pub(crate) fn forget_damaged(&self, partition: PartitionId, token: Token) {
        let mut damaged = self.damaged.lock();
        damaged.seen.remove(&(partition, token));
        if let Some(replaced) = damaged.met.get_mut(&(partition, token)) {
            *replaced = true;
        }
    }

    /// Where records lie that cannot be read.
    pub(crate) fn unreadable(&self) -> &Unreadable {
        &self.unreadable
    }

    pub(crate) fn note_repaired(&self) {
        self.repaired.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether the partition's records were lost here and are not back yet.
    pub(crate) fn is_incomplete(&self, partition: PartitionId) -> bool {
        self.incomplete.load(Ordering::Acquire) > 0
            && self.lost.get(partition).is_some_and(|lost| lost.load(Ordering::Acquire))
    }

    /// Says that the partition's records are lost here, or that they are back.
    pub(crate) fn set_incomplete(&self, partition: PartitionId, incomplete: bool) {
        let lost = self.lost.get_or_create(partition);
        match (lost.swap(incomplete, Ordering::AcqRel), incomplete) {
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
pub(crate) fn difference(key: &[u8], before: Option<&Bytes>, after: Option<&Bytes>) -> Option<TreeDelta> {
    let digest = |record: Option<&Bytes>| {
        record.map(|record| digest_of(key, record)).map_or(Some(None), |d| d.map(Some))
    };
    Some(TreeDelta::of(digest(before)?, digest(after)?))
}

/// What a step of scrubbing came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scrubbed {
    /// Where to go on; `None` at the end of the partition.
    pub(crate) next: Option<Token>,
    /// Records met.
    pub(crate) records: u64,
    /// Bytes of their keys and contents.
    pub(crate) bytes: u64,
    /// Of them, those that cannot be read.
    pub(crate) corrupt: u64,
    /// Leaves whose sum was not that of their records, and is now.
    pub(crate) wrong_leaves: usize,
}

/// The digest of a stored record; `None` when it does not decode.
pub(crate) fn digest_of(key: &[u8], record: &Bytes) -> Option<Digest> {
    match wire::versions::peek_single(record).ok()? {
        Some(single) => Some(Digest::of_single(key, single.dot)),
        None => Some(Digest::of(key, &wire::versions::decode_record(record).ok()?.set)),
    }
}

#[cfg(test)]
mod tests;
