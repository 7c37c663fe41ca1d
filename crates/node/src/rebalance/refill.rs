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
mod settling;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use model::{Cluster, Moment, NodeId, PartitionId, StoreName};
use protocol::antientropy::merkle::Span;
use protocol::antientropy::{Goal, Ledger, SessionOutcome};
use protocol::rebalance::entering::Part;
use protocol::report::{RefillReport, StoreRefill};

use self::settling::{RefillSource, note, settle, settle_alone};
use super::entering::Entering;
use super::{Rebalance, living};
use crate::antientropy::{Bringing, Drive};
use crate::chores::{Chore, Rest, RoundTold};
use crate::events::Event;
use crate::stores::LocalStore;
use crate::trees::bounds;
use crate::view::View;

/// Pause after a round in which nothing became whole; doubles up to the longest.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// Partitions that are brought back together, at least.
const TOGETHER_MIN: usize = 8;
/// All that is incomplete is divided into this many parts at most: each costs a conversation with its replicas, and two
/// syncs.
const PARTS_MAX: usize = 32;
/// In one round of this many, those that are believed down are asked, too.
const ASK_ALL: usize = 4;
/// How often it is looked without being woken whether there is something to bring in.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);
/// At most this many times as many partitions as at first are brought in together: what comes in between is written
/// down.
const GROWN_MAX: usize = 8;
/// Bytes that a few partitions bring, at least, before the next are no more than these.
const CAME_LITTLE: u64 = 16 << 20;
/// Comparisons for the next step that go on together: each is mostly a wait for a peer.
const AGAIN_AT_ONCE: usize = 16;
/// How often it is written down what became whole: the list has a line for each bucket of each store.
const REMEMBER_INTERVAL: Duration = Duration::from_secs(1);
/// How often an event tells how far it is.
const TELL_INTERVAL: Duration = Duration::from_secs(10);

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

/// Everything that is incomplete, once.
struct Round<'a> {
    rebalance: &'a Rebalance,
    view: Arc<View>,
    /// Counts rounds: each begins somewhere else, so that what cannot be had keeps nothing from the rest.
    number: usize,
    /// Peers that did not answer or are believed down; they are looked at again in the next round.
    silent: BTreeSet<NodeId>,
    /// How many partitions of each store are brought back together. A newer document ends a round, and is soon followed by
    /// others where few partitions become whole at a time; so this outlives the round.
    together: &'a mut BTreeMap<StoreName, usize>,
    /// The tokens of each bucket.
    spans: Arc<BTreeMap<PartitionId, Span>>,
    /// How much was left when that was written down last, and when that was.
    remembered: (usize, Moment),
    told_at: Moment,
    told: &'a RoundTold<'a>,
}

impl<'a> Round<'a> {
    fn new(
        rebalance: &'a Rebalance,
        number: usize,
        together: &'a mut BTreeMap<StoreName, usize>,
        told: &'a RoundTold<'a>,
    ) -> Self {
        let (view, now) = (rebalance.view(), rebalance.clock().now());
        // Each in vain would take seconds, and all that could go on would wait for it. A belief may be wrong, though.
        let others = view.cluster().nodes.iter().map(|node| node.id);
        let is_left_out =
            |id: &NodeId| number % ASK_ALL != ASK_ALL - 1 && !rebalance.antientropy.standings().is_alive(*id);
        let silent = others.filter(is_left_out).collect();
        let remembered = (rebalance.refill.lock().progress().0, now);
        let spans = bounds(view.buckets()).into_iter().map(|(id, tokens)| (id, Span::around(&tokens)));
        let spans = Arc::new(spans.collect());
        Round { rebalance, view, number, silent, together, spans, remembered, told_at: now, told }
    }

