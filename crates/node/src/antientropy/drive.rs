//! Carrying out one session.

use std::collections::{BTreeSet, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use client::peers::CallError;
use futures_util::future::{Either, join, select};
use model::limits::MESSAGE_BYTES_MAX;
use model::{Epoch, Generation, Moment, NodeId, PartitionId, Token, VersionSet};
use protocol::antientropy::merkle::{Digest, Span};
use protocol::antientropy::session::Listing;
use protocol::antientropy::{Goal, Options, RequestId, Session, SessionAction, SessionEvent, SessionOutcome};
use protocol::pace::{Pace, PaceLimits, RECORD_BYTES};
use runtime::locks::Mutex;
use smallvec::SmallVec;
use wire::messages::{
    AnswererState, KeyDigests, Ping, RecordsGet, RecordsPage, ReplicaMerge, Request, Response, TreeNodes,
    TreeSums,
};

use super::giving::{LOOK_INTERVAL, LOOKED_BYTES};
use super::{AntiEntropy, respond};
use crate::chores::breathe;
use crate::replica::AskedAs;
use crate::stores::LocalStore;
use crate::view::View;

/// Most bytes of sets in one message to a peer, about.
const PUSH_BYTES_MAX: usize = 1 << 20;
const _: () = assert!(PUSH_BYTES_MAX < MESSAGE_BYTES_MAX);

/// Bytes that are exchanged before it is made durable, here and there, and settled: a sync for each partition would cost
/// more than what it brings.
const SETTLED_BYTES: u64 = 16 << 20;

/// After this long it is settled as well, however little it was: steps of moves wait for that.
const SETTLED_AFTER: Duration = Duration::from_secs(5);

/// Pages that are asked for early while all of them are small: each costs a wait for the peer, which waits for all at once.
const AHEAD_MAX: usize = 16;
/// A page of this many bytes is small. What was asked for early comes whatever the pace says: where partitions
/// are alike no more than one full page.
const SMALL_PAGE_BYTES: u64 = 64 << 10;
const _: () = assert!(AHEAD_MAX as u64 * SMALL_PAGE_BYTES <= PUSH_BYTES_MAX as u64);

/// How often it is counted what a comparison has left to do.
const LEFT_INTERVAL: Duration = Duration::from_millis(200);

/// What a session that brings partitions in follows, and reports on its way.
#[derive(Clone, Copy)]
pub(crate) struct Bringing<'a> {
    /// How fast it goes: as the session before it did, and the next one as this.
    pub(crate) pace: &'a Mutex<Pace>,
    /// Is told how far it is.
    pub(crate) shown: &'a (dyn Fn(&SessionOutcome) + Sync),
    /// Is told of a page of a partition: how many records were not here before, and their bytes.
    pub(crate) came: &'a (dyn Fn(PartitionId, u64, u64) + Sync),
}

/// One session: with whom, about what, to which end.
pub(crate) struct Drive<'a> {
    pub(crate) antientropy: &'a AntiEntropy,
    pub(crate) peer: NodeId,
    pub(crate) view: Arc<View>,
    pub(crate) store: Arc<LocalStore>,
    pub(crate) goal: Goal,
    /// With a goal that brings in; others go at the rate of comparing.
    pub(crate) bringing: Option<Bringing<'a>>,
}

/// What a peer was when this node was merged with a partition of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peered {
    /// It has all that it acknowledged of the partition, and could read it.
    pub(crate) whole: bool,
    /// So could this node, or else the peer has what this one could not read.
    pub(crate) all_given: bool,
    /// The generation that it had adopted before it looked at its records; 0 when it did not say.
    pub(crate) adopted: Generation,
}

/// A page that was asked for while the one before it is merged.
struct Ahead<'d> {
    of: (PartitionId, Token),
    answer: Pin<Box<dyn Future<Output = Result<Response, CallError>> + Send + 'd>>,
}

