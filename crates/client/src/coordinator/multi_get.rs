//! Drives a multi-get: one message per node, and more where an answer would be too long for one.
//!
//! A replica answers as many keys as fit its message, in the order asked, and at least one; the driver asks at once
//! for the rest. The machine learns of each key when its answer has come.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use model::{Epoch, Generation, Moment, NodeId, PreferenceList, VersionSet};
use protocol::quorum::{GetOutcome, KeyIndex, MultiGet, MultiGetAction, MultiGetEvent, ReplicaError};
use wire::messages::{Failure, Got, ReplicaMerge, Request, RequestOptions, Response, Role};

use super::drive::{Desk, Drive, Ends, Job, every};
use super::get::{is_not_held, outcome_to_answer};
use super::parcels::{entry_bytes, parcels};
use super::{Contents, Coordinator, Direction, Scope, code_error};
use crate::peers::{Call, CallError};

/// Each key's answer, in the order of the keys.
pub type MultiGot = Vec<Result<Got, Failure>>;

/// What a message asked a node.
enum AskedMany {
    /// What it holds of these keys.
    Fetch(NodeId, Vec<KeyIndex>),
    /// To take what was read of these keys, each in its round.
    WriteBack(NodeId, Vec<(KeyIndex, u8)>),
}

struct MultiGetJob {
    keys: Vec<Bytes>,
    ends: Ends<GetOutcome>,
    /// The earliest collection epoch of the answers: that of what is merged from them.
    epoch: Epoch,
    /// Keys of which a node has refused a write-back because a collection round came in between.
    outdated: BTreeSet<KeyIndex>,
    /// Bytes of the longest answer for each key so far.
    key_bytes: Vec<usize>,
    /// Bytes of all of them that may still come.
    bytes_left: usize,
}

impl Coordinator {
    /// Reads many keys, each from its quorum: the answers of [`Self::multi_get_each`], in the order of the keys.
    pub async fn multi_get(
        self: &Arc<Self>,
        scope: &Scope,
        keys: Vec<Bytes>,
        options: &RequestOptions,
        bytes_max: usize,
    ) -> MultiGot {
        let mut answers: Vec<_> = keys.iter().map(|_| None).collect();
        let deliver = &mut |position: usize, answer| answers[position] = Some(answer);
        self.multi_get_each(scope, keys, options, bytes_max, deliver).await;
        every(answers)
    }

    /// Reads many keys, each from its quorum, and hands each answer to `deliver` as soon as it is known, with the key's
    /// position; every key is delivered once.
    ///
    /// `bytes_max` bounds what all answers together may take in memory: keys that were not reached by then fail with
    /// `FrameTooLong`. The answers of several replicas for one key count once. What is under way when the limit is
    /// reached still comes: at most one message per node.
    pub async fn multi_get_each(
        self: &Arc<Self>,
        scope: &Scope,
        keys: Vec<Bytes>,
        options: &RequestOptions,
        bytes_max: usize,
        deliver: &mut (dyn FnMut(usize, Result<Got, Failure>) + Send),
    ) {
        if scope.contents == Contents::Nothing {
            self.found_nothing(scope, keys.first());
            let absent = || Got { replicas_answered: 0, sloppy: false, set: VersionSet::default() };
            return (0..keys.len()).for_each(|position| deliver(position, Ok(absent())));
        }
        let deadline = self.deadline(options);
        let start = |scope: Scope, left: &[(usize, bool)]| {
            let keys = left.iter().map(|&(position, _)| keys[position].clone()).collect();
            self.start_multi_get(scope, keys, options, deadline, bytes_max)
        };
        let resolver = scope.definition.resolver;
        let answer = |position, outcome: Result<GetOutcome, Failure>| {
            deliver(
                position,
                outcome.and_then(|outcome| outcome_to_answer(outcome, resolver, self.ports.clock.wall())),
            );
        };
        let take_ends = |job: &mut MultiGetJob| std::mem::take(&mut job.ends);
        match scope.is_read_only() {
            true => self.drive_whole(scope, keys.len(), start, take_ends, answer).await,
            false => self.drive_many(scope, keys.len(), start, take_ends, answer).await,
        }
    }

