//! What becomes of one batch: merged at its target, readdressed, or given up; then removed.

use std::sync::Arc;
use std::time::Duration;

use client::peers::{Call, CallError, Peers};
use model::{Cluster, NodeId};
use protocol::handoff::{Errand, Fault};
use smallvec::SmallVec;
use storage::Durable;
use wire::error::ErrorCode;
use wire::messages::{Merged, ReplicaMerge, Request, Response};

use super::Handoffs;
use crate::replica::Replica;
use crate::stores::Hint;
use crate::view::View;

/// Longest wait for a batch to be merged; then the target counts as unreachable, and the batch is sent again later.
const PATIENCE: Duration = Duration::from_secs(10);

/// How a batch ended.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Settled {
    /// Hints that are gone.
    pub(super) removed: usize,
    /// Hints that stay.
    pub(super) left: usize,
    /// Why, if something went wrong.
    pub(super) fault: Option<Fault>,
}

/// Carries a batch out. Everything it needs is taken now, by the ring of this moment.
pub(super) fn carry(
    handoffs: &Arc<Handoffs>,
    target: NodeId,
    errand: Errand,
    hints: Vec<Hint>,
) -> impl Future<Output = Settled> + Send + 'static {
    let handoffs = handoffs.clone();
    async move {
        let settled = match errand {
            Errand::Deliver => send(&handoffs, target, hints).await,
            Errand::Readdress => readdress(&handoffs, hints).await,
            Errand::GiveUp => give_up(&handoffs, target, hints).await,
        };
        let removed = settled.removed as u64;
        match errand {
            Errand::Deliver => handoffs.delivered.add(removed),
            Errand::Readdress => handoffs.readdressed.add(removed),
            Errand::GiveUp => handoffs.expired.add(removed),
        }
        handoffs.note(target, |account| match errand {
            Errand::Deliver => account.delivered += removed,
            Errand::Readdress => account.readdressed += removed,
            Errand::GiveUp => account.expired += removed,
        });
        if settled.fault.is_some() {
            handoffs.failed.increment();
        }
        settled
    }
}

/// Says of hints that have not changed since they were read that they are as of now: a page lasts for many batches, and
/// while there is much to forget a collection round ends several times a second.
fn renew(replica: &Replica, hints: &mut [Hint]) {
    let epoch = replica.epochs().tag();
    for hint in hints.iter_mut().filter(|hint| hint.epoch < epoch) {
        if replica.hints().holds(hint) {
            hint.epoch = epoch;
        }
    }
}

/// Merges hints at `node`, and removes those that it has then. Stores are sent apart.
async fn send(handoffs: &Handoffs, node: NodeId, mut hints: Vec<Hint>) -> Settled {
    renew(&handoffs.parts.replica, &mut hints);
    let view = handoffs.parts.replica.view().get();
    let mut settled = Settled::default();
    let mut calls = Vec::new();
    for group in hints.chunk_by(|one, next| one.store == next.store) {
        let Some(store) = view.store(group[0].store.as_str()) else {
            settled.stay(group.len(), Fault::Refused);
            continue;
        };
        let entries: SmallVec<_> = group.iter().map(|hint| (hint.key.clone(), hint.set.clone())).collect();
        let request = Request::ReplicaMerge(ReplicaMerge {
            store: store.reference().clone(),
            generation: view.cluster().generation,
            epoch: group.iter().map(|hint| hint.epoch).min().unwrap_or_default(),
            hint_for: None,
            entries,
        });
        calls.push((group, call(&handoffs.parts.replica, &handoffs.parts.peers, node, request)));
    }
    for (group, call) in calls {
        let clock = &handoffs.parts.peers.ports().clock;
        match call.within(clock, PATIENCE).await {
            Ok(Response::ReplicaMerged(merged)) if merged.outcomes.len() == group.len() => {
                for (hint, outcome) in group.iter().zip(&merged.outcomes) {
                    settled.take_in(handoffs, hint, *outcome);
                }
            }
            Ok(Response::StaleEpoch(stale)) => {
                // A collection round came in between: the hints are read again.
                let replica = &handoffs.parts.replica;
                replica.epochs().hear(stale.epoch, view.cluster().generation, replica.standing());
                // No fault of the target's, and nothing to slow down for.
                settled.left += group.len();
            }
            Ok(_) => settled.stay(group.len(), Fault::Refused),
            Err(error) => settled.stay(group.len(), fault_of(handoffs, &error)),
        }
    }
    settled
}

fn call(replica: &Replica, peers: &Arc<Peers>, node: NodeId, request: Request) -> Call {
    if node == replica.node() { replica.call(request) } else { peers.call(node, request) }
}

