//! What becomes of one batch: merged at its target, readdressed, or given up; then removed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use client::peers::{Call, CallError, Peers};
use model::{Cluster, NodeId};
use protocol::handoff::{Errand, Fault};
use protocol::quorum::Holders;
use smallvec::SmallVec;
use storage::Durable;
use wire::error::ErrorCode;
use wire::messages::{Merged, ReplicaMerge, Request, Response};

use super::Handoffs;
use crate::hints::Hint;
use crate::replica::Replica;
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

/// Merges hints at `node`, and removes those that it has then.
async fn send(handoffs: &Handoffs, node: NodeId, mut hints: Vec<Hint>) -> Settled {
    renew(&handoffs.parts.replica, &mut hints);
    let answers = merge(handoffs, node, &hints.iter().collect::<Vec<_>>()).await;
    let mut settled = Settled::default();
    for (hint, answer) in hints.iter().zip(answers) {
        settled.take_in(handoffs, hint, answer);
    }
    settled
}

/// What a node answers to one hint: it has its content durably, or why not; `None` when a collection round came in
/// between, which is nobody's fault: the hint is read again.
type Answer = Result<(), Option<Fault>>;

/// Merges hints at `node`; what it answers to each. Stores are sent apart.
async fn merge(handoffs: &Handoffs, node: NodeId, hints: &[&Hint]) -> Vec<Answer> {
    let view = handoffs.parts.replica.view().get();
    let mut calls = Vec::new();
    for group in hints.chunk_by(|one, next| one.store == next.store) {
        let Some(store) = view.store(group[0].store.as_str()) else {
            calls.push((group, None));
            continue;
        };
        let entries: SmallVec<_> = group.iter().map(|hint| (hint.key.clone(), hint.set.clone())).collect();
        let since = group.iter().map(|hint| {
            view.cluster().accepted_since(store.definition(), view.partition(store, &hint.key).1)
        });
        let request = Request::ReplicaMerge(ReplicaMerge {
            since: since.max().unwrap_or_default(),
            store: store.reference().clone(),
            generation: view.cluster().generation,
            epoch: group.iter().map(|hint| hint.epoch).min().unwrap_or_default(),
            hint_for: None,
            entries,
        });
        calls.push((group, Some(call(&handoffs.parts.replica, &handoffs.parts.peers, node, request))));
    }
    let mut answers = Vec::with_capacity(hints.len());
    for (group, call) in calls {
        let clock = &handoffs.parts.peers.ports().clock;
        let answer = match call {
            Some(call) => call.within(clock, PATIENCE).await,
            None => {
                answers.extend(group.iter().map(|_| Err(Some(Fault::Refused))));
                continue;
            }
        };
        match answer {
            Ok(Response::ReplicaMerged(merged)) if merged.outcomes.len() == group.len() => {
                answers.extend(merged.outcomes.into_iter().map(answer_of));
            }
            Ok(Response::StaleEpoch(stale)) => {
                let replica = &handoffs.parts.replica;
                replica.epochs().hear(stale.epoch, view.cluster().generation, replica.standing());
                answers.extend(group.iter().map(|_| Err(None)));
            }
            Ok(_) => answers.extend(group.iter().map(|_| Err(Some(Fault::Refused)))),
            Err(error) => {
                let fault = fault_of(handoffs, &error);
                answers.extend(group.iter().map(|_| Err(Some(fault))));
            }
        }
    }
    answers
}

fn answer_of(outcome: Result<Merged, ErrorCode>) -> Answer {
    outcome.map(|_| ()).map_err(|code| Some(fault_of_code(code)))
}

fn call(replica: &Arc<Replica>, peers: &Arc<Peers>, node: NodeId, request: Request) -> Call {
    if node == replica.node() { replica.call(request) } else { peers.call(node, request) }
}

fn fault_of(handoffs: &Handoffs, error: &CallError) -> Fault {
    let CallError::Refused(failure) = error else { return Fault::Unreachable };
    if let Some(document) = &failure.cluster
        && let Some(cluster) = Cluster::handed_over(document, handoffs.parts.replica.view().get().cluster())
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
        let answer = if durable { Ok(()) } else { Err(Some(fault_of_code(ErrorCode::StorageFailed))) };
        settled.take_in(handoffs, hint, answer);
    }
    settled
}

