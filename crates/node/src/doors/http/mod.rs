//! The HTTP door: keys by GET, PUT and DELETE, and what watches a node: metrics, health, readiness.
//!
//! ```text
//!   stream ─▶ runtime::http ─▶ Caller: stranger? ─▶ routes: which? ─▶ secret? ─▶ keys ─▶ Front
//!                                  └──────────┴─────────────┴─────────────────────┴─▶ Answer
//! ```
//!
//! A connection carries one request at a time, or by HTTP/2 one on each of its streams. What no answer may say without consensus is not said: see
//! `docs/reference/http.md`.
//!
//! **Architecture Invariant:** 404 is said of a key alone, where R replicas said so. A status from 400 to 499, and 503,
//! say that nothing was written; what may have been is 504. No answer lets a page of another origin read it.

mod account;
mod answer;
mod batch;
mod batch_form;
mod counters;
mod desk;
mod event_stream;
mod guest;
mod keys;
mod openapi;
mod outcomes;
mod pages;
mod parameters;
mod preconditions;
mod reading;
mod refused;
mod routes;
mod store_facts;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use protocol::admission::{Admission, ConnectionAccount, Overloaded, REST_BYTES_MIN};
use runtime::http::base64::prelude::{BASE64_STANDARD, Engine as _};
use runtime::http::{
    self as web, Arrived, Arriving, HeaderMap, Method, Parts, Response, StatusCode, header, path, strangers,
};
use runtime::{BoxFuture, Proof};
use tokio::io::{AsyncRead, AsyncWrite};
use wire::error::ErrorCode;
use wire::messages::Failure;

use self::account::AnswerRoom;
use self::answer::{HttpAnswer, JSON};
use self::counters::Requests;
use self::event_stream::Readers;
use self::guest::Guest;
use self::refused::{full, malformed};
use self::routes::{Right, RouteFound, RouteTask};
use crate::access;
use crate::audit::Asker;
use crate::doors::closing::{Closing, DoorStage};
use crate::doors::counters::DoorCounters;
use crate::doors::parting::part;
use crate::doors::secret::same;
use crate::front::Front;
use crate::metrics::Metrics;
use crate::view::CurrentView;

pub(crate) use self::desk::Desk;
pub use runtime::http::strangers::Scheme;

/// Settings of the door.
#[derive(Clone, Debug, Default)]
pub struct HttpOptions {
    /// The password that requests must give, but for health and readiness. Default: none.
    pub password: Option<String>,
    /// Host names, without ports, under which clients reach the node beside its addresses and `localhost`. Default: none.
    pub names: Vec<String>,
}

/// What all workers' doors of one node share.
pub struct HttpShared {
    options: HttpOptions,
    admission: Arc<Admission>,
    next_id: AtomicU64,
    /// Wakes each connection when the door closes.
    clients: Mutex<BTreeMap<u64, Arc<AtomicWaker>>>,
    closing: Closing,
    /// Who reads events as they happen.
    readers: Arc<Readers>,
}

impl HttpShared {
    /// Nobody is connected yet. `admission` says how much the node may take in, over all its doors.
    pub fn new(options: HttpOptions, admission: Arc<Admission>) -> Arc<Self> {
        let (clients, closing, readers) = (Mutex::default(), Closing::default(), Arc::default());
        Arc::new(HttpShared { options, admission, next_id: AtomicU64::new(1), clients, closing, readers })
    }

    /// Connections now.
    pub fn connections(&self) -> usize {
        self.clients.lock().len()
    }

    /// Requests that are answered with events as they happen.
    pub(crate) fn event_readers(&self) -> usize {
        self.readers.count()
    }

    /// Closes each connection behind its next answer from now on: the node will stop.
    pub(crate) fn close_after_answers(&self) {
        self.closing.reach(DoorStage::AfterAnswers);
    }

    /// Closes each connection that is between two requests, now or later.
    pub(crate) fn close_between_requests(&self) {
        self.closing.reach(DoorStage::BetweenCommands);
        self.clients.lock().values().for_each(|waker| waker.wake());
    }
}

