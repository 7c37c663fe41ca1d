//! Drives a put or a delete that the own node has stamped.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use model::{Moment, NodeId, VersionSet};
use protocol::quorum::{
    Candidates, Local, Origin, ReplicaError, Write, WriteAction, WriteActions, WriteEvent, WriteOutcome,
};
use runtime::BoxFuture;
use smallvec::smallvec;
use wire::error::ErrorCode;
use wire::messages::{Failure, Merged, ReplicaMerge, ReplicaMerged, Request, RequestOptions, Response};

use super::calls::{Calls, Came};
use super::get::newest_of;
use super::{
    Coordinator, Direction, REFRESHES_MAX, Scope, code_error, common_refusal, describe, replica_error,
    too_many_refreshes,
};
use crate::peers::{Call, CallError};

/// What the own node did with a write when it stamped it.
pub enum OwnWrite {
    /// Stored it as a replica; `None` when it is durable already, otherwise completes with whether it became so.
    Replica(Option<BoxFuture<'static, bool>>),
    /// Parked it as a fallback, because no replica could be reached.
    Hint(Option<BoxFuture<'static, bool>>),
}

/// A write that enough nodes hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acked {
    /// How many replicas hold it or have a stand-in that does.
    pub acks: u8,
    /// Whether stand-ins were needed to get so many.
    pub sloppy: bool,
}

struct Drive {
    coordinator: Arc<Coordinator>,
    scope: Scope,
    key: Bytes,
    set: VersionSet,
    machine: Write,
    calls: Calls<NodeId>,
    events: VecDeque<WriteEvent>,
    document: Option<Bytes>,
    /// How it ended already when it started: its deadline had passed, or the ring has too few nodes.
    ended: Option<End>,
}

enum End {
    Answered(WriteOutcome),
    Refresh { possible: bool },
}

impl Coordinator {
    /// Brings a stamped write, as the key's whole state, to its quorum.
    ///
    /// # Errors
    /// `InsufficientReplicas` (or what all nodes said) when no node has it or will; `Indeterminate` when some may.
    pub async fn write(
        self: &Arc<Self>,
        scope: &Scope,
        key: Bytes,
        set: VersionSet,
        own: OwnWrite,
        options: &RequestOptions,
    ) -> Result<Acked, Failure> {
        let deadline = self.deadline(options);
        let mut scope = scope.clone();
        let mut possible = matches!(own, OwnWrite::Hint(_));
        let mut own = Some(own);
        for _ in 0..REFRESHES_MAX {
            let mut drive = Drive::start(
                self.clone(),
                scope.clone(),
                key.clone(),
                set.clone(),
                own.take(),
                possible,
                options,
                deadline,
            );
            let end = drive.run().await;
            let document = drive.document.take();
            drive.finish_beside();
            match end {
                End::Answered(outcome) => return outcome_to_answer(outcome),
                End::Refresh { possible: again } => {
                    possible = again;
                    scope =
                        self.refreshed(&scope, document.as_deref()).map_err(|failure| match possible {
                            false => failure,
                            true => Failure::new(ErrorCode::Indeterminate, failure.detail),
                        })?;
                }
            }
        }
        Err(match possible {
            false => too_many_refreshes(),
            true => Failure::new(ErrorCode::Indeterminate, too_many_refreshes().detail),
        })
    }
}

impl Drive {
    #[allow(clippy::too_many_arguments, reason = "everything that one attempt needs")]
    fn start(
        coordinator: Arc<Coordinator>,
        scope: Scope,
        key: Bytes,
        set: VersionSet,
        own_write: Option<OwnWrite>,
        possible: bool,
        options: &RequestOptions,
        deadline: Moment,
    ) -> Self {
        let preference = scope.preference(&key);
        let suspected = coordinator.suspected(&preference);
        let candidates = Candidates { preference: &preference, suspected: &suspected };
        let quorum = coordinator.quorum_options(&scope, options, Direction::Write, deadline);
        let own = coordinator.replicas.own().expect("only nodes drive writes");
        // After a refresh the own node's earlier copy stands, and merging it once more confirms it is durable.
        let applied = matches!(own_write, Some(OwnWrite::Replica(_))) && preference.is_replica(own);
        let local = if applied { Local::Applied } else { Local::NotReplica };
        let mut actions = WriteActions::new();
        let now = coordinator.ports.clock.now();
        let origin = Origin { own, local, possible };
        let machine = Write::start(candidates, origin, quorum, now, &mut actions);
        let mut drive = Drive {
            coordinator,
            scope,
            key,
            set,
            machine,
            calls: Calls::new(),
            events: VecDeque::new(),
            document: None,
            ended: None,
        };
        drive.ended = drive.act(actions);
        if applied && let Some(OwnWrite::Replica(durable)) = own_write {
            drive.await_own(own, durable);
        }
        drive
    }

