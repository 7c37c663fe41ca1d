//! A headmaster without memory that moves partitions while everything else happens. It begins moves, publishes each
//! step as soon as what nodes say of themselves allows it, and now and then breaks a move off at whatever step it is.
//! Beside that it cuts and joins partitions, see [`bounds`].
//!
//! It asks nodes over the simulated network, as a headmaster does, and decides by `protocol::rebalance::steps`. What is
//! drawn is only which partition goes where, and when it turns round.
//!
//! Must never: remember anything from one look to the next, or begin a move after the span of a run.

use protocol::report::Parts;
use std::sync::Arc;

use client::{Client, ClientOptions};
use coordination::documents;
use futures_util::future::join_all;
use model::{Cluster, Generation, Moment, NodeId, Partition, PartitionId};
use protocol::rebalance::entering::Part;
use protocol::rebalance::steps;
use protocol::report::Facts;
use storage::Held;

use crate::bounds::{self, Drawn};
use crate::check::rebalance::{self, LeftOver};
use crate::cluster::World;
use crate::dice::Dice;
use crate::executor::{ProcessId, WallClock};
use crate::host::Host;
use crate::numbers;

/// The headmaster's host: no node and no client has it.
const HOST: Host = Host(100);
/// Partitions that move at the same time at most.
const TOGETHER_MAX: usize = 3;
/// Looks in a thousand at which no partition begins to move, where stores change their numbers.
const STAYS: u64 = 800;
/// Looks in a thousand at which bounds change.
const RESHAPES: u64 = 150;

/// Moves partitions until the run is over; begins none after `end`.
pub async fn manage(world: Arc<World>, process: ProcessId, end: Moment) {
    let mut dice = Dice::apart(world.setup.seed, 21);
    let mut cuts = Dice::apart(world.setup.seed, 28);
    let mut changes = Dice::apart(world.setup.seed, 31);
    let client = loop {
        let options = ClientOptions { name: "manager".to_owned(), ..ClientOptions::default() };
        let ports = world.ports(HOST, process, Arc::new(WallClock::default()));
        match Client::connect(&world.addresses(), ports, options).await {
            Ok(client) => break client,
            Err(_) => world.executor.sleep(dice.millis(50, 200)).await,
        }
    };
    loop {
        world.executor.sleep(dice.millis(20, 400)).await;
        let Ok(Some(cluster)) = documents::read_cluster(&*world.session()).await else { continue };
        let begins = world.executor.now() < end;
        let reshapes = begins && world.setup.reshapes && cuts.chance(RESHAPES);
        let reshaped = reshapes.then(|| other_bounds(&world, &cluster, &mut cuts));
        let renumbers = begins && world.setup.renumbers;
        let renumbered = || renumbers.then(|| numbers::draw(&cluster, &world.setup, &mut changes)).flatten();
        let next = match reshaped.flatten().or_else(renumbered) {
            Some(other) => Some(other),
            None => {
                // A store waits until no partition moves: so fewer begin to.
                let begins = begins && !(renumbers && changes.chance(STAYS));
                next(&client, &cluster, &mut dice, begins).await
            }
        };
        if let Some((what, next)) = next
            && documents::publish_cluster(&*world.session(), &next).await.is_ok()
        {
            world.tell(format!("generation {}: {what} {}", next.generation.0, steps_of(&next)));
        }
    }
}

/// Other bounds, or the move that brings two partitions together which shall be joined.
fn other_bounds(world: &World, cluster: &Cluster, dice: &mut Dice) -> Option<(String, Cluster)> {
    match bounds::draw(cluster, world.setup.plant, dice) {
        Drawn::Other(what, next) => Some((what, *next)),
        Drawn::Apart(moves, stays) => {
            let list = cluster.ring.get(stays)?.nodes.clone();
            let next = steps::begin(cluster, &[(moves, list)]).ok()?;
            Some((format!("{moves} shall lie where {stays} does:"), next))
        }
        Drawn::Refused(refusal) => {
            world.tell(format!("bounds stay: {refusal:?}"));
            None
        }
    }
}

