//! What a node does by itself while partitions move, or after it has lost records, and how it tells how far it is.
//!
//! ```text
//!   document ──▶ announce: what it brings is incomplete, durably, before the node follows it
//!           └──▶ follow ──▶ course: events
//!                   ├─────▶ refill: bring in, merge again ──▶ entering: told ──▶ headmaster ──▶ next document
//!                   └─────▶ leaving: give back, drop
//! ```
//!
//! [`Rebalance`] has what its parts share. Records travel by sessions of [`crate::antientropy`], whose goal is another.
//!
//! **Architecture Invariant:** nothing here decides that a partition takes its next step: `protocol::rebalance` does.
//!
//! Must never: keep the node alive. Each task holds on to it only while it does something.

mod course;
mod entering;
mod leaving;
mod refill;

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use model::artifacts::Standing;
use model::{Cluster, NodeId, Partition, PartitionId};
use protocol::pace::{Pace, PaceLimits};
use protocol::rebalance::entering::Part;
use protocol::report::{Leftover, RebalanceReport, RefillReport};
use runtime::locks::Mutex;
use runtime::{Clock, Disk, DiskError};
use tokio::sync::Notify;

use crate::antientropy::AntiEntropy;
use crate::chores::{Board, Culprits, Rest, begin};
use crate::events::Events;
use crate::metrics::Metrics;
use crate::replica::Replica;
use crate::stores::{LocalStore, ReadOnly};
use crate::view::View;

use course::Course;
use leaving::Leave;
use refill::BringIn;

pub(crate) use entering::begun;
pub(crate) use refill::Refill;

/// What rebalancing is made of.
pub(crate) struct RebalanceParts<'a> {
    pub(crate) antientropy: Arc<AntiEntropy>,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) events: Arc<Events>,
    pub(crate) metrics: &'a Metrics,
    pub(crate) board: &'a Arc<Board>,
    /// What is incomplete at the start.
    pub(crate) refill: Refill,
    pub(crate) incarnation: u64,
}

/// What one node brings in and gives back.
pub struct Rebalance {
    antientropy: Arc<AntiEntropy>,
    disk: Arc<dyn Disk>,
    events: Arc<Events>,
    incarnation: u64,
    refill: Mutex<Refill>,
    course: Mutex<Course>,
    /// How fast it brings in by now.
    bringing: Mutex<Pace>,
    /// A newer document may have brought something to refill.
    refill_wake: Arc<Notify>,
    /// A newer document may have made something here a leftover.
    leave_wake: Arc<Notify>,
    /// One list of what is incomplete is written at a time.
    noting: tokio::sync::Mutex<()>,
    /// At what it panicked: bringing in, and leaving.
    bring_culprits: Culprits,
    leave_culprits: Culprits,
}

impl Rebalance {
    /// Begins. Tasks end when the result is dropped, or repair and this are closed.
    pub(crate) fn start(parts: RebalanceParts<'_>) -> Arc<Rebalance> {
        let RebalanceParts { antientropy, disk, events, metrics, board, refill, incarnation } = parts;
        let (least, most) = antientropy.options().brought_per_second_on(antientropy.ports());
        let rebalance = Arc::new(Rebalance {
            antientropy,
            disk,
            events,
            incarnation,
            refill: Mutex::new(refill),
            course: Mutex::default(),
            bringing: Mutex::new(Pace::new(PaceLimits::for_refilling(least, most))),
            refill_wake: Arc::default(),
            leave_wake: Arc::default(),
            noting: tokio::sync::Mutex::default(),
            bring_culprits: Culprits::default(),
            leave_culprits: Culprits::default(),
        });
        watch(&rebalance, metrics);
        let told = Arc::downgrade(&rebalance);
        rebalance.antientropy.tell_refilling(Box::new(move || told.upgrade()?.refill_report()));
        rebalance.follow();
        let ports = rebalance.antientropy.ports();
        let (bring_in, leave) = (Arc::downgrade(&rebalance), Arc::downgrade(&rebalance));
        begin(ports, board, Rest::Now, move || BringIn::new(bring_in.clone()));
        begin(ports, board, Rest::Now, move || Leave(leave.clone()));
        rebalance
    }

    /// Ends all tasks at their next step, once repair is closed.
    pub(crate) fn close(&self) {
        assert!(self.is_closing(), "repair is closed first, or a task that is woken goes on");
        self.refill_wake.notify_waiters();
        self.leave_wake.notify_waiters();
    }

    /// Remembers what a document brings to this node, before the node follows it: what was not brought in yet must not
    /// pass for all there is.
    ///
    /// # Errors
    /// When that cannot be made durable: then the document must not be adopted.
    pub(crate) async fn announce(
        &self,
        before: &Cluster,
        after: &Cluster,
        stores: &[Arc<LocalStore>],
    ) -> Result<(), DiskError> {
        let begun = begun(self.node(), Some(before), after);
        if begun.is_empty() {
            return Ok(());
        }
        for (name, partition) in &begun {
            let store = stores.iter().find(|store| store.definition().name.as_str() == name);
            store.into_iter().for_each(|store| store.trees().set_incomplete(*partition, true));
        }
        let _alone = self.noting.lock().await;
        let text = {
            let mut refill = self.refill.lock();
            refill.announce(begun);
            refill.text()
        };
        Refill::save(self.disk.clone(), text).await
    }

