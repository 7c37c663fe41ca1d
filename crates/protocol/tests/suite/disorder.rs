//! Plans for rings in disorder: lists as no plan would leave them, on nodes of all weights, in zones of all sizes.
//!
//! What is even has little to choose from. Here chains of moves get long, zones hold too many replicas of a partition,
//! nodes have left while they held data, and what was moved once is moved back.

use std::collections::BTreeMap;

use model::{
    Cluster, Consistency, Node, NodeId, Partition, PartitionId, Ring, Role, Store, StoreName, Weight, Zone,
};
use protocol::rebalance::planner::{Consent, Plan, Wish, plan};

use crate::planner::{carried_out, kept_at_most, told};

/// The same numbers each time, from a seed.
struct Dice(u64);

impl Dice {
    /// A number below `sides`.
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % sides as u64) as usize
    }
}

/// A cluster whose lists are drawn by lot: some of its nodes have no places yet, and some leave.
fn disordered(dice: &mut Dice) -> Cluster {
    let (count, zones, replicas) = (3 + dice.roll(6), 1 + dice.roll(4), 1 + dice.roll(3));
    let ordinary = dice.roll(2) == 0;
    let mut node = |id: usize| {
        let zone = Zone(format!("z{}", dice.roll(zones)));
        let weight = if ordinary { 100 } else { [100, 200, 50, 37, 300][dice.roll(5)] };
        let role = if dice.roll(8) == 0 { Role::Leaving } else { Role::Serving };
        Node { role, weight: Weight::new(weight).unwrap(), ..Node::new(NodeId(id as u32), zone, "h:1", None) }
    };
    let nodes: Vec<Node> = (1..=count).map(&mut node).collect();
    let members = replicas.max(1 + dice.roll(count));
    let bits = dice.roll(6);
    let mut partition = |position: u32| {
        let mut drawn: Vec<NodeId> = (1..=members as u32).map(NodeId).collect();
        (1..members).rev().for_each(|at| drawn.swap(at, dice.roll(at + 1)));
        drawn.truncate(replicas);
        let start = if position == 0 { 0 } else { u64::from(position) << (64 - bits) };
        Partition::settled(PartitionId(position), start, drawn)
    };
    let ring = Ring::new((0..1 << bits).map(&mut partition).collect()).unwrap();
    let consistency = Consistency { replicas: replicas as u8, reads_required: 1, writes_required: 1 };
    let store = Store::new(StoreName::new("s").unwrap(), consistency).unwrap();
    Cluster::new("disordered", nodes, ring, vec![store])
}

/// The nodes that may hold data when these have left.
fn staying<'a>(cluster: &'a Cluster, leaving: &'a [NodeId]) -> Vec<&'a Node> {
    let stays = |node: &&Node| node.role == Role::Serving && !leaving.contains(&node.id);
    cluster.nodes.iter().filter(stays).collect()
}

/// Replicas of one partition in a zone, at most: as few as suffice for all of them.
fn zone_places(nodes: &[&Node], replicas: usize) -> usize {
    let mut sizes: BTreeMap<&str, usize> = BTreeMap::new();
    nodes.iter().for_each(|node| *sizes.entry(&node.zone.0).or_default() += 1);
    let room = |most: usize| sizes.values().map(|&size| size.min(most)).sum::<usize>();
    (1..).find(|&most| room(most) >= replicas).unwrap()
}

/// That a plan leaves each partition with all its replicas, on nodes that may hold it, in as many zones as can be; and
/// that no plan with as many places at each node copies less.
fn judge(cluster: &Cluster, leaving: &[NodeId], plan: &Plan) {
    let (nodes, replicas) = (staying(cluster, leaving), cluster.replicas_max());
    let most = zone_places(&nodes, replicas);
    let done = carried_out(cluster, plan);
    done.check().unwrap();
    for partition in done.ring.partitions() {
        let held = &partition.nodes[..replicas];
        for node in held {
            let zone = &nodes.iter().find(|one| one.id == *node).expect("it may hold data").zone;
            let there = held.iter().filter(|other| cluster.node(**other).unwrap().zone == *zone).count();
            assert!(there <= most, "{} of {held:?} in zone {}", there, zone.0);
        }
    }
    let after: BTreeMap<NodeId, usize> = plan.places.iter().map(|(&node, places)| (node, places.1)).collect();
    let kept = after.values().sum::<usize>() - plan.copies();
    assert_eq!(kept, kept_at_most(cluster, replicas, most, &after), "{}", told(plan));
}

