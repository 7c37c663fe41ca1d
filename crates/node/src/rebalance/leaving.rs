//! Records of partitions that are not this node's own: it gives the replicas what they lack of them, and drops them.
//!
//! One rule for whoever left with a document, entered in vain, or whose disk has lost a removal: what lies here and is
//! not this node's own is found by looking, at a start as at any other time. Nothing is added to it any more, because
//! this node refuses every request for it by the document that it follows.
//!
//! Must never: drop what one of the replicas lacks, or what this node is about to bring in.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use model::{NodeId, PartitionId};
use protocol::antientropy::Goal;
use protocol::antientropy::merkle::Span;
use protocol::rebalance::entering::heirs;

use super::{Rebalance, leftovers, living};
use crate::antientropy::Drive;
use crate::chores::{Chore, Rest, RoundTold, breathe};
use crate::events::Event;
use crate::stores::LocalStore;
use crate::trees::bounds;
use crate::view::View;

/// How often it is looked for what is left here.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);
/// Pause after something could not be given or dropped.
const PAUSE: Duration = Duration::from_secs(1);
/// Records that are dropped before requests may go first: to ask whether any are late is a wait for each worker.
const RECORDS_AT_ONCE: u64 = 1000;

/// Gives back and drops.
pub(super) struct Leave(pub(super) Weak<Rebalance>);

impl Chore for Leave {
    const NAME: &'static str = "leave";

    async fn round(&mut self, _: bool, told: &RoundTold<'_>) -> Rest {
        let Some(rebalance) = living(&self.0) else { return Rest::Ended };
        let all_gone = give_back(&rebalance, told).await;
        Rest::UntilWoken(rebalance.leave_wake.clone(), if all_gone { LOOK_INTERVAL } else { PAUSE })
    }
}

/// Gives back what is left here and drops what the replicas hold; whether nothing is left.
async fn give_back(rebalance: &Rebalance, told: &RoundTold<'_>) -> bool {
    let (view, own) = (rebalance.view(), rebalance.node());
    let postponed = rebalance.leave_culprits.round();
    let mut all_gone = true;
    // What it was at when it panicked comes behind all else, by itself.
    for group in std::iter::once(None).chain((0..postponed.groups().len()).map(Some)) {
        for store in view.stores() {
            let name = &store.definition().name;
            let mut records: BTreeMap<PartitionId, u64> = leftovers(&view, store, own).into_iter().collect();
            records.retain(|id, _| postponed.place(name, *id) == group);
            if records.is_empty() {
                continue;
            }
            rebalance.leave_culprits.begin(name, records.keys().copied());
            all_gone &= give_back_of(rebalance, &view, store, &records, told).await;
            rebalance.leave_culprits.over();
            if rebalance.is_closing() {
                return false;
            }
        }
        group.into_iter().for_each(|place| rebalance.leave_culprits.acquit(&postponed.groups()[place]));
    }
    all_gone
}

/// Gives back these records of a store, by bucket; whether nothing of them is left.
async fn give_back_of(
    rebalance: &Rebalance,
    view: &Arc<View>,
    store: &Arc<LocalStore>,
    records: &BTreeMap<PartitionId, u64>,
    told: &RoundTold<'_>,
) -> bool {
    let left: BTreeSet<PartitionId> = records.keys().copied().collect();
    let given = Giving { rebalance, view, store, left: &left }.run().await;
    let mut all_gone = given == left;
    let (mut dropped, mut count, mut rested_at) = (BTreeSet::new(), 0, 0);
    let mut began = rebalance.clock().now();
    for bucket in given {
        if rebalance.is_closing() {
            return false;
        }
        if !drop_given(rebalance, view, store, bucket, told) {
            all_gone = false;
            continue;
        }
        dropped.insert(view.owner(bucket).id);
        count += records[&bucket];
        breathe().await;
        if count - rested_at >= RECORDS_AT_ONCE {
            rebalance.antientropy.rest_after(began).await;
            (rested_at, began) = (count, rebalance.clock().now());
        }
    }
    let (partitions, records) = (dropped.len() as u64, count);
    if partitions > 0 {
        let store = store.definition().name.to_string();
        rebalance.events.record(Event::PartitionsLeft { store, partitions, records });
    }
    if let Err(error) = store.engine().sync().await {
        // What comes back is found and given again.
        tracing::warn!(%error, "removal of what was given back not synced");
        let name = &store.definition().name;
        told.failed(format_args!("a removal in store {name} was not synced: {error}"));
    }
    all_gone
}

