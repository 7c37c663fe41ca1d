//! A node that lost its records gets them back from its peers (`docs/design/healing.md`, *Refilling a lost disk*).
//!
//! Which partitions are incomplete is remembered in a file that is written before the node's identity is, and removed
//! when the last one is whole, so no end of the process in between makes an empty partition pass for a whole one.
//! What became whole is remembered after each few, so that a process that ends goes on from there.
//!
//! Partitions are brought back a few at a time, each few from all their replicas in turn: so some are whole soon, how
//! many tells how far it is, and no peer gives everything. Each few costs a conversation with its replicas, which is
//! waits and no bytes: so where little comes the next few are twice as many.
//!
//! Must never: call a partition whole that was not merged with enough other replicas.

mod list;
mod round;
mod settling;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use model::{Cluster, Moment, NodeId, PartitionId, StoreName};
use protocol::antientropy::{Ledger, SessionOutcome};
use protocol::rebalance::entering::Part;
use protocol::report::{RefillReport, StoreRefill};

use self::round::Round;
use super::entering::Entering;
use super::{Rebalance, living};
use crate::chores::{Chore, Rest, RoundTold};
use crate::events::Event;
use crate::stores::LocalStore;
use crate::view::View;

/// Pause after a round in which nothing became whole; doubles up to the longest.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// How often it is looked without being woken whether there is something to bring in.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);

/// What is being refilled.
#[derive(Default)]
pub(crate) struct Refill {
    stores: BTreeMap<String, Ledger>,
    /// What has come since this start, but for the session that runs.
    came: Came,
    /// What has come in the session that runs.
    coming: Came,
    /// What a document that is about to be adopted makes this node bring in: nothing here is settled before it is.
    announced: BTreeMap<String, BTreeSet<PartitionId>>,
    /// How many partitions documents have made this node bring in: these were not lost.
    begun: usize,
    /// How far it is with partitions that it enters.
    pub(super) entered: Entering,
    /// When it began after this start, and how many lost partitions were incomplete then.
    began: Option<(Moment, usize)>,
    ended: Option<Moment>,
}

/// Records that were merged here, and bytes that travelled for them.
#[derive(Clone, Copy, Default)]
struct Came {
    records: u64,
    bytes: u64,
}

impl Came {
    fn of(outcome: &SessionOutcome) -> Came {
        Came { records: outcome.pulled as u64, bytes: outcome.bytes }
    }

    fn and(self, more: Came) -> Came {
        Came { records: self.records + more.records, bytes: self.bytes + more.bytes }
    }
}

impl Refill {
    /// Everything that `node` shall hold and does not.
    pub(crate) fn everything(node: NodeId, cluster: &Cluster) -> Refill {
        Refill::of(node, cluster, |_| true)
    }

    /// What `node` shall hold of the stores that are lost.
    pub(crate) fn of(node: NodeId, cluster: &Cluster, lost: impl Fn(&str) -> bool) -> Refill {
        let buckets = cluster.by_bucket();
        let stores = cluster.stores.iter().filter(|store| lost(store.name.as_str())).map(|store| {
            let mine = buckets.partitions().iter().filter(|p| Part::of(store, p, node) != Part::Nothing);
            (store.name.to_string(), Ledger::new(mine.map(|partition| partition.id)))
        });
        Refill { stores: stores.collect(), ..Refill::default() }
    }

    /// These partitions must be brought in, too, by a document that is about to be adopted.
    pub(crate) fn announce(&mut self, begun: Vec<(String, PartitionId)>) {
        for (store, partition) in &begun {
            let ledger = self.stores.entry(store.clone()).or_default();
            self.begun += usize::from(!ledger.is_incomplete(*partition));
            ledger.begin(*partition);
        }
        for (store, partition) in begun {
            self.announced.entry(store).or_default().insert(partition);
        }
    }

    /// What was announced is in force, or will not be now.
    pub(crate) fn announced(&mut self) {
        self.announced.clear();
    }

    fn is_announced(&self, store: &str, partition: PartitionId) -> bool {
        self.announced.get(store).is_some_and(|announced| announced.contains(&partition))
    }

    /// Both; of a store that is in both what `more` says.
    pub(crate) fn and(mut self, more: Refill) -> Refill {
        self.stores.extend(more.stores);
        self
    }