    async fn run(mut self) {
        let view = self.view.clone();
        // Who is whole for the next step first: the sooner it comes, the fewer writes go to both sets of replicas.
        self.merge_again().await;
        for store in view.stores() {
            settle_alone(self.rebalance, &view, store);
            let mut incomplete = self.rebalance.refill.lock().incomplete(store.definition().name.as_str());
            if incomplete.is_empty() {
                continue;
            }
            let lost = Lost {
                store,
                sources: RefillSource::all(&view, store, self.rebalance.node(), &incomplete),
                spans: &self.spans.clone(),
            };
            let least = incomplete.len().div_ceil(PARTS_MAX).max(TOGETHER_MIN);
            let name = &store.definition().name;
            let mut together = self.together.get(name).map_or(least, |grown| least.max(*grown));
            let begin = self.number * together % incomplete.len();
            incomplete.rotate_left(begin);
            let (mut left, mut position) = (&*incomplete, 0);
            while !left.is_empty() {
                let (partitions, behind) = left.split_at(together.min(left.len()));
                let before = self.rebalance.refill.lock().bytes();
                self.bring_back(&lost, partitions, position).await;
                let came = self.rebalance.refill.lock().bytes() - before;
                // What cannot be had ends a session, and all that is behind it waits: then fewer are asked for at a time.
                let whole = partitions.iter().all(|id| !store.trees().is_incomplete(*id));
                together =
                    if whole && came < CAME_LITTLE { (together * 2).min(least * GROWN_MAX) } else { least };
                self.together.insert(name.clone(), together.min(incomplete.len()));
                if self.rebalance.is_closing() || self.is_overtaken() {
                    return;
                }
                self.tell().await;
                (left, position) = (behind, position + 1);
            }
        }
        self.merge_again().await;
    }

    /// Compares what it enters, and has brought in, with old replicas that refuse what is older than its step.
    async fn merge_again(&mut self) {
        let (rebalance, view) = (self.rebalance, self.view.clone());
        let came = |id, records, bytes| rebalance.came(id, records, bytes);
        let bringing = Some(Bringing { pace: &rebalance.bringing, shown: &|_| {}, came: &came });
        let mut asked: BTreeSet<(StoreName, PartitionId, NodeId)> = BTreeSet::new();
        loop {
            let next = self.next_sources(&asked);
            if next.is_empty() {
                return;
            }
            let mut next: Vec<_> = next.into_iter().collect();
            while !next.is_empty() {
                if rebalance.is_closing() {
                    return;
                }
                let some = next.split_off(next.len().saturating_sub(AGAIN_AT_ONCE));
                let sessions = some.into_iter().filter_map(|((name, peer), partitions)| {
                    asked.extend(partitions.iter().map(|(id, _)| (name.clone(), *id, peer)));
                    let store = view.store(name.as_str()).filter(|_| !self.silent.contains(&peer))?;
                    let (view, store) = (view.clone(), store.clone());
                    let antientropy = &*rebalance.antientropy;
                    let drive = Drive { antientropy, peer, view, store, goal: Goal::Again, bringing };
                    Some(async move {
                        let mut settle = |partition, peered| {
                            note(rebalance, &drive.view, &drive.store, (partition, peer), peered);
                        };
                        (peer, Box::pin(drive.run(partitions, &mut settle)).await)
                    })
                });
                for (peer, outcome) in join_all(sessions.collect::<Vec<_>>()).await {
                    rebalance.refill.lock().took(&outcome);
                    self.hear(peer, &outcome);
                }
            }
        }
    }

    /// The next old replica with which each partition of each store shall be compared, among those that were not asked
    /// for it in this round. Whom it needs first is asked first, and mostly enough.
    fn next_sources(
        &self,
        asked: &BTreeSet<(StoreName, PartitionId, NodeId)>,
    ) -> BTreeMap<(StoreName, NodeId), Vec<(PartitionId, Span)>> {
        let left = {
            let refill = self.rebalance.refill.lock();
            refill.entered.left(&self.view, self.rebalance.node())
        };
        let mut next: BTreeMap<(StoreName, NodeId), Vec<(PartitionId, Span)>> = BTreeMap::new();
        for ((partition, name), peers) in left {
            let may = |peer: &NodeId| {
                !self.silent.contains(peer) && !asked.contains(&(name.clone(), partition, *peer))
            };
            let Some(peer) = peers.into_iter().find(may) else { continue };
            let is_here = |store: &Arc<LocalStore>| !store.trees().is_incomplete(partition);
            if let Some(span) = self.spans.get(&partition)
                && self.view.store(name.as_str()).is_some_and(is_here)
            {
                next.entry((name, peer)).or_default().push((partition, *span));
            }
        }
        next
    }

    /// There is a newer document: what was broken off for it is begun again by that one.
    fn is_overtaken(&self) -> bool {
        self.rebalance.replica().view().generation() != self.view.cluster().generation
    }

    /// One that did not answer is not asked again before the next round.
    fn hear(&mut self, peer: NodeId, outcome: &SessionOutcome) {
        if !outcome.complete && outcome.failed == 0 && !self.is_overtaken() {
            self.silent.insert(peer);
        }
    }

