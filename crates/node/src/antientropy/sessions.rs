//! Comparing with every peer in its turn.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use model::{NodeId, PartitionId};
use protocol::antientropy::merkle::Span;
use protocol::antientropy::{Goal, Left, SessionOutcome};

use super::drive::Drive;
use super::{AntiEntropy, Ended, Only, Running, living};
use crate::chores::{Chore, Postponed, Rest, RoundTold};
use crate::events::Event;
use crate::stores::LocalStore;
use crate::trees::bounds;
use crate::view::View;

/// How often the turns are looked at without being woken: nodes come and go.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Compares as the schedule says.
pub(super) struct Compare(pub(super) Weak<AntiEntropy>);

impl Chore for Compare {
    const NAME: &'static str = "compare";

    async fn round(&mut self, _: bool, told: &RoundTold<'_>) -> Rest {
        let Some(antientropy) = living(&self.0) else { return Rest::Ended };
        let now = antientropy.ports.clock.now();
        let (next, deadline) = {
            let mut state = antientropy.state.lock();
            let view = antientropy.replica.view().get();
            // A comparison that runs still is one of a round that panicked.
            state.running = None;
            state.schedule.ended(false, now);
            state.schedule.learn(view.cluster().nodes.iter().map(|node| node.id), now);
            let next = state.schedule.next(now);
            if next.is_some() {
                // What is stopped from here on is this one.
                state.abort = false;
            }
            (next, state.schedule.deadline())
        };
        match next {
            Some(peer) => {
                compare(&antientropy, peer, told).await;
                Rest::Now
            }
            None => {
                told.looked();
                let until = now.after(LOOK_INTERVAL);
                let until = deadline.map_or(until, |due| due.min(until)).max(now);
                Rest::UntilWoken(antientropy.wake.clone(), until.since(now))
            }
        }
    }
}

/// One comparison with one peer: all stores, one after the other.
async fn compare(antientropy: &Arc<AntiEntropy>, peer: NodeId, told: &RoundTold<'_>) {
    let clock = antientropy.ports.clock.clone();
    let (began, view) = (clock.now(), antientropy.replica.view().get());
    let (only, stopped) = {
        let state = antientropy.state.lock();
        (state.schedule.running_parts().to_vec(), state.stopped.clone())
    };
    let own = antientropy.replica.node();
    let work: Vec<_> = view
        .stores()
        .iter()
        .map(|store| (store, shared(&view, store, (own, peer), &only, &stopped)))
        .collect();
    let work = culprits_last(work, &antientropy.culprits.compare.round());
    let all = work.iter().map(|(_, partitions)| partitions.len()).sum();
    let mut total = SessionOutcome { complete: true, ..SessionOutcome::default() };
    let mut through = 0;
    for (store, partitions) in work {
        if partitions.is_empty() {
            continue;
        }
        let count = partitions.len();
        antientropy.state.lock().running = Some(Running {
            peer,
            store: store.definition().name.to_string(),
            since: clock.now(),
            partitions: all,
            partitions_through: through + count,
            progress: SessionOutcome::default(),
            left: Left { partitions: count, keys: 0 },
        });
        let outcome = exchange(antientropy, &view, peer, (store, partitions), told).await;
        through += count;
        add(&mut total, outcome);
        if outcome.complete && count == shared(&view, store, (own, peer), &[], &[]).len() {
            settle_damage(antientropy, &view, store, peer);
        }
    }
    let now = clock.now();
    let took = now.since(began);
    antientropy.counters.ended(&total);
    if total.keys > 0 {
        let (keys, pulled, pushed) = (total.keys as u64, total.pulled as u64, total.pushed as u64);
        let took_ms = took.as_millis() as u64;
        antientropy.events.record(Event::ComparisonEnded {
            peer,
            keys,
            pulled,
            pushed,
            complete: total.complete,
            took_ms,
        });
    }
    let mut state = antientropy.state.lock();
    state.running = None;
    state.ended.insert(peer, Ended { at: now, took, outcome: total });
    state.schedule.ended(total.complete, now);
}

/// A store, and partitions of it that are compared together.
type Piece<'a> = (&'a Arc<LocalStore>, Vec<(PartitionId, Span)>);

async fn exchange(
    antientropy: &Arc<AntiEntropy>,
    view: &Arc<View>,
    peer: NodeId,
    (store, partitions): Piece<'_>,
    told: &RoundTold<'_>,
) -> SessionOutcome {
    let (name, culprits) = (&store.definition().name, &antientropy.culprits.compare);
    culprits.begin(name, partitions.iter().map(|(id, _)| *id));
    let (view, store, goal) = (view.clone(), store.clone(), Goal::Equal);
    let drive = Drive { antientropy, peer, view, store, goal, bringing: None };
    let outcome = Box::pin(drive.run(partitions, &mut |_, _| {})).await;
    culprits.over();
    if !outcome.complete {
        tracing::debug!(%peer, store = %name, ?outcome, "comparison not complete");
    }
    if outcome.failed > 0 {
        let keys = outcome.failed;
        told.failed(format_args!("{keys} keys of store {name} were not exchanged with {peer}"));
    }
    outcome
}

