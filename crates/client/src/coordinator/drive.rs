//! The loop around a quorum machine, for every kind of request.
//!
//! ```text
//!   Job::act     machine ── action ──▶ messages to nodes; the outcome, kept for the caller
//!   Job::event   machine ◀── event ─── their answers
//! ```
//!
//! A job says how one machine's actions become messages and their answers events. Everything else is the same for
//! all: what came first is taken in, the machine is woken at its deadline, the caller goes on when it has its
//! outcome, and the rest of the request goes on beside it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select;
use model::{Cluster, Generation, NodeId, VersionSet, WallMillis};
use protocol::quorum::{Behind, Machine, ReplicaError};
use wire::error::ErrorCode;
use wire::messages::{Failure, Request, Response};

use super::calls::Calls;
use super::repairs::read_by_node;
use super::{Contents, Coordinator, REFRESHES_MAX, Scope, document_of, replica_error, too_many_refreshes};
use crate::peers::{Call, CallError};

/// How long a read repair counts as under way at most.
const REPAIR_TIME_MAX: Duration = Duration::from_secs(10);

/// First pause before a request is started again because a collection round came in between; doubles up to the longest.
const AGAIN_PAUSE_MIN: Duration = Duration::from_millis(5);
const AGAIN_PAUSE_MAX: Duration = Duration::from_millis(200);

/// A replica that lacks what was written longer ago than this lacks it for good, until somebody brings it; long beside
/// any write under way, and short beside any absence.
const OLD_MILLIS: u64 = 1000;

fn is_old(set: &VersionSet, now: WallMillis) -> bool {
    set.timestamp_max().wall().0.saturating_add(OLD_MILLIS) < now.0
}

/// What one kind of request does with its machine's actions and its nodes' answers.
pub(super) trait Job: Send + Sized + 'static {
    /// The machine that decides.
    type Machine: Machine<Event: Send, Actions: IntoIterator> + Send;
    /// What is needed to make an event of an answer: above all whose it is.
    type Asked: Unpin + Send;

    /// Carries out one action.
    fn act(&mut self, action: Action<Self>, desk: &mut Desk<Self::Asked>);

    /// What an answer is to the machine; `None` when it is nothing yet, because more was asked for.
    fn event(
        &mut self,
        asked: Self::Asked,
        answer: Result<Response, ReplicaError>,
        desk: &mut Desk<Self::Asked>,
    ) -> Option<Event<Self>>;
}

/// One action of a job's machine.
pub(super) type Action<J> = <<<J as Job>::Machine as Machine>::Actions as IntoIterator>::Item;
/// One event of a job's machine.
pub(super) type Event<J> = <<J as Job>::Machine as Machine>::Event;

/// Where a request's messages leave and its answers come in.
pub(super) struct Desk<T> {
    pub(super) coordinator: Arc<Coordinator>,
    pub(super) scope: Scope,
    /// Since which generation the request's keys lie where its ring says.
    pub(super) since: Generation,
    calls: Calls<T>,
    /// Calls that were answered as they were made.
    answered: VecDeque<(T, Answer)>,
    /// The newer cluster document that a node handed over, if one did.
    newer: Option<Arc<Cluster>>,
}

type Answer = Result<Response, CallError>;

/// A request under way: one attempt of it, under one cluster document.
pub(super) struct Drive<J: Job> {
    pub(super) job: J,
    machine: J::Machine,
    desk: Desk<J::Asked>,
}

impl<T: Unpin> Desk<T> {
    /// Nothing has left yet.
    pub(super) fn new(coordinator: Arc<Coordinator>, scope: Scope, since: Generation) -> Self {
        Desk { coordinator, scope, since, calls: Calls::new(), answered: VecDeque::new(), newer: None }
    }

    /// Sends a request to a node; its answer comes to [`Job::event`] with `asked`.
    pub(super) fn ask(&mut self, node: NodeId, asked: T, request: Request) {
        let call = self.coordinator.replicas.call(node, request);
        self.expect(asked, call);
    }

    /// Awaits a call that somebody else has made.
    pub(super) fn expect(&mut self, asked: T, call: Call) {
        self.answered.extend(self.calls.add(asked, call));
    }

