//! Whole plans where shares are fractions, weights differ and places are few.

use expect_test::expect;
use model::{Cluster, NodeId, Partition, PartitionId, Ring, Role, Weight};
use protocol::rebalance::planner::Wish;

use crate::planner::{check, cluster, spread, told, wished};

/// Nodes in these zones and with these weights, and a partition on each of these lists.
fn placed(nodes: &[(&str, u32)], replicas: u8, lists: &[impl AsRef<[u32]>]) -> Cluster {
    let zones: Vec<&str> = nodes.iter().map(|(zone, _)| *zone).collect();
    let mut cluster = cluster(lists.len(), &zones, zones.len(), replicas);
    for (node, (_, weight)) in cluster.nodes.iter_mut().zip(nodes) {
        node.weight = Weight::new(*weight).unwrap();
    }
    let partitions = cluster.ring.partitions().iter().zip(lists);
    let listed = partitions.map(|(partition, list)| Partition {
        nodes: list.as_ref().iter().copied().map(NodeId).collect(),
        ..partition.clone()
    });
    cluster.ring = Ring::new(listed.collect()).unwrap();
    cluster
}

/// Places of each node in the end, from the first.
fn places(cluster: &Cluster) -> Vec<usize> {
    let plan = spread(cluster);
    let of = |node: &model::Node| plan.places.get(&node.id).map_or(0, |places| places.1);
    cluster.nodes.iter().map(of).collect()
}

#[test]
fn nothing_moves_for_the_sake_of_a_fraction() {
    // Three zones of one node each, and then one zone of three: 4 places of 3.
    for zones in [["a", "b", "c"], ["a"; 3]] {
        let nodes = zones.map(|zone| (zone, 100));
        for lists in [[[1], [1], [2], [3]], [[1], [2], [2], [3]], [[1], [2], [3], [3]]] {
            let cluster = placed(&nodes, 1, &lists);
            assert!(spread(&cluster).copies() == 0, "{}", told(&spread(&cluster)));
        }
    }
}

#[test]
fn the_rest_of_a_division_goes_where_the_greatest_fractions_are() {
    // n3 leaves with all there is, so nobody holds more than its share.
    for (weights, expected) in [((230, 170), [2, 2, 0]), ((140, 260), [1, 3, 0]), ((210, 190), [2, 2, 0])] {
        let mut cluster = placed(&[("a", weights.0), ("a", weights.1), ("a", 100)], 1, &[[3]; 4]);
        cluster.nodes[2].role = Role::Leaving;
        assert_eq!(places(&cluster), expected, "{weights:?}");
    }
}

#[test]
fn nodes_of_the_least_weight_get_their_share_beside_zones_of_several() {
    // Seven nodes of weight 1 share four places of 16 partitions: a seventh each, where zones take two of a partition.
    let zones = ["a", "b", "b", "b", "c", "c", "c"];
    let cluster = placed(&zones.map(|zone| (zone, 1)), 4, &[[1, 2, 3, 5]; 16]);
    assert_eq!(places(&cluster), [9, 10, 9, 9, 9, 9, 9]);
}

#[test]
fn a_zone_without_room_gives_its_share_to_the_others_by_weight() {
    // One of two replicas may lie in zone a, however heavy it is: n2 and n3 share what is left of 8 partitions.
    let cluster = placed(&[("a", 1000), ("b", 100), ("c", 300)], 2, &[[1, 2]; 8]);
    assert_eq!(places(&cluster), [8, 2, 6]);
}

