//! Writes of one key or many, as a node has them stamped: by itself, by another replica, or as a hint.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use client::coordinator::{Answers, Errand, Stamped, Stampers, Unwritten, all, left_at, parcels, stamp};
use client::peers::{Call, CallError};
use futures_util::{StreamExt, stream};
use model::{Cluster, Generation, Moment, NodeId, PreferenceList, Value};
use protocol::quorum::{KeyIndex, StampEntry, StampOptions, StampOutcome};
use runtime::Clock;
use smallvec::{SmallVec, smallvec};
use wire::error::ErrorCode;
use wire::messages::{
    Delete, DeleteEntry, Failure, MultiDelete, MultiPut, Ping, Put, PutEntry, Request, RequestOptions,
    Response,
};

use super::{ADOPT_PATIENCE, Front};
use crate::stores::{LocalStore, WriteOrder};
use crate::view::View;

/// Hints that are stamped and driven one by one at the same time: enough to hide the way, too few to flood a node.
const HINTS_TOGETHER: usize = 256;

/// A view with one of its stores.
type At = (Arc<View>, Arc<LocalStore>);

/// How long a node that is suspected may take to answer a ping before writes go elsewhere, where this node can stand in.
const SIGN_OF_LIFE: Duration = Duration::from_millis(100);
/// The same where only replicas may stamp: suspicion is often wrong.
const SIGN_OF_LIFE_NEEDED: Duration = Duration::from_secs(1);

/// How soon a node that judges conditions is tried again.
const REACHED_AGAIN: Duration = Duration::from_millis(20);

/// Writes on their way.
struct Orders<'a> {
    front: &'a Front,
    store: &'a str,
    orders: &'a [(Bytes, WriteOrder)],
    options: &'a RequestOptions,
    entry: StampEntry,
    end: Moment,
    /// The generation under which their conditions were judged, where that was done here.
    judged: Option<Generation>,
}

impl Front {
    /// Has each of these written by one node. Each has its own answer, in their order.
    ///
    /// # Errors
    /// As a whole only `UnknownStore`.
    pub(super) async fn stamp(
        &self,
        store: &str,
        orders: &[(Bytes, WriteOrder)],
        options: &RequestOptions,
        (entry, judged): (StampEntry, Option<Generation>),
    ) -> Result<Stamped<Failure>, Failure> {
        let now = self.clock().now();
        let end = now.after(self.coordinator.span(options));
        let settings = StampOptions { own: Some(self.replica.node()), entry, retries: 0, deadline: end };
        let sent = Orders { front: self, store, orders, options, entry, end, judged };
        stamp(&sent, orders.len(), settings, now).await
    }

    /// What the caller is told of a write that was not done, or may not have been.
    pub(super) fn failure(&self, unwritten: Unwritten<Failure>) -> Failure {
        let Unwritten { outcome, mut said, barred } = unwritten;
        if let Some(refusal) = barred {
            return refusal;
        }
        let view = self.replica.view().get();
        match outcome {
            StampOutcome::NotHere => self.not_here(&view),
            StampOutcome::Exhausted => {
                let own = self.replica.node();
                let reason = |(node, error): &(NodeId, CallError)| match error {
                    CallError::Refused(failure) if *node == own => format!("this node: {failure}"),
                    error => format!("{}: {error}", view.describe(*node)),
                };
                let reasons: Vec<String> = said.iter().map(reason).collect();
                let reasons = if said.is_empty() { "timed out".to_owned() } else { reasons.join("; ") };
                let detail = format!("no replica of the key could be reached ({reasons})");
                Failure::new(ErrorCode::InsufficientReplicas, detail)
            }
            StampOutcome::Written | StampOutcome::Refused | StampOutcome::InDoubt { .. } => {
                match said.pop().expect("a node has said why, or was silent") {
                    (_, CallError::Refused(failure)) => failure,
                    (node, _) => super::unknown(&view, node),
                }
            }
        }
    }
}

