//! The index of the layout *slots*: from a key to the position of its record in one or two looks.
//!
//! A cuckoo table of buckets of ten: a key lies in its first bucket, or, where that was full, in its second. The
//! first one remembers, in 32 bits, which keys went on, so that a key that is not there is mostly known from one
//! bucket. Full buckets are made room in by moving keys that can lie elsewhere.
//!
//! ```text
//! bucket: ten fingerprints of 2 bytes │ ten positions of 4 bytes │ 4 bytes: keys that went on
//! ```

use std::ops::Range;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::format::u32_at;
use super::lanes::{self, LANES};

/// Keys in a bucket.
const WAYS: usize = 10;
/// Bytes of a bucket: a line of the processor's cache.
pub(super) const BUCKET_BYTES: usize = 64;
/// Position of a slot that is empty.
const EMPTY: u32 = u32::MAX;
/// Keys per hundred buckets at which a table is made: more and filling it takes long.
const KEYS_PER_100_BUCKETS: usize = 950;
/// Moves before a table is made anew, a twentieth larger.
const MOVES_MAX: usize = 1000;
/// Times that it is made larger: then so many keys share a hash that no size helps.
const ATTEMPTS: usize = 20;

/// The hash that the table uses, independent of the token.
#[inline]
pub(super) fn slot_hash(key: &[u8]) -> u64 {
    xxh3_64_with_seed(key, 0x746f_6e74_696e_6533)
}

/// The two buckets of a hash, its fingerprint, and its bit among the keys that went on.
#[derive(Clone, Copy)]
pub(super) struct Ways {
    pub(super) first: u32,
    pub(super) second: u32,
    fingerprint: u16,
    beyond: u32,
}

impl Ways {
    #[inline]
    pub(super) fn of(hash: u64, buckets: usize) -> Ways {
        let scaled = |hash: u64| ((u128::from(hash) * buckets as u128) >> 64) as u32;
        let first = scaled(hash);
        let second = scaled(hash.rotate_left(32).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let second = if second == first && buckets > 1 { (first + 1) % buckets as u32 } else { second };
        debug_assert!(
            (first.max(second) as usize) < buckets && (first != second || buckets == 1),
            "buckets {first} and {second} are two of {buckets}"
        );
        Ways { first, second, fingerprint: hash as u16, beyond: 1 << ((hash >> 16) & 31) }
    }
}

/// A bucket, aligned so that it is one line.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Bucket([u8; BUCKET_BYTES]);

/// The table in memory.
pub(super) struct Table {
    buckets: Vec<Bucket>,
}

impl Table {
    /// Takes the bytes of a file, whose checksum holds; `None` when they are no whole buckets.
    pub(super) fn load(bytes: &[u8]) -> Option<Table> {
        let (buckets, rest) = bytes.as_chunks::<BUCKET_BYTES>();
        let fits = !buckets.is_empty() && rest.is_empty() && u32::try_from(buckets.len()).is_ok();
        fits.then(|| Table { buckets: buckets.iter().map(|bytes| Bucket(*bytes)).collect() })
    }

    pub(super) fn bytes(&self) -> usize {
        self.buckets.len() * BUCKET_BYTES
    }

    /// Where a key may lie.
    #[inline]
    pub(super) fn ways(&self, key: &[u8]) -> Ways {
        Ways::of(slot_hash(key), self.buckets.len())
    }

    /// Tells the processor that a key's first bucket will be looked at.
    #[inline]
    pub(super) fn prefetch(&self, ways: Ways) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let bucket: *const Bucket = &self.buckets[ways.first as usize];
            // SAFETY: a prefetch reads nothing, and the bucket is there.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(bucket.cast()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = ways;
    }

    /// Where records begin within these bytes, in order.
    pub(super) fn positions(&self, within: Range<u64>) -> Vec<u32> {
        let slots = self.buckets.iter().flat_map(|Bucket(bytes)| {
            (0..WAYS).map(|way| u32_at(bytes, 2 * WAYS + 4 * way)).filter(|position| *position != EMPTY)
        });
        let mut found: Vec<u32> = slots.filter(|position| within.contains(&u64::from(*position))).collect();
        found.sort_unstable();
        found
    }

    /// The positions at which a key with these ways may lie, one after the other.
    #[inline]
    pub(super) fn candidates(&self, ways: Ways) -> Candidates<'_> {
        let mut candidates = Candidates { table: self, ways, bucket: ways.first, found: 0, second: false };
        candidates.found = self.look(ways.first, ways.fingerprint);
        candidates
    }

    /// Which slots of a bucket have a fingerprint.
    #[inline]
    fn look(&self, bucket: u32, fingerprint: u16) -> u32 {
        let bytes = &self.buckets[bucket as usize].0;
        let eight = |at: usize| bytes[at..at + 2 * LANES].try_into().expect("as many as there are lanes");
        lanes::equal(eight(0), fingerprint)
            | (lanes::equal(eight(2 * (WAYS - LANES)), fingerprint) << (WAYS - LANES))
    }
}

/// See [`Table::candidates`].
pub(super) struct Candidates<'a> {
    table: &'a Table,
    ways: Ways,
    bucket: u32,
    found: u32,
    second: bool,
}

