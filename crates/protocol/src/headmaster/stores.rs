//! Orders about stores: one more that takes writes, and what read-only ones list and serve; and pushes, which go live by
//! themselves.
//!
//! A swap is judged by what all nodes say under exactly the document that it follows.
//!
//! Must never: publish a swap over another document than the one that it was judged by.

use std::collections::BTreeMap;

use model::artifacts::{ArtifactError, ArtifactOrder, Push, Standing};
use model::order::{Done, Given, OrderOutcome, OrderRefusal};
use model::{ArtifactNumber, ArtifactsError, Cluster, NodeId, ReadOnlyStore, Store, StoreName, WallMillis};

use super::orders::{done, publish, refused};
use super::plans::too_old;
use super::{
    Ask, DecisionStep, Due, Headmaster, Observation, STAGED_PATIENCE, STAGED_PAUSE, answered, unasked,
};
use crate::artifacts::{self, Enough, Judgement, PushReport, judge};

/// Creates a store that takes writes.
pub(super) fn create(seen: &Observation, given: &Given, store: &Store) -> DecisionStep {
    match seen.cluster.with_store(store.clone()) {
        Ok(next) => match too_old(seen, next.form()) {
            // Users are no reason here: whoever reads the present document reads one with a store more.
            Some(node) if next.form() > seen.cluster.form() => {
                refused(given, OrderRefusal::NodeTooOld { node })
            }
            _ => publish(given, next),
        },
        Err(error) => refused(given, OrderRefusal::Store(error)),
    }
}

/// The document that carries the order out; its stores are the same when that is so already.
fn changed(cluster: &Cluster, order: &ArtifactOrder, now: WallMillis) -> Result<Cluster, OrderRefusal> {
    type Change<'a> = &'a dyn Fn(&ReadOnlyStore) -> Result<ReadOnlyStore, ArtifactError>;
    let change = |store: &StoreName, change: Change<'_>| {
        cluster.with_artifacts(store.as_str(), change).map_err(OrderRefusal::Artifact)
    };
    match order {
        ArtifactOrder::Create { store, replicas, kept } => {
            let created = cluster.with_read_only(store.clone(), *replicas).map_err(OrderRefusal::Store)?;
            let Some(kept) = kept else { return Ok(created) };
            let generation = created.generation;
            let kept = created.with_artifacts(store.as_str(), |found| found.keep(*kept));
            kept.map(|kept| Cluster { generation, ..kept }).map_err(OrderRefusal::Artifact)
        }
        ArtifactOrder::Keep { store, kept } => change(store, &|found| found.keep(*kept)),
        ArtifactOrder::Stage { store, number, manifest, source } => {
            change(store, &|found| found.stage(*number, *manifest, source))
        }
        ArtifactOrder::Push { store, number, manifest, source, replicas, abort_after_ms } => {
            let abort_at = abort_after_ms.map(|after| WallMillis(now.0.saturating_add(after)));
            let push = Push { replicas: *replicas, abort_at, ..Push::default() };
            change(store, &|found| found.push(*number, *manifest, source, &push))
        }
        ArtifactOrder::Swap { store, number, first, .. } => change(store, &|found| {
            let listed = found.artifact(*number);
            if *first && listed.is_some_and(|artifact| artifact.standing != Standing::Staging) {
                return Err(ArtifactError::WasServed { store: store.clone(), number: *number });
            }
            found.swap(*number)
        }),
        ArtifactOrder::Rollback { store, .. } => change(store, &|found| found.swap(found.behind()?)),
        ArtifactOrder::Delete { store, number } => change(store, &|found| found.delete(*number)),
        ArtifactOrder::Abort { store, number } => change(store, &|found| found.abort(*number)),
    }
}

/// What an order will serve, of which store, when this many replicas of each slice hold it.
fn served(cluster: &Cluster, order: &ArtifactOrder) -> Option<(StoreName, ArtifactNumber, Option<u8>)> {
    match order {
        ArtifactOrder::Swap { store, number, replicas, .. } => Some((store.clone(), *number, *replicas)),
        ArtifactOrder::Rollback { store, replicas } => {
            let number = cluster.read_only(store.as_str())?.behind().ok()?;
            Some((store.clone(), number, *replicas))
        }
        _ => None,
    }
}

