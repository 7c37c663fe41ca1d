//! How long a plan takes: `cargo run --release -p protocol --example planner_time`.
//!
//! For rings of several sizes: sharing everything out anew when all weights have changed, and one node more or less on a
//! ring that is even. Prints the table of `docs/benchmarks/planner.md`.

#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use model::limits::FALLBACKS_LISTED;
use model::{Cluster, Consistency, Node, NodeId, Ring, Store, StoreName, Weight, Zone};
use protocol::rebalance::planner::{Consent, Plan, Wish, plan};
use protocol::rebalance::steps;

const REPLICAS: u8 = 3;
const TRIES: usize = 5;

fn cluster(partitions: usize, nodes: u32, zones: u32) -> Cluster {
    let node = |id: u32| {
        let native = format!("10.20.{}.{}:7400", id / 256, id % 256);
        Node::new(NodeId(id), Zone(format!("rack-{}", id % zones)), native, None)
    };
    let nodes: Vec<Node> = (1..=nodes).map(node).collect();
    let zoned: Vec<_> = nodes.iter().map(|node| (node.id, node.zone.clone())).collect();
    let ring = Ring::equal_slices_listing(partitions, &zoned, usize::from(REPLICAS) + FALLBACKS_LISTED);
    let consistency = Consistency { replicas: REPLICAS, reads_required: 2, writes_required: 2 };
    let store = Store::new(StoreName::new("s").unwrap(), consistency).unwrap();
    Cluster::new("timed", nodes, ring, vec![store])
}

/// The ring when a plan has been carried out.
fn carried_out(cluster: &Cluster, plan: &Plan) -> Cluster {
    let mut cluster = steps::begin(cluster, &plan.lists()).unwrap();
    let mut partitions = cluster.ring.partitions().to_vec();
    for partition in &mut partitions {
        if let Some(coming) = partition.coming.take() {
            partition.nodes = coming.nodes;
        }
    }
    cluster.ring = Ring::new(partitions).unwrap();
    cluster
}

/// The median time of a plan, and the copies that it makes beside the fewest that its outcome allows.
fn timed(cluster: &Cluster, wish: &Wish) -> (Duration, usize, usize, Plan) {
    let once = || {
        let began = Instant::now();
        let plan = plan(cluster, wish, Consent::default()).unwrap();
        (began.elapsed(), plan)
    };
    let mut tries: Vec<(Duration, Plan)> = (0..TRIES).map(|_| once()).collect();
    tries.sort_by_key(|(time, _)| *time);
    let (time, plan) = tries.swap_remove(TRIES / 2);
    let least = plan.places.values().map(|(before, after)| before.saturating_sub(*after)).sum();
    (time, plan.copies(), least, plan)
}

fn main() {
    println!("| partitions | nodes | zones | plan | time | copies | fewest |");
    println!("|---|---|---|---|---|---|---|");
    for (partitions, nodes, zones) in [(1024, 12, 3), (4096, 100, 10), (16_384, 1000, 10)] {
        let row = |what: &str, (time, copies, least, _): &(Duration, usize, usize, Plan)| {
            let millis = time.as_secs_f64() * 1000.0;
            println!("| {partitions} | {nodes} | {zones} | {what} | {millis:.1} ms | {copies} | {least} |");
        };
        let mut uneven = cluster(partitions, nodes, zones);
        for (at, node) in uneven.nodes.iter_mut().enumerate() {
            node.weight = Weight::new([100, 200, 50, 400][at % 4]).unwrap();
        }
        row("all weights change", &timed(&uneven, &Wish::Spread));
        let fresh = cluster(partitions, nodes, zones);
        let even = carried_out(&fresh, &timed(&fresh, &Wish::Spread).3);
        let mut joined = even.clone();
        joined.nodes.push(Node::new(NodeId(nodes + 1), Zone("rack-1".to_owned()), "h:1", None));
        row("one node more", &timed(&joined, &Wish::Spread));
        row("one node less", &timed(&even, &Wish::Drain { nodes: vec![NodeId(2)] }));
        eprintln!("document of {partitions} partitions on {nodes} nodes: {} bytes", even.document_bytes());
    }
}
