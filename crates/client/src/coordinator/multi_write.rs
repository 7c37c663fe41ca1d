//! Drives many puts or deletes that the own node has stamped: one message per node.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use model::{Generation, Moment, NodeId, PreferenceList, VersionSet};
use protocol::quorum::{
    KeyIndex, Local, MultiWrite, MultiWriteAction, MultiWriteEvent, Origin, ReplicaError, WriteOutcome,
};
use runtime::BoxFuture;
use wire::error::ErrorCode;
use wire::messages::{Failure, Merged, ReplicaMerge, ReplicaMerged, Request, RequestOptions, Response};

use super::calls::{Calls, Came};
use super::get::newest_of;
use super::write::{Acked, outcome_to_answer};
use super::{Coordinator, Direction, REFRESHES_MAX, Scope, code_error, replica_error, too_many_refreshes};
use crate::peers::{Call, CallError};

/// A message's keys, as the machine numbers them, and whose hints they are.
type Asked = (NodeId, Vec<KeyIndex>);

struct Drive {
    coordinator: Arc<Coordinator>,
    scope: Scope,
    entries: Vec<(Bytes, VersionSet)>,
    machine: MultiWrite,
    calls: Calls<Asked>,
    events: VecDeque<MultiWriteEvent>,
    outcomes: Vec<(KeyIndex, WriteOutcome)>,
    refreshed: Vec<(KeyIndex, bool)>,
    document: Option<Bytes>,
}

/// Completes when the own node's copies of all entries are durable: with whether they are.
pub type AllDurable = Option<BoxFuture<'static, bool>>;

impl Coordinator {
    /// Brings many stamped writes, as their keys' whole states, each to its quorum. The own node is a replica of
    /// each and has stored it. Each key has its own outcome, in the order of `entries`.
    pub async fn multi_write(
        self: &Arc<Self>,
        scope: &Scope,
        entries: Vec<(Bytes, VersionSet)>,
        durable: AllDurable,
        options: &RequestOptions,
    ) -> Vec<Result<Acked, Failure>> {
        let deadline = self.deadline(options);
        let mut scope = scope.clone();
        let mut durable = Some(durable);
        let mut answers: Vec<Option<Result<Acked, Failure>>> = entries.iter().map(|_| None).collect();
        let mut positions: Vec<(usize, bool)> = (0..entries.len()).map(|at| (at, false)).collect();
        for _ in 0..REFRESHES_MAX {
            let attempt: Vec<_> =
                positions.iter().map(|&(at, possible)| (entries[at].clone(), possible)).collect();
            let mut drive =
                Drive::start(self.clone(), scope.clone(), attempt, durable.take(), options, deadline);
            drive.run().await;
            for (key, outcome) in std::mem::take(&mut drive.outcomes) {
                answers[positions[key.position()].0] = Some(outcome_to_answer(outcome));
            }
            positions = drive
                .refreshed
                .iter()
                .map(|(key, possible)| (positions[key.position()].0, *possible))
                .collect();
            let document = drive.document.take();
            drive.finish_beside();
            if positions.is_empty() {
                break;
            }
            match self.refreshed(&scope, document.as_deref()) {
                Ok(newer) => scope = newer,
                Err(failure) => {
                    for &(at, possible) in &positions {
                        let code = if possible { ErrorCode::Indeterminate } else { failure.code };
                        answers[at] = Some(Err(Failure::new(code, failure.detail.clone())));
                    }
                    break;
                }
            }
        }
        let unsettled = || Failure::new(ErrorCode::Indeterminate, too_many_refreshes().detail);
        answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(unsettled()))).collect()
    }

    /// The nodes of the cluster that are better avoided.
    pub(super) fn suspected_of_all(&self, scope: &Scope) -> Vec<NodeId> {
        let nodes = scope.cluster.nodes.iter().map(|node| node.id);
        nodes.filter(|&node| self.replicas.is_suspected(node)).collect()
    }
}

impl Drive {
    fn start(
        coordinator: Arc<Coordinator>,
        scope: Scope,
        entries: Vec<((Bytes, VersionSet), bool)>,
        durable: Option<AllDurable>,
        options: &RequestOptions,
        deadline: Moment,
    ) -> Self {
        let own = coordinator.replicas.own().expect("only nodes drive writes");
        let first_attempt = durable.is_some();
        let preferences: Vec<PreferenceList> =
            entries.iter().map(|((key, _), _)| scope.preference(key)).collect();
        let origins = preferences.iter().zip(&entries).map(|(preference, (_, possible))| {
            // After a refresh the own node's earlier copy stands, and merging it once more confirms it is durable.
            let applied = first_attempt && preference.is_replica(own);
            let local = if applied { Local::Applied } else { Local::NotReplica };
            (preference, Origin { own, local, possible: *possible })
        });
        let suspected = coordinator.suspected_of_all(&scope);
        let quorum = coordinator.quorum_options(&scope, options, Direction::Write, deadline);
        let mut actions = Vec::new();
        let now = coordinator.ports.clock.now();
        let machine = MultiWrite::start(origins, &suspected, quorum, now, &mut actions);
        let applied: Vec<KeyIndex> = (0..)
            .map(KeyIndex)
            .zip(&preferences)
            .filter(|(_, preference)| first_attempt && preference.is_replica(own))
            .map(|(key, _)| key)
            .collect();
        let mut drive = Drive {
            coordinator,
            scope,
            entries: entries.into_iter().map(|(entry, _)| entry).collect(),
            machine,
            calls: Calls::new(),
            events: VecDeque::new(),
            outcomes: Vec::new(),
            refreshed: Vec::new(),
            document: None,
        };
        drive.act(actions);
        if let Some(durable) = durable {
            drive.await_own(own, applied, durable);
        }
        drive
    }