impl Headmaster {
    /// Changes what read-only stores list and serve.
    pub(super) fn artifacts(
        &mut self,
        seen: &Observation,
        given: &Given,
        order: &ArtifactOrder,
    ) -> Due<DecisionStep> {
        let next = match changed(&seen.cluster, order, seen.wall) {
            Ok(next) => next,
            Err(refusal) => return Ok(refused(given, refusal)),
        };
        if next.read_only == seen.cluster.read_only {
            return Ok(done(seen, given, Done::ArtifactsChanged { store: order.store().clone() }));
        }
        let Some((store, number, replicas)) = served(&seen.cluster, order) else {
            return Ok(publish(given, next));
        };
        let Some(refusal) = self.not_staged(seen, (&store, number), replicas)? else {
            return Ok(publish(given, next));
        };
        // Until nodes follow the newest document each of them lacks every artifact.
        let (_, since) = *self.patient_since.get_or_insert((given.number, seen.now));
        if seen.now.since(since) < STAGED_PATIENCE {
            self.busy = Some(STAGED_PAUSE);
            return Ok(DecisionStep::Wait(Vec::new()));
        }
        // Nodes that lack it fetch it.
        let again_after_ms = u64::try_from(STAGED_PATIENCE.as_millis()).ok();
        Ok(answered(given, OrderOutcome::Refused { refusal, again_after_ms }))
    }

    /// Why too few replicas of some slice hold an artifact, by exactly this document; `None` when enough do.
    fn not_staged(
        &mut self,
        seen: &Observation,
        (name, number): (&StoreName, ArtifactNumber),
        replicas: Option<u8>,
    ) -> Due<Option<OrderRefusal>> {
        let reports = self.reports(seen)?;
        let reports = reports.get(name).map_or(&[][..], Vec::as_slice);
        let Some(store) = seen.cluster.read_only(name.as_str()) else {
            return Ok(Some(OrderRefusal::Artifact(ArtifactsError::NoStore { store: name.to_string() })));
        };
        let judged = |enough| judge(&seen.cluster, store, number, reports, enough);
        let wanted = judged(replicas.map_or(Enough::All, Enough::Replicas));
        let Judgement::NotYet { slices, lacking } = wanted else { return Ok(None) };
        let is_silent = |node: &NodeId| seen.said.get(node).is_none_or(Result::is_err);
        let (silent, lacking): (Vec<NodeId>, Vec<NodeId>) = lacking.into_iter().partition(is_silent);
        let held_by =
            (1..store.replicas).rev().find(|count| judged(Enough::Replicas(*count)) == Judgement::Ready);
        let (store, slices_total) = (name.clone(), seen.cluster.ring.partitions().len());
        Ok(Some(OrderRefusal::NotStaged { store, number, slices, slices_total, silent, lacking, held_by }))
    }

    /// What nodes that answer hold, by store.
    fn reports(&mut self, seen: &Observation) -> Due<BTreeMap<StoreName, Vec<PushReport>>> {
        let nodes = seen.cluster.nodes.iter().map(|node| node.id).collect();
        self.asked(seen, Ask { nodes, artifacts: true, ..Ask::default() })?;
        let mut reports: BTreeMap<StoreName, Vec<PushReport>> = BTreeMap::new();
        let said = seen.said.values().filter_map(|said| said.as_ref().ok());
        for (store, report) in said.flat_map(|said| &said.artifacts) {
            reports.entry(store.clone()).or_default().push(*report);
        }
        Ok(reports)
    }

    /// Publishes the swap or the end of a push, if one is due. So the end of a command, a node or a headmaster ends no push.
    pub(super) fn push_due(&mut self, seen: &Observation) -> Due<Option<DecisionStep>> {
        if !artifacts::is_pending(&seen.cluster) {
            return Ok(None);
        }
        self.is_busy();
        let reports = self.reports(seen)?;
        let Some((store, number, due)) = artifacts::due(&seen.cluster, &reports, seen.wall) else {
            return Ok(None);
        };
        let next = seen.cluster.with_artifacts(store.as_str(), |found| match due {
            artifacts::Due::Swap => found.swap(number),
            artifacts::Due::Abort => found.abort(number),
        });
        // What is due is a verb that the document allows.
        Ok(next.ok().map(unasked))
    }
}