    /// The node follows another document: what it announced is in force.
    pub(crate) fn follow(&self) {
        let (view, own) = (self.view(), (self.node(), self.incarnation));
        let mut refill = self.refill.lock();
        refill.announced();
        refill.entered.follow(&view, own);
        drop(refill);
        let told = self.course.lock().follow(view.cluster(), own.0, self.clock().now());
        told.into_iter().for_each(|event| self.events.record(event));
        self.refill_wake.notify_one();
        self.leave_wake.notify_one();
    }

    /// Partitions of stores that were lost here: those that are incomplete, and all.
    pub fn lost(&self) -> (usize, usize) {
        let view = self.view();
        self.refill.lock().lost(&view, self.node())
    }

    /// Partitions of stores that documents make this node bring in, and that are not whole yet.
    pub fn bringing_in(&self) -> usize {
        let view = self.view();
        let refill = self.refill.lock();
        refill.progress().0.saturating_sub(refill.lost(&view, self.node()).0)
    }

    /// Partitions of stores that are incomplete, lost or brought in, and how many were in the beginning.
    pub fn progress(&self) -> (usize, usize) {
        self.refill.lock().progress()
    }

    /// How far refilling is; nothing when nothing was lost.
    pub fn refill_report(&self) -> Option<RefillReport> {
        let view = self.view();
        self.refill.lock().report(self.clock().now(), &view, self.node())
    }

    /// How far this node is, by which steps are decided.
    pub fn report(&self) -> RebalanceReport {
        let (replica, node) = (self.replica(), self.node());
        // Before anything else: what is said of later documents then says too little, never too much.
        let adopted = replica.view().adopted();
        let view = replica.view().get();
        let hints = replica.hints().pending().into_iter().map(|(_, count)| count).sum();
        let has_artifacts = |id| {
            let partition = view.buckets().get(id);
            partition.is_none_or(|partition| {
                view.read_only_stores().iter().all(|store| has_artifacts(store, partition, node))
            })
        };
        let is_whole = |id| entering::has_records(&view, id) && has_artifacts(id);
        let entered = self.refill.lock().entered.report(&view, is_whole);
        let leftovers = view.stores().iter().flat_map(|store| {
            let mut left: BTreeMap<PartitionId, u64> = BTreeMap::new();
            for (bucket, records) in leftovers(&view, store, node) {
                *left.entry(view.owner(bucket).id).or_default() += records;
            }
            let store = &store.definition().name;
            left.into_iter().map(|(partition, records)| Leftover { store: store.clone(), partition, records })
        });
        RebalanceReport { adopted, entered, leftovers: leftovers.collect(), hints }
    }

    /// Records of a partition that it enters have come.
    fn came(&self, partition: PartitionId, records: u64, bytes: u64) {
        self.refill.lock().entered.came(partition, records, bytes);
    }

    fn replica(&self) -> &Replica {
        self.antientropy.replica()
    }

    fn node(&self) -> NodeId {
        self.replica().node()
    }

    /// What the node follows now.
    fn view(&self) -> Arc<View> {
        self.replica().view().get()
    }

    fn clock(&self) -> &Arc<dyn Clock> {
        &self.antientropy.ports().clock
    }

    fn is_closing(&self) -> bool {
        self.antientropy.is_closing()
    }
}

/// Holds on to the node for one step.
fn living(weak: &Weak<Rebalance>) -> Option<Arc<Rebalance>> {
    weak.upgrade().filter(|rebalance| !rebalance.is_closing())
}

/// Shows what is counted here.
fn watch(rebalance: &Arc<Rebalance>, metrics: &Metrics) {
    let watch = |name, read: fn(&Rebalance) -> u64| {
        let weak = Arc::downgrade(rebalance);
        metrics.watch(name, &[], move || weak.upgrade().map_or(0.0, |rebalance| read(&rebalance) as f64));
    };
    watch("tontine_refill_incomplete_partitions", |rebalance| rebalance.lost().0 as u64);
    watch("tontine_refill_lost_partitions", |rebalance| rebalance.lost().1 as u64);
    watch("tontine_refill_entering_partitions", |rebalance| rebalance.bringing_in() as u64);
    watch("tontine_refill_records_total", |rebalance| rebalance.refill.lock().records());
    watch("tontine_refill_bytes_total", |rebalance| rebalance.refill.lock().bytes());
}

/// Whether this node may answer for a partition that it enters from what a read-only store serves and keeps. What was never
/// served need not be here: its swap waits for old and new replicas.
fn has_artifacts(store: &ReadOnly, partition: &Partition, node: NodeId) -> bool {
    let mut served =
        store.listed().artifacts.iter().filter(|artifact| artifact.standing != Standing::Staging);
    Part::of(store.definition(), partition, node) != Part::Entering
        || served.all(|artifact| {
            let open = store.held().open(artifact.number, artifact.manifest);
            open.is_some_and(|open| open.whole_under() >= partition.since)
        })
}

/// The buckets of which this node holds records that are not its own, and how many.
fn leftovers(view: &View, store: &LocalStore, node: NodeId) -> Vec<(PartitionId, u64)> {
    let held = store.engine().partitions().into_iter().map(|held| (held.partition, held.records));
    let is_left = |id: PartitionId| {
        let bucket = view.buckets().get(id);
        bucket.is_some_and(|partition| Part::of(store.definition(), partition, node) == Part::Nothing)
    };
    held.filter(|(id, records)| *records > 0 && is_left(*id)).collect()
}
