//! Golden rings: what is cut and who gets it, what is refused, and what another headmaster goes on with.

use std::collections::BTreeSet;
use std::time::Duration;

use expect_test::expect;
use model::balance::Policy;
use model::order::Order;
use model::plan::{Consent, JoinCut, Phase, Placed, PlanChange, Wish};
use model::{Cluster, Consistency, Node, NodeId, PartitionId, Ring, Role, Store, StoreName, Weight, Zone};
use proptest::prelude::*;
use protocol::headmaster::Headmaster;
use protocol::rebalance::lint;
use protocol::rebalance::planner::{self, Plan, PlanRefusal, Reshape};
use protocol::report::Middle;

use crate::autopilot::{load, seconds};
use crate::headmaster::Stage;
use crate::planner::told;

/// A golden ring of the first `members` of this many nodes.
fn golden(nodes: u32, members: u32, replicas: u8) -> Cluster {
    let all: Vec<Node> =
        (1..=nodes).map(|id| Node::new(NodeId(id), Zone("a".to_owned()), format!("h{id}:1"), None)).collect();
    let ids: Vec<NodeId> = (1..=members).map(NodeId).collect();
    let ring = Ring::golden(&ids, 4096, usize::from(replicas) + model::limits::FALLBACKS_LISTED).unwrap();
    let consistency = Consistency { replicas, reads_required: 1, writes_required: 1 };
    let store = Store::new(StoreName::new("s").unwrap(), consistency).unwrap();
    Cluster { buckets: 4096, ..Cluster::new("planned", all, ring, vec![store]) }
}

fn join(node: u32) -> Wish {
    Wish::Join { node: NodeId(node), cut: JoinCut::Widest }
}

fn drain(nodes: &[u32]) -> Wish {
    Wish::Drain { nodes: nodes.iter().copied().map(NodeId).collect() }
}

fn wished(cluster: &Cluster, wish: &Wish) -> Result<Plan, PlanRefusal> {
    planner::plan(cluster, wish, Consent::default())
}

/// The cluster when a plan has been carried out.
fn carried_out(cluster: &Cluster, plan: &Plan) -> Cluster {
    let PlanChange::Golden { handover, moves, joins } = &plan.change else { panic!("{plan:?}") };
    assert_eq!(lint::errors(cluster, &plan.change, &plan.places), [""; 0]);
    let mut next = handover.apply(cluster, usize::MAX).unwrap();
    let mut partitions = next.ring.partitions().to_vec();
    for one in moves {
        let partition = partitions.iter_mut().find(|partition| partition.id == one.partition).unwrap();
        assert_eq!(partition.nodes, one.from);
        partition.nodes.clone_from(&one.to);
    }
    next.ring = Ring::new(partitions).unwrap();
    for &(partition, other) in joins {
        next = Reshape::Join { partition, other }.apply(&next, usize::MAX).unwrap();
    }
    next.check().unwrap();
    next
}

fn done(cluster: &Cluster, wish: &Wish) -> Cluster {
    carried_out(cluster, &wished(cluster, wish).unwrap())
}

/// Buckets and owner of each partition.
fn shape(cluster: &Cluster) -> Vec<(u64, u32)> {
    let of = |partition: &model::Partition| {
        let (first, last) = cluster.ring.bounds(partition.id).unwrap();
        (((last.0 - first.0) >> 52) + 1, partition.owner.unwrap().0)
    };
    cluster.ring.partitions().iter().map(of).collect()
}

/// Each partition is on its owner and the next along the ring, and each node that owns any owns one.
fn check(cluster: &Cluster) {
    let (owners, replicas) = (cluster.ring.owners(), cluster.replicas_max());
    assert_eq!(owners.iter().collect::<BTreeSet<_>>().len(), owners.len(), "{owners:?}");
    for (position, partition) in cluster.ring.partitions().iter().enumerate() {
        let next = (0..owners.len()).map(|step| owners[(position + step) % owners.len()]);
        let wanted: BTreeSet<NodeId> = next.take(replicas).collect();
        let found: BTreeSet<NodeId> = cluster.replicas_in(&partition.nodes).iter().copied().collect();
        assert_eq!(found, wanted, "{:?}", partition.id);
        assert!(partition.nodes.iter().all(|node| owners.contains(node)), "{partition:?}");
    }
}

