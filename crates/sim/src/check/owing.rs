//! What an answer owes to an acknowledged write, by what the simulator knows, and never by what an answer says of itself.
//!
//! In a sloppy store a fallback may stand in for a replica, and then quorums need not meet. But it does so only where
//! there is a reason. Replicas were down, cut off, slow or without room, so that too few were left; or replicas were
//! silent for long. Where the simulator knows of none, replicas alone have answered, or ought to have.
//!
//! - A *write* may lean on a fallback at once where replicas are in trouble, and after [`HEDGE`]. It has not where W
//!   replicas were seen to store it before it was acknowledged.
//! - A *get* may lean on one where too few replicas are in no trouble; after [`HEDGE`] where one of them is in trouble,
//!   because all replicas were asked then, and a fallback takes the place of each that was suspected; and after
//!   [`PATIENCE`]. It may only if it shows a value. That there is none only replicas can say.
//! - An answer that says that replicas alone gave it is taken at its word.

use std::cell::OnceCell;
use std::time::Duration;

use model::{Dot, NodeId};

use super::{Attribution, Rules};
use crate::circumstances::Circumstances;
use crate::history::{Action, History, Operation, OperationId, Outcome};
use crate::host::Host;

/// How long a request waits for replicas that are in no trouble before it turns to others: the default `hedge_after`.
pub(crate) const HEDGE: Duration = Duration::from_millis(50);
/// How long a get waits for a silent replica before it asks a fallback in its place.
pub(crate) const PATIENCE: Duration = Duration::from_millis(500);
/// How long, at least, a command waits for what it reads before it goes on without: half of the shortest deadline.
const GLANCE: Duration = Duration::from_millis(150);

/// Says what answers owe; asked once for each operation, and remembered.
pub(crate) struct Owing<'a> {
    history: &'a History,
    known: &'a Attribution,
    rules: Rules,
    leans: Vec<OnceCell<bool>>,
}

impl<'a> Owing<'a> {
    /// Of this history.
    pub(crate) fn new(history: &'a History, known: &'a Attribution, rules: Rules) -> Owing<'a> {
        Owing { history, known, rules, leans: vec![OnceCell::new(); history.operations.len()] }
    }

    /// Whether a fallback may have stood in for a replica.
    pub(crate) fn may_lean(&self, id: OperationId) -> bool {
        *self.leans[id.0].get_or_init(|| {
            let operation = self.history.operation(id);
            may_lean(self.history, operation, self.event(id))
        })
    }

    /// Whether there was a reason for a fallback to stand in.
    pub(crate) fn has_reason(&self, id: OperationId) -> bool {
        has_reason(self.history, self.history.operation(id), self.event(id))
    }

    fn event(&self, id: OperationId) -> Option<Dot> {
        self.known.event(id).map(|(dot, _)| dot)
    }

    /// Whether what a command read before it wrote may be less than what R replicas hold: it may have gone on without.
    pub(crate) fn may_be_unread(&self, id: OperationId) -> bool {
        let operation = self.history.operation(id);
        is_short(&self.history.circumstances, operation, self.rules.reads_required, operation.driver, GLANCE)
    }
}

/// Whether a fallback may have stood in for a replica: `event` is what a write is known as.
pub(crate) fn may_lean(history: &History, operation: &Operation, event: Option<Dot>) -> bool {
    let on_replicas = || event.is_some_and(|dot| is_on_replicas(history, operation, dot));
    let gave_more = || if operation.is_write() { on_replicas() } else { shows_nothing(operation) };
    operation.may_say_sloppy() && !gave_more() && has_reason(history, operation, event)
}

/// Whether there was a reason for a fallback to stand in for a replica.
fn has_reason(history: &History, operation: &Operation, event: Option<Dot>) -> bool {
    // The node that stamps a write drives it.
    let required = usize::from(operation.required);
    let (driver, patience, required) = match operation.is_write() {
        // A fallback takes the place of each replica that fails, and may be quicker than the others.
        true => (event.map(|dot| Host(dot.actor.node.0)), HEDGE, usize::MAX),
        false if operation.lasted() >= HEDGE => (operation.driver, PATIENCE, usize::MAX),
        false => (operation.driver, PATIENCE, required),
    };
    is_short(&history.circumstances, operation, required, driver, patience)
}

/// Whether too few replicas could be counted on, or the wait reached `patience`.
fn is_short(
    known: &Circumstances,
    operation: &Operation,
    required: usize,
    driver: Option<Host>,
    patience: Duration,
) -> bool {
    let Some(returned) = operation.returned else { return true };
    operation.lasted() >= patience
        || known.is_short(operation.place(), required, driver, (operation.invoked, returned))
}

/// Whether as many replicas as had to were seen to store a write before it was acknowledged.
fn is_on_replicas(history: &History, write: &Operation, event: Dot) -> bool {
    let (Some(returned), Some(seen)) = (write.returned, history.looks.of(write.store, &write.key)) else {
        return false;
    };
    let sets = history.circumstances.replica_sets(write.place(), write.invoked, returned);
    // What a replica stored whose sync failed then counted for nothing, and a hint took its place (seed 195).
    let is_well = |node: &NodeId| !history.circumstances.is_unwell(*node, write.invoked, returned);
    let held = |nodes: &[NodeId]| {
        let well: Vec<NodeId> = nodes.iter().copied().filter(is_well).collect();
        seen.stored_by(event, &well, returned) >= usize::from(write.required)
    };
    !sets.is_empty() && sets.iter().all(|set| held(&set.nodes))
}

/// Whether a get was answered that there is nothing.
pub(crate) fn shows_nothing(operation: &Operation) -> bool {
    match &operation.outcome {
        Outcome::Got(_) => operation.action == Action::Get && operation.shown.is_empty(),
        Outcome::Shown(shown) => shown.is_none(),
        _ => false,
    }
}
