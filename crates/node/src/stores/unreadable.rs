//! Where records lie here that cannot be read: who takes a partition over must not take its donor for whole.
//!
//! A page or a list of keys leaves such a record out. The place is remembered, and told to whoever compares, until a
//! record can be read there again. Then the peer is asked once more.
//!
//! Must never: forget a place at which a record still cannot be read.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use model::{PartitionId, Token};
use storage::{Met, StorageError};

use super::LocalStore;
use crate::trees::{PLACES_MAX, digest_of};

impl LocalStore {
    /// Where records of the partition lie that cannot be read, as far as anybody has met them.
    pub(crate) fn unreadable(&self, partition: PartitionId) -> BTreeSet<Token> {
        let known = self.trees().unreadable();
        let mut places = known.of(partition);
        if places.len() >= PLACES_MAX {
            // Others may have been left out.
            return places;
        }
        places.retain(|&token| {
            let still = self.is_unreadable(partition, token);
            if !still {
                known.mended(partition, token);
            }
            still
        });
        places
    }

    /// The partitions in which records lie that cannot be read, as far as anybody has met them.
    pub fn with_unreadable(&self) -> Vec<PartitionId> {
        let known = self.trees().unreadable().partitions();
        known.into_iter().filter(|id| !self.unreadable(*id).is_empty()).collect()
    }

    /// Whether a record with this token cannot be read. When the disk does not answer nobody knows: then it cannot.
    fn is_unreadable(&self, partition: PartitionId, token: Token) -> bool {
        let mut found = false;
        let walked: Result<(), StorageError> = self.engine().walk(partition, token..=token, &mut |_, met| {
            found |= match met {
                Met::Record { key, record } => digest_of(key, record).is_none(),
                Met::Corrupt => true,
            };
            ControlFlow::Continue(())
        });
        found || walked.is_err()
    }
}