    /// Sends a repair, whose answer nobody waits for, unless as many are under way as may be. What is not sent, or
    /// fails, is found again by the next read or by anti-entropy.
    pub(super) fn repair(&self, node: NodeId, request: Request) {
        let Some(repairing) = self.coordinator.repairs.begin(self.coordinator.options.repairs_max) else {
            return;
        };
        let request = match request {
            Request::ReplicaMerge(merge)
                if self.coordinator.options.is_application && self.scope.cluster.is_closed() =>
            {
                read_by_node(merge)
            }
            request => request,
        };
        let ports = &self.coordinator.ports;
        if let Call::Pending(future) = self.coordinator.replicas.call(node, request) {
            // A node that is silent must not keep its place for ever.
            let timer = ports.clock.sleep(REPAIR_TIME_MAX);
            ports.tasks.spawn(Box::pin(async move {
                select(future, timer).await;
                drop(repairing);
            }));
        }
    }

    /// A node has answered by the document of this generation.
    pub(super) fn answered_by(&self, node: NodeId, generation: Generation) {
        if self.scope.is_read_only() && generation > self.scope.cluster.generation {
            self.coordinator.catch_up(node, &self.scope.cluster);
        }
    }

    /// Remembers that a get of this many keys found a node to lack something of these sets: the next ones ask others
    /// first. What was written a moment ago does not count, because the get may simply have overtaken it.
    pub(super) fn found_behind<'a>(
        &self,
        node: NodeId,
        sets: impl Iterator<Item = &'a VersionSet>,
        of: usize,
    ) {
        let clock = &self.coordinator.ports.clock;
        let wall = clock.wall();
        let keys = sets.filter(|set| is_old(set, wall)).count();
        assert!(keys <= of, "{node} lacks something of {keys} keys of the {of} that were read");
        if keys > 0 {
            self.coordinator.laggards.found_behind(node, Behind { keys, of }, clock.now());
        }
    }

    /// What the machine learns of an answer; a document that came with it is kept for the refresh.
    fn heard(&mut self, answer: Answer) -> Result<Response, ReplicaError> {
        answer.map_err(|error| {
            let newest = match document_of(&error) {
                Some(document) => self.keep(&document),
                None => Generation(0),
            };
            replica_error(&error, newest)
        })
    }

    /// Takes in a document and tells its generation; 0 when it is none.
    fn keep(&mut self, document: &[u8]) -> Generation {
        let told = Cluster::generation_of(document);
        let newest = self.coordinator.replicas.adopt(document, &self.scope.cluster);
        let is_in = newest.generation >= told;
        if self.newer.as_ref().is_none_or(|newer| newer.generation < newest.generation) {
            self.newer = Some(newest);
        }
        if is_in { told } else { Generation(0) }
    }
}

impl<J: Job> Drive<J> {
    /// Carries out a started machine's first actions.
    pub(super) fn start(
        job: J,
        machine: J::Machine,
        actions: <J::Machine as Machine>::Actions,
        desk: Desk<J::Asked>,
    ) -> Self {
        let mut drive = Drive { job, machine, desk };
        drive.act(actions);
        drive
    }

    /// Awaits a call that somebody else has made.
    pub(super) fn expect(&mut self, asked: J::Asked, call: Call) {
        self.desk.expect(asked, call);
    }

    /// Runs until the caller need not wait any more: the job has the outcome.
    pub(super) async fn run(&mut self) {
        while self.machine.is_unanswered() {
            self.next().await;
        }
    }

    /// Runs the rest of an answered request beside the caller. Returns the document that a node handed over.
    pub(super) fn finish_beside(mut self) -> Option<Arc<Cluster>> {
        let newer = self.desk.newer.take();
        if self.machine.deadline().is_some() {
            let tasks = self.desk.coordinator.ports.tasks.clone();
            tasks.spawn(Box::pin(async move {
                while self.machine.deadline().is_some() {
                    self.next().await;
                }
            }));
        }
        newer
    }

    /// Takes in what comes next.
    async fn next(&mut self) {
        let (asked, answer) = match self.desk.answered.pop_front() {
            Some(answered) => answered,
            None => {
                let deadline = self.machine.deadline();
                let deadline = deadline.expect("a machine does not finish without an answer");
                match self.desk.calls.next(&*self.desk.coordinator.ports.clock, deadline).await {
                    Some(answered) => answered,
                    None => return self.step(J::Machine::ELAPSED),
                }
            }
        };
        let heard = self.desk.heard(answer);
        if let Some(event) = self.job.event(asked, heard, &mut self.desk) {
            self.step(event);
        }
    }

