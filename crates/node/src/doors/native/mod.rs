//! The native door: links of clients and other nodes.
//!
//! Each link is served on the worker that accepted it. What can be answered at once is answered before the next
//! frame is read, so a burst of requests costs one burst of answers; what must wait for others runs as a task of its
//! own and answers when it is done.
//!
//! **Architecture Invariant:** every request that was decoded is answered exactly once, also when it is refused.

pub(in crate::doors) mod control;
mod coordinate;
mod judged;
mod kinds;
mod news;
mod rest;
pub(in crate::doors) mod rights;
mod telling;
mod window;

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use client::peers::Call;
use futures_util::future::{Either, select};
use model::limits::{FRAME_BYTES_MAX, KEY_BYTES_MAX};
use model::{Moment, NodeId};
use protocol::admission::{self, Admission, ConnectionAccount, Permit};
use protocol::gossip::Row;
use protocol::report::{Parts, Report};
use runtime::{BoxFuture, Link, LinkReceiver, LinkSender, NetworkError, Ports, Proof};
use wire::error::ErrorCode;
use wire::messages::{
    ClusterDocument, Failure, Gossip, Hello, Peer, Pong, ReportGot, Request, Response, Welcome,
    decode_request, encode_response, negotiate, request_id,
};

use self::control::{ControlPlace, is_control, is_for_headmasters};
use self::coordinate::coordinate;
use self::kinds::{is_change, is_replicas, is_round_step};
use self::news::News;
use crate::access::Caller;
use crate::antientropy::AntiEntropy;
use crate::audit::Asker;
use crate::collection::Collection;
use crate::doors::counters::{Burst, DoorCounters, Operation};
use crate::front::{Front, StampEntry};
use crate::metrics::Counter;

pub use control::{ControlRoom, HEADMASTER};
pub(crate) use rest::Rest;
pub use telling::Telling;

/// Bytes of answers that may wait on one link before no more of its requests are read: whoever does not read its
/// answers must not fill this node's memory, and whoever merely asked for much shall get it.
const ANSWERS_QUEUED_BYTES_MAX: usize = 16 * 1024 * 1024;

/// How long a link may take to say who it is.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);

/// How often a link that waits for its answers to be read is looked at.
const DRAIN_INTERVAL: Duration = Duration::from_millis(1);

/// Makes these parts of a node's report, as long as there is a node.
pub type Reporting = Arc<dyn Fn(Parts) -> Option<Report> + Send + Sync>;

/// Answers what may take a while: orders and plans, or artifacts.
pub type Answers = Arc<dyn Fn(Request) -> BoxFuture<'static, Result<Response, Failure>> + Send + Sync>;

/// What all links of one worker share.
#[derive(Clone)]
pub struct Service {
    /// Where requests enter.
    pub front: Arc<Front>,
    /// The doors to the world.
    pub ports: Ports,
    /// What the node says of itself.
    pub report: Reporting,
    /// Puts orders into the coordination service, and reads there what came of them.
    pub orders: Answers,
    /// Gives what the node has of artifacts.
    pub artifacts: Answers,
    /// Compares with other nodes and looks after the records.
    pub antientropy: Arc<AntiEntropy>,
    /// How much the node may take in, over all workers and doors.
    pub admission: Arc<Admission>,
    /// How much of the control plane it takes in beside that.
    pub control: Arc<ControlRoom>,
    /// What it tells about itself and the others.
    pub telling: Telling,
    /// Requests of this worker.
    pub requests: Counter,
    /// How long its answers take.
    pub(crate) counters: Arc<DoorCounters>,
    /// This node's part in collection rounds.
    pub(crate) collection: Arc<Collection>,
}

/// One link under service.
struct Served {
    service: Service,
    sender: Arc<dyn LinkSender>,
    agreed: Agreed,
    connection: Arc<ConnectionAccount>,
    caller: Arc<Caller>,
    /// The other end's address.
    peer: String,
    /// Where a headmaster found no place among clients: it is answered nothing else than it needs.
    place: Option<ControlPlace>,
}

/// What the greeting has settled for a link.
#[derive(Clone, Copy)]
struct Agreed {
    /// How its requests enter.
    entry: StampEntry,
    /// Which node is at its other end, and under which incarnation, if it is one.
    node: Option<(NodeId, u64)>,
}