impl Stampers for Orders<'_> {
    type View = At;
    type Refusal = Failure;

    fn clock(&self) -> &Arc<dyn Clock> {
        self.front.clock()
    }

    fn view(&self) -> Result<At, Failure> {
        self.front.current(self.store)
    }

    fn terms(&self, (view, store): &At) -> (Generation, bool) {
        (view.cluster().generation, self.options.sloppy.unwrap_or(store.definition().sloppy))
    }

    fn preference(&self, (view, store): &At, key: KeyIndex) -> PreferenceList {
        view.route(store, &self.orders[key.position()].0).preference
    }

    /// Of writes whose condition was judged a node that is only suspected keeps its place, and is pinged before it is sent
    /// one. If it lives, it judges conditions for others at the same time.
    fn is_suspected(&self, node: NodeId) -> bool {
        match self.keeps_to_first() {
            true => self.front.is_gone(node),
            false => self.front.is_suspected(node),
        }
    }

    fn lagging(&self) -> SmallVec<[NodeId; 4]> {
        SmallVec::new()
    }

    /// Writes that this node could not bring to their quorums are not begun, here or elsewhere.
    async fn barred(
        &self,
        (view, store): &At,
        routes: &[(KeyIndex, PreferenceList)],
    ) -> Option<Vec<(KeyIndex, Failure)>> {
        let front = self.front;
        if routes.iter().all(|(_, preference)| front.reaches(store, preference, self.options)) {
            return None;
        }
        let options = left_at(front.clock().now(), self.end, self.options);
        let asked: Vec<&PreferenceList> = routes.iter().map(|(_, preference)| preference).collect();
        let out_of_reach = front.coordinator.out_of_reach(front.scope(view, store), asked, &options).await;
        let refusal = |position: usize| {
            let (key, preference) = &routes[position];
            (*key, front.isolated(store, preference, &options))
        };
        Some(out_of_reach.into_iter().map(refusal).collect())
    }

    fn adopt(&self, document: &Bytes) -> Option<Generation> {
        let cluster = serde_json::from_slice::<Cluster>(document).ok()?;
        let told = cluster.generation;
        if told > self.front.replica.view().generation() {
            (self.front.adopt)(cluster);
        }
        Some(told)
    }

    async fn view_of(&self, told: Option<Generation>) -> Result<At, Failure> {
        if let Some(told) = told {
            let current = self.front.replica.view();
            current.reached(told, &**self.clock(), ADOPT_PATIENCE).await;
        }
        self.view()
    }

    async fn pause(&self, pause: Duration) {
        self.front.pause(pause).await;
    }

    /// Puts and deletes go apart.
    fn messages(&self, errand: Errand) -> Vec<Errand> {
        if errand.node == self.front.replica.node() {
            return vec![errand];
        }
        let deletes = |key: &KeyIndex| self.orders[key.position()].1.value == Value::Tombstone;
        let (deletes, puts): (Vec<_>, Vec<_>) = errand.keys.iter().copied().partition(deletes);
        let bytes = |key: &KeyIndex| order_bytes(&self.orders[key.position()]);
        let messages = [puts, deletes].into_iter().flat_map(|keys| parcels(keys, bytes));
        messages.map(|keys| Errand { keys: keys.into(), ..errand.clone() }).collect()
    }

    fn messages_at_once(&self) -> usize {
        usize::MAX
    }

    async fn carry(&self, at: At, errand: Errand) -> (NodeId, Answers) {
        if let Some(outdated) = self.judged_before(&at, &errand) {
            return (errand.node, all(&errand.keys, &Err(CallError::Refused(outdated))));
        }
        let own = errand.node == self.front.replica.node();
        let answers = match (own, errand.targets.is_empty()) {
            (false, _) => self.pass_on(&at, &errand).await,
            (true, true) => self.write_here(&at, &errand).await,
            (true, false) => self.stand_in(&at, &errand).await,
        };
        (errand.node, answers)
    }
}