    fn start_multi_get(
        self: &Arc<Self>,
        scope: Scope,
        keys: Vec<Bytes>,
        options: &RequestOptions,
        deadline: Moment,
        bytes_max: usize,
    ) -> Drive<MultiGetJob> {
        let routes = keys.iter().map(|key| self.route(&scope, key));
        let (preferences, since): (Vec<PreferenceList>, Vec<Generation>) = routes.unzip();
        let since = since.into_iter().max().unwrap_or_default();
        let suspected = self.suspected_of_all(&scope);
        let quorum = self.quorum_options(&scope, options, Direction::Read, (deadline, since));
        let (own, now) = (self.replicas.own(), self.ports.clock.now());
        let mut actions = Vec::new();
        self.laggards.begin(keys.len());
        let lagging = self.laggards.nodes(now);
        let machine = MultiGet::start(&preferences, &suspected, &lagging, own, quorum, now, &mut actions);
        let key_bytes = vec![0; keys.len()];
        let job = MultiGetJob {
            keys,
            ends: Ends::default(),
            epoch: Epoch(u64::MAX),
            outdated: BTreeSet::new(),
            key_bytes,
            bytes_left: bytes_max,
        };
        Drive::start(job, machine, actions, Desk::new(self.clone(), scope, since))
    }
}

impl Job for MultiGetJob {
    type Machine = MultiGet;
    type Asked = AskedMany;

    fn act(&mut self, action: MultiGetAction, desk: &mut Desk<AskedMany>) {
        match action {
            MultiGetAction::Fetch { node, keys } => self.fetch(node, keys, desk),
            MultiGetAction::WriteBack { node, sets } => {
                desk.found_behind(node, sets.iter().map(|(_, _, set)| set), self.keys.len());
                let (keys, sets): (Vec<_>, Vec<_>) =
                    sets.into_iter().map(|(key, round, set)| ((key, round), (key, set))).unzip();
                let mut keys = keys.into_iter();
                for merge in self.merges(sets, desk) {
                    let keys = keys.by_ref().take(merge.entries.len()).collect();
                    desk.ask(node, AskedMany::WriteBack(node, keys), Request::ReplicaMerge(merge));
                }
                let left = keys.next();
                assert_eq!(left, None, "each key that is written back to {node} is in a message");
            }
            MultiGetAction::Repair { node, sets } => {
                desk.found_behind(node, sets.iter().map(|(_, set)| set), self.keys.len());
                let merges = self.merges(sets, desk).into_iter();
                merges.for_each(|merge| desk.repair(node, Request::ReplicaMerge(merge)));
            }
            MultiGetAction::Answer { outcomes } => {
                for (key, outcome) in outcomes {
                    if self.outdated.contains(&key) && is_not_held(&outcome) {
                        self.ends.outdated.push(key.position());
                    } else {
                        self.ends.answered.push((key.position(), outcome));
                    }
                }
            }
            MultiGetAction::Refresh { keys, .. } => {
                self.ends.refreshed.extend(keys.into_iter().map(|key| (key.position(), false)));
            }
        }
    }

    fn event(
        &mut self,
        asked: AskedMany,
        answer: Result<Response, ReplicaError>,
        desk: &mut Desk<AskedMany>,
    ) -> Option<MultiGetEvent> {
        let generation = desk.scope.cluster.generation;
        let (node, mut keys) = match asked {
            AskedMany::Fetch(node, keys) => (node, keys),
            AskedMany::WriteBack(node, keys) => {
                if matches!(answer, Ok(Response::StaleEpoch(_))) {
                    self.outdated.extend(keys.iter().map(|(key, _)| *key));
                }
                let (answers, generation) = stored(keys, answer, generation);
                return Some(MultiGetEvent::Stored { node, generation, answers });
            }
        };
        match answer {
            Ok(Response::ReplicaGot(got)) if !got.sets.is_empty() && got.sets.len() <= keys.len() => {
                self.epoch = self.epoch.min(got.epoch);
                let generation = got.generation;
                desk.answered_by(node, generation);
                let rest = keys.split_off(got.sets.len());
                for (key, set) in keys.iter().zip(&got.sets) {
                    self.count(*key, set.as_ref().ok());
                }
                if !rest.is_empty() {
                    self.fetch(node, rest, desk);
                }
                let sets = got.sets.into_iter().map(|set| set.map_err(|code| code_error(code, generation)));
                Some(MultiGetEvent::Answered {
                    node,
                    generation,
                    answers: keys.into_iter().zip(sets).collect(),
                })
            }
            Ok(_) => Some(MultiGetEvent::Failed { node, keys, error: ReplicaError::Lost }),
            Err(error) => Some(MultiGetEvent::Failed { node, keys, error }),
        }
    }
}

