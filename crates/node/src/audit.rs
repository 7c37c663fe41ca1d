//! Who ordered what of a node, and who was refused: for whoever must be able to tell later.
//!
//! ```text
//!   door ─▶ Audit::order   ─ carried out ─▶ one entry, with what came of it ─┐
//!   door ─▶ Audit::refused ─ folded ─▶ the first at once, then one for many ─┴─▶ Outlet ─▶ a file, in production
//! ```
//!
//! Refusals of the same caller are folded, so that a flood of them writes few lines: the first is written at once, the
//! others as a count after [`TELL_INTERVAL`], which doubles while they go on. Log-ins that succeed are not written: an HTTP
//! client gives its secret with each request. What a user may do stands in the cluster document, and what it ordered here.
//!
//! Must never: wait for the outlet, or hand out a secret, its digest, a key, a value, or text that a stranger has made.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use model::access::UserName;
use model::order::{Answer, Order};
use model::{Moment, NodeId, WallMillis};
use parking_lot::Mutex;
use runtime::Clock;
use wire::error::ErrorCode;
use wire::messages::{Failure, Request, Response};

use crate::access::Caller;
use crate::doors::native::Answers;
use crate::node::NodeConfig;
use crate::view::CurrentView;

/// Time until refusals that go on are told again.
const TELL_INTERVAL: Duration = Duration::from_secs(10);
/// So long is it at most.
const TELL_INTERVAL_MAX: Duration = Duration::from_secs(600);
/// Refusals that are told apart at one time. All others are one: [`Who::Others`].
const FOLDED_MAX: usize = 64;
/// Characters of what a caller says of itself.
const SAYS_CHARS_MAX: usize = 100;
/// Characters of what is said of a right that is lacking: it holds the name of a store as the caller wrote it.
const DETAIL_CHARS_MAX: usize = 250;

/// Where entries go.
pub trait Outlet: fmt::Debug + Send + Sync {
    /// Takes an entry. Never waits: what cannot be kept is lost, and said to be.
    fn write(&self, entry: Entry);
}

/// Who asked, as this node knows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    /// The holder of a node's certificate: a node or a headmaster.
    Node,
    /// A user, by its secret.
    User(UserName),
    /// The cluster is closed, and it has not said who it is.
    Nobody,
    /// The cluster is open.
    Anyone,
    /// Several, of whom there were too many to tell them apart.
    Others,
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// When, by the node's wall clock.
    pub at: WallMillis,
    /// At which node.
    pub node: NodeId,
    /// Who asked.
    pub who: Who,
    /// From which address; of refusals without its port. `None` of several.
    pub from: Option<String>,
    /// By which door: `native`, `redis` or `http`.
    pub door: &'static str,
    /// What happened.
    pub what: What,
}

/// What happened.
#[derive(Clone, Debug, PartialEq)]
pub enum What {
    /// Something was ordered.
    Order(Ordered),
    /// Something was refused.
    Refused(Refused),
}

/// An order, and what came of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Ordered {
    /// What; `None` of one that could not be read.
    pub order: Option<Box<Order>>,
    /// Who gave it by its own word, where the node does not know better.
    pub says: Option<String>,
    /// Its number, once it was put down.
    pub number: Option<u64>,
    /// What came of it.
    pub result: OrderResult,
}

/// What came of an order.
#[derive(Clone, Debug, PartialEq)]
pub enum OrderResult {
    /// A headmaster has carried it out, or refused it.
    Answered(Box<Answer>),
    /// It was put down, and its answer did not come while the caller waited.
    Given,
    /// The node has put nothing down, or does not know whether it has.
    Failed {
        /// Why not.
        code: ErrorCode,
        /// Which right is lacking, if that is why.
        detail: Option<String>,
    },
}