impl Orders<'_> {
    /// The request's options with what is left of its time.
    fn left(&self, errand: &Errand) -> RequestOptions {
        left_at(errand.at, self.end, self.options)
    }

    /// Whether it matters that no other node stamps beside the first replica. A deletion that Redis clients ask for is worth
    /// no wait: whoever stamps it, it takes away what its client has seen.
    fn keeps_to_first(&self) -> bool {
        self.entry == StampEntry::Exclusive && self.judged.is_some()
    }

    /// What was judged under a document from before a partition had its present replicas, in their present order, is judged
    /// again: another node may have stamped since.
    fn judged_before(&self, (view, store): &At, errand: &Errand) -> Option<Failure> {
        let judged = self.judged?;
        let place = |key: &KeyIndex| view.partition(store, &self.orders[key.position()].0).0;
        let since = errand.keys.iter().map(|key| view.accepted_since(store, place(key).partition)).max()?;
        (since > judged).then(|| {
            let detail =
                "the replicas of the key changed after its condition was judged: nothing was written";
            Failure::new(ErrorCode::Obsolete, detail)
        })
    }

    async fn write_here(&self, (view, store): &At, errand: &Errand) -> Answers {
        let (front, options) = (self.front, self.left(errand));
        if let [key] = errand.keys[..] {
            let (name, order) = &self.orders[key.position()];
            let written = front.write_here(view, store, name, order.clone(), &options).await;
            front.add_own_stamped(usize::from(written.is_ok()), self.entry);
            return smallvec![(key, written.map_err(CallError::Refused))];
        }
        let positions: Vec<usize> = errand.keys.iter().map(|key| key.position()).collect();
        let written = front.write_many_here(view, store, self.orders, &positions, &options).await;
        front.add_own_stamped(written.iter().filter(|answer| answer.is_ok()).count(), self.entry);
        let written = written.into_iter().map(|answer| answer.map_err(CallError::Refused));
        errand.keys.iter().copied().zip(written).collect()
    }

    async fn stand_in(&self, (view, store): &At, errand: &Errand) -> Answers {
        let options = &self.left(errand);
        let hints: Vec<(KeyIndex, NodeId)> =
            errand.keys.iter().copied().zip(errand.targets.iter().copied()).collect();
        let hints = hints.into_iter().map(|(key, target)| async move {
            let (name, order) = &self.orders[key.position()];
            let written =
                self.front.write_as_fallback(view, store, target, name, order.clone(), options).await;
            (key, written.map_err(CallError::Refused))
        });
        stream::iter(hints).buffered(HINTS_TOGETHER).collect::<Vec<_>>().await.into()
    }

    /// Has another node write. One that judges conditions is tried again for a while: that a link broke does not say that
    /// the node judges for nobody.
    async fn pass_on(&self, at: &At, errand: &Errand) -> Answers {
        let can_stand_in = self.entry == StampEntry::Client && self.terms(at).1;
        let sign = if can_stand_in { SIGN_OF_LIFE } else { SIGN_OF_LIFE_NEEDED };
        let sign = sign.min(errand.patience_until(self.end));
        let until = self.clock().now().after(sign);
        loop {
            let answers = self.try_to_pass_on(at, errand, sign).await;
            let reached = |(_, answer): &(KeyIndex, _)| !matches!(answer, Err(CallError::Unreachable { .. }));
            let is_over = !self.keeps_to_first() || self.clock().now() >= until;
            if is_over || answers.iter().any(reached) {
                return answers;
            }
            self.front.pause(REACHED_AGAIN).await;
        }
    }

    async fn try_to_pass_on(&self, at: &At, errand: &Errand, sign: Duration) -> Answers {
        if let Some(reason) = self.stands_still(errand.node, sign).await {
            return all(&errand.keys, &Err(CallError::Unreachable { reason }));
        }
        let (request, patience) = (self.request(at, errand), errand.patience_until(self.end));
        let answer = match self.front.peers.call_promptly(errand.node, request, Some(patience)) {
            Call::Ready(answer) => answer,
            Call::Pending(answer) => answer.await,
        };
        let (_, store) = at;
        match answer {
            Ok(Response::Written(written)) if errand.keys.len() == 1 => {
                store.see(written.context.timestamp);
                all(&errand.keys, &Ok(written))
            }
            Ok(Response::MultiWritten(written)) if written.results.len() == errand.keys.len() => {
                written.results.iter().flatten().for_each(|written| store.see(written.context.timestamp));
                let results = written.results.into_iter().map(|result| result.map_err(CallError::Refused));
                errand.keys.iter().copied().zip(results).collect()
            }
            Ok(_) => all(&errand.keys, &Err(CallError::Broken)),
            Err(error) => all(&errand.keys, &Err(error)),
        }
    }

    /// Why a suspected node is sent nothing. A node that stands still goes on to accept connections, and its silence would
    /// leave the writes in doubt until the deadline; a ping without an answer leaves nothing in doubt.
    async fn stands_still(&self, node: NodeId, patience: Duration) -> Option<String> {
        if !self.is_suspected(node) {
            return None;
        }
        let ping = self.front.peers.call(node, Ping {}.into());
        match ping.within(self.clock(), patience).await {
            Ok(_) | Err(CallError::Refused(_)) => None,
            Err(CallError::Unreachable { reason }) => Some(reason),
            Err(CallError::Broken) => Some("it is suspected, and did not answer a ping".to_owned()),
        }
    }

    /// The message that passes on these writes, which are all puts or all deletes.
    fn request(&self, (view, store): &At, errand: &Errand) -> Request {
        let (store, generation, options) =
            (store.reference().clone(), view.cluster().generation, self.left(errand));
        if let [key] = &errand.keys[..] {
            let (key, WriteOrder { context, condition, expires, value }) =
                self.orders[key.position()].clone();
            return match value {
                Value::Present(value) => {
                    Put { store, generation, options, key, context, expires, condition, value }.into()
                }
                Value::Tombstone => Delete { store, generation, options, key, context, condition }.into(),
            };
        }
        let (mut puts, mut deletes) = (Vec::new(), Vec::new());
        for key in &errand.keys {
            let (key, WriteOrder { context, condition, expires, value }) =
                self.orders[key.position()].clone();
            match value {
                Value::Present(value) => puts.push(PutEntry { key, context, expires, condition, value }),
                Value::Tombstone => deletes.push(DeleteEntry { key, context, condition }),
            }
        }
        assert!(puts.is_empty() || deletes.is_empty(), "puts and deletes go apart");
        match deletes.is_empty() {
            true => MultiPut { store, generation, options, entries: puts }.into(),
            false => MultiDelete { store, generation, options, entries: deletes }.into(),
        }
    }
}

/// Bytes that an order takes in a message, as good as exactly.
fn order_bytes((key, order): &(Bytes, WriteOrder)) -> usize {
    let context = order.context.as_ref().map_or(0, |context| context.vector.entries().len() * 24);
    key.len() + context + 32 + if let Value::Present(value) = &order.value { value.len() } else { 0 }
}