    fn step(&mut self, event: Event<J>) {
        let mut actions = <J::Machine as Machine>::Actions::default();
        let waited = self.machine.is_unanswered();
        self.machine.step(event, self.desk.coordinator.ports.clock.now(), &mut actions);
        let waits = self.machine.is_unanswered();
        assert!(waited || !waits, "a request that was answered waits for an answer again");
        debug_assert!(!waits || self.machine.deadline().is_some(), "a request that waits has a deadline");
        self.act(actions);
    }

    fn act(&mut self, actions: <J::Machine as Machine>::Actions) {
        for action in actions {
            self.job.act(action, &mut self.desk);
        }
    }
}

/// How one attempt of a request for one key ended.
pub(super) enum End<T> {
    /// With this outcome.
    Answered(T),
    /// With nothing, because a node has refused what was read before a collection round: started again, the request reads
    /// anew. From its deadline on it ends in another way.
    Outdated,
    /// It shall be started again; the write may have been applied somewhere if `possible`.
    Refresh { possible: bool },
}

/// How one attempt of a request for many keys ended, by the attempt's own positions.
pub(super) struct Ends<T> {
    pub(super) answered: Vec<(usize, T)>,
    /// Keys of which a node has refused what was read before a collection round: see [`End::Outdated`].
    pub(super) outdated: Vec<usize>,
    /// Keys to be started again, each with whether its write may have been applied somewhere.
    pub(super) refreshed: Vec<(usize, bool)>,
}

impl<T> Default for Ends<T> {
    fn default() -> Self {
        Ends { answered: Vec::new(), outdated: Vec::new(), refreshed: Vec::new() }
    }
}

impl Coordinator {
    /// Runs attempts of a request for one key, each under a newer document than the last, until one has an outcome.
    /// `start` is told the scope and whether an earlier attempt may have been applied.
    pub(super) async fn drive_one<J: Job, T>(
        self: &Arc<Self>,
        scope: &Scope,
        mut possible: bool,
        mut start: impl FnMut(Scope, bool) -> Drive<J>,
        take_end: impl Fn(&mut J) -> Option<End<T>>,
    ) -> Result<T, Failure> {
        let mut scope = scope.clone();
        let (mut refreshes, mut pause) = (0, AGAIN_PAUSE_MIN);
        while refreshes < REFRESHES_MAX {
            let mut drive = start(scope.clone(), possible);
            drive.run().await;
            let end = take_end(&mut drive.job);
            let newer = drive.finish_beside();
            match end.expect("an answered machine has said how") {
                End::Answered(outcome) => return Ok(outcome),
                End::Outdated => self.rest(&mut pause).await,
                End::Refresh { possible: again } => {
                    assert!(
                        again || !possible,
                        "what may have been applied may have been after a refresh, too"
                    );
                    (possible, refreshes) = (again, refreshes + 1);
                    let refreshed = self.refreshed(&scope, newer);
                    scope = refreshed.map_err(|failure| unsettled(failure, possible))?;
                }
            }
        }
        Err(unsettled(too_many_refreshes(), possible))
    }

    /// As [`Self::drive_one`] for `count` keys, each with its own outcome, which `deliver` is handed as soon as it
    /// is known; `start` is told which keys are left, each with whether it may have been applied.
    pub(super) async fn drive_many<J: Job, T>(
        self: &Arc<Self>,
        scope: &Scope,
        count: usize,
        mut start: impl FnMut(Scope, &[(usize, bool)]) -> Drive<J>,
        take_ends: impl Fn(&mut J) -> Ends<T>,
        mut deliver: impl FnMut(usize, Result<T, Failure>),
    ) {
        let mut scope = scope.clone();
        let mut left: Vec<(usize, bool)> = (0..count).map(|position| (position, false)).collect();
        let (mut refreshes, mut pause) = (0, AGAIN_PAUSE_MIN);
        while refreshes < REFRESHES_MAX {
            let mut drive = start(scope.clone(), &left);
            let (mut outdated, mut refreshed, mut answered) = (Vec::new(), Vec::new(), 0);
            loop {
                let mut ends = take_ends(&mut drive.job);
                answered += ends.answered.len();
                ends.answered.into_iter().for_each(|(key, outcome)| deliver(left[key].0, Ok(outcome)));
                outdated.append(&mut ends.outdated);
                refreshed.append(&mut ends.refreshed);
                if !drive.machine.is_unanswered() {
                    break;
                }
                drive.next().await;
            }
            let newer = drive.finish_beside();
            let again = outdated.len() + refreshed.len();
            assert_eq!(
                answered + again,
                left.len(),
                "each key ends once: {answered} so, {again} begin again"
            );
            let undone = refreshed.iter().find(|(key, possible)| left[*key].1 && !possible);
            assert_eq!(undone, None, "what may have been applied may have been after a refresh, too");
            let (refreshes_wanted, rests) = (!refreshed.is_empty(), !outdated.is_empty());
            let again = outdated.into_iter().map(|key| (key, false)).chain(refreshed);
            left = again.map(|(key, possible)| (left[key].0, possible)).collect();
            if left.is_empty() {
                return;
            }
            if rests {
                self.rest(&mut pause).await;
            }
            if !refreshes_wanted {
                continue;
            }
            refreshes += 1;
            match self.refreshed(&scope, newer) {
                Ok(newer) => scope = newer,
                Err(failure) => {
                    for (position, possible) in left {
                        deliver(position, Err(unsettled(failure.clone(), possible)));
                    }
                    return;
                }
            }
        }
        for (position, possible) in left {
            deliver(position, Err(unsettled(too_many_refreshes(), possible)));
        }
    }