/// Puts a hint's content where the present replicas of its key will get it from.
fn give(replica: &Replica, view: &View, hint: &Hint) -> Result<Vec<Durable>, ErrorCode> {
    let store = view.store(hint.store.as_str()).ok_or(ErrorCode::UnknownStore)?;
    let writers = |view: &View| -> SmallVec<[NodeId; 8]> {
        model::routing::writers(store.definition(), view.partition(store, &hint.key).1).collect()
    };
    for node in writers(view) {
        replica.read_key_ahead(view, store, &hint.key, (node != replica.node()).then_some(node));
    }
    // By the ring of the moment, which stays while this is stored.
    let view = replica.view().admit();
    let admitted = replica.admit_contents(&view, hint.epoch, view.cluster().generation);
    // Read before a collection round: the next walk reads it again.
    let admitted = admitted.map_err(|_| ErrorCode::StaleGeneration)?;
    let set = &*admitted.clean(&hint.store, &hint.key, &hint.set);
    let mut waits = Vec::new();
    for node in writers(&view) {
        let (outcome, durable) = if node == replica.node() {
            replica.merge_one(&view, store, &hint.key, set)
        } else {
            replica.park(node, store, &hint.key, set)
        };
        outcome?;
        waits.push(durable);
    }
    Ok(waits)
}