    /// Partitions that are incomplete, and how many were in the beginning.
    pub(crate) fn progress(&self) -> (usize, usize) {
        let all = self.stores.values().map(Ledger::progress);
        all.fold((0, 0), |sum, progress| (sum.0 + progress.0, sum.1 + progress.1))
    }

    /// Incomplete partitions of a store.
    pub(crate) fn incomplete(&self, store: &str) -> Vec<PartitionId> {
        self.stores.get(store).map_or_else(Vec::new, |ledger| ledger.incomplete().collect())
    }

    /// How many of a store are incomplete that this node does not merely enter.
    fn lost_of(&self, store: &LocalStore, view: &View, node: NodeId) -> usize {
        let enters = |id: &PartitionId| {
            let partition = view.buckets().get(*id);
            partition.is_some_and(|p| Part::of(store.definition(), p, node) == Part::Entering)
        };
        self.incomplete(store.definition().name.as_str()).iter().filter(|id| !enters(id)).count()
    }

    /// Partitions that were lost: those that are incomplete, and how many there were in the beginning.
    pub(crate) fn lost(&self, view: &View, node: NodeId) -> (usize, usize) {
        let left = view.stores().iter().map(|store| self.lost_of(store, view, node)).sum();
        (left, self.progress().1.saturating_sub(self.begun).max(left))
    }

    /// How far it is; nothing when nothing was lost.
    pub(crate) fn report(&self, now: Moment, view: &View, node: NodeId) -> Option<RefillReport> {
        let (left, total) = self.lost(view, node);
        if total == 0 {
            return None;
        }
        let of_store = |store: &Arc<LocalStore>| {
            let name = &store.definition().name;
            let (left, total) =
                (self.lost_of(store, view, node), self.stores.get(name.as_str())?.progress().1);
            let (partitions, partitions_left) = (total as u64, left as u64);
            Some(StoreRefill { store: name.clone(), partitions, partitions_left })
        };
        let Came { records, bytes } = self.came();
        let (began, at_first) = self.began.unwrap_or((now, left));
        let seconds = self.ended.unwrap_or(now).since(began).as_secs_f64();
        let rate = |count: u64| (seconds > 0.0).then(|| (count as f64 / seconds) as u64);
        let done = at_first.saturating_sub(left);
        Some(RefillReport {
            partitions: total as u64,
            partitions_left: left as u64,
            records,
            bytes,
            seconds,
            records_per_second: rate(records),
            bytes_per_second: rate(bytes),
            seconds_left: (done > 0).then(|| (seconds * left as f64 / done as f64).ceil() as u64),
            stores: view.stores().iter().filter_map(of_store).collect(),
        })
    }

    /// Records and bytes that have come since this start.
    fn came(&self) -> Came {
        self.came.and(self.coming)
    }

    /// Records that have come since this start.
    pub(crate) fn records(&self) -> u64 {
        self.came().records
    }

    /// Bytes that have come since this start.
    pub(crate) fn bytes(&self) -> u64 {
        self.came().bytes
    }

    /// The session that runs has come so far.
    fn show(&mut self, progress: &SessionOutcome) {
        self.coming = Came::of(progress);
    }

    /// The session that ran is over.
    fn took(&mut self, outcome: &SessionOutcome) {
        self.coming = Came::default();
        self.came = self.came.and(Came::of(outcome));
    }
}

/// Refills whatever is incomplete, and brings in what it enters.
pub(super) struct BringIn {
    rebalance: Weak<Rebalance>,
    under_way: Option<UnderWay>,
}

/// From when there is something to bring in until nothing is left to do.
struct UnderWay {
    began: Moment,
    /// Partitions that were lost then.
    lost: usize,
    pause: Duration,
    /// Rounds over all that is incomplete.
    number: usize,
    together: BTreeMap<StoreName, usize>,
}

impl BringIn {
    pub(super) fn new(rebalance: Weak<Rebalance>) -> BringIn {
        BringIn { rebalance, under_way: None }
    }
}

impl Chore for BringIn {
    const NAME: &'static str = "bring in";

