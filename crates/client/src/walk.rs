//! Walking a range of tokens: R replicas of a partition side by side, their records merged in (token, key) order.
//!
//! ```text
//!   StoreWalk ⇄ protocol::quorum::Walk      whose page is next, and which records are certain
//!       └─ scan ─▶ R replicas of the partition where the walk is
//! ```
//!
//! The range is a partition of the document with which the walk began. What holds it may change meanwhile: when a node
//! refuses a page with a newer document, the replicas are chosen anew, and the walk goes on at its place. Pages that were
//! given under different sets of replicas are never merged, for no R of one set would have been asked.
//!
//! A replica that leaves out a damaged record is no witness for what it holds there: another one is asked, or the same
//! again, for it is told of the damage by being asked, and mends it from others.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use model::{Cluster, Generation, NodeId, PartitionId, PreferenceList, Store, Token, VersionSet};
use protocol::quorum::{PageAsk, Record, TooFew, Walk, WalkPosition};
use thiserror::Error;
use wire::error::ErrorCode;

use crate::error::ClientError;
use crate::store::StoreHandle;

/// Records in one page of one replica.
const PAGE_RECORDS: u32 = 1000;
/// First pause before a partition without enough replicas is tried again; doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// Longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// How long, and how strictly.
#[derive(Clone, Copy, Debug)]
pub struct WalkOptions {
    /// For how long a partition without enough replicas is tried again.
    pub patience: Duration,
    /// Whether records may be missing that every replica has damaged.
    pub leaves_out_damaged: bool,
}

/// Why a walk cannot go on.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum WalkError {
    /// A replica refused, and would refuse again.
    #[error(transparent)]
    Refused(ClientError),
    /// For as long as was allowed, fewer replicas than a get needs gave what they hold.
    #[error("partition {partition}: fewer than {required} replicas answer: {last}")]
    Unanswered {
        /// The partition that cannot be read.
        partition: PartitionId,
        /// Replicas that a get needs.
        required: usize,
        /// Why the last replica gave no page.
        last: ClientError,
    },
    /// The partition has fewer replicas than a get needs: what none of them holds may be there.
    #[error("partition {partition} has {left} replicas, and a get needs {required}")]
    TooFewReplicas {
        /// The partition that cannot be read.
        partition: PartitionId,
        /// Replicas that a get needs.
        required: usize,
        /// Replicas that the partition has.
        left: usize,
    },
}

/// The walk over a range of tokens.
///
/// Each [`StoreWalk::next`] must be awaited to its end. A walk whose `next` was given up has pages on their way that
/// nobody takes, and can only be dropped.
pub struct StoreWalk {
    store: StoreHandle,
    definition: Store,
    /// The last token of the range.
    last: Token,
    options: WalkOptions,
    /// Damaged records that replicas left out of what was taken from them. Others may have had them.
    damaged: u64,
    /// Everything in front of this token was handed out.
    from: Token,
    /// The last record that was handed out; it lies at `from`.
    after: Option<WalkPosition>,
    /// The partition that is read; none before the first page.
    here: Option<Here>,
}

/// A partition, for as long as the same nodes hold the same tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PlaceRead {
    partition: PartitionId,
    bounds: (Token, Token),
    since: Generation,
}

impl PlaceRead {
    fn of(cluster: &Cluster, definition: &Store, token: Token) -> PlaceRead {
        // Its numbers may have changed.
        let definition = cluster.store(definition.name.as_str()).unwrap_or(definition);
        let partition = cluster.ring.partition(token);
        let bounds = cluster.ring.bounds(partition.id).expect("the ring has its partitions");
        assert!(
            bounds.0 <= token && token <= bounds.1,
            "{token:?} lies in {}, within {bounds:?}",
            partition.id
        );
        PlaceRead { partition: partition.id, bounds, since: cluster.accepted_since(definition, partition) }
    }
}

/// The partition that is read, and how far that is.
struct Here {
    place: PlaceRead,
    /// In the order in which they are asked, of different nodes: those that have failed come last, the latest at the end,
    /// and behind them those that have damaged records.
    replicas: Vec<NodeId>,
    /// Those that have damaged records here.
    unreadable: BTreeSet<NodeId>,
    /// Why the last one failed, since the replicas were chosen.
    failure: Option<ClientError>,
    walk: Walk,
}

