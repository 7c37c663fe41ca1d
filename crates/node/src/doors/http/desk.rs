//! The documents of the native protocol by HTTP, and orders: each request becomes the native one, and its answer's JSON
//! is handed on as it is.
//!
//! ```text
//!   GET /v1/nodes ─▶ ReportGet(nodes) ─▶ rights of the native door ─▶ the node ─▶ ReportGot ─▶ its JSON
//! ```
//!
//! **Architecture Invariant:** what may be asked, and by whom, is the native door's to judge: there is one table of that.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::{Either, select};
use model::PartitionId;
use model::limits::STORE_NAME_BYTES_MAX;
use model::order::OrderOutcome;
use protocol::admission::Permit;
use protocol::report::Parts;
use runtime::http::{Arriving, StatusCode, path};
use serde::Deserialize;
use serde_json::{Value as Json, json};
use wire::error::ErrorCode;
use wire::messages::{
    AntiEntropyControl, AntiEntropyOrder, ClusterGet, EventsGet, Failure, OfficeGet, OrderAnswer, OrderGive,
    OrderTold, PlanGet, ReportGet, ReportGot, Request, Response,
};

use super::HttpCall;
use super::answer::HttpAnswer;
use super::parameters::{self, Parameters};
use super::refused::{LimitOf, body as unread, full, malformed};
use super::routes::RouteTask;
use crate::antientropy::AntiEntropy;
use crate::doors::native::control::is_control;
use crate::doors::native::{Answers, ControlRoom, Reporting, Service, Telling, rights};

/// Longest order in bytes. One that creates a plan says little; the plan is made by the headmaster.
pub(super) const ORDER_BYTES_MAX: usize = 1024 * 1024;
/// How long an order waits for its answer, where its sender does not say, in milliseconds.
const ORDER_WAIT_MS: u32 = 10_000;
/// Most events of a page, where its reader does not say how many.
const EVENTS_DEFAULT: u32 = 1_000;
/// Who gives an order, where the node does not know.
const BY: &str = "an HTTP client";

/// Where documents and orders are asked for.
pub(crate) struct Desk {
    report: Reporting,
    orders: Answers,
    pub(super) telling: Telling,
    antientropy: Arc<AntiEntropy>,
    control: Arc<ControlRoom>,
}

impl Desk {
    /// That of a worker whose native door is this.
    pub(crate) fn of(service: &Service) -> Arc<Desk> {
        let Service { report, orders, telling, antientropy, control, .. } = service;
        Arc::new(Desk {
            report: report.clone(),
            orders: orders.clone(),
            telling: telling.clone(),
            antientropy: antientropy.clone(),
            control: control.clone(),
        })
    }
}

/// What `POST /v1/repair` takes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RepairForm {
    order: RepairVerb,
    store: Option<String>,
    partition: Option<u32>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum RepairVerb {
    Start,
    Stop,
    Scrub,
}

/// Answers a request for a document, or with an order.
pub(super) async fn answer(
    call: &HttpCall<'_>,
    task: RouteTask,
    body: Arriving,
) -> Result<HttpAnswer, HttpAnswer> {
    let parameters = Parameters::of_none(call)?;
    let (request, bytes) = match task {
        RouteTask::OrderGive | RouteTask::RepairOrder => {
            call.json_only()?;
            // Who may give no order at all need not send one.
            call.known()?;
            let body = body.read(ORDER_BYTES_MAX).await;
            let body = body.map_err(|why| unread(why, ORDER_BYTES_MAX, LimitOf::Request))?;
            (ordered(task, &body, &parameters)?, body.len())
        }
        task => (asked(call, task, parameters)?, 0),
    };
    let view = call.door.view();
    rights::judge(&call.who, view, &request).map_err(|failure| HttpAnswer::failure(&failure))?;
    let permit = admit(call, &request, call.head_bytes + bytes)?;
    let waited = without_wait(&request);
    let told = tell(call, rights::signed(&call.who, view, request)).await;
    drop(permit);
    if let Some(request) = waited {
        // The user may have been removed meanwhile.
        rights::judge(&call.who, view, &request).map_err(|failure| HttpAnswer::failure(&failure))?;
    }
    let answer = shown(task, told.map_err(|failure| HttpAnswer::failure(&failure))?)?;
    if !matches!(task, RouteTask::OrderGive | RouteTask::RepairOrder) {
        return call.counted(answer);
    }
    // The order is given, also where there is no room to say what came of it.
    call.counted(answer).map_err(|_| {
        let detail = "this node has no room for the answer; the order was given";
        HttpAnswer::failure(&Failure::new(ErrorCode::CoordinationUnconfirmed, detail))
    })
}

