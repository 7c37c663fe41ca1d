//! One link to one node: handshake, sending, and handing answers to their callers.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{Either, select};
use parking_lot::Mutex;
use runtime::{LinkReceiver, LinkSender, NetworkError, Ports};
use tokio::sync::oneshot::Receiver;
use wire::messages::{Hello, Peer, Request, Response};

use super::calls::Calls;
use super::{Call, CallError};

/// Most calls that wait for an answer on one link; more are refused, so that a stuck node cannot hold all memory.
const CALLS_MAX: usize = 16 * 1024;

/// A link whose handshake is done.
pub(super) struct PeerLink {
    sender: Arc<dyn LinkSender>,
    calls: Arc<Mutex<Calls>>,
    broken: Arc<AtomicBool>,
}

/// Opens a link and shakes hands.
pub(super) async fn open(
    ports: &Ports,
    address: &str,
    me: &Peer,
    cluster: Option<&str>,
    timeout: Duration,
) -> Result<Arc<PeerLink>, CallError> {
    let deadline = ports.clock.sleep(timeout);
    let opening = Box::pin(shake_hands(ports, address, me, cluster));
    match select(opening, deadline).await {
        Either::Left((opened, _)) => opened,
        Either::Right(_) => {
            Err(CallError::Unreachable { reason: format!("{address} did not answer within {timeout:?}") })
        }
    }
}

async fn shake_hands(
    ports: &Ports,
    address: &str,
    me: &Peer,
    cluster: Option<&str>,
) -> Result<Arc<PeerLink>, CallError> {
    let unreachable = |error: NetworkError| CallError::Unreachable { reason: error.to_string() };
    let mut link = ports.network.connect(address).await.map_err(unreachable)?;
    let hello = Request::Hello(Hello {
        version_min: wire::messages::VERSION_MIN,
        version_max: wire::messages::VERSION_MAX,
        cluster: cluster.map(str::to_owned),
        peer: me.clone(),
    });
    link.sender.send(&mut |frame| wire::messages::encode_request(0, &hello, frame)).map_err(unreachable)?;
    let answer = link.receiver.receive().await.map_err(unreachable)?;
    let Some(answer) = answer else {
        return Err(CallError::Unreachable { reason: format!("{address} closed the connection") });
    };
    match wire::messages::decode_response(answer) {
        Ok((_, Response::Welcome(_))) => {}
        Ok((_, Response::Failure(failure))) => return Err(CallError::Refused(failure)),
        _ => {
            return Err(CallError::Unreachable {
                reason: format!("{address} did not answer the handshake as a node does"),
            });
        }
    }
    let calls = Arc::new(Mutex::new(Calls::default()));
    let broken = Arc::new(AtomicBool::new(false));
    let opened = PeerLink { sender: link.sender.clone(), calls: calls.clone(), broken: broken.clone() };
    ports.tasks.spawn(Box::pin(hand_out_answers(link.receiver, link.sender, calls, broken)));
    Ok(Arc::new(opened))
}

impl PeerLink {
    /// Whether calls would fail at once.
    pub(super) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    /// Closes it; waiting calls fail as broken.
    pub(super) fn close(&self) {
        self.sender.close();
    }

    /// Sends a request.
    pub(super) fn call(&self, request: Request) -> Call {
        let (waiter, answer) = tokio::sync::oneshot::channel();
        let id = {
            let mut calls = self.calls.lock();
            // Read under the lock: whoever drains the calls has set it before.
            if self.is_broken() {
                return Call::Ready(Err(CallError::Unreachable {
                    reason: "the connection broke".to_owned(),
                }));
            }
            if calls.waiting() >= CALLS_MAX {
                let reason = format!("{CALLS_MAX} calls wait for this node");
                return Call::Ready(Err(CallError::Unreachable { reason }));
            }
            calls.insert(waiter)
        };
        let sent = self.sender.send(&mut |frame| wire::messages::encode_request(id, &request, frame));
        if let Err(error) = sent {
            self.calls.lock().remove(id);
            return Call::Ready(Err(CallError::Unreachable { reason: error.to_string() }));
        }
        Call::Pending(Box::pin(Answer { id, answer, calls: self.calls.clone() }))
    }
}

/// Waits for one answer; forgets the call when dropped.
struct Answer {
    id: u64,
    answer: Receiver<Result<Response, CallError>>,
    calls: Arc<Mutex<Calls>>,
}

impl Future for Answer {
    type Output = Result<Response, CallError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.answer).poll(context).map(|answer| answer.unwrap_or(Err(CallError::Broken)))
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.calls.lock().remove(self.id);
    }
}

async fn hand_out_answers(
    mut receiver: Box<dyn LinkReceiver>,
    sender: Arc<dyn LinkSender>,
    calls: Arc<Mutex<Calls>>,
    broken: Arc<AtomicBool>,
) {
    while let Ok(Some(frame)) = receiver.receive().await {
        let Ok((id, response)) = wire::messages::decode_response(frame) else {
            tracing::warn!("answer cannot be decoded, connection closed");
            break;
        };
        let waiter = calls.lock().remove(id);
        if let Some(waiter) = waiter {
            let answer = match response {
                Response::Failure(failure) => Err(CallError::Refused(failure)),
                response => Ok(response),
            };
            // A caller that gave up is no longer interested.
            let _ = waiter.send(answer);
        }
    }
    broken.store(true, Ordering::Release);
    sender.close();
    let waiting = calls.lock().drain();
    for waiter in waiting {
        let _ = waiter.send(Err(CallError::Broken));
    }
}
