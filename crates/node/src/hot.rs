//! Which keys have most work lately: a sample of what this node does as a replica.
//!
//! One operation in [`ONE_IN`] of a bucket is noted. The keys noted most often are kept with their counts, as in the
//! *space-saving* summary of Metwally, Agrawal and El Abbadi (2005): a new key takes the place of the one that was noted
//! least, with its count. Counts are halved now and then, so that what was hot an hour ago is forgotten.
//!
//! It is told to whoever asks, and written nowhere: keys may be secret.
//!
//! Must never: wait for a lock on the way of a request. What cannot be noted at once is not noted.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use bytes::Bytes;
use model::PartitionId;
use parking_lot::Mutex;

/// One operation in this many is noted: a prime, so that keys that alternate are noted alike.
pub const ONE_IN: u64 = 61;
/// Keys that are kept.
const KEPT: usize = 256;
/// After this many notes all counts are halved.
const HALVED_AFTER: u64 = 16_384;
/// Longer keys are not noted.
const KEY_BYTES_MAX: usize = 1024;

/// The keys noted most often.
#[derive(Default)]
pub struct HotKeys {
    noted: Mutex<Noted>,
}

#[derive(Default)]
struct Noted {
    /// By bucket and key.
    counts: BTreeMap<(PartitionId, Bytes), Count>,
    /// Notes by bucket, of keys that are kept no more, too.
    by_bucket: BTreeMap<PartitionId, u64>,
    since_halved: u64,
}

/// How often a key was noted.
#[derive(Clone, Copy, Default)]
struct Count {
    /// At most, with what it took over from the key whose place it got.
    most: u64,
    /// What it took over.
    inherited: u64,
}

impl Count {
    fn least(self) -> u64 {
        self.most - self.inherited
    }
}

impl HotKeys {
    /// Notes an operation, unless somebody looks just now.
    #[cold]
    pub fn note(&self, bucket: PartitionId, key: &[u8]) {
        if key.len() <= KEY_BYTES_MAX
            && let Some(mut noted) = self.noted.try_lock()
        {
            noted.add(bucket, key);
        }
    }

    /// The keys in these buckets, and how often each was noted at least, those first that were most; and how often any was.
    pub fn hottest(&self, buckets: RangeInclusive<PartitionId>, most: usize) -> (Vec<(Bytes, u64)>, u64) {
        let noted = self.noted.lock();
        let last = *buckets.end();
        let from = noted.counts.range((*buckets.start(), Bytes::new())..);
        let here = from.take_while(|((bucket, _), _)| *bucket <= last);
        let here = here.filter(|(_, count)| count.least() > 0);
        let mut keys: Vec<(Bytes, u64)> =
            here.map(|((_, key), count)| (key.clone(), count.least())).collect();
        keys.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        keys.truncate(most);
        (keys, noted.by_bucket.range(buckets).map(|(_, count)| count).sum())
    }
}

impl Noted {
    fn add(&mut self, bucket: PartitionId, key: &[u8]) {
        *self.by_bucket.entry(bucket).or_default() += 1;
        let place = (bucket, Bytes::copy_from_slice(key));
        match self.counts.get_mut(&place) {
            Some(count) => count.most += 1,
            None => {
                let inherited = if self.counts.len() < KEPT { 0 } else { self.forget_least() };
                self.counts.insert(place, Count { most: inherited + 1, inherited });
            }
        }
        self.since_halved += 1;
        if self.since_halved >= HALVED_AFTER {
            self.since_halved = 0;
            self.counts.retain(|_, count| halve(&mut count.inherited) | halve(&mut count.most));
            self.counts.retain(|_, count| count.most > 0);
            self.by_bucket.retain(|_, count| halve(count));
        }
    }

    /// Takes out the key that was noted least; how often that was.
    fn forget_least(&mut self) -> u64 {
        let least = self.counts.iter().min_by_key(|(_, count)| count.most).map(|(place, _)| place.clone());
        least.and_then(|place| self.counts.remove(&place)).map_or(0, |count| count.most)
    }
}

fn halve(count: &mut u64) -> bool {
    *count /= 2;
    *count > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_with_a_tenth_of_the_work_is_always_among_the_hottest() {
        let hot = HotKeys::default();
        let (here, there) = (PartitionId(1), PartitionId(2));
        for number in 0..20_000_u32 {
            match number % 10 {
                0 => hot.note(here, b"hot"),
                1 => hot.note(there, b"elsewhere"),
                _ => hot.note(here, format!("cold {number}").as_bytes()),
            }
        }
        let (keys, all) = hot.hottest(here..=here, 3);
        assert_eq!(keys[0].0, "hot");
        assert!(keys[0].1 > 2 * keys[1].1, "{keys:?}");
        let share = keys[0].1 as f64 / all as f64;
        assert!((0.09..0.14).contains(&share), "a ninth of what was done here: {share}");
        assert!(hot.noted.lock().counts.len() <= KEPT);
        hot.note(here, &[7; KEY_BYTES_MAX + 1]);
        assert_eq!(hot.hottest(here..=here, 3).1, all);
    }

    #[test]
    fn keys_that_were_hot_long_ago_are_forgotten() {
        let hot = HotKeys::default();
        let bucket = PartitionId(1);
        (0..5_000).for_each(|_| hot.note(bucket, b"old"));
        (0..300_000).for_each(|_| hot.note(bucket, b"new"));
        let (keys, _) = hot.hottest(bucket..=bucket, 9);
        assert_eq!(keys.iter().map(|(key, _)| &key[..]).collect::<Vec<_>>(), [b"new"]);
    }
}
