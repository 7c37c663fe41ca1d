//! Orders for the headmaster, plans, and the state of the office, for whoever asks this node: it reads them in the
//! coordination service, and puts orders into it.
//!
//! Any node may be asked. What an order comes to is the headmaster's; a node checks only what nobody else can: that it
//! understands the order, that somebody is there to carry it out, and that it can read where an artifact is said to be.
//!
//! Must never: write the cluster document, or any document but an order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use coordination::documents::{self, ActiveNode, ReadError, balance, elasticity, office, orders, plans};
use coordination::{CoordinationError, CoordinationService, DocumentVersion};
use futures_util::FutureExt;
use futures_util::future::{Either, select};
use model::order::{Balancing, Holder, Office, Order, OrderOutcome, OrderRefusal};
use model::plan::PlanPage;
use model::{ArtifactOrder, Cluster, Node as Listed, NodeId, artifacts};
use runtime::Clock;
use serde::Serialize;
use wire::error::ErrorCode;
use wire::messages::{
    Failure, OfficeTold, OrderAnswer, OrderGive, OrderTold, PlanGet, PlanTold, Request, Response,
};

use super::Node;
use crate::local_copy;

/// Longest wait for an answer, or for another state of a plan.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// How long an order waits where no headmaster is at work. Another candidate takes a second or two to succeed one that has
/// ended; where there is none, `dev` and `serve` start a process five seconds after the end of the last.
const SUCCESSION_TIME_MAX: Duration = Duration::from_secs(8);
/// Pause between two looks for one.
const SUCCESSION_PAUSE: Duration = Duration::from_millis(200);
/// How often the service is asked, and how long after each time, before it passes for restored from an older copy.
const OLDER_ASKED: usize = 5;
const OLDER_PAUSE: Duration = Duration::from_millis(500);
/// How long a look at the office may take.
const LOOK_TIME_MAX: Duration = Duration::from_millis(2500);
/// How long a source may take to give a manifest that is to be listed. Nodes that fetch it have more patience.
const SOURCE_PATIENCE: Duration = Duration::from_secs(3);

/// Answers what is asked about orders and plans.
pub(super) async fn answer(node: Weak<Node>, request: Request) -> Result<Response, Failure> {
    let (session, clock) = {
        let node = node.upgrade().ok_or_else(ended)?;
        (node.following.session.lock().clone(), node.ports.clock.clone())
    };
    let is_office = matches!(request, Request::OfficeGet(_));
    let session = match alive(session).await {
        Ok(session) => session,
        Err(error) if is_office => {
            let service = node.upgrade().ok_or_else(ended)?.installation().coordination_directory;
            return Ok(OfficeTold { json: json(&Office { service, ..unread(error) }) }.into());
        }
        Err(error) => return Err(away(&error)),
    };
    let session = &*session;
    match request {
        Request::OrderGive(give) => given(&node, (session, &clock), give).await,
        Request::OrderAnswer(OrderAnswer { number, wait_ms }) => {
            told(&node, (session, &clock), number, wait_ms).await
        }
        Request::PlanGet(get) => page(session, &clock, get).await,
        _ => {
            let node = node.upgrade().ok_or_else(ended)?;
            let service = node.installation().coordination_directory;
            let now_ms = clock.wall().0;
            drop(node);
            let look = Box::pin(office_at(session, now_ms));
            let office = match select(look, clock.sleep(LOOK_TIME_MAX)).await {
                Either::Left((office, _)) => office,
                Either::Right(_) => {
                    let unread = Some(format!("no answer within {LOOK_TIME_MAX:?}"));
                    Office { unread, ..Office::default() }
                }
            };
            let office = Office { service, ..office };
            Ok(OfficeTold { json: json(&office) }.into())
        }
    }
}

/// The node's session; another one for this answer, where that has ended and the node has opened none yet.
async fn alive(session: Arc<dyn CoordinationService>) -> Result<Arc<dyn CoordinationService>, ReadError> {
    match session.lost().now_or_never() {
        Some(()) => Ok(session.reopen().await?),
        None => Ok(session),
    }
}

