//! A key's state at one replica, and its laws.

use bytes::Bytes;
use smallvec::SmallVec;

use super::vector::{Actor, Context, Dot, Vector};
use crate::store::Resolver;
use crate::timestamp::{Timestamp, WallMillis};

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Value {
    /// These bytes.
    Present(Bytes),
    /// The key was deleted: a version like any other (D2).
    Tombstone,
}

/// One write that nothing known has replaced.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Version {
    /// The event that is this write.
    pub dot: Dot,
    /// When its coordinator stamped it; decides between concurrent versions under last-write-wins.
    pub timestamp: Timestamp,
    /// From this wall-clock time on the value reads as absent.
    pub expires: Option<WallMillis>,
    /// What was written.
    pub value: Value,
}

impl Version {
    /// The bytes, unless deleted or expired at `now`.
    pub fn live(&self, now: WallMillis) -> Option<&Bytes> {
        match (&self.value, self.expires) {
            (Value::Tombstone, _) => None,
            (Value::Present(_), Some(expires)) if expires <= now => None,
            (Value::Present(bytes), _) => Some(bytes),
        }
    }

    /// Whether it is a value whose time was over at `now`.
    pub fn is_over(&self, now: WallMillis) -> bool {
        matches!(self.value, Value::Present(_)) && self.expires.is_some_and(|expires| expires <= now)
    }

    /// Whether it is what reaping has left of an expired value: no deletion keeps a time.
    pub fn is_reaped(&self) -> bool {
        self.value == Value::Tombstone && self.expires.is_some()
    }

    /// Order under last-write-wins: timestamp, ties by dot. Total, the same everywhere.
    fn rank(&self) -> (Timestamp, Dot) {
        (self.timestamp, self.dot)
    }
}

/// A write on its way into a set.
#[derive(Clone, Debug)]
pub struct Stamp {
    /// Who stamps. The caller promises that no event of this actor on this key is missing from the set.
    pub actor: Actor,
    /// When. The caller promises that it is greater than every timestamp in the set and in the context.
    pub timestamp: Timestamp,
    /// From when on the value reads as absent.
    pub expires: Option<WallMillis>,
    /// What is written.
    pub value: Value,
}

/// A key's state at one replica: what has been seen, and what of it is still there.
///
/// Invariants: every dot is covered by the vector; dots are distinct and sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct VersionSet {
    vector: Vector,
    versions: SmallVec<[Version; 1]>,
}

impl VersionSet {
    /// Takes parts that came from a disk or a network; `None` when they break the invariants.
    pub fn from_parts(vector: Vector, versions: SmallVec<[Version; 1]>) -> Option<Self> {
        let sorted = versions.windows(2).all(|pair| pair[0].dot < pair[1].dot);
        let covered = versions.iter().all(|version| vector.covers(version.dot));
        (sorted && covered).then_some(VersionSet { vector, versions })
    }

    /// Everything that has been seen.
    pub fn vector(&self) -> &Vector {
        &self.vector
    }

    /// The versions that nothing known has replaced, tombstones included, sorted by dot.
    pub fn versions(&self) -> &[Version] {
        &self.versions
    }

    /// Whether the key was never written as far as this replica knows.
    pub fn is_empty(&self) -> bool {
        self.vector.is_empty()
    }

    /// What a get returns for the next put to hand back.
    pub fn context(&self) -> Context {
        Context { vector: self.vector.clone(), timestamp: self.timestamp_max() }
    }

    /// The greatest timestamp among the versions.
    pub fn timestamp_max(&self) -> Timestamp {
        self.versions.iter().map(|version| version.timestamp).max().unwrap_or_default()
    }

    /// The version that last-write-wins shows: the greatest timestamp, ties by dot. A tombstone can win.
    pub fn winner(&self) -> Option<&Version> {
        self.versions.iter().max_by_key(|version| version.rank())
    }

    /// The values to show at `now`: neither deleted nor expired.
    pub fn live(&self, now: WallMillis) -> impl Iterator<Item = &Version> {
        self.versions.iter().filter(move |version| version.live(now).is_some())
    }

    /// Whether a writer with this context has seen every version that is still there.
    pub fn is_seen_by(&self, context: &Vector) -> bool {
        self.versions.iter().all(|version| context.covers(version.dot))
    }

    /// Whether nothing is left of the key but tombstones: it was written, and all of it was deleted.
    pub fn is_deleted(&self) -> bool {
        !self.versions.is_empty() && self.versions.iter().all(|version| version.value == Value::Tombstone)
    }