impl MultiGetJob {
    /// Counts an answer's bytes, as far as no earlier answer for the key was as long.
    fn count(&mut self, key: KeyIndex, set: Option<&VersionSet>) {
        let bytes = set.map_or(0, |set| wire::versions::record_bytes(None, set));
        let longest = &mut self.key_bytes[key.position()];
        self.bytes_left = self.bytes_left.saturating_sub(bytes.saturating_sub(*longest));
        *longest = bytes.max(*longest);
    }

    fn fetch(&mut self, node: NodeId, keys: Vec<KeyIndex>, desk: &mut Desk<AskedMany>) {
        if self.bytes_left == 0 {
            let refused = Failure::new(wire::ErrorCode::FrameTooLong, "");
            return desk.expect(AskedMany::Fetch(node, keys), Call::Ready(Err(CallError::Refused(refused))));
        }
        let mut parts: [Vec<KeyIndex>; 2] = Default::default();
        for key in keys {
            let role = desk.scope.role(node, &self.keys[key.position()]);
            parts[usize::from(role == Role::StandIn)].push(key);
        }
        for (role, keys) in [Role::Replica, Role::StandIn].into_iter().zip(parts) {
            if !keys.is_empty() {
                self.fetch_as(node, role, keys, desk);
            }
        }
    }

    fn fetch_as(&self, node: NodeId, role: Role, keys: Vec<KeyIndex>, desk: &mut Desk<AskedMany>) {
        let wanted = keys.iter().map(|key| self.keys[key.position()].clone()).collect();
        let request = desk.fetch_request(role, wanted);
        desk.ask(node, AskedMany::Fetch(node, keys), request);
    }

    /// Messages that merge the sets, in their order.
    fn merges(&self, sets: Vec<(KeyIndex, VersionSet)>, desk: &Desk<AskedMany>) -> Vec<ReplicaMerge> {
        let resolver = desk.scope.definition.resolver;
        let entries = sets.into_iter().map(|(key, mut set)| {
            set.resolve(resolver);
            (self.keys[key.position()].clone(), set)
        });
        let merge = |entries: Vec<_>| ReplicaMerge {
            since: desk.since,
            store: desk.scope.store.clone(),
            generation: desk.scope.cluster.generation,
            epoch: self.epoch,
            hint_for: None,
            entries: entries.into(),
        };
        parcels(entries, |(key, set)| entry_bytes(key, set)).into_iter().map(merge).collect()
    }
}

/// What a node did with each key that was written back to it.
type Taken = Vec<(KeyIndex, u8, Result<(), ReplicaError>)>;

/// What a node did with each key that was written back to it, and the generation by which it went.
fn stored(
    keys: Vec<(KeyIndex, u8)>,
    answer: Result<Response, ReplicaError>,
    generation: Generation,
) -> (Taken, Generation) {
    match answer {
        Ok(Response::ReplicaMerged(merged)) if merged.outcomes.len() == keys.len() => {
            let generation = merged.generation;
            let outcomes = merged.outcomes.into_iter().map(|outcome| match outcome {
                Ok(_) => Ok(()),
                Err(code) => Err(code_error(code, generation)),
            });
            let taken =
                keys.into_iter().zip(outcomes).map(|((key, round), outcome)| (key, round, outcome)).collect();
            (taken, generation)
        }
        other => {
            let error = other.err().unwrap_or(ReplicaError::Lost);
            (keys.into_iter().map(|(key, round)| (key, round, Err(error))).collect(), generation)
        }
    }
}
