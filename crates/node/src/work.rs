//! What work this node does: for each bucket as a replica, and for its clients as a coordinator. Counters only grow.
//!
//! ```text
//!   link, or coordinator of this process ──▶ Replica: get, merge ──▶ Work: gets, puts of the key's bucket
//!   client ──▶ Front ──▶ Coordinated: gets, puts     └▶ stamp ─────▶ Work: stamped of the key's bucket
//! ```
//!
//! A cluster's buckets never change in number, so a counter is found by its bucket's number, without a lock. To count is one
//! relaxed addition. Partitions are sums of buckets, made when somebody asks: they may be cut and joined meanwhile.
//!
//! What comes as a merge over a link counts, also what another node sends because it compared, or delivers as a hint:
//! such messages look the same. What this node fetches, copies, scans or reads for itself does not.
//!
//! Of some operations the key is noted, too ([`HotKeys`]).
//!
//! Must never: take a lock, allocate, or ask a clock to count, but for those few.

use std::cmp::Reverse;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use model::{Moment, PartitionId};
use protocol::report::{LoadReport, Middle, PARTITIONS_TOLD, PartitionLoad, WorkDone};
use runtime::locks::Mutex;

use crate::hot::{HotKeys, ONE_IN};

/// How long ago that is at least with which is compared what was done lately.
const LATELY_MIN: Duration = Duration::from_secs(5);

/// The work of one node as a replica, by bucket.
pub struct Work {
    buckets: Box<[BucketWork]>,
    hot: HotKeys,
    lately: Mutex<Lately>,
}

/// The work for one bucket. Half a cache line, so that none has two.
#[derive(Default)]
#[repr(align(32))]
struct BucketWork {
    gets: AtomicU64,
    puts: AtomicU64,
    stamped: AtomicU64,
    own_gets: AtomicU64,
}

impl BucketWork {
    fn done(&self) -> WorkDone {
        WorkDone {
            gets: self.gets.load(Ordering::Relaxed),
            puts: self.puts.load(Ordering::Relaxed),
            stamped: self.stamped.load(Ordering::Relaxed),
            own_gets: self.own_gets.load(Ordering::Relaxed),
        }
    }
}

impl Work {
    /// Nothing done for this many buckets.
    pub fn new(buckets: usize) -> Work {
        let buckets = (0..buckets).map(|_| BucketWork::default()).collect();
        Work { buckets, hot: HotKeys::default(), lately: Mutex::default() }
    }

    /// A get of a key in this bucket was answered, as a replica.
    pub fn got(&self, bucket: PartitionId, key: &[u8]) {
        self.count(bucket, key, |work| &work.gets);
    }