impl Service {
    /// Serves one link until it closes.
    pub async fn serve(self, link: Link) {
        match self.admission.connect() {
            Ok(connection) => self.serve_admitted(link, connection).await,
            Err(full) => {
                self.counters.refused(ErrorCode::TooManyConnections);
                let failure = Failure::new(ErrorCode::TooManyConnections, full.to_string());
                send(&*link.sender, 0, &Response::Failure(failure));
                self.part(link).await;
            }
        }
    }

    /// Waits until a refused peer has closed the link, so that it can read why.
    async fn part(self, link: Link) {
        let Some(_farewell) = self.admission.farewell() else { return };
        let Link { sender, mut receiver, .. } = link;
        // Nothing more will be said.
        drop(sender);
        let reading = async { while let Ok(Some(_)) = receiver.receive().await {} };
        select(std::pin::pin!(reading), self.ports.clock.sleep(admission::FAREWELL_TIME_MAX)).await;
    }

    async fn serve_admitted(self, mut link: Link, mut connection: Arc<ConnectionAccount>) {
        // A greeting is short.
        link.receiver.bound(Box::new(|bytes| bytes == 0));
        let timer = self.ports.clock.sleep(HANDSHAKE_TIME_MAX);
        let (agreed, place) =
            match select(Box::pin(self.shake_hands(&mut link, &mut connection)), timer).await {
                Either::Left((Some(greeted), _)) => greeted,
                // Refused, or silent: whoever connects and says nothing must not hold a place.
                _ => return,
            };
        let mut coming = connection.coming();
        let (room, clock) = (coming.place(), self.ports.clock.clone());
        link.receiver.bound(Box::new(move |bytes| coming.hold(bytes, clock.now()).is_ok()));
        let (clock, caller) = (self.ports.clock.clone(), Arc::new(Caller::new(link.proof)));
        let (sender, peer) = (link.sender, link.peer.clone());
        let served = Served { service: self, sender, agreed, connection, caller, peer, place };
        let mut rest =
            Rest::new(served.service.ports.clock.clone(), served.service.admission.limits().rest_time_max);
        let mut window = window::Window::new();
        let mut burst = Burst::new(served.service.counters.clone());
        loop {
            let receiver = &mut link.receiver;
            let received = poll_fn(|context| match receiver.poll_receive(context) {
                Poll::Ready(received) => Poll::Ready(Ok(received)),
                Poll::Pending => {
                    burst.settle();
                    match receiver.begun() {
                        Some((which, come)) => {
                            if room.poll(come, clock.now(), context).is_ready() {
                                // Asked for room once more, the receiver finds none, and passes the rest over.
                                context.waker().wake_by_ref();
                            }
                            rest.poll(which, come, context).map(|()| Err(rest.failure()))
                        }
                        None => Poll::Pending,
                    }
                }
            });
            let received = match received.await {
                Ok(received) => received,
                Err(failure) => return served.part(link.peer, link.receiver, &failure).await,
            };
            match received {
                Ok(Some(frame)) => {
                    while served.sender.queued_bytes() > ANSWERS_QUEUED_BYTES_MAX {
                        served.service.ports.clock.sleep(DRAIN_INTERVAL).await;
                    }
                    if !request_id(&frame).is_none_or(|id| window.is_first(id)) {
                        continue;
                    }
                    if !served.take_in(frame, &mut burst) {
                        return;
                    }
                }
                Ok(None) => return,
                Err(NetworkError::NotKept { head }) => served.refuse_unread(&head),
                Err(error) => {
                    tracing::debug!(peer = %link.peer, %error, "link ended");
                    return;
                }
            }
        }
    }