/// Requests that were refused for who asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The kind of request, command or path.
    pub request: &'static str,
    /// Why.
    pub code: ErrorCode,
    /// Which right is lacking, if that is why, of the first of them.
    pub detail: Option<String>,
    /// How many, since `since`.
    pub count: u64,
    /// When the first of them came.
    pub since: WallMillis,
}

/// A caller at a door.
#[derive(Clone, Copy)]
pub(crate) struct Asker<'a> {
    /// Who it is.
    pub(crate) caller: &'a Caller,
    /// Its address.
    pub(crate) from: &'a str,
}

/// The audit of one node, over all its doors and workers.
pub(crate) struct Audit {
    node: NodeId,
    clock: Arc<dyn Clock>,
    outlet: Option<Arc<dyn Outlet>>,
    folded: Mutex<BTreeMap<Same, Folded>>,
}

/// What refusals have in common that are told together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Same {
    who: Who,
    from: Option<String>,
    door: &'static str,
    request: &'static str,
    code: &'static str,
}

/// Refusals since they were told last.
struct Folded {
    code: ErrorCode,
    detail: Option<String>,
    count: u64,
    since: WallMillis,
    told_at: Moment,
    interval: Duration,
}

/// The audit as one door knows it.
#[derive(Clone)]
pub(crate) struct DoorAudit {
    audit: Arc<Audit>,
    door: &'static str,
}

impl Audit {
    /// Nothing has happened. Without an outlet nothing is written.
    pub(crate) fn new(node: NodeId, clock: Arc<dyn Clock>, outlet: Option<Arc<dyn Outlet>>) -> Arc<Audit> {
        Arc::new(Audit { node, clock, outlet, folded: Mutex::default() })
    }

    /// That of a node with these settings.
    pub(crate) fn of(config: &NodeConfig, clock: &Arc<dyn Clock>) -> Arc<Audit> {
        Audit::new(config.id, clock.clone(), config.audit.clone())
    }

    /// The same for one door.
    pub(crate) fn at(self: &Arc<Audit>, door: &'static str) -> DoorAudit {
        DoorAudit { audit: Arc::clone(self), door }
    }

    /// Writes what was refused since it was told last. `rest`: also what is not due yet, because the node stops.
    pub(crate) fn tell(&self, rest: bool) {
        let now = self.clock.now();
        let mut due = Vec::new();
        self.folded.lock().retain(|same, folded| {
            let is_due = now.since(folded.told_at) >= folded.interval;
            if folded.count == 0 {
                return !is_due;
            }
            if is_due || rest {
                due.push((same.clone(), folded.refused(same)));
                let interval = (2 * folded.interval).min(TELL_INTERVAL_MAX);
                (folded.count, folded.told_at, folded.interval) = (0, now, interval);
            }
            true
        });
        due.into_iter().for_each(|(same, refused)| self.write_refused(same, refused));
    }

    fn refuse(&self, same: Same, code: ErrorCode, detail: Option<String>) {
        let (at, told_at) = (self.clock.wall(), self.clock.now());
        let mut folded = self.folded.lock();
        let same = match folded.len() >= FOLDED_MAX && !folded.contains_key(&same) {
            true => Same { who: Who::Others, from: None, request: "", ..same },
            false => same,
        };
        if let Some(known) = folded.get_mut(&same) {
            if known.count == 0 {
                (known.since, known.detail) = (at, detail);
            }
            known.count += 1;
            return;
        }
        let mut first = Folded { code, detail, count: 1, since: at, told_at, interval: TELL_INTERVAL };
        let refused = first.refused(&same);
        first.count = 0;
        folded.insert(same.clone(), first);
        drop(folded);
        self.write_refused(same, refused);
    }

    fn write_refused(&self, Same { who, from, door, .. }: Same, refused: Refused) {
        self.write(who, from, door, What::Refused(refused));
    }

    fn write(&self, who: Who, from: Option<String>, door: &'static str, what: What) {
        if let Some(outlet) = &self.outlet {
            outlet.write(Entry { at: self.clock.wall(), node: self.node, who, from, door, what });
        }
    }
}