impl Iterator for Candidates<'_> {
    type Item = u32;

    #[inline]
    fn next(&mut self) -> Option<u32> {
        loop {
            while self.found != 0 {
                let way = self.found.trailing_zeros() as usize;
                self.found &= self.found - 1;
                let position = u32_at(&self.table.buckets[self.bucket as usize].0, 2 * WAYS + 4 * way);
                if position != EMPTY {
                    return Some(position);
                }
            }
            let beyond = u32_at(&self.table.buckets[self.ways.first as usize].0, 6 * WAYS);
            if self.second || beyond & self.ways.beyond == 0 || self.ways.second == self.ways.first {
                return None;
            }
            self.second = true;
            self.bucket = self.ways.second;
            self.found = self.table.look(self.bucket, self.ways.fingerprint);
        }
    }
}

/// Makes the table of records by their hashes and positions.
///
/// # Errors
/// When more keys share a hash than two buckets hold, which only somebody who looks for such keys will see.
pub(super) fn build(records: &[(u64, u32)]) -> Result<Vec<u8>, TooManyAlike> {
    let least = (records.len() * 100).div_ceil(KEYS_PER_100_BUCKETS).max(1);
    (0..ATTEMPTS)
        .find_map(|attempt| try_build(records, least + least * attempt / 20 + attempt))
        .ok_or(TooManyAlike)
}

/// More keys share a hash than a table holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooManyAlike;

/// Slots by the number of their record; [`EMPTY`] where there is none.
fn try_build(records: &[(u64, u32)], buckets: usize) -> Option<Vec<u8>> {
    let mut slots = vec![[EMPTY; WAYS]; buckets];
    let mut dice = 0x746f_6e74_696e_6534_u64;
    for number in 0..records.len() {
        let mut homeless = number as u32;
        let ways = Ways::of(records[number].0, buckets);
        if put(&mut slots, ways.first, homeless) || put(&mut slots, ways.second, homeless) {
            continue;
        }
        let mut bucket = ways.first;
        let mut moves = 0;
        loop {
            dice = dice.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let way = ((dice >> 33) % WAYS as u64) as usize;
            std::mem::swap(&mut slots[bucket as usize][way], &mut homeless);
            let ways = Ways::of(records[homeless as usize].0, buckets);
            bucket = if ways.first == bucket { ways.second } else { ways.first };
            if put(&mut slots, bucket, homeless) {
                break;
            }
            moves += 1;
            if moves > MOVES_MAX {
                return None;
            }
        }
    }
    let filled = slots.as_flattened().iter().filter(|slot| **slot != EMPTY).count();
    assert_eq!(filled, records.len(), "each record has one slot in {buckets} buckets");
    Some(encode(records, &slots))
}

fn put(slots: &mut [[u32; WAYS]], bucket: u32, record: u32) -> bool {
    let free = slots[bucket as usize].iter_mut().find(|slot| **slot == EMPTY);
    free.map(|slot| *slot = record).is_some()
}

fn encode(records: &[(u64, u32)], slots: &[[u32; WAYS]]) -> Vec<u8> {
    let mut bytes = vec![0; slots.len() * BUCKET_BYTES];
    for (bucket, slots) in slots.iter().enumerate() {
        let at = bucket * BUCKET_BYTES;
        for (way, &record) in slots.iter().enumerate() {
            let place = at + 2 * WAYS + 4 * way;
            let Some(&(hash, position)) = records.get(record as usize) else {
                bytes[place..place + 4].copy_from_slice(&EMPTY.to_le_bytes());
                continue;
            };
            bytes[at + 2 * way..at + 2 * way + 2].copy_from_slice(&(hash as u16).to_le_bytes());
            bytes[place..place + 4].copy_from_slice(&position.to_le_bytes());
            let ways = Ways::of(hash, bytes.len() / BUCKET_BYTES);
            if ways.first as usize != bucket {
                let went_on = ways.first as usize * BUCKET_BYTES + 6 * WAYS;
                let bits = u32_at(&bytes, went_on) | ways.beyond;
                bytes[went_on..went_on + 4].copy_from_slice(&bits.to_le_bytes());
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(count: u32) -> Vec<(u64, u32)> {
        (0..count).map(|number| (slot_hash(&number.to_le_bytes()), number * 3)).collect()
    }

    #[test]
    fn every_key_is_found_and_few_others_are_taken_for_one() {
        for count in [0, 1, 2, 9, 10, 11, 19, 20, 100, 5000, 60_000] {
            let bytes = build(&records(count)).unwrap();
            assert!(bytes.len() <= (count as usize * 64).div_ceil(9) + 128, "{count}: {}", bytes.len());
            let table = Table::load(&bytes).unwrap();
            for number in 0..count {
                let found = table
                    .candidates(table.ways(&number.to_le_bytes()))
                    .any(|position| position == number * 3);
                assert!(found, "{number} of {count}");
            }
            let absent = |number: u32| table.candidates(table.ways(&number.to_le_bytes())).count();
            let wrong: usize = (count..count + 100_000).map(absent).sum();
            assert!(wrong < 60, "{wrong} of 100,000 absent keys have a candidate");
        }
    }

    #[test]
    fn up_to_two_buckets_of_keys_may_share_a_hash() {
        let alike = |count: u32| -> Vec<(u64, u32)> {
            (0..count).map(|number| (42, number)).chain(records(3000)).collect()
        };
        let table = Table::load(&build(&alike(20)).unwrap()).unwrap();
        let ways = Ways::of(42, table.buckets.len());
        let mut found: Vec<u32> = table.candidates(ways).collect();
        found.sort_unstable();
        assert_eq!(found, (0..20).collect::<Vec<_>>());
        assert_eq!(build(&alike(21)), Err(TooManyAlike));
    }
}
