//! Work in the background that panics at one partition: it is begun anew, and does all others meanwhile.
//!
//! The engines of these tests panic when something of that partition is read, as a bug in what reads it would.

use std::collections::BTreeMap;
use std::ops::{ControlFlow, RangeInclusive};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use model::{PartitionId, Token};
use parking_lot::Mutex;
use protocol::report::{ChoreReport, ChoreState, Parts};
use runtime::{BoxFuture, Disk};
use storage::{LogOptions, Met, Remains, ScanCursor, ScanLimit, ScanPage, StorageEngine, StorageError};
use wire::messages::Request;

use super::healing::left;
use super::pairs::{damage, events, first, metric};
use super::refilling::{Lost, keys, lost, shown};
use super::{Answer, Engines, Event, Home, LogEngines, Node, deleted, merge, old};

/// Whether a sync panics.
type IsBad = Box<dyn Fn() -> bool + Send>;

/// The partition that is bad, if one is, and how often each was read.
#[derive(Default)]
struct Touchy {
    bad: Mutex<Option<PartitionId>>,
    /// The first sync of which this is true panics, and none after it.
    bad_sync: Mutex<Option<IsBad>>,
    panics: AtomicU64,
    reads: Mutex<BTreeMap<PartitionId, u64>>,
}

impl Touchy {
    fn set(&self, bad: Option<PartitionId>) {
        *self.bad.lock() = bad;
    }

    fn panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }

    fn reads(&self, partition: PartitionId) -> u64 {
        self.reads.lock().get(&partition).copied().unwrap_or(0)
    }

    fn read(&self, partition: PartitionId) {
        *self.reads.lock().entry(partition).or_default() += 1;
        let is_bad = *self.bad.lock() == Some(partition);
        if is_bad {
            self.panic();
        }
    }

    fn sync(&self) {
        let is_bad = self.bad_sync.lock().take_if(|is_bad| is_bad()).is_some();
        if is_bad {
            self.panic();
        }
    }

    fn panic(&self) {
        self.panics.fetch_add(1, Ordering::Relaxed);
        panic!("as planned");
    }
}

struct TouchyEngines(LogEngines, Arc<Touchy>);

impl Engines for TouchyEngines {
    fn kind(&self) -> &'static str {
        self.0.kind()
    }

    fn remains(&self, name: &str) -> Result<Remains, StorageError> {
        self.0.remains(name)
    }

    fn open(&self, name: &str) -> BoxFuture<'static, Result<Arc<dyn StorageEngine>, StorageError>> {
        let (opened, touchy) = (self.0.open(name), self.1.clone());
        Box::pin(async move {
            Ok(Arc::new(TouchyEngine { engine: opened.await?, touchy }) as Arc<dyn StorageEngine>)
        })
    }
}

struct TouchyEngine {
    engine: Arc<dyn StorageEngine>,
    touchy: Arc<Touchy>,
}

impl StorageEngine for TouchyEngine {
    storage::forward_engine!(engine: update, acknowledges_at_once, repairable, room, durable, position, find, partitions, drop_partition, stats, close);

    fn get(&self, partition: PartitionId, token: Token, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        self.touchy.read(partition);
        self.engine.get(partition, token, key)
    }

    fn walk(
        &self,
        partition: PartitionId,
        tokens: RangeInclusive<Token>,
        visit: &mut dyn FnMut(Token, Met<'_>) -> ControlFlow<()>,
    ) -> Result<(), StorageError> {
        self.touchy.read(partition);
        self.engine.walk(partition, tokens, visit)
    }

    fn scan(
        &self,
        partition: PartitionId,
        after: Option<&ScanCursor>,
        limit: ScanLimit,
    ) -> Result<ScanPage, StorageError> {
        self.touchy.read(partition);
        self.engine.scan(partition, after, limit)
    }

    fn sync(&self) -> BoxFuture<'static, Result<(), StorageError>> {
        self.touchy.sync();
        self.engine.sync()
    }
}

fn start(home: &Home, touchy: &Arc<Touchy>) -> Arc<Node> {
    home.stage.survive_panics();
    let disk: Arc<dyn Disk> = Arc::new(home.disk.clone());
    let engines = LogEngines { disk, options: LogOptions::default(), ports: home.ports() };
    home.start_over(Arc::new(TouchyEngines(engines, touchy.clone()))).unwrap()
}

fn partitions(node: &Node) -> [PartitionId; 2] {
    let view = node.replica().view().get();
    let ids: Vec<PartitionId> = view.buckets().partitions().iter().map(|partition| partition.id).collect();
    ids.try_into().expect("there are two")
}

fn chore(node: &Node, name: &str) -> ChoreReport {
    let status = node.report(Parts::STATUS).status.expect("it was asked for");
    status.chores.into_iter().find(|chore| chore.chore == name).expect("the node has it")
}