impl Here {
    fn new(place: PlaceRead, replicas: Vec<NodeId>, definition: &Store, after: Option<WalkPosition>) -> Here {
        let walk = over(&replicas, definition, after);
        Here { place, replicas, unreadable: BTreeSet::new(), failure: None, walk }
    }

    /// This replica comes last when all are asked again.
    fn failed(&mut self, node: NodeId, failure: ClientError) {
        let replicas = self.replicas.len();
        self.replicas.retain(|&other| other != node);
        assert_eq!(self.replicas.len() + 1, replicas, "{node} was asked, so it is a replica, once");
        self.replicas.push(node);
        if matches!(failure, ClientError::Failed { code: ErrorCode::Corrupt, .. }) {
            self.unreadable.insert(node);
        }
        self.replicas.sort_by_key(|node| self.unreadable.contains(node));
        self.failure = Some(failure);
        self.walk.failed(node);
    }

    /// Asks all of them again, from here.
    fn again(&mut self, definition: &Store, after: Option<WalkPosition>) {
        self.walk = over(&self.replicas, definition, after);
    }
}

fn over(replicas: &[NodeId], definition: &Store, after: Option<WalkPosition>) -> Walk {
    Walk::new(replicas.to_vec(), definition.numbers_read().reads_required, definition, after)
}

impl StoreWalk {
    /// Over these tokens, the last one included, of a store that is defined so.
    pub fn new(
        store: StoreHandle,
        definition: &Store,
        (from, last): (Token, Token),
        options: WalkOptions,
    ) -> Self {
        assert!(from <= last, "a range begins at {from:?} in front of its end, {last:?}");
        let definition = definition.clone();
        StoreWalk { store, definition, last, options, damaged: 0, from, after: None, here: None }
    }

    /// Damaged records that were left out so far, at most: another replica may have had one.
    pub fn damaged(&self) -> u64 {
        self.damaged
    }

    /// The next records in order of token and key, each with what R replicas know of it; `None` at the end of the range.
    /// Up to a page of each of them is in memory.
    ///
    /// # Errors
    /// When a partition has too few replicas, or too few of them answer for as long as is allowed; and when a replica
    /// refuses for good.
    pub async fn next(&mut self) -> Result<Option<Vec<(Bytes, VersionSet)>>, WalkError> {
        loop {
            let mut records = self.fetch().await?;
            let Some((token, key, _)) = records.last() else {
                let end = self.here.as_ref().map_or(self.last, |here| here.place.bounds.1);
                if end >= self.last {
                    return Ok(None);
                }
                // The range is cut into several partitions now.
                (self.from, self.after) = (Token(end.0 + 1), None);
                continue;
            };
            (self.from, self.after) = (*token, Some((*token, key.clone())));
            // Or it is a part of one that is wider.
            cut(&mut records, self.last);
            let records: Vec<_> = records.into_iter().map(|(_, key, set)| (key, set)).collect();
            return Ok((!records.is_empty()).then_some(records));
        }
    }

    /// The next records of the partition where the walk is; none at its end.
    async fn fetch(&mut self) -> Result<Vec<Record>, WalkError> {
        let clock = self.store.client.inner.ports.clock.clone();
        let began = clock.now();
        let (mut pause, mut accepts_damaged) = (PAUSE_MIN, false);
        loop {
            // Another walk, too, may have brought a newer document meanwhile.
            let here = self.choose();
            let records = here.walk.take();
            if !records.is_empty() || here.walk.is_over() {
                return Ok(records);
            }
            let TooFew { required, left } = match here.walk.asks() {
                Ok(asks) => {
                    assert!(!asks.is_empty(), "{:?}: `next` was given up, and called again", here.place);
                    self.read(asks, accepts_damaged).await?;
                    continue;
                }
                Err(few) => few,
            };
            let partition = here.place.partition;
            let Some(last) = here.failure.clone() else {
                return Err(WalkError::TooFewReplicas { partition, required, left });
            };
            if clock.now().since(began) >= self.options.patience {
                return Err(WalkError::Unanswered { partition, required, last });
            }
            accepts_damaged = self.options.leaves_out_damaged;
            clock.sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
            self.again();
        }
    }