/// Whether the node can answer for its partitions, or why not.
pub type Ready = Arc<dyn Fn() -> Result<(), Failure> + Send + Sync>;

/// The door of one worker.
#[derive(Clone)]
pub struct Door {
    front: Arc<Front>,
    shared: Arc<HttpShared>,
    counters: Arc<DoorCounters>,
    requests: Arc<Requests>,
    metrics: Arc<Metrics>,
    ready: Ready,
    desk: Arc<Desk>,
}

impl Door {
    /// Requests enter at `front`.
    pub(crate) fn new(
        front: Arc<Front>,
        shared: Arc<HttpShared>,
        counters: Arc<DoorCounters>,
        (metrics, ready): (Arc<Metrics>, Ready),
        desk: Arc<Desk>,
    ) -> Self {
        let requests = Arc::new(Requests::new(metrics.clone()));
        Door { front, shared, counters, requests, metrics, ready, desk }
    }

    /// Completes when the door takes no new connections any more, because its node will stop.
    pub async fn closing(&self) {
        self.shared.closing.begun().await;
    }

    /// Serves one connection by HTTP/1.1, from the address `peer`, until either side closes it; `scheme` says whether it
    /// is encrypted.
    pub async fn serve<S>(&self, stream: S, peer: String, scheme: Scheme)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let unread = match Guest::admit(self, peer, scheme) {
            Err(full) => {
                return self.part(stream, &HttpAnswer::failure(&self.too_many(&full)).into_bytes()).await;
            }
            Ok(guest) => {
                let (account, caller) = guest.caller(1);
                web::serve(stream, self.front.clock().clone(), self.limits(), account, &caller).await
            }
        };
        if let Some(stream) = unread {
            self.part(stream, b"").await;
        }
    }

    /// As [`Door::serve`], by HTTP/2. That is offered over TLS only.
    pub async fn serve_streams<S>(&self, stream: S, peer: String)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let unread = match Guest::admit(self, peer, Scheme::Https) {
            Err(full) => {
                let words = web::streams::refusal(&self.too_many(&full).to_string());
                return self.part(stream, &words).await;
            }
            Ok(guest) => web::streams::serve(stream, self.front.clock().clone(), self.limits(), &guest).await,
        };
        if let Some(stream) = unread {
            self.part(stream, b"").await;
        }
    }

    /// What one connection may do.
    fn limits(&self) -> web::Limits {
        web::Limits {
            head_bytes_max: web::HEAD_BYTES_MAX,
            idle_time_max: web::IDLE_TIME_MAX,
            rest_bytes_min: REST_BYTES_MIN,
            rest_time_max: self.shared.admission.limits().rest_time_max,
        }
    }

    /// Counts a connection for which there is no place.
    fn too_many(&self, full: &Overloaded) -> Failure {
        self.counters.refused(ErrorCode::TooManyConnections);
        Failure::new(ErrorCode::TooManyConnections, full.to_string())
    }

    async fn part<S>(&self, stream: S, last_words: &[u8])
    where
        S: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let stops = self.shared.closing.stage() > DoorStage::Open;
        part(stream, last_words, (&self.shared.admission, stops), self.front.clock()).await;
    }

    /// The documents by which callers are judged.
    fn view(&self) -> &CurrentView {
        self.front.replica().view()
    }
}

/// Who has not said who it is.
fn nobody() -> Arc<access::Caller> {
    Arc::new(access::Caller::new(Proof::None))
}

/// What `Authorization` gives as user and secret: a bearer token names no user.
fn credentials(value: &str) -> Option<(String, Vec<u8>)> {
    let (scheme, rest) = value.split_once(' ')?;
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some((String::new(), rest.trim().as_bytes().to_vec()));
    }
    let is_basic = scheme.eq_ignore_ascii_case("basic");
    let pair = is_basic.then(|| BASE64_STANDARD.decode(rest.trim()).ok())??;
    let colon = pair.iter().position(|&byte| byte == b':')?;
    Some((String::from_utf8_lossy(&pair[..colon]).into_owned(), pair[colon + 1..].to_vec()))
}

/// Who asks on one connection, or on one stream of it.
struct Caller<'a> {
    guest: &'a Guest<'a>,
    room: Arc<AnswerRoom>,
}

