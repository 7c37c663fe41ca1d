//! The HTTP door: keys by GET, PUT and DELETE, and what watches a node: metrics, health, readiness.
//!
//! ```text
//!   stream ─▶ runtime::http ─▶ Caller: stranger? ─▶ routes: which? ─▶ secret? ─▶ keys ─▶ Front
//!                                  └──────────┴─────────────┴─────────────────────┴─▶ Answer
//! ```
//!
//! A connection carries one request at a time. What no answer may say without consensus is not said: see
//! `docs/reference/http.md`.
//!
//! **Architecture Invariant:** 404 is said of a key alone, where R replicas said so. A status from 400 to 499, and 503,
//! say that nothing was written; what may have been is 504. No answer lets a page of another origin read it.

mod account;
mod answer;
mod keys;
mod numbers;
mod parameters;
mod preconditions;
mod refused;
mod routes;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use protocol::admission::{Admission, Connection, Peer, REST_BYTES_MIN};
use runtime::BoxFuture;
use runtime::http::{
    self as web, Arrived, Arriving, HeaderMap, Method, Parts, Response, StatusCode, header, strangers,
};
use tokio::io::{AsyncRead, AsyncWrite};
use wire::error::ErrorCode;
use wire::messages::Failure;

use self::account::InputAccount;
use self::answer::Answer;
use self::numbers::Requests;
use self::routes::{Found, Right, Task};
use crate::doors::closing::{Closing, Stage};
use crate::doors::native::not_admitted;
use crate::doors::numbers::DoorNumbers;
use crate::doors::parting::part;
use crate::doors::secret::same;
use crate::front::Front;
use crate::metrics::Metrics;

/// Settings of the door.
#[derive(Clone, Debug, Default)]
pub struct HttpOptions {
    /// The password that requests must give, but for health and readiness. Default: none.
    pub password: Option<String>,
    /// Host names, without ports, under which clients reach the node beside its addresses and `localhost`. Default: none.
    pub names: Vec<String>,
}

/// What all workers' doors of one node share.
pub struct Shared {
    options: HttpOptions,
    admission: Arc<Admission>,
    next_id: AtomicU64,
    /// Wakes each connection when the door closes.
    clients: Mutex<BTreeMap<u64, Arc<AtomicWaker>>>,
    closing: Closing,
}

impl Shared {
    /// Nobody is connected yet. `admission` says how much the node may take in, over all its doors.
    pub fn new(options: HttpOptions, admission: Arc<Admission>) -> Arc<Self> {
        let (clients, closing) = (Mutex::default(), Closing::default());
        Arc::new(Shared { options, admission, next_id: AtomicU64::new(1), clients, closing })
    }

    /// Connections now.
    pub fn connections(&self) -> usize {
        self.clients.lock().len()
    }

    /// Closes each connection behind its next answer from now on: the node will stop.
    pub(crate) fn close_after_answers(&self) {
        self.closing.reach(Stage::AfterAnswers);
    }

    /// Closes each connection that is between two requests, now or later.
    pub(crate) fn close_between_requests(&self) {
        self.closing.reach(Stage::BetweenCommands);
        self.clients.lock().values().for_each(|waker| waker.wake());
    }
}

/// Whether the node can answer for its partitions, or why not.
pub type Ready = Arc<dyn Fn() -> Result<(), Failure> + Send + Sync>;

/// The door of one worker.
#[derive(Clone)]
pub struct Door {
    front: Arc<Front>,
    shared: Arc<Shared>,
    numbers: Arc<DoorNumbers>,
    requests: Arc<Requests>,
    metrics: Arc<Metrics>,
    ready: Ready,
}

impl Door {
    /// Requests enter at `front`.
    pub(crate) fn new(
        front: Arc<Front>,
        shared: Arc<Shared>,
        numbers: Arc<DoorNumbers>,
        (metrics, ready): (Arc<Metrics>, Ready),
    ) -> Self {
        let requests = Arc::new(Requests::new(metrics.clone()));
        Door { front, shared, numbers, requests, metrics, ready }
    }

    /// Completes when the door takes no new connections any more, because its node will stop.
    pub async fn closing(&self) {
        self.shared.closing.begun().await;
    }

