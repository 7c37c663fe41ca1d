//! Verbs: orders for the headmaster. Each looks at what there is, and orders what is lacking yet.
//!
//! Must never: order what is under way already, or a second plan beside one.

use std::time::{Duration, Instant};

use client::{Client, PlanQuery};
use model::balance::Mode;
use model::order::{Office, Order, OrderOutcome, OrderRefusal};
use model::plan::{Consent, Phase, Planned, Wish};
use model::{Cluster, NodeId, Role};
use protocol::report::Parts;
use serde_json::Value as Json;

use super::{Tontine, not_golden, of_client};
use crate::adapter::rpc::{self, RpcFailure};
use crate::words;

/// How long the answer to an order is waited for: several may be in one call.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(2);
/// How long a new member may take until it serves, before `join` is worth repeating.
const SERVE_TIME_MAX: Duration = Duration::from_secs(2);
/// Pause between two looks.
const SERVE_PAUSE: Duration = Duration::from_millis(50);

impl Tontine {
    /// Makes a node a member that has its share.
    pub(super) async fn join(&self, member: NodeId) -> Result<Json, RpcFailure> {
        let (client, cluster) = self.view().await?;
        not_golden(&cluster)?;
        let office = office(&client).await?;
        match cluster.node(member).map(|node| node.role) {
            Some(Role::Leaving) => {
                return Err(RpcFailure::passing(format!(
                    "{member} is being drained; call `cancel` to take that back"
                )));
            }
            Some(Role::Standby) => {
                ordered(&client, &Order::Cast { node: member, role: Role::Serving }).await?
            }
            Some(Role::Serving) => None,
            None => {
                let admitted = ordered(&client, &Order::Admit { node: member }).await?;
                serves(&client, member).await;
                admitted
            }
        };
        let is_given = office.plan.is_some() || is_given_shares(&office);
        if is_given || places(&client.cluster(), member) > 0 {
            return Ok(rpc::nothing());
        }
        let order = Order::Create { wish: Wish::Spread, consent: Consent::default() };
        if let Some(plan) = ordered(&client, &order).await? {
            ordered(&client, &Order::Apply { plan }).await?;
        }
        Ok(rpc::nothing())
    }

    /// Takes all data from a member.
    pub(super) async fn drain(&self, member: NodeId) -> Result<Json, RpcFailure> {
        let (client, cluster) = self.view().await?;
        let Some(node) = cluster.node(member) else { return Ok(rpc::nothing()) };
        let is_empty = places(&cluster, member) == 0;
        if node.role == Role::Leaving && (is_empty || office(&client).await?.plan.is_some()) {
            return Ok(rpc::nothing());
        }
        ordered(&client, &Order::Drain { node: member, consent: Consent::default() }).await?;
        Ok(rpc::nothing())
    }

    /// Takes a drain back.
    pub(super) async fn cancel(&self, member: NodeId) -> Result<Json, RpcFailure> {
        let (client, cluster) = self.view().await?;
        let Some(node) = cluster.node(member) else {
            return Err(RpcFailure::refused(format!(
                "{member} is no member any more, so its drain cannot be taken back"
            )));
        };
        if node.role != Role::Leaving {
            return Ok(rpc::nothing());
        }
        if let Some(planned) = under_way(&client).await?
            && planned.plan.places.get(&member).is_some_and(|&(before, after)| before > 0 && after == 0)
            && planned.state.as_ref().is_some_and(|state| state.phase != Phase::Aborting)
        {
            ordered(&client, &Order::Abort { plan: planned.number }).await?;
        }
        ordered(&client, &Order::Cast { node: member, role: Role::Serving }).await?;
        Ok(rpc::nothing())
    }

    /// Takes a member that holds nothing out of the cluster.
    pub(super) async fn forget(&self, member: NodeId) -> Result<Json, RpcFailure> {
        let (client, cluster) = self.view().await?;
        if cluster.node(member).is_some() {
            ordered(&client, &Order::Remove { node: member }).await?;
        }
        Ok(rpc::nothing())
    }
}

/// Waits a moment until a new member answers: no plan gives anything to one that does not.
async fn serves(client: &Client, member: NodeId) {
    let began = Instant::now();
    while began.elapsed() < SERVE_TIME_MAX && client.report(member, Parts::MOVES).await.is_err() {
        tokio::time::sleep(SERVE_PAUSE).await;
    }
}

/// The state of the office; an unreadable one is nothing to act on.
pub(super) async fn office(client: &Client) -> Result<Office, RpcFailure> {
    let (_, office) = client.office().await.map_err(of_client)?;
    match &office.unread {
        None if !office.is_moving => Ok(office),
        None => Err(RpcFailure::passing("the documents are on their way to another coordination service")),
        Some(why) => Err(RpcFailure::passing(format!(
            "the coordination service cannot be read: {why}; `tontine doctor` says more"
        ))),
    }
}

/// The plan that is carried out.
pub(super) async fn under_way(client: &Client) -> Result<Option<Planned>, RpcFailure> {
    let page = client.plan(PlanQuery::default()).await.map_err(of_client)?;
    if let Some(unread) = page.unread {
        return Err(RpcFailure::passing(format!("the plan that is carried out is not understood: {unread}")));
    }
    Ok(page.plan.filter(Planned::is_under_way))
}

/// Whether the autopilot gives a new member its share.
pub(super) fn is_given_shares(office: &Office) -> bool {
    let policy = office.balancing.as_ref().and_then(|balancing| balancing.policy.as_ref());
    policy.is_some_and(|policy| policy.mode == Mode::On)
}

/// In how many partitions a node is a replica.
pub(super) fn places(cluster: &Cluster, node: NodeId) -> usize {
    let partitions = cluster.ring.partitions().iter();
    partitions.filter(|partition| cluster.replicas_in(&partition.nodes).contains(&node)).count()
}

/// Gives an order and waits for its answer; the plan that it made or began.
async fn ordered(client: &Client, order: &Order) -> Result<Option<u64>, RpcFailure> {
    let by = format!("elasticity at {}", crate::headmaster::host());
    let ordered = client.order(order, &by, ANSWER_TIME_MAX).await.map_err(of_client)?;
    match ordered.answer {
        Some(OrderOutcome::Done { plan, .. }) => Ok(plan),
        Some(OrderOutcome::Refused { refusal, again_after_ms }) => {
            let why = words::refused(order, &refusal, &client.cluster());
            match again_after_ms.is_some() || passes(&refusal) {
                true => Err(RpcFailure::passing(why)),
                false => Err(RpcFailure::refused(why)),
            }
        }
        None => Err(RpcFailure::passing(format!(
            "order {} has no answer after {} s; a headmaster carries it out when it can",
            ordered.number,
            ANSWER_TIME_MAX.as_secs()
        ))),
    }
}

/// Whether what an order was refused for goes away without anybody's doing.
fn passes(refusal: &OrderRefusal) -> bool {
    matches!(
        refusal,
        OrderRefusal::OtherPlan { .. }
            | OrderRefusal::PlanIs { .. }
            | OrderRefusal::PlanStale { .. }
            | OrderRefusal::PlanGives { .. }
            | OrderRefusal::PlanEmpties { .. }
            | OrderRefusal::NodeDeaf { .. }
            | OrderRefusal::NodeNotRegistered { .. }
            | OrderRefusal::NodeHolds { .. }
            | OrderRefusal::Restored { .. }
    )
}