    fn await_own(&mut self, own: NodeId, keys: Vec<KeyIndex>, durable: AllDurable) {
        let outcomes = keys.iter().map(|_| Ok(Merged::Changed)).collect();
        let merged = Ok(Response::ReplicaMerged(ReplicaMerged { outcomes }));
        let call = match durable {
            None => Call::Ready(merged),
            Some(durable) => Call::Pending(Box::pin(async move {
                match durable.await {
                    true => merged,
                    false => Err(CallError::Refused(Failure::new(
                        ErrorCode::StorageFailed,
                        "the writes could not be made durable here",
                    ))),
                }
            })),
        };
        self.add_call((own, keys), call);
    }

    async fn run(&mut self) {
        while self.machine.unanswered() > 0 {
            self.next().await;
        }
    }

    fn finish_beside(mut self) {
        if self.machine.deadline().is_none() {
            return;
        }
        let tasks = self.coordinator.ports.tasks.clone();
        tasks.spawn(Box::pin(async move {
            while self.machine.deadline().is_some() {
                self.next().await;
            }
        }));
    }

    async fn next(&mut self) {
        let event = match self.events.pop_front() {
            Some(event) => event,
            None => {
                let Some(deadline) = self.machine.deadline() else { return };
                match self.calls.next(&*self.coordinator.ports.clock, deadline).await {
                    Came::Answer(asked, answer) => self.event(asked, answer),
                    Came::Elapsed => MultiWriteEvent::Elapsed,
                }
            }
        };
        let mut actions = Vec::new();
        self.machine.step(event, self.coordinator.ports.clock.now(), &mut actions);
        self.act(actions);
    }

    fn act(&mut self, actions: Vec<MultiWriteAction>) {
        for action in actions {
            match action {
                MultiWriteAction::Send { node, merges, hints } => self.send(node, merges, hints),
                MultiWriteAction::ParkHints { hints } => {
                    for (key, target) in hints {
                        let (key, set) = &self.entries[key.position()];
                        self.coordinator.replicas.park(&self.scope, target, key, set);
                    }
                }
                MultiWriteAction::Answer { outcomes } => self.outcomes.extend(outcomes),
                MultiWriteAction::Refresh { keys, .. } => self.refreshed.extend(keys),
            }
        }
    }

    /// One message for the merges, and one for the hints of each target, of which there are rarely any.
    fn send(&mut self, node: NodeId, merges: Vec<KeyIndex>, mut hints: Vec<(KeyIndex, NodeId)>) {
        if !merges.is_empty() {
            self.send_merge(node, None, merges);
        }
        hints.sort_by_key(|(key, target)| (*target, *key));
        for group in hints.chunk_by(|a, b| a.1 == b.1) {
            self.send_merge(node, Some(group[0].1), group.iter().map(|(key, _)| *key).collect());
        }
    }

    fn send_merge(&mut self, node: NodeId, hint_for: Option<NodeId>, keys: Vec<KeyIndex>) {
        let request = Request::ReplicaMerge(ReplicaMerge {
            store: self.scope.store.clone(),
            generation: self.generation(),
            hint_for,
            entries: keys.iter().map(|key| self.entries[key.position()].clone()).collect(),
        });
        let call = self.coordinator.replicas.call(node, request);
        self.add_call((node, keys), call);
    }

    fn add_call(&mut self, asked: Asked, call: Call) {
        if let Some((asked, answer)) = self.calls.add(asked, call) {
            let event = self.event(asked, answer);
            self.events.push_back(event);
        }
    }

    fn event(&mut self, asked: Asked, answer: Result<Response, CallError>) -> MultiWriteEvent {
        let (node, keys) = asked;
        let generation = self.generation();
        match answer {
            Ok(Response::ReplicaMerged(merged)) if merged.outcomes.len() == keys.len() => {
                let outcomes = merged.outcomes.into_iter().map(|outcome| match outcome {
                    Ok(merged) => Ok(merged == Merged::Superseded),
                    Err(code) => Err(code_error(code, generation)),
                });
                let answers = keys.into_iter().zip(outcomes).collect();
                MultiWriteEvent::Acknowledged { node, generation, answers }
            }
            Ok(_) => MultiWriteEvent::Failed { node, keys, error: ReplicaError::Lost },
            Err(error) => {
                let newest = newest_of(&error, &mut self.document);
                MultiWriteEvent::Failed { node, keys, error: replica_error(&error, newest) }
            }
        }
    }

    fn generation(&self) -> Generation {
        self.scope.cluster.generation
    }
}