    /// A get of a key in this bucket is driven by this node, which asks itself first, whatever its place.
    pub fn asked_itself(&self, bucket: PartitionId) {
        if let Some(work) = self.buckets.get(bucket.0 as usize) {
            work.own_gets.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A write was merged into a record in this bucket, as a replica.
    pub fn merged(&self, bucket: PartitionId, key: &[u8]) {
        self.count(bucket, key, |work| &work.puts);
    }

    /// A write of a key in this bucket was stamped and stored, as a replica.
    pub fn stamped(&self, bucket: PartitionId, key: &[u8]) {
        self.count(bucket, key, |work| &work.stamped);
    }

    fn count(&self, bucket: PartitionId, key: &[u8], of: impl FnOnce(&BucketWork) -> &AtomicU64) {
        // Only a document with other buckets has one that is not there, and such a document is not adopted.
        if let Some(work) = self.buckets.get(bucket.0 as usize) {
            let before = of(work).fetch_add(1, Ordering::Relaxed);
            if before.is_multiple_of(ONE_IN) {
                self.hot.note(bucket, key);
            }
        }
    }

    /// The keys that had most work lately.
    pub fn hot(&self) -> &HotKeys {
        &self.hot
    }

    /// What was done for each bucket, by number.
    pub fn by_bucket(&self) -> Vec<WorkDone> {
        self.buckets.iter().map(BucketWork::done).collect()
    }

    /// What was done for all buckets.
    pub fn total(&self) -> WorkDone {
        self.buckets.iter().map(BucketWork::done).sum()
    }

    /// How much more was done for each bucket than at the last look at these that is old enough; all of it while there is
    /// none.
    pub(crate) fn lately(&self, now: Moment, done: &[WorkDone]) -> Vec<u64> {
        self.lately.lock().growth(now, done.iter().map(|work| work.operations()).collect())
    }
}

/// What had been counted before.
#[derive(Default)]
struct Lately {
    /// The newest look that is at least [`LATELY_MIN`] old, of those that were kept.
    before: Option<Counted>,
    /// The look after it, which takes its place when it is old enough.
    next: Option<Counted>,
}

struct Counted {
    at: Moment,
    /// By bucket.
    operations: Vec<u64>,
}

impl Lately {
    fn growth(&mut self, now: Moment, operations: Vec<u64>) -> Vec<u64> {
        if self.next.as_ref().is_some_and(|next| now.since(next.at) >= LATELY_MIN) {
            self.before = self.next.take();
        }
        let growth = match &self.before {
            Some(before) => {
                let pairs = operations.iter().zip(&before.operations);
                pairs.map(|(now, before)| now.saturating_sub(*before)).collect()
            }
            None => operations.clone(),
        };
        self.next.get_or_insert(Counted { at: now, operations });
        growth
    }
}

/// So much must have been done for a partition lately, in operations, before it is told where its work halves.
const MIDDLE_MIN: u64 = 500;
/// And so large a part of all the node's work, in percent.
const MIDDLE_SHARE_MIN: u64 = 10;

/// Where the work that was done lately for a partition of these buckets falls in two parts that are as alike as buckets
/// allow. `None` where it is little, or all of it is for one bucket.
pub(crate) fn middle(lately: &[(u64, u64)], all: u64) -> Option<Middle> {
    let sum: u64 = lately.iter().map(|(_, operations)| operations).sum();
    if sum < MIDDLE_MIN || sum * 100 < all * MIDDLE_SHARE_MIN {
        return None;
    }
    let mut first = 0;
    let cuts = lately.windows(2).map(|pair| {
        first += pair[0].1;
        (first.abs_diff(sum - first), first, pair[1].0)
    });
    let (_, first, at) = cuts.min()?;
    let permille = (first as f64 * 1000.0 / sum as f64).round() as u32;
    (permille > 0 && permille < 1000).then_some(Middle { at, permille })
}

/// Writes loads of partitions into a report, each with what was done for it lately: those with most of that for
/// themselves, the rest as a sum.
pub(crate) fn tell(report: &mut LoadReport, mut loads: Vec<(PartitionLoad, u64)>) {
    if loads.len() > PARTITIONS_TOLD {
        loads.sort_by_key(|(load, lately)| {
            (Reverse(*lately), Reverse(load.work.operations()), load.partition)
        });
    }
    let rest = loads.split_off(loads.len().min(PARTITIONS_TOLD));
    report.rest = rest.iter().map(|(load, _)| load.work).sum();
    report.rest_partitions = u32::try_from(rest.len()).unwrap_or(u32::MAX);
    report.rest_bytes = rest.iter().map(|(load, _)| load.bytes).sum();
    report.partitions = loads.into_iter().map(|(load, _)| load).collect();
    report.partitions.sort_by_key(|load| load.partition);
}

/// Keys that the clients of one worker had it get and put, at all doors. A write that depends on what is there reads it
/// first, which counts as well.
#[derive(Debug, Default)]
pub struct Coordinated {
    gets: AtomicU64,
    puts: AtomicU64,
    own_stamped: AtomicU64,
}

impl Coordinated {
    /// It drives gets of this many keys.
    pub fn add_gets(&self, keys: usize) {
        self.gets.fetch_add(keys as u64, Ordering::Relaxed);
    }

    /// It drives puts and deletes of this many keys.
    pub fn add_puts(&self, keys: usize) {
        self.puts.fetch_add(keys as u64, Ordering::Relaxed);
    }

    /// It stamped this many keys for clients that asked any node.
    pub fn add_own_stamped(&self, keys: usize) {
        self.own_stamped.fetch_add(keys as u64, Ordering::Relaxed);
    }

    /// Writes that it stamped because it was asked, not because of its place.
    pub fn own_stamped(&self) -> u64 {
        self.own_stamped.load(Ordering::Relaxed)
    }

    /// Gets so far.
    pub fn gets(&self) -> u64 {
        self.gets.load(Ordering::Relaxed)
    }

    /// Puts and deletes so far.
    pub fn puts(&self) -> u64 {
        self.puts.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(partition: u32, gets: u64, bytes: u64) -> PartitionLoad {
        let work = WorkDone { gets, ..WorkDone::default() };
        PartitionLoad { partition: PartitionId(partition), work, bytes, middle: None }
    }

    #[test]
    fn work_is_counted_for_each_bucket_and_for_all_together() {
        let work = Work::new(4);
        work.got(PartitionId(1), b"a");
        work.got(PartitionId(1), b"a");
        work.asked_itself(PartitionId(1));
        work.merged(PartitionId(1), b"b");
        work.stamped(PartitionId(3), b"c");
        work.stamped(PartitionId(4), b"d");
        let nothing = WorkDone::default();
        let second = WorkDone { gets: 2, puts: 1, own_gets: 1, ..nothing };
        let last = WorkDone { stamped: 1, ..nothing };
        assert_eq!(work.by_bucket(), [nothing, second, nothing, last]);
        assert_eq!(work.total(), WorkDone { gets: 2, puts: 1, stamped: 1, own_gets: 1 });
        assert_eq!(size_of::<BucketWork>(), 32);
        // The first operation of each kind and bucket is noted.
        assert_eq!(work.hot().hottest(PartitionId(0)..=PartitionId(9), 9).1, 3);
    }

    #[test]
    fn a_partition_is_cut_where_its_halves_have_the_most_equal_work() {
        let halves = |operations: &[u64], all: u64| {
            let lately: Vec<(u64, u64)> = (0..).map(|at| at * 10).zip(operations.iter().copied()).collect();
            middle(&lately, all).map(|middle| (middle.at, middle.permille))
        };
        assert_eq!(halves(&[300, 300, 300, 300], 1200), Some((20, 500)));
        assert_eq!(halves(&[900, 50, 50], 1000), Some((10, 900)));
        assert_eq!(halves(&[0, 900, 100], 1000), Some((20, 900)));
        assert_eq!(halves(&[0, 1000, 0], 1000), None, "all of it is for one bucket");
        assert_eq!(halves(&[1000], 1000), None);
        assert_eq!(halves(&[200, 200], 400), None, "that is little");
        assert_eq!(halves(&[300, 300], 100_000), None, "and that is little of what the node does");
    }

    #[test]
    fn recent_work_is_work_since_the_last_look_at_least_five_seconds_ago() {
        let mut lately = Lately::default();
        let mut look = |seconds: u64, counted: u64| {
            lately.growth(Moment::default().after(Duration::from_secs(seconds)), vec![counted, 7])
        };
        assert_eq!(look(0, 10), [10, 7], "there was none before");
        assert_eq!(look(4, 30), [30, 7], "the first look is too young");
        assert_eq!(look(5, 40), [30, 0]);
        assert_eq!(look(9, 50), [40, 0], "what was seen four seconds ago does not count yet");
        assert_eq!(look(10, 60), [20, 0]);
        assert_eq!(look(60, 61), [1, 0], "however long ago it was");
    }

    #[test]
    fn partitions_within_the_limit_are_reported_in_order_of_their_ids() {
        let loads = (0..PARTITIONS_TOLD as u32).rev().map(|id| (load(id, 1, 10), 0)).collect();
        let mut report = LoadReport::default();
        tell(&mut report, loads);
        assert_eq!((report.partitions.len(), report.rest_partitions), (PARTITIONS_TOLD, 0));
        assert!(report.partitions.is_sorted_by_key(|load| load.partition));
    }

    #[test]
    fn beyond_the_limit_the_busiest_partitions_are_reported_and_the_rest_as_a_sum() {
        let count = PARTITIONS_TOLD as u32 + 3;
        // The first has done most by far, but nothing lately; of those that did nothing lately it comes first.
        let loads = (0..count).map(|id| match id {
            0 => (load(0, 1_000_000, 10), 0),
            1..=4 => (load(id, 2, 10), 0),
            _ => (load(id, 5, 10), 1),
        });
        let mut report = LoadReport::default();
        tell(&mut report, loads.collect());
        let told: Vec<u32> = report.partitions.iter().map(|load| load.partition.0).collect();
        assert_eq!(told[..3], [0, 1, 5]);
        assert_eq!(report.rest, WorkDone { gets: 6, ..WorkDone::default() });
        assert_eq!((report.rest_partitions, report.rest_bytes), (3, 30));
        assert_eq!(report.work().gets, 1_000_000 + 8 + 5 * u64::from(count - 5));
    }
}
