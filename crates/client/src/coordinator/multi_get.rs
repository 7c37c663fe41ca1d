//! Drives a multi-get: one message per node.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use model::{Generation, Moment, NodeId, PreferenceList, VersionSet};
use protocol::quorum::{GetOutcome, KeyIndex, MultiGet, MultiGetAction, MultiGetEvent, ReplicaError};
use smallvec::SmallVec;
use wire::messages::{Failure, ReplicaGet, ReplicaMerge, Request, RequestOptions, Response};

use super::calls::{Calls, Came};
use super::get::{newest_of, outcome_to_answer};
use super::{Coordinator, Direction, REFRESHES_MAX, Scope, code_error, replica_error, too_many_refreshes};
use crate::peers::{Call, CallError};

/// Each key's answer, in the order of the keys.
pub type MultiGot = Vec<Result<VersionSet, Failure>>;

/// Whom a message went to, and for which keys.
type Asked = (NodeId, Vec<KeyIndex>);

struct Drive {
    coordinator: Arc<Coordinator>,
    scope: Scope,
    keys: Vec<Bytes>,
    machine: MultiGet,
    calls: Calls<Asked>,
    events: VecDeque<MultiGetEvent>,
    outcomes: Vec<(KeyIndex, GetOutcome)>,
    refreshed: Vec<KeyIndex>,
    document: Option<Bytes>,
}

impl Coordinator {
    /// Reads many keys, each from its quorum.
    pub async fn multi_get(
        self: &Arc<Self>,
        scope: &Scope,
        keys: Vec<Bytes>,
        options: &RequestOptions,
    ) -> MultiGot {
        let deadline = self.deadline(options);
        let resolver = scope.definition.resolver;
        let mut scope = scope.clone();
        let mut answers: Vec<Option<Result<VersionSet, Failure>>> = keys.iter().map(|_| None).collect();
        // Positions of the keys that still want an answer; those of the current attempt.
        let mut positions: Vec<usize> = (0..keys.len()).collect();
        for _ in 0..REFRESHES_MAX {
            let attempt = positions.iter().map(|&position| keys[position].clone()).collect();
            let mut drive = Drive::start(self.clone(), scope.clone(), attempt, options, deadline);
            drive.run().await;
            for (key, outcome) in std::mem::take(&mut drive.outcomes) {
                let answer = outcome_to_answer(outcome).map(|mut got| {
                    got.set.resolve(resolver);
                    got.set
                });
                answers[positions[key.position()]] = Some(answer);
            }
            positions = drive.refreshed.iter().map(|key| positions[key.position()]).collect();
            let document = drive.document.take();
            drive.finish_beside();
            if positions.is_empty() {
                break;
            }
            match self.refreshed(&scope, document.as_deref()) {
                Ok(newer) => scope = newer,
                Err(failure) => {
                    positions.iter().for_each(|&position| answers[position] = Some(Err(failure.clone())));
                    break;
                }
            }
        }
        answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(too_many_refreshes()))).collect()
    }
}

impl Drive {
    fn start(
        coordinator: Arc<Coordinator>,
        scope: Scope,
        keys: Vec<Bytes>,
        options: &RequestOptions,
        deadline: Moment,
    ) -> Self {
        let preferences: Vec<PreferenceList> = keys.iter().map(|key| scope.preference(key)).collect();
        let suspected = coordinator.suspected_of_all(&scope);
        let quorum = coordinator.quorum_options(&scope, options, Direction::Read, deadline);
        let mut actions = Vec::new();
        let now = coordinator.ports.clock.now();
        let own = coordinator.replicas.own();
        let machine = MultiGet::start(&preferences, &suspected, own, quorum, now, &mut actions);
        let mut drive = Drive {
            coordinator,
            scope,
            keys,
            machine,
            calls: Calls::new(),
            events: VecDeque::new(),
            outcomes: Vec::new(),
            refreshed: Vec::new(),
            document: None,
        };
        drive.act(actions);
        drive
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
                    Came::Elapsed => MultiGetEvent::Elapsed,
                }
            }
        };
        let mut actions = Vec::new();
        self.machine.step(event, self.coordinator.ports.clock.now(), &mut actions);
        self.act(actions);
    }

    fn act(&mut self, actions: Vec<MultiGetAction>) {
        for action in actions {
            match action {
                MultiGetAction::Fetch { node, keys } => {
                    let request = Request::ReplicaGet(ReplicaGet {
                        store: self.scope.store.clone(),
                        generation: self.generation(),
                        keys: keys.iter().map(|key| self.keys[key.position()].clone()).collect(),
                    });
                    let call = self.coordinator.replicas.call(node, request);
                    if let Some((asked, answer)) = self.calls.add((node, keys), call) {
                        let event = self.event(asked, answer);
                        self.events.push_back(event);
                    }
                }
                MultiGetAction::Repair { node, sets } => self.repair(node, sets),
                MultiGetAction::Answer { outcomes } => self.outcomes.extend(outcomes),
                MultiGetAction::Refresh { keys, .. } => self.refreshed.extend(keys),
            }
        }
    }

    fn repair(&self, node: NodeId, sets: Vec<(KeyIndex, VersionSet)>) {
        let resolver = self.scope.definition.resolver;
        let entries: SmallVec<[(Bytes, VersionSet); 1]> = sets
            .into_iter()
            .map(|(key, mut set)| {
                set.resolve(resolver);
                (self.keys[key.position()].clone(), set)
            })
            .collect();
        let (store, generation) = (self.scope.store.clone(), self.generation());
        let request = Request::ReplicaMerge(ReplicaMerge { store, generation, hint_for: None, entries });
        if let Call::Pending(future) = self.coordinator.replicas.call(node, request) {
            // Nobody waits: a repair that fails is found again by the next read or by anti-entropy.
            self.coordinator.ports.tasks.spawn(Box::pin(async move {
                let _ = future.await;
            }));
        }
    }

    fn event(&mut self, asked: Asked, answer: Result<Response, CallError>) -> MultiGetEvent {
        let (node, keys) = asked;
        let generation = self.generation();
        match answer {
            Ok(Response::ReplicaGot(got)) if got.sets.len() == keys.len() => {
                let sets = got.sets.into_iter().map(|set| set.map_err(|code| code_error(code, generation)));
                MultiGetEvent::Answered { node, generation, answers: keys.into_iter().zip(sets).collect() }
            }
            Ok(_) => MultiGetEvent::Failed { node, keys, error: ReplicaError::Lost },
            Err(error) => {
                let newest = newest_of(&error, &mut self.document);
                MultiGetEvent::Failed { node, keys, error: replica_error(&error, newest) }
            }
        }
    }

    fn generation(&self) -> Generation {
        self.scope.cluster.generation
    }
}
