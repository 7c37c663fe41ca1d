//! What represents a record when replicas compare.

use std::fmt;

use model::{Dot, Vector, VersionSet};
use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_128;

/// Represents a record's key, vector and dots, or, as a sum, for a set of records.
///
/// Not for values: a dot names its value. Not for the actor under which a replica stamps: that is its own business.
/// Digests travel between nodes and rest on disks, so how they are computed never changes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(pub u128);

/// A key, two entries and two dots fit.
type Canonical = SmallVec<[u8; 256]>;

/// A single version under a key of up to 64 bytes.
const SINGLE_BYTES: usize = 128;

impl Digest {
    /// Of a key and what is known of it. A key of which nothing is known has the digest of nothing.
    pub fn of(key: &[u8], set: &VersionSet) -> Digest {
        if set.is_empty() {
            return Digest::default();
        }
        let mut bytes = begin(key);
        put_vector(set.vector(), &mut bytes);
        for version in set.versions() {
            put_dot(version.dot, &mut bytes);
        }
        finish(&bytes)
    }

    /// Of a key whose vector is one entry and whose only version is that entry's event: nearly every record.
    #[inline]
    pub fn of_single(key: &[u8], dot: Dot) -> Digest {
        let mut bytes = [0; SINGLE_BYTES];
        let length = 4 + key.len() + 4 + 28 + 28;
        if length <= SINGLE_BYTES {
            let (head, rest) = bytes.split_at_mut(4 + key.len());
            head[..4].copy_from_slice(&(key.len() as u32).to_le_bytes());
            head[4..].copy_from_slice(key);
            rest[..4].copy_from_slice(&1u32.to_le_bytes());
            let dot = dot_bytes(dot);
            rest[4..32].copy_from_slice(&dot);
            rest[32..60].copy_from_slice(&dot);
            return finish(&bytes[..length]);
        }
        Digest::of_single_with_a_long_key(key, dot)
    }

    #[cold]
    fn of_single_with_a_long_key(key: &[u8], dot: Dot) -> Digest {
        let mut bytes = begin(key);
        bytes.extend_from_slice(&1u32.to_le_bytes());
        put_dot(dot, &mut bytes);
        put_dot(dot, &mut bytes);
        finish(&bytes)
    }

    /// The digest of both together.
    #[must_use]
    pub fn plus(self, other: Digest) -> Digest {
        Digest(self.0.wrapping_add(other.0))
    }

    /// The digest of what is left without `other`.
    #[must_use]
    pub fn minus(self, other: Digest) -> Digest {
        Digest(self.0.wrapping_sub(other.0))
    }
}

impl std::iter::Sum for Digest {
    fn sum<I: Iterator<Item = Digest>>(digests: I) -> Digest {
        digests.fold(Digest::default(), Digest::plus)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Lengths come before what they measure, so no two records have the same bytes.
fn begin(key: &[u8]) -> Canonical {
    let mut bytes = Canonical::new();
    bytes.extend_from_slice(&(key.len() as u32).to_le_bytes());
    bytes.extend_from_slice(key);
    bytes
}

fn put_vector(vector: &Vector, bytes: &mut Canonical) {
    bytes.extend_from_slice(&(vector.entries().len() as u32).to_le_bytes());
    for &(actor, count) in vector.entries() {
        put_dot(Dot { actor, count }, bytes);
    }
}

fn put_dot(dot: Dot, bytes: &mut Canonical) {
    bytes.extend_from_slice(&dot_bytes(dot));
}

fn dot_bytes(dot: Dot) -> [u8; 28] {
    let mut fixed = [0; 28];
    fixed[..4].copy_from_slice(&dot.actor.node.0.to_le_bytes());
    fixed[4..12].copy_from_slice(&dot.actor.incarnation.to_le_bytes());
    fixed[12..20].copy_from_slice(&dot.actor.birth.to_le_bytes());
    fixed[20..].copy_from_slice(&dot.count.to_le_bytes());
    fixed
}

fn finish(bytes: &[u8]) -> Digest {
    Digest(xxh3_128(bytes))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use model::versions::Stamp;
    use model::{Actor, NodeId, Timestamp, Value};

    use super::*;

    fn dot(count: u64) -> Dot {
        Dot { actor: Actor { node: NodeId(7), incarnation: 1_763_754_000_123, birth: 5 }, count }
    }

    fn put(set: &mut VersionSet, value: &str, timestamp: u64) {
        let value = Value::Present(Bytes::copy_from_slice(value.as_bytes()));
        set.put(Stamp { actor: dot(1).actor, timestamp: Timestamp(timestamp), expires: None, value }, None);
    }

    #[test]
    fn digests_are_pinned_because_other_nodes_and_disks_hold_them() {
        assert_eq!(format!("{:?}", Digest::of_single(b"tontine", dot(3))), PINNED);
        assert_eq!(Digest::of(b"tontine", &VersionSet::default()), Digest::default());
    }

    #[test]
    fn a_record_of_one_version_has_one_digest_however_it_is_computed() {
        let mut set = VersionSet::default();
        for count in 1..4 {
            put(&mut set, "v", count);
            for key in [&b"k"[..], &[7; 64], &[7; 65], &[7; 300]] {
                assert_eq!(Digest::of(key, &set), Digest::of_single(key, dot(count)));
            }
        }
        let mut other = VersionSet::default();
        put(&mut other, "another value that the same dot cannot name twice", 9);
        assert_eq!(Digest::of(b"k", &other), Digest::of_single(b"k", dot(1)));
    }

    #[test]
    fn keys_counts_and_what_was_dropped_make_a_difference() {
        let mut one = VersionSet::default();
        put(&mut one, "v", 1);
        let emptied = VersionSet::from_parts(one.vector().clone(), SmallVec::new()).unwrap();
        let all = [
            Digest::of(b"k", &one),
            Digest::of(b"k", &emptied),
            Digest::of(b"kk", &one),
            Digest::of_single(b"k", dot(2)),
        ];
        for (at, digest) in all.iter().enumerate() {
            assert!(!all[..at].contains(digest), "{at}");
        }
    }

    const PINNED: &str = "6721f8bf5487e923046c71d956f3d64d";
}
