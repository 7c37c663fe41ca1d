//! Work in the background that panics at one partition: it is begun anew, and does all others meanwhile.
//!
//! The engines of these tests panic when something of that partition is read, as a bug in what reads it would.

use std::collections::BTreeMap;
use std::ops::{ControlFlow, RangeInclusive};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use model::{PartitionId, Token};
use parking_lot::Mutex;
use protocol::report::{ChoreReport, ChoreState, Parts};
use runtime::{BoxFuture, Disk};
use storage::{LogOptions, Met, Remains, StorageEngine, StorageError};

use super::healing::left;
use super::refilling::{keys, lost, shown};
use super::{Engines, Home, LogEngines, Node, merge, old};

/// The partition that is bad, if one is, and how often each was read.
#[derive(Default)]
struct Touchy {
    bad: Mutex<Option<PartitionId>>,
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
            self.panics.fetch_add(1, Ordering::Relaxed);
            panic!("as planned");
        }
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
    storage::forward_engine!(engine: update, acknowledges_at_once, repairable, room, durable, sync, position, scan, find, partitions, drop_partition, stats, close);

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