/// The last `Authorization` that was good, and whose it is: most clients give the same one with each request.
struct Last {
    given: Box<[u8]>,
    who: Arc<access::Caller>,
}

/// A request on its way to its answer.
struct HttpCall<'a> {
    door: &'a Door,
    /// Its address.
    peer: &'a str,
    admitted: &'a Arc<ConnectionAccount>,
    room: &'a Arc<AnswerRoom>,
    /// Who reads events as they happen on its connection.
    readers: &'a Arc<Readers>,
    head: &'a Parts,
    head_bytes: usize,
    found: RouteFound<'a>,
    who: Arc<access::Caller>,
}

impl web::Handler for Caller<'_> {
    fn answer(&self, arrived: Arrived) -> BoxFuture<'_, Response> {
        Box::pin(async move {
            let answer = match arrived {
                Arrived::Refused(why) => refused::before_its_end(why),
                Arrived::Request(head, body) => {
                    self.carry_out(&head, body).await.unwrap_or_else(|refused| refused)
                }
            };
            if let Some(code) = answer.code() {
                self.guest.door.counters.refused(code);
            }
            let known = |store: &str| self.guest.door.front.at_hand(store).is_some();
            self.guest.door.requests.count(answer.store().filter(|store| known(store)), answer.status());
            answer.into_response(self.guest.door.shared.closing.stage() > DoorStage::Open)
        })
    }
}

impl Caller<'_> {
    /// Writes down who was refused. `request` is no text of the caller's.
    fn noted(&self, who: &access::Caller, request: &'static str, refused: HttpAnswer) -> HttpAnswer {
        if let Some(failure) = refused.refusal() {
            let asker = Asker { caller: who, from: &self.guest.peer };
            self.guest.door.counters.audit().refused(asker, self.guest.door.view(), request, failure);
        }
        refused
    }

    /// Who asks, by what it gives. In a closed cluster that is a user, and its rights are asked for later. An open one may
    /// want the password.
    fn authenticated(&self, headers: &HeaderMap) -> Result<Arc<access::Caller>, HttpAnswer> {
        let (view, value) = (self.guest.door.view(), headers.get(header::AUTHORIZATION));
        let given = || value.and_then(|value| credentials(value.to_str().ok()?));
        if view.get().cluster().is_closed() {
            let Some(value) = value else { return Ok(nobody()) };
            if let Some(last) = &*self.guest.last.lock()
                && same(&last.given, value.as_bytes())
            {
                // It knows by itself when the user is removed, or the secret replaced.
                return Ok(last.who.clone());
            }
            let (who, Some((user, secret))) = (nobody(), given()) else {
                let detail = "the line Authorization is neither `Bearer SECRET` nor basic authentication";
                return Err(HttpAnswer::failure(&Failure::new(ErrorCode::Unauthenticated, detail)));
            };
            who.authenticate(view, &user, &secret).map_err(|failure| HttpAnswer::failure(&failure))?;
            *self.guest.last.lock() = Some(Last { given: value.as_bytes().into(), who: who.clone() });
            return Ok(who);
        }
        let Some(expected) = &self.guest.door.shared.options.password else { return Ok(nobody()) };
        match given().is_some_and(|(_, secret)| same(&secret, expected.as_bytes())) {
            true => Ok(nobody()),
            false => {
                let detail = "give the cluster's password as a bearer token, or by basic authentication with any user name";
                Err(HttpAnswer::failure(&Failure::new(ErrorCode::Unauthenticated, detail)))
            }
        }
    }

    async fn carry_out(&self, head: &Parts, body: Arriving) -> Result<HttpAnswer, HttpAnswer> {
        let door = self.guest.door;
        strangers::check(head, &door.shared.options.names, self.guest.scheme)
            .map_err(|stranger| refused::stranger(&stranger))
            .map_err(|refused| self.noted(&nobody(), "request", refused))?;
        let found = routes::find(&head.method, head.uri.path())?;
        let who = match found.route.right {
            Right::Nothing => nobody(),
            _ => self
                .authenticated(&head.headers)
                .map_err(|refused| self.noted(&nobody(), "authenticate", refused))?,
        };
        let (task, route) = (found.route.task, found.route);
        let Guest { peer, admitted, readers, .. } = self.guest;
        let (room, head_bytes) = (&self.room, body.head_bytes());
        let call = HttpCall { door, peer, admitted, room, readers, head, head_bytes, found, who };
        let answer = match task {
            RouteTask::Health => Ok(HttpAnswer::text("alive\n")),
            RouteTask::Ready => match (door.ready)() {
                Ok(()) => Ok(HttpAnswer::text("ready\n")),
                // Whatever the reason: ask again later.
                Err(failure) => Err(HttpAnswer::failure_as(StatusCode::SERVICE_UNAVAILABLE, &failure)),
            },
            RouteTask::OpenApi => call.counted(HttpAnswer::json(StatusCode::OK, openapi::DOCUMENT.clone())),
            RouteTask::Metrics => call.metrics(),
            RouteTask::Get => keys::get(&call).await,
            RouteTask::Put => keys::put(&call, body).await,
            RouteTask::Delete => keys::delete(&call, body).await,
            RouteTask::Page => Box::pin(pages::page(&call)).await,
            RouteTask::Batch => Box::pin(batch::batch(&call, body)).await,
            RouteTask::Events if event_stream::is_wanted(&head.headers) => event_stream::answer(&call),
            task => Box::pin(desk::answer(&call, task, body)).await,
        };
        let answer = answer.unwrap_or_else(|refused| self.noted(&call.who, route.name, refused));
        debug_assert!(
            route.may_answer(answer.status()),
            "{} is not in the table of {route:?}",
            answer.status()
        );
        Ok(answer)
    }
}