/// What is postponed is compared behind all else, each group by itself.
fn culprits_last<'a>(work: Vec<Piece<'a>>, postponed: &Postponed) -> Vec<Piece<'a>> {
    if postponed.groups().is_empty() {
        return work;
    }
    let mut pieces = Vec::new();
    let mut last: BTreeMap<usize, Piece<'a>> = BTreeMap::new();
    for (store, partitions) in work {
        let mut others = Vec::new();
        for (id, span) in partitions {
            match postponed.place(&store.definition().name, id) {
                None => others.push((id, span)),
                Some(place) => last.entry(place).or_insert((store, Vec::new())).1.push((id, span)),
            }
        }
        pieces.push((store, others));
    }
    pieces.extend(last.into_values());
    pieces
}

/// All that this node and a peer share of a store has been compared. Once that is so of each peer, what the disk had
/// damaged of unknown keys before the start is here again, if anybody has it. A scrub settles nothing: it reads what is
/// there. Where a partition has no other replica nothing brings it back, and it stays told of.
fn settle_damage(antientropy: &AntiEntropy, view: &View, store: &LocalStore, peer: NodeId) {
    let Some(engine) = store.engine().repairable() else { return };
    let unplaced = engine.damage().unplaced;
    if unplaced == 0 {
        return;
    }
    let (name, generation) = (&store.definition().name, view.cluster().generation);
    let mut state = antientropy.state.lock();
    let (under, whole) = state.whole.entry(name.to_string()).or_insert((generation, BTreeSet::new()));
    if *under != generation {
        // Partitions may have other replicas now.
        (*under, *whole) = (generation, BTreeSet::new());
    }
    whole.insert(peer);
    let replicas = view.replicated_by(antientropy.replica.node(), store);
    let settled =
        |others: &Vec<NodeId>| !others.is_empty() && others.iter().all(|other| whole.contains(other));
    if replicas.values().all(settled) {
        engine.settle_unplaced();
        tracing::info!(store = %name, places = unplaced, "damage of unknown keys is made up for by comparing");
    }
}

/// The partitions that both hold, and that are to be compared: `only` these parts, if any, and none that is stopped.
fn shared(
    view: &View,
    store: &LocalStore,
    (own, peer): (NodeId, NodeId),
    only: &[Only],
    stopped: &[Only],
) -> Vec<(PartitionId, Span)> {
    let name = store.definition().name.as_str();
    let replicas = view.replicated_by(own, store);
    let both = |id: PartitionId| replicas.get(&id).is_some_and(|others| others.contains(&peer));
    let among = |parts: &[Only], id: PartitionId| parts.iter().any(|part| part.has(name, view.owner(id).id));
    let wanted = |id: PartitionId| (only.is_empty() || among(only, id)) && !among(stopped, id);
    let all = bounds(view.buckets());
    let chosen = all.into_iter().filter(|(id, _)| both(*id) && wanted(*id));
    chosen.map(|(id, tokens)| (id, Span::around(&tokens))).collect()
}

fn add(total: &mut SessionOutcome, more: SessionOutcome) {
    total.complete &= more.complete;
    total.partitions += more.partitions;
    total.differing += more.differing;
    total.unready += more.unready;
    total.keys += more.keys;
    total.pulled += more.pulled;
    total.pushed += more.pushed;
    total.failed += more.failed;
    total.requests += more.requests;
    total.bytes += more.bytes;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outcome_of_a_comparison_sums_up_all_its_stores() {
        let of = |complete, number: usize| SessionOutcome {
            complete,
            partitions: 1 + number,
            differing: 2 + number,
            unready: 3 + number,
            keys: 4 + number,
            pulled: 5 + number,
            pushed: 6 + number,
            failed: 7 + number,
            requests: 8 + number as u64,
            bytes: 9 + number as u64,
        };
        let mut total = SessionOutcome { complete: true, ..SessionOutcome::default() };
        add(&mut total, of(true, 10));
        assert_eq!(total, of(true, 10));
        add(&mut total, of(false, 20));
        let both = SessionOutcome {
            complete: false,
            partitions: 32,
            differing: 34,
            unready: 36,
            keys: 38,
            pulled: 40,
            pushed: 42,
            failed: 44,
            requests: 46,
            bytes: 48,
        };
        assert_eq!(total, both);
        add(&mut total, of(true, 0));
        assert!(!total.complete, "one that is not complete is enough");
    }
}
