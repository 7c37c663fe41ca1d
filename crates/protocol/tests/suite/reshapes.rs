//! Partitions that are cut, joined and moved one by one: where the limits lie, and what another hand did meanwhile.

use model::limits::PARTITIONS_MAX;
use model::{Cluster, NodeId, Partition, PartitionId, Ring, Role};
use protocol::rebalance::planner::{Consent, Cut, PlanRefusal, Reshape, Reshaped, Wish, plan};

use crate::planner::{cluster, merge, reshaped, split, wished, with_buckets};

/// The ring with other ids for its partitions.
fn renumbered(cluster: &Cluster, ids: &[u32]) -> Cluster {
    let numbered = cluster.ring.partitions().iter().zip(ids);
    let numbered = numbered.map(|(partition, &id)| Partition { id: PartitionId(id), ..partition.clone() });
    Cluster { ring: Ring::new(numbered.collect()).unwrap(), ..cluster.clone() }
}

#[test]
fn the_narrower_of_two_partitions_moves_and_of_two_alike_the_one_named_second() {
    let four = with_buckets(4, 64);
    let moves = |cluster: &Cluster, wish: Wish| {
        let plan = wished(cluster, wish).unwrap();
        plan.moves().iter().map(|one| one.partition.0).collect::<Vec<_>>()
    };
    assert_eq!((moves(&four, merge(0, 1)), moves(&four, merge(1, 0))), (vec![1], vec![0]));
    let narrow = reshaped(&four, split(1, None));
    assert_eq!((moves(&narrow, merge(0, 1)), moves(&narrow, merge(1, 0))), (vec![1], vec![1]));
}

#[test]
fn a_node_that_takes_the_place_of_one_in_another_zone_needs_consent() {
    let four = cluster(4, &["a", "b", "c", "c"], 3, 3);
    for consent in [Consent { weaker: true, ..Consent::default() }, Consent::default()] {
        let replaced = plan(&four, &Wish::Replace { node: NodeId(2), by: NodeId(4) }, consent);
        assert_eq!(replaced, Err(PlanRefusal::TooFewZones { left: 2, before: 3 }));
    }
    let consent = Consent { fewer_zones: true, ..Consent::default() };
    let wish = Wish::Move { partitions: vec![PartitionId(1)], from: NodeId(2), to: NodeId(4) };
    assert_eq!(plan(&four, &wish, Consent::default()), Err(PlanRefusal::TooFewZones { left: 2, before: 3 }));
    assert_eq!(plan(&four, &wish, consent).unwrap().copies(), 1);
    // As many zones as before are enough, and more are.
    let within = wished(&four, Wish::Replace { node: NodeId(3), by: NodeId(4) }).unwrap();
    assert_eq!(within.places[&NodeId(4)], (0, 4));
    let together = cluster(4, &["a", "a", "b"], 2, 2);
    let apart = wished(&together, Wish::Replace { node: NodeId(2), by: NodeId(3) }).unwrap();
    assert_eq!(apart.places[&NodeId(3)], (0, 4));
}

#[test]
fn a_move_names_a_replica_that_gives_and_a_node_that_takes() {
    let (mut four, partition) = (cluster(4, &["a"; 4], 3, 2), PartitionId(0));
    let moved = |cluster: &Cluster, from: u32, to: u32| {
        let wish = Wish::Move { partitions: vec![PartitionId(0)], from: NodeId(from), to: NodeId(to) };
        wished(cluster, wish).map(|plan| plan.copies())
    };
    assert_eq!(
        moved(&four, 3, 4),
        Err(PlanRefusal::NotHeld { partition, node: NodeId(3) }),
        "it is a fallback"
    );
    assert_eq!(moved(&four, 1, 2), Err(PlanRefusal::HeldAlready { partition, node: NodeId(2) }));
    four.nodes[3].role = Role::Leaving;
    assert_eq!(moved(&four, 1, 4), Err(PlanRefusal::TakesNothing { node: NodeId(4), is_gone: false }));
    four.nodes[3].role = Role::Standby;
    assert_eq!(moved(&four, 1, 4), Ok(1));
}

#[test]
fn a_document_may_be_as_large_as_the_limit_and_no_byte_larger() {
    let four = with_buckets(4, 64);
    let double = Reshape::double(&four).unwrap();
    let doubled = double.apply(&four, usize::MAX).unwrap();
    let bytes = doubled.document_bytes();
    assert_eq!(double.apply(&four, bytes), Ok(doubled));
    let refused = PlanRefusal::TooLarge { partitions: 8, bytes, bytes_max: bytes - 1 };
    assert_eq!(double.apply(&four, bytes - 1), Err(refused));
}

