//! What a node tells of a newer document to somebody who has an older one.

use std::collections::BTreeMap;

use model::{
    Cluster, Coming, Consistency, Generation, Node, NodeId, Partition, PartitionId, Ring, Step, Store,
    StoreName, Unknown, Weight, Zone,
};
use proptest::prelude::*;

fn node(id: u32) -> Node {
    Node::new(NodeId(id), Zone(format!("z{id}")), format!("10.0.0.{id}:7401"), None)
}

fn cluster(nodes: u32, partitions: usize) -> Cluster {
    let nodes: Vec<Node> = (1..=nodes).map(node).collect();
    let zoned: Vec<_> = nodes.iter().map(|node| (node.id, node.zone.clone())).collect();
    let consistency = Consistency { replicas: 3, reads_required: 2, writes_required: 2 };
    let stores = vec![Store::new(StoreName::new("carts").unwrap(), consistency).unwrap()];
    let ring = Ring::equal_slices_listing(partitions, &zoned, 6);
    let cluster = Cluster::new("dev", nodes, ring, stores);
    Cluster { buckets: cluster.buckets.max(64), ..cluster }
}

fn next(cluster: &Cluster, partitions: Vec<Partition>) -> Cluster {
    let generation = Generation(cluster.generation.0 + 1);
    Cluster { generation, ring: Ring::new(partitions).unwrap(), ..cluster.clone() }
}

/// Partition `place` is at `step` of a move to its own list, back to front; settled by `None`.
fn stepped(cluster: &Cluster, place: usize, step: Option<Step>) -> Cluster {
    let mut partitions = cluster.ring.partitions().to_vec();
    let nodes: Vec<NodeId> = partitions[place].nodes.iter().rev().copied().collect();
    partitions[place].coming = step.map(|step| Coming { step, nodes, unknown: Unknown::new() });
    partitions[place].since = Generation(cluster.generation.0 + 1);
    next(cluster, partitions)
}

#[derive(Clone, Debug)]
enum Edit {
    Step(usize, Option<Step>),
    Weigh(usize, u32),
    Create(String),
    Buckets,
    Name(String),
    Cut,
}

fn edit() -> impl Strategy<Value = Edit> {
    let step = prop_oneof![Just(None), Just(Some(Step::Copying)), Just(Some(Step::ReadingNew))];
    prop_oneof![
        4 => (0..8_usize, step).prop_map(|(place, step)| Edit::Step(place, step)),
        1 => (0..4_usize, 1..9_u32).prop_map(|(node, weight)| Edit::Weigh(node, weight)),
        1 => "[a-b]".prop_map(Edit::Create),
        1 => Just(Edit::Buckets),
        1 => "[a-b]".prop_map(Edit::Name),
        1 => Just(Edit::Cut),
    ]
}

fn edited(cluster: &Cluster, edit: &Edit) -> Cluster {
    let mut newer = next(cluster, cluster.ring.partitions().to_vec());
    match edit {
        Edit::Step(place, step) => newer = stepped(cluster, *place, *step),
        Edit::Weigh(node, weight) => newer.nodes[*node].weight = Weight::new(*weight).unwrap(),
        Edit::Create(name) if newer.stores.iter().all(|store| store.name.as_str() != name) => {
            let store = Store { name: StoreName::new(name.clone()).unwrap(), ..newer.stores[0].clone() };
            newer.stores.push(store);
            newer.stores.sort_by(|a, b| a.name.cmp(&b.name));
        }
        Edit::Create(_) => {}
        Edit::Buckets => newer.buckets ^= 64 ^ 128,
        Edit::Name(name) => {
            let known = newer.unknown.remove(name).is_some();
            newer.unknown.extend((!known).then(|| (name.clone(), serde_json::json!([1, name]))));
        }
        Edit::Cut if newer.ring.partitions().len() == 8 => {
            let mut partitions = newer.ring.partitions().to_vec();
            let last = partitions[7].clone();
            let start = last.start + (1 << 59);
            partitions.push(Partition { id: PartitionId(8), start, ..last });
            newer = next(cluster, partitions);
        }
        Edit::Cut => {}
    }
    newer
}

proptest! {
    #[test]
    fn a_change_makes_the_newer_document_of_the_older_one(edits in prop::collection::vec(edit(), 1..6)) {
        let before = cluster(4, 8);
        let after = edits.iter().fold(before.clone(), |cluster, edit| edited(&cluster, edit));
        let told = after.change_from(&before);
        prop_assert_eq!(Cluster::generation_of(&told), after.generation);
        prop_assert_eq!(Cluster::handed_over(&told, &before), Some(after.clone()));
        // Of another document it makes nothing, and for who has the newer one it is no news.
        let other = Cluster { generation: Generation(before.generation.0 - 1), ..before.clone() };
        prop_assert_eq!(Cluster::handed_over(&told, &other), None);
        prop_assert_eq!(Cluster::handed_over(&told, &after), None);
    }

    #[test]
    fn what_is_no_document_is_taken_for_none(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let before = cluster(4, 8);
        let mut told = stepped(&before, 3, Some(Step::Joint)).change_from(&before);
        let at = at.index(told.len());
        told[at] = byte;
        // Whatever it says, it is a document that holds together, or none.
        let _ = Cluster::handed_over(&told, &before);
        prop_assert_eq!(Cluster::handed_over(&told[..at], &before), None);
    }
}

#[test]
fn a_whole_document_is_handed_over_as_well() {
    let before = cluster(4, 8);
    let after = stepped(&before, 1, Some(Step::Joint));
    let whole = serde_json::to_vec(&after).unwrap();
    assert_eq!(Cluster::handed_over(&whole, &before), Some(after.clone()));
    let other = serde_json::to_vec(&Cluster { name: "other".to_owned(), ..after }).unwrap();
    assert_eq!(Cluster::handed_over(&other, &before), None);
    assert_eq!(Cluster::generation_of(b"[]"), Generation(0));
}

/// Bytes for a change of this many partitions of a cluster in which something has moved before: the first move of all
/// writes each entry in another way.
fn bytes(nodes: u32, partitions: usize, changed: usize) -> usize {
    let before = stepped(&cluster(nodes, partitions), partitions - 1, None);
    let mut list = before.ring.partitions().to_vec();
    for partition in &mut list[..changed] {
        let nodes = partition.nodes.iter().rev().copied().collect();
        partition.coming = Some(Coming { step: Step::Joint, nodes, unknown: Unknown::new() });
    }
    next(&before, list).change_from(&before).len()
}

#[test]
fn a_change_costs_less_than_a_kilobyte_a_partition_however_large_the_cluster_is() {
    let sizes: BTreeMap<(u32, usize, usize), usize> =
        [(3, 32, 1), (3, 1024, 16), (100, 16_384, 1), (100, 16_384, 64)]
            .into_iter()
            .map(|of| (of, bytes(of.0, of.1, of.2)))
            .collect();
    for ((_, _, changed), bytes) in &sizes {
        assert!(bytes / changed < 1024, "{sizes:?}");
    }
}
