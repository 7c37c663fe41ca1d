//! Scanning a hash index in (token, key) order, page by page.
//!
//! A walk begins by listing the places (token and fingerprint, 16 bytes each) of one partition, sorted; pages then
//! look the places up one after the other. What is written later may be missed and what is removed is skipped, as
//! the contract of a scan allows; whatever stays is met exactly once. The unfinished list waits here for the next
//! page, so that a whole scan costs one sort; a cursor whose list is gone starts a new one.
//!
//! A cursor does not say whose it is. A scan that was given up leaves a list, and a later one may come to the same
//! cursor: it must not go on by that list, which lacks what was written before the later one began. So a scan that
//! begins a partition takes away all lists of it that were made before.

use std::collections::{BTreeMap, VecDeque};
use std::ops::{ControlFlow, RangeInclusive};

use bytes::Bytes;
use model::{PartitionId, Token};
use runtime::locks::Mutex;

use crate::engine::{Met, ScanCursor, ScanLimit, ScanPage};
use crate::error::StorageError;

/// Unfinished walks that are remembered; an older one pays a new sort when it goes on.
const WALKS_MAX: usize = 16;

/// Places that a walk sorts at once.
const PLACES_AT_ONCE: usize = 4096;

/// What an index knows of a record without reading it: token and fingerprint of its key.
pub(crate) type IndexedKey = (Token, u32);

/// Unfinished walks.
#[derive(Default)]
pub(crate) struct Walks {
    lists: Mutex<Lists>,
}

#[derive(Default)]
struct Lists {
    waiting: VecDeque<Walk>,
    /// Lists that were made so far.
    made: u64,
    /// By partition, how many were when a scan last began it: those are too old for that scan.
    begun: BTreeMap<PartitionId, u64>,
}

struct Walk {
    partition: PartitionId,
    /// The page that goes on here asks with this cursor.
    cursor: ScanCursor,
    list: List,
    position: usize,
}

struct List {
    /// How many were made before it.
    number: u64,
    /// Sorted, distinct.
    places: Vec<IndexedKey>,
}

/// An index that can be walked.
pub(crate) trait Walkable {
    /// Adds the places of all records of the partition whose token is `from` or later, in any order.
    fn places(&self, partition: PartitionId, from: Token, places: &mut Vec<IndexedKey>);

    /// Adds all records at a place, in any order, and says how many more there are that cannot be read.
    fn records_at(
        &self,
        partition: PartitionId,
        place: IndexedKey,
        records: &mut Vec<(Bytes, Bytes)>,
    ) -> Result<usize, StorageError>;
}

