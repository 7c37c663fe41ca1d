//! Walking a range of tokens: R replicas of a partition side by side, their records merged in (token, key) order.
//!
//! The range is a partition of the document with which the walk began. What holds it may change meanwhile: when a node
//! refuses a page with a newer document, the readers are chosen anew, and the walk goes on at its place. Pages that were
//! given under different sets of replicas are never merged, for no R of one set would have been asked.
//!
//! A replica that leaves out a damaged record is no witness for what it holds there: another one is asked, or the same
//! again, for it is told of the damage by being asked, and mends it from others.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use client::{ClientError, ScanAfter, ScanPage, StoreHandle};
use futures_util::future::join_all;
use model::{Cluster, Generation, NodeId, PartitionId, PreferenceList, Resolver, Store, Token, VersionSet};
use protocol::quorum::{Readers, TooFew};
use tokio::time::Instant;
use wire::ErrorCode;

use crate::failure::CliError;
use crate::text::count;

/// Records in one page of one replica.
const PAGE_RECORDS: u32 = 1000;
/// First pause before a partition without enough replicas is tried again; doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// Longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Records of a partition, in order.
pub(crate) type Chunk = Vec<(Bytes, VersionSet)>;

/// How long, and how strictly.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WalkOptions {
    /// For how long a partition without enough replicas is tried again.
    pub(crate) patience: Duration,
    /// Whether records may be missing that every replica has damaged.
    pub(crate) leaves_out_damaged: bool,
}

/// The walk over a range of tokens.
pub(super) struct Walk {
    store: StoreHandle,
    definition: Store,
    /// The last token of the range.
    last: Token,
    options: WalkOptions,
    /// No replica was whole when each had been asked, and the rest is wanted all the same.
    accepts_damaged: bool,
    /// Damaged records that replicas left out of what was taken from them. Others may have had them.
    damaged: u64,
    /// Everything in front of this token was handed out.
    from: Token,
    /// The last record that was handed out; it lies at `from`.
    after: Option<ScanAfter>,
    /// The partition that is read, as it is held since the readers were chosen.
    place: Option<Place>,
    readers: Readers,
    /// That the place where the walk is has fewer replicas than a get needs.
    few: Option<TooFew>,
    cursors: Vec<Cursor>,
}

/// A partition, for as long as the same nodes hold the same tokens.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place {
    partition: PartitionId,
    bounds: (Token, Token),
    since: Generation,
}

impl Place {
    fn of(cluster: &Cluster, definition: &Store, token: Token) -> Place {
        // Its numbers may have changed.
        let definition = cluster.store(definition.name.as_str()).unwrap_or(definition);
        let partition = cluster.ring.partition(token);
        let bounds = cluster.ring.bounds(partition.id).expect("the ring has its partitions");
        Place { partition: partition.id, bounds, since: cluster.accepted_since(definition, partition) }
    }
}

/// What one replica holds, page by page.
struct Cursor {
    node: NodeId,
    page: VecDeque<(Token, Bytes, VersionSet)>,
    /// Where its next page begins; meaningful until `exhausted`.
    next: Option<ScanAfter>,
    exhausted: bool,
}

impl Cursor {
    fn is_hungry(&self) -> bool {
        self.page.is_empty() && !self.exhausted
    }
}

impl Walk {
    /// Over these tokens, the last one included.
    pub(super) fn new(
        store: StoreHandle,
        definition: &Store,
        (from, last): (Token, Token),
        options: WalkOptions,
    ) -> Self {
        let partition = store.cluster();
        let partition = partition.ring.partition(from);
        Walk {
            readers: Readers::of(definition, &PreferenceList::of(definition, partition)),
            few: None,
            store,
            definition: definition.clone(),
            last,
            options,
            accepts_damaged: false,
            damaged: 0,
            from,
            after: None,
            place: None,
            cursors: Vec::new(),
        }
    }

    /// Damaged records that were left out so far, at most: another replica may have had one.
    pub(super) fn damaged(&self) -> u64 {
        self.damaged
    }

