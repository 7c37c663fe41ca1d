//! A store's records page by page: for this node's own walks, and for whoever reads whole partitions from outside.
//!
//! Who reads from outside takes what a page holds for all that the node knows. So nothing may be missing in silence:
//! a partition that was lost and is being refilled is refused, and a page says how many damaged records it left out.

use bytes::Bytes;
use model::{PartitionId, Token, VersionSet};
use storage::{ScanCursor, ScanLimit};
use wire::messages::Failure;

use super::store::{LocalStore, decode, refuse};

/// One page of a partition, in order of token and key.
#[derive(Debug)]
pub(crate) struct Scan {
    /// Keys and their states.
    pub(crate) records: Vec<(Bytes, VersionSet)>,
    /// The token of each record that is left out because it cannot be read.
    pub(crate) damaged: Vec<Token>,
    /// Where to go on; `None` when the partition is exhausted.
    pub(crate) next: Option<ScanCursor>,
}

impl LocalStore {
    /// One page of what is here of a partition, be it all there is or not.
    ///
    /// # Errors
    /// What the engine refuses, and `Corrupt` for a record that is whole and makes no sense.
    pub(super) fn scan(
        &self,
        partition: PartitionId,
        after: Option<&ScanCursor>,
        limit: ScanLimit,
    ) -> Result<Scan, Failure> {
        let page = self.engine().scan(partition, after, limit).map_err(refuse)?;
        let mut records = Vec::with_capacity(page.records.len());
        for (key, record) in page.records {
            records.push((key, decode(&record, partition)?.1));
        }
        Ok(Scan { records, damaged: page.damaged, next: page.next })
    }

    /// One page of a partition, for a reader who takes it for all that this node holds. What is damaged in it is
    /// looked after from now on, as if a get had met it.
    ///
    /// # Errors
    /// `Refilling` while the partition's records are lost here, `Corrupt` for a record that is whole and makes no
    /// sense, or what the engine refuses.
    pub(crate) fn scan_complete(
        &self,
        partition: PartitionId,
        after: Option<&ScanCursor>,
        limit: ScanLimit,
    ) -> Result<Scan, Failure> {
        self.check_complete(partition)?;
        let page = self.scan(partition, after, limit)?;
        page.damaged.iter().for_each(|&token| self.note_corrupt(partition, token));
        Ok(page)
    }
}
