//! What a node has to do with a partition that moves: what it holds, brings in and gives up, and with whom it merges.

use std::collections::BTreeMap;

use model::cluster::Accepted;
use model::{
    Cluster, Consistency, Generation, Node, NodeId, Partition, PartitionId, Ring, Step, Store, StoreName,
    Zone,
};
use protocol::rebalance::entering::{Part, Sources, Way, heirs, left_to_merge, sources, takes_part};
use protocol::rebalance::steps;
use protocol::report::Entered;

const MOVED: PartitionId = PartitionId(0);

fn ids<const COUNT: usize>(ids: [u32; COUNT]) -> Vec<NodeId> {
    ids.map(NodeId).to_vec()
}

fn name(name: &str) -> StoreName {
    StoreName::new(name).unwrap()
}

fn store(called: &str, (replicas, reads_required, writes_required): (u8, u8, u8)) -> Store {
    Store::new(name(called), Consistency { replicas, reads_required, writes_required }).unwrap()
}

/// Six nodes, and one partition on the first five of them.
fn cluster(stores: Vec<Store>) -> Cluster {
    let nodes = (1..=6).map(|id| Node::new(NodeId(id), Zone("z".to_owned()), "h:1", None)).collect();
    let ring = Ring::new(vec![Partition::settled(MOVED, 0, ids([1, 2, 3, 4, 5]))]).unwrap();
    Cluster::new("entered", nodes, ring, stores)
}

/// The partition on its way to this list, at this step; it took it at generation 3.
fn moving(cluster: &Cluster, nodes: Vec<NodeId>, step: Step) -> Cluster {
    let begun = steps::begin(cluster, &[(MOVED, nodes)]).unwrap();
    let mut partitions = begun.ring.partitions().to_vec();
    partitions[0].coming.as_mut().unwrap().step = step;
    partitions[0].since = Generation(3);
    Cluster { generation: Generation(3), ring: Ring::new(partitions).unwrap(), ..begun }
}

fn partition(cluster: &Cluster) -> &Partition {
    cluster.ring.get(MOVED).unwrap()
}

#[test]
fn a_node_that_enters_holds_the_records_once_gets_ask_it_and_one_that_stays_or_leaves_always() {
    let settled = cluster(vec![store("s", (3, 2, 2))]);
    let part = |cluster: &Cluster, node: u32| Part::of(&cluster.stores[0], partition(cluster), NodeId(node));
    let parts = |cluster: &Cluster| [1, 3, 4, 5].map(|node| part(cluster, node));
    assert_eq!(parts(&settled), [Part::Holding, Part::Holding, Part::Nothing, Part::Nothing]);
    // n1 stays, n3 leaves, n4 enters, and n5 has nothing to do with it.
    for (step, entering) in
        [(Step::Copying, Part::Entering), (Step::Joint, Part::Entering), (Step::ReadingNew, Part::Holding)]
    {
        let moving = moving(&settled, ids([1, 2, 4]), step);
        assert_eq!(parts(&moving), [Part::Holding, Part::Holding, entering, Part::Nothing], "{step}");
        let takes_part = |node: u32| takes_part(&moving.stores[0], partition(&moving), NodeId(node));
        assert_eq!([1, 3, 4, 5].map(takes_part), [false, false, entering == Part::Entering, false], "{step}");
    }
}

#[test]
fn a_node_brings_in_what_a_newer_document_gives_it_unless_it_held_it_or_was_at_it() {
    let begins = |part: Part, before: &[Option<Part>]| {
        before.iter().map(|&before| part.begins_incomplete(before)).collect::<Vec<_>>()
    };
    let before = [None, Some(Part::Holding), Some(Part::Entering), Some(Part::Nothing)];
    assert_eq!(begins(Part::Holding, &before), [false, false, false, true]);
    assert_eq!(begins(Part::Entering, &before), [true, true, false, true]);
    assert_eq!(begins(Part::Nothing, &before), [false; 4]);
}

#[test]
fn a_partition_goes_its_way_for_the_first_store_for_which_it_changes_the_nodes_part() {
    let settled = cluster(vec![store("few", (1, 1, 1)), store("many", (3, 2, 2))]);
    let way = |cluster: &Cluster, node: u32| Way::of(&cluster.stores, partition(cluster), NodeId(node));
    assert_eq!([1, 3, 4].map(|node| way(&settled, node)), [None; 3], "it does not move");
    let moving = moving(&settled, ids([2, 1, 4]), Step::Copying);
    // n1 leaves one store only, n2 enters that one, n3 and n4 trade places in the other.
    let ways = [Some(Way::Leaves), Some(Way::Enters), Some(Way::Leaves), Some(Way::Enters), None];
    assert_eq!([1, 2, 3, 4, 5].map(|node| way(&moving, node)), ways);
}