    /// The next records; `None` at the end of the range.
    pub(super) async fn next(&mut self) -> Result<Option<Chunk>, CliError> {
        loop {
            self.fill_patiently().await?;
            let mut chunk = merge(&mut self.cursors, self.definition.resolver);
            let Some((key, _)) = chunk.last() else {
                let end = self.place.map_or(self.last, |place| place.bounds.1);
                if end >= self.last {
                    return Ok(None);
                }
                // The range is cut into several partitions now.
                (self.from, self.after) = (Token(end.0 + 1), None);
                continue;
            };
            self.from = self.definition.token(key);
            self.after = Some((self.from, key.clone()));
            // Or it is a part of one that is wider.
            cut(&self.definition, &mut chunk, self.last);
            return Ok((!chunk.is_empty()).then_some(chunk));
        }
    }

    /// Fetches until every cursor has records or is exhausted.
    async fn fill_patiently(&mut self) -> Result<(), CliError> {
        let began = Instant::now();
        let mut pause = PAUSE_MIN;
        self.readers.begin();
        self.accepts_damaged = false;
        loop {
            let Err((node, error)) = self.fill().await else { return self.check_enough() };
            if self.place != Some(Place::of(&self.store.cluster(), &self.definition, self.from)) {
                // Other nodes are to be asked. Each time takes a newer document.
                continue;
            }
            if !error.is_retryable() && !error.is_indeterminate() {
                return Err(error.into());
            }
            // Others are asked from where we are; whoever failed comes last.
            self.cursors.clear();
            if !self.readers.failed(node) {
                continue;
            }
            if began.elapsed() >= self.options.patience {
                return Err(self.too_few(&error).into());
            }
            self.accepts_damaged = self.options.leaves_out_damaged;
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    fn too_few(&self, error: &ClientError) -> String {
        let is_read_only = self.store.cluster().read_only(self.definition.name.as_str()).is_some();
        let advice = match error {
            // Of an artifact no record is left out: its nodes fetch damaged chunks again.
            ClientError::Failed { code: ErrorCode::Corrupt, .. } if is_read_only => {
                "nodes fetch damaged chunks again where they can; to see what they lack, run `tontine doctor`"
            }
            ClientError::Failed { code: ErrorCode::Corrupt, .. } => {
                "to export the other records, run `tontine export --leave-out-damaged`"
            }
            _ => "to see which nodes are down, run `tontine doctor`",
        };
        let few = match self.readers.chosen().map_or(0, <[_]>::len) {
            1 => "no replica answers".to_owned(),
            required => format!("fewer than {required} replicas answer"),
        };
        let partition = self.store.cluster().ring.partition(self.from).id;
        format!("partition {partition}: {few}: {error}; {advice}")
    }

    /// Chooses the readers of the place where the walk is, unless they are chosen.
    fn choose(&mut self) {
        let cluster = self.store.cluster();
        if let Some(now) = cluster.store(self.definition.name.as_str()) {
            self.definition.clone_from(now);
        }
        let place = Place::of(&cluster, &self.definition, self.from);
        if self.place != Some(place) {
            let partition = cluster.ring.partition(self.from);
            self.readers = Readers::of(&self.definition, &PreferenceList::of(&self.definition, partition));
            self.place = Some(place);
            self.cursors.clear();
        }
        if self.cursors.is_empty() {
            let begins_inside = || (place.bounds.0 < self.from).then(|| before(self.from)).flatten();
            let next = self.after.clone().or_else(begins_inside);
            let fresh = |&node: &NodeId| {
                let (page, next) = (VecDeque::new(), next.clone());
                Cursor { node, page, next, exhausted: false }
            };
            let chosen = self.readers.chosen().map(|chosen| chosen.iter().map(fresh).collect());
            self.few = chosen.as_ref().err().copied();
            self.cursors = chosen.unwrap_or_default();
        }
    }

    /// Refuses where there are fewer replicas than a get needs: what none of them holds may be there.
    fn check_enough(&self) -> Result<(), CliError> {
        let Some(TooFew { required, left }) = self.few else { return Ok(()) };
        let partition = self.store.cluster().ring.partition(self.from).id;
        let has = count(left as u64, "replica");
        Err(CliError::Other(format!(
            "partition {partition} has {has}, and a get needs {required}; add nodes, or ask for fewer with `{} store set {} \
             --consistency N,R,W`",
            crate::output::program(),
            self.definition.name
        )))
    }

    async fn fill(&mut self) -> Result<(), (NodeId, ClientError)> {
        loop {
            // Another walk, too, may have brought a newer document meanwhile.
            self.choose();
            if !self.cursors.iter().any(Cursor::is_hungry) {
                return Ok(());
            }
            let (store, definition, accepts_damaged) = (&self.store, &self.definition, self.accepts_damaged);
            let partition = self.place.expect("it was chosen").partition;
            let fetches =
                self.cursors.iter_mut().filter(|cursor| cursor.is_hungry()).map(|cursor| async move {
                    let page = store.scan(cursor.node, partition, cursor.next.clone(), PAGE_RECORDS).await;
                    let ScanPage { records, next, damaged } = page.map_err(|error| (cursor.node, error))?;
                    if damaged > 0 && !accepts_damaged {
                        return Err((cursor.node, unreadable(cursor.node, damaged)));
                    }
                    cursor.page = placed(definition, records);
                    cursor.exhausted = next.is_none();
                    cursor.next = next;
                    Ok(damaged)
                });
            let left_out: Vec<u64> = join_all(fetches).await.into_iter().collect::<Result<_, _>>()?;
            self.damaged += left_out.iter().sum::<u64>();
        }
    }
}

/// Records of a page, each with where its store says that it lies.
fn placed(definition: &Store, records: Vec<(Bytes, VersionSet)>) -> VecDeque<(Token, Bytes, VersionSet)> {
    records.into_iter().map(|(key, set)| (definition.token(&key), key, set)).collect()
}

/// Leaves out what lies behind the end of the range.
fn cut(definition: &Store, chunk: &mut Chunk, last: Token) {
    chunk.truncate(chunk.partition_point(|(key, _)| definition.token(key) <= last));
}

/// The last place in front of a token; `None` at the start.
fn before(token: Token) -> Option<ScanAfter> {
    // No key is greater than the longest one of the greatest byte.
    let last = Bytes::from_static(&[u8::MAX; model::limits::KEY_BYTES_MAX]);
    token.0.checked_sub(1).map(|token| (Token(token), last))
}

fn unreadable(node: NodeId, damaged: u64) -> ClientError {
    ClientError::Failed {
        code: ErrorCode::Corrupt,
        detail: format!("{node} cannot read {}", count(damaged, "record")),
    }
}

/// Takes the records that are certain: those up to the end of the shortest page that has a successor.
fn merge(cursors: &mut [Cursor], resolver: Resolver) -> Chunk {
    let mut chunk = Vec::new();
    while !cursors.iter().any(Cursor::is_hungry) {
        let heads = cursors.iter().filter_map(|cursor| cursor.page.front());
        let Some(least) = heads.map(|(token, key, _)| (*token, key.clone())).min() else { break };
        let mut merged = VersionSet::default();
        for cursor in &mut *cursors {
            let head = cursor.page.pop_front_if(|(token, key, _)| (*token, &*key) == (least.0, &least.1));
            if let Some((_, _, set)) = head {
                merged.merge(&set);
            }
        }
        merged.resolve(resolver);
        chunk.push((least.1, merged));
    }
    chunk
}

#[cfg(test)]
mod tests {
    use model::versions::Stamp;
    use model::{Actor, Consistency, KeyPattern, Placement, StoreName, Timestamp, Value, Windows};

    use super::*;

    fn set(node: u32, wall: u64, value: &'static str) -> VersionSet {
        let mut set = VersionSet::default();
        let actor = Actor { node: NodeId(node), incarnation: 1, birth: 1 };
        let timestamp = Timestamp::default().next(model::WallMillis(wall));
        let value = Value::Present(value.into());
        set.put(Stamp { actor, timestamp, expires: None, value }, None);
        set
    }

    fn cursor(records: &[(u64, &'static str, VersionSet)], exhausted: bool) -> Cursor {
        let page =
            records.iter().map(|(token, key, set)| (Token(*token), (*key).into(), set.clone())).collect();
        Cursor { node: NodeId(1), page, next: None, exhausted }
    }

    fn keys(chunk: &Chunk) -> Vec<&[u8]> {
        chunk.iter().map(|(key, _)| &key[..]).collect()
    }

    #[test]
    fn a_stale_replica_hides_no_record_and_no_newer_value() {
        let mut cursors = [
            cursor(&[(1, "a", set(1, 1, "old")), (3, "c", set(1, 1, "c"))], true),
            cursor(&[(1, "a", set(2, 2, "new")), (2, "b", set(2, 1, "b"))], true),
        ];
        let chunk = merge(&mut cursors, Resolver::LastWriteWins);
        assert_eq!(keys(&chunk), [b"a", b"b", b"c"]);
        assert_eq!(chunk[0].1.versions().len(), 1);
        assert_eq!(chunk[0].1.winner().unwrap().value, Value::Present("new".into()));
    }

    /// What an export takes of a page of a quarter of the ring, which a store with windows holds, where it asks the store or
    /// the plain hash.
    fn exported(by_hash: bool) -> (usize, usize) {
        let consistency = Consistency { replicas: 1, reads_required: 1, writes_required: 1 };
        let by = |placement| {
            let store = Store::new(StoreName::new("feeds").unwrap(), consistency).unwrap();
            Store { placement, ..store }
        };
        let key = KeyPattern::new("feed:{group}:{sequence}").unwrap();
        let windows = Windows { theta: 4, key, buckets: 64, unknown: model::Unknown::new() };
        let (held, last) = (by(Placement::Windows(windows)), Token(u64::MAX / 4));
        let keys = (0..200).map(|number| Bytes::from(format!("feed:anna:{number}")));
        let mut keys: Vec<Bytes> = keys.filter(|key| held.token(key) <= last).collect();
        keys.sort_by_key(|key| (held.token(key), key.clone()));
        let there = keys.len();
        let definition = if by_hash { by(Placement::Hash) } else { held };
        let records = keys.into_iter().map(|key| (key, set(1, 1, "v"))).collect();
        let page = placed(&definition, records);
        let mut cursors = [Cursor { node: NodeId(1), page, next: None, exhausted: true }];
        let mut chunk = merge(&mut cursors, definition.resolver);
        cut(&definition, &mut chunk, last);
        (chunk.len(), there)
    }

    /// A plant: an export that asks the plain hash where a key of windows lies.
    #[test]
    fn must_not_1_an_export_asks_the_plain_hash_and_misses_a_key() {
        let (taken, there) = exported(false);
        assert!(there > 20 && taken == there, "{taken} of {there}");
        let (taken, there) = exported(true);
        assert!(taken < there, "the bug is found: it takes {taken} of {there}");
    }

    #[test]
    fn records_behind_an_unfinished_page_wait_for_the_next_one() {
        let mut cursors = [
            cursor(&[(1, "a", set(1, 1, "a"))], false),
            cursor(&[(1, "a", set(1, 1, "a")), (9, "z", set(1, 1, "z"))], true),
        ];
        assert_eq!(keys(&merge(&mut cursors, Resolver::Siblings)), [b"a"]);
        cursors[0].page.push_back((Token(5), "m".into(), set(1, 1, "m")));
        cursors[0].exhausted = true;
        assert_eq!(keys(&merge(&mut cursors, Resolver::Siblings)), [b"m", b"z"]);
        assert!(merge(&mut cursors, Resolver::Siblings).is_empty());
    }
}