    /// When the first value here expires, if any does.
    pub fn expires_min(&self) -> Option<WallMillis> {
        let present = self.versions.iter().filter(|version| matches!(version.value, Value::Present(_)));
        present.filter_map(|version| version.expires).min()
    }

    /// Forgets the bytes of all values whose time was over at `now`; how many bytes, and of how many values. Each
    /// stays as a tombstone with the same dot and timestamp, which nobody who compares dots can tell from the value,
    /// and keeps its time, which tells it from a deletion.
    pub fn reap(&mut self, now: WallMillis) -> (usize, u64) {
        let (mut values, mut bytes) = (0, 0);
        for version in self.versions.iter_mut().filter(|version| version.is_over(now)) {
            if let Value::Present(value) = std::mem::replace(&mut version.value, Value::Tombstone) {
                (values, bytes) = (values + 1, bytes + value.len() as u64);
            }
        }
        (values, bytes)
    }

    /// Whether a value here was reaped whose time is not over at `now`: by a clock that is ahead of the one that asks.
    pub fn is_reaped_before(&self, now: WallMillis) -> bool {
        self.versions.iter().any(|version| version.is_reaped() && version.expires > Some(now))
    }

    /// Whether none of the versions here is one that `deleted`, whose versions are tombstones, has replaced. Stays
    /// so when clean sets are merged and when clean sets are written to.
    pub fn is_clean_of(&self, deleted: &VersionSet) -> bool {
        let replaced = |dot| deleted.vector.covers(dot) && !deleted.holds(dot);
        !self.versions.iter().any(|version| replaced(version.dot))
    }

    /// Whether the set still holds this write.
    pub fn holds(&self, dot: Dot) -> bool {
        self.version(dot).is_some()
    }

    fn version(&self, dot: Dot) -> Option<&Version> {
        self.versions.iter().find(|version| version.dot == dot)
    }

    /// Adds a write that replaces what `context` covers, or everything here when there is none, and returns its dot.
    ///
    /// # Panics
    /// When the actor's count overflows 64 bits, which no node lives to see.
    pub fn put(&mut self, stamp: Stamp, context: Option<&Vector>) -> Dot {
        match context {
            None => self.versions.clear(),
            Some(context) => {
                self.versions.retain(|version| !context.covers(version.dot));
                self.vector.join(context);
            }
        }
        let count = self.vector.count(stamp.actor).checked_add(1).expect("64-bit counts do not overflow");
        let dot = Dot { actor: stamp.actor, count };
        self.vector.see(dot);
        let position = self.versions.partition_point(|version| version.dot < dot);
        let Stamp { timestamp, expires, value, .. } = stamp;
        self.versions.insert(position, Version { dot, timestamp, expires, value });
        dot
    }

    /// Merges what another replica holds: associative, commutative, idempotent. Of a value that one side has reaped the
    /// bytes are kept: a clock that ran ahead must not take a value away that others still show.
    pub fn merge(&mut self, other: &VersionSet) {
        if other.vector.descends(&self.vector) && other.vector != self.vector && self.versions.is_empty() {
            self.clone_from(other);
            return;
        }
        let (mine, theirs) = (&self.vector, &other.vector);
        let mut merged: SmallVec<[Version; 1]> = SmallVec::new();
        for version in &self.versions {
            match other.version(version.dot) {
                Some(unreaped) if version.is_reaped() => merged.push(unreaped.clone()),
                None if theirs.covers(version.dot) => {}
                _ => merged.push(version.clone()),
            }
        }
        for version in &other.versions {
            if !mine.covers(version.dot) {
                merged.push(version.clone());
            }
        }
        merged.sort_unstable_by_key(|version| version.dot);
        self.versions = merged;
        self.vector.join(&other.vector);
    }

    /// Lets the store's resolver drop what it does not keep. Merging resolved sets and resolving merged sets agree.
    pub fn resolve(&mut self, resolver: Resolver) {
        if resolver == Resolver::LastWriteWins && self.versions.len() > 1 {
            let winner = self.winner().cloned();
            self.versions.clear();
            self.versions.extend(winner);
        }
    }

    /// Whether `other` holds nothing that is unknown here, nor bytes of a value that was reaped here: merging it would
    /// change nothing.
    pub fn includes(&self, other: &VersionSet) -> bool {
        self.vector.descends(&other.vector)
            && self.versions.iter().all(|mine| match other.version(mine.dot) {
                Some(theirs) => !mine.is_reaped() || theirs.is_reaped(),
                None => !other.vector.covers(mine.dot),
            })
    }
}