/// What the driver learns on the way.
#[derive(Default)]
struct PeerHeard<'d> {
    /// Partitions that the peer itself has lost, or cannot read in full.
    incomplete: BTreeSet<PartitionId>,
    /// Places of records that this node cannot read, and at which the peer has one that this node lacks.
    made_up_for: BTreeSet<(PartitionId, Token)>,
    /// What the peer followed when it was asked first.
    standing: Option<AnswererState>,
    /// The peer is another than it was: what it told before is void.
    is_another: bool,
    /// The newest generation by which the partitions are still this session's.
    generation: Generation,
    /// When what is left was counted last.
    counted_at: Option<Moment>,
    /// When it was looked last whether requests are late, and what had travelled then.
    looked: (Option<Moment>, u64),
    /// Partitions that were exchanged and not settled yet.
    exchanged: Vec<PartitionId>,
    /// When partitions were settled last, and the bytes that had travelled then.
    settled: (Moment, u64),
    /// Pages that were asked for early, in the order in which they will be needed.
    ahead: VecDeque<Ahead<'d>>,
    /// How many are, at most.
    ahead_max: usize,
}

impl PeerHeard<'_> {
    /// The peer has these keys, this node those: what cannot be read here is there where a token has a further key.
    fn make_up(
        &mut self,
        (store, partition): (&LocalStore, PartitionId),
        mine: &[(Bytes, Digest)],
        theirs: &[(Bytes, Digest)],
    ) {
        let own: BTreeSet<&Bytes> = mine.iter().map(|(key, _)| key).collect();
        let further = theirs.iter().filter(|(key, _)| !own.contains(key));
        self.made_up_for.extend(further.map(|(key, _)| (partition, store.token(key))));
    }
}