/// That places follow weights, as far as rounding, zones and distinct replicas let them: where a node may take one
/// more, no other is left with much more for its weight.
fn judge_shares(cluster: &Cluster, plan: &Plan) {
    let (nodes, partitions) = (staying(cluster, &[]), cluster.ring.partitions().len());
    let most = zone_places(&nodes, cluster.replicas_max());
    let places = |node: &Node| plan.places.get(&node.id).map_or(0, |places| places.1);
    let has_room = |zone: &Zone| {
        let there: Vec<_> = nodes.iter().filter(|node| node.zone == *zone).collect();
        there.iter().map(|node| places(node)).sum::<usize>() < partitions * most.min(there.len())
    };
    for less in nodes.iter().filter(|node| places(node) < partitions) {
        for more in &nodes {
            // A zone's share is rounded, and so is a node's.
            let rounded = if less.zone == more.zone { 1 } else { 2 };
            let weight = |node: &Node| node.weight.get() as usize;
            let (much, little) = (places(more).saturating_sub(rounded), places(less) + rounded);
            let is_even = much * weight(less) <= little * weight(more);
            let may_take = less.zone == more.zone || has_room(&less.zone);
            assert!(is_even || !may_take, "{} and {}: {}", less.id, more.id, told(plan));
        }
    }
}

/// Places that are no places in the end: at nodes that leave, or in zones with too many replicas of a partition.
fn lost(cluster: &Cluster, leaving: &[NodeId]) -> usize {
    let (nodes, replicas) = (staying(cluster, leaving), cluster.replicas_max());
    let most = zone_places(&nodes, replicas);
    let lost = |partition: &Partition| {
        let mut there: BTreeMap<&str, usize> = BTreeMap::new();
        let held = partition.nodes[..replicas].iter();
        held.filter_map(|held| nodes.iter().find(|node| node.id == *held))
            .for_each(|node| *there.entry(&node.zone.0).or_default() += 1);
        replicas - there.values().map(|&there| there.min(most)).sum::<usize>()
    };
    cluster.ring.partitions().iter().map(lost).sum()
}

/// Rings that are drawn. In one of thousands a circle of moves is found from one of its places only.
fn seeds() -> impl Iterator<Item = u64> {
    (0..2100).chain([9972])
}

#[test]
fn a_ring_in_disorder_is_put_in_order_with_as_few_copies_as_a_flow() {
    let consent = Consent { fewer_zones: true, weaker: false };
    for seed in seeds() {
        let cluster = disordered(&mut Dice(seed));
        let nodes = staying(&cluster, &[]);
        if nodes.len() < cluster.replicas_max() {
            continue;
        }
        let spread = plan(&cluster, &Wish::Spread, consent).unwrap();
        judge(&cluster, &[], &spread);
        judge_shares(&cluster, &spread);
        let again = plan(&carried_out(&cluster, &spread), &Wish::Spread, consent).unwrap();
        assert!(again.is_empty(), "what is spread stays: {}", told(&again));
    }
}

#[test]
fn a_ring_in_disorder_is_drained_with_one_copy_for_each_place_that_is_lost() {
    let consent = Consent { fewer_zones: true, weaker: false };
    for seed in seeds() {
        let mut dice = Dice(seed);
        let cluster = disordered(&mut dice);
        let leaving = vec![NodeId(1 + dice.roll(cluster.nodes.len()) as u32)];
        if staying(&cluster, &leaving).len() < cluster.replicas_max() {
            continue;
        }
        let drained = plan(&cluster, &Wish::Drain { nodes: leaving.clone() }, consent).unwrap();
        judge(&cluster, &leaving, &drained);
        assert_eq!(drained.copies(), lost(&cluster, &leaving), "{seed}: {}", told(&drained));
    }
}
