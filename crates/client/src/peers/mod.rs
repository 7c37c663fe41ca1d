//! Calls to nodes: one multiplexed link per node, opened when first needed.
//!
//! A call is encoded at once into the link's outbox, so calls made together leave together; answers come back in
//! any order and find their caller by request id. A link that breaks fails its calls as *broken*: they may have been
//! carried out. A node that cannot be reached is not tried again before its backoff has passed; until then its calls
//! fail at once as *unreachable*: they have certainly not been carried out. What calls experience is told to a
//! [`Witness`]: a node's failure detector, or a client's own memory of who answered badly, which asks such nodes again
//! beside the requests so that none of these has to.
//!
//! **Architecture Invariant:** no call is ever sent twice here. Whether to try again is decided by callers, who know
//! whether that is safe.

mod calls;
mod link;
mod witness;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use model::{Cluster, Generation, NodeId};
use protocol::gossip::Experience;
use runtime::locks::Mutex;
use runtime::secret::Secret;
use runtime::{BoxFuture, Clock, Moment, Ports};
use wire::messages::{Failure, Peer, Request, Response};

use link::PeerLink;
use witness::{LinkStanding, OwnBelief};

pub use witness::Witness;

/// Longest wait for a connection with its handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// First pause after a failed connection; doubles with each further failure.
const BACKOFF_MIN: Duration = Duration::from_millis(50);
/// Longest pause between connection attempts.
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// Why a call has no response.
#[derive(Clone, Debug, PartialEq)]
pub enum CallError {
    /// Certainly not carried out: the node cannot be reached, or its outbox is full.
    Unreachable {
        /// Why.
        reason: String,
    },
    /// Perhaps carried out: the link broke after the request was sent.
    Broken,
    /// The node answered, with a refusal.
    Refused(Failure),
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallError::Unreachable { reason } => f.write_str(reason),
            CallError::Broken => {
                f.write_str("the request timed out, or the connection broke before the answer")
            }
            CallError::Refused(failure) => write!(f, "{}", failure.detail),
        }
    }
}

/// A call under way, or already answered.
pub enum Call {
    /// Answered at once.
    Ready(Result<Response, CallError>),
    /// Will be answered. Dropping it forgets the call; the node may still carry it out.
    Pending(BoxFuture<'static, Result<Response, CallError>>),
}

impl Call {
    /// The answer, or *broken* when none came within `patience`: whoever waits for a node waits for it no longer than
    /// this, because a node that has fallen silent breaks no connection.
    pub async fn within(self, clock: &Arc<dyn Clock>, patience: Duration) -> Result<Response, CallError> {
        match self {
            Call::Ready(answer) => answer,
            Call::Pending(answer) => match select(answer, clock.sleep(patience)).await {
                Either::Left((answer, _)) => answer,
                Either::Right(_) => Err(CallError::Broken),
            },
        }
    }
}

/// The links of one worker (or of one client) to all nodes.
pub struct Peers {
    ports: Ports,
    me: Caller,
    backoff_max: Duration,
    /// What is believed about nodes, here or by the node that these calls belong to.
    witness: Arc<dyn Witness>,
    own: Option<Arc<OwnBelief>>,
    state: Mutex<PeersState>,
}

/// Who calls.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// As it greets.
    pub(crate) peer: Peer,
    /// Whose requests follow, if a user's.
    pub(crate) secret: Option<Secret>,
}

#[derive(Default)]
struct PeersState {
    /// What the cluster that nodes must belong to is called, if that is known.
    cluster: Option<String>,
    /// Of the document that the addresses come from.
    generation: Generation,
    addresses: BTreeMap<NodeId, String>,
    slots: BTreeMap<NodeId, LinkSlot>,
    standings: BTreeMap<NodeId, Arc<LinkStanding>>,
}

enum LinkSlot {
    /// Calls wait here until the link is up or has failed.
    Opening(Vec<tokio::sync::oneshot::Sender<Result<Arc<PeerLink>, CallError>>>),
    Up(Arc<PeerLink>),
    Down {
        retry_at: Moment,
        pause: Duration,
        reason: String,
    },
}

impl Peers {
    /// For calls by `me`; `cluster` is the cluster that nodes must belong to, if known. What is believed about nodes
    /// rests on these calls alone.
    pub fn new(ports: Ports, me: Peer, cluster: Option<String>) -> Arc<Self> {
        Peers::of_user(ports, me, cluster, None)
    }

