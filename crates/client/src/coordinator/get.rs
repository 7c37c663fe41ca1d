//! Drives a get: asks the nodes that the machine names, hands it their sets, and sends the repairs it wants.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use model::{Moment, NodeId, VersionSet};
use protocol::quorum::{Candidates, Get, GetAction, GetActions, GetEvent, GetFailure, GetOutcome};
use smallvec::smallvec;
use wire::error::ErrorCode;
use wire::messages::{Failure, Got, ReplicaGet, ReplicaMerge, Request, RequestOptions, Response};

use super::calls::{Calls, Came};
use super::{
    Coordinator, Direction, REFRESHES_MAX, Scope, code_error, common_refusal, describe, document_of,
    replica_error, too_many_refreshes,
};
use crate::peers::{Call, CallError};

/// A get under way.
struct Drive {
    coordinator: Arc<Coordinator>,
    scope: Scope,
    key: Bytes,
    machine: Get,
    calls: Calls<NodeId>,
    events: VecDeque<GetEvent>,
    document: Option<Bytes>,
    /// How it ended already when it started: its deadline had passed, or the ring has too few nodes.
    ended: Option<End>,
}

/// How a drive ended for its caller.
enum End {
    Answered(GetOutcome),
    Refresh,
}

impl Coordinator {
    /// Reads a key from its quorum; what the store's resolver drops is dropped.
    ///
    /// # Errors
    /// `InsufficientReplicas` when too few nodes answered, or what all of them said. A get has no other effect than
    /// repair, so it may always be tried again.
    pub async fn get(
        self: &Arc<Self>,
        scope: &Scope,
        key: Bytes,
        options: &RequestOptions,
    ) -> Result<Got, Failure> {
        let deadline = self.deadline(options);
        let mut scope = scope.clone();
        for _ in 0..REFRESHES_MAX {
            let resolver = scope.definition.resolver;
            let mut drive = Drive::start(self.clone(), scope.clone(), key.clone(), options, deadline);
            let end = drive.run().await;
            let document = drive.document.take();
            drive.finish_beside();
            match end {
                End::Answered(outcome) => {
                    return outcome_to_answer(outcome).map(|mut got| {
                        got.set.resolve(resolver);
                        got
                    });
                }
                End::Refresh => scope = self.refreshed(&scope, document.as_deref())?,
            }
        }
        Err(too_many_refreshes())
    }

    /// The scope under the newest document.
    pub(super) fn refreshed(&self, scope: &Scope, document: Option<&[u8]>) -> Result<Scope, Failure> {
        let cluster = self.replicas.adopt(document.unwrap_or_default());
        if cluster.generation <= scope.cluster.generation {
            return Err(Failure::new(
                ErrorCode::StaleGeneration,
                "a replica asks for a newer cluster document, but handed none over that is newer",
            ));
        }
        let Some(definition) = cluster.store(scope.store.as_str()) else {
            return Err(Failure::new(
                ErrorCode::UnknownStore,
                format!("store {} is gone as of generation {}", scope.store, cluster.generation.0),
            ));
        };
        Ok(Scope {
            definition: Arc::new(definition.clone()),
            store: scope.store.clone(),
            cluster: cluster.clone(),
        })
    }
}

impl Drive {
    fn start(
        coordinator: Arc<Coordinator>,
        scope: Scope,
        key: Bytes,
        options: &RequestOptions,
        deadline: Moment,
    ) -> Self {
        let preference = scope.preference(&key);
        let suspected = coordinator.suspected(&preference);
        let candidates = Candidates { preference: &preference, suspected: &suspected };
        let quorum = coordinator.quorum_options(&scope, options, Direction::Read, deadline);
        let mut actions = GetActions::new();
        let now = coordinator.ports.clock.now();
        let machine = Get::start(candidates, coordinator.replicas.own(), quorum, now, &mut actions);
        let mut drive = Drive {
            coordinator,
            scope,
            key,
            machine,
            calls: Calls::new(),
            events: VecDeque::new(),
            document: None,
            ended: None,
        };
        drive.ended = drive.act(actions);
        drive
    }

