//! Drives a put or a delete that the own node has stamped.

use std::sync::Arc;

use bytes::Bytes;
use model::{Generation, Moment, NodeId, VersionSet};
use protocol::quorum::{
    Candidates, Local, Origin, ReplicaError, Write, WriteAction, WriteActions, WriteEvent, WriteOutcome,
};
use runtime::BoxFuture;
use smallvec::smallvec;
use wire::error::ErrorCode;
use wire::messages::{Failure, Merged, ReplicaMerge, ReplicaMerged, Request, RequestOptions, Response};

use super::drive::{Desk, Drive, End, Job};
use super::{Coordinator, Direction, Scope, code_error, common_refusal, describe};
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
    /// Whether stand-ins were needed to get this many.
    pub sloppy: bool,
}

/// A write under way.
struct WriteJob {
    key: Bytes,
    set: VersionSet,
    end: Option<End<WriteOutcome>>,
}

impl Coordinator {
    /// Brings a stamped write, as the key's whole state, to its quorum; also tells under which generation that was found: a
    /// later one than at first where a replica knew a newer document.
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
    ) -> Result<(Acked, Generation), Failure> {
        let deadline = self.deadline(options);
        let possible = matches!(own, OwnWrite::Hint(_));
        let (mut own, mut under) = (Some(own), scope.cluster.generation);
        let start = |scope: Scope, possible| {
            under = scope.cluster.generation;
            let job = WriteJob { key: key.clone(), set: set.clone(), end: None };
            self.start_write(scope, job, own.take(), possible, options, deadline)
        };
        let outcome = self.drive_one(scope, possible, start, |job| job.end.take()).await?;
        Ok((outcome_to_answer(outcome)?, under))
    }

    fn start_write(
        self: &Arc<Self>,
        scope: Scope,
        job: WriteJob,
        own_write: Option<OwnWrite>,
        possible: bool,
        options: &RequestOptions,
        deadline: Moment,
    ) -> Drive<WriteJob> {
        let (preference, since) = scope.route(&job.key);
        let suspected = self.suspected(&preference);
        let candidates = Candidates { preference: &preference, suspected: &suspected, lagging: &[] };
        let quorum = self.quorum_options(&scope, options, Direction::Write, (deadline, since));
        let own = self.replicas.own().expect("only nodes drive writes");
        // After a refresh the own node's earlier copy remains, and merging it once more confirms it is durable.
        let applied = matches!(own_write, Some(OwnWrite::Replica(_))) && preference.is_writer(own);
        let local = if applied { Local::Applied } else { Local::NotReplica };
        let mut actions = WriteActions::new();
        let origin = Origin { own, local, possible };
        let generation = quorum.generation;
        let machine = Write::start(candidates, origin, quorum, self.ports.clock.now(), &mut actions);
        let mut drive = Drive::start(job, machine, actions, Desk::new(self.clone(), scope, since));
        if applied && let Some(OwnWrite::Replica(durable)) = own_write {
            drive.expect(own, own_merge(1, generation, durable));
        }
        drive
    }
}

impl Job for WriteJob {
    type Machine = Write;
    type Asked = NodeId;

    fn act(&mut self, action: WriteAction, desk: &mut Desk<NodeId>) {
        match action {
            WriteAction::Merge { node } => self.send(node, None, desk),
            WriteAction::SendHint { holder, target } => self.send(holder, Some(target), desk),
            WriteAction::ParkHint { target } => {
                desk.coordinator.replicas.park(&desk.scope, target, &self.key, &self.set);
            }
            WriteAction::Answer(outcome) => self.ends(End::Answered(outcome)),
            WriteAction::Refresh { possible, .. } => self.ends(End::Refresh { possible }),
        }
    }

    fn event(
        &mut self,
        node: NodeId,
        answer: Result<Response, ReplicaError>,
        desk: &mut Desk<NodeId>,
    ) -> Option<WriteEvent> {
        let generation = desk.scope.cluster.generation;
        Some(match answer.and_then(|response| merged(response, generation)) {
            Ok((merged, generation)) => {
                let superseded = merged == Merged::Superseded;
                WriteEvent::Acknowledged { node, generation, superseded }
            }
            Err(error) => WriteEvent::Failed { node, error },
        })
    }
}

impl WriteJob {
    fn ends(&mut self, end: End<WriteOutcome>) {
        assert!(self.end.is_none(), "a write of {} bytes of key ends twice", self.key.len());
        self.end = Some(end);
    }

    fn send(&self, node: NodeId, hint_for: Option<NodeId>, desk: &mut Desk<NodeId>) {
        let request = Request::ReplicaMerge(ReplicaMerge {
            since: desk.since,
            store: desk.scope.store.clone(),
            generation: desk.scope.cluster.generation,
            epoch: desk.scope.epoch,
            hint_for,
            entries: smallvec![(self.key.clone(), self.set.clone())],
        });
        desk.ask(node, node, request);
    }
}

/// What a node did with the one key that it was sent in a request formed under `generation`, and the generation by which
/// it went.
pub(super) fn merged(
    response: Response,
    generation: Generation,
) -> Result<(Merged, Generation), ReplicaError> {
    match response {
        Response::ReplicaMerged(merged) => match merged.outcomes.first() {
            Some(Ok(outcome)) => Ok((*outcome, merged.generation)),
            Some(Err(code)) => Err(code_error(*code, generation)),
            None => Err(ReplicaError::Lost),
        },
        _ => Err(ReplicaError::Lost),
    }
}

/// The own node's answer to merging `keys` keys, which it has done when it stamped them: it comes when they are
/// durable.
pub(super) fn own_merge(
    keys: usize,
    generation: Generation,
    durable: Option<BoxFuture<'static, bool>>,
) -> Call {
    let merged = move || {
        let outcomes = smallvec![Ok(Merged::Changed); keys];
        Response::ReplicaMerged(ReplicaMerged { generation, outcomes })
    };
    match durable {
        None => Call::Ready(Ok(merged())),
        Some(durable) => Call::Pending(Box::pin(async move {
            match durable.await {
                true => Ok(merged()),
                false => Err(CallError::Refused(Failure::new(
                    ErrorCode::StorageFailed,
                    "this node could not make the write durable",
                ))),
            }
        })),
    }
}

/// What the caller hears about a write.
pub(super) fn outcome_to_answer(outcome: WriteOutcome) -> Result<Acked, Failure> {
    match outcome {
        WriteOutcome::Done { acks, sloppy, .. } => Ok(Acked { acks, sloppy }),
        WriteOutcome::Failed { required, errors } => Err(Failure::new(
            common_refusal(&errors).unwrap_or(ErrorCode::InsufficientReplicas),
            format!("no node accepted the write: {required} must acknowledge it ({})", describe(&errors)),
        )),
        WriteOutcome::Indeterminate { acks, required, errors } => Err(Failure::new(
            ErrorCode::Indeterminate,
            format!("{acks} of {required} required replicas acknowledged ({})", describe(&errors)),
        )),
    }
}
