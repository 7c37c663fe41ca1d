//! Headmasters, and an operator who gives them orders, while everything else happens.
//!
//! ```text
//!   operator ──▶ orders ──▶ two candidates, one of which holds the office ──▶ plans, steps, answers
//! ```
//!
//! The candidates are real ones ([`control::headmaster::tenure`]), on their own hosts. Their processes end and stand
//! still, and their sessions end under them. What they do is judged when all is over: each order has an answer, each
//! plan that was begun has ended, and what is left of moves is nothing.
//!
//! Must never: change a document for a headmaster, or give an order after the span of a run, but to go on with what
//! stands still.

mod piloted;

use std::sync::Arc;
use std::time::Duration;

use control::election::Candidate;
use control::headmaster::tenure;
use coordination::CoordinationService;
use coordination::documents::numbered::{numbers, orders_path};
use coordination::documents::{self, ReadError, orders, plans};
use coordination::memory::MemorySession;
use futures_util::future::{Either, select};
use model::order::Order;
use model::plan::{Consent, JoinCut, Phase, Placed, Planned, Wish};
use model::{Cluster, Moment, NodeId, Partition, PartitionId, Role, Weight};
use parking_lot::Mutex;

use crate::check::rebalance::LeftOver;
use crate::cluster::World;
use crate::dice::Dice;
use crate::executor::{ProcessId, WallClock};
use crate::host::Host;
use crate::numbers as other_numbers;
use crate::swarm::Setup;

/// The candidates' hosts: no node and no client has them.
pub const HOSTS: [Host; 2] = [Host(91), Host(92)];
/// How long an operator waits for an answer before it goes on with something else.
const PATIENCE: Duration = Duration::from_secs(3);
/// Pause before a candidate tries again.
const STAND_AGAIN: Duration = Duration::from_millis(500);

/// Keeps both candidates until the run is over, and gives orders until `end`.
pub async fn reign(world: Arc<World>, operator: ProcessId, end: Moment) {
    stand_until(&world, operator, end);
    operate(world, end).await;
}

/// Keeps both candidates until the run is over: they begin and end until `end`, and the last ones stay.
pub fn stand_until(world: &Arc<World>, operator: ProcessId, end: Moment) {
    for (host, purpose) in HOSTS.into_iter().zip([23, 24]) {
        let dice = Dice::apart(world.setup.seed, purpose);
        world.executor.spawn(operator, Box::pin(succession(world.clone(), host, dice, end)));
    }
}

/// A process that is a candidate for the office, and its present session.
struct CandidateProcess {
    process: ProcessId,
    session: Arc<Mutex<Option<Arc<MemorySession>>>>,
}

impl CandidateProcess {
    fn begin(world: &Arc<World>, host: Host) -> CandidateProcess {
        let process = world.executor.process();
        let standing = CandidateProcess { process, session: Arc::default() };
        let (session, world_too) = (standing.session.clone(), world.clone());
        world.executor.spawn(process, Box::pin(stand(world_too, host, process, session)));
        standing
    }

    fn end_session(&self, world: &World) {
        if let Some(session) = self.session.lock().as_ref() {
            world.service.kill(session.session());
        }
    }
}

/// Is a candidate with one session after another.
async fn stand(
    world: Arc<World>,
    host: Host,
    process: ProcessId,
    present: Arc<Mutex<Option<Arc<MemorySession>>>>,
) {
    let ports = world.ports(host, process, Arc::new(WallClock::default()));
    let candidate = Candidate::new(format!("process {} of h{}", process.0, host.0));
    loop {
        let session = Arc::new(world.service.open());
        *present.lock() = Some(session.clone());
        // All nodes are members from the beginning.
        tenure::serve(world.planted(session), &ports, &candidate).await;
        world.executor.sleep(STAND_AGAIN).await;
    }
}

/// One candidate after another on one host, each with its own end, until `end`; the last one stays.
async fn succession(world: Arc<World>, host: Host, mut dice: Dice, end: Moment) {
    loop {
        let standing = CandidateProcess::begin(&world, host);
        let ends = loop {
            world.executor.sleep(piloted::reigns_for(&world.setup, &mut dice)).await;
            if world.executor.now() >= end {
                return;
            }
            match dice.below(4) {
                0 => break dice.millis(0, 3_000),
                1 => {
                    world.tell(format!("the session of the headmaster on h{} ends", host.0));
                    standing.end_session(&world);
                }
                2 => stand_still(&world, &standing, host, &mut dice).await,
                _ => {}
            }
        };
        world.tell(format!("the headmaster on h{} ends", host.0));
        world.wires.end_process(standing.process, dice.millis(0, 500));
        world.executor.kill(standing.process);
        let session = standing.session.lock().take();
        world.executor.at(world.executor.now().after(ends), move || drop(session));
    }
}