    /// Runs until the caller has its answer.
    async fn run(&mut self) -> End {
        if let Some(ended) = self.ended.take() {
            return ended;
        }
        loop {
            if let Some(end) = self.next().await {
                return end;
            }
            assert!(self.machine.deadline().is_some(), "a machine does not finish without an answer");
        }
    }

    /// Runs the rest of an answered request beside the caller.
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

    /// Takes in one event.
    async fn next(&mut self) -> Option<End> {
        let event = match self.events.pop_front() {
            Some(event) => event,
            None => {
                let deadline = self.machine.deadline()?;
                match self.calls.next(&*self.coordinator.ports.clock, deadline).await {
                    Came::Answer(node, answer) => self.event(node, answer),
                    Came::Elapsed => GetEvent::Elapsed,
                }
            }
        };
        let mut actions = GetActions::new();
        self.machine.step(event, self.coordinator.ports.clock.now(), &mut actions);
        self.act(actions)
    }

    fn act(&mut self, actions: GetActions) -> Option<End> {
        let mut end = None;
        for action in actions {
            match action {
                GetAction::Fetch { node } => {
                    let request = Request::ReplicaGet(ReplicaGet {
                        store: self.scope.store.clone(),
                        generation: self.scope.cluster.generation,
                        keys: smallvec![self.key.clone()],
                    });
                    let call = self.coordinator.replicas.call(node, request);
                    if let Some((node, answer)) = self.calls.add(node, call) {
                        let event = self.event(node, answer);
                        self.events.push_back(event);
                    }
                }
                GetAction::Repair { node, set } => self.repair(node, set),
                GetAction::Answer(outcome) => end = Some(End::Answered(outcome)),
                GetAction::Refresh { .. } => end = Some(End::Refresh),
            }
        }
        end
    }

    fn repair(&self, node: NodeId, mut set: VersionSet) {
        set.resolve(self.scope.definition.resolver);
        let request = Request::ReplicaMerge(ReplicaMerge {
            store: self.scope.store.clone(),
            generation: self.scope.cluster.generation,
            hint_for: None,
            entries: smallvec![(self.key.clone(), set)],
        });
        if let Call::Pending(future) = self.coordinator.replicas.call(node, request) {
            // Nobody waits: a repair that fails is found again by the next read or by anti-entropy.
            self.coordinator.ports.tasks.spawn(Box::pin(async move {
                let _ = future.await;
            }));
        }
    }

    fn event(&mut self, node: NodeId, answer: Result<Response, CallError>) -> GetEvent {
        let generation = self.scope.cluster.generation;
        match answer {
            Ok(Response::ReplicaGot(mut got)) => match got.sets.pop() {
                Some(Ok(set)) => GetEvent::Answered { node, generation, set },
                Some(Err(code)) => GetEvent::Failed { node, error: code_error(code, generation) },
                None => GetEvent::Failed { node, error: protocol::quorum::ReplicaError::Lost },
            },
            Ok(_) => GetEvent::Failed { node, error: protocol::quorum::ReplicaError::Lost },
            Err(error) => {
                let newest = newest_of(&error, &mut self.document);
                GetEvent::Failed { node, error: replica_error(&error, newest) }
            }
        }
    }
}

/// The generation of the document that an error carries; the document is kept for the refresh.
pub(super) fn newest_of(error: &CallError, kept: &mut Option<Bytes>) -> model::Generation {
    let Some(document) = document_of(error) else { return model::Generation(0) };
    let generation =
        serde_json::from_slice::<model::Cluster>(&document).map_or(model::Generation(0), |c| c.generation);
    *kept = Some(document);
    generation
}

/// What the caller hears about a get.
pub(super) fn outcome_to_answer(outcome: GetOutcome) -> Result<Got, Failure> {
    match outcome {
        GetOutcome::Done { set, answered, sloppy } => Ok(Got { replicas_answered: answered, sloppy, set }),
        GetOutcome::Failed { reason, errors } => {
            let (GetFailure::InsufficientReplicas { answered, required }
            | GetFailure::DeadlinePassed { answered, required }) = reason;
            let code = common_refusal(&errors).unwrap_or(ErrorCode::InsufficientReplicas);
            Err(Failure::new(
                code,
                format!("{answered} of {required} required replicas answered ({})", describe(&errors)),
            ))
        }
    }
}