/// As [`crate::StorageEngine::walk`].
pub(crate) fn walk(
    index: &dyn Walkable,
    partition: PartitionId,
    tokens: RangeInclusive<Token>,
    visit: &mut dyn FnMut(Token, Met<'_>) -> ControlFlow<()>,
) -> Result<(), StorageError> {
    let mut places = Vec::new();
    index.places(partition, *tokens.start(), &mut places);
    places.retain(|(token, _)| token <= tokens.end());
    let (mut rest, mut records) = (&mut places[..], Vec::new());
    while !rest.is_empty() {
        let first = first_places(rest, PLACES_AT_ONCE);
        let (sorted, later) = rest.split_at_mut(first);
        sorted.sort_unstable();
        for group in sorted.chunk_by(|a, b| a.0 == b.0) {
            let token = group[0].0;
            let mut corrupt = 0;
            // Places that are equal stand beside each other.
            for same in group.chunk_by(|a, b| a == b) {
                corrupt += index.records_at(partition, same[0], &mut records)?;
            }
            records.sort_unstable();
            let sound = records.iter().map(|(key, record)| Met::Record { key, record });
            for met in sound.chain(std::iter::repeat_n(Met::Corrupt, corrupt)) {
                if visit(token, met).is_break() {
                    return Ok(());
                }
            }
            records.clear();
        }
        rest = later;
    }
    Ok(())
}

/// Moves at least the `wanted` first places, with all that share their tokens, to the front, and says how many these
/// are. Whoever looks at a few records of a large partition need not sort all of it.
fn first_places(places: &mut [IndexedKey], wanted: usize) -> usize {
    if places.len() <= wanted {
        return places.len();
    }
    let (_, &mut (last, _), _) = places.select_nth_unstable(wanted - 1);
    let mut first = wanted;
    for at in wanted..places.len() {
        if places[at].0 == last {
            places.swap(first, at);
            first += 1;
        }
    }
    first
}

impl Walks {
    /// One page of the partition, strictly after `after`.
    pub(crate) fn page(
        &self,
        index: &dyn Walkable,
        partition: PartitionId,
        after: Option<&ScanCursor>,
        limit: ScanLimit,
    ) -> Result<ScanPage, StorageError> {
        let (list, mut position) =
            self.resume(partition, after).unwrap_or_else(|| (self.begin(index, partition, after), 0));
        let places = &list.places;
        let mut page = ScanPage::default();
        let mut bytes = 0;
        let mut last = None;
        let mut group = Vec::new();
        while position < places.len() {
            let token = places[position].0;
            let end = position + places[position..].iter().take_while(|place| place.0 == token).count();
            group.clear();
            let mut damaged = 0;
            for &place in &places[position..end] {
                damaged += index.records_at(partition, place, &mut group)?;
            }
            group.sort_unstable();
            for (key, record) in group.drain(..) {
                if after.is_some_and(|after| (token, &key) <= (after.token, &after.key)) {
                    continue;
                }
                let filled = page.records.len() >= limit.records_max.max(1) || bytes >= limit.bytes_max;
                if let (true, Some(cursor)) = (filled && !page.records.is_empty(), last.take()) {
                    page.next = Some(self.suspend(Walk { partition, cursor, list, position }));
                    return Ok(page);
                }
                bytes += key.len() + record.len();
                last = Some(ScanCursor { token, key: key.clone() });
                page.records.push((key, record));
            }
            // Told once: the next page begins behind this token, or tells of it itself.
            page.damaged.extend(std::iter::repeat_n(token, damaged));
            position = end;
        }
        Ok(page)
    }

    fn resume(&self, partition: PartitionId, after: Option<&ScanCursor>) -> Option<(List, usize)> {
        let after = after?;
        let waiting = &mut self.lists.lock().waiting;
        let found = waiting.iter().position(|walk| walk.partition == partition && walk.cursor == *after)?;
        waiting.remove(found).map(|walk| (walk.list, walk.position))
    }

    fn suspend(&self, walk: Walk) -> ScanCursor {
        let cursor = walk.cursor.clone();
        let mut lists = self.lists.lock();
        // A scan may have begun while this page was read.
        if walk.list.number < lists.begun.get(&walk.partition).copied().unwrap_or(0) {
            return cursor;
        }
        if lists.waiting.len() >= WALKS_MAX {
            lists.waiting.pop_front();
        }
        lists.waiting.push_back(walk);
        cursor
    }

    fn begin(&self, index: &dyn Walkable, partition: PartitionId, after: Option<&ScanCursor>) -> List {
        let number = {
            let mut lists = self.lists.lock();
            if after.is_none() {
                lists.waiting.retain(|walk| walk.partition != partition);
                let made = lists.made;
                lists.begun.insert(partition, made);
            }
            lists.made += 1;
            lists.made - 1
        };
        let mut places = Vec::new();
        index.places(partition, after.map_or(Token(0), |after| after.token), &mut places);
        places.sort_unstable();
        places.dedup();
        List { number, places }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_places_come_with_all_that_share_the_last_token() {
        for tokens in 1..40u64 {
            for wanted in 1..50 {
                // 60 places in no order, several to a token.
                let mut places: Vec<IndexedKey> =
                    (0..60u64).map(|n| (Token(n * 37 % tokens), (n % 7) as u32)).collect();
                let mut sorted = places.clone();
                sorted.sort_unstable();
                let first = first_places(&mut places, wanted);
                assert!(first >= wanted.min(60));
                places[..first].sort_unstable();
                assert_eq!(places[..first], sorted[..first], "{tokens} tokens, {wanted} wanted");
                assert!(sorted.get(first).is_none_or(|next| next.0 != sorted[first - 1].0));
            }
        }
    }
}