    /// The same, for calls of the user whose secret this is. It is sent to no node that has not proved to be one.
    pub fn of_user(ports: Ports, me: Peer, cluster: Option<String>, secret: Option<Secret>) -> Arc<Self> {
        let me = Caller { peer: me, secret };
        Arc::new_cyclic(|peers| {
            let own = OwnBelief::new(peers.clone());
            let (witness, backoff_max) = (own.clone(), BACKOFF_MAX);
            let state = Mutex::new(PeersState { cluster, ..PeersState::default() });
            Peers { ports, me, backoff_max, witness, own: Some(own), state }
        })
    }

    /// For calls by a node, which knows more about the others than its calls: `witness` is told what these experience.
    /// A node that cannot be reached is tried again after `backoff_max` at the latest.
    pub fn witnessed(
        ports: Ports,
        me: Peer,
        cluster: Option<String>,
        witness: Arc<dyn Witness>,
        backoff_max: Duration,
    ) -> Arc<Self> {
        assert!(BACKOFF_MIN <= backoff_max, "pauses grow from {BACKOFF_MIN:?} to {backoff_max:?}");
        let (me, state) =
            (Caller { peer: me, secret: None }, Mutex::new(PeersState { cluster, ..PeersState::default() }));
        Arc::new(Peers { ports, me, backoff_max, witness, own: None, state })
    }

    /// The doors that calls go through.
    pub fn ports(&self) -> &Ports {
        &self.ports
    }

    /// Learns the nodes' addresses, and what the cluster is called: a node of another one that has come to one of these
    /// addresses is not talked to. Links to nodes that moved or left are closed.
    pub fn learn(&self, cluster: &Cluster) {
        let mut state = self.state.lock();
        if cluster.generation < state.generation {
            return;
        }
        state.generation = cluster.generation;
        state.cluster = Some(cluster.called());
        let addresses: BTreeMap<NodeId, String> =
            cluster.nodes.iter().map(|node| (node.id, node.dialed())).collect();
        let old = std::mem::replace(&mut state.addresses, addresses);
        state.standings.retain(|id, _| cluster.node(*id).is_some());
        for (id, address) in old {
            if state.addresses.get(&id) != Some(&address)
                && let Some(LinkSlot::Up(link)) = state.slots.remove(&id)
            {
                link.close();
            }
        }
        drop(state);
        self.witness.learn(cluster);
    }

    /// Whether calls to `node` are better avoided for now: it could not be reached, its link broke, or it left a call
    /// unanswered, and has answered nothing since; for a node's calls, also because the others do not hear it.
    pub fn is_suspected(&self, node: NodeId) -> bool {
        self.witness.is_suspected(node)
    }

    /// Whether `node` is believed to be away: it was silent or refused connections for long, or said that it stops.
    pub fn is_gone(&self, node: NodeId) -> bool {
        self.witness.is_gone(node)
    }

    /// The nodes that something came from since this was asked last.
    pub fn heard(&self) -> Vec<NodeId> {
        let state = self.state.lock();
        state.standings.iter().filter(|(_, standing)| standing.was_heard()).map(|(&node, _)| node).collect()
    }

    /// Tries `node` again with the next call, whatever happened before.
    pub fn forgive(&self, node: NodeId) {
        let mut state = self.state.lock();
        if matches!(state.slots.get(&node), Some(LinkSlot::Down { .. })) {
            state.slots.remove(&node);
        }
    }

    /// Avoids calls to `node` until it has answered: it let somebody wait.
    pub(crate) fn doubt(&self, node: NodeId) {
        self.witness.experienced(node, Experience::Unreachable);
    }

    /// Sends a request, opening the link if need be.
    pub fn call(self: &Arc<Self>, node: NodeId, request: Request) -> Call {
        self.call_promptly(node, request, None)
    }

    /// As [`Self::call`], but gives up, with the request not sent, when the link is not open after `patience`. It is
    /// opened all the same.
    pub fn call_promptly(
        self: &Arc<Self>,
        node: NodeId,
        request: Request,
        patience: Option<Duration>,
    ) -> Call {
        let patience = patience.map(|patience| (self.ports.clock.clone(), patience));
        if let Some(own) = &self.own {
            own.attend(&*self.ports.tasks);
        }
        let mut state = self.state.lock();
        match state.slots.get_mut(&node) {
            Some(LinkSlot::Up(link)) if !link.is_broken() => {
                let link = link.clone();
                drop(state);
                link.call(request)
            }
            Some(LinkSlot::Opening(waiting)) => {
                let (sender, receiver) = tokio::sync::oneshot::channel();
                waiting.push(sender);
                Call::Pending(Box::pin(call_when_open(receiver, (node, request), patience)))
            }
            Some(LinkSlot::Down { retry_at, reason, .. }) if *retry_at > self.ports.clock.now() => {
                Call::Ready(Err(CallError::Unreachable { reason: reason.clone() }))
            }
            _ => {
                let Some(address) = state.addresses.get(&node).cloned() else {
                    let reason = format!("{node} is not a member of this cluster");
                    return Call::Ready(Err(CallError::Unreachable { reason }));
                };
                let pause = match state.slots.get(&node) {
                    Some(LinkSlot::Down { pause, .. }) => *pause,
                    _ => Duration::ZERO,
                };
                let (sender, receiver) = tokio::sync::oneshot::channel();
                state.slots.insert(node, LinkSlot::Opening(vec![sender]));
                let fresh = || LinkStanding::new(node, self.witness.clone());
                let standing = state.standings.entry(node).or_insert_with(fresh).clone();
                drop(state);
                self.ports.tasks.spawn(Box::pin(self.clone().open(node, address, pause, standing)));
                Call::Pending(Box::pin(call_when_open(receiver, (node, request), patience)))
            }
        }
    }