#[test]
fn bringing_in_does_the_others_while_it_panics_at_one_partition_and_comes_back_to_it() {
    let lost = lost();
    lost.serve(|_| None);
    let (touchy, [bad, _]) = (Arc::new(Touchy::default()), partitions(&lost.others[0].1));
    touchy.set(Some(bad));
    let node = start(&lost.home, &touchy);
    lost.home.stage.until(|| left(&node) == 1);
    lost.home.stage.pass(Duration::from_secs(20));
    assert_eq!(left(&node), 1, "the bad one does not pass for whole");
    shown(&node).unwrap();
    let panicked = chore(&node, "bring in");
    assert!(panicked.panics_total >= 3, "it is tried again and again: {panicked:?}");
    assert_eq!((panicked.panics_total, panicked.state), (touchy.panics(), ChoreState::Failed));
    touchy.set(None);
    lost.home.stage.until(|| left(&node) == 0);
    shown(&node).unwrap();
    lost.home.stage.pass(Duration::from_secs(1));
    assert_eq!(chore(&node, "bring in").failures, 0, "it works again");
}

/// The power is cut, and only what the node has on its disk counts from then on: how much it knows of as lost.
fn left_after_a_cut(lost: &Lost, node: Arc<Node>) -> usize {
    lost.home.cut(node, 0);
    for (other, _) in &lost.others {
        lost.home.wires.script(other.config.member.id, |_| Answer::Silence);
    }
    let node = lost.home.start();
    shown(&node).unwrap();
    left(&node)
}

/// A round that panics writes nothing down, and each one panicked: after a restart all was brought in again.
#[test]
fn partitions_that_became_whole_in_rounds_that_panicked_are_whole_after_a_power_cut() {
    let lost = lost();
    lost.serve(|_| None);
    let (touchy, [bad, _]) = (Arc::new(Touchy::default()), partitions(&lost.others[0].1));
    touchy.set(Some(bad));
    let node = start(&lost.home, &touchy);
    lost.home.stage.until(|| left(&node) == 1);
    lost.home.stage.pass(Duration::from_secs(20));
    assert!(chore(&node, "bring in").panics_total >= 3, "no round went well");
    assert_eq!(left_after_a_cut(&lost, node), 1);
}

/// Nothing is left to bring in, so no round would come to the end that tells of it.
#[test]
fn bringing_in_that_panics_when_all_is_whole_comes_to_its_end() {
    let lost = lost();
    lost.serve(|_| Some(Answer::Silence));
    let touchy = Arc::new(Touchy::default());
    let node = start(&lost.home, &touchy);
    let its = Arc::downgrade(&node);
    let is_whole = move || its.upgrade().is_some_and(|node| left(&node) == 0);
    *touchy.bad_sync.lock() = Some(Box::new(is_whole));
    lost.serve(|_| None);
    lost.home.stage.until(|| touchy.panics() == 1);
    lost.home.stage.pass(Duration::from_secs(5));
    let ended = events(&node, &["refill-ended"]);
    assert!(matches!(*ended, [Event::RefillEnded { partitions: 2, records: 8, .. }]), "{ended:?}");
    assert_eq!(chore(&node, "bring in").panics_total, 1);
    assert_eq!(left_after_a_cut(&lost, node), 0);
}

/// Such a session is never over. The next one took the place of what it had brought, so counters went back.
#[test]
fn records_of_a_session_that_panicked_are_counted_once() {
    let lost = lost();
    let (touchy, [bad, _]) = (Arc::new(Touchy::default()), partitions(&lost.others[0].1));
    let (its, is_first) = (touchy.clone(), Arc::new(AtomicBool::new(true)));
    // The second page of the partition was asked for, and the first one has been merged.
    lost.serve(move |request| {
        if let Request::RecordsPage(page) = request
            && page.partition == bad
            && page.from.0 % (1 << 63) != 0
            && is_first.swap(false, Ordering::Relaxed)
        {
            its.set(Some(bad));
        }
        None
    });
    let node = start(&lost.home, &touchy);
    lost.home.stage.until(|| touchy.panics() == 1);
    touchy.set(None);
    let came = || node.antientropy().report().refill.map_or((0, 0), |refill| (refill.records, refill.bytes));
    let before = came();
    assert_eq!(before.0, 2, "a page of the session that panicked");
    let mut last = before;
    lost.home.stage.until(|| {
        let now = came();
        assert!(now >= last, "{now:?} after {last:?}");
        last = now;
        left(&node) == 0
    });
    lost.home.stage.pass(Duration::from_secs(1));
    assert_eq!((came().0, touchy.panics()), (keys().len() as u64, 1));
    assert!(matches!(*events(&node, &["refill-ended"]), [Event::RefillEnded { records: 8, .. }]));
}

