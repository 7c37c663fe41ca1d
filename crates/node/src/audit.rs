//! Who ordered what of a node, and who was refused: for whoever must be able to tell later.
//!
//! ```text
//!   door ─▶ Audit::order   ─ carried out ─▶ one entry, with what came of it ─┐
//!   door ─▶ Audit::refused ─ folded ─▶ the first at once, then one for many ─┴─▶ Outlet ─▶ a file, in production
//! ```
//!
//! Refusals of the same caller are folded, so that a flood of them writes few lines: the first is written at once, the
//! others as a count after [`TELL_INTERVAL`], which doubles while they go on. Log-ins that succeed are not written: an HTTP
//! client gives its secret with each request. What a user may do is in the cluster document; what it ordered is here.
//!
//! Must never: wait for the outlet, or hand out a secret, its digest, a key, a value, or text that a stranger has made.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use model::order::{Order, OrderOutcome};
use model::{Moment, NodeId, WallMillis};
use parking_lot::Mutex;
use runtime::{BoxFuture, Clock};
use wire::error::ErrorCode;
use wire::messages::{AntiEntropyControl, AntiEntropyOrder, Failure, Request, Response};

use crate::access::{Caller, Who};
use crate::view::CurrentView;

/// Time until refusals that go on are told again.
const TELL_INTERVAL: Duration = Duration::from_secs(10);
/// The longest that interval grows.
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
    fn write(&self, entry: AuditEntry);
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditEntry {
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
    Refused(RefusedOrder),
}

/// An order, and what came of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Ordered {
    /// What.
    pub asked: AuditedOrder,
    /// Who gave it by its own word, where the node does not know better.
    pub says: Option<String>,
    /// Its number, once it was put down.
    pub number: Option<u64>,
    /// What came of it.
    pub result: OrderResult,
}

/// What was ordered.
#[derive(Clone, Debug, PartialEq)]
pub enum AuditedOrder {
    /// A change of the cluster, of headmasters.
    Change(Box<Order>),
    /// A start, a stop or a scrub of repair, of this node alone.
    Repair(AntiEntropyControl),
    /// What could not be read.
    Unreadable,
}

/// What came of an order.
#[derive(Clone, Debug, PartialEq)]
pub enum OrderResult {
    /// The node itself has carried it out.
    Done,
    /// The node stopped, or the caller left, before there was an answer: the order may have been put down.
    Unknown,
    /// A headmaster has carried it out, or refused it.
    Answered(Box<OrderOutcome>),
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
pub struct RefusedOrder {
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

    fn write_refused(&self, Same { who, from, door, .. }: Same, refused: RefusedOrder) {
        self.write(who, from, door, What::Refused(refused));
    }

    fn write(&self, who: Who, from: Option<String>, door: &'static str, what: What) {
        if let Some(outlet) = &self.outlet {
            outlet.write(AuditEntry { at: self.clock.wall(), node: self.node, who, from, door, what });
        }
    }
}

impl Folded {
    fn refused(&mut self, same: &Same) -> RefusedOrder {
        let Folded { code, count, since, .. } = *self;
        RefusedOrder { request: same.request, code, detail: self.detail.take(), count, since }
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

    /// Has a request carried out by `orders`, and writes what came of it if it is an order. It is `signed` already. Where
    /// the answer is not awaited to its end, that is written.
    pub(crate) fn order<F: Future<Output = Result<Response, Failure>> + Send + 'static>(
        &self,
        asker: Asker<'_>,
        view: &CurrentView,
        request: Request,
        orders: impl FnOnce(Request) -> F,
    ) -> BoxFuture<'static, Result<Response, Failure>> {
        let pending = self.audit.outlet.as_ref().and_then(|_| Pending::of(self, asker, view, &request));
        let answer = orders(request);
        Box::pin(async move {
            let answer = answer.await;
            if let Some(pending) = pending {
                pending.end(&answer);
            }
            answer
        })
    }
}

/// An order before its answer. Its line is written when it is dropped.
struct Pending {
    door: DoorAudit,
    who: Who,
    from: String,
    ordered: Ordered,
}

impl Pending {
    /// `None` of a request that is no order.
    fn of(
        door: &DoorAudit,
        Asker { caller, from }: Asker<'_>,
        view: &CurrentView,
        request: &Request,
    ) -> Option<Pending> {
        let who = caller.who(view);
        let (asked, says) = match request {
            Request::OrderGive(give) => {
                let asked =
                    serde_json::from_slice(&give.json).map_or(AuditedOrder::Unreadable, AuditedOrder::Change);
                let is_its_word = !matches!(who, Who::User(_)) && !give.by.is_empty();
                (asked, is_its_word.then(|| give.by.chars().take(SAYS_CHARS_MAX).collect()))
            }
            Request::AntiEntropyControl(control) if control.order != AntiEntropyOrder::Look => {
                (AuditedOrder::Repair(control.clone()), None)
            }
            _ => return None,
        };
        let ordered = Ordered { asked, says, number: None, result: OrderResult::Unknown };
        Some(Pending { door: door.clone(), who, from: from.to_owned(), ordered })
    }

    fn end(mut self, answer: &Result<Response, Failure>) {
        (self.ordered.number, self.ordered.result) = result_of(answer);
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let DoorAudit { audit, door } = &self.door;
        audit.write(
            self.who.clone(),
            Some(std::mem::take(&mut self.from)),
            door,
            What::Order(self.ordered.clone()),
        );
    }
}

fn result_of(answer: &Result<Response, Failure>) -> (Option<u64>, OrderResult) {
    match answer {
        Ok(Response::OrderTold(told)) => {
            let answer: Option<OrderOutcome> = serde_json::from_slice(&told.json).unwrap_or(None);
            let result = answer.map_or(OrderResult::Given, |answer| OrderResult::Answered(Box::new(answer)));
            (Some(told.number).filter(|&number| number > 0), result)
        }
        Ok(Response::ReportGot(_)) => (None, OrderResult::Done),
        Ok(_) => (None, OrderResult::Given),
        Err(failure) => (None, failed(failure)),
    }
}

fn failed(failure: &Failure) -> OrderResult {
    OrderResult::Failed { code: failure.code, detail: detail_of(failure) }
}

/// What the node says of a lack of rights, in its own words. Other refusals may repeat what they were sent.
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
mod tests;