fn ended() -> Failure {
    Failure::new(ErrorCode::ShuttingDown, "the node is stopping")
}

fn json(value: &impl Serialize) -> bytes::Bytes {
    serde_json::to_vec(value).expect("documents are plain data").into()
}

/// What the service refuses, as an answer.
fn away(error: &ReadError) -> Failure {
    let code = match error {
        ReadError::Coordination(CoordinationError::Indeterminate { .. }) => {
            ErrorCode::CoordinationUnconfirmed
        }
        _ => ErrorCode::CoordinationUnavailable,
    };
    Failure::new(code, error.to_string())
}

/// Puts an order into the service, and waits for its answer.
async fn given(
    node: &Weak<Node>,
    (session, clock): (&dyn CoordinationService, &Arc<dyn Clock>),
    give: OrderGive,
) -> Result<Response, Failure> {
    let order: Order = serde_json::from_slice(&give.json)
        .map_err(|error| Failure::new(ErrorCode::Malformed, format!("the order cannot be read: {error}")))?;
    if let Some(refusal) = restored(node, (session, clock)).await? {
        let json = json(&Some(OrderOutcome::from(refusal)));
        return Ok(OrderTold { number: 0, json, cluster: None }.into());
    }
    await_headmaster(session, clock).await?;
    if let Order::Artifacts { order } = &order {
        check_source(node, session, order).await?;
    }
    let number = orders::give(session, order, &give.by, clock.wall().0).await;
    let number = number.map_err(|error| away(&error.into()))?;
    // What it says may hold a password of a source. The audit log tells it in its own words.
    tracing::info!(number, "order given");
    // From here on the order is given, whatever becomes of this answer.
    told(node, (session, clock), number, give.wait_ms).await
}

/// Why nothing may be ordered where the service was restored from an older copy than this node follows. A headmaster
/// finds that only of nodes that it reaches at the addresses of that copy.
async fn restored(
    node: &Weak<Node>,
    (session, clock): (&dyn CoordinationService, &Arc<dyn Clock>),
) -> Result<Option<OrderRefusal>, Failure> {
    for asked in 1.. {
        let Some(stored) = documents::read_cluster(session).await.map_err(|error| away(&error))? else {
            let detail = "the coordination service holds no cluster, and nothing was ordered";
            return Err(Failure::new(ErrorCode::CoordinationUnavailable, detail));
        };
        let node = node.upgrade().ok_or_else(ended)?;
        let known = node.replica.view().get().cluster().clone();
        if !local_copy::is_overtaken(&stored, &known) {
            break;
        }
        if asked == OLDER_ASKED {
            return Ok(Some(OrderRefusal::Restored {
                node: node.config.member.id,
                generation: known.generation,
            }));
        }
        drop(node);
        // Mostly one of its servers lags behind.
        clock.sleep(OLDER_PAUSE).await;
    }
    Ok(None)
}

/// Waits a moment for a headmaster; without one nothing is ordered.
async fn await_headmaster(session: &dyn CoordinationService, clock: &Arc<dyn Clock>) -> Result<(), Failure> {
    let give_up = clock.now().after(SUCCESSION_TIME_MAX);
    loop {
        let holder = office::holder(session, &documents::headmaster_path())
            .await
            .map_err(|error| away(&error.into()))?;
        if holder.is_some() {
            return Ok(());
        }
        if clock.now() >= give_up {
            return Err(Failure::new(ErrorCode::NoHeadmaster, "no headmaster runs, and nothing was ordered"));
        }
        clock.sleep(SUCCESSION_PAUSE).await;
    }
}