    /// Opens its own link to an address, asks one thing and closes it again: for learning the cluster.
    pub async fn ask_address(&self, address: &str, request: Request) -> Result<Response, CallError> {
        let cluster = self.state.lock().cluster.clone();
        let link = link::open(&self.ports, address, &self.me, cluster.as_deref(), CONNECT_TIMEOUT, None)
            .await
            .map_err(|refused| refused.error)?;
        let answer = match link.call(request) {
            Call::Ready(answer) => answer,
            Call::Pending(future) => {
                let timer = self.ports.clock.sleep(CONNECT_TIMEOUT);
                match futures_util::future::select(future, timer).await {
                    futures_util::future::Either::Left((answer, _)) => answer,
                    futures_util::future::Either::Right(_) => Err(CallError::Unreachable {
                        reason: format!("connecting to {address} timed out after {CONNECT_TIMEOUT:?}"),
                    }),
                }
            }
        };
        link.close();
        answer
    }

    /// Closes all links.
    pub fn close(&self) {
        for (_, slot) in std::mem::take(&mut self.state.lock().slots) {
            if let LinkSlot::Up(link) = slot {
                link.close();
            }
        }
    }

    async fn open(
        self: Arc<Self>,
        node: NodeId,
        address: String,
        pause: Duration,
        standing: Arc<LinkStanding>,
    ) {
        let (cluster, heard) = (self.state.lock().cluster.clone(), Some(standing.clone()));
        let opened = link::open(&self.ports, &address, &self.me, cluster.as_deref(), CONNECT_TIMEOUT, heard);
        let opened = opened.await;
        let opened = opened.map_err(|refused| {
            standing.met(refused.experience);
            match refused.error {
                CallError::Refused(failure) => CallError::Unreachable { reason: failure.detail },
                other => other,
            }
        });
        let mut state = self.state.lock();
        let waiting = match state.slots.remove(&node) {
            Some(LinkSlot::Opening(waiting)) => waiting,
            other => {
                // Closed meanwhile; leave whatever came in between.
                if let Some(slot) = other {
                    state.slots.insert(node, slot);
                }
                Vec::new()
            }
        };
        match &opened {
            Ok(link) => {
                state.slots.insert(node, LinkSlot::Up(link.clone()));
            }
            Err(error) => {
                let pause = (pause * 2).clamp(BACKOFF_MIN, self.backoff_max);
                let jitter = Duration::from_nanos(self.ports.entropy.below(pause.as_nanos() as u64 / 4 + 1));
                let retry_at = self.ports.clock.now().after(pause + jitter);
                tracing::debug!(%node, %address, %error, "node unreachable");
                let reason = match error {
                    CallError::Unreachable { reason } => reason.clone(),
                    other => other.to_string(),
                };
                state.slots.insert(node, LinkSlot::Down { retry_at, pause, reason });
            }
        }
        drop(state);
        for waiter in waiting {
            // A caller that gave up is no longer interested.
            let _ = waiter.send(opened.clone());
        }
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        self.close();
    }
}

async fn call_when_open(
    opened: tokio::sync::oneshot::Receiver<Result<Arc<PeerLink>, CallError>>,
    (node, request): (NodeId, Request),
    patience: Option<(Arc<dyn Clock>, Duration)>,
) -> Result<Response, CallError> {
    let opened = match patience {
        None => opened.await,
        Some((clock, patience)) => match select(opened, clock.sleep(patience)).await {
            Either::Left((opened, _)) => opened,
            Either::Right(_) => {
                let reason = format!("connecting to {node} timed out after {patience:?}");
                return Err(CallError::Unreachable { reason });
            }
        },
    };
    let link = match opened {
        Ok(opened) => opened?,
        Err(_) => return Err(CallError::Unreachable { reason: "the client was closed".to_owned() }),
    };
    match link.call(request) {
        Call::Ready(answer) => answer,
        Call::Pending(future) => future.await,
    }
}