    /// Greets; `None` when the link is refused.
    async fn shake_hands(
        &self,
        link: &mut Link,
        connection: &mut Arc<ConnectionAccount>,
    ) -> Option<(Agreed, Option<ControlPlace>)> {
        let frame = link.receiver.receive().await.ok().flatten()?;
        let id = request_id(&frame).unwrap_or(0);
        let answer = match decode_request(frame) {
            Ok((_, Request::Hello(hello))) => self.welcome(&hello, link.proof).and_then(|welcome| {
                let (peer, entry, node) = match hello.peer {
                    Peer::Node { id, incarnation } => {
                        (admission::Peer::Node, StampEntry::Passed, Some((id, incarnation)))
                    }
                    Peer::Client { .. } => (admission::Peer::Client, StampEntry::Client, None),
                };
                let place = match connection.identify(peer) {
                    Ok(()) => None,
                    Err(full) => {
                        let refused = || Failure::new(ErrorCode::TooManyConnections, full.to_string());
                        Some(self.control.place(&hello.peer, connection).ok_or_else(refused)?)
                    }
                };
                Ok((welcome, (Agreed { entry, node }, place)))
            }),
            Ok((_, other)) => Err(Failure::new(
                ErrorCode::Malformed,
                format!("the first request on a connection must be hello, and this one was {}", other.name()),
            )),
            Err(error) => Err(Failure::new(ErrorCode::Malformed, error.to_string())),
        };
        match answer {
            Ok((welcome, greeted)) => {
                send(&*link.sender, id, &Response::Welcome(welcome));
                Some(greeted)
            }
            Err(failure) => {
                self.counters.refused(failure.code);
                let (caller, view) = (Caller::new(link.proof), self.front.replica().view());
                let asker = Asker { caller: &caller, from: &link.peer };
                self.counters.audit().refused(asker, view, "hello", &failure);
                tracing::warn!(peer = %link.peer, error = %failure, "handshake refused");
                send(&*link.sender, id, &Response::Failure(failure));
                None
            }
        }
    }

    fn welcome(&self, hello: &Hello, proof: Proof) -> Result<Welcome, Failure> {
        let view = self.front.replica().view().get();
        let cluster = view.cluster();
        let Some(version) = negotiate(hello.version_min, hello.version_max) else {
            return Err(Failure::new(
                ErrorCode::UnsupportedVersion,
                format!(
                    "the client speaks versions {} to {} of the protocol, and this node {} to {}",
                    hello.version_min,
                    hello.version_max,
                    wire::messages::VERSION_MIN,
                    wire::messages::VERSION_MAX
                ),
            ));
        };
        if let Some(theirs) = &hello.cluster
            && !cluster.may_be(theirs)
        {
            return Err(Failure::new(
                ErrorCode::WrongCluster,
                format!("the client belongs to cluster {theirs:?}, and this node to {:?}", cluster.called()),
            ));
        }
        if matches!(hello.peer, Peer::Node { id, .. } if id == self.front.replica().node()) {
            return Err(Failure::new(
                ErrorCode::DuplicateNode,
                format!("the peer uses the id {}, which is this node's", self.front.replica().node()),
            ));
        }
        if cluster.is_closed() && proof != Proof::Node && matches!(hello.peer, Peer::Node { .. }) {
            return Err(Failure::new(
                ErrorCode::Unauthenticated,
                "the peer says that it is a node, and has shown no node's certificate",
            ));
        }
        Ok(Welcome {
            version,
            cluster: cluster.called(),
            node: self.front.replica().node(),
            generation: cluster.generation,
            key_bytes_max: KEY_BYTES_MAX as u32,
            frame_bytes_max: FRAME_BYTES_MAX as u32,
        })
    }
}

impl Served {
    /// Ends a link whose other end does not go on with a frame.
    async fn part(self, peer: String, mut receiver: Box<dyn LinkReceiver>, failure: &Failure) {
        tracing::warn!(%peer, error = %failure, "link closed: the rest of a frame did not come");
        // About no request: which it was may not have come.
        send(&*self.sender, 0, &Response::Failure(failure.clone()));
        let Served { service, sender, .. } = self;
        // Nothing of it is held while it reads this.
        receiver.bound(Box::new(|bytes| bytes == 0));
        service.part(Link { peer, sender, receiver, proof: Proof::None }).await;
    }