    /// Merges these partitions with what their other replicas hold, one after the other.
    async fn bring_back(&mut self, lost: &Lost<'_>, partitions: &[PartitionId], position: usize) {
        let rebalance = self.rebalance;
        let shown = |progress: &SessionOutcome| rebalance.refill.lock().show(progress);
        let came = |id, records, bytes| rebalance.came(id, records, bytes);
        let bringing = Some(Bringing { pace: &rebalance.bringing, shown: &shown, came: &came });
        let sources = || partitions.iter().filter_map(|id| lost.sources.get(id));
        let peers = sources().flat_map(|source| source.nodes.iter().copied());
        let mut peers: Vec<NodeId> = peers.collect::<BTreeSet<_>>().into_iter().collect();
        in_turn(&mut peers, position, rebalance.node());
        // One that is enough alone is asked before others.
        let donors: BTreeSet<NodeId> = sources().filter_map(|source| source.donor).collect();
        peers.sort_by_key(|peer| !donors.contains(peer));
        for peer in peers {
            let wanted = lost.wanted(&rebalance.refill.lock(), partitions, peer);
            if wanted.is_empty() || self.silent.contains(&peer) || rebalance.is_closing() {
                continue;
            }
            let (antientropy, view, store) = (&*rebalance.antientropy, self.view.clone(), lost.store.clone());
            let drive = Drive { antientropy, peer, view, store, goal: Goal::Refill, bringing };
            let mut settle =
                |partition, peered| settle(rebalance, &self.view, lost.store, (partition, peer), peered);
            let outcome = Box::pin(drive.run(wanted, &mut settle)).await;
            rebalance.refill.lock().took(&outcome);
            self.hear(peer, &outcome);
        }
    }

    /// Remembers what has become whole, and tells how far it is now and then.
    async fn tell(&mut self) {
        let now = self.rebalance.clock().now();
        let left = self.rebalance.refill.lock().progress().0;
        let (remembered, at) = self.remembered;
        if left < remembered && now.since(at) >= REMEMBER_INTERVAL {
            self.remembered = (left, now);
            remember(self.rebalance, self.told).await;
        }
        let node = self.rebalance.node();
        let (left, partitions) = self.rebalance.refill.lock().lost(&self.view, node);
        if left > 0 && now.since(self.told_at) >= TELL_INTERVAL {
            self.told_at = now;
            self.rebalance
                .events
                .record(Event::RefillWent { left: left as u64, partitions: partitions as u64 });
        }
    }
}

/// Whoever is first gives the most: each few partitions begin with another peer, and nodes that enter at the same time
/// with different ones. Otherwise one node would give to all of them, and the next one afterwards.
/// Nodes are numbered from one.
fn in_turn(peers: &mut [NodeId], position: usize, own: NodeId) {
    let first = (position + own.0.saturating_sub(1) as usize) % peers.len().max(1);
    peers.rotate_left(first);
}

/// A store of which something was lost.
struct Lost<'a> {
    store: &'a Arc<LocalStore>,
    sources: BTreeMap<PartitionId, RefillSource>,
    spans: &'a BTreeMap<PartitionId, Span>,
}

impl Lost<'_> {
    /// Which of these partitions `peer` still has to give.
    fn wanted(&self, refill: &Refill, among: &[PartitionId], peer: NodeId) -> Vec<(PartitionId, Span)> {
        let Some(ledger) = refill.stores.get(self.store.definition().name.as_str()) else {
            return Vec::new();
        };
        let gives = |id: &PartitionId| {
            let source = self.sources.get(id).filter(|source| source.nodes.contains(&peer));
            source.is_some_and(|source| ledger.wants(*id, source.since, peer))
        };
        let wanted = among.iter().filter(|id| gives(id));
        wanted.filter_map(|id| Some((*id, *self.spans.get(id)?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cluster of four was doubled. Its new nodes went through the old ones in step, so that each old node gave to four
    /// at once for a quarter of the time, and requests waited for that one.
    #[test]
    fn nodes_that_enter_together_ask_different_peers_first() {
        let firsts = |position: usize| -> BTreeSet<NodeId> {
            let first = |own| {
                let mut peers: Vec<NodeId> = (1..=4).map(NodeId).collect();
                in_turn(&mut peers, position, NodeId(own));
                peers[0]
            };
            (5..=8).map(first).collect()
        };
        assert_eq!([0, 1, 6].map(|position| firsts(position).len()), [4; 3]);
        let mut alone = [NodeId(7)];
        in_turn(&mut alone, 3, NodeId(2));
        in_turn(&mut [], 3, NodeId(2));
        assert_eq!(alone, [NodeId(7)]);
    }
}
