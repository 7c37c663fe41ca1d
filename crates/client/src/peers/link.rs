//! One link to one node: handshake, sending, and handing answers to their callers.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{Either, select};
use model::cluster::is_one_cluster;
use protocol::gossip::Experience;
use runtime::locks::Mutex;
use runtime::secret::Secret;
use runtime::{Clock, Link, LinkReceiver, LinkSender, Moment, NetworkError, Ports, Proof};
use tokio::sync::oneshot::Receiver;
use wire::error::ErrorCode;
use wire::messages::{Authenticate, Hello, Request, Response, SLOT_BITS, SecretText, VERSION_WITH_USERS};

use super::calls::Calls;
use super::witness::LinkStanding;
use super::{Call, CallError, Caller};

/// Most calls that wait for an answer on one link; more are refused, so that a stuck node cannot hold all memory.
const CALLS_MAX: usize = 16 * 1024;
const _: () = assert!(CALLS_MAX <= 1 << SLOT_BITS, "each call that waits has a slot");

/// A link whose handshake is done.
pub(super) struct PeerLink {
    sender: Arc<dyn LinkSender>,
    shared: Arc<LinkShared>,
}

/// What a link shares with its calls and with the task that hands out answers.
struct LinkShared {
    calls: Mutex<Calls>,
    broken: AtomicBool,
    /// This side ended it, so its end says nothing about the node.
    closing: AtomicBool,
    clock: Arc<dyn Clock>,
    /// Absent when nobody wants to know about the node.
    standing: Option<Arc<LinkStanding>>,
}

impl LinkShared {
    fn met(&self, experience: Experience) {
        if let Some(standing) = &self.standing
            && !self.closing.load(Ordering::Acquire)
        {
            standing.met(experience);
        }
    }

    /// Frames that came from the node so far.
    fn frames(&self) -> u64 {
        self.standing.as_ref().map_or(0, |standing| standing.frames())
    }
}

/// Why a link did not open, for the caller and for whoever judges the node.
pub(super) struct NotOpened {
    pub(super) error: CallError,
    pub(super) experience: Experience,
}

impl NotOpened {
    fn unreachable(reason: String) -> NotOpened {
        NotOpened { error: CallError::Unreachable { reason }, experience: Experience::Unreachable }
    }

    /// What the network said of this address, which the reason names.
    fn at(address: &str) -> impl Fn(NetworkError) -> NotOpened {
        move |error| match error {
            NetworkError::Refused { .. } => NotOpened {
                error: CallError::Unreachable { reason: error.to_string() },
                experience: Experience::Refused,
            },
            NetworkError::Unreachable { .. } | NetworkError::Silent { .. } => {
                NotOpened::unreachable(error.to_string())
            }
            other => NotOpened::unreachable(format!("{address}: {other}")),
        }
    }
}

/// Opens a link and shakes hands. `standing` learns of everything that calls over it experience.
pub(super) async fn open(
    ports: &Ports,
    address: &str,
    me: &Caller,
    cluster: Option<&str>,
    timeout: Duration,
    standing: Option<Arc<LinkStanding>>,
) -> Result<Arc<PeerLink>, NotOpened> {
    let deadline = ports.clock.sleep(timeout);
    let opening = Box::pin(shake_hands(ports, address, me, cluster, standing));
    match select(opening, deadline).await {
        Either::Left((opened, _)) => opened,
        Either::Right(_) => {
            Err(NotOpened::unreachable(format!("{address} did not answer within {timeout:?}")))
        }
    }
}

async fn shake_hands(
    ports: &Ports,
    address: &str,
    me: &Caller,
    cluster: Option<&str>,
    standing: Option<Arc<LinkStanding>>,
) -> Result<Arc<PeerLink>, NotOpened> {
    let mut link = ports.network.connect(address).await.map_err(NotOpened::at(address))?;
    let hello = Request::Hello(Hello {
        version_min: wire::messages::VERSION_MIN,
        version_max: wire::messages::VERSION_MAX,
        cluster: cluster.map(str::to_owned),
        peer: me.peer.clone(),
    });
    let sent = link.sender.send(&mut |frame| wire::messages::encode_request(0, &hello, frame));
    sent.map_err(NotOpened::at(address))?;
    let answer = link.receiver.receive().await.map_err(NotOpened::at(address))?;
    let Some(answer) = answer else {
        return Err(NotOpened::unreachable(format!("{address} closed the connection")));
    };
    match wire::messages::decode_response(answer) {
        // What a node says of itself is believed, so it must be the one that is asked.
        Ok((_, Response::Welcome(welcome)))
            if standing.as_ref().is_some_and(|standing| standing.node() != welcome.node) =>
        {
            return Err(NotOpened::unreachable(format!("{} answers at {address}", welcome.node)));
        }
        Ok((_, Response::Welcome(welcome)))
            if cluster.is_some_and(|own| !is_one_cluster(own, &welcome.cluster)) =>
        {
            let reason = format!("a node of another cluster, {:?}, answers at {address}", welcome.cluster);
            return Err(NotOpened::unreachable(reason));
        }
        Ok((_, Response::Welcome(welcome))) => {
            if let Some(secret) = &me.secret {
                authenticate(&mut link, address, secret, welcome.version).await?;
            }
        }
        Ok((_, Response::Failure(failure))) => {
            return Err(NotOpened { error: CallError::Refused(failure), experience: Experience::Replied });
        }
        _ => {
            let reason = format!("{address} did not answer the handshake like a node: check the address");
            return Err(NotOpened::unreachable(reason));
        }
    }
    let shared = Arc::new(LinkShared {
        calls: Mutex::default(),
        broken: AtomicBool::new(false),
        closing: AtomicBool::new(false),
        clock: ports.clock.clone(),
        standing,
    });
    shared.met(Experience::Greeted);
    let opened = PeerLink { sender: link.sender.clone(), shared: shared.clone() };
    ports.tasks.spawn(Box::pin(hand_out_answers(link.receiver, link.sender, shared)));
    Ok(Arc::new(opened))
}