    /// Reads these pages of the partition where the walk is.
    async fn read(&mut self, asks: Vec<PageAsk>, accepts_damaged: bool) -> Result<(), WalkError> {
        let here = self.here.as_mut().expect("the walk that asks is here");
        let (store, partition) = (&self.store, here.place.partition);
        let pages = asks.into_iter().map(|PageAsk { node, after }| async move {
            (node, store.scan(node, partition, after, PAGE_RECORDS).await)
        });
        let mut damaged = 0;
        for (node, page) in join_all(pages).await {
            let error = match page {
                Ok(page) if page.damaged == 0 || accepts_damaged => {
                    damaged += page.damaged;
                    here.walk.page(node, page.records, page.next);
                    continue;
                }
                Ok(page) => unreadable(node, page.damaged),
                Err(error) => error,
            };
            if here.place != PlaceRead::of(&store.cluster(), &self.definition, self.from) {
                // Other nodes are to be asked. Each time takes a newer document.
                return Ok(());
            }
            if !error.is_retryable() && !error.is_indeterminate() {
                self.here = None;
                return Err(WalkError::Refused(error));
            }
            here.failed(node, error);
        }
        self.damaged += damaged;
        Ok(())
    }

    /// The partition where the walk is, begun anew where other nodes hold it than before.
    fn choose(&mut self) -> &mut Here {
        let cluster = self.store.cluster();
        if let Some(now) = cluster.store(self.definition.name.as_str()) {
            self.definition.clone_from(now);
        }
        let place = PlaceRead::of(&cluster, &self.definition, self.from);
        let known = self.here.take().filter(|here| here.place == place);
        let here = known.unwrap_or_else(|| {
            let partition = cluster.ring.partition(self.from);
            let replicas = PreferenceList::of(&self.definition, partition).replicas().to_vec();
            Here::new(place, replicas, &self.definition, self.begins_after(place))
        });
        self.here.insert(here)
    }

    /// Asks all replicas again, from where the walk is.
    fn again(&mut self) {
        let Some(mut here) = self.here.take() else { return };
        here.again(&self.definition, self.begins_after(here.place));
        self.here = Some(here);
    }

    /// Behind what the pages of this place begin.
    fn begins_after(&self, place: PlaceRead) -> Option<WalkPosition> {
        let begins_inside = || (place.bounds.0 < self.from).then(|| before(self.from)).flatten();
        self.after.clone().or_else(begins_inside)
    }
}

/// Leaves out what lies behind the end of the range.
fn cut(records: &mut Vec<Record>, last: Token) {
    records.truncate(records.partition_point(|(token, ..)| *token <= last));
}

/// The last place in front of a token; `None` at the start.
fn before(token: Token) -> Option<WalkPosition> {
    // No key is greater than the longest one of the greatest byte.
    let last = Bytes::from_static(&[u8::MAX; model::limits::KEY_BYTES_MAX]);
    token.0.checked_sub(1).map(|token| (Token(token), last))
}

fn unreadable(node: NodeId, damaged: u64) -> ClientError {
    let records = if damaged == 1 { "record" } else { "records" };
    let detail = format!("{node} cannot read {damaged} {records}");
    ClientError::Failed { code: ErrorCode::Corrupt, detail }
}

#[cfg(test)]
mod tests {
    use model::versions::Stamp;
    use model::{
        Actor, Consistency, KeyPattern, Placement, StoreName, Timestamp, Value, WallMillis, Windows,
    };

    use super::*;

    fn set() -> VersionSet {
        let mut set = VersionSet::default();
        let actor = Actor { node: NodeId(1), incarnation: 1, birth: 1 };
        let timestamp = Timestamp::default().next(WallMillis(1));
        set.put(Stamp { actor, timestamp, expires: None, value: Value::Present("v".into()) }, None);
        set
    }

    fn store(replicas: u8, reads_required: u8) -> Store {
        let consistency = Consistency { replicas, reads_required, writes_required: replicas };
        Store::new(StoreName::new("feeds").unwrap(), consistency).unwrap()
    }

