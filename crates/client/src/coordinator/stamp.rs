//! Drives the choice of who stamps a write: asks the nodes that [`Stamp`] names, and tells it what they said.
//!
//! A client's library and a node share this loop. What differs is a [`Stampers`]: how each reaches nodes, and whether
//! one of them is itself. One message at a time is awaited in place; only keys that went to several nodes need more.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::{Either, select};
use futures_util::stream::FuturesUnordered;
use model::{Generation, Moment, NodeId, PreferenceList};
use protocol::quorum::{
    Candidates, KeyIndex, Stamp, StampAction, StampActions, StampEntry, StampEvent, StampKeys, StampOptions,
    StampOutcome, StampReply,
};
use runtime::Clock;
use smallvec::{SmallVec, smallvec};
use wire::error::Outcome;
use wire::messages::{Failure, Written};

use crate::peers::CallError;

/// A message to one node.
#[derive(Clone, Debug)]
pub struct Errand {
    /// Who is asked to stamp.
    pub node: NodeId,
    /// The writes.
    pub keys: StampKeys,
    /// How long a connection to it may take to open.
    pub patience: Option<Duration>,
    /// When it was decided, a moment ago.
    pub at: Moment,
    /// For each key the replica that a hint is for, when the own node stamps as a fallback; otherwise none.
    pub targets: SmallVec<[NodeId; 1]>,
}

impl Errand {
    /// How long a connection may take to open for a request that ends at `end`: never to the very end, because what was
    /// not sent by then is certainly not done, and whoever was silent would leave it in doubt.
    pub fn patience_until(&self, end: Moment) -> Duration {
        let left = end.since(self.at) / 10 * 9;
        self.patience.map_or(left, |patience| patience.min(left))
    }
}

/// What a node has answered to the keys of an errand, each once.
pub type Answers = SmallVec<[(KeyIndex, Result<Written, CallError>); 1]>;

/// How a request for stamps reaches nodes: as a client's library does, or as a node does.
pub trait Stampers: Sync {
    /// The newest cluster document as messages are formed under it, with the store.
    type View: Clone + Send + Sync;
    /// Why there is no such view, or why a key must not be begun.
    type Refusal: Clone + Send;

    /// The clock of the request.
    fn clock(&self) -> &Arc<dyn Clock>;

    /// The newest view.
    fn view(&self) -> Result<Self::View, Self::Refusal>;

    /// The generation of a view, and whether the own node may stamp as a fallback.
    fn terms(&self, view: &Self::View) -> (Generation, bool);

    /// Who should hold a key.
    fn preference(&self, view: &Self::View, key: KeyIndex) -> PreferenceList;

    /// Whether the node is better asked last.
    fn is_suspected(&self, node: NodeId) -> bool;

    /// Nodes that are better not asked to replace what they may not know.
    fn lagging(&self) -> SmallVec<[NodeId; 4]>;

    /// The keys that must not be begun, ascending, with the reason; `None` when nobody had to be asked for it.
    fn barred(
        &self,
        view: &Self::View,
        routes: &[(KeyIndex, PreferenceList)],
    ) -> impl Future<Output = Option<Vec<(KeyIndex, Self::Refusal)>>> + Send;

    /// Takes in the cluster document that a refusal carried, and tells its generation if it can be read.
    fn adopt(&self, document: &Bytes) -> Option<Generation>;

    /// The view now; where it takes a moment until a document that was taken in is followed, after that moment.
    fn view_of(
        &self,
        _told: Option<Generation>,
    ) -> impl Future<Output = Result<Self::View, Self::Refusal>> + Send {
        std::future::ready(self.view())
    }

    /// Waits that long, with jitter.
    fn pause(&self, pause: Duration) -> impl Future<Output = ()> + Send;

    /// Splits an errand of several keys into messages that are not too long.
    fn messages(&self, errand: Errand) -> Vec<Errand>;

    /// How many messages may be under way to one node.
    fn messages_at_once(&self) -> usize;

    /// Carries a message out.
    fn carry(&self, view: Self::View, errand: Errand) -> impl Future<Output = (NodeId, Answers)> + Send;
}