/// A process stands still, mostly for longer than its session lives.
async fn stand_still(world: &Arc<World>, standing: &CandidateProcess, host: Host, dice: &mut Dice) {
    world.tell(format!("the headmaster on h{} hangs", host.0));
    world.executor.pause(standing.process);
    world.executor.sleep(dice.millis(50, 1_500)).await;
    if dice.chance(700) {
        standing.end_session(world);
        world.executor.sleep(dice.millis(0, 1_500)).await;
    }
    world.executor.resume(standing.process);
}

/// Gives orders until `end`; after that it lets go on what stands still.
async fn operate(world: Arc<World>, end: Moment) {
    if world.setup.autopilot.is_some() {
        return piloted::operate(&world, end).await;
    }
    let mut dice = Dice::apart(world.setup.seed, 25);
    loop {
        world.executor.sleep(dice.millis(20, 600)).await;
        let session = world.service.open();
        let over = world.executor.now() >= end;
        let Ok(Some(cluster)) = documents::read_cluster(&session).await else { continue };
        let Ok(planned) = planned(&session).await else { continue };
        let under_way: Vec<&Planned> = planned.iter().filter(|planned| planned.is_under_way()).collect();
        let order = match (over, under_way.first()) {
            (true, Some(planned)) if is_paused(planned) => Some(Order::Resume { plan: planned.number }),
            (true, Some(_)) => None,
            (true, None) => return,
            (false, _) => Some(draw((&cluster, &world.setup), &planned, &mut dice)),
        };
        if let Some(order) = order {
            give(&world, &session, order).await;
        }
    }
}

/// All plans: each that is there was made by this version.
async fn planned(session: &MemorySession) -> Result<Vec<Planned>, ReadError> {
    let mut all = Vec::new();
    for number in plans::all_numbers(session).await? {
        all.extend(plans::read(session, number).await?);
    }
    Ok(all)
}

/// Gives an order, and waits for the answer for a while.
async fn give(world: &World, session: &MemorySession, order: Order) {
    let Ok(number) = orders::give(session, order.clone(), "operator", 0).await else { return };
    let answered = Box::pin(orders::answered(session, number));
    match select(answered, Box::pin(world.executor.sleep(PATIENCE))).await {
        Either::Left((Ok(answer), _)) => {
            world.tell(format!("order {number}, {order:?}: {answer:?}"));
        }
        Either::Left((Err(error), _)) => world.tell(format!("order {number}, {order:?}: {error}")),
        Either::Right(_) => world.tell(format!("order {number}, {order:?}: no answer yet")),
    }
}

fn is_paused(planned: &Planned) -> bool {
    planned.state.as_ref().is_some_and(|state| state.phase == Phase::Paused)
}

/// What an operator may want, sensible or not; other bounds and other numbers where the run has them.
fn draw((cluster, setup): (&Cluster, &Setup), planned: &[Planned], dice: &mut Dice) -> Order {
    let under_way = planned.iter().find(|planned| planned.is_under_way());
    if let Some(planned) = under_way
        && dice.chance(500)
    {
        let plan = planned.number;
        return match (is_paused(planned), dice.below(4)) {
            (_, 0) => Order::Abort { plan },
            (true, _) => Order::Resume { plan },
            (false, 1 | 2) => Order::Pause { plan },
            (false, _) => Order::Apply { plan: dice.between(1, planned.number + 1) },
        };
    }
    if under_way.is_none()
        && let Some(last) = planned.last().filter(|last| last.state.is_none())
        && dice.chance(800)
    {
        return Order::Apply { plan: last.number };
    }
    let node = |dice: &mut Dice| dice.pick(&cluster.nodes).id;
    match dice.below(10) {
        0 => Order::Weigh { node: node(dice), weight: weight(dice) },
        1 => {
            let role = *dice.pick(&[Role::Serving, Role::Serving, Role::Standby]);
            Order::Cast { node: node(dice), role }
        }
        _ => Order::Create {
            wish: wish(cluster, setup, dice),
            consent: Consent { fewer_zones: dice.chance(900), weaker: setup.renumbers },
        },
    }
}

fn weight(dice: &mut Dice) -> Weight {
    Weight::new(dice.between(1, 4) as u32 * 50).expect("it is within the bounds")
}