    /// Takes in one request; false when the link cannot go on.
    fn take_in(&self, frame: Bytes, burst: &mut Burst) -> bool {
        let (id, bytes) = (request_id(&frame), frame.len());
        let (id, request) = match (decode_request(frame), id) {
            (Ok(decoded), _) => decoded,
            (Err(error), id) => {
                let failure = Failure::new(error.code(), error.to_string());
                self.answer(id.unwrap_or(0), Err(failure));
                return false;
            }
        };
        self.service.requests.increment();
        if let Err(failure) = self.judged(&request) {
            return self.refuse(id, failure);
        }
        let timed = Operation::of(&request).map(|operation| (operation, burst.began()));
        match request {
            request if self.place.is_some() && !is_for_headmasters(&request) => {
                let detail = format!(
                    "{} is not answered to a headmaster that is over the limit of clients",
                    request.name()
                );
                self.answer(id, Err(Failure::new(ErrorCode::TooManyConnections, detail)));
            }
            request if is_replicas(&request) => self.ask_replica((id, bytes), request, timed, burst),
            Request::Ping(_) | Request::ClusterGet(_) | Request::ReportGet(_) => {
                self.answer(id, self.tell(&request))
            }
            Request::TreeSums(_)
            | Request::TreeNodes(_)
            | Request::KeyDigests(_)
            | Request::RecordsGet(_)
            | Request::RecordsPage(_) => {
                let Some(permit) = self.permit(id, bytes) else { return true };
                self.run(id, permit, None, self.service.antientropy.clone().answer(request));
            }
            change if is_change(&change) => {
                let Some(permit) = self.permit_change(id, bytes, &change) else { return true };
                self.run(id, permit, None, self.change(change));
            }
            Request::Authenticate(authenticate) => self.answer(id, self.authenticate(&authenticate)),
            Request::Hello(_) => {
                let detail = "hello is allowed once, as the first request on a connection";
                self.answer(id, Err(Failure::new(ErrorCode::Malformed, detail)));
            }
            Request::Gossip(_) if self.agreed.entry != StampEntry::Passed => {
                let detail = "gossip is taken from nodes only, and this connection is a client's";
                self.answer(id, Err(Failure::new(ErrorCode::UnknownRequest, detail)));
            }
            Request::Gossip(gossip) if !self.is_of_its_sender(&gossip) => {
                let detail = "the gossip names another node or incarnation as its sender than the connection's greeting";
                self.answer(id, Err(Failure::new(ErrorCode::Malformed, detail)));
            }
            Request::Gossip(_) | Request::MetricsGet(_) => {
                self.answer(id, self.service.telling.answer(request));
            }
            Request::EventsGet(get) => {
                let Some(permit) = self.permit(id, bytes) else { return true };
                self.run(id, permit, None, self.events(get));
            }
            step if self.agreed.entry == StampEntry::Passed && is_round_step(&step) => {
                return self.take_step(id, bytes, step);
            }
            coordinated => {
                let Some(permit) = self.permit(id, bytes) else { return true };
                let (front, entry) = (self.service.front.clone(), self.agreed.entry);
                self.run(id, permit, timed, async move { coordinate(&front, coordinated, entry).await });
            }
        }
        true
    }

    /// Asks the replica of this process. A merge is admitted before it is carried out: what was carried out is not answered
    /// with a refusal.
    fn ask_replica(&self, (id, bytes): (u64, usize), request: Request, timed: Timed, burst: &mut Burst) {
        let (news, replica) = (News::of(&request), self.service.front.replica());
        // What another node asks for its own client was counted there.
        if let (Request::ReplicaGet(get), None) = (&request, self.agreed.node) {
            replica.note_part(get);
        }
        let admitted = match &request {
            Request::ReplicaMerge(_) => match self.permit(id, bytes) {
                Some(permit) => Some(permit),
                None => return,
            },
            _ => None,
        };
        match replica.call(request) {
            Call::Ready(answer) => self.answer_at_once(id, news.refusal(replica, answer), timed, burst),
            Call::Pending(future) => {
                let Some(permit) = admitted.or_else(|| self.permit(id, bytes)) else { return };
                let replica = replica.clone();
                self.run(id, permit, timed, async move { news.refusal(&replica, future.await) });
            }
        }
    }

    /// Whether a table was made by the node at the other end: what that tells of itself is believed.
    fn is_of_its_sender(&self, gossip: &Gossip) -> bool {
        self.agreed.node.is_some_and(|(node, incarnation)| {
            let own = |row: &&Row| row.node == node;
            gossip.from == node && gossip.rows.iter().filter(own).all(|row| row.incarnation == incarnation)
        })
    }

    /// Answers at once, also while the node can take in no more requests. A report is a walk over numbers, and reads no
    /// record.
    fn tell(&self, request: &Request) -> Result<Response, Failure> {
        Ok(match request {
            Request::ClusterGet(_) => {
                let json = self.service.front.replica().view().get().document().clone();
                Response::ClusterDocument(ClusterDocument { json })
            }
            Request::ReportGet(wanted) => match (self.service.report)(wanted.parts) {
                Some(report) => ReportGot::of(&report).into(),
                None => return Err(Failure::new(ErrorCode::ShuttingDown, "the node has stopped")),
            },
            _ => Response::Pong(Pong {}),
        })
    }

    /// Refuses a request that there was no room to read.
    fn refuse_unread(&self, head: &Bytes) {
        let failure = Failure::new(
            ErrorCode::Overloaded,
            "the requests that this node is receiving have reached its limit of bytes",
        );
        self.answer(request_id(head).unwrap_or(0), Err(failure));
    }