#[test]
fn a_newcomer_gets_the_smaller_part_of_the_widest_partition_and_its_places_along_the_ring() {
    let four = golden(5, 4, 2);
    let plan = wished(&four, &join(5)).unwrap();
    expect![[r#"
        p0: n1 n3 n2 n4 -> n1 n5 n3 n2 n4, copied to n5
        p4: n1 n3 n2 n4 -> n5 n3 n2 n4 n1, copied to n5
        p2: n3 n2 n4 n1 -> n3 n2 n4 n1 n5, copied to nothing
        p1: n2 n4 n1 n3 -> n2 n4 n1 n5 n3, copied to nothing
        p3: n4 n1 n3 n2 -> n4 n1 n5 n3 n2, copied to nothing
        places n1 2->2, n2 2->2, n3 2->2, n4 2->2, n5 0->2
    "#]]
    .assert_eq(&told(&plan));
    assert_eq!(shape(&four), [(1564, 1), (967, 3), (967, 2), (598, 4)]);
    let five = carried_out(&four, &plan);
    assert_eq!(shape(&five), [(967, 1), (597, 5), (967, 3), (967, 2), (598, 4)]);
    check(&five);
    // Its own part, and that of the node before it.
    let copied: Vec<(u32, Vec<NodeId>)> = plan
        .moves()
        .iter()
        .filter(|one| !one.entering.is_empty())
        .map(|one| (one.partition.0, one.entering.clone()))
        .collect();
    assert_eq!(copied, [(0, vec![NodeId(5)]), (4, vec![NodeId(5)])]);
}

#[test]
fn a_node_that_leaves_gives_its_partition_to_the_narrower_neighbour() {
    let five = golden(5, 5, 1);
    assert_eq!(shape(&five), [(967, 1), (597, 5), (967, 3), (967, 2), (598, 4)]);
    let without = |nodes: &[u32]| shape(&done(&five, &drain(nodes)));
    assert_eq!(without(&[3]), [(967, 1), (1564, 5), (967, 2), (598, 4)]);
    assert_eq!(without(&[1]), [(1564, 5), (967, 3), (967, 2), (598, 4)]);
    assert_eq!(without(&[4]), [(967, 1), (597, 5), (967, 3), (1565, 2)]);
    // A neighbour between two that leave takes in both, and two that leave side by side go together.
    assert_eq!(without(&[3, 1]), [(2531, 5), (967, 2), (598, 4)]);
    assert_eq!(without(&[5, 3, 2]), [(967, 1), (3129, 4)]);
    assert_eq!(without(&[1, 2, 3, 5]), [(4096, 4)]);
}

#[test]
fn must_not_10_the_last_node_of_a_golden_ring_or_one_below_n_is_let_go() {
    let refused = |cluster: &Cluster, nodes: &[u32]| wished(cluster, &drain(nodes)).unwrap_err();
    let too_few = |left, needed| PlanRefusal::TooFewNodes { left, needed, leaving: Vec::new() };
    assert_eq!(refused(&golden(1, 1, 1), &[1]), too_few(0, 1));
    assert_eq!(refused(&golden(2, 2, 1), &[1, 2]), too_few(0, 1));
    assert_eq!(refused(&golden(4, 3, 3), &[2]), too_few(2, 3));
    assert_eq!(refused(&golden(4, 4, 3), &[2, 3]), too_few(2, 3));
    // A cluster that never had N nodes is not made smaller.
    assert_eq!(refused(&golden(2, 2, 3), &[2]), too_few(1, 2));
    assert!(wished(&golden(4, 4, 3), &drain(&[2])).is_ok());
    // One whose drain was aborted counts as leaving, and is named. One that the wish lets go is not.
    let mut aborted = golden(4, 4, 3);
    aborted.nodes[3].role = Role::Leaving;
    let beside = PlanRefusal::TooFewNodes { left: 2, needed: 3, leaving: vec![NodeId(4)] };
    assert_eq!(refused(&aborted, &[3]), beside);
    assert_eq!(refused(&aborted, &[3, 4]), too_few(2, 3));
    assert!(wished(&aborted, &drain(&[4])).is_ok());
    // Whoever is dead is no drain's matter.
    aborted.nodes[3].gone = true;
    assert_eq!(refused(&aborted, &[2, 3]), too_few(2, 3));
    // By order, too: nothing is published, and the node stays what it was.
    let mut stage = Stage::of(golden(3, 3, 3), false);
    let before = stage.cluster.clone();
    stage.order(Order::Drain { node: NodeId(2), consent: Consent::default() });
    stage.order(Order::Remove { node: NodeId(2) });
    let told = stage.play(40);
    assert!(told.contains("too-few-nodes") && told.contains("node-holds"), "{told}");
    assert_eq!(stage.cluster, before);
}

#[test]
fn what_would_reshape_a_golden_ring_is_refused() {
    let ring = golden(5, 4, 2);
    let golden = |wish: &str| Err(PlanRefusal::Golden { wish: wish.to_owned() });
    let (p0, p1, p3) = (PartitionId(0), PartitionId(1), PartitionId(3));
    let placed = |replicas: &[u32]| Wish::Balance {
        placed: vec![Placed { partition: p0, replicas: replicas.iter().copied().map(NodeId).collect() }],
    };
    for (wish, expected) in [
        (Wish::Spread, golden("spread")),
        (Wish::Double, golden("double")),
        (Wish::Move { partitions: vec![p0], from: NodeId(1), to: NodeId(2) }, golden("move")),
        (placed(&[1, 2]), golden("balance")),
        (placed(&[1]), golden("balance")),
        (Wish::Merge { partition: p0, other: p1 }, golden("merge")),
        (Wish::Merge { partition: p0, other: p3 }, golden("merge")),
    ] {
        assert_eq!(wished(&ring, &wish), expected, "{wish:?}");
    }
    assert_eq!(
        wished(&ring, &join(4)).unwrap_err(),
        PlanRefusal::HasPartition { node: NodeId(4), partition: p3 }
    );
    let equal = crate::planner::cluster(8, &["a"; 4], 3, 1);
    assert_eq!(wished(&equal, &join(4)), Err(PlanRefusal::NotGolden));
    let unmeasured = Wish::Join { node: NodeId(5), cut: JoinCut::Hottest };
    assert_eq!(wished(&ring, &unmeasured), Err(PlanRefusal::NoFigures { is_off: false, seconds: None }));
    let reordered = wished(&ring, &placed(&[3, 1])).unwrap();
    assert_eq!((reordered.copies(), reordered.moves().len()), (0, 1));
    // A node of another zone or weight gets nothing.
    for (weight, zone) in [(200, "a"), (100, "b")] {
        let mut uneven = ring.clone();
        (uneven.nodes[4].weight, uneven.nodes[4].zone) =
            (Weight::new(weight).unwrap(), Zone(zone.to_owned()));
        let (zone, zone_wanted) = (zone.to_owned(), "a".to_owned());
        let refused = PlanRefusal::Uneven { node: NodeId(5), weight, zone, zone_wanted };
        assert_eq!(wished(&uneven, &join(5)), Err(refused));
    }
    let mut stage = Stage::of(ring.clone(), true);
    stage.registered.push(Node::new(NodeId(6), Zone("b".to_owned()), "h6:1", None));
    stage.order(Order::Weigh { node: NodeId(2), weight: Weight::new(200).unwrap() });
    stage.order(Order::Admit { node: NodeId(6) });
    let told = stage.play(40);
    assert!(told.contains("golden") && told.contains("uneven"), "{told}");
    assert_eq!(stage.cluster, ring, "nor is it named because it waits: {told}");
}

#[test]
fn narrow_rings_say_so() {
    let full = Ring::golden(&(1..=16).map(NodeId).collect::<Vec<_>>(), 16, 1).unwrap();
    let narrow = Cluster { ring: full, buckets: 16, ..golden(17, 16, 1) };
    let refused = wished(&narrow, &join(17)).unwrap_err();
    assert_eq!(refused, PlanRefusal::Narrow { partition: PartitionId(0), buckets: 16 });
}

/// A part that is cut off and stays with its owner.
fn with_left_over(cluster: &Cluster) -> Cluster {
    let at = Some(cluster.ring.partitions()[1].start - (100 << 52));
    Reshape::split(cluster, PartitionId(0), at).unwrap().apply(cluster, usize::MAX).unwrap()
}

#[test]
fn a_cut_left_over_is_given_to_the_next_newcomer_and_leaves_with_its_owner() {
    let left = with_left_over(&golden(5, 4, 2));
    assert_eq!(shape(&left), [(1464, 1), (100, 1), (967, 3), (967, 2), (598, 4)]);
    let plan = wished(&left, &join(5)).unwrap();
    let PlanChange::Golden { handover, .. } = &plan.change else { panic!("{plan:?}") };
    assert_eq!(handover.cut, None);
    let five = carried_out(&left, &plan);
    assert_eq!(shape(&five), [(1464, 1), (100, 5), (967, 3), (967, 2), (598, 4)]);
    check(&five);
    let three = done(&left, &drain(&[1]));
    assert_eq!(shape(&three), [(2531, 3), (967, 2), (598, 4)]);
    check(&three);
    // Its neighbour leaves, and the part takes that in: it is one of two still, and nobody lacks anything.
    let beside = done(&left, &drain(&[3]));
    assert_eq!(shape(&beside), [(1464, 1), (1067, 1), (967, 2), (598, 4)]);
    check(&done(&beside, &join(5)));
    // By hand it becomes one again.
    let merged = wished(&left, &Wish::Merge { partition: PartitionId(0), other: PartitionId(4) }).unwrap();
    assert_eq!((merged.copies(), merged.moves().len()), (0, 0));
}

#[test]
fn an_order_that_load_has_chosen_survives_where_the_replicas_do() {
    let mut four = golden(5, 4, 3);
    let mut partitions: Vec<_> = four.ring.partitions().to_vec();
    partitions[2].nodes.swap(0, 1);
    let turned = partitions[2].nodes[..3].to_vec();
    four.ring = Ring::new(partitions).unwrap();
    let five = done(&four, &join(5));
    check(&five);
    let kept = five.ring.get(four.ring.partitions()[2].id).unwrap();
    assert_eq!(kept.nodes[..3], turned);
    check(&done(&five, &drain(&[2])));
}

#[test]
fn a_node_that_is_dead_is_replaced_by_one_without_a_partition_and_by_no_other() {
    let ring = golden(5, 4, 2);
    let by = |by: u32| Wish::Replace { node: NodeId(3), by: NodeId(by) };
    let partition = PartitionId(1);
    assert_eq!(wished(&ring, &by(2)), Err(PlanRefusal::HeldAlready { partition, node: NodeId(2) }));
    let replaced = done(&ring, &by(5));
    assert_eq!(shape(&replaced), [(1564, 1), (967, 5), (967, 2), (598, 4)]);
    check(&replaced);
}

/// A drain that was aborted leaves the node's role, and perhaps one list without it.
#[test]
fn a_node_whose_drain_was_aborted_takes_nothing_new_and_goes_with_the_next_drain() {
    let mut five = golden(6, 5, 3);
    five.nodes[1].role = Role::Leaving;
    // n5, n3 and n2 became n5, n3 and n4 when it was aborted.
    let mut partitions = five.ring.partitions().to_vec();
    let replicas: Vec<NodeId> = five.replicas_in(&partitions[1].nodes).to_vec();
    assert_eq!(replicas, [5, 3, 2].map(NodeId));
    partitions[1].nodes = [5, 3, 4].map(NodeId).to_vec();
    five.ring = Ring::new(partitions).unwrap();
    let refused = |is_gone| Err(PlanRefusal::TakesNothing { node: NodeId(2), is_gone });
    assert_eq!(wished(&five, &join(6)), refused(false), "it would be put back into that list");
    // Its neighbour leaves, and both are gone then; and each is sound.
    for nodes in [&[3][..], &[2], &[1]] {
        let left = done(&five, &drain(nodes));
        check(&left);
        assert!(!left.ring.owners().contains(&NodeId(2)), "{nodes:?}");
    }
    five.nodes[1].role = Role::Serving;
    check(&done(&five, &join(6)));
    // One that is dead gives nothing away, and takes nothing: it is replaced.
    (five.nodes[1].role, five.nodes[1].gone) = (Role::Leaving, true);
    assert_eq!(wished(&five, &join(6)), refused(true));
    check(&done(&five, &Wish::Replace { node: NodeId(2), by: NodeId(6) }));
}

#[test]
fn no_partition_of_a_small_ring_gets_fewer_replicas_than_an_aborted_plan_has_left_it() {
    let mut two = golden(4, 2, 3);
    let mut partitions = two.ring.partitions().to_vec();
    partitions[0].nodes = [1, 3, 2].map(NodeId).to_vec();
    two.ring = Ring::new(partitions).unwrap();
    let refused = Err(PlanRefusal::TooFewNodes { left: 2, needed: 3, leaving: Vec::new() });
    assert_eq!(wished(&two, &drain(&[3])), refused);
    assert_eq!(wished(&two, &Wish::Replace { node: NodeId(2), by: NodeId(4) }), refused);
    check(&done(&two, &join(3)));
}

#[test]
fn a_standby_gets_no_more_where_another_neighbour_serves() {
    let mut five = golden(5, 5, 1);
    // n5 is the narrower neighbour of n3.
    five.nodes[4].role = Role::Standby;
    assert_eq!(shape(&done(&five, &drain(&[3]))), [(967, 1), (597, 5), (1934, 2), (598, 4)]);
}

proptest! {
    /// Nodes come and go in any order, with cuts left over in between, and each plan leaves a ring in order.
    #[test]
    fn rings_stay_in_order_whoever_comes_and_goes(
        replicas in 1u8..4,
        acts in prop::collection::vec((any::<bool>(), 0usize..100), 1..40),
    ) {
        let mut cluster = golden(12, 4, replicas);
        for (comes, which) in acts {
            let owners = cluster.ring.owners();
            let free: Vec<NodeId> =
                cluster.nodes.iter().map(|node| node.id).filter(|id| !owners.contains(id)).collect();
            let wish = match comes && !free.is_empty() {
                true => Wish::Join { node: free[which % free.len()], cut: JoinCut::Widest },
                false => Wish::Drain { nodes: vec![owners[which % owners.len()]] },
            };
            match wished(&cluster, &wish) {
                Ok(plan) => cluster = carried_out(&cluster, &plan),
                Err(PlanRefusal::TooFewNodes { left, .. }) => prop_assert_eq!(left + 1, owners.len()),
                Err(refusal) => panic!("{wish:?}: {refusal:?}"),
            }
            check(&cluster);
            let sum: u64 = shape(&cluster).iter().map(|(buckets, _)| buckets).sum();
            prop_assert_eq!(sum, 4096);
        }
    }
}

/// A golden ring of three, and a fourth node that is a member.
fn stage(replicas: u8) -> Stage {
    let mut stage = Stage::of(golden(4, 3, replicas), false);
    stage.order(Order::Create { wish: join(4), consent: Consent::default() });
    stage.order(Order::Apply { plan: 1 });
    stage
}

/// Plays decision by decision, each by a headmaster that remembers nothing if `forgets`, until it is so.
fn until(stage: &mut Stage, forgets: bool, so: impl Fn(&Stage) -> bool) {
    for _ in 0..200 {
        if so(stage) {
            return;
        }
        if forgets {
            stage.machine = Headmaster::new(1 << 20);
            stage.now = stage.now.after(Duration::from_secs(1));
            // It asks first whom it needs, and is replaced when it has done something.
            for _ in 0..6 {
                let before = (stage.cluster.generation, stage.plans.clone());
                stage.play(1);
                if before != (stage.cluster.generation, stage.plans.clone()) {
                    break;
                }
            }
        } else {
            stage.play(1);
        }
    }
    panic!("never: {:?}", stage.plans);
}

fn phase(stage: &Stage) -> Option<Phase> {
    stage.plans.first()?.1.as_ref().map(|state| state.phase)
}

fn is_cut(stage: &Stage) -> bool {
    stage.cluster.ring.partitions().len() == 4
}

#[test]
fn must_not_8_each_turn_is_another_headmasters_and_the_ring_is_cut_once() {
    for replicas in [1, 2, 3] {
        let mut stage = stage(replicas);
        let mut shapes = BTreeSet::new();
        let mut met = false;
        until(&mut stage, true, |stage| phase(stage) == Some(Phase::Applying));
        for _ in 0..200 {
            let cluster = stage.cluster.clone();
            shapes.insert(shape(&cluster));
            // The cut is done by itself before anything moves.
            met |= is_cut(&stage) && cluster.ring.is_settled() && phase(&stage) != Some(Phase::Done);
            if phase(&stage) == Some(Phase::Done) {
                break;
            }
            let generation = cluster.generation;
            until(&mut stage, true, |stage| {
                stage.cluster.generation > generation || phase(stage) == Some(Phase::Done)
            });
        }
        assert_eq!(phase(&stage), Some(Phase::Done));
        assert!(met, "it is cut and moved by one document");
        assert_eq!(shapes.len(), 2, "{shapes:?}");
        assert_eq!(stage.cluster.ring.partitions().len(), 4);
        check(&stage.cluster);
    }
}

#[test]
fn a_plan_that_is_aborted_behind_its_cut_leaves_a_ring_that_the_next_join_reuses() {
    for forgets in [false, true] {
        let mut stage = stage(1);
        until(&mut stage, forgets, |stage| is_cut(stage) && !stage.cluster.ring.is_settled());
        stage.order(Order::Abort { plan: 1 });
        until(&mut stage, forgets, |stage| phase(stage).is_some_and(Phase::has_ended));
        assert_eq!(phase(&stage), Some(Phase::Aborted));
        let left = stage.cluster.clone();
        assert_eq!(left.ring.owners().iter().collect::<BTreeSet<_>>().len(), 3, "n4 owns nothing");
        assert_eq!(left.ring.partitions().len(), 4);
        assert!(left.ring.is_settled());
        stage.order(Order::Create { wish: join(4), consent: Consent::default() });
        stage.order(Order::Apply { plan: 2 });
        let second = |stage: &Stage| Some(stage.plans.get(1)?.1.as_ref()?.phase);
        until(&mut stage, forgets, |stage| second(stage) == Some(Phase::Done));
        assert_eq!(stage.cluster.ring.partitions().len(), 4, "it is not cut again");
        check(&stage.cluster);
    }
}

#[test]
fn a_drain_moves_first_and_makes_one_partition_of_two_then_whoever_ends_meanwhile() {
    let mut stage = Stage::of(golden(4, 4, 2), false);
    stage.order(Order::Drain { node: NodeId(3), consent: Consent::default() });
    let has_left = |stage: &Stage| stage.cluster.node(NodeId(3)).is_none();
    let mut merged_before = false;
    for _ in 0..200 {
        if has_left(&stage) {
            break;
        }
        let generation = stage.cluster.generation;
        until(&mut stage, true, |stage| stage.cluster.generation > generation || has_left(stage));
        merged_before |= stage.cluster.ring.partitions().len() == 3 && !stage.cluster.ring.is_settled();
    }
    assert!(has_left(&stage));
    assert!(!merged_before, "bounds change last");
    assert_eq!(shape(&stage.cluster), [(1564, 1), (1934, 2), (598, 4)]);
    check(&stage.cluster);
}

type Loads = fn(&Stage, NodeId) -> Option<protocol::report::LoadReport>;

/// The partition that holds the lowest tokens has nearly all the work.
fn hot_first(stage: &Stage, node: NodeId) -> Option<protocol::report::LoadReport> {
    let mut said = load(stage, node, |id| if id == PartitionId(0) { 4000.0 } else { 100.0 }, 0.0);
    for told in said.partitions.iter_mut().filter(|told| told.partition == PartitionId(0)) {
        told.middle = Some(Middle { at: 700 << 52, permille: 500 });
    }
    Some(said)
}

#[test]
fn must_not_9_the_autopilot_of_a_golden_ring_trades_places_and_nothing_else() {
    // With three replicas n1 is first in the list of p3 as well, and both have work.
    let mut turned = golden(5, 4, 3);
    let mut partitions = turned.ring.partitions().to_vec();
    partitions[3].nodes.swap(0, 1);
    turned.ring = Ring::new(partitions).unwrap();
    let two_hot: Loads = |stage, node| {
        let is_hot = |id| [PartitionId(0), PartitionId(3)].contains(&id);
        Some(load(stage, node, |id| if is_hot(id) { 3000.0 } else { 100.0 }, 0.0))
    };
    // It does what it may: it trades first places where that helps. It does not cut the only partition that is hot, though
    // a half of that could go.
    for (cluster, loads, acts) in [
        (golden(5, 4, 1), hot_first as Loads, false),
        (turned, two_hot, true),
        (golden(5, 4, 3), hot_first, false),
    ] {
        let mut stage = Stage::of(cluster, true);
        stage.policy = Policy::founded(0);
        stage.loads = loads;
        let before = stage.cluster.clone();
        let told = seconds(&mut stage, 3600);
        assert_eq!(shape(&stage.cluster), shape(&before), "{told}");
        check(&stage.cluster);
        assert!(stage.plans.iter().all(|(plan, _)| plan.change.copies() == 0), "{told}");
        assert_eq!(!stage.plans.is_empty(), acts, "{told}");
    }
}

#[test]
fn the_hottest_partition_is_cut_where_its_load_halves_and_not_without_figures() {
    let hottest = Order::Create {
        wish: Wish::Join { node: NodeId(5), cut: JoinCut::Hottest },
        consent: Consent::default(),
    };
    let mut stage = Stage::of(golden(5, 4, 1), false);
    stage.loads = hot_first;
    stage.order(hottest.clone());
    let told = stage.play(20);
    assert!(told.contains("no-figures"), "the autopilot is off: {told}");
    stage.policy = Policy::founded(0);
    stage.order(hottest.clone());
    let told = stage.play(20);
    assert!(told.contains("no-figures"), "it has only begun to look: {told}");
    seconds(&mut stage, 120);
    stage.order(hottest);
    let told = stage.play(20);
    assert!(told.contains("create plan 1"), "{told}");
    let Wish::Join { node, cut } = &stage.plans[0].0.wish else { panic!("{:?}", stage.plans) };
    assert_eq!((*node, *cut), (NodeId(5), JoinCut::At { partition: PartitionId(0), at: 700 << 52 }));
    stage.order(Order::Apply { plan: 1 });
    until(&mut stage, false, |stage| phase(stage) == Some(Phase::Done));
    assert_eq!(shape(&stage.cluster)[..2], [(700, 1), (864, 5)]);
    check(&stage.cluster);
    assert_eq!(stage.cluster.nodes[4].role, Role::Serving);
}
