//! Plans: what moves, how little of it, and what cannot be.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use expect_test::{Expect, expect};
use model::{
    Cluster, Consistency, Generation, Node, NodeId, PartitionId, Ring, Role, Store, StoreName, Weight, Zone,
};
use proptest::prelude::*;
use protocol::rebalance::planner::{self, Consent, Plan, PlanRefusal, Reshape, Reshaped, Wish};
use protocol::rebalance::{lint, steps};

/// A cluster of nodes 1.. in these zones, whose ring was made for the first `members` of them.
pub(super) fn cluster(partitions: usize, zones: &[&str], members: usize, replicas: u8) -> Cluster {
    let nodes: Vec<Node> = zones
        .iter()
        .enumerate()
        .map(|(at, zone)| Node::new(NodeId(at as u32 + 1), Zone((*zone).to_owned()), "h:1", None))
        .collect();
    let zoned: Vec<_> = nodes[..members].iter().map(|node| (node.id, node.zone.clone())).collect();
    let listed = usize::from(replicas) + model::limits::FALLBACKS_LISTED;
    let ring = Ring::equal_slices_listing(partitions, &zoned, listed);
    let consistency = Consistency { replicas, reads_required: 1, writes_required: 1 };
    let store = Store::new(StoreName::new("s").unwrap(), consistency).unwrap();
    Cluster::new("planned", nodes, ring, vec![store])
}

pub(super) fn spread(cluster: &Cluster) -> Plan {
    planned(cluster, &Wish::Spread, Consent::default()).unwrap()
}