impl Folded {
    fn refused(&mut self, same: &Same) -> Refused {
        let Folded { code, count, since, .. } = *self;
        Refused { request: same.request, code, detail: self.detail.take(), count, since }
    }
}

impl DoorAudit {
    /// A request was refused. Only who asked matters here: other refusals are passed over. So orders that a right forbids
    /// are folded as all else.
    pub(crate) fn refused(
        &self,
        Asker { caller, from }: Asker<'_>,
        view: &CurrentView,
        request: &'static str,
        failure: &Failure,
    ) {
        if self.audit.outlet.is_some() && is_about_who(failure.code) {
            let (who, from) = (caller.who(view), Some(host(from)));
            let same = Same { who, from, door: self.door, request, code: failure.code.name() };
            self.audit.refuse(same, failure.code, detail_of(failure));
        }
    }

    /// Has an order carried out by `orders`, and writes what came of it. It is `signed` already.
    pub(crate) fn order(
        &self,
        Asker { caller, from }: Asker<'_>,
        view: &CurrentView,
        request: Request,
        orders: &Answers,
    ) -> impl Future<Output = Result<Response, Failure>> + Send + 'static {
        let is_order = matches!(request, Request::OrderGive(_)) && self.audit.outlet.is_some();
        let pending = is_order.then(|| Pending::of(caller.who(view), from, &request));
        let (answer, door) = (orders(request), self.clone());
        async move {
            let answer = answer.await;
            if let Some(pending) = pending {
                let (number, result) = result_of(&answer);
                door.write_order(pending, number, result);
            }
            answer
        }
    }

    fn write_order(&self, pending: Pending, number: Option<u64>, result: OrderResult) {
        let Pending { who, from, order, says } = pending;
        let what = What::Order(Ordered { order, says, number, result });
        self.audit.write(who, Some(from), self.door, what);
    }
}

/// An order before its answer.
struct Pending {
    who: Who,
    from: String,
    order: Option<Box<Order>>,
    says: Option<String>,
}

impl Pending {
    fn of(who: Who, from: &str, request: &Request) -> Pending {
        let (mut order, mut says) = (None, None);
        if let Request::OrderGive(give) = request {
            order = serde_json::from_slice(&give.json).ok();
            let is_its_word = !matches!(who, Who::User(_)) && !give.by.is_empty();
            says = is_its_word.then(|| give.by.chars().take(SAYS_CHARS_MAX).collect());
        }
        Pending { who, from: from.to_owned(), order, says }
    }
}

fn result_of(answer: &Result<Response, Failure>) -> (Option<u64>, OrderResult) {
    match answer {
        Ok(Response::OrderTold(told)) => {
            let answer: Option<Answer> = serde_json::from_slice(&told.json).unwrap_or(None);
            let result = answer.map_or(OrderResult::Given, |answer| OrderResult::Answered(Box::new(answer)));
            (Some(told.number).filter(|&number| number > 0), result)
        }
        Ok(_) => (None, OrderResult::Given),
        Err(failure) => (None, failed(failure)),
    }
}

fn failed(failure: &Failure) -> OrderResult {
    OrderResult::Failed { code: failure.code, detail: detail_of(failure) }
}

/// What the node says of a lack of rights, in words of its own. Other refusals may repeat what they were sent.
fn detail_of(failure: &Failure) -> Option<String> {
    let is_told = failure.code == ErrorCode::Forbidden && !failure.detail.is_empty();
    is_told.then(|| failure.detail.chars().take(DETAIL_CHARS_MAX).collect())
}

/// Whether a refusal is for who asks, and not for what.
fn is_about_who(code: ErrorCode) -> bool {
    matches!(code, ErrorCode::Unauthenticated | ErrorCode::Forbidden | ErrorCode::ForeignOrigin)
}