    fn await_own(&mut self, own: NodeId, durable: Option<BoxFuture<'static, bool>>) {
        let merged =
            || Ok(Response::ReplicaMerged(ReplicaMerged { outcomes: smallvec![Ok(Merged::Changed)] }));
        let call = match durable {
            None => Call::Ready(merged()),
            Some(durable) => Call::Pending(Box::pin(async move {
                match durable.await {
                    true => merged(),
                    false => Err(CallError::Refused(Failure::new(
                        ErrorCode::StorageFailed,
                        "the write could not be made durable here",
                    ))),
                }
            })),
        };
        self.add_call(own, call);
    }

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

    async fn next(&mut self) -> Option<End> {
        let event = match self.events.pop_front() {
            Some(event) => event,
            None => {
                let deadline = self.machine.deadline()?;
                match self.calls.next(&*self.coordinator.ports.clock, deadline).await {
                    Came::Answer(node, answer) => self.event(node, answer),
                    Came::Elapsed => WriteEvent::Elapsed,
                }
            }
        };
        let mut actions = WriteActions::new();
        self.machine.step(event, self.coordinator.ports.clock.now(), &mut actions);
        self.act(actions)
    }

    fn act(&mut self, actions: WriteActions) -> Option<End> {
        let mut end = None;
        for action in actions {
            match action {
                WriteAction::Merge { node } => self.send(node, None),
                WriteAction::SendHint { holder, target } => self.send(holder, Some(target)),
                WriteAction::ParkHint { target } => {
                    self.coordinator.replicas.park(&self.scope, target, &self.key, &self.set);
                }
                WriteAction::Answer(outcome) => end = Some(End::Answered(outcome)),
                WriteAction::Refresh { possible, .. } => end = Some(End::Refresh { possible }),
            }
        }
        end
    }

    fn send(&mut self, node: NodeId, hint_for: Option<NodeId>) {
        let request = Request::ReplicaMerge(ReplicaMerge {
            store: self.scope.store.clone(),
            generation: self.scope.cluster.generation,
            hint_for,
            entries: smallvec![(self.key.clone(), self.set.clone())],
        });
        let call = self.coordinator.replicas.call(node, request);
        self.add_call(node, call);
    }

    fn add_call(&mut self, node: NodeId, call: Call) {
        if let Some((node, answer)) = self.calls.add(node, call) {
            let event = self.event(node, answer);
            self.events.push_back(event);
        }
    }

    fn event(&mut self, node: NodeId, answer: Result<Response, CallError>) -> WriteEvent {
        let generation = self.scope.cluster.generation;
        match answer {
            Ok(Response::ReplicaMerged(merged)) => match merged.outcomes.first() {
                Some(Ok(merged)) => {
                    WriteEvent::Acknowledged { node, generation, superseded: *merged == Merged::Superseded }
                }
                Some(Err(code)) => WriteEvent::Failed { node, error: code_error(*code, generation) },
                None => WriteEvent::Failed { node, error: ReplicaError::Lost },
            },
            Ok(_) => WriteEvent::Failed { node, error: ReplicaError::Lost },
            Err(error) => {
                let newest = newest_of(&error, &mut self.document);
                WriteEvent::Failed { node, error: replica_error(&error, newest) }
            }
        }
    }
}

/// What the caller hears about a write.
pub(super) fn outcome_to_answer(outcome: WriteOutcome) -> Result<Acked, Failure> {
    match outcome {
        WriteOutcome::Done { acks, sloppy, .. } => Ok(Acked { acks, sloppy }),
        WriteOutcome::Failed { required, errors } => Err(Failure::new(
            common_refusal(&errors).unwrap_or(ErrorCode::InsufficientReplicas),
            format!("no node took the write, {required} must ({})", describe(&errors)),
        )),
        WriteOutcome::Indeterminate { acks, required, errors } => Err(Failure::new(
            ErrorCode::Indeterminate,
            format!("{acks} of {required} required replicas acknowledged ({})", describe(&errors)),
        )),
    }
}