#[test]
fn a_ring_is_not_doubled_beyond_the_most_partitions_that_it_may_have() {
    let of = |count: usize| {
        let settled =
            |id: usize| Partition::settled(PartitionId(id as u32), (id as u64) << 44, vec![NodeId(1)]);
        let ring = Ring::new((0..count).map(settled).collect()).unwrap();
        Cluster { ring, buckets: 1 << 19, ..cluster(1, &["a"], 1, 1) }
    };
    let half = PARTITIONS_MAX / 2;
    let refused = Reshape::double(&of(half + 1)).unwrap_err();
    let (partitions, partitions_max) = (PARTITIONS_MAX + 2, PARTITIONS_MAX);
    assert_eq!(refused, PlanRefusal::TooMany { partitions, partitions_max });
    // As many are no reason; here it is that the first is one bucket.
    let refused = Reshape::double(&of(half)).unwrap_err();
    assert_eq!(refused, PlanRefusal::NotDoubled { partition: PartitionId(0), buckets: 1 << 19 });
}

#[test]
fn a_partition_is_not_cut_when_no_id_is_left_above_those_of_the_ring() {
    let full = renumbered(&with_buckets(4, 64), &[0, u32::MAX, 2, 3]);
    let refused = PlanRefusal::TooMany { partitions: 5, partitions_max: PARTITIONS_MAX };
    assert_eq!(wished(&full, split(0, None)), Err(refused));
    let last = renumbered(&full, &[0, u32::MAX - 1, 2, 3]);
    assert!(reshaped(&last, split(0, None)).ring.get(PartitionId(u32::MAX)).is_some());
}

#[test]
fn a_ring_that_another_hand_has_changed_is_told_from_one_that_waits_for_a_cut() {
    let four = with_buckets(4, 16);
    let (tokens, quarter) = (1_u64 << 60, 1_u64 << 62);
    let stands = |cluster: &Cluster, partition: u32, at: u64, second: u32| {
        let cut = Cut { partition: PartitionId(partition), at, second: PartitionId(second) };
        Reshape::Cut { cuts: vec![cut] }.stands(&cluster.ring)
    };
    for (at, expected) in [
        (quarter - 1, Reshaped::Changed),
        (quarter, Reshaped::Changed),
        (quarter + 1, Reshaped::Due),
        (2 * quarter - 1, Reshaped::Due),
        (2 * quarter, Reshaped::Changed),
    ] {
        assert_eq!(stands(&four, 1, at, 4), expected, "{at}");
    }
    assert_eq!(stands(&four, 9, quarter + 1, 4), Reshaped::Changed, "there is no such partition");
    assert_eq!(stands(&four, 1, quarter + tokens, 2), Reshaped::Changed, "another has the id");
    let cut = reshaped(&four, split(1, Some(quarter + tokens)));
    assert_eq!(stands(&cut, 1, quarter + tokens, 4), Reshaped::Done);
    assert_eq!(stands(&cut, 1, quarter + 2 * tokens, 4), Reshaped::Changed, "it was cut elsewhere");
    assert_eq!(stands(&cut, 0, quarter + tokens, 4), Reshaped::Changed, "another was cut there");
    let farther = reshaped(&cut, split(4, None));
    assert_eq!(stands(&farther, 1, quarter + tokens, 4), Reshaped::Done, "its second part was cut since");
    let nearer = reshaped(&with_buckets(4, 64), split(1, Some(quarter + tokens)));
    let nearer = reshaped(&nearer, split(1, None));
    assert_eq!(stands(&nearer, 1, quarter + tokens, 4), Reshaped::Changed, "its first part was cut since");
    let none = Reshape::Cut { cuts: Vec::new() };
    assert_eq!(none.stands(&four.ring), Reshaped::Changed, "nothing was to be cut");
}

#[test]
fn a_ring_that_another_hand_has_changed_is_told_from_one_that_waits_for_a_merge() {
    let four = with_buckets(4, 64);
    let stands = |cluster: &Cluster, partition: u32, other: u32| {
        let join = Reshape::Join { partition: PartitionId(partition), other: PartitionId(other) };
        join.stands(&cluster.ring)
    };
    assert_eq!(stands(&four, 0, 1), Reshaped::Due);
    assert_eq!(stands(&four, 1, 0), Reshaped::Changed, "the second lies before the first");
    assert_eq!(stands(&four, 0, 2), Reshaped::Changed, "they are no neighbours");
    assert_eq!(stands(&four, 3, 0), Reshaped::Changed, "no circle");
    assert_eq!(stands(&four, 0, 9), Reshaped::Done, "the second is there no more");
    assert_eq!(stands(&four, 9, 0), Reshaped::Changed, "nor is the first");
    let cut = reshaped(&four, split(0, None));
    assert_eq!(stands(&cut, 0, 1), Reshaped::Changed, "another lies between them");
}
