//! Where the keys of a run's stores lie, and what they are called.

use bytes::Bytes;
use model::{KeyPattern, Placement, Unknown, Windows};

use super::Setup;

/// Partitions of a run's ring at first: few, so that documents stay small; several, so that keys have different replicas.
pub(crate) const PARTITIONS: usize = 8;

impl Setup {
    /// Where the keys of its stores lie.
    pub fn placement(&self) -> Placement {
        let windows = |theta| {
            let pattern = if self.groups > 0 { "k{group}:{sequence}" } else { "k{sequence}" };
            let key = KeyPattern::new(pattern).expect("it is what keys look like");
            let buckets = self.buckets.max(PARTITIONS as u32);
            Placement::Windows(Windows { theta, key, buckets, unknown: Unknown::new() })
        };
        self.theta.map_or(Placement::Hash, windows)
    }

    /// The key with this number. Feeds take turns, so each has as many entries as any other, or one more.
    pub fn key(&self, number: u32) -> Bytes {
        match self.groups {
            0 => format!("k{number}").into(),
            groups => format!("k{}:{}", number % groups, number / groups).into(),
        }
    }
}