/// What is to be published now, and what it does.
async fn next(
    client: &Client,
    cluster: &Cluster,
    dice: &mut Dice,
    begins: bool,
) -> Option<(String, Cluster)> {
    let named = |what: &str| {
        let what = what.to_owned();
        move |next| (what, next)
    };
    let moving: Vec<PartitionId> =
        cluster.ring.partitions().iter().filter(|p| p.coming.is_some()).map(|p| p.id).collect();
    let changes = cluster.changing().is_some();
    if begins && !changes && moving.len() < TOGETHER_MAX && dice.chance(400) {
        let settled: Vec<&Partition> =
            cluster.ring.partitions().iter().filter(|p| p.coming.is_none()).collect();
        let partition = *dice.pick(&settled);
        let list = another_list(cluster, partition, dice);
        return steps::begin(cluster, &[(partition.id, list)]).ok().map(named("a move begins:"));
    }
    if moving.is_empty() && !changes {
        return None;
    }
    if begins && !changes && dice.chance(100) {
        let turned = *dice.pick(&moving);
        return steps::back(cluster, &[turned]).map(named("a move is broken off:"));
    }
    let asked = cluster.nodes.iter().map(|node| async move {
        let report = client.report(node.id, Parts::MOVES).await.ok()?;
        Some((node.id, report.facts()?))
    });
    let nodes = join_all(asked).await.into_iter().flatten().collect();
    steps::next(cluster, &Facts { nodes }).next.map(named("a step is taken:"))
}

/// Another list for a partition: mostly one replica gives way, in some all may.
fn another_list(cluster: &Cluster, partition: &Partition, dice: &mut Dice) -> Vec<NodeId> {
    let mut list = partition.nodes.clone();
    list.extend(cluster.nodes.iter().map(|node| node.id).filter(|id| !partition.nodes.contains(id)));
    let (replicas, nodes) = (cluster.replicas_max() as u64, list.len() as u64);
    if dice.chance(200) {
        for place in (1..list.len()).rev() {
            list.swap(place, dice.below(place as u64 + 1) as usize);
        }
    } else if nodes > replicas {
        list.swap(dice.below(replicas) as usize, (replicas + dice.below(nodes - replicas)) as usize);
    }
    list
}

fn steps_of(cluster: &Cluster) -> String {
    let of = |partition: &Partition| {
        let coming = partition.coming.as_ref()?;
        Some(format!("{} {:?} {:?} to {:?}", partition.id, coming.step, partition.nodes, coming.nodes))
    };
    let stores = cluster.changing().map(|store| format!("{} {:?}", store.name, store.coming));
    cluster.ring.partitions().iter().filter_map(of).chain(stores).collect::<Vec<_>>().join(", ")
}

impl World {
    /// One partition is refused to older requests, wherever it lies.
    pub async fn next_since(&self, dice: &mut Dice) {
        let session = self.session();
        let Ok(Some(mut cluster)) = documents::read_cluster(&*session).await else { return };
        cluster.generation = Generation(cluster.generation.0 + 1);
        let mut partitions = cluster.ring.partitions().to_vec();
        let place = dice.below(partitions.len() as u64) as usize;
        partitions[place].since = cluster.generation;
        cluster.ring = model::Ring::new(partitions).expect("only its generation has changed");
        if documents::publish_cluster(&*session, &cluster).await.is_ok() {
            self.tell(format!("generation {} published for one partition", cluster.generation.0));
        }
    }

    /// What is left of moves, by the newest document: nothing, some time after the last one has begun.
    pub async fn left_of_moves(&self) -> LeftOver {
        let mut left = LeftOver::default();
        self.left_of_orders(&mut left).await;
        let Ok(Some(cluster)) = documents::read_cluster(&self.service.open()).await else { return left };
        left.moving = cluster.ring.partitions().iter().filter(|p| p.coming.is_some()).map(|p| p.id).collect();
        left.changing = cluster.changing().map(|store| store.name.to_string());
        let buckets = cluster.by_bucket();
        for (position, machine) in self.machines().iter().enumerate() {
            let Some(node) = self.node(position).filter(|_| self.belongs(machine.id())) else { continue };
            let view = node.replica().view().get();
            if view.cluster().generation < cluster.generation {
                left.behind.push(machine.id());
            }
            for store in view.stores() {
                for Held { partition: id, records, .. } in store.engine().partitions() {
                    let part = buckets.get(id).map(|p| Part::of(store.definition(), p, machine.id()));
                    if records > 0 && part == Some(Part::Nothing) {
                        left.leftovers.push((machine.id(), store.definition().name.to_string(), id, records));
                    }
                }
            }
        }
        left
    }
}

/// Waits until nothing is left of moves; says what is, if they never end.
pub async fn end(world: &Arc<World>, give_up: Moment) -> Vec<crate::check::Violation> {
    loop {
        let left = world.left_of_moves().await;
        if left == LeftOver::default() || world.executor.now() > give_up {
            return rebalance::check(&left);
        }
        world.executor.sleep(std::time::Duration::from_millis(200)).await;
    }
}