/// What a request without a body asks for.
fn asked(call: &HttpCall<'_>, task: RouteTask, parameters: Parameters) -> Result<Request, HttpAnswer> {
    let wait_ms = parameters.wait_ms.unwrap_or_default();
    let report = |parts| Request::ReportGet(ReportGet { parts });
    Ok(match task {
        RouteTask::Cluster => Request::ClusterGet(ClusterGet {}),
        RouteTask::Status => report(Parts::STATUS),
        RouteTask::Nodes => report(Parts::NODES),
        RouteTask::Moves => report(Parts::MOVES),
        RouteTask::Artifacts => report(Parts::ARTIFACTS),
        RouteTask::Load => report(Parts::LOAD),
        RouteTask::HotKeys => report(Parts::KEYS),
        RouteTask::Repair => {
            let (store, partition) = (parameters.store, parameters.partition);
            control(AntiEntropyOrder::Look, store, partition)?
        }
        RouteTask::Events => Request::EventsGet(EventsGet {
            run: parameters.run.unwrap_or_default(),
            after: parameters.after.unwrap_or_default(),
            count_max: parameters.limit.unwrap_or(EVENTS_DEFAULT),
            wait_ms,
        }),
        RouteTask::OrderAnswer => Request::OrderAnswer(OrderAnswer { number: number(call)?, wait_ms }),
        RouteTask::Plans => Request::PlanGet(PlanGet { number: 0, all: true, since: 0, wait_ms: 0 }),
        RouteTask::Plan => {
            Request::PlanGet(PlanGet { number: number(call)?, all: false, since: parameters.since, wait_ms })
        }
        RouteTask::Office => Request::OfficeGet(OfficeGet {}),
        other => unreachable!("{other:?} is no document"),
    })
}

/// What a body orders.
fn ordered(task: RouteTask, body: &Bytes, parameters: &Parameters) -> Result<Request, HttpAnswer> {
    if task == RouteTask::OrderGive {
        let wait_ms = parameters.wait_ms.unwrap_or(ORDER_WAIT_MS);
        return Ok(Request::OrderGive(OrderGive { json: body.clone(), by: BY.to_owned(), wait_ms }));
    }
    let form: RepairForm = serde_json::from_slice(body)
        .map_err(|error| malformed(format!("the body is no order to repair: {error}")))?;
    let order = match form.order {
        RepairVerb::Start => AntiEntropyOrder::Start,
        RepairVerb::Stop => AntiEntropyOrder::Stop,
        RepairVerb::Scrub => AntiEntropyOrder::Scrub,
    };
    control(order, form.store, form.partition)
}

fn control(
    order: AntiEntropyOrder,
    store: Option<String>,
    partition: Option<u32>,
) -> Result<Request, HttpAnswer> {
    if store.as_ref().is_some_and(|store| store.len() > STORE_NAME_BYTES_MAX) {
        return Err(malformed("there is no store of such a long name"));
    }
    let partition = partition.map(PartitionId);
    Ok(Request::AntiEntropyControl(AntiEntropyControl { order, store, partition }))
}

/// The number in the path; `current` is the plan that is under way.
fn number(call: &HttpCall<'_>) -> Result<u64, HttpAnswer> {
    let name = path::decode(call.found.names.first().copied().unwrap_or_default());
    let name = name.map_err(|error| malformed(error.to_string()))?;
    if call.found.route.task == RouteTask::Plan && &name[..] == b"current" {
        return Ok(0);
    }
    let number = parameters::place(&name).filter(|&number| number > 0);
    number.ok_or_else(|| malformed("the last part of the path is a number from 1"))
}

/// A place among the requests under way. What the control plane asks has its own room beside that of clients.
fn admit(call: &HttpCall<'_>, request: &Request, bytes: usize) -> Result<Permit, HttpAnswer> {
    let own = call.admitted.admit(bytes);
    let admitted = match is_control(request) {
        true => own.or_else(|refused| call.door.desk.control.admit(bytes).map_err(|_| refused)),
        false => own,
    };
    admitted.map_err(|refused| full(&refused))
}