/// What panics while it reads has announced to writers which tokens it reads: that is over, too.
#[test]
fn the_scrub_of_records_reads_the_others_while_it_panics_at_one_partition() {
    let mut home = Home::new();
    home.config.repair.antientropy.scrub_period = Duration::from_secs(10);
    let touchy = Arc::new(Touchy::default());
    let node = start(&home, &touchy);
    for key in keys() {
        home.call(&node, merge(&key, &old(), 0, None)).unwrap();
    }
    let [bad, other] = partitions(&node);
    home.stage.until(|| touchy.reads(bad) > 0 && touchy.reads(other) > 0);
    touchy.set(Some(bad));
    let (passed, before) = (touchy.panics(), touchy.reads(other));
    home.stage.pass(Duration::from_secs(60));
    let scrub = chore(&node, "scrub records");
    assert!(scrub.panics_total >= 2 && scrub.panics_total == touchy.panics() - passed, "{scrub:?}");
    assert!(touchy.reads(other) >= before + 2, "the other one is behind it");
    let rounds = scrub.rounds_total;
    touchy.set(None);
    home.stage.pass(Duration::from_secs(60));
    let scrub = chore(&node, "scrub records");
    assert!(scrub.rounds_total > rounds + 1 && scrub.failures == 0, "it works again: {scrub:?}");
}

/// Hints come behind all partitions, and no pass came so far.
#[test]
fn the_scrub_reads_hints_before_a_partition_at_which_it_panics() {
    let mut home = Home::new();
    home.config.repair.antientropy.scrub_period = Duration::from_secs(10);
    let touchy = Arc::new(Touchy::default());
    let node = start(&home, &touchy);
    node.handoffs().stop();
    for key in keys() {
        home.call(&node, merge(&key, &old(), 0, None)).unwrap();
    }
    let (hinted, [bad, _]) = (keys().remove(0), partitions(&node));
    home.call(&node, merge(&hinted, &first(&hinted), 0, Some(3))).unwrap();
    home.stage.pass(Duration::from_secs(1));
    touchy.set(Some(bad));
    damage(&home, &hinted);
    home.stage.pass(Duration::from_secs(60));
    let scrub = chore(&node, "scrub records");
    assert!(scrub.panics_total >= 2 && scrub.panics_total == touchy.panics(), "{scrub:?}");
    assert!(metric(&node, "tontine_scrub_corrupt_hints_total") > 0, "each pass comes to them");
}

/// The search began anew with the first partition, and no tombstone behind a bad one was ever collected.
#[test]
fn tombstones_are_found_in_the_others_while_the_search_panics_at_one_partition() {
    let home = Home::new().syncing();
    let node = home.start();
    for key in keys() {
        home.call(&node, merge(&key, &deleted(), 0, None)).unwrap();
    }
    let (touchy, [bad, _]) = (Arc::new(Touchy::default()), partitions(&node));
    home.stage.pass(Duration::from_secs(5));
    home.cut(node, 0);
    touchy.set(Some(bad));
    let node = start(&home, &touchy);
    let found = || metric(&node, "tontine_collection_tombstones_pending");
    let half = keys().len() as u64 / 2;
    home.stage.until(|| found() == half);
    home.stage.pass(Duration::from_secs(20));
    let search = chore(&node, "find tombstones");
    assert!(search.panics_total >= 3 && found() == half, "it is tried again and again: {search:?}");
    touchy.set(None);
    home.stage.until(|| found() == 2 * half);
    home.stage.pass(Duration::from_secs(1));
    assert_eq!(chore(&node, "find tombstones").failures, 0, "it works again");
}

/// A chore that is begun anew rests first, and that passed for a round that went well: `doctor` said that it works again.
#[test]
fn collecting_that_panicked_counts_as_failed_until_a_pass_went_well() {
    let mut home = Home::new();
    home.config.repair.collection.interval = Duration::from_secs(10);
    let touchy = Arc::new(Touchy::default());
    let node = start(&home, &touchy);
    home.call(&node, merge(&keys()[0], &deleted(), 0, None)).unwrap();
    touchy.set(Some(partitions(&node)[0]));
    home.stage.until(|| chore(&node, "collect").panics_total == 1);
    let rounds = chore(&node, "collect").rounds_total;
    home.stage.until(|| chore(&node, "collect").rounds_total > rounds);
    touchy.set(None);
    let collect = chore(&node, "collect");
    assert_eq!((collect.panics, collect.state), (1, ChoreState::Failed), "it has rested: {collect:?}");
    home.stage.until(|| chore(&node, "collect").failures == 0);
    assert!(chore(&node, "collect").rounds_total > rounds + 1, "a pass went well");
}