/// What is given of one store.
struct Giving<'a> {
    rebalance: &'a Rebalance,
    view: &'a Arc<View>,
    store: &'a Arc<LocalStore>,
    left: &'a BTreeSet<PartitionId>,
}

impl Giving<'_> {
    /// Gives each replica what it lacks; the partitions of which all replicas hold what is here.
    async fn run(self) -> BTreeSet<PartitionId> {
        let own = self.rebalance.node();
        let mut lacking: BTreeMap<PartitionId, BTreeSet<NodeId>> = BTreeMap::new();
        let mut by_peer: BTreeMap<NodeId, Vec<(PartitionId, Span)>> = BTreeMap::new();
        for (id, tokens) in bounds(self.view.buckets()) {
            let partition = self.view.buckets().get(id).filter(|_| self.left.contains(&id));
            let Some(heirs) = partition.and_then(|partition| heirs(self.store.definition(), partition, own))
            else {
                continue;
            };
            lacking.insert(id, heirs.iter().copied().collect());
            self.look_behind_damage(id);
            for &heir in heirs {
                by_peer.entry(heir).or_default().push((id, Span::around(&tokens)));
            }
        }
        for (peer, partitions) in by_peer {
            if self.rebalance.is_closing() {
                break;
            }
            let (view, store) = (self.view.clone(), self.store.clone());
            let antientropy = &*self.rebalance.antientropy;
            let drive = Drive { antientropy, peer, view, store, goal: Goal::Give, bringing: None };
            let outcome = Box::pin(drive.run(partitions, &mut |id, peered| {
                let since = self
                    .view
                    .says_of(self.store, id)
                    .map(|(partition, store)| partition.since.max(store.since));
                // One that follows an older document may still be about to give up what it holds. What nobody can read
                // here and the peer lacks stays: it may be the last trace.
                if peered.all_given
                    && since.is_some_and(|since| peered.adopted >= since)
                    && let Some(lacking) = lacking.get_mut(&id)
                {
                    lacking.remove(&peer);
                }
            }))
            .await;
            if !outcome.complete {
                tracing::debug!(%peer, store = %self.store.definition().name, ?outcome, "not all given back");
            }
        }
        let given = lacking.into_iter().filter(|(_, lacking)| lacking.is_empty());
        given.map(|(id, _)| id).collect()
    }
}

impl Giving<'_> {
    /// A tree may still count a record that cannot be read any more. Without the tree the keys of both are listed, which
    /// shows whether the heirs have it.
    fn look_behind_damage(&self, id: PartitionId) {
        if !self.store.unreadable(id).is_empty()
            && let Some(mut locked) = self.store.trees().lock(id)
        {
            locked.tree().doubt();
        }
    }
}

/// Drops a bucket that was given by `view`, unless a newer document says something else about it.
fn drop_given(
    rebalance: &Rebalance,
    view: &View,
    store: &LocalStore,
    id: PartitionId,
    told: &RoundTold<'_>,
) -> bool {
    // While this is held no newer document makes the node bring in what is dropped here.
    let now = rebalance.replica().view().admit();
    if now.says_of(store, id) != view.says_of(store, id) {
        return false;
    }
    let dropped = store.drop_partition(id);
    if let Err(error) = &dropped {
        let name = &store.definition().name;
        tracing::warn!(store = %name, bucket = id.0, %error, "bucket that was given back not dropped");
        told.failed(format_args!("bucket {} of store {name} was not dropped: {error}", id.0));
    }
    dropped.is_ok()
}