/// An address without its port: each connection has another one.
fn host(address: &str) -> String {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    if bare.parse::<IpAddr>().is_ok() { bare.to_owned() } else { host.to_owned() }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use model::{Cluster, Node, Ring, Zone};
    use runtime::{BoxFuture, Proof};

    use super::*;
    use crate::view::View;

    /// A clock that is set.
    #[derive(Default)]
    struct Dial(AtomicU64);

    impl Clock for Dial {
        fn now(&self) -> Moment {
            Moment::default().after(Duration::from_secs(self.0.load(Ordering::Relaxed)))
        }

        fn wall(&self) -> WallMillis {
            WallMillis(1000 * self.0.load(Ordering::Relaxed))
        }

        fn sleep_until(&self, _: Moment) -> BoxFuture<'static, ()> {
            Box::pin(std::future::pending())
        }
    }

    #[derive(Debug, Default)]
    struct Kept(Mutex<Vec<Entry>>);

    impl Outlet for Kept {
        fn write(&self, entry: Entry) {
            self.0.lock().push(entry);
        }
    }

    struct Stage {
        clock: Arc<Dial>,
        kept: Arc<Kept>,
        audit: Arc<Audit>,
        view: CurrentView,
    }

    impl Stage {
        fn new() -> Stage {
            let node = Node::new(NodeId(1), Zone("a".to_owned()), "h1:1", None);
            let ring = Ring::equal_slices_listing(4, &[(node.id, node.zone.clone())], 1);
            let cluster = Cluster::new("shop", vec![node], ring, Vec::new());
            let view = CurrentView::new(View::new(Arc::new(cluster), Vec::new()));
            let (clock, kept) = (Arc::<Dial>::default(), Arc::<Kept>::default());
            let audit = Audit::new(NodeId(1), clock.clone(), Some(kept.clone()));
            Stage { clock, kept, audit, view }
        }

        fn refuse(&self, from: &str, code: ErrorCode, detail: &str) {
            let caller = Caller::new(Proof::None);
            let asker = Asker { caller: &caller, from };
            self.audit.at("redis").refused(asker, &self.view, "get", &Failure::new(code, detail));
        }

        /// Goes on to this second, and tells what is due.
        fn at(&self, second: u64) -> &Stage {
            self.clock.0.store(second, Ordering::Relaxed);
            self.audit.tell(false);
            self
        }

        /// What was written since: the address, how many, and since when.
        fn told(&self) -> Vec<(String, u64, u64)> {
            let entries = std::mem::take(&mut *self.kept.0.lock());
            let told = |Entry { from, what, .. }| match what {
                What::Refused(Refused { count, since, .. }) => {
                    (from.unwrap_or_default(), count, since.0 / 1000)
                }
                What::Order(order) => panic!("{order:?}"),
            };
            entries.into_iter().map(told).collect()
        }
    }

    fn told(all: &[(&str, u64, u64)]) -> Vec<(String, u64, u64)> {
        all.iter().map(|&(from, count, since)| (from.to_owned(), count, since)).collect()
    }

    #[test]
    fn a_flood_of_refusals_writes_few_lines_and_loses_none() {
        let stage = Stage::new();
        let flood = |times: usize| {
            // Each connection has another port.
            (0..times).for_each(|port| {
                stage.refuse(&format!("10.0.0.7:{port}"), ErrorCode::Unauthenticated, "none");
            });
        };
        flood(1000);
        assert_eq!(stage.told(), told(&[("10.0.0.7", 1, 0)]), "the first is written at once");
        assert_eq!(stage.at(9).told(), []);
        assert_eq!(stage.at(10).told(), told(&[("10.0.0.7", 999, 0)]));
        flood(5);
        assert_eq!(stage.at(29).told(), [], "the pause doubles while it goes on");
        assert_eq!(stage.at(30).told(), told(&[("10.0.0.7", 5, 10)]));
        flood(1);
        stage.audit.tell(true);
        assert_eq!(stage.told(), told(&[("10.0.0.7", 1, 30)]), "the node stops");
        assert_eq!(stage.at(1000).told(), [], "it is quiet, and forgotten");
        flood(1);
        assert_eq!(stage.told(), told(&[("10.0.0.7", 1, 1000)]), "at once again");
        stage.refuse("[::1]:9", ErrorCode::Forbidden, "user shop has not the right operate");
        stage.refuse("[::1]:9", ErrorCode::DiskFull, "no matter of who asks");
        assert_eq!(stage.told(), told(&[("::1", 1, 1000)]));
    }

    #[test]
    fn many_addresses_are_told_as_others() {
        let stage = Stage::new();
        for host in 0..1000 {
            stage.refuse(&format!("10.1.{}.{}:1", host / 256, host % 256), ErrorCode::Forbidden, "why");
        }
        let first = stage.told();
        assert_eq!(first.len(), FOLDED_MAX + 1);
        assert!(first.iter().all(|(_, count, _)| *count == 1));
        assert_eq!(stage.at(10).told(), told(&[("", 1000 - 1 - FOLDED_MAX as u64, 0)]));
    }

    #[test]
    fn what_a_stranger_has_made_is_not_repeated() {
        let stage = Stage::new();
        stage.refuse("10.0.0.7:1", ErrorCode::Unauthenticated, "tontine_secret");
        stage.refuse("10.0.0.7:1", ErrorCode::Forbidden, &"x".repeat(10_000));
        let entries = std::mem::take(&mut *stage.kept.0.lock());
        let details: Vec<_> = entries
            .iter()
            .map(|entry| match &entry.what {
                What::Refused(refused) => refused.detail.as_ref().map(|detail| detail.len()),
                What::Order(_) => None,
            })
            .collect();
        assert_eq!(details, [None, Some(DETAIL_CHARS_MAX)]);
    }

    #[tokio::test]
    async fn an_order_is_told_with_who_gave_it_and_what_came_of_it() {
        let stage = Stage::new();
        let order = Order::Admit { node: NodeId(4) };
        let json = bytes::Bytes::from(serde_json::to_vec(&order).unwrap());
        let give = |json: &bytes::Bytes| {
            Request::from(wire::messages::OrderGive {
                json: json.clone(),
                by: "ann at h1".to_owned(),
                wait_ms: 0,
            })
        };
        let answers: [(Answers, Option<u64>, OrderResult); 2] = [
            (
                Arc::new(|_| {
                    let json = bytes::Bytes::from_static(b"null");
                    let told = wire::messages::OrderTold { number: 17, json, cluster: None };
                    Box::pin(async { Ok(told.into()) })
                }),
                Some(17),
                OrderResult::Given,
            ),
            (
                Arc::new(|_| Box::pin(async { Err(Failure::new(ErrorCode::NoHeadmaster, "none")) })),
                None,
                OrderResult::Failed { code: ErrorCode::NoHeadmaster, detail: None },
            ),
        ];
        for (orders, number, result) in answers {
            let caller = Caller::new(Proof::Node);
            let asker = Asker { caller: &caller, from: "10.0.0.7:5" };
            let answer = stage.audit.at("native").order(asker, &stage.view, give(&json), &orders);
            // Its answer is the caller's, whatever it is.
            let _ = answer.await;
            let entry = stage.kept.0.lock().pop().unwrap();
            let says = Some("ann at h1".to_owned());
            let ordered = Ordered { order: Some(Box::new(order.clone())), says, number, result };
            let (at, from) = (WallMillis(0), Some("10.0.0.7:5".to_owned()));
            let expected = Entry {
                at,
                node: NodeId(1),
                who: Who::Node,
                from,
                door: "native",
                what: What::Order(ordered),
            };
            assert_eq!(entry, expected);
        }
    }
}