/// The ring when a plan has been carried out.
pub(super) fn carried_out(cluster: &Cluster, plan: &Plan) -> Cluster {
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

fn names(nodes: &[NodeId]) -> String {
    nodes.iter().map(NodeId::to_string).collect::<Vec<_>>().join(" ")
}

pub(super) fn told(plan: &Plan) -> String {
    let mut told = String::new();
    for one in plan.moves() {
        let (from, to, entering) = (names(&one.from), names(&one.to), names(&one.entering));
        let brings = if entering.is_empty() { "nothing".to_owned() } else { entering };
        writeln!(told, "{}: {from} -> {to}, copied to {brings}", one.partition).unwrap();
    }
    let places: Vec<_> =
        plan.places.iter().map(|(node, (before, after))| format!("{node} {before}->{after}")).collect();
    writeln!(told, "places {}", places.join(", ")).unwrap();
    told
}

pub(super) fn check(cluster: &Cluster, wish: Wish, expected: Expect) {
    let answer = match wished(cluster, wish) {
        Ok(plan) => told(&plan),
        Err(refusal) => format!("{refusal:?}"),
    };
    expected.assert_eq(&answer);
}

#[test]
fn a_fourth_node_takes_its_share_and_nothing_else_moves() {
    let cluster = cluster(8, &["a"; 4], 3, 2);
    check(
        &cluster,
        Wish::Spread,
        expect![[r#"
        p0: n1 n2 n3 -> n4 n2 n3 n1, copied to n4
        p1: n2 n3 n1 -> n4 n3 n1 n2, copied to n4
        p2: n3 n1 n2 -> n4 n1 n2 n3, copied to n4
        p3: n1 n3 n2 -> n1 n3 n2 n4, copied to nothing
        p4: n2 n1 n3 -> n4 n1 n3 n2, copied to n4
        p5: n3 n2 n1 -> n3 n2 n1 n4, copied to nothing
        p6: n1 n2 n3 -> n1 n2 n3 n4, copied to nothing
        p7: n2 n3 n1 -> n2 n3 n1 n4, copied to nothing
        places n1 5->4, n2 6->4, n3 5->4, n4 0->4
    "#]],
    );
}

#[test]
fn a_node_that_is_drained_gives_everything_to_those_that_have_least() {
    let cluster = cluster(4, &["a"; 4], 4, 2);
    check(
        &cluster,
        Wish::Drain { nodes: vec![NodeId(2)] },
        expect![[r#"
        p0: n1 n2 n3 n4 -> n1 n3 n4, copied to n3
        p1: n2 n3 n4 n1 -> n1 n3 n4, copied to n1
        p2: n3 n4 n1 n2 -> n3 n4 n1, copied to nothing
        p3: n4 n1 n2 n3 -> n4 n1 n3, copied to nothing
        places n1 2->3, n2 2->0, n3 2->3, n4 2->2
    "#]],
    );
}

#[test]
fn a_node_takes_the_places_of_another_one() {
    let cluster = cluster(4, &["a"; 4], 3, 2);
    check(
        &cluster,
        Wish::Replace { node: NodeId(1), by: NodeId(4) },
        expect![[r#"
        p0: n1 n2 n3 -> n4 n2 n3 n1, copied to n4
        p1: n2 n3 n1 -> n2 n3 n1 n4, copied to nothing
        p2: n3 n1 n2 -> n3 n4 n2 n1, copied to n4
        p3: n1 n3 n2 -> n4 n3 n2 n1, copied to n4
        places n1 3->0, n2 2->2, n3 3->3, n4 0->3
    "#]],
    );
    let partitions = vec![PartitionId(0)];
    let (from, to) = (NodeId(2), NodeId(4));
    check(
        &cluster,
        Wish::Move { partitions, from, to },
        expect![[r#"
        p0: n1 n2 n3 -> n1 n4 n3 n2, copied to n4
        p1: n2 n3 n1 -> n2 n3 n1 n4, copied to nothing
        p2: n3 n1 n2 -> n3 n1 n2 n4, copied to nothing
        p3: n1 n3 n2 -> n1 n3 n2 n4, copied to nothing
        places n1 3->3, n2 2->1, n3 3->3, n4 0->1
    "#]],
    );
}

#[test]
fn what_cannot_be_is_refused_with_the_numbers() {
    let three = cluster(4, &["a", "b", "c"], 3, 3);
    check(
        &three,
        Wish::Drain { nodes: vec![NodeId(2)] },
        expect!["TooFewNodes { left: 2, needed: 3, leaving: [] }"],
    );
    check(&three, Wish::Drain { nodes: vec![NodeId(9)] }, expect!["NodeUnknown { node: NodeId(9) }"]);
    check(
        &three,
        Wish::Replace { node: NodeId(1), by: NodeId(2) },
        expect!["HeldAlready { partition: PartitionId(0), node: NodeId(2) }"],
    );
    let four = cluster(4, &["a", "b", "c", "c"], 4, 3);
    check(&four, Wish::Drain { nodes: vec![NodeId(2)] }, expect!["TooFewZones { left: 2, before: 3 }"]);
    let consent = Consent { fewer_zones: true, ..Consent::default() };
    let drained = planned(&four, &Wish::Drain { nodes: vec![NodeId(2)] }, consent).unwrap();
    assert_eq!(drained.places[&NodeId(2)].1, 0);
    let partitions = vec![PartitionId(9)];
    check(
        &four,
        Wish::Move { partitions, from: NodeId(1), to: NodeId(2) },
        expect!["PartitionUnknown { partition: PartitionId(9) }"],
    );
    let moving = steps::begin(&four, &[(PartitionId(1), [4, 1, 2].map(NodeId).to_vec())]).unwrap();
    check(&moving, Wish::Spread, expect!["Moves { partition: PartitionId(1) }"]);
}

#[test]
fn a_node_of_twice_the_weight_carries_twice_as_much() {
    let mut cluster = cluster(1024, &["a"; 4], 4, 2);
    cluster.nodes[3].weight = Weight::new(200).unwrap();
    let plan = spread(&cluster);
    let after = |node: u32| plan.places[&NodeId(node)].1;
    // 2,048 places, 500 parts.
    assert!((1..=3).all(|node| (409..=410).contains(&after(node))), "{:?}", plan.places);
    assert!((819..=820).contains(&after(4)), "{:?}", plan.places);
    // However heavy it is: a partition has one place at a node.
    cluster.nodes[3].weight = Weight::MAX;
    assert_eq!(spread(&cluster).places[&NodeId(4)].1, 1024);
}

#[test]
fn nodes_on_standby_and_leaving_hold_nothing() {
    let mut cluster = cluster(64, &["a"; 5], 4, 2);
    cluster.nodes[4].role = Role::Standby;
    assert_eq!(spread(&cluster).copies(), 0, "{}", told(&spread(&cluster)));
    cluster.nodes[0].role = Role::Leaving;
    let plan = spread(&cluster);
    assert_eq!(plan.places[&NodeId(1)].1, 0);
    assert!(!plan.places.contains_key(&NodeId(5)));
    assert!(plan.moves().iter().all(|one| !one.to.contains(&NodeId(1))), "it is no fallback either");
}

/// The plan for a wish, in which the linter finds no fault.
pub(super) fn planned(cluster: &Cluster, wish: &Wish, consent: Consent) -> Result<Plan, PlanRefusal> {
    let plan = planner::plan(cluster, wish, consent)?;
    let errors = lint::errors(cluster, &plan.change, &plan.places);
    assert!(errors.is_empty(), "{wish:?}: {errors:?} in {plan:?}");
    Ok(plan)
}

pub(super) fn wished(cluster: &Cluster, wish: Wish) -> Result<Plan, PlanRefusal> {
    planned(cluster, &wish, Consent::default())
}

/// The document after a plan that moves nothing.
pub(super) fn reshaped(cluster: &Cluster, wish: Wish) -> Cluster {
    let plan = wished(cluster, wish).unwrap();
    assert!(plan.moves().is_empty(), "{plan:?}");
    let reshape = plan.change.reshape().cloned().unwrap();
    assert_eq!(reshape.stands(&cluster.ring), Reshaped::Due);
    let next = reshape.apply(cluster, usize::MAX).unwrap();
    assert_eq!(reshape.stands(&next.ring), Reshaped::Done);
    next
}

pub(super) fn with_buckets(partitions: usize, buckets: u32) -> Cluster {
    Cluster { buckets, ..cluster(partitions, &["a"; 4], 4, 2) }
}

pub(super) fn split(partition: u32, at: Option<u64>) -> Wish {
    Wish::Split { partition: PartitionId(partition), at }
}

pub(super) fn merge(partition: u32, other: u32) -> Wish {
    Wish::Merge { partition: PartitionId(partition), other: PartitionId(other) }
}

#[test]
fn a_split_touches_no_list_and_a_merge_takes_it_back() {
    let four = with_buckets(4, 64);
    let halves = reshaped(&four, split(1, None));
    assert_eq!(halves.generation, Generation(2));
    let ids: Vec<_> = halves.ring.partitions().iter().map(|partition| partition.id.0).collect();
    assert_eq!(ids, [0, 1, 4, 2, 3]);
    let (first, second) =
        (halves.ring.get(PartitionId(1)).unwrap(), halves.ring.get(PartitionId(4)).unwrap());
    assert_eq!((second.start, &second.nodes), (3 << 61, &first.nodes));
    assert_eq!((first.since, second.since), (Generation(2), Generation(2)), "older requests learn of it");
    assert_eq!(halves.ring.get(PartitionId(0)).unwrap().since, Generation(0), "others stay as they were");
    for named in [merge(1, 4), merge(4, 1)] {
        let merged = reshaped(&halves, named);
        let bounds = |cluster: &Cluster| {
            let of = |p: &model::Partition| (p.id, p.start, p.nodes.clone());
            cluster.ring.partitions().iter().map(of).collect::<Vec<_>>()
        };
        assert_eq!(bounds(&merged), bounds(&four));
        assert_eq!(merged.ring.get(PartitionId(1)).unwrap().since, Generation(3));
    }
    let refused = |partition, other| wished(&halves, merge(partition, other)).unwrap_err();
    let no_neighbours = |partition: u32, other: u32, neighbours: &[u32]| {
        let neighbours = neighbours.iter().copied().map(PartitionId).collect();
        PlanRefusal::NoNeighbours { partition: PartitionId(partition), other: PartitionId(other), neighbours }
    };
    assert_eq!(refused(1, 2), no_neighbours(1, 2, &[0, 4]));
    assert_eq!(refused(1, 1), no_neighbours(1, 1, &[0, 4]));
    assert_eq!(refused(3, 0), no_neighbours(3, 0, &[2]), "no circle");
    assert_eq!(reshaped(&halves, Wish::Double).ring.partitions().len(), 10);
}

#[test]
fn partitions_that_merge_are_first_brought_together_and_the_narrower_one_moves() {
    let four = reshaped(&with_buckets(4, 64), split(1, None));
    let plan = wished(&four, merge(0, 1)).unwrap();
    let wide = &four.ring.get(PartitionId(0)).unwrap().nodes;
    assert_eq!(plan.moves().len(), 1);
    assert_eq!((plan.moves()[0].partition, &plan.moves()[0].to), (PartitionId(1), wide));
    let reshape = plan.change.reshape().cloned().unwrap();
    let apart = reshape.apply(&four, usize::MAX);
    assert_eq!(apart, Err(PlanRefusal::OtherLists { partition: PartitionId(0), other: PartitionId(1) }));
    let before: usize = plan.places.values().map(|places| places.0).sum();
    let after: usize = plan.places.values().map(|places| places.1).sum();
    assert_eq!((before, after), (5 * 2, 4 * 2));
    let mut leaving = four.clone();
    let enters = plan.moves()[0].entering[0];
    leaving.nodes.iter_mut().find(|node| node.id == enters).unwrap().role = Role::Leaving;
    assert_eq!(
        wished(&leaving, merge(0, 1)),
        Err(PlanRefusal::TakesNothing { node: enters, is_gone: false })
    );
}

#[test]
fn a_cut_outside_or_between_no_two_buckets_is_refused_and_a_bucket_cannot_be_cut() {
    let (four, tokens) = (with_buckets(4, 16), 1 << 60);
    for at in [0, 1 << 62, tokens + 1, tokens / 2, u64::MAX] {
        let refused = wished(&four, split(0, Some(at)));
        let fits = (tokens, 3 * tokens);
        assert_eq!(
            refused,
            Err(PlanRefusal::Cut { partition: PartitionId(0), at, between: fits, tokens }),
            "{at}"
        );
    }
    let narrow = reshaped(&four, split(0, Some(tokens)));
    let refused = PlanRefusal::Narrow { partition: PartitionId(0), buckets: 16 };
    assert_eq!(wished(&narrow, split(0, None)), Err(refused.clone()));
    assert_eq!(wished(&narrow, split(0, Some(5))), Err(refused));
    let refused = PlanRefusal::NotDoubled { partition: PartitionId(0), buckets: 16 };
    assert_eq!(wished(&narrow, Wish::Double), Err(refused), "no partition is doubled unless all can be");
    let last = PartitionId(3);
    let small = reshaped(&four, Wish::Double).document_bytes() - 1;
    let refused = Reshape::double(&four).unwrap().apply(&four, small);
    assert!(matches!(refused, Err(PlanRefusal::TooLarge { partitions: 8, .. })), "{refused:?}");
    let unknown = wished(&four, split(9, None));
    assert_eq!(unknown, Err(PlanRefusal::PartitionUnknown { partition: PartitionId(9) }));
    assert_eq!(reshaped(&four, split(last.0, None)).ring.get(PartitionId(4)).unwrap().start, 7 << 61);
}

#[test]
fn partitions_of_one_bucket_are_merged_and_cut_again_where_they_were_merged() {
    let whole = cluster(4, &["a"; 2], 2, 2);
    assert_eq!(
        wished(&whole, split(1, None)),
        Err(PlanRefusal::Narrow { partition: PartitionId(1), buckets: 4 })
    );
    let mut alike = whole.ring.partitions().to_vec();
    alike[1].nodes = alike[0].nodes.clone();
    let alike = Cluster { ring: model::Ring::new(alike).unwrap(), ..whole };
    let merged = reshaped(&alike, merge(0, 1));
    assert_eq!((merged.buckets, merged.ring.partitions().len()), (4, 3), "what lies on disks stays");
    let again = reshaped(&merged, split(0, None));
    assert_eq!(again.ring.get(PartitionId(4)).unwrap().start, 1 << 62);
}

#[test]
fn a_partition_that_moves_is_neither_split_nor_merged() {
    let four = with_buckets(4, 64);
    let moving = steps::begin(&four, &[(PartitionId(0), [4, 3, 1].map(NodeId).to_vec())]).unwrap();
    let refused = PlanRefusal::Moves { partition: PartitionId(0) };
    for wish in [split(0, None), split(2, None), merge(0, 1), Wish::Double] {
        assert_eq!(wished(&moving, wish), Err(refused.clone()), "one plan is at a time");
    }
    let reshape = Reshape::split(&moving, PartitionId(0), None).unwrap();
    assert_eq!(reshape.apply(&moving, usize::MAX), Err(refused));
}

/// The most places that can stay, when each node has this many in the end: a flow of least cost, found slowly.
pub(super) fn kept_at_most(
    cluster: &Cluster,
    replicas: usize,
    zone_places: usize,
    after: &BTreeMap<NodeId, usize>,
) -> usize {
    let partitions = cluster.ring.partitions();
    let zones: Vec<&Zone> =
        cluster.nodes.iter().map(|node| &node.zone).collect::<BTreeSet<_>>().into_iter().collect();
    let zone_of =
        |node: NodeId| zones.iter().position(|zone| **zone == cluster.node(node).unwrap().zone).unwrap();
    let (count, width) = (partitions.len(), zones.len());
    let node_at = |at: usize| 1 + count + count * width + at;
    let sink = node_at(cluster.nodes.len());
    let mut arcs: Vec<(usize, usize, i64, i64)> = Vec::new();
    let mut leaving: Vec<Vec<usize>> = vec![Vec::new(); sink + 1];
    let mut add = |from: usize, to: usize, room: usize, cost: i64| {
        for (from, to, room, cost) in [(from, to, room as i64, cost), (to, from, 0, -cost)] {
            leaving[from].push(arcs.len());
            arcs.push((from, to, room, cost));
        }
    };
    for (position, partition) in partitions.iter().enumerate() {
        add(0, 1 + position, replicas, 0);
        for zone in 0..width {
            add(1 + position, 1 + count + position * width + zone, zone_places, 0);
        }
        for (at, node) in cluster.nodes.iter().enumerate() {
            let held = partition.nodes[..replicas.min(partition.nodes.len())].contains(&node.id);
            add(1 + count + position * width + zone_of(node.id), node_at(at), 1, i64::from(!held));
        }
    }
    for (at, node) in cluster.nodes.iter().enumerate() {
        add(node_at(at), sink, after.get(&node.id).copied().unwrap_or(0), 0);
    }
    let (mut flow, mut cost) = (0, 0);
    loop {
        let mut best = vec![i64::MAX; sink + 1];
        let mut by = vec![usize::MAX; sink + 1];
        best[0] = 0;
        let mut waiting = std::collections::VecDeque::from([0]);
        while let Some(from) = waiting.pop_front() {
            for &arc in &leaving[from] {
                let (_, to, room, price) = arcs[arc];
                if room > 0 && best[from] + price < best[to] {
                    (best[to], by[to]) = (best[from] + price, arc);
                    waiting.push_back(to);
                }
            }
        }
        if best[sink] == i64::MAX {
            break;
        }
        let mut at = sink;
        while at != 0 {
            let arc = by[at];
            arcs[arc].2 -= 1;
            arcs[arc ^ 1].2 += 1;
            at = arcs[arc].0;
        }
        flow += 1;
        cost += best[sink];
    }
    assert_eq!(flow, count * replicas, "the places can be had");
    flow - cost as usize
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn a_spread_ring_keeps_its_promises_and_moves_as_little_as_a_flow(
        zones in prop::collection::vec(0..4_u8, 3..8),
        weights in prop::collection::vec(1..4_u32, 8),
        members in 1..8_usize,
        replicas in 1..4_u8,
        bits in 0..6_u32,
    ) {
        let names: Vec<String> = zones.iter().map(|zone| format!("z{zone}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut cluster = cluster(1 << bits, &names, members.min(zones.len()), replicas);
        for (node, weight) in cluster.nodes.iter_mut().zip(&weights) {
            node.weight = Weight::new(weight * 100).unwrap();
        }
        let plan = spread(&cluster);
        let done = carried_out(&cluster, &plan);
        prop_assert!(done.check().is_ok(), "{:?}", done.check());
        let sizes: Vec<usize> = (0..4).map(|zone| zones.iter().filter(|&&z| z == zone).count()).collect();
        let replicas = usize::from(replicas).min(zones.len());
        let zone_places = (1..).find(|&most| sizes.iter().map(|&size| size.min(most)).sum::<usize>() >= replicas).unwrap();
        for partition in done.ring.partitions() {
            let held = &partition.nodes[..replicas];
            for zone in 0..4 {
                let there = held.iter().filter(|node| zones[node.0 as usize - 1] == zone).count();
                prop_assert!(there <= zone_places, "{held:?} in {zones:?}");
            }
        }
        let after: BTreeMap<NodeId, usize> = plan.places.iter().map(|(&node, &(_, after))| (node, after)).collect();
        let kept = plan.places.values().map(|(_, after)| after).sum::<usize>() - plan.copies();
        prop_assert_eq!(kept, kept_at_most(&cluster, replicas, zone_places, &after), "{}", told(&plan));
        prop_assert!(spread(&done).is_empty(), "what is spread stays: {}", told(&spread(&done)));
    }

    #[test]
    fn draining_moves_what_the_node_held_and_nothing_else(
        count in 4..9_usize, replicas in 1..4_u8, drained in 1..5_u32, bits in 2..8_u32,
    ) {
        let cluster = cluster(1 << bits, &vec!["a"; count], count, replicas);
        let wish = Wish::Drain { nodes: vec![NodeId(drained)] };
        let plan = planned(&cluster, &wish, Consent::default()).unwrap();
        let (held, left) = plan.places[&NodeId(drained)];
        prop_assert_eq!((plan.copies(), left), (held, 0));
        let loads: Vec<usize> = plan.places.iter().filter(|(node, _)| node.0 != drained).map(|(_, p)| p.1).collect();
        let before: Vec<usize> = plan.places.iter().filter(|(node, _)| node.0 != drained).map(|(_, p)| p.0).collect();
        let spread = |loads: &[usize]| loads.iter().max().unwrap() - loads.iter().min().unwrap();
        prop_assert!(spread(&loads) <= spread(&before).max(1) + 1, "{:?}", plan.places);
    }
}

/// What nodes hold beyond their share must move, and nothing else does: no plan moves less.
#[test]
fn a_node_more_or_less_moves_as_little_as_can_be_on_a_large_ring() {
    let zones: Vec<String> = (0..101).map(|at| format!("z{}", at % 10)).collect();
    let zones: Vec<&str> = zones.iter().map(String::as_str).collect();
    let fresh = cluster(4096, &zones, 100, 3);
    let even = carried_out(&fresh, &spread(&cluster(4096, &zones[..100], 100, 3)));
    let least = |plan: &Plan| -> usize {
        plan.places.values().map(|(before, after)| before.saturating_sub(*after)).sum()
    };
    let joined = spread(&even);
    assert_eq!(joined.copies(), least(&joined));
    assert!((120..=123).contains(&joined.copies()), "{}", joined.copies());
    let wish = Wish::Drain { nodes: vec![NodeId(7)] };
    let drained = planned(&even, &wish, Consent::default()).unwrap();
    assert_eq!(drained.copies(), drained.places[&NodeId(7)].0);
}
