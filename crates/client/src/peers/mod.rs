//! Calls to nodes: one multiplexed link per node, opened when first needed.
//!
//! A call is encoded at once into the link's outbox, so calls made together leave together; answers come back in
//! any order and find their caller by request id. A link that breaks fails its calls as *broken*: they may have been
//! carried out. A node that cannot be reached is not tried again before its backoff has passed; until then its calls
//! fail at once as *unreachable*: they have certainly not been carried out.
//!
//! **Architecture Invariant:** no call is ever sent twice here. Whether to try again is decided by callers, who know
//! whether that is safe.

mod calls;
mod link;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use model::{Cluster, NodeId};
use parking_lot::Mutex;
use runtime::{BoxFuture, Moment, Ports};
use wire::messages::{Failure, Peer, Request, Response};

use link::PeerLink;

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
            CallError::Unreachable { reason } => write!(f, "unreachable: {reason}"),
            CallError::Broken => f.write_str("the connection broke before the answer came"),
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

/// The links of one worker (or of one client) to all nodes.
pub struct Peers {
    ports: Ports,
    me: Peer,
    cluster: Option<String>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    addresses: BTreeMap<NodeId, String>,
    slots: BTreeMap<NodeId, Slot>,
}

enum Slot {
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
    /// For calls by `me`; `cluster` is the cluster that nodes must belong to, if known.
    pub fn new(ports: Ports, me: Peer, cluster: Option<String>) -> Arc<Self> {
        Arc::new(Peers { ports, me, cluster, state: Mutex::default() })
    }

    /// The doors that calls go through.
    pub fn ports(&self) -> &Ports {
        &self.ports
    }

    /// Learns the nodes' addresses. Links to nodes that moved or left are closed.
    pub fn learn(&self, cluster: &Cluster) {
        let mut state = self.state.lock();
        let addresses: BTreeMap<NodeId, String> =
            cluster.nodes.iter().map(|node| (node.id, node.native.clone())).collect();
        let old = std::mem::replace(&mut state.addresses, addresses);
        for (id, address) in old {
            if state.addresses.get(&id) != Some(&address)
                && let Some(Slot::Up(link)) = state.slots.remove(&id)
            {
                link.close();
            }
        }
    }

    /// Whether calls to `node` fail at once for now, because it could not be reached.
    pub fn is_down(&self, node: NodeId) -> bool {
        let state = self.state.lock();
        matches!(state.slots.get(&node), Some(Slot::Down { retry_at, .. }) if *retry_at > self.ports.clock.now())
    }

    /// Sends a request, opening the link if need be.
    pub fn call(self: &Arc<Self>, node: NodeId, request: Request) -> Call {
        let mut state = self.state.lock();
        match state.slots.get_mut(&node) {
            Some(Slot::Up(link)) if !link.is_broken() => {
                let link = link.clone();
                drop(state);
                link.call(request)
            }
            Some(Slot::Opening(waiting)) => {
                let (sender, receiver) = tokio::sync::oneshot::channel();
                waiting.push(sender);
                Call::Pending(Box::pin(call_when_open(receiver, request)))
            }
            Some(Slot::Down { retry_at, reason, .. }) if *retry_at > self.ports.clock.now() => {
                Call::Ready(Err(CallError::Unreachable { reason: reason.clone() }))
            }
            _ => {
                let Some(address) = state.addresses.get(&node).cloned() else {
                    let reason = format!("{node} is not a node of this cluster");
                    return Call::Ready(Err(CallError::Unreachable { reason }));
                };
                let pause = match state.slots.get(&node) {
                    Some(Slot::Down { pause, .. }) => *pause,
                    _ => Duration::ZERO,
                };
                let (sender, receiver) = tokio::sync::oneshot::channel();
                state.slots.insert(node, Slot::Opening(vec![sender]));
                drop(state);
                self.ports.tasks.spawn(Box::pin(self.clone().open(node, address, pause)));
                Call::Pending(Box::pin(call_when_open(receiver, request)))
            }
        }
    }

    /// Opens a link of its own to an address, asks one thing and closes it again: for learning the cluster.
    pub async fn ask_address(&self, address: &str, request: Request) -> Result<Response, CallError> {
        let link =
            link::open(&self.ports, address, &self.me, self.cluster.as_deref(), CONNECT_TIMEOUT).await?;
        let answer = match link.call(request) {
            Call::Ready(answer) => answer,
            Call::Pending(future) => {
                let timer = self.ports.clock.sleep(CONNECT_TIMEOUT);
                match futures_util::future::select(future, timer).await {
                    futures_util::future::Either::Left((answer, _)) => answer,
                    futures_util::future::Either::Right(_) => Err(CallError::Unreachable {
                        reason: format!("no answer within {CONNECT_TIMEOUT:?}"),
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
            if let Slot::Up(link) = slot {
                link.close();
            }
        }
    }

    async fn open(self: Arc<Self>, node: NodeId, address: String, pause: Duration) {
        let opened =
            link::open(&self.ports, &address, &self.me, self.cluster.as_deref(), CONNECT_TIMEOUT).await;
        let opened = opened.map_err(|error| match error {
            CallError::Refused(failure) => CallError::Unreachable { reason: failure.detail },
            other => other,
        });
        let mut state = self.state.lock();
        let waiting = match state.slots.remove(&node) {
            Some(Slot::Opening(waiting)) => waiting,
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
                state.slots.insert(node, Slot::Up(link.clone()));
            }
            Err(error) => {
                let pause = (pause * 2).clamp(BACKOFF_MIN, BACKOFF_MAX);
                let jitter = Duration::from_nanos(self.ports.entropy.below(pause.as_nanos() as u64 / 4 + 1));
                let retry_at = self.ports.clock.now().after(pause + jitter);
                tracing::debug!(%node, %address, %error, "node unreachable");
                state.slots.insert(node, Slot::Down { retry_at, pause, reason: error.to_string() });
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
    request: Request,
) -> Result<Response, CallError> {
    let link = match opened.await {
        Ok(opened) => opened?,
        Err(_) => return Err(CallError::Unreachable { reason: "the client was closed".to_owned() }),
    };
    match link.call(request) {
        Call::Ready(answer) => answer,
        Call::Pending(future) => future.await,
    }
}