    /// A step of a collection round, which only nodes ask for. It may read and write a thousand keys, so it runs where
    /// it keeps no request waiting.
    fn take_step(&self, id: u64, bytes: usize, step: Request) -> bool {
        if let Some(permit) = self.permit(id, bytes) {
            let (collection, sender) = (self.service.collection.clone(), self.sender.clone());
            let counters = self.service.counters.clone();
            self.service.ports.tasks.spawn_background(Box::pin(async move {
                let answer = counted(&counters, collection.answer(step).await);
                drop(permit);
                send(&*sender, id, &answer);
            }));
        }
        true
    }

    /// A place for one more request of this many bytes; without one the request has been refused.
    fn permit(&self, id: u64, bytes: usize) -> Option<Permit> {
        match self.connection.admit(bytes) {
            Ok(permit) => Some(permit),
            Err(full) => {
                self.answer(id, Err(not_admitted(&full)));
                None
            }
        }
    }

    /// The same for what is asked of orders, plans and artifacts: what the control plane asks has other room, too.
    fn permit_change(&self, id: u64, bytes: usize, change: &Request) -> Option<Permit> {
        let (control, own) = (&self.service.control, || self.connection.admit(bytes));
        let admitted = match (&self.place, is_control(change)) {
            (Some(_), _) => control.admit(bytes),
            (None, true) => own().or_else(|full| control.admit(bytes).map_err(|_| full)),
            (None, false) => own(),
        };
        admitted.map_err(|full| self.answer(id, Err(not_admitted(&full)))).ok()
    }

    /// Runs a request beside the link and answers when it is done.
    fn run(
        &self,
        id: u64,
        permit: Permit,
        timed: Timed,
        request: impl Future<Output = Result<Response, Failure>> + Send + 'static,
    ) {
        let (sender, counters) = (self.sender.clone(), self.service.counters.clone());
        self.service.ports.tasks.spawn(Box::pin(async move {
            let answer = counted(&counters, request.await);
            drop(permit);
            send(&*sender, id, &answer);
            if let Some((operation, began)) = timed {
                counters.took(operation, began);
            }
        }));
    }

    fn answer(&self, id: u64, answer: Result<Response, Failure>) {
        let answer = counted(&self.service.counters, answer);
        send(&*self.sender, id, &answer);
    }

    /// Refuses a request, after which the link goes on.
    fn refuse(&self, id: u64, failure: Failure) -> bool {
        self.answer(id, Err(failure));
        true
    }

    /// Answers before the next frame is read: together with what came with it.
    fn answer_at_once(&self, id: u64, answer: Result<Response, Failure>, timed: Timed, burst: &mut Burst) {
        self.answer(id, answer);
        if let Some((operation, _)) = timed {
            burst.answered(operation);
        }
    }
}

/// What a request does and when it arrived, if its latency is measured.
type Timed = Option<(Operation, Moment)>;

/// An answer as it is sent, counted if it is a refusal.
fn counted(counters: &DoorCounters, answer: Result<Response, Failure>) -> Response {
    answer.unwrap_or_else(|failure| {
        counters.refused(failure.code);
        Response::Failure(failure)
    })
}

/// Why a request was not admitted, as it goes to whoever sent it.
pub(crate) fn not_admitted(full: &admission::Overloaded) -> Failure {
    let code = match full {
        admission::Overloaded::Stopping => ErrorCode::ShuttingDown,
        _ => ErrorCode::Overloaded,
    };
    Failure::new(code, full.to_string())
}

fn send(sender: &dyn LinkSender, id: u64, response: &Response) {
    let refused = match sender.send(&mut |frame| encode_response(id, response, frame)) {
        Ok(()) => return,
        Err(NetworkError::FrameTooLong { bytes }) => Failure::new(
            ErrorCode::FrameTooLong,
            format!(
                "the answer of {bytes} bytes is over the limit of {FRAME_BYTES_MAX} for a frame: ask for fewer keys at once"
            ),
        ),
        Err(NetworkError::Overloaded) => Failure::new(
            ErrorCode::Overloaded,
            "the unread answers on this connection have reached the limit of bytes: read them first",
        ),
        // The peer is gone.
        Err(_) => return,
    };
    // A peer that does not read finds no answer at all: its own deadline tells it.
    let _ = sender.send(&mut |frame| encode_response(id, &Response::Failure(refused.clone()), frame));
}
