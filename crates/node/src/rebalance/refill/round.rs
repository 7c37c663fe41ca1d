//! One round over all that is incomplete.
//!
//! Must never: bring in beside another round, or let a partition at which it panicked stop the others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use model::{Moment, NodeId, PartitionId, StoreName};
use protocol::antientropy::merkle::Span;
use protocol::antientropy::{Goal, SessionOutcome};

use super::settling::{RefillSource, note, settle, settle_alone};
use super::{Refill, remember};
use crate::antientropy::{Bringing, Drive};
use crate::chores::{Postponed, RoundTold};
use crate::events::Event;
use crate::rebalance::Rebalance;
use crate::stores::LocalStore;
use crate::trees::bounds;
use crate::view::View;

/// Partitions that are brought back together, at least.
const TOGETHER_MIN: usize = 8;
/// All that is incomplete is divided into this many parts at most: each costs a conversation with its replicas, and two
/// syncs.
const PARTS_MAX: usize = 32;
/// In one round of this many, those that are believed down are asked, too.
const ASK_ALL: usize = 4;
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

/// Everything that is incomplete, once. What it was at when it panicked comes behind all else, by itself.
pub(super) struct Round<'a> {
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
    postponed: Postponed,
    /// Which of the groups that are postponed is brought in now; none is all that is not.
    group: Option<usize>,
}

impl<'a> Round<'a> {
    pub(super) fn new(
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
        let (postponed, group) = (rebalance.bring_culprits.round(), None);
        Round {
            rebalance,
            view,
            number,
            silent,
            together,
            spans,
            remembered,
            told_at: now,
            told,
            postponed,
            group,
        }
    }

    pub(super) async fn run(mut self) {
        let mut goes_on = self.bring_all_back().await;
        for (place, group) in self.postponed.groups().to_vec().iter().enumerate() {
            if !goes_on {
                return;
            }
            self.group = Some(place);
            goes_on = self.bring_all_back().await;
            if goes_on {
                self.rebalance.bring_culprits.acquit(group);
            }
        }
    }

    /// Whether its turn has come.
    fn is_due(&self, store: &StoreName, partition: PartitionId) -> bool {
        self.postponed.place(store, partition) == self.group
    }

    /// All whose turn has come; whether the round goes on.
    async fn bring_all_back(&mut self) -> bool {
        let view = self.view.clone();
        // Who is whole for the next step first: the sooner it comes, the fewer writes go to both sets of replicas.
        self.merge_again().await;
        for store in view.stores() {
            settle_alone(self.rebalance, &view, store);
            let name = &store.definition().name;
            let mut incomplete = self.rebalance.refill.lock().incomplete(name.as_str());
            incomplete.retain(|id| self.is_due(name, *id));
            if incomplete.is_empty() {
                continue;
            }
            let lost = Lost {
                store,
                sources: RefillSource::all(&view, store, self.rebalance.node(), &incomplete),
                spans: &self.spans.clone(),
            };
            let least = incomplete.len().div_ceil(PARTS_MAX).max(TOGETHER_MIN);
            let mut together = self.together.get(name).map_or(least, |grown| least.max(*grown));
            let begin = self.number * together % incomplete.len();
            incomplete.rotate_left(begin);
            let (mut left, mut position) = (&*incomplete, 0);
            while !left.is_empty() {
                let (partitions, behind) = left.split_at(together.min(left.len()));
                let before = self.rebalance.refill.lock().bytes();
                self.rebalance.bring_culprits.begin(name, partitions.iter().copied());
                self.bring_back(&lost, partitions, position).await;
                self.rebalance.bring_culprits.over();
                let came = self.rebalance.refill.lock().bytes().saturating_sub(before);
                // What cannot be had ends a session, and all that is behind it waits: then fewer are asked for at a time.
                let whole = partitions.iter().all(|id| !store.trees().is_incomplete(*id));
                together =
                    if whole && came < CAME_LITTLE { (together * 2).min(least * GROWN_MAX) } else { least };
                self.together.insert(name.clone(), together.min(incomplete.len()));
                if self.rebalance.is_closing() || self.is_overtaken() {
                    return false;
                }
                self.tell().await;
                (left, position) = (behind, position + 1);
            }
        }
        self.merge_again().await;
        !self.rebalance.is_closing()
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
                    rebalance.bring_culprits.begin(&name, partitions.iter().map(|(id, _)| *id));
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
                let outcomes = join_all(sessions.collect::<Vec<_>>()).await;
                rebalance.bring_culprits.over();
                for (peer, outcome) in outcomes {
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
            if !self.is_due(&name, partition) {
                continue;
            }
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