#[test]
fn a_zone_with_too_many_replicas_loses_those_of_the_node_that_is_most_above_its_quota() {
    // n5 is on standby, and draining it levels nothing. n1 holds 3 of its 1, n2 no more than its 3.
    let nodes = [("a", 100), ("a", 300), ("b", 400), ("c", 400), ("c", 100)];
    let lists: [&[u32]; 8] = [&[1, 2], &[1, 3], &[1, 4], &[2, 3], &[2, 4], &[3, 4], &[3, 4], &[3, 4]];
    let mut cluster = placed(&nodes, 2, &lists);
    cluster.nodes[4].role = Role::Standby;
    check(
        &cluster,
        Wish::Drain { nodes: vec![NodeId(5)] },
        expect![[r#"
        p0: n1 n2 -> n3 n2 n1 n4, copied to n3
        p1: n1 n3 -> n1 n3 n2 n4, copied to nothing
        p2: n1 n4 -> n1 n4 n3 n2, copied to nothing
        p3: n2 n3 -> n2 n3 n4 n1, copied to nothing
        p4: n2 n4 -> n2 n4 n1 n3, copied to nothing
        p5: n3 n4 -> n3 n4 n2 n1, copied to nothing
        p6: n3 n4 -> n3 n4 n1 n2, copied to nothing
        p7: n3 n4 -> n3 n4 n1 n2, copied to nothing
        places n1 3->2, n2 3->3, n3 5->6, n4 5->5
    "#]],
    );
}

#[test]
fn a_drained_node_gives_each_place_to_the_node_that_lacks_most() {
    let nodes = [100, 100, 200, 300, 100].map(|weight| ("a", weight));
    let lists: [&[u32]; 8] = [&[1, 2], &[1, 3], &[1, 4], &[1, 5], &[1, 3], &[1, 4], &[2, 5], &[3, 4]];
    check(
        &placed(&nodes, 2, &lists),
        Wish::Drain { nodes: vec![NodeId(1)] },
        expect![[r#"
        p0: n1 n2 -> n4 n2 n3 n5, copied to n4
        p1: n1 n3 -> n4 n3 n5 n2, copied to n4
        p2: n1 n4 -> n3 n4 n5 n2, copied to n3
        p3: n1 n5 -> n4 n5 n2 n3, copied to n4
        p4: n1 n3 -> n4 n3 n2 n5, copied to n4
        p5: n1 n4 -> n3 n4 n5 n2, copied to n3
        p6: n2 n5 -> n2 n5 n4 n3, copied to nothing
        p7: n3 n4 -> n3 n4 n5 n2, copied to nothing
        places n1 6->0, n2 2->2, n3 3->5, n4 3->7, n5 2->2
    "#]],
    );
}

#[test]
fn what_one_node_held_is_shared_out_among_those_without_any_by_weight() {
    for (weight, expected) in [(100, (4, 4)), (300, (2, 6))] {
        let drained = placed(&[("a", 100), ("a", 100), ("a", 100), ("a", weight)], 2, &[[1, 2]; 8]);
        let plan = wished(&drained, Wish::Drain { nodes: vec![NodeId(2)] }).unwrap();
        let places = |node: u32| plan.places[&NodeId(node)];
        assert_eq!([1, 2, 3, 4].map(places), [(8, 8), (8, 0), (0, expected.0), (0, expected.1)]);
    }
}

#[test]
fn a_place_that_nobody_below_its_quota_can_take_goes_to_the_node_that_holds_least_for_its_weight() {
    // n2 lacks two places, and is a replica of p0 already. With one more n3 has 3 for a weight of 100, n4 8 for 300.
    let nodes = [100, 100_000, 100, 300].map(|weight| ("a", weight));
    let lists: [&[u32]; 8] = [&[1, 2], &[2, 4], &[2, 4], &[2, 4], &[2, 4], &[2, 4], &[3, 4], &[3, 4]];
    check(
        &placed(&nodes, 2, &lists),
        Wish::Drain { nodes: vec![NodeId(1)] },
        expect![[r#"
        p0: n1 n2 -> n4 n2 n3, copied to n4
        p1: n2 n4 -> n2 n4 n3, copied to nothing
        p2: n2 n4 -> n2 n4 n3, copied to nothing
        p3: n2 n4 -> n2 n4 n3, copied to nothing
        p4: n2 n4 -> n2 n4 n3, copied to nothing
        p5: n2 n4 -> n2 n4 n3, copied to nothing
        p6: n3 n4 -> n3 n4 n2, copied to nothing
        p7: n3 n4 -> n3 n4 n2, copied to nothing
        places n1 1->0, n2 6->6, n3 2->2, n4 7->8
    "#]],
    );
}

#[test]
fn a_list_has_all_replicas_and_as_many_fallbacks_as_are_listed() {
    let eight = cluster(8, &["a"; 9], 8, 3);
    for one in spread(&eight).moves() {
        assert_eq!(one.to.len(), 3 + model::limits::FALLBACKS_LISTED, "{}", one.partition);
    }
    assert_eq!(eight.ring.get(PartitionId(0)).unwrap().nodes.len(), 6);
}

#[test]
fn a_cluster_that_never_had_enough_nodes_keeps_what_it_has_and_is_not_made_smaller() {
    let two = cluster(4, &["a"; 2], 2, 3);
    assert!(spread(&two).is_empty(), "{}", told(&spread(&two)));
    check(
        &two,
        Wish::Drain { nodes: vec![NodeId(2)] },
        expect!["TooFewNodes { left: 1, needed: 2, leaving: [] }"],
    );
    check(
        &two,
        Wish::Drain { nodes: [1, 2].map(NodeId).to_vec() },
        expect!["TooFewNodes { left: 0, needed: 2, leaving: [] }"],
    );
    let joined = cluster(4, &["a"; 3], 2, 3);
    assert_eq!((spread(&joined).copies(), places(&joined)), (4, vec![4; 3]), "a third replica of each");
}
