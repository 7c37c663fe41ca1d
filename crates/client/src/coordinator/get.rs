//! Drives a get: asks the nodes that the machine names, hands it their sets, and sends the repairs it wants.

use std::sync::Arc;

use bytes::Bytes;
use model::{Epoch, Moment, NodeId, Resolver, VersionSet, WallMillis};
use protocol::quorum::{
    Candidates, Get, GetAction, GetActions, GetEvent, GetFailure, GetOutcome, ReplicaError,
};
use smallvec::smallvec;
use wire::error::ErrorCode;
use wire::messages::{Failure, Got, ReplicaMerge, Request, RequestOptions, Response};

use super::drive::{Desk, Drive, End, Job};
use super::write::merged;
use super::{Contents, Coordinator, Direction, Scope, code_error, common_refusal, describe};

/// A get under way.
struct GetJob {
    key: Bytes,
    /// The earliest collection epoch of the answers: that of what is merged from them.
    epoch: Epoch,
    /// Whether a node has refused a write-back because a collection round came in between.
    outdated: bool,
    end: Option<End<GetOutcome>>,
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
        if scope.contents == Contents::Nothing {
            self.found_nothing(scope, Some(&key));
            return Ok(Got { replicas_answered: 0, sloppy: false, set: VersionSet::default() });
        }
        let deadline = self.deadline(options);
        let start = |scope: Scope, _| self.start_get(scope, key.clone(), options, deadline);
        let outcome = self.drive_one(scope, false, start, |job| job.end.take()).await?;
        outcome_to_answer(outcome, scope.definition.resolver, self.ports.clock.wall())
    }

    fn start_get(
        self: &Arc<Self>,
        scope: Scope,
        key: Bytes,
        options: &RequestOptions,
        deadline: Moment,
    ) -> Drive<GetJob> {
        let (preference, since) = self.route(&scope, &key);
        let suspected = self.suspected(&preference);
        let now = self.ports.clock.now();
        self.laggards.begin(1);
        let lagging = self.laggards.nodes(now);
        let candidates = Candidates { preference: &preference, suspected: &suspected, lagging: &lagging };
        let quorum = self.quorum_options(&scope, options, Direction::Read, (deadline, since));
        let mut actions = GetActions::new();
        let machine = Get::start(candidates, self.replicas.own(), quorum, now, &mut actions);
        Drive::start(
            GetJob { key, epoch: Epoch(u64::MAX), outdated: false, end: None },
            machine,
            actions,
            Desk::new(self.clone(), scope, since),
        )
    }
}

/// What a node was asked.
#[derive(Clone, Copy)]
enum Asked {
    /// What it holds.
    Fetch(NodeId),
    /// To take what was read, in this round.
    WriteBack(NodeId, u8),
}

impl GetJob {
    fn ends(&mut self, end: End<GetOutcome>) {
        assert!(self.end.is_none(), "a get of {} bytes of key ends twice", self.key.len());
        self.end = Some(end);
    }

    fn merge(&self, mut set: VersionSet, desk: &Desk<Asked>) -> Request {
        set.resolve(desk.scope.definition.resolver);
        Request::ReplicaMerge(ReplicaMerge {
            since: desk.since,
            store: desk.scope.store.clone(),
            generation: desk.scope.cluster.generation,
            epoch: self.epoch,
            hint_for: None,
            entries: smallvec![(self.key.clone(), set)],
        })
    }
}

impl Job for GetJob {
    type Machine = Get;
    type Asked = Asked;

    fn act(&mut self, action: GetAction, desk: &mut Desk<Asked>) {
        match action {
            GetAction::Fetch { node } => {
                let request = desk.fetch_one(node, &self.key);
                desk.ask(node, Asked::Fetch(node), request);
            }
            GetAction::WriteBack { node, round, set } => {
                desk.found_behind(node, std::iter::once(&set), 1);
                let request = self.merge(set, desk);
                desk.ask(node, Asked::WriteBack(node, round), request);
            }
            GetAction::Repair { node, set } => {
                desk.found_behind(node, std::iter::once(&set), 1);
                desk.repair(node, self.merge(set, desk));
            }
            GetAction::Answer(outcome) if self.outdated && is_not_held(&outcome) => self.ends(End::Outdated),
            GetAction::Answer(outcome) => self.ends(End::Answered(outcome)),
            GetAction::Refresh { .. } => self.ends(End::Refresh { possible: false }),
        }
    }

    fn event(
        &mut self,
        asked: Asked,
        answer: Result<Response, ReplicaError>,
        desk: &mut Desk<Asked>,
    ) -> Option<GetEvent> {
        let generation = desk.scope.cluster.generation;
        let node = match asked {
            Asked::Fetch(node) => node,
            Asked::WriteBack(node, round) => {
                self.outdated |= matches!(answer, Ok(Response::StaleEpoch(_)));
                return Some(match answer.and_then(|response| merged(response, generation)) {
                    Ok((_, generation)) => GetEvent::Stored { node, generation, round },
                    Err(error) => GetEvent::NotStored { node, round, error },
                });
            }
        };
        let error = match answer {
            Ok(Response::ReplicaGot(mut got)) => match got.sets.pop() {
                Some(Ok(set)) => {
                    self.epoch = self.epoch.min(got.epoch);
                    let generation = got.generation;
                    desk.answered_by(node, generation);
                    return Some(GetEvent::Answered { node, generation, set });
                }
                Some(Err(code)) => code_error(code, generation),
                None => ReplicaError::Lost,
            },
            Ok(_) => ReplicaError::Lost,
            Err(error) => error,
        };
        Some(GetEvent::Failed { node, error })
    }
}

/// Whether a get has failed because too few replicas took what it has read.
pub(super) fn is_not_held(outcome: &GetOutcome) -> bool {
    matches!(outcome, GetOutcome::Failed { reason: GetFailure::NotHeld { .. }, .. })
}

/// What the caller hears about a get.
pub(super) fn outcome_to_answer(
    outcome: GetOutcome,
    resolver: Resolver,
    now: WallMillis,
) -> Result<Got, Failure> {
    match outcome {
        // The value has expired since the machine has looked at it; whether it is absent too few replicas have said.
        GetOutcome::Done { set, sloppy: true, .. }
            if set.winner().is_none_or(|winner| winner.live(now).is_none()) =>
        {
            let detail = "too few replicas can answer, and the value that was found has just expired";
            Err(Failure::new(ErrorCode::InsufficientReplicas, detail))
        }
        GetOutcome::Done { mut set, answered, sloppy } => {
            set.resolve(resolver);
            Ok(Got { replicas_answered: answered, sloppy, set })
        }
        GetOutcome::Failed { reason, errors } => {
            let what = match reason {
                // Given up as soon as it is certain: how many had answered by then is chance.
                GetFailure::InsufficientReplicas { required, .. } => {
                    format!("too few replicas can answer: {required} are required")
                }
                GetFailure::DeadlinePassed { answered, required } => {
                    format!("{answered} of {required} required replicas answered in time")
                }
                GetFailure::NotHeld { holders, required } => {
                    format!("{holders} of {required} required replicas hold the value that was read")
                }
            };
            match common_refusal(&errors) {
                // Keys are asked for together, and judged together.
                Some(ErrorCode::Forbidden) => {
                    let detail = "the user of this secret has no right to read the key, or another one of the same request";
                    Err(Failure::new(ErrorCode::Forbidden, detail))
                }
                code => {
                    let code = code.unwrap_or(ErrorCode::InsufficientReplicas);
                    Err(Failure::new(code, format!("{what} ({})", describe(&errors))))
                }
            }
        }
    }
}