    /// As [`Self::drive_many`], of a request whose keys are answered under one document, all of them: nothing is delivered
    /// before every key has its outcome, and what one replica asks for anew is begun anew for all.
    pub(super) async fn drive_whole<J: Job, T>(
        self: &Arc<Self>,
        scope: &Scope,
        count: usize,
        mut start: impl FnMut(Scope, &[(usize, bool)]) -> Drive<J>,
        take_ends: impl Fn(&mut J) -> Ends<T>,
        mut deliver: impl FnMut(usize, Result<T, Failure>),
    ) {
        let all: Vec<(usize, bool)> = (0..count).map(|position| (position, false)).collect();
        let mut scope = scope.clone();
        let mut failure = too_many_refreshes();
        for _ in 0..REFRESHES_MAX {
            let mut drive = start(scope.clone(), &all);
            let (mut answered, mut again) = (Vec::with_capacity(count), false);
            loop {
                let ends = take_ends(&mut drive.job);
                answered.extend(ends.answered);
                again |= !ends.refreshed.is_empty() || !ends.outdated.is_empty();
                if again || !drive.machine.is_unanswered() {
                    break;
                }
                drive.next().await;
            }
            if !again {
                assert_eq!(
                    answered.len(),
                    count,
                    "each key of a request that is answered whole has an outcome"
                );
                answered.into_iter().for_each(|(key, outcome)| deliver(key, Ok(outcome)));
                drive.finish_beside();
                return;
            }
            // What is left of it is of no use to anybody.
            match self.refreshed(&scope, drive.desk.newer.clone()) {
                Ok(newer) => scope = newer,
                Err(refused) => {
                    failure = refused;
                    break;
                }
            }
        }
        (0..count).for_each(|position| deliver(position, Err(failure.clone())));
    }

    /// Waits before a request is started again: a round takes a few messages to be over.
    async fn rest(&self, pause: &mut Duration) {
        self.ports.clock.sleep(*pause).await;
        *pause = (*pause * 2).min(AGAIN_PAUSE_MAX);
    }

    /// The scope under a newer document.
    fn refreshed(&self, scope: &Scope, newer: Option<Arc<Cluster>>) -> Result<Scope, Failure> {
        let cluster = newer.unwrap_or_else(|| self.replicas.adopt(&[], &scope.cluster));
        if cluster.generation <= scope.cluster.generation {
            return Err(Failure::new(
                ErrorCode::StaleGeneration,
                "a replica requires a newer cluster document but sent none",
            ));
        }
        if let Some(store) = cluster.read_only(&scope.store).filter(|_| scope.is_read_only()) {
            return scope.under(&cluster, store);
        }
        let Some(definition) = cluster.store(scope.store.as_str()) else {
            return Err(Failure::new(
                ErrorCode::UnknownStore,
                format!(
                    "store {} no longer exists in generation {} of the cluster",
                    scope.store, cluster.generation.0
                ),
            ));
        };
        Ok(Scope {
            definition: Arc::new(definition.clone()),
            store: scope.store.clone(),
            contents: Contents::Versions,
            cluster: cluster.clone(),
            epoch: scope.epoch,
        })
    }
}

/// Answers that have all been delivered.
pub(super) fn every<T>(answers: Vec<Option<T>>) -> Vec<T> {
    answers.into_iter().map(|answer| answer.expect("every key has an outcome or a failure")).collect()
}

/// What the caller learns of a request that could not be started again.
fn unsettled(failure: Failure, possible: bool) -> Failure {
    if possible { Failure::new(ErrorCode::Indeterminate, failure.detail) } else { failure }
}