fn fault_of(handoffs: &Handoffs, error: &CallError) -> Fault {
    let CallError::Refused(failure) = error else { return Fault::Unreachable };
    if let Some(document) = &failure.cluster
        && let Ok(cluster) = serde_json::from_slice::<Cluster>(document)
    {
        (handoffs.parts.adopt)(cluster);
    }
    fault_of_code(failure.code)
}

fn fault_of_code(code: ErrorCode) -> Fault {
    match code {
        ErrorCode::Overloaded | ErrorCode::TooManyConnections => Fault::Overloaded,
        ErrorCode::ShuttingDown | ErrorCode::StorageFailed => Fault::Unreachable,
        _ => Fault::Refused,
    }
}

/// Parks each hint for the replicas that its key has now (merges it here, where this node is one), and removes it
/// when all of that is durable.
async fn readdress(handoffs: &Handoffs, hints: Vec<Hint>) -> Settled {
    let replica = &handoffs.parts.replica;
    let view = replica.view().get();
    let mut settled = Settled::default();
    // First all writes, then all waits: one sync makes many durable.
    let mut given = Vec::with_capacity(hints.len());
    for hint in &hints {
        match replica.hints().readdress(hint, || give(replica, &view, hint)) {
            Ok(Some(Ok(waits))) => given.push((hint, waits)),
            // Changed since it was read: the next walk meets it.
            Ok(None) => settled.left += 1,
            Ok(Some(Err(code))) => settled.stay(1, fault_of_code(code)),
            Err(failure) => settled.stay(1, fault_of_code(failure.code)),
        }
    }
    for (hint, waits) in given {
        let mut durable = true;
        for wait in waits {
            durable &= wait.wait().await.is_ok();
        }
        let outcome = if durable { Ok(Merged::Changed) } else { Err(ErrorCode::StorageFailed) };
        settled.take_in(handoffs, hint, outcome);
    }
    settled
}

/// Puts a hint's content where the present replicas of its key will get it from.
fn give(replica: &Replica, view: &View, hint: &Hint) -> Result<Vec<Durable>, ErrorCode> {
    let store = view.store(hint.store.as_str()).ok_or(ErrorCode::UnknownStore)?;
    let route = view.route(store, &hint.key);
    let admitted = replica.admit_contents(hint.epoch, view.cluster().generation);
    // Read before a collection round: the next walk reads it again.
    let admitted = admitted.map_err(|_| ErrorCode::StaleGeneration)?;
    let set = &*admitted.clean(&hint.store, &hint.key, &hint.set);
    let mut waits = Vec::new();
    for &node in route.preference.replicas() {
        let (outcome, durable) = if node == replica.node() {
            replica.merge_one(view, store, &hint.key, set)
        } else {
            replica.park(node, store, &hint.key, set)
        };
        outcome?;
        waits.push(durable);
    }
    Ok(waits)
}

/// Sees that another replica of each key holds what the hint holds, so that anti-entropy can bring it to the target
/// one day, and removes it then. A hint whose content only this node may have stays.
async fn give_up(handoffs: &Handoffs, target: NodeId, hints: Vec<Hint>) -> Settled {
    let view = handoffs.parts.replica.view().get();
    let own = handoffs.parts.replica.node();
    let stand_in = |hint: &Hint| {
        let store = view.store(hint.store.as_str())?;
        let preference = view.route(store, &hint.key).preference;
        let there = |node: NodeId| node == own || handoffs.is_alive(node);
        preference.replicas().iter().copied().find(|&node| node != target && there(node))
    };
    let mut settled = Settled::default();
    let mut by_node: std::collections::BTreeMap<NodeId, Vec<Hint>> = Default::default();
    for hint in hints {
        match stand_in(&hint) {
            Some(node) => by_node.entry(node).or_default().push(hint),
            None => settled.left += 1,
        }
    }
    for (node, hints) in by_node {
        let there = send(handoffs, node, hints).await;
        settled.removed += there.removed;
        settled.left += there.left;
        settled.fault = settled.fault.or(there.fault);
    }
    settled
}

impl Settled {
    fn stay(&mut self, hints: usize, fault: Fault) {
        self.left += hints;
        // What concerns the whole target weighs more than what concerns one hint.
        if self.fault.is_none() || fault != Fault::Refused {
            self.fault = Some(fault);
        }
    }

    /// Removes a hint whose content has arrived.
    fn take_in(&mut self, handoffs: &Handoffs, hint: &Hint, outcome: Result<Merged, ErrorCode>) {
        match outcome {
            Ok(_) => match handoffs.parts.replica.hints().remove(hint) {
                Ok(true) => self.removed += 1,
                Ok(false) => self.left += 1,
                Err(failure) => self.stay(1, fault_of_code(failure.code)),
            },
            Err(code) => self.stay(1, fault_of_code(code)),
        }
    }
}