/// What the node says. A wait ends when the node stops.
async fn tell(call: &HttpCall<'_>, request: Request) -> Result<Response, Failure> {
    let Some(at_once) = without_wait(&request) else { return carry_out(call, request).await };
    let (door, waiting) = (call.door, Box::pin(carry_out(call, request)));
    match select(waiting, Box::pin(door.closing())).await {
        Either::Left((told, _)) => told,
        Either::Right(_) => carry_out(call, at_once).await,
    }
}

/// The same request without its wait; `None` where it changes something, or does not wait.
fn without_wait(request: &Request) -> Option<Request> {
    match request {
        Request::EventsGet(get) if get.wait_ms > 0 => {
            Some(Request::EventsGet(EventsGet { wait_ms: 0, ..*get }))
        }
        Request::OrderAnswer(get) if get.wait_ms > 0 => {
            Some(Request::OrderAnswer(OrderAnswer { wait_ms: 0, ..*get }))
        }
        Request::PlanGet(get) if get.wait_ms > 0 => Some(Request::PlanGet(PlanGet { wait_ms: 0, ..*get })),
        _ => None,
    }
}

async fn carry_out(call: &HttpCall<'_>, request: Request) -> Result<Response, Failure> {
    let desk = &call.door.desk;
    match request {
        Request::ClusterGet(_) => {
            let json = call.door.view().get().document().clone();
            Ok(Response::ClusterDocument(wire::messages::ClusterDocument { json }))
        }
        Request::ReportGet(wanted) => match (desk.report)(wanted.parts) {
            Some(report) => Ok(ReportGot::of(&report).into()),
            None => Err(Failure::new(ErrorCode::ShuttingDown, "the node has stopped")),
        },
        Request::EventsGet(get) => Ok(desk.telling.events(get, call.door.front.clock().clone()).await),
        request => {
            let (audit, view) = (call.door.counters.audit(), call.door.view());
            if matches!(request, Request::AntiEntropyControl(_)) {
                let antientropy = desk.antientropy.clone();
                return audit.order(call.asker(), view, request, |asked| antientropy.answer(asked)).await;
            }
            audit.order(call.asker(), view, request, &*desk.orders).await
        }
    }
}

/// The answer to what was asked.
fn shown(task: RouteTask, told: Response) -> Result<HttpAnswer, HttpAnswer> {
    let json = match told {
        Response::ClusterDocument(document) => document.json,
        Response::ReportGot(report) => report.json,
        Response::EventsDocument(page) => page.json,
        Response::PlanTold(page) => page.json,
        Response::OfficeTold(office) => office.json,
        Response::OrderTold(told) => return order_shown(task, &told),
        other => {
            let detail = format!("unexpected answer {}", other.name());
            return Err(HttpAnswer::failure(&Failure::new(ErrorCode::Internal, detail)));
        }
    };
    Ok(HttpAnswer::json(StatusCode::OK, json))
}

/// What came of an order. One that was refused is no success of whoever gives it, but of whoever asks about it.
fn order_shown(task: RouteTask, told: &OrderTold) -> Result<HttpAnswer, HttpAnswer> {
    let answer: Option<OrderOutcome> = serde_json::from_slice(&told.json).map_err(|error| {
        HttpAnswer::failure(&Failure::new(ErrorCode::CoordinationUnconfirmed, error.to_string()))
    })?;
    let mut document = json!({ "number": told.number, "answer": answer });
    let status = match &answer {
        _ if task == RouteTask::OrderAnswer => StatusCode::OK,
        None => StatusCode::ACCEPTED,
        Some(OrderOutcome::Done { .. }) => StatusCode::OK,
        Some(OrderOutcome::Refused { refusal, again_after_ms }) => {
            let facts: Json = serde_json::to_value(refusal).unwrap_or_default();
            document["error"] = json!({
                "kind": refusal.code(),
                "message": format!("the order was refused, and nothing was changed: {}", refusal.code()),
                "outcome": "failed",
                "retryable": again_after_ms.is_some(),
                "code": facts["code"],
                "facts": facts["facts"],
            });
            StatusCode::CONFLICT
        }
    };
    Ok(HttpAnswer::document(status, &document))
}