/// Why a key has not been written, or may not have been.
#[derive(Debug)]
pub struct Unwritten<R> {
    /// What is known.
    pub outcome: StampOutcome,
    /// What the nodes said that were asked in the last attempt, in that order. Of a key in doubt the last is why.
    pub said: Vec<(NodeId, CallError)>,
    /// Why it was not to be begun.
    pub barred: Option<R>,
}

/// Each key's answer.
pub type Stamped<R> = SmallVec<[Result<Written, Unwritten<R>>; 1]>;

/// Has each of this many keys written by one node. Each has its own answer. `now` is when the request began.
///
/// # Errors
/// When there is no view to begin with.
pub async fn stamp<S: Stampers>(
    stampers: &S,
    keys: usize,
    options: StampOptions,
    now: Moment,
) -> Result<Stamped<S::Refusal>, S::Refusal> {
    let mut desk = Desk::new(stampers, keys, stampers.view()?, (options, now));
    let mut actions = StampActions::new();
    let mut stamp = Stamp::start(keys, options, &mut actions);
    let mut many = None;
    loop {
        while !actions.is_empty() {
            for action in std::mem::take(&mut actions) {
                match action {
                    StampAction::Route { keys, pause } => {
                        desk.route(&keys, pause, &mut stamp, &mut actions).await;
                    }
                    action => desk.act(action),
                }
            }
        }
        if !stamp.is_unanswered() {
            return Ok(desk.into_answers());
        }
        let until = stamp.deadline();
        let answered = match &mut many {
            None if desk.ready.len() == 1 && desk.waiting.is_empty() => {
                let errand = desk.ready.pop().expect("there is one");
                let carried = std::pin::pin!(stampers.carry(desk.view.clone(), errand));
                within(stampers.clock(), carried, until).await
            }
            many => {
                let many = many.get_or_insert_with(FuturesUnordered::new);
                many.extend(desk.ready.drain(..).map(|errand| stampers.carry(desk.view.clone(), errand)));
                let next = async { many.next().await.expect("a key without an answer is under way") };
                let next = std::pin::pin!(next);
                within(stampers.clock(), next, until).await
            }
        };
        match answered {
            Some((node, answers)) => desk.take_in(node, answers, &mut stamp, &mut actions),
            None => desk.elapsed(&mut stamp, &mut actions),
        }
    }
}

/// What the future completes with, unless it is too late first.
async fn within<T>(
    clock: &Arc<dyn Clock>,
    future: Pin<&mut impl Future<Output = T>>,
    until: Option<Moment>,
) -> Option<T> {
    let Some(until) = until else { return Some(future.await) };
    match select(future, clock.sleep_until(until)).await {
        Either::Left((done, _)) => Some(done),
        Either::Right(_) => None,
    }
}

/// The state of a request for stamps, beside its machine.
struct Desk<'a, S: Stampers> {
    stampers: &'a S,
    options: StampOptions,
    view: S::View,
    /// Whether keys were routed by the view.
    routed: bool,
    /// When the machine was told something last.
    now: Moment,
    /// What became of each key.
    ends: SmallVec<[Ending<S::Refusal>; 1]>,
    /// Messages to be sent now.
    ready: SmallVec<[Errand; 1]>,
    /// Messages for nodes that have as many under way as they may; none of these is empty.
    waiting: BTreeMap<NodeId, VecDeque<Errand>>,
    /// Messages under way to each node, where that is limited.
    sent: BTreeMap<NodeId, usize>,
    /// The last document that was taken in: many keys of a message carry the same.
    document: Option<(Bytes, Option<Generation>)>,
}

struct Ending<R> {
    written: Option<Written>,
    outcome: Option<StampOutcome>,
    said: Vec<(NodeId, CallError)>,
    barred: Option<R>,
}

impl<'a, S: Stampers> Desk<'a, S> {
    fn new(stampers: &'a S, keys: usize, view: S::View, (options, now): (StampOptions, Moment)) -> Self {
        let ending = || Ending { written: None, outcome: None, said: Vec::new(), barred: None };
        Desk {
            stampers,
            options,
            view,
            routed: false,
            now,
            ends: (0..keys).map(|_| ending()).collect(),
            ready: SmallVec::new(),
            waiting: BTreeMap::new(),
            sent: BTreeMap::new(),
            document: None,
        }
    }