/// The answer to an order, if it has one within the wait; of one that was carried out with the document that says so.
async fn told(
    node: &Weak<Node>,
    (session, clock): (&dyn CoordinationService, &Arc<dyn Clock>),
    number: u64,
    wait_ms: u32,
) -> Result<Response, Failure> {
    let wait = Duration::from_millis(wait_ms.into()).min(WAIT_MAX);
    let answered = Box::pin(orders::answered(session, number));
    let answer = match select(answered, clock.sleep(wait)).await {
        Either::Left((Ok(answer), _)) => Some(answer),
        Either::Left((Err(error), _)) => {
            tracing::debug!(%error, order = number, "answer not read");
            None
        }
        Either::Right(_) => None,
    };
    let mut cluster = None;
    if let Some(OrderOutcome::Done { .. }) = &answer
        && let Ok(Some(stored)) = documents::read_cluster(session).await
        && let Some(node) = node.upgrade()
    {
        cluster = Some(json(&stored));
        node.offer(stored);
    }
    Ok(OrderTold { number, json: json(&answer), cluster }.into())
}

/// A plan, and others in short.
async fn page(
    session: &dyn CoordinationService,
    clock: &Arc<dyn Clock>,
    get: PlanGet,
) -> Result<Response, Failure> {
    let refused = |error: ReadError| away(&error);
    let plans = match get.all || get.number == 0 {
        true => plans::summaries(session).await.map_err(refused)?,
        false => Vec::new(),
    };
    let is_under_way = |phase: model::plan::Phase| !phase.has_ended();
    let current = plans.iter().rev().find(|plan| plan.phase.is_some_and(is_under_way)).or(plans.last());
    let number = if get.number == 0 { current.map_or(0, |plan| plan.number) } else { get.number };
    if get.wait_ms > 0 && number > 0 {
        let since = get.since.checked_sub(1).map(|version| DocumentVersion(version as u32));
        let wait = Duration::from_millis(get.wait_ms.into()).min(WAIT_MAX);
        let changed = Box::pin(plans::changed(session, number, since));
        select(changed, clock.sleep(wait)).await;
    }
    let mut page = PlanPage { plans: if get.all { plans } else { Vec::new() }, ..PlanPage::default() };
    let plan = match plans::read_plan(session, number).await {
        Ok(plan) => plan,
        Err(ReadError::Malformed { reason, .. }) => {
            page.unread = Some(reason);
            None
        }
        Err(error) => return Err(away(&error)),
    };
    if let Some(plan) = plan {
        let state = plans::read_state(session, number).await.map_err(refused)?;
        page.version = state.as_ref().map_or(0, |(_, read)| u64::from(read.stat.version.0) + 1);
        page.plan = Some(model::plan::Planned { number, plan, state: state.map(|(state, _)| state) });
    }
    Ok(PlanTold { json: json(&page) }.into())
}

/// The state of the office.
async fn office_at(session: &dyn CoordinationService, now_ms: u64) -> Office {
    match looked(session, now_ms).await {
        Ok(office) => office,
        Err(error) => unread(error),
    }
}

/// How the office is told where documents cannot be read; an empty service is one without a cluster.
fn unread(error: ReadError) -> Office {
    let is_moving = matches!(error, ReadError::Moved(_) | ReadError::Moving(_) | ReadError::Arriving(_));
    let unread = match error {
        ReadError::Coordination(CoordinationError::NoNode { .. }) => None,
        ReadError::Coordination(CoordinationError::Unavailable { reason }) => Some(reason),
        error => Some(error.to_string()),
    };
    Office { unread, is_moving, ..Office::default() }
}

async fn looked(session: &dyn CoordinationService, now_ms: u64) -> Result<Office, ReadError> {
    let Some(cluster) = documents::read_cluster(session).await? else { return Ok(Office::default()) };
    let active = documents::active_nodes_now(session).await?.into_iter();
    // A node that has left, and still runs or was started again, is none that waits.
    let (mut waiting, mut left) = (Vec::new(), Vec::new());
    for ActiveNode { node, cluster: goes_by, .. } in
        active.filter(|active| cluster.node(active.node.id).is_none())
    {
        let was_member = goes_by.is_some() || documents::read_member(session, node.id).await?.is_some();
        if was_member { &mut left } else { &mut waiting }.push(node);
    }
    let headmaster =
        office::holder(session, &documents::headmaster_path()).await?.map(|(_, candidate)| Holder {
            silent_ms: candidate
                .overdue(now_ms)
                .map(|silent| u64::try_from(silent.as_millis()).unwrap_or(u64::MAX)),
            process: candidate.process,
        });
    let plans = plans::summaries(session).await?;
    let plan = plans.into_iter().rev().find(|plan| plan.phase.is_some_and(|phase| !phase.has_ended()));
    let order = orders::oldest_waiting(session, &mut Default::default()).await?;
    let of_fleets = on_machines(session, cluster.nodes.iter().chain(&waiting)).await?;
    Ok(Office {
        service: String::new(),
        unread: None,
        is_moving: false,
        generation: Some(cluster.generation),
        waiting,
        left,
        headmaster,
        order,
        plan,
        balancing: Some(balancing(session).await?),
        of_fleets,
    })
}