/// Says whose requests follow.
async fn authenticate(
    link: &mut Link,
    address: &str,
    secret: &Secret,
    version: u16,
) -> Result<(), NotOpened> {
    if link.proof != Proof::Node {
        let reason = format!(
            "{address} is called without TLS, where a secret is not sent; name the certificate of the node authority"
        );
        return Err(NotOpened::unreachable(reason));
    }
    if version < VERSION_WITH_USERS {
        return Err(NotOpened::unreachable(format!("{address} runs an older program, which knows no users")));
    }
    let request = Request::Authenticate(Authenticate {
        user: String::new(),
        secret: SecretText(secret.text().to_owned()),
    });
    let sent = link.sender.send(&mut |frame| wire::messages::encode_request(1, &request, frame));
    sent.map_err(NotOpened::at(address))?;
    let answer = link.receiver.receive().await.map_err(NotOpened::at(address))?;
    match answer.map(wire::messages::decode_response) {
        Some(Ok((_, Response::Pong(_)))) => Ok(()),
        Some(Ok((_, Response::Failure(failure)))) => {
            Err(NotOpened { error: CallError::Refused(failure), experience: Experience::Replied })
        }
        _ => Err(NotOpened::unreachable(format!("{address} did not answer who the user is"))),
    }
}

impl PeerLink {
    /// Whether calls would fail at once.
    pub(super) fn is_broken(&self) -> bool {
        self.shared.broken.load(Ordering::Acquire)
    }

    /// Closes it; waiting calls fail as broken.
    pub(super) fn close(&self) {
        self.shared.closing.store(true, Ordering::Release);
        self.sender.close();
    }

    /// Sends a request.
    pub(super) fn call(&self, request: Request) -> Call {
        let (waiter, answer) = tokio::sync::oneshot::channel();
        let id = {
            let mut calls = self.shared.calls.lock();
            // Read under the lock: whoever drains the calls has set it before.
            if self.is_broken() {
                return Call::Ready(Err(CallError::Unreachable {
                    reason: "the connection broke".to_owned(),
                }));
            }
            if calls.waiting() >= CALLS_MAX {
                let reason = format!("{CALLS_MAX} requests already wait for this node, which is the limit");
                return Call::Ready(Err(CallError::Unreachable { reason }));
            }
            calls.insert(waiter)
        };
        let sent = self.sender.send(&mut |frame| wire::messages::encode_request(id, &request, frame));
        if let Err(error) = sent {
            self.shared.calls.lock().remove(id);
            return Call::Ready(Err(CallError::Unreachable { reason: error.to_string() }));
        }
        let shared = self.shared.clone();
        let (sent_at, frames) = (shared.clock.now(), shared.frames());
        Call::Pending(Box::pin(Answer { id, answer, shared, sent_at, frames, answered: false }))
    }
}

/// Waits for one answer; forgets the call when dropped, and says so when nothing came from the node since it left.
struct Answer {
    id: u64,
    answer: Receiver<Result<Response, CallError>>,
    shared: Arc<LinkShared>,
    sent_at: Moment,
    /// Frames that had come from the node when the request was sent.
    frames: u64,
    answered: bool,
}

impl Future for Answer {
    type Output = Result<Response, CallError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = Pin::new(&mut self.answer).poll(context);
        self.answered |= polled.is_ready();
        polled.map(|answer| answer.unwrap_or(Err(CallError::Broken)))
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        self.shared.calls.lock().remove(self.id);
        let (before, now) = (self.frames, self.shared.frames());
        assert!(before <= now, "{before} frames had come when call {} left, and {now} have now", self.id);
        if before == now {
            let waited = self.shared.clock.now().since(self.sent_at);
            self.shared.met(Experience::Unanswered { waited });
        }
    }
}

async fn hand_out_answers(
    mut receiver: Box<dyn LinkReceiver>,
    sender: Arc<dyn LinkSender>,
    shared: Arc<LinkShared>,
) {
    while let Ok(Some(frame)) = receiver.receive().await {
        let Ok((id, response)) = wire::messages::decode_response(frame) else {
            tracing::warn!("answer cannot be decoded, connection closed");
            break;
        };
        if let Some(standing) = &shared.standing {
            standing.replied();
            if matches!(&response, Response::Failure(failure) if failure.code == ErrorCode::ShuttingDown) {
                standing.met(Experience::Stopping);
            }
        }
        let waiter = shared.calls.lock().remove(id);
        if let Some(waiter) = waiter {
            let answer = match response {
                Response::Failure(failure) => Err(CallError::Refused(failure)),
                response => Ok(response),
            };
            // A caller that gave up is no longer interested.
            let _ = waiter.send(answer);
        }
    }
    shared.broken.store(true, Ordering::Release);
    // Before the callers learn of it: whoever tries again at once shall know better where.
    shared.met(Experience::LinkBroke);
    sender.close();
    let waiting = shared.calls.lock().drain();
    for waiter in waiting {
        let _ = waiter.send(Err(CallError::Broken));
    }
}