impl HttpCall<'_> {
    /// Who asks, for the audit log.
    fn asker(&self) -> Asker<'_> {
        Asker { caller: &self.who, from: self.peer }
    }

    /// Refuses who may not do this, in a closed cluster.
    fn judge(&self, store: &str, key: Option<&[u8]>) -> Result<(), HttpAnswer> {
        let Some(right) = self.found.route.right.asks() else { return Ok(()) };
        let judged = self.who.judge(self.door.view(), right, store, key);
        judged.map_err(|failure| HttpAnswer::failure(&failure))
    }

    /// The store that the path names, decoded.
    fn store(&self) -> Result<String, HttpAnswer> {
        let name = path::decode(self.found.names.first().copied().unwrap_or_default());
        let name = name.map_err(|error| malformed(error.to_string()))?;
        Ok(String::from_utf8_lossy(&name).into_owned())
    }

    /// Refuses who is nobody, in a closed cluster.
    fn known(&self) -> Result<(), HttpAnswer> {
        let known = self.who.user(self.door.view());
        known.map(|_| ()).map_err(|failure| HttpAnswer::failure(&failure))
    }

    /// Refuses a body that does not say that it is JSON: a web page may send others without asking.
    fn json_only(&self) -> Result<(), HttpAnswer> {
        let headers = &self.head.headers;
        let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let is_json = kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case(JSON));
        match is_json && !headers.contains_key(header::CONTENT_ENCODING) {
            true => Ok(()),
            false => Err(malformed(
                "the body is JSON as it is; say so with -H 'Content-Type: application/json', without Content-Encoding",
            )),
        }
    }

    /// The node's numbers, as Prometheus reads them.
    fn metrics(&self) -> Result<HttpAnswer, HttpAnswer> {
        self.judge("", None)?;
        self.counted(HttpAnswer::prometheus(self.door.metrics.text()))
    }

    /// Counts an answer until its reader has it.
    fn counted(&self, answer: HttpAnswer) -> Result<HttpAnswer, HttpAnswer> {
        let bytes = if self.is_head() { 0 } else { answer.bytes_len() };
        let room = self.room.hold(bytes, self.door.front.clock().now());
        Ok(answer.holding(room.map_err(|refused| full(&refused))?))
    }

    /// Whether it asks for the head of an answer only.
    fn is_head(&self) -> bool {
        self.head.method == Method::HEAD
    }
}
