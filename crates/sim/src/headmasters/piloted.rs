//! An operator of a cluster whose autopilot is on: seldom at work, so that the autopilot has time to decide, and with
//! orders of all kinds.
//!
//! When the span of a run is over, it lets what was begun end: it has a node replaced that is called gone, turns the
//! autopilot off, and waits until no plan is under way.

use std::time::Duration;

use coordination::documents::{self, balance};
use coordination::memory::MemorySession;
use model::balance::{Mode, PolicyChange};
use model::order::Order;
use model::plan::{Consent, Planned};
use model::{Cluster, Moment, NodeId, Role};

use super::{give, is_paused, planned, weight, wish};
use crate::cluster::World;
use crate::dice::Dice;
use crate::swarm::{Piloted, Setup};

/// How soon an operator looks again at a plan that it has created, or that stands still.
const SOON_MS: (u64, u64) = (200, 3_000);
/// Pause between two looks when the span is over.
const AFTERWARDS: Duration = Duration::from_secs(1);
/// Whatever the zones are.
const ACCEPTED: Consent = Consent { fewer_zones: true, weaker: false };

/// How long a headmaster reigns before the dice decide on its end.
pub(super) fn reigns_for(setup: &Setup, dice: &mut Dice) -> Duration {
    match &setup.autopilot {
        // One that follows looks for more than half a minute before it decides.
        Some(_) => dice.millis(60_000, 300_000),
        None => dice.millis(200, 5_000),
    }
}

/// Gives orders until `end`, and lets all end after that.
pub(super) async fn operate(world: &World, end: Moment) {
    let Some(own) = &world.setup.autopilot else { return };
    let mut dice = Dice::apart(world.setup.seed, 39);
    match own.orders_ms {
        Some(longest_ms) => give_until(world, (own, longest_ms), end, &mut dice).await,
        None => world.executor.sleep_until(end).await,
    }
    while !is_over(world, &mut dice).await {
        world.executor.sleep(AFTERWARDS).await;
    }
}

async fn give_until(world: &World, (own, longest_ms): (&Piloted, u64), end: Moment, dice: &mut Dice) {
    let mut soon = false;
    loop {
        let pause =
            if soon { dice.millis(SOON_MS.0, SOON_MS.1) } else { dice.millis(longest_ms / 4, longest_ms) };
        world.executor.sleep_until(world.executor.now().after(pause).min(end)).await;
        if world.executor.now() >= end {
            return;
        }
        let session = world.service.open();
        let Some((cluster, planned)) = seen(&session).await else { continue };
        let order = ordered(world, (own, &cluster), &planned, dice);
        soon = matches!(order, Order::Create { .. } | Order::Pause { .. });
        give(world, &session, order).await;
    }
}

/// The cluster document, and all plans.
async fn seen(session: &MemorySession) -> Option<(Cluster, Vec<Planned>)> {
    let cluster = documents::read_cluster(session).await.ok().flatten()?;
    Some((cluster, planned(session).await.ok()?))
}

/// The next order.
fn ordered(
    world: &World,
    (own, cluster): (&Piloted, &Cluster),
    planned: &[Planned],
    dice: &mut Dice,
) -> Order {
    if let Some(planned) = planned.iter().find(|planned| planned.is_under_way())
        && (is_paused(planned) || dice.chance(200))
    {
        return match (is_paused(planned), dice.below(4)) {
            (true, 1..) => Order::Resume { plan: planned.number },
            (false, 1) => Order::Pause { plan: planned.number },
            _ => Order::Abort { plan: planned.number },
        };
    }
    // A plan that nobody applies keeps the autopilot waiting for ten minutes.
    if let Some(last) = planned.last().filter(|last| last.state.is_none() && last.plan.decision.is_none()) {
        let plan = last.number;
        return if dice.chance(800) { Order::Apply { plan } } else { Order::Abort { plan } };
    }
    drawn(world, (own, cluster), dice)
}

