//! A store's records page by page: for this node's own walks, and for whoever reads whole partitions from outside.
//!
//! Who reads from outside takes what a page holds for all that the node knows. So nothing may be missing in silence:
//! a partition that was lost and is being refilled is refused, and a page says how many damaged records it left out.

use bytes::Bytes;
use model::{PartitionId, Token, VersionSet, WallMillis};
use storage::{Held, ScanCursor, ScanLimit};
use wire::messages::Failure;

use super::record::{decode, refuse};
use super::store::LocalStore;

/// One page of a partition, in order of token and key.
#[derive(Debug)]
pub(crate) struct Scan {
    /// Keys and their states.
    pub(crate) records: Vec<(Bytes, VersionSet)>,
    /// Bytes of keys and records, as they are stored.
    pub(crate) bytes: usize,
    /// The token of each record that is left out because it cannot be read.
    pub(crate) damaged: Vec<Token>,
    /// Where to go on; `None` when the partition is exhausted.
    pub(crate) next: Option<ScanCursor>,
}

/// Records that a census looks at; beyond them it relies on what it has seen.
const CENSUS_RECORDS_MAX: usize = 10_000;
/// Bytes of records after which a census has seen enough.
const CENSUS_BYTES_MAX: usize = 4 * 1024 * 1024;

/// What a node holds of a store, as a plain client sees it: exact as long as a census can look at every record.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Census {
    /// Keys with a value.
    pub keys: u64,
    /// Of them, those that expire.
    pub expiring: u64,
    /// How long those have left on average, in milliseconds.
    pub left_ms_mean: u64,
    /// The share of all tokens that the node is responsible for.
    pub share: f64,
    /// Keys of all nodes together, where that is known; otherwise the share tells about how many.
    pub keys_everywhere: Option<u64>,
}

impl LocalStore {
    /// Counts the keys of the partitions that `counts` chooses. The engine knows how many records there are; how many
    /// of them are deleted or expired, some of them have to tell. It may wait for the disk.
    ///
    /// # Errors
    /// What the engine refuses, and `Corrupt` for a record that is whole and makes no sense.
    pub(crate) fn census(
        &self,
        counts: impl Fn(PartitionId) -> bool,
        now: WallMillis,
    ) -> Result<Census, Failure> {
        let (mut records, mut seen, mut bytes) = (0_u64, 0_u64, 0);
        let (mut live, mut expiring, mut left_ms) = (0_u64, 0_u64, 0_u64);
        for Held { partition, records: held, .. } in self.engine().partitions() {
            if !counts(partition) {
                continue;
            }
            records += held;
            let records_max = CENSUS_RECORDS_MAX.saturating_sub(seen as usize);
            let bytes_max = CENSUS_BYTES_MAX.saturating_sub(bytes);
            if records_max == 0 || bytes_max == 0 {
                continue;
            }
            let page =
                self.engine().scan(partition, None, ScanLimit { records_max, bytes_max }).map_err(refuse)?;
            for (_, record) in page.records {
                seen += 1;
                bytes += record.len();
                let set = decode(&record, partition)?.1;
                let Some(winner) = set.winner().filter(|winner| winner.live(now).is_some()) else { continue };
                live += 1;
                if let Some(expires) = winner.expires {
                    expiring += 1;
                    left_ms = left_ms.saturating_add(expires.0.saturating_sub(now.0));
                }
            }
        }
        let of_all = |part: u64| match seen {
            0 => 0,
            _ => (u128::from(records) * u128::from(part) / u128::from(seen)) as u64,
        };
        let left_ms_mean = left_ms.checked_div(expiring).unwrap_or(0);
        Ok(Census {
            keys: of_all(live),
            expiring: of_all(expiring),
            left_ms_mean,
            share: 1.0,
            keys_everywhere: None,
        })
    }

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
        debug_assert!(page.damaged.is_sorted(), "a page is in the order of tokens");
        debug_assert!(
            page.next
                .as_ref()
                .is_none_or(|next| page.records.last().is_some_and(|(key, _)| *key == next.key)),
            "the next page begins behind the last record of this one"
        );
        let (mut records, mut bytes) = (Vec::with_capacity(page.records.len()), 0);
        for (key, record) in page.records {
            bytes += key.len() + record.len();
            records.push((key, decode(&record, partition)?.1));
        }
        Ok(Scan { records, bytes, damaged: page.damaged, next: page.next })
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
