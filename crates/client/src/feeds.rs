//! Feeds: the entries of a group by their sequence numbers, in a store that keeps them in windows.

use model::FeedKey;
use model::limits::MULTI_KEYS_MAX;
use wire::messages::RequestOptions;

use crate::error::ClientError;
use crate::found::Found;
use crate::store::StoreHandle;

/// Numbers that one page of a range looks at, at most.
pub const RANGE_PAGE_MAX: u64 = 1_000;
const _: () = assert!(RANGE_PAGE_MAX as usize <= MULTI_KEYS_MAX);

/// One page of a feed.
#[derive(Clone, Debug)]
pub struct RangePage {
    /// The entries that there are, with their keys, in the order of their numbers. Absent numbers are left out.
    pub entries: Vec<(u64, Vec<u8>, Found)>,
    /// Where the next page begins; `None` at the end.
    pub next: Option<u64>,
}

impl StoreHandle {
    /// Reads the entries of a group from number `from` on, as far as `to`, which is included: those of the next
    /// [`RANGE_PAGE_MAX`] numbers.
    ///
    /// # Errors
    /// [`ClientError::NoRange`] when `from` is above `to`, when the store keeps no windows, or when it takes groups and none
    /// is given, or the other way round. Another when an entry cannot be read: nobody knows then what the page would have.
    pub async fn range(
        &self,
        group: &[u8],
        (from, to): (u64, u64),
        options: &RequestOptions,
    ) -> Result<RangePage, ClientError> {
        let windows = self.windows()?;
        if from > to {
            let detail =
                format!("the range goes backwards, from {from} to {to}: the lower number comes first");
            return Err(ClientError::NoRange { detail });
        }
        let last = to.min(from.saturating_add(RANGE_PAGE_MAX - 1));
        let key = |sequence| windows.key.key(group, sequence);
        if windows.parts(&key(from)) != Some(FeedKey { group, sequence: from }) {
            let wants = if windows.key.has_group() { "needs a group" } else { "has no group" };
            let detail = format!("keys of store {} are {}, so a range {wants}", self.name(), windows.key);
            return Err(ClientError::NoRange { detail });
        }
        let found = self.multi_get((from..=last).map(key), options).await?;
        let mut entries = Vec::new();
        for (sequence, found) in (from..=last).zip(found) {
            let found = found.map_err(|error| of_number(sequence, error))?;
            if found.values().next().is_some() {
                entries.push((sequence, key(sequence), found));
            }
        }
        Ok(RangePage { entries, next: (last < to).then(|| last + 1) })
    }

    /// How the store keeps feeds.
    fn windows(&self) -> Result<model::Windows, ClientError> {
        let cluster = self.cluster();
        let windows = cluster.store(self.name()).and_then(|store| store.placement.windows());
        windows.cloned().ok_or_else(|| ClientError::NoRange {
            detail: format!("store {} keeps its keys by their hash, so it has no ranges", self.name()),
        })
    }
}

/// An error that names the number whose entry cannot be read.
fn of_number(sequence: u64, error: ClientError) -> ClientError {
    match error {
        ClientError::Failed { code, detail } => {
            ClientError::Failed { code, detail: format!("number {sequence}: {detail}") }
        }
        other => other,
    }
}