#[test]
fn a_node_that_enters_has_the_one_whose_place_it_takes_as_its_source_and_all_old_replicas() {
    let settled = cluster(vec![store("s", (3, 2, 2))]);
    let moving = moving(&settled, ids([1, 5, 4]), Step::Joint);
    let sources = |cluster: &Cluster, node: u32| {
        sources(&cluster.stores[0], partition(cluster), NodeId(node)).map(told)
    };
    fn told(sources: Sources<'_>) -> (Option<NodeId>, Vec<NodeId>) {
        (sources.donor, sources.replicas.to_vec())
    }
    // In order: the first that enters takes the place of the first that leaves.
    assert_eq!(sources(&moving, 5), Some((Some(NodeId(2)), ids([1, 2, 3]))));
    assert_eq!(sources(&moving, 4), Some((Some(NodeId(3)), ids([1, 2, 3]))));
    for node in [1, 2, 3, 6] {
        assert_eq!(sources(&moving, node), None, "n{node} does not enter");
    }
    assert_eq!(sources(&settled, 4), None);
    let to = Consistency { replicas: 4, reads_required: 2, writes_required: 3 };
    let more = steps::begin_numbers(&settled, "s", to, Accepted::default()).unwrap();
    assert_eq!(sources(&more, 4), Some((None, ids([1, 2, 3]))), "nobody gives way to one replica more");
}

/// How far a node is that is whole, and has merged with these.
fn entered(generation: u64, merged: &[(&str, &[u32])]) -> Entered {
    let merged =
        merged.iter().map(|(store, sources)| (name(store), sources.iter().copied().map(NodeId).collect()));
    Entered { incarnation: 7, generation: Generation(generation), whole: true, merged: merged.collect() }
}

#[test]
fn a_node_that_enters_merges_with_the_one_whose_place_it_takes_first_until_it_need_not() {
    let settled = cluster(vec![store("s", (3, 2, 2)), store("t", (3, 3, 1))]);
    let moving = moving(&settled, ids([1, 2, 4]), Step::Joint);
    let left = |cluster: &Cluster, node: u32, entered: &Entered| {
        left_to_merge(cluster, partition(cluster), NodeId(node), entered)
    };
    let each = |s: Vec<NodeId>, t: Vec<NodeId>| BTreeMap::from([(name("s"), s), (name("t"), t)]);
    assert_eq!(left(&moving, 4, &entered(3, &[])), each(ids([3, 1, 2]), ids([3, 1, 2])));
    let old = entered(2, &[("s", &[3]), ("t", &[3])]);
    assert_eq!(left(&moving, 4, &old), each(ids([3, 1, 2]), ids([3, 1, 2])), "from before the step");
    // N - W + 1 others are enough, and for W = 1 these are all: then the first one is not done.
    let some = entered(3, &[("s", &[1, 2]), ("t", &[1])]);
    assert_eq!(left(&moving, 4, &some), BTreeMap::from([(name("t"), ids([3, 2]))]));
    let done = entered(3, &[("s", &[3]), ("t", &[3])]);
    for (node, entered) in [(4, &done), (1, &entered(3, &[])), (3, &entered(3, &[])), (5, &entered(3, &[]))] {
        assert_eq!(left(&moving, node, entered), BTreeMap::new(), "n{node}");
    }
    let mut alone = moving.clone();
    alone.nodes.iter_mut().find(|node| node.id == NodeId(3)).unwrap().gone = true;
    assert_eq!(left(&alone, 4, &entered(3, &[])), each(ids([1, 2]), ids([1, 2])), "n3 is gone for good");
}

#[test]
fn those_that_stay_merge_with_each_other_when_numbers_change() {
    let settled = cluster(vec![store("s", (3, 1, 3)), store("t", (3, 2, 2))]);
    let to = Consistency { replicas: 3, reads_required: 2, writes_required: 2 };
    let mut changing = steps::begin_numbers(&settled, "s", to, Accepted::default()).unwrap();
    let takes_part = |cluster: &Cluster, node: u32| {
        let of = |store| takes_part(store, partition(cluster), NodeId(node));
        cluster.stores.iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(takes_part(&changing, 1), [false, false], "while others copy");
    changing.stores[0].coming.as_mut().unwrap().step = Step::Joint;
    assert_eq!((takes_part(&changing, 1), takes_part(&changing, 4)), (vec![true, false], vec![false, false]));
    // Each write was acknowledged by all three: one other would be enough, and a node that is whole is one itself.
    let left = |entered: &Entered| left_to_merge(&changing, partition(&changing), NodeId(1), entered);
    assert_eq!(left(&entered(2, &[])), BTreeMap::new());
    let incomplete = Entered { whole: false, ..entered(2, &[]) };
    assert_eq!(left(&incomplete), BTreeMap::from([(name("s"), ids([2, 3]))]));
}

#[test]
fn what_a_node_has_left_must_be_held_by_the_replicas_once_the_partition_has_settled() {
    let settled = cluster(vec![store("s", (3, 2, 2))]);
    let heirs = |cluster: &Cluster, node: u32| {
        heirs(&cluster.stores[0], partition(cluster), NodeId(node)).map(<[NodeId]>::to_vec)
    };
    assert_eq!(heirs(&settled, 4), Some(ids([1, 2, 3])));
    assert_eq!(heirs(&settled, 3), None, "they are its own");
    for step in [Step::Copying, Step::Joint, Step::ReadingNew] {
        let moving = moving(&settled, ids([1, 2, 4]), step);
        for node in 1..=5 {
            assert_eq!(heirs(&moving, node), None, "n{node}, {step}");
        }
    }
}