impl Drive<'_> {
    /// Runs the session to its end. `settle` is told of each partition that was merged with all the peer had, and what
    /// the peer was there.
    pub(crate) async fn run(
        &self,
        partitions: Vec<(PartitionId, Span)>,
        settle: &mut (dyn FnMut(PartitionId, Peered) + Send),
    ) -> SessionOutcome {
        let mut concerned: BTreeSet<PartitionId> = partitions.iter().map(|(id, _)| *id).collect();
        let options = &self.antientropy.options;
        let pace = self.pace();
        let mut session =
            Session::new(Options { goal: self.goal, patience: options.patience, pace }, partitions);
        let (mut actions, mut heard) = (Vec::new(), PeerHeard::default());
        heard.generation = self.view.cluster().generation;
        heard.settled.0 = self.antientropy.ports.clock.now();
        session.start(self.antientropy.ports.clock.now(), &mut actions);
        let mut waiting: VecDeque<SessionAction> = actions.drain(..).collect();
        loop {
            let (mut request, mut ended) = (None, None);
            while let Some(action) = waiting.pop_front() {
                match action {
                    SessionAction::Settle { partition } => {
                        // What happens to it from here on breaks nothing off.
                        concerned.remove(&partition);
                        heard.exchanged.push(partition);
                    }
                    SessionAction::End(outcome) => ended = Some(outcome),
                    other => request = Some(other),
                }
            }
            if ended.is_some() || self.is_time_to_settle(&session, &heard) {
                heard.settled = (self.antientropy.ports.clock.now(), session.progress().bytes);
                let exchanged = std::mem::take(&mut heard.exchanged);
                for (partition, peered) in Box::pin(self.confirm(exchanged, &mut heard)).await {
                    settle(partition, peered);
                }
            }
            if let Some(outcome) = ended {
                if let Some(bringing) = &self.bringing {
                    *bringing.pace.lock() = session.pace();
                }
                return outcome;
            }
            match (request, session.deadline()) {
                (Some(request), Some(deadline)) => {
                    self.observe(&request, &mut session, &mut heard).await;
                    let clock = &self.antientropy.ports.clock;
                    let after = session.pages_after().take(AHEAD_MAX).collect();
                    let answer = Box::pin(self.carry_out(request, after, &mut heard));
                    match select(answer, clock.sleep_until(deadline)).await {
                        Either::Left(((id, event), _)) => session.step(id, event, clock.now(), &mut actions),
                        Either::Right(_) => session.elapsed(clock.now(), &mut actions),
                    }
                }
                (None, Some(deadline)) => {
                    self.antientropy.ports.clock.sleep_until(deadline).await;
                    session.elapsed(self.antientropy.ports.clock.now(), &mut actions);
                }
                (_, None) => unreachable!("a session that waits for nothing has ended"),
            }
            if self.is_unwanted(&concerned, &mut heard) {
                session.abort(&mut actions);
            }
            self.show(&session, &mut heard);
            waiting.extend(actions.drain(..));
        }
    }

    fn is_time_to_settle(&self, session: &Session, heard: &PeerHeard<'_>) -> bool {
        let ((at, bytes), now) = (heard.settled, self.antientropy.ports.clock.now());
        session.progress().bytes - bytes >= SETTLED_BYTES || now.since(at) >= SETTLED_AFTER
    }

    /// What brings in goes on as fast as the session before it was.
    fn pace(&self) -> Pace {
        let Some(bringing) = &self.bringing else {
            return Pace::new(PaceLimits::for_comparing(self.antientropy.options.bytes_per_second));
        };
        let mut pace = *bringing.pace.lock();
        pace.begin(self.antientropy.ports.clock.now());
        pace
    }

    /// These partitions, each with what the peer is after the exchange; none when nobody knows. A peer that has lost its
    /// disk meanwhile gave nothing. What the next step of a move counts on is durable: here, and at the peer, which
    /// answers this question when its records are.
    async fn confirm(
        &self,
        settled: Vec<PartitionId>,
        heard: &mut PeerHeard<'_>,
    ) -> Vec<(PartitionId, Peered)> {
        if settled.is_empty() {
            return Vec::new();
        }
        if self.goal != Goal::Equal {
            let asking = Box::pin(self.sums(Vec::new(), heard));
            let (again, synced) = join(asking, self.store.engine().sync()).await;
            if again.is_none() || heard.is_another {
                return Vec::new();
            }
            if let Err(error) = synced {
                tracing::warn!(%error, "what was exchanged does not count: not synced");
                return Vec::new();
            }
        }
        let adopted = heard.standing.map_or_else(Generation::default, |peer| peer.adopted);
        let peered = |id: PartitionId| {
            let unreadable = self.store.unreadable(id);
            let all_given = unreadable.iter().all(|token| heard.made_up_for.contains(&(id, *token)));
            (id, Peered { whole: !heard.incomplete.contains(&id), all_given, adopted })
        };
        settled.into_iter().map(peered).collect()
    }

    /// Whether somebody has stopped comparing, or one of the partitions has other replicas by now.
    fn is_unwanted(&self, concerned: &BTreeSet<PartitionId>, heard: &mut PeerHeard<'_>) -> bool {
        let stopped = self.goal == Goal::Equal && self.antientropy.state.lock().abort;
        if stopped || self.antientropy.is_stopping() {
            return true;
        }
        let current = self.antientropy.replica.view();
        if current.generation() == heard.generation {
            return false;
        }
        let (view, begun) = (current.get(), self.view.cluster().generation);
        heard.generation = view.cluster().generation;
        concerned.iter().any(|id| begun < view.accepted_since(&self.store, *id))
    }

    fn show(&self, session: &Session, heard: &mut PeerHeard<'_>) {
        // Counting what is left goes through all that waits: not at each step.
        let now = self.antientropy.ports.clock.now();
        let left = heard.counted_at.is_none_or(|at| now.since(at) >= LEFT_INTERVAL).then(|| session.left());
        if left.is_some() {
            heard.counted_at = Some(now);
        }
        if let Some(bringing) = &self.bringing {
            (bringing.shown)(&session.progress());
        } else if self.goal == Goal::Equal
            && let Some(running) = &mut self.antientropy.state.lock().running
        {
            running.progress = session.progress();
            running.left = left.unwrap_or(running.left);
        }
    }

    /// Before a batch of records: how long do both nodes take for the least of requests? A peer that has fallen silent
    /// is waited for no longer than for any other answer.
    async fn observe(&self, request: &SessionAction, session: &mut Session, heard: &mut PeerHeard<'_>) {
        let clock = &self.antientropy.ports.clock;
        let (asked, travelled) = (clock.now(), cost(&session.progress()));
        let (looked_at, looked_cost) = heard.looked;
        let is_early = looked_at.is_some_and(|at| asked.since(at) < LOOK_INTERVAL);
        let is_little = travelled - looked_cost < LOOKED_BYTES;
        if is_early
            || is_little
            || matches!(request, SessionAction::CompareSums { .. } | SessionAction::Descend { .. })
        {
            return;
        }
        heard.looked = (Some(asked), travelled);
        if self.call(Ping {}).await.is_ok() {
            let took = clock.now().since(asked);
            let there = self.antientropy.state.lock().usual.entry(self.peer).or_default().times(took);
            let times = there.max(self.antientropy.pulse.times().await);
            session.observe(clock.now(), times);
        }
    }

    async fn call(&self, request: impl Into<Request>) -> Result<Response, CallError> {
        let AntiEntropy { peers, ports, options, .. } = self.antientropy;
        peers.call(self.peer, request.into()).within(&ports.clock, options.patience).await
    }

    /// `after` are the pages that will be asked for when the present one has no next.
    async fn carry_out<'d>(
        &'d self,
        action: SessionAction,
        after: Vec<(PartitionId, Token)>,
        heard: &mut PeerHeard<'d>,
    ) -> (RequestId, SessionEvent) {
        let (request, event) = match action {
            SessionAction::CompareSums { request, partitions } => {
                (request, self.sums(partitions, heard).await)
            }
            SessionAction::Descend { request, spans } => (request, self.descend(spans).await),
            SessionAction::List { request, spans } => (request, self.list(spans, heard).await),
            SessionAction::Pull { request, keys } => (request, self.pull(keys).await),
            SessionAction::Push { request, keys } => (request, self.push(keys).await),
            SessionAction::Page { request, partition, from } => {
                (request, self.page((partition, from), after, heard).await)
            }
            SessionAction::Settle { .. } | SessionAction::End(_) => unreachable!("it asks for nothing"),
        };
        (request, event.unwrap_or(SessionEvent::Failed))
    }

    async fn sums(&self, partitions: Vec<PartitionId>, heard: &mut PeerHeard<'_>) -> Option<SessionEvent> {
        let own = |id: PartitionId| self.store.trees().look(id, |tree| tree.sum().zip(tree.bits())).flatten();
        let sums = partitions.into_iter().map(|id| (id, own(id))).collect();
        let (store, generation) = self.address();
        match self.call(TreeSums { store, generation, sums }).await {
            Ok(Response::TreeSummed(summed)) => {
                let first = *heard.standing.get_or_insert(summed.standing);
                heard.is_another |= first.incarnation != summed.standing.incarnation;
                heard.incomplete.extend(summed.incomplete);
                Some(SessionEvent::Summed { differing: summed.differing, unready: summed.unready })
            }
            _ => None,
        }
    }

    async fn descend(&self, spans: Vec<(PartitionId, Span, u8)>) -> Option<SessionEvent> {
        let (store, generation) = self.address();
        let asked = spans.iter().map(|&(id, span, bits)| (id, (span, bits))).collect();
        let Ok(Response::TreeNoded(noded)) = self.call(TreeNodes { store, generation, spans: asked }).await
        else {
            return None;
        };
        let parts = spans.into_iter().zip(noded.sums).map(|((id, span, bits), theirs)| {
            let mine = self.store.trees().look(id, |tree| tree.sums(span, bits)).flatten();
            mine.zip(theirs)
        });
        Some(SessionEvent::Descended { parts: parts.collect() })
    }

    async fn list(&self, spans: Vec<(PartitionId, Span)>, heard: &mut PeerHeard<'_>) -> Option<SessionEvent> {
        let (store, generation) = self.address();
        let Ok(Response::KeyDigested(digested)) =
            self.call(KeyDigests { store, generation, spans: spans.clone() }).await
        else {
            return None;
        };
        let (mut keys, mut bytes) = (Vec::new(), 0);
        for ((partition, span), theirs) in spans.into_iter().zip(digested.keys) {
            bytes += theirs.iter().map(|(key, _)| key.len() as u64 + 18).sum::<u64>();
            let mine = self.store.keys(partition, span).ok()?;
            if self.goal == Goal::Give {
                heard.make_up((&self.store, partition), &mine, &theirs);
            }
            keys.push(Some(Listing { mine, theirs }));
            breathe().await;
        }
        Some(SessionEvent::Listed { keys, bytes })
    }

    async fn pull(&self, keys: Vec<Bytes>) -> Option<SessionEvent> {
        let (store, generation) = self.address();
        let Ok(Response::RecordsGot(got)) =
            self.call(RecordsGet { store, generation, keys: keys.clone() }).await
        else {
            return None;
        };
        if got.epoch < respond::collected(&self.antientropy.replica) {
            // Read before a deletion was forgotten: it must be read again, by a peer that knows.
            self.tell_epoch().await;
            return None;
        }
        let (mut push, mut failed, mut bytes, done) = (Vec::new(), 0, 0, got.sets.len());
        for (key, set) in keys.into_iter().zip(got.sets) {
            let Ok(set) = set else {
                failed += 1;
                continue;
            };
            bytes += wire::versions::record_bytes(None, &set) as u64;
            match self.merge(got.epoch, &key, &set) {
                Some(mine) if set.includes(&mine) => {}
                Some(_) => push.push(key),
                None => failed += 1,
            }
        }
        breathe().await;
        Some(SessionEvent::Pulled { done, push, failed, bytes })
    }

    /// Merges here, and says what is here now; `None` when it cannot be merged.
    fn merge(&self, epoch: Epoch, key: &Bytes, set: &VersionSet) -> Option<VersionSet> {
        let place = self.view.partition(&self.store, key).0;
        if !set.is_empty() {
            self.take(epoch, key, set)?;
        }
        self.store.content(place, key).ok()
    }

    /// Merges what a peer read at `epoch`, unless a collection round came in between; whether anything changed.
    fn take(&self, epoch: Epoch, key: &Bytes, set: &VersionSet) -> Option<bool> {
        let place = self.view.partition(&self.store, key).0;
        // It may wait for the disk, and nobody shall wait for it behind a lock.
        let _ = self.store.content(place, key);
        let (replica, generation) = (&self.antientropy.replica, self.view.cluster().generation);
        let view = replica.view().admit();
        let (_, partition) = view.partition(&self.store, key);
        replica.check(&view, &self.store, partition, (generation, AskedAs::Holder)).ok()?;
        let admitted = replica.admit_contents(&view, epoch, generation).ok()?;
        let set = admitted.clean(&self.store.definition().name, key, set);
        self.store.merge(place, key, &set).ok().map(|(_, changed)| changed.is_some())
    }

    /// Tells the peer this node's collection epoch, by a merge of nothing.
    async fn tell_epoch(&self) {
        let (store, generation) = self.address();
        let epoch = respond::collected(&self.antientropy.replica);
        let _ = self
            .call(ReplicaMerge {
                since: Generation::default(),
                store,
                generation,
                epoch,
                hint_for: None,
                entries: SmallVec::new(),
            })
            .await;
    }

    async fn push(&self, keys: Vec<Bytes>) -> Option<SessionEvent> {
        let epoch = respond::collected(&self.antientropy.replica);
        let (mut entries, mut bytes, mut done, mut failed) = (SmallVec::new(), 0, 0, 0);
        for key in keys {
            let place = self.view.partition(&self.store, &key).0;
            match self.store.content(place, &key) {
                Ok(set) if set.is_empty() => {}
                Ok(set) => {
                    bytes += key.len() + wire::versions::record_bytes(None, &set);
                    if bytes > PUSH_BYTES_MAX && !entries.is_empty() {
                        break;
                    }
                    entries.push((key, set));
                }
                Err(_) => failed += 1,
            }
            done += 1;
        }
        if !entries.is_empty() {
            let (store, generation) = self.address();
            let since = self.since(&entries);
            let merge = ReplicaMerge { since, store, generation, epoch, hint_for: None, entries };
            let merged = match self.call(merge).await {
                Ok(Response::ReplicaMerged(merged)) => merged,
                Ok(Response::StaleEpoch(stale)) => {
                    let replica = &self.antientropy.replica;
                    replica.epochs().hear(stale.epoch, generation, replica.standing());
                    return None;
                }
                _ => return None,
            };
            failed += merged.outcomes.iter().filter(|outcome| outcome.is_err()).count();
        }
        Some(SessionEvent::Pushed { done, failed, bytes: bytes as u64 })
    }

    /// Asks for a page, and lets the answer come while something else is done.
    fn ask_ahead<'d>(&'d self, of: (PartitionId, Token)) -> Ahead<'d> {
        let (store, generation) = self.address();
        let (partition, from) = of;
        let mut answer: Pin<Box<dyn Future<Output = _> + Send + 'd>> =
            Box::pin(self.call(RecordsPage { store, generation, partition, from }));
        // The first poll sends the question; whoever awaits the answer is woken by a later one.
        let mut nobody = Context::from_waker(Waker::noop());
        match answer.as_mut().poll(&mut nobody) {
            Poll::Ready(done) => Ahead { of, answer: Box::pin(std::future::ready(done)) },
            Poll::Pending => Ahead { of, answer },
        }
    }

    /// Asks for what follows a page of this many bytes: for its next, or else for pages of other partitions, the more
    /// of these the smaller they are.
    fn look_ahead<'d>(
        &'d self,
        next: Option<(PartitionId, Token)>,
        after: Vec<(PartitionId, Token)>,
        bytes: u64,
        heard: &mut PeerHeard<'d>,
    ) {
        let is_small = next.is_none() && bytes <= SMALL_PAGE_BYTES;
        heard.ahead_max = if is_small { (heard.ahead_max * 2).clamp(1, AHEAD_MAX) } else { 1 };
        if let Some(next) = next {
            heard.ahead.push_front(self.ask_ahead(next));
        }
        for of in after.into_iter().skip(heard.ahead.len()) {
            if heard.ahead.len() >= heard.ahead_max {
                return;
            }
            heard.ahead.push_back(self.ask_ahead(of));
        }
    }

    async fn page<'d>(
        &'d self,
        (partition, from): (PartitionId, Token),
        after: Vec<(PartitionId, Token)>,
        heard: &mut PeerHeard<'d>,
    ) -> Option<SessionEvent> {
        // What lies before it was asked for in vain.
        while heard.ahead.front().is_some_and(|ahead| ahead.of != (partition, from)) {
            heard.ahead.pop_front();
        }
        let asked = heard.ahead.pop_front().unwrap_or_else(|| self.ask_ahead((partition, from)));
        let Ok(Response::RecordsPaged(paged)) = asked.answer.await else { return None };
        if paged.epoch < respond::collected(&self.antientropy.replica) {
            self.tell_epoch().await;
            return None;
        }
        if paged.next.is_some_and(|next| next <= from) {
            return None;
        }
        let size =
            |(key, set): &(Bytes, VersionSet)| (key.len() + wire::versions::record_bytes(None, set)) as u64;
        let bytes = paged.records.iter().map(size).sum();
        self.look_ahead(paged.next.map(|next| (partition, next)), after, bytes, heard);
        // A partition without trees is taken over whole at each step that compares. What was here already does not come
        // again, however often it travels.
        let (mut merged, mut failed, mut came) = (0, 0, 0);
        for (position, record) in paged.records.iter().enumerate() {
            match self.take(paged.epoch, &record.0, &record.1) {
                Some(true) => (merged, came) = (merged + 1, came + size(record)),
                Some(false) => {}
                None => failed += 1,
            }
            if position % 64 == 63 {
                breathe().await;
            }
        }
        if let Some(bringing) = &self.bringing {
            (bringing.came)(partition, merged as u64, came);
        }
        Some(SessionEvent::Paged { next: paged.next, merged, failed, bytes })
    }

    /// Since which generation the peer is a replica of these.
    fn since(&self, entries: &[(Bytes, VersionSet)]) -> Generation {
        let cluster = self.view.cluster();
        let definition = self.store.definition();
        let since = entries
            .iter()
            .map(|(key, _)| cluster.accepted_since(definition, self.view.partition(&self.store, key).1));
        since.max().unwrap_or_default()
    }

    fn address(&self) -> (wire::messages::StoreRef, Generation) {
        (self.store.reference().clone(), self.view.cluster().generation)
    }
}

/// What has travelled, its records counted like bytes.
fn cost(progress: &SessionOutcome) -> u64 {
    progress.bytes + (progress.pulled + progress.pushed) as u64 * RECORD_BYTES
}