    /// Serves one connection until either side closes it.
    pub async fn serve<S>(&self, stream: S)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let admitted = self.shared.admission.connect().and_then(|mut connection| {
            connection.identify(Peer::Client)?;
            Ok(connection)
        });
        let admitted = match admitted {
            Ok(admitted) => admitted,
            Err(full) => {
                self.numbers.refused(ErrorCode::TooManyConnections);
                let failure = Failure::new(ErrorCode::TooManyConnections, full.to_string());
                return self.part(stream, &Answer::failure(&failure).into_bytes()).await;
            }
        };
        let (id, waker) =
            (self.shared.next_id.fetch_add(1, Ordering::Relaxed), Arc::<AtomicWaker>::default());
        self.shared.clients.lock().insert(id, waker.clone());
        let unread = {
            let account = InputAccount::new(&admitted, self.shared.clone(), waker);
            let caller = Caller { door: self, admitted };
            let limits = web::Limits {
                head_bytes_max: web::HEAD_BYTES_MAX,
                idle_time_max: web::IDLE_TIME_MAX,
                rest_bytes_min: REST_BYTES_MIN,
                rest_time_max: self.shared.admission.limits().rest_time_max,
            };
            web::serve(stream, self.front.clock().clone(), limits, Box::new(account), &caller).await
        };
        self.shared.clients.lock().remove(&id);
        if let Some(stream) = unread {
            self.part(stream, b"").await;
        }
    }

    async fn part<S>(&self, stream: S, last_words: &[u8])
    where
        S: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let stops = self.shared.closing.stage() > Stage::Open;
        part(stream, last_words, (&self.shared.admission, stops), self.front.clock()).await;
    }

    /// Refuses who does not give the password, if one is needed.
    fn check_secret(&self, headers: &HeaderMap) -> Result<(), Answer> {
        let Some(expected) = &self.shared.options.password else { return Ok(()) };
        let given = headers.get(header::AUTHORIZATION).and_then(|value| secret(value.to_str().ok()?));
        match given.is_some_and(|given| same(&given, expected.as_bytes())) {
            true => Ok(()),
            false => {
                let detail = "give the cluster's password as a bearer token, or by basic authentication with any user name";
                Err(Answer::failure(&Failure::new(ErrorCode::Unauthenticated, detail)))
            }
        }
    }
}

/// What `Authorization` gives as a secret: a bearer token, or the password of any user.
fn secret(value: &str) -> Option<Vec<u8>> {
    let (scheme, rest) = value.split_once(' ')?;
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(rest.trim().as_bytes().to_vec());
    }
    let pair = scheme
        .eq_ignore_ascii_case("basic")
        .then(|| web::base64::decode(rest.trim(), web::base64::Alphabet::Standard))??;
    let colon = pair.iter().position(|&byte| byte == b':')?;
    Some(pair[colon + 1..].to_vec())
}

/// Who asks on one connection.
struct Caller<'a> {
    door: &'a Door,
    admitted: Arc<Connection>,
}

/// A request on its way to its answer.
struct Call<'a> {
    door: &'a Door,
    admitted: &'a Arc<Connection>,
    head: &'a Parts,
    found: Found<'a>,
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
                self.door.numbers.refused(code);
            }
            let known = |store: &str| self.door.front.at_hand(store).is_some();
            self.door.requests.count(answer.store().filter(|store| known(store)), answer.status());
            answer.into_response(self.door.shared.closing.stage() > Stage::Open)
        })
    }
}

impl Caller<'_> {
    async fn carry_out(&self, head: &Parts, body: Arriving) -> Result<Answer, Answer> {
        let door = self.door;
        strangers::check(&head.method, &head.uri, &head.headers, &door.shared.options.names)
            .map_err(|stranger| refused::stranger(&stranger))?;
        let found = routes::find(&head.method, head.uri.path())?;
        if found.route.right != Right::Nothing {
            door.check_secret(&head.headers)?;
        }
        let (task, route) = (found.route.task, found.route);
        let call = Call { door, admitted: &self.admitted, head, found };
        let answer = match task {
            Task::Health => Ok(Answer::text("alive\n")),
            Task::Ready => match (door.ready)() {
                Ok(()) => Ok(Answer::text("ready\n")),
                // Whatever the reason: ask again later.
                Err(failure) => Err(Answer::failure_as(StatusCode::SERVICE_UNAVAILABLE, &failure)),
            },
            Task::Metrics => call.metrics(),
            Task::Get => keys::get(&call).await,
            Task::Put => keys::put(&call, body).await,
            Task::Delete => keys::delete(&call, body).await,
        };
        let answer = answer.unwrap_or_else(|refused| refused);
        debug_assert!(
            route.may_answer(answer.status()),
            "{} is not in the table of {route:?}",
            answer.status()
        );
        Ok(answer)
    }
}

impl Call<'_> {
    /// The node's numbers, as Prometheus reads them.
    fn metrics(&self) -> Result<Answer, Answer> {
        let text = self.door.metrics.text();
        let permit = self.admitted.admit(text.len()).map_err(|full| Answer::failure(&not_admitted(&full)))?;
        Ok(Answer::prometheus(text).holding(permit))
    }

    /// Whether it asks for the head of an answer only.
    fn is_head(&self) -> bool {
        self.head.method == Method::HEAD
    }
}
