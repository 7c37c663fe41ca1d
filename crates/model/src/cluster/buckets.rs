//! Buckets: fixed slices of the token space, by which everything below a node's view is keyed.
//!
//! Engines, hash trees, lists of what is incomplete and comparisons know buckets only, and none of them knows which
//! partition a bucket belongs to. So a partition that is split, or merged with its neighbour, changes a document and
//! touches no record. How many buckets there are is settled when the cluster is made: a node's records lie by it.
//!
//! ```text
//!   partitions   |        p0         |   p4    |   p1    |
//!   buckets      | 0  | 1  | 2  | 3  | 4  | 5  | 6  | 7  |
//! ```
//!
//! A partition is made of whole buckets, so it is never narrower than one.

use super::Cluster;
use crate::limits::PARTITIONS_MAX;
use crate::ring::{Partition, PartitionId, Ring};

impl Cluster {
    /// Tokens of one bucket; `None` where a bucket is all there is.
    pub fn bucket_tokens(&self) -> Option<u64> {
        let bits = self.buckets.trailing_zeros();
        (bits > 0).then(|| 1 << (64 - bits))
    }

    /// The ring as everything below a node's view sees it: an entry for each bucket, which says of it what the ring says
    /// of its partition.
    pub fn by_bucket(&self) -> Ring {
        let tokens = self.bucket_tokens().unwrap_or(0);
        let mut owners = self.ring.partitions().iter().peekable();
        let mut owner = owners.next().expect("a ring has a partition");
        let bucket = |number: u32| {
            let start = u64::from(number) * tokens;
            while let Some(next) = owners.next_if(|next| next.start <= start) {
                owner = next;
            }
            Partition { id: PartitionId(number), start, ..owner.clone() }
        };
        Ring::new((0..self.buckets).map(bucket).collect()).expect("buckets are sorted and distinct")
    }

    /// The first partition that is not made of whole buckets.
    pub(super) fn off_the_grid(&self) -> Option<&Partition> {
        let tokens = self.bucket_tokens();
        self.ring.partitions().iter().find(|p| tokens.map_or(p.start, |tokens| p.start % tokens) != 0)
    }
}

/// Whether a token space may have this many buckets.
pub(super) fn is_bucket_count(count: u32) -> bool {
    count.is_power_of_two() && count as usize <= PARTITIONS_MAX
}