/// What an operator may want beside plans that are there, sensible or not.
fn drawn(world: &World, (own, cluster): (&Piloted, &Cluster), dice: &mut Dice) -> Order {
    let machine = |dice: &mut Dice| dice.pick(world.machines()).id();
    let node = |dice: &mut Dice| dice.pick(&cluster.nodes).id;
    let serving = cluster.nodes.iter().filter(|node| node.role == Role::Serving).count();
    let spares_one = serving > cluster.replicas_max() + usize::from(own.deaths > 0);
    match dice.below(14) {
        0..=1 => Order::Admit { node: stranger(world, cluster).unwrap_or_else(|| machine(dice)) },
        2 => Order::Remove { node: node(dice) },
        3 if spares_one => Order::Drain { node: node(dice), consent: ACCEPTED },
        4..=5 => replacing(world, cluster, dice),
        6 => {
            let role = *dice.pick(&[Role::Serving, Role::Serving, Role::Standby]);
            Order::Cast { node: node(dice), role }
        }
        7 => Order::Weigh { node: node(dice), weight: weight(dice) },
        8 if own.deaths == 0 => Order::Balance { change: PolicyChange::Veto { node: node(dice) } },
        _ => {
            let consent = Consent { weaker: world.setup.renumbers, ..ACCEPTED };
            Order::Create { wish: wish(cluster, &world.setup, dice), consent }
        }
    }
}

/// A machine whose node is no member.
fn stranger(world: &World, cluster: &Cluster) -> Option<NodeId> {
    world.machines().iter().map(|machine| machine.id()).find(|id| cluster.node(*id).is_none())
}

/// A node takes the places of one that does not run, if there is one and others hold what it holds, or of any that runs.
fn replacing(world: &World, cluster: &Cluster, dice: &mut Dice) -> Order {
    let spared = world.setup.writes > 1;
    let runs = |id: NodeId| world.machines().iter().any(|machine| machine.id() == id && machine.is_running());
    let nodes = || cluster.nodes.iter().map(|node| node.id);
    let away = nodes().find(|id| !runs(*id)).filter(|_| spared);
    let running: Vec<NodeId> = nodes().filter(|id| runs(*id)).collect();
    let standby = cluster.nodes.iter().find(|node| node.role == Role::Standby).map(|node| node.id);
    let any = |dice: &mut Dice| if running.is_empty() { NodeId(0) } else { *dice.pick(&running) };
    let (node, by) = (away.unwrap_or_else(|| any(dice)), standby.unwrap_or_else(|| any(dice)));
    Order::Replace { node, by, consent: ACCEPTED }
}

/// Whether nothing is left to be ended; does the next thing for that.
async fn is_over(world: &World, dice: &mut Dice) -> bool {
    let session = world.service.open();
    let Some((cluster, planned)) = seen(&session).await else { return false };
    let Ok(policy) = balance::read_policy(&session).await else { return false };
    let under_way = planned.iter().find(|planned| planned.is_under_way());
    let gone = cluster.nodes.iter().find(|node| node.gone).map(|node| node.id);
    let order = match (under_way, gone) {
        (Some(planned), _) if is_paused(planned) => Order::Resume { plan: planned.number },
        (Some(_), _) => return false,
        (None, Some(node)) => match dice.chance(500) {
            true => Order::Replace { node, by: taker(&cluster, dice), consent: ACCEPTED },
            false => Order::Drain { node, consent: ACCEPTED },
        },
        (None, None) if policy.is_some_and(|(policy, _)| policy.mode == Mode::Off) => return true,
        (None, None) => Order::Balance { change: PolicyChange::Mode { mode: Mode::Off } },
    };
    give(world, &session, order).await;
    false
}

/// A node that may take the places of another one: one that holds nothing, if there is one.
fn taker(cluster: &Cluster, dice: &mut Dice) -> NodeId {
    let there = || cluster.nodes.iter().filter(|node| !node.gone).map(|node| node.id);
    let is_free = |id: &NodeId| {
        let mut lists = cluster.ring.partitions().iter().map(|one| cluster.replicas_in(&one.nodes));
        !lists.any(|list| list.contains(id))
    };
    let free: Vec<NodeId> = there().filter(is_free).collect();
    let some: Vec<NodeId> = if free.is_empty() { there().collect() } else { free };
    *dice.pick(&some)
}