    fn act(&mut self, action: StampAction) {
        let at = self.now;
        match action {
            StampAction::Route { .. } => unreachable!("candidates are looked up by `route`"),
            StampAction::Ask { node, keys, patience } => {
                self.send(Errand { node, keys, patience, at, targets: SmallVec::new() });
            }
            StampAction::StandIn { node, keys } => {
                let (keys, targets) = keys.into_iter().unzip();
                self.ready.push(Errand { node, keys, patience: None, at, targets });
            }
            StampAction::Answer { key, outcome } => {
                let before = self.ends[key.position()].outcome.replace(outcome);
                assert_eq!(before, None, "key {} is answered twice, now with {outcome:?}", key.position());
            }
        }
    }

    /// Tells the machine the candidates of these keys after a pause, and which of them must not be begun.
    async fn route(
        &mut self,
        keys: &StampKeys,
        pause: Duration,
        stamp: &mut Stamp,
        actions: &mut StampActions,
    ) {
        let stampers = self.stampers;
        if !pause.is_zero() {
            stampers.pause(pause).await;
            self.now = stampers.clock().now();
            keys.iter().for_each(|key| self.ends[key.position()].said.clear());
        }
        let mut barred: Vec<(KeyIndex, S::Refusal)> = Vec::new();
        let mut routes: SmallVec<[(KeyIndex, PreferenceList); 1]> = SmallVec::new();
        let view = if std::mem::replace(&mut self.routed, true) {
            let told = self.document.as_ref().and_then(|(_, generation)| *generation);
            stampers.view_of(told).await.map(|view| self.view = view)
        } else {
            Ok(())
        };
        match view {
            Ok(()) => {
                routes = keys.iter().map(|&key| (key, stampers.preference(&self.view, key))).collect();
                if let Some(asked) = stampers.barred(&self.view, &routes).await {
                    self.now = stampers.clock().now();
                    barred = asked;
                    let ascends = barred.is_sorted_by(|(before, _), (after, _)| before < after);
                    assert!(ascends, "{} keys that must not be begun ascend", barred.len());
                }
            }
            // The store has gone since the request began.
            Err(refusal) => barred.extend(keys.iter().map(|&key| (key, refusal.clone()))),
        }
        let now = self.now;
        if !barred.is_empty() {
            let keys: StampKeys = barred.iter().map(|&(key, _)| key).collect();
            stamp.step(StampEvent::Barred { keys: &keys }, now, actions);
            barred.into_iter().for_each(|(key, refusal)| self.ends[key.position()].barred = Some(refusal));
        }
        let suspected = self.suspected(&routes);
        let lagging = stampers.lagging();
        let candidates = |preference| Candidates { preference, suspected: &suspected, lagging: &lagging };
        let routes: SmallVec<[(KeyIndex, Candidates<'_>); 1]> =
            routes.iter().map(|(key, preference)| (*key, candidates(preference))).collect();
        let (generation, sloppy) = stampers.terms(&self.view);
        stamp.step(StampEvent::Routed { generation, sloppy, routes: &routes }, now, actions);
    }

    /// Those that are suspected of all nodes that may be asked. Each is looked up once.
    fn suspected(&self, routes: &[(KeyIndex, PreferenceList)]) -> SmallVec<[NodeId; 4]> {
        let mut known: SmallVec<[NodeId; 8]> = SmallVec::new();
        let asks = self.options.entry != StampEntry::Passed;
        for (_, preference) in routes.iter().filter(|_| asks) {
            let relays = if self.options.own.is_none() { preference.fallbacks() } else { &[] };
            for &node in preference.replicas().iter().chain(relays) {
                if !known.contains(&node) {
                    known.push(node);
                }
            }
        }
        known.into_iter().filter(|&node| self.stampers.is_suspected(node)).collect()
    }

    /// Sends an errand in as many messages as its length asks for; those that the node has no place for yet wait.
    fn send(&mut self, errand: Errand) {
        let (node, keys) = (errand.node, errand.keys.len());
        assert!(keys > 0, "{node} is asked to stamp nothing");
        if keys == 1 {
            return self.ready.push(errand);
        }
        let at_once = self.stampers.messages_at_once();
        let messages = self.stampers.messages(errand);
        let parts = messages.iter().map(|message| message.keys.len());
        assert_eq!(parts.sum::<usize>(), keys, "each key for {node} is in one message");
        for message in messages {
            let sent = self.sent.entry(node).or_default();
            if *sent < at_once {
                *sent += 1;
                self.ready.push(message);
            } else {
                self.waiting.entry(node).or_default().push_back(message);
            }
        }
    }

    /// Takes in what a node has answered, and sends it what waited.
    fn take_in(&mut self, node: NodeId, answers: Answers, stamp: &mut Stamp, actions: &mut StampActions) {
        if let Some(waiting) = self.waiting.get_mut(&node) {
            let next = waiting.pop_front();
            assert!(next.is_some(), "messages are said to wait for {node}, and none does");
            self.ready.extend(next);
            if waiting.is_empty() {
                self.waiting.remove(&node);
            }
        } else if let Some(sent) = self.sent.get_mut(&node) {
            *sent = sent.saturating_sub(1);
        }
        let mut replies: SmallVec<[(KeyIndex, StampReply); 1]> = SmallVec::with_capacity(answers.len());
        for (key, answer) in answers {
            let reply = match answer {
                Ok(written) => {
                    self.ends[key.position()].written = Some(written);
                    StampReply::Written
                }
                Err(error) => {
                    let reply = self.reply(&error);
                    self.ends[key.position()].said.push((node, error));
                    reply
                }
            };
            replies.push((key, reply));
        }
        self.now = self.stampers.clock().now();
        stamp.step(StampEvent::Replied { node, replies: &replies }, self.now, actions);
    }

    /// What the machine learns of a call that failed.
    fn reply(&mut self, error: &CallError) -> StampReply {
        match error {
            CallError::Unreachable { .. } => StampReply::Unreachable,
            CallError::Broken => StampReply::Lost,
            CallError::Refused(Failure { code, cluster, .. }) => StampReply::Refused {
                certain: code.outcome() == Outcome::Failed,
                retryable: code.is_retryable(),
                ring: cluster.as_ref().and_then(|document| self.learn(document)),
            },
        }
    }

    fn learn(&mut self, document: &Bytes) -> Option<Generation> {
        match &self.document {
            Some((known, generation)) if known == document => *generation,
            _ => {
                let generation = self.stampers.adopt(document);
                self.document = Some((document.clone(), generation));
                generation
            }
        }
    }

    /// Time is over: what was not sent was certainly not done, and what was sent to others may have been.
    fn elapsed(&mut self, stamp: &mut Stamp, actions: &mut StampActions) {
        for (node, messages) in std::mem::take(&mut self.waiting) {
            let late =
                || CallError::Unreachable { reason: "timed out before the request was sent".to_owned() };
            let keys = messages.into_iter().flat_map(|message| message.keys);
            self.take_in(node, keys.map(|key| (key, Err(late()))).collect(), stamp, actions);
        }
        let before = actions.len();
        self.now = self.stampers.clock().now();
        stamp.step(StampEvent::Elapsed, self.now, actions);
        for action in &actions[before..] {
            if let StampAction::Answer { key, outcome: StampOutcome::InDoubt { node } } = action {
                self.ends[key.position()].said.push((*node, CallError::Broken));
            }
        }
    }

    fn into_answers(self) -> Stamped<S::Refusal> {
        let answer = |ending: Ending<S::Refusal>| {
            let Ending { written, outcome, said, barred } = ending;
            let outcome = outcome.expect("the machine answers each key");
            assert!(
                outcome != StampOutcome::Written || written.is_some(),
                "a key was written, and nobody has said so: {said:?}"
            );
            match (outcome, written) {
                (StampOutcome::Written, Some(written)) => Ok(written),
                (outcome, _) => Err(Unwritten { outcome, said, barred }),
            }
        };
        self.ends.into_iter().map(answer).collect()
    }
}

/// The same answer for each key of a message.
pub fn all(keys: &StampKeys, answer: &Result<Written, CallError>) -> Answers {
    match keys.as_slice() {
        [key] => smallvec![(*key, answer.clone())],
        keys => keys.iter().map(|&key| (key, answer.clone())).collect(),
    }
}