fn wish(cluster: &Cluster, setup: &Setup, dice: &mut Dice) -> Wish {
    if setup.renumbers && dice.chance(400) {
        let store = dice.pick(&cluster.stores);
        if let Some(numbers) = other_numbers::other(store, cluster.nodes.len(), setup, dice) {
            return Wish::Numbers { store: store.name.to_string(), numbers };
        }
    }
    let node = |dice: &mut Dice| dice.pick(&cluster.nodes).id;
    if setup.golden && dice.chance(900) {
        return golden(cluster, dice);
    }
    match dice.below(10) {
        0..=1 => Wish::Spread,
        2..=3 => Wish::Drain { nodes: vec![node(dice)] },
        4 => Wish::Replace { node: node(dice), by: node(dice) },
        5..=6 if setup.reshapes => other_bounds(cluster, dice),
        7 => reordered(cluster, dice),
        _ => {
            // One that holds gives way to one that does not; sometimes in all partitions of which that is so.
            let replicas = cluster.replicas_max();
            let among =
                |partition: &Partition, node| partition.nodes.iter().take(replicas).any(|n| *n == node);
            let partition = dice.pick(cluster.ring.partitions());
            let from = *dice.pick(&partition.nodes[..replicas.min(partition.nodes.len())]);
            let others: Vec<NodeId> =
                cluster.nodes.iter().map(|node| node.id).filter(|&id| !among(partition, id)).collect();
            let to = if others.is_empty() { node(dice) } else { *dice.pick(&others) };
            let fitting = |partition: &&Partition| among(partition, from) && !among(partition, to);
            let fitting = cluster.ring.partitions().iter().filter(fitting).map(|partition| partition.id);
            let partitions: Vec<PartitionId> = fitting.take(dice.between(1, 8) as usize).collect();
            Wish::Move { partitions, from, to }
        }
    }
}

/// What an operator wants of a golden ring: a node that has no partition gets one, and another one gives its own away.
fn golden(cluster: &Cluster, dice: &mut Dice) -> Wish {
    let owners = cluster.ring.owners();
    let owner = *dice.pick(&owners);
    let free: Vec<NodeId> =
        cluster.nodes.iter().map(|node| node.id).filter(|id| !owners.contains(id)).collect();
    let partition = dice.pick(cluster.ring.partitions()).id;
    match dice.below(10) {
        0..=4 if !free.is_empty() => Wish::Join { node: *dice.pick(&free), cut: JoinCut::Widest },
        5 if !free.is_empty() => Wish::Replace { node: owner, by: *dice.pick(&free) },
        6 => reordered(cluster, dice),
        7 => Wish::Split { partition, at: None },
        _ => Wish::Drain { nodes: vec![owner] },
    }
}

/// Other orders of lists, as the autopilot wishes them: two places trade.
fn reordered(cluster: &Cluster, dice: &mut Dice) -> Wish {
    let mut placed: Vec<Placed> = Vec::new();
    for _ in 0..dice.between(1, 4) {
        let partition = dice.pick(cluster.ring.partitions());
        let mut replicas = cluster.replicas_in(&partition.nodes).to_vec();
        let (one, other) = (dice.below(replicas.len() as u64), dice.below(replicas.len() as u64));
        replicas.swap(one as usize, other as usize);
        if placed.iter().all(|known| known.partition != partition.id) {
            placed.push(Placed { partition: partition.id, replicas });
        }
    }
    Wish::Balance { placed }
}

/// Other bounds of partitions: of few, so that there are never many.
fn other_bounds(cluster: &Cluster, dice: &mut Dice) -> Wish {
    let partitions = cluster.ring.partitions();
    let at = dice.below(partitions.len() as u64) as usize;
    match dice.below(8) {
        0 if partitions.len() < 20 => Wish::Double,
        1..=3 if partitions.len() < 40 => Wish::Split { partition: partitions[at].id, at: None },
        _ => {
            let other = partitions.get(at + 1).unwrap_or(&partitions[0]).id;
            Wish::Merge { partition: partitions[at].id, other }
        }
    }
}

impl World {
    /// Adds what is left of orders and plans.
    pub(crate) async fn left_of_orders(&self, left: &mut LeftOver) {
        let session = self.service.open();
        let Ok(planned) = planned(&session).await else { return };
        let under_way = planned.iter().filter(|planned| planned.is_under_way());
        left.plans = under_way.map(|planned| (planned.number, planned.word().to_owned())).collect();
        for number in numbers(&session, &orders_path()).await.unwrap_or_default() {
            if let Ok(Some(given)) = orders::read(&session, number).await
                && given.document.answer.is_none()
            {
                left.orders.push(number);
            }
        }
    }
}