/// Nodes at the addresses of fleets' machines, with the fleet's name. A fleet that is malformed is passed over.
async fn on_machines(
    session: &dyn CoordinationService,
    nodes: impl Iterator<Item = &Listed> + Clone,
) -> Result<BTreeMap<NodeId, String>, ReadError> {
    let mut found = BTreeMap::new();
    for name in elasticity::names(session).await? {
        let Some((fleet, _)) = understood(elasticity::read(session, &name).await)? else { continue };
        let addresses = fleet.machines.iter().filter(|machine| machine.instance.is_some());
        let addresses: BTreeSet<&str> = addresses.filter_map(|machine| machine.address.as_deref()).collect();
        // Addresses of machines have no brackets.
        let host = |node: &Listed| Some(node.native.rsplit_once(':')?.0.trim_matches(['[', ']']).to_owned());
        let on_one = nodes.clone().filter(|node| host(node).is_some_and(|host| addresses.contains(&*host)));
        found.extend(on_one.map(|node| (node.id, name.clone())));
    }
    Ok(found)
}

/// What the autopilot may do, and what it says; as much of it as can be understood.
async fn balancing(session: &dyn CoordinationService) -> Result<Balancing, ReadError> {
    let policy = balance::read_policy(session).await.map(|found| found.map(|(policy, _)| policy));
    let verdict = balance::read_verdict(session).await;
    Ok(Balancing { policy: understood(policy)?, verdict: understood(verdict)? })
}

/// A document that may be malformed: then it passes for one that is not there.
fn understood<T>(read: Result<Option<T>, ReadError>) -> Result<Option<T>, ReadError> {
    match read {
        Err(ReadError::Malformed { .. }) => Ok(None),
        read => read,
    }
}

/// Refuses to order what this node cannot read where it is said to be. A source that takes long may come to it later.
async fn check_source(
    node: &Weak<Node>,
    session: &dyn CoordinationService,
    order: &ArtifactOrder,
) -> Result<(), Failure> {
    let (ArtifactOrder::Push { store, number, manifest, source, .. }
    | ArtifactOrder::Stage { store, number, manifest, source }) = order
    else {
        return Ok(());
    };
    let cluster = documents::read_cluster(session).await.map_err(|error| away(&error))?;
    let node = node.upgrade().ok_or_else(ended)?;
    let listed = |cluster: &Cluster| {
        cluster.read_only(store.as_str()).and_then(|store| store.artifact(*number)).cloned()
    };
    let is_known = cluster.as_ref().and_then(listed).is_some_and(|known| known.source == *source);
    if is_known || !node.config.artifacts.sources_checked {
        return Ok(());
    }
    let coming = model::ListedArtifact {
        number: *number,
        manifest: *manifest,
        source: source.clone(),
        standing: artifacts::Standing::Staging,
        push: None,
        unknown: model::Unknown::new(),
    };
    let (artifacts, clock) = (node.chores.artifacts.clone(), node.ports.clock.clone());
    let reading = Box::pin(artifacts.unreadable(store, &coming));
    match select(reading, clock.sleep(SOURCE_PATIENCE)).await {
        Either::Left((Some(error), _)) => {
            let detail = format!(
                "{} cannot read artifact {number} of store {store} at {source}: {error}; nothing was listed, because every node \
                 must be able to read it",
                node.config.member.id
            );
            Err(Failure::new(ErrorCode::ArtifactRefused, detail))
        }
        _ => Ok(()),
    }
}