    async fn round(&mut self, woken: bool, told: &RoundTold<'_>) -> Rest {
        let Some(rebalance) = living(&self.rebalance) else { return Rest::Ended };
        if self.under_way.is_none() {
            if let Some((began, lost)) = broken_off(&rebalance) {
                // What became whole before the panic is not written down yet.
                remember(&rebalance, told).await;
                if !has_work(&rebalance) {
                    end(&rebalance, began, lost);
                }
            }
            if !has_work(&rebalance) {
                return Rest::UntilWoken(rebalance.refill_wake.clone(), LOOK_INTERVAL);
            }
            self.under_way = Some(UnderWay::begin(&rebalance));
        }
        let under_way = self.under_way.as_mut().expect("it has begun");
        if woken {
            // A newer document: what was in vain may not be any more.
            under_way.pause = PAUSE_MIN;
        }
        let before = rebalance.refill.lock().progress().0;
        Round::new(&rebalance, under_way.number, &mut under_way.together, told).run().await;
        under_way.number += 1;
        let now_left = rebalance.refill.lock().progress().0;
        if before > 0 {
            remember(&rebalance, told).await;
        }
        if !has_work(&rebalance) {
            end(&rebalance, under_way.began, under_way.lost);
            self.under_way = None;
            return Rest::Now;
        }
        under_way.pause = if now_left < before { PAUSE_MIN } else { (under_way.pause * 2).min(PAUSE_MAX) };
        Rest::UntilWoken(rebalance.refill_wake.clone(), under_way.pause)
    }
}

fn has_work(rebalance: &Rebalance) -> bool {
    let view = rebalance.view();
    let refill = rebalance.refill.lock();
    refill.progress().0 > 0 || !refill.entered.left(&view, rebalance.node()).is_empty()
}

/// When bringing in began and what was lost then, if a panic ended it before its end.
fn broken_off(rebalance: &Rebalance) -> Option<(Moment, usize)> {
    let refill = rebalance.refill.lock();
    refill.began.filter(|_| refill.ended.is_none())
}

impl UnderWay {
    fn begin(rebalance: &Rebalance) -> UnderWay {
        let began = rebalance.clock().now();
        let view = rebalance.view();
        let lost = {
            let mut refill = rebalance.refill.lock();
            let (lost, _) = refill.lost(&view, rebalance.node());
            // Also what an earlier process had begun to bring in.
            refill.begun = refill.begun.max(refill.progress().0 - lost);
            (refill.began, refill.ended) = (Some((began, lost)), None);
            // A session that a panic ended was never counted as over.
            (refill.came, refill.coming) = (refill.came(), Came::default());
            lost
        };
        if lost > 0 {
            rebalance.events.record(Event::RefillStarted { partitions: lost as u64 });
        }
        UnderWay { began, lost, pause: PAUSE_MIN, number: 0, together: BTreeMap::new() }
    }
}

fn end(rebalance: &Rebalance, began: Moment, at_first: usize) {
    let now = rebalance.clock().now();
    let (Came { records, bytes }, partitions) = {
        let mut refill = rebalance.refill.lock();
        refill.ended = Some(now);
        let view = rebalance.view();
        (refill.came(), refill.lost(&view, rebalance.node()).1 as u64)
    };
    let seconds = now.since(began).as_secs();
    if at_first == 0 {
        return;
    }
    rebalance.events.record(Event::RefillEnded { partitions, records, bytes, seconds });
}

/// Writes down what is left to do. First the records of what became whole go to the device, whatever durability their
/// store promises: a partition that a power cut empties must be known as incomplete.
async fn remember(rebalance: &Rebalance, told: &RoundTold<'_>) {
    let _alone = rebalance.noting.lock().await;
    let (text, stores) = {
        let refill = rebalance.refill.lock();
        (refill.text(), refill.stores.keys().cloned().collect::<Vec<_>>())
    };
    let view = rebalance.view();
    for store in stores.iter().filter_map(|name| view.store(name)) {
        if let Err(error) = store.engine().sync().await {
            tracing::warn!(%error, "progress of the refilling not remembered: records not synced");
            told.failed(format_args!("records that were refilled were not synced: {error}"));
            return;
        }
    }
    if let Err(error) = Refill::save(rebalance.disk.clone(), text).await {
        tracing::warn!(%error, "progress of the refilling not remembered");
        told.failed(format_args!("the progress of the refilling was not remembered: {error}"));
    }
}