/// Sees that W replicas of each key other than the target hold what the hint holds, as many as were promised when the
/// write was acknowledged, and removes it then; from them anti-entropy brings it to the target one day. The hint may be
/// one of the W copies, and a replica that has its content already may be another: so a hint stays while fewer than W
/// others are there. All that are there get it.
async fn give_up(handoffs: &Handoffs, target: NodeId, mut hints: Vec<Hint>) -> Settled {
    let view = handoffs.parts.replica.view().get();
    let own = handoffs.parts.replica.node();
    let there = |node: NodeId| node != target && (node == own || handoffs.is_alive(node));
    let plan = |hint: &Hint| {
        let store = view.store(hint.store.as_str())?;
        Holders::of(store.definition(), &view.route(store, &hint.key).preference, target, there)
    };
    let mut plans: Vec<Option<Holders>> = hints.iter().map(plan).collect();
    let nodes: BTreeSet<NodeId> = plans.iter().flatten().flat_map(Holders::nodes).collect();
    let mut faults = vec![None; hints.len()];
    for node in nodes {
        renew(&handoffs.parts.replica, &mut hints);
        let is_meant = |plan: &Option<Holders>| {
            plan.as_ref().is_some_and(|holders| holders.nodes().any(|other| other == node))
        };
        let meant: Vec<usize> = (0..hints.len()).filter(|&position| is_meant(&plans[position])).collect();
        let sent: Vec<&Hint> = meant.iter().map(|&position| &hints[position]).collect();
        for (position, answer) in meant.iter().zip(merge(handoffs, node, &sent).await) {
            match (answer, &mut plans[*position]) {
                (Ok(()), Some(holders)) => holders.acknowledged(node),
                (Err(fault), _) => faults[*position] = faults[*position].or(fault),
                (Ok(()), None) => unreachable!("only hints with holders are sent"),
            }
        }
    }
    let mut settled = Settled::default();
    for (position, hint) in hints.iter().enumerate() {
        let answer = match &plans[position] {
            Some(holders) if holders.suffice() => Ok(()),
            _ => Err(faults[position]),
        };
        settled.take_in(handoffs, hint, answer);
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
    fn take_in(&mut self, handoffs: &Handoffs, hint: &Hint, answer: Answer) {
        match answer {
            Ok(()) => match handoffs.parts.replica.hints().remove(hint) {
                Ok(true) => self.removed += 1,
                Ok(false) => self.left += 1,
                Err(failure) => self.stay(1, fault_of_code(failure.code)),
            },
            Err(Some(fault)) => self.stay(1, fault),
            Err(None) => self.left += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use storage::ScanLimit;

    use super::*;
    use crate::Node;
    use crate::driven::home::{Home, deleted, old, store};

    /// No member of the cluster, so its hints go to the replicas of their keys.
    const GONE: NodeId = NodeId(9);

    /// Hints as they were read, of which the second has changed since.
    fn parked(node: &Node) -> Vec<Hint> {
        let (hints, store) = (node.replica().hints(), store(node));
        for key in ["a", "b", "c"] {
            hints.park(GONE, store.definition(), key.as_bytes(), &old()).unwrap();
        }
        let limit = ScanLimit { records_max: 10, bytes_max: 1 << 20 };
        let mut read = hints.page(GONE, None, limit).unwrap().0;
        read.sort_by_key(|hint| hint.key.clone());
        assert_eq!(read.iter().map(|hint| &hint.key).collect::<Vec<_>>(), ["a", "b", "c"]);
        hints.park(GONE, store.definition(), b"b", &deleted()).unwrap();
        read
    }

    /// Keys of the hints that are left.
    fn left(node: &Node) -> Vec<Bytes> {
        let limit = ScanLimit { records_max: 10, bytes_max: 1 << 20 };
        let hints = node.replica().hints().page(GONE, None, limit).unwrap().0;
        let mut keys: Vec<Bytes> = hints.into_iter().map(|hint| hint.key).collect();
        keys.sort();
        keys
    }

    /// After a walk that leaves something the courier rests. After one that leaves nothing it looks at once for more.
    #[test]
    fn a_hint_that_changed_before_it_was_readdressed_stays_and_is_no_fault() {
        let home = Home::new();
        let node = home.start();
        let handoffs = node.handoffs();
        handoffs.stop();
        let settled = home.stage.run(readdress(handoffs, parked(&node)));
        assert_eq!(settled, Settled { removed: 2, left: 1, fault: None });
        assert_eq!(left(&node), ["b"]);
    }

    #[test]
    fn hints_that_changed_in_transit_or_must_be_reread_stay_and_are_no_fault() {
        let home = Home::new();
        let node = home.start();
        let handoffs = node.handoffs();
        handoffs.stop();
        let (hints, mut settled) = (parked(&node), Settled::default());
        let answers = [Ok(()), Ok(()), Err(None)];
        let mut counted = Vec::new();
        for (hint, answer) in hints.iter().zip(answers) {
            settled.take_in(handoffs, hint, answer);
            counted.push((settled.removed, settled.left, settled.fault));
        }
        assert_eq!(counted, [(1, 0, None), (1, 1, None), (1, 2, None)]);
        assert_eq!(left(&node), ["b", "c"]);
    }

    #[test]
    fn a_fault_of_the_target_is_told_apart_from_a_fault_of_a_hint() {
        use ErrorCode::*;
        for (code, fault) in [
            (Overloaded, Fault::Overloaded),
            (TooManyConnections, Fault::Overloaded),
            (ShuttingDown, Fault::Unreachable),
            (StorageFailed, Fault::Unreachable),
            (ValueTooLarge, Fault::Refused),
            (UnknownStore, Fault::Refused),
        ] {
            assert_eq!(fault_of_code(code), fault, "{code:?}");
        }
    }

    /// A target that is down is waited for; one hint that it refuses does not hide that.
    #[test]
    fn a_fault_of_the_whole_target_is_reported_before_a_fault_of_a_hint() {
        let of = |faults: &[Fault]| {
            let mut settled = Settled::default();
            faults.iter().for_each(|fault| settled.stay(2, *fault));
            settled
        };
        let told = |left, fault| Settled { removed: 0, left, fault: Some(fault) };
        let (refused, unreachable) = (Fault::Refused, Fault::Unreachable);
        assert_eq!(of(&[refused]), told(2, refused));
        assert_eq!(of(&[refused, unreachable]), told(4, unreachable));
        assert_eq!(of(&[unreachable, refused]), told(4, unreachable));
        assert_eq!(of(&[unreachable, Fault::Overloaded]), told(4, Fault::Overloaded));
        assert_eq!(of(&[refused, refused, refused]), told(6, refused));
    }
}
