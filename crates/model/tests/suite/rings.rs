//! Rings: every token has exactly one partition, however the slices lie.

use std::collections::BTreeSet;

use model::{
    Consistency, NodeId, Partition, PartitionId, PreferenceList, Ring, RingError, Store, StoreName, Token,
    Zone,
};
use proptest::prelude::*;

/// Partitions with these boundaries beside 0, each with some of six nodes.
fn partitions() -> impl Strategy<Value = Vec<Partition>> {
    let nodes = prop::sample::subsequence((1..=6).map(NodeId).collect::<Vec<_>>(), 1..=6).prop_shuffle();
    let boundary = prop_oneof![1..u64::MAX, 1..20_u64, (0..8_u64).prop_map(|n| (n << 61).max(1))];
    (nodes.clone(), prop::collection::btree_map(boundary, nodes, 0..20)).prop_map(|(first, rest)| {
        let starts = std::iter::once((0, first)).chain(rest);
        // Ids are no positions: they outlive splits.
        starts
            .enumerate()
            .map(|(position, (start, nodes))| {
                Partition::settled(PartitionId(1000 - position as u32), start, nodes)
            })
            .collect()
    })
}

fn nodes_in_zones() -> impl Strategy<Value = Vec<(NodeId, Zone)>> {
    prop::collection::vec(0..4_u8, 1..10).prop_map(|zones| {
        let zoned = |(id, zone): (usize, u8)| (NodeId(id as u32), Zone(format!("z{zone}")));
        zones.into_iter().enumerate().map(zoned).collect()
    })
}

proptest! {
    #[test]
    fn every_token_falls_into_the_partition_whose_bounds_hold_it(partitions in partitions(), token in any::<u64>()) {
        let ring = Ring::new(partitions.clone()).unwrap();
        let edges = partitions.iter().flat_map(|p| [p.start, p.start.saturating_sub(1)]);
        for token in edges.chain([token, u64::MAX]) {
            let found = ring.partition(Token(token));
            let (first, last) = ring.bounds(found.id).unwrap();
            prop_assert!(first.0 <= token && token <= last.0);
            let holding = partitions.iter().filter(|p| {
                let (first, last) = ring.bounds(p.id).unwrap();
                first.0 <= token && token <= last.0
            });
            prop_assert_eq!(holding.count(), 1, "and into no other");
        }
        prop_assert_eq!(ring.bounds(PartitionId(5)), None);
    }

    #[test]
    fn a_ring_survives_its_document(partitions in partitions()) {
        let ring = Ring::new(partitions).unwrap();
        let document = serde_json::to_string(&ring).unwrap();
        prop_assert_eq!(serde_json::from_str::<Ring>(&document).unwrap(), ring);
    }

    #[test]
    fn equal_slices_are_found_by_shift_as_by_search(count in 1..70_usize, token in any::<u64>()) {
        let ring = Ring::equal_slices(count, &[(NodeId(1), Zone("z".to_owned()))]);
        prop_assert_eq!(ring.partitions().len(), count.next_power_of_two());
        let searched = ring.partitions().iter().rfind(|p| p.start <= token).unwrap();
        prop_assert_eq!(ring.partition(Token(token)), searched);
    }

    #[test]
    fn equal_slices_spread_ownership_and_put_neighbours_into_different_zones(nodes in nodes_in_zones()) {
        let ring = Ring::equal_slices(256, &nodes);
        let zone_of = |id: NodeId| &nodes.iter().find(|(node, _)| *node == id).unwrap().1;
        let zones: BTreeSet<_> = nodes.iter().map(|(_, zone)| zone).collect();
        for partition in ring.partitions() {
            prop_assert_eq!(partition.nodes.len(), nodes.len(), "the rest are fallbacks");
            let first: BTreeSet<_> = partition.nodes.iter().take(zones.len()).map(|id| zone_of(*id)).collect();
            prop_assert!(first.len() == zones.len(), "as many zones first as there are: {:?}", partition.nodes);
        }
        for (id, _) in &nodes {
            let first = ring.partitions().iter().filter(|p| p.nodes[0] == *id).count();
            let even = 256 / nodes.len();
            prop_assert!((even..=even + 1).contains(&first), "{} first choices of {} even", first, even);
        }
    }

    #[test]
    fn a_preference_list_is_the_partitions_list_cut_at_n(partitions in partitions(), replicas in 1..8_u8) {
        let consistency = Consistency { replicas, reads_required: 1, writes_required: 1 };
        let store = Store::new(StoreName::new("carts").unwrap(), consistency).unwrap();
        for partition in &partitions {
            let list = PreferenceList::of(&store, partition);
            prop_assert_eq!([list.replicas(), list.fallbacks()].concat(), partition.nodes.clone());
            prop_assert_eq!(list.replicas().len(), usize::from(replicas).min(partition.nodes.len()));
            for node in &partition.nodes {
                prop_assert_eq!(list.is_replica(*node), !list.fallbacks().contains(node));
            }
            prop_assert!(!list.is_replica(NodeId(99)));
        }
    }
}

fn partition(id: u32, start: u64, nodes: &[u32]) -> Partition {
    Partition::settled(PartitionId(id), start, nodes.iter().copied().map(NodeId).collect())
}

#[test]
fn lists_that_are_no_ring_are_refused_with_the_offender() {
    assert_eq!(Ring::new(vec![]), Err(RingError::Count { count: 0 }));
    let check = |partitions: Vec<Partition>, error| assert_eq!(Ring::new(partitions), Err(error));
    check(vec![partition(1, 5, &[1])], RingError::Order { partition: PartitionId(1) });
    let unsorted = vec![partition(1, 0, &[1]), partition(2, 9, &[1]), partition(3, 9, &[1])];
    check(unsorted, RingError::Order { partition: PartitionId(3) });
    let twice = vec![partition(1, 0, &[1]), partition(1, 9, &[1])];
    check(twice, RingError::Twice { partition: PartitionId(1) });
    check(vec![partition(1, 0, &[])], RingError::Nodes { partition: PartitionId(1) });
    check(vec![partition(1, 0, &[2, 3, 2])], RingError::Nodes { partition: PartitionId(1) });
}

#[test]
fn a_document_that_is_no_ring_is_refused() {
    let refused = serde_json::from_str::<Ring>(r#"[{"id":1,"start":7,"nodes":[1]}]"#).unwrap_err();
    assert!(refused.to_string().contains("p1 does not start after its neighbour"), "{refused}");
}
