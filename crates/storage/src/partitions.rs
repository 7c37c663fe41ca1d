//! One thing per partition, found without a lock.
//!
//! A tree of three levels over the 32 bits of the id; every node is made once, when it is first needed, and stays
//! until the engine goes. Ids may be anything: splits and merges give new ones.

use std::sync::OnceLock;

use model::PartitionId;

const LEAF_BITS: u32 = 11;
const MIDDLE_BITS: u32 = 11;
const TOP_BITS: u32 = 10;

type Slots<T> = Box<[OnceLock<T>]>;

/// What is kept per partition.
pub struct Partitions<T> {
    top: Slots<Slots<Slots<Box<T>>>>,
}

fn slots<T>(bits: u32) -> Slots<T> {
    (0..1usize << bits).map(|_| OnceLock::new()).collect()
}

fn path(id: PartitionId) -> (usize, usize, usize) {
    let id = id.0;
    let leaf = id & ((1 << LEAF_BITS) - 1);
    let middle = (id >> LEAF_BITS) & ((1 << MIDDLE_BITS) - 1);
    ((id >> (LEAF_BITS + MIDDLE_BITS)) as usize, middle as usize, leaf as usize)
}

impl<T: Default> Default for Partitions<T> {
    fn default() -> Self {
        Partitions::new()
    }
}

impl<T: Default> Partitions<T> {
    /// Nothing yet.
    pub fn new() -> Self {
        Partitions { top: slots(TOP_BITS) }
    }

    /// What is kept for this partition, if it was made.
    pub fn get(&self, id: PartitionId) -> Option<&T> {
        let (top, middle, leaf) = path(id);
        Some(self.top[top].get()?[middle].get()?[leaf].get()?)
    }

    /// What is kept for this partition, made now if need be.
    pub fn get_or_create(&self, id: PartitionId) -> &T {
        let (top, middle, leaf) = path(id);
        let below = self.top[top].get_or_init(|| slots(MIDDLE_BITS));
        let below = below[middle].get_or_init(|| slots(LEAF_BITS));
        below[leaf].get_or_init(Box::default)
    }

    /// All that exist, by id.
    pub fn iter(&self) -> impl Iterator<Item = (PartitionId, &T)> {
        self.top.iter().enumerate().filter_map(|(t, top)| Some((t, top.get()?))).flat_map(|(t, below)| {
            below.iter().enumerate().filter_map(move |(m, middle)| Some((t, m, middle.get()?))).flat_map(
                |(t, m, leaves)| {
                    leaves.iter().enumerate().filter_map(move |(l, leaf)| {
                        let id = (t << (LEAF_BITS + MIDDLE_BITS)) | (m << LEAF_BITS) | l;
                        Some((PartitionId(id as u32), &**leaf.get()?))
                    })
                },
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn every_id_has_its_own_place_and_the_order_is_by_id() {
        let partitions: Partitions<AtomicU32> = Partitions::new();
        let ids = [0, 1, 2047, 2048, 1 << 22, (1 << 22) + 1, u32::MAX - 1, u32::MAX];
        for &id in ids.iter().rev() {
            assert!(partitions.get(PartitionId(id)).is_none());
            partitions.get_or_create(PartitionId(id)).store(id, Ordering::Relaxed);
        }
        let seen: Vec<(u32, u32)> =
            partitions.iter().map(|(id, value)| (id.0, value.load(Ordering::Relaxed))).collect();
        assert_eq!(seen, ids.map(|id| (id, id)));
        assert_eq!(partitions.get(PartitionId(2048)).unwrap().load(Ordering::Relaxed), 2048);
    }
}
