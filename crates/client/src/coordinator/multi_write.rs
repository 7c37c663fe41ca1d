//! Drives many puts or deletes that the own node has stamped: one message per node, and more where the writes for a
//! node would be too long for one.

use std::sync::Arc;

use bytes::Bytes;
use model::{Generation, Moment, NodeId, PreferenceList, VersionSet};
use protocol::quorum::{
    KeyIndex, Local, MultiWrite, MultiWriteAction, MultiWriteEvent, Origin, ReplicaError, WriteOutcome,
};
use runtime::BoxFuture;
use wire::messages::{Failure, Merged, ReplicaMerge, Request, RequestOptions, Response};

use super::drive::{Desk, Drive, Ends, Job, every};
use super::parcels::{entry_bytes, parcels};
use super::write::{Acked, outcome_to_answer, own_merge};
use super::{Coordinator, Direction, Scope, code_error};

/// A message's keys, as the machine numbers them, and who was sent it.
type Asked = (NodeId, Vec<KeyIndex>);

struct MultiWriteJob {
    entries: Vec<(Bytes, VersionSet)>,
    ends: Ends<WriteOutcome>,
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
        let mut durable = Some(durable);
        let start = |scope: Scope, left: &[(usize, bool)]| {
            let entries = left.iter().map(|&(at, possible)| (entries[at].clone(), possible)).collect();
            self.start_multi_write(scope, entries, durable.take(), options, deadline)
        };
        let mut answers: Vec<_> = entries.iter().map(|_| None).collect();
        let deliver = |position: usize, outcome: Result<WriteOutcome, Failure>| {
            answers[position] = Some(outcome.and_then(outcome_to_answer));
        };
        self.drive_many(scope, entries.len(), start, |job| std::mem::take(&mut job.ends), deliver).await;
        every(answers)
    }

    fn start_multi_write(
        self: &Arc<Self>,
        scope: Scope,
        entries: Vec<((Bytes, VersionSet), bool)>,
        durable: Option<AllDurable>,
        options: &RequestOptions,
        deadline: Moment,
    ) -> Drive<MultiWriteJob> {
        let own = self.replicas.own().expect("only nodes drive writes");
        let routes = entries.iter().map(|((key, _), _)| scope.route(key));
        let (preferences, since): (Vec<PreferenceList>, Vec<Generation>) = routes.unzip();
        let since = since.into_iter().max().unwrap_or_default();
        // After a refresh the own node's earlier copy remains, and merging it once more confirms it is durable.
        let applied = |preference: &PreferenceList| durable.is_some() && preference.is_writer(own);
        let origins = preferences.iter().zip(&entries).map(|(preference, (_, possible))| {
            let local = if applied(preference) { Local::Applied } else { Local::NotReplica };
            (preference, Origin { own, local, possible: *possible })
        });
        let suspected = self.suspected_of_all(&scope);
        let quorum = self.quorum_options(&scope, options, Direction::Write, (deadline, since));
        let generation = quorum.generation;
        let mut actions = Vec::new();
        let machine = MultiWrite::start(origins, &suspected, quorum, self.ports.clock.now(), &mut actions);
        let keys: Vec<KeyIndex> = (0..)
            .map(KeyIndex)
            .zip(&preferences)
            .filter(|(_, preference)| applied(preference))
            .map(|(key, _)| key)
            .collect();
        let entries = entries.into_iter().map(|(entry, _)| entry).collect();
        let job = MultiWriteJob { entries, ends: Ends::default() };
        let mut drive = Drive::start(job, machine, actions, Desk::new(self.clone(), scope, since));
        if let Some(durable) = durable {
            let merge = own_merge(keys.len(), generation, durable);
            drive.expect((own, keys), merge);
        }
        drive
    }

    /// The nodes of the cluster that are better avoided.
    pub(super) fn suspected_of_all(&self, scope: &Scope) -> Vec<NodeId> {
        let nodes = scope.cluster.nodes.iter().map(|node| node.id);
        nodes.filter(|&node| self.replicas.is_suspected(node)).collect()
    }
}

impl Job for MultiWriteJob {
    type Machine = MultiWrite;
    type Asked = Asked;

    fn act(&mut self, action: MultiWriteAction, desk: &mut Desk<Asked>) {
        match action {
            MultiWriteAction::Send { node, merges, hints } => self.send(node, merges, hints, desk),
            MultiWriteAction::ParkHints { hints } => {
                for (key, target) in hints {
                    let (key, set) = &self.entries[key.position()];
                    desk.coordinator.replicas.park(&desk.scope, target, key, set);
                }
            }
            MultiWriteAction::Answer { outcomes } => {
                self.ends.answered.extend(outcomes.into_iter().map(|(key, end)| (key.position(), end)));
            }
            MultiWriteAction::Refresh { keys, .. } => {
                let keys = keys.into_iter().map(|(key, possible)| (key.position(), possible));
                self.ends.refreshed.extend(keys);
            }
        }
    }

    fn event(
        &mut self,
        (node, keys): Asked,
        answer: Result<Response, ReplicaError>,
        _desk: &mut Desk<Asked>,
    ) -> Option<MultiWriteEvent> {
        let error = match answer {
            Ok(Response::ReplicaMerged(merged)) if merged.outcomes.len() == keys.len() => {
                let generation = merged.generation;
                let outcomes = merged.outcomes.into_iter().map(|outcome| match outcome {
                    Ok(merged) => Ok(merged == Merged::Superseded),
                    Err(code) => Err(code_error(code, generation)),
                });
                let answers = keys.into_iter().zip(outcomes).collect();
                return Some(MultiWriteEvent::Acknowledged { node, generation, answers });
            }
            Ok(_) => ReplicaError::Lost,
            Err(error) => error,
        };
        Some(MultiWriteEvent::Failed { node, keys, error })
    }
}

impl MultiWriteJob {
    /// Messages for the merges, and some for the hints of each target, of which there are rarely any.
    fn send(
        &self,
        node: NodeId,
        merges: Vec<KeyIndex>,
        mut hints: Vec<(KeyIndex, NodeId)>,
        desk: &mut Desk<Asked>,
    ) {
        self.send_merges(node, None, merges, desk);
        hints.sort_by_key(|(key, target)| (*target, *key));
        for group in hints.chunk_by(|a, b| a.1 == b.1) {
            self.send_merges(node, Some(group[0].1), group.iter().map(|(key, _)| *key), desk);
        }
    }

    fn send_merges(
        &self,
        node: NodeId,
        hint_for: Option<NodeId>,
        keys: impl IntoIterator<Item = KeyIndex>,
        desk: &mut Desk<Asked>,
    ) {
        let entry = |key: &KeyIndex| &self.entries[key.position()];
        for keys in parcels(keys, |key| entry_bytes(&entry(key).0, &entry(key).1)) {
            let request = Request::ReplicaMerge(ReplicaMerge {
                since: desk.since,
                store: desk.scope.store.clone(),
                generation: desk.scope.cluster.generation,
                epoch: desk.scope.epoch,
                hint_for,
                entries: keys.iter().map(|key| entry(key).clone()).collect(),
            });
            desk.ask(node, (node, keys), request);
        }
    }
}