    /// What a walk takes of a page of a quarter of the ring, which a store with windows holds, where it asks the store or
    /// the plain hash.
    fn walked(by_hash: bool) -> (usize, usize) {
        let by = |placement| Store { placement, ..store(1, 1) };
        let key = KeyPattern::new("feed:{group}:{sequence}").unwrap();
        let windows = Windows { theta: 4, key, buckets: 64, unknown: model::Unknown::new() };
        let (held, last) = (by(Placement::Windows(windows)), Token(u64::MAX / 4));
        let keys = (0..200).map(|number| Bytes::from(format!("feed:anna:{number}")));
        let mut keys: Vec<Bytes> = keys.filter(|key| held.token(key) <= last).collect();
        keys.sort_by_key(|key| (held.token(key), key.clone()));
        let there = keys.len();
        let definition = if by_hash { by(Placement::Hash) } else { held };
        let mut walk = Walk::new(vec![NodeId(1)], 1, &definition, None);
        let asks = walk.asks().unwrap();
        walk.page(asks[0].node, keys.into_iter().map(|key| (key, set())).collect(), None);
        let mut records = walk.take();
        cut(&mut records, last);
        (records.len(), there)
    }

    /// A plant: a walk that asks the plain hash where a key of windows lies.
    #[test]
    fn must_not_1_an_export_asks_the_plain_hash_and_misses_a_key() {
        let (taken, there) = walked(false);
        assert!(there > 20 && taken == there, "{taken} of {there}");
        let (taken, there) = walked(true);
        assert!(taken < there, "the bug is found: it takes {taken} of {there}");
    }

    #[test]
    fn a_walk_that_begins_within_a_partition_begins_behind_everything_in_front() {
        assert_eq!(before(Token(0)), None);
        let (token, key) = before(Token(7)).unwrap();
        assert_eq!((token, key.len()), (Token(6), model::limits::KEY_BYTES_MAX));
    }

    /// A store of which two of three replicas are read, and a partition of it.
    fn of_three() -> (Store, Here) {
        let bounds = (Token(0), Token(u64::MAX));
        let place = PlaceRead { partition: PartitionId(0), bounds, since: Generation(1) };
        let definition = store(3, 2);
        let here = Here::new(place, [1, 2, 3].map(NodeId).to_vec(), &definition, None);
        (definition, here)
    }

    /// Of which nodes a page is next.
    fn asked(here: &mut Here) -> Result<Vec<u32>, TooFew> {
        here.walk.asks().map(|asks| asks.into_iter().map(|ask| ask.node.0).collect())
    }

    /// Two of three replicas have a damaged record. When all are asked again and damage is accepted, the whole one is
    /// read in any case: another record than those that every replica has damaged must not be missing.
    #[test]
    fn a_replica_that_failed_is_asked_last_when_all_are_asked_again() {
        let (definition, mut here) = of_three();
        assert_eq!(asked(&mut here), Ok(vec![1, 2]));
        here.failed(NodeId(1), unreadable(NodeId(1), 1));
        assert_eq!(asked(&mut here), Ok(vec![3]), "the other one's page is kept");
        here.failed(NodeId(2), unreadable(NodeId(2), 1));
        assert_eq!(asked(&mut here), Err(TooFew { required: 2, left: 1 }));
        assert!(
            here.failure
                .as_ref()
                .is_some_and(|failure| failure.to_string().contains("n2 cannot read 1 record"))
        );
        here.again(&definition, None);
        assert_eq!(asked(&mut here), Ok(vec![3, 1]));
    }

    /// One that was not reached may have whole what another one has damaged.
    #[test]
    fn a_replica_with_damage_is_asked_after_one_that_was_not_reached() {
        let (definition, mut here) = of_three();
        assert_eq!(asked(&mut here), Ok(vec![1, 2]));
        here.failed(NodeId(1), unreadable(NodeId(1), 1));
        let detail = "n2 starts".to_owned();
        here.failed(NodeId(2), ClientError::Failed { code: ErrorCode::Overloaded, detail });
        here.again(&definition, None);
        assert_eq!(asked(&mut here), Ok(vec![3, 2]));
    }
}
