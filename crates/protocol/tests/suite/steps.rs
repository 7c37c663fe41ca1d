//! Steps of partitions that move, as stories. Every order of events is explored beside the code.

use std::collections::BTreeMap;

use model::{
    Cluster, ClusterError, Consistency, Generation, Node, NodeId, PartitionId, ReadOnlyStore, Ring, Step,
    Store, StoreName, Zone,
};
use protocol::rebalance::steps::{self, BeginError, StepOutcome, Waiting};
use protocol::report::{Entered, Facts};

const MOVED: PartitionId = PartitionId(0);

fn ids<const COUNT: usize>(ids: [u32; COUNT]) -> Vec<NodeId> {
    ids.map(NodeId).to_vec()
}

/// Four nodes, two partitions on the first three, and a store.
fn cluster(replicas: u8, reads_required: u8, writes_required: u8) -> Cluster {
    let nodes = (1..=4).map(|id| Node::new(NodeId(id), Zone("z".to_owned()), "h:1", None)).collect();
    let zoned: Vec<_> = (1..=3).map(|id| (NodeId(id), Zone("z".to_owned()))).collect();
    let consistency = Consistency { replicas, reads_required, writes_required };
    let store = Store::new(StoreName::new("s").unwrap(), consistency).unwrap();
    Cluster::new("stepped", nodes, Ring::equal_slices(2, &zoned), vec![store])
}

#[test]
fn another_order_that_gives_a_read_only_store_another_replica_moves_its_data() {
    let order = [(MOVED, ids([3, 2, 1]))];
    let plain = steps::begin(&cluster(3, 2, 2), &order).unwrap();
    assert_eq!(step(&plain), None, "all three stay replicas");
    let mut stored = cluster(3, 2, 2);
    stored.read_only.push(ReadOnlyStore::new(StoreName::new("words").unwrap(), 1));
    assert_eq!(step(&steps::begin(&stored, &order).unwrap()), Some(Step::Copying));
}

fn step(cluster: &Cluster) -> Option<Step> {
    cluster.ring.get(MOVED).unwrap().step()
}

/// What these nodes have adopted.
fn adopted(nodes: &[u32], generation: Generation) -> Facts {
    let mut facts = Facts::default();
    for &node in nodes {
        let known = facts.nodes.entry(NodeId(node)).or_default();
        known.incarnation = Some(1);
        known.adopted = Some((1, generation));
    }
    facts
}

/// That the node is whole, and has merged with these.
fn merged(facts: &mut Facts, node: u32, generation: Generation, sources: &[u32]) {
    let sources = sources.iter().copied().map(NodeId).collect();
    let merged = BTreeMap::from([(StoreName::new("s").unwrap(), sources)]);
    let entered = Entered { incarnation: 1, generation, whole: true, merged };
    let known = facts.nodes.entry(NodeId(node)).or_default();
    known.incarnation = Some(1);
    known.entered.insert(MOVED, entered);
}

fn waits(outcome: &StepOutcome) -> Vec<String> {
    assert_eq!(outcome.next, None);
    outcome.waiting.iter().flat_map(|(_, waiting)| waiting.iter().map(waiting_for)).collect()
}

/// Whom a step waits for, as these tests write it.
pub(super) fn waiting_for(waiting: &Waiting) -> String {
    let names = |nodes: &[NodeId]| nodes.iter().map(NodeId::to_string).collect::<Vec<_>>().join(", ");
    match waiting {
        Waiting::Copy { node } => format!("{node} is still copying the partition"),
        Waiting::Compare { store, node, with, others, missing } => {
            let with = with.map_or_else(String::new, |with| format!("{with}, or with "));
            format!("{node} must compare store {store} with {with}{missing} of {}", names(others))
        }
        Waiting::Adopt { store, nodes, missing, generation } => format!(
            "{missing} of {} must adopt generation {} before older gets of store {store} end",
            names(nodes),
            generation.0
        ),
    }
}

#[test]
fn a_move_takes_its_steps_and_says_whom_each_waits_for() {
    let settled = cluster(3, 2, 2);
    let copying = steps::begin(&settled, &[(MOVED, ids([1, 2, 4]))]).unwrap();
    assert_eq!((copying.generation, step(&copying)), (Generation(2), Some(Step::Copying)));
    assert_eq!(copying.ring.get(MOVED).unwrap().since, Generation(0), "nobody is refused");
    let mut facts = adopted(&[1, 2, 3, 4], Generation(2));
    assert_eq!(waits(&steps::next(&copying, &facts)), ["n4 is still copying the partition"]);
    merged(&mut facts, 4, Generation(2), &[]);
    let joint = steps::next(&copying, &facts).next.unwrap();
    assert_eq!((step(&joint), joint.ring.get(MOVED).unwrap().since), (Some(Step::Joint), Generation(3)));
    merged(&mut facts, 4, Generation(2), &[1, 2, 3]);
    let expected = "n4 must compare store s with n3, or with 2 of n1, n2, n3";
    assert_eq!(waits(&steps::next(&joint, &facts)), [expected], "what was merged before does not count");
    merged(&mut facts, 4, Generation(3), &[1]);
    let expected = "n4 must compare store s with n3, or with 1 of n2, n3";
    assert_eq!(waits(&steps::next(&joint, &facts)), [expected]);
    for sources in [&[3][..], &[1, 2]] {
        merged(&mut facts, 4, Generation(3), sources);
        assert_eq!(step(&steps::next(&joint, &facts).next.unwrap()), Some(Step::ReadingNew));
    }
    let reading = steps::next(&joint, &facts).next.unwrap();
    let expected = "2 of n1, n2, n3 must adopt generation 4 before older gets of store s end";
    assert_eq!(waits(&steps::next(&reading, &facts)), [expected]);
    let settled = steps::next(&reading, &adopted(&[1, 3], Generation(4))).next.unwrap();
    assert_eq!(settled.ring.get(MOVED).unwrap().nodes, ids([1, 2, 4]));
    assert!(settled.ring.is_settled() && settled.check().is_ok());
    let outcome = steps::next(&settled, &Facts::default());
    assert_eq!((outcome.next, outcome.waiting.len()), (None, 0));
}

#[test]
fn what_a_node_said_before_it_lost_its_disk_is_void() {
    let copying = steps::begin(&cluster(3, 2, 2), &[(MOVED, ids([1, 2, 4]))]).unwrap();
    let mut facts = adopted(&[1, 2, 3, 4], Generation(2));
    merged(&mut facts, 4, Generation(2), &[3]);
    assert!(steps::next(&copying, &facts).next.is_some());
    facts.nodes.get_mut(&NodeId(4)).unwrap().incarnation = Some(2);
    assert_eq!(waits(&steps::next(&copying, &facts)), ["n4 is still copying the partition"]);
}

#[test]
fn a_dead_node_is_replaced_with_what_the_others_hold() {
    let copying = steps::begin(&cluster(3, 2, 2), &[(MOVED, ids([1, 2, 4]))]).unwrap();
    let mut facts = adopted(&[1, 2, 4], Generation(3));
    facts.nodes.entry(NodeId(3)).or_default().gone = true;
    merged(&mut facts, 4, Generation(2), &[]);
    let joint = steps::next(&copying, &facts).next.unwrap();
    merged(&mut facts, 4, Generation(3), &[1]);
    let expected = "n4 must compare store s with 1 of n2";
    assert_eq!(waits(&steps::next(&joint, &facts)), [expected]);
    merged(&mut facts, 4, Generation(3), &[1, 2]);
    let mut reading = steps::next(&joint, &facts).next.unwrap();
    // As the document says it.
    reading.nodes.iter_mut().find(|node| node.id == NodeId(3)).unwrap().gone = true;
    let expected = "1 of n2 must adopt generation 4 before older gets of store s end";
    assert_eq!(waits(&steps::next(&reading, &adopted(&[1], Generation(4)))), [expected], "should it live");
    let settled = steps::next(&reading, &adopted(&[1, 2], Generation(4))).next.unwrap();
    assert!(settled.ring.is_settled());
}

#[test]
fn a_dead_node_that_was_needed_alone_is_not_waited_for() {
    // What n3 alone had acknowledged, or would answer, is what is given up with it.
    for (reads, writes) in [(1, 3), (3, 1)] {
        let mut cluster = cluster(3, reads, writes);
        cluster.nodes.iter_mut().find(|node| node.id == NodeId(3)).unwrap().gone = true;
        let partition = cluster.ring.get(MOVED).unwrap();
        let blocked = steps::blocked_by(&cluster, partition, &ids([1, 2, 4]), &[NodeId(3)]);
        assert_eq!(blocked, [], "R {reads}, W {writes}");
    }
}

#[test]
fn a_plan_says_beforehand_which_steps_wait_for_a_node_that_is_away() {
    let blocked = |cluster: &Cluster, away: u32| {
        let partition = cluster.ring.get(MOVED).unwrap();
        let blocked = steps::blocked_by(cluster, partition, &ids([1, 2, 4]), &[NodeId(away)]);
        blocked
            .into_iter()
            .map(|(step, waiting)| format!("{step}: {}", waiting_for(&waiting)))
            .collect::<Vec<_>>()
    };
    for away in 1..=3 {
        assert_eq!(blocked(&cluster(3, 2, 2), away), [""; 0], "one of three may be away");
    }
    let expected = "reading-new: 1 of n1 must adopt generation 2 before older gets of store s end";
    assert_eq!(blocked(&cluster(3, 1, 3), 1), [expected]);
    let expected = "joint: n4 must compare store s with n3, or with 1 of n3";
    assert_eq!(blocked(&cluster(3, 3, 1), 3), [expected]);
    assert_eq!(blocked(&cluster(3, 3, 1), 1), [""; 0], "what n3 acknowledged comes from n3");
    let copies = "copying: n4 is still copying the partition";
    assert_eq!(blocked(&cluster(3, 2, 2), 4)[0], copies);
}

#[test]
fn a_move_is_broken_off_at_each_step() {
    let settled = cluster(3, 2, 2);
    let copying = steps::begin(&settled, &[(MOVED, ids([1, 2, 4]))]).unwrap();
    let mut facts = adopted(&[1, 2, 3, 4], Generation(9));
    merged(&mut facts, 4, Generation(9), &[3]);
    let joint = steps::next(&copying, &facts).next.unwrap();
    for moving in [&copying, &joint] {
        let back = steps::back(moving, &[MOVED]).unwrap();
        assert_eq!(back.generation, Generation(moving.generation.0 + 1));
        assert!(back.ring.is_settled());
        assert_eq!(back.ring.get(MOVED).unwrap().nodes, settled.ring.get(MOVED).unwrap().nodes);
    }
    let reading = steps::next(&joint, &facts).next.unwrap();
    let back = steps::back(&reading, &[MOVED]).unwrap();
    let partition = back.ring.get(MOVED).unwrap();
    assert_eq!((back.generation, partition.since), (Generation(5), Generation(5)), "older gets are refused");
    assert_eq!(partition.reading(), settled.ring.get(MOVED).unwrap().nodes, "gets ask the old ones again");
    assert_eq!(partition.also_written().unwrap(), ids([1, 2, 4]), "writes still need both");
    let few = adopted(&[1], back.generation);
    assert_eq!(waits(&steps::next(&back, &few)).len(), 1, "and the new ones are left as the old would be");
    let done = steps::next(&back, &facts).next.unwrap();
    assert_eq!(done.ring.get(MOVED).unwrap().nodes, settled.ring.get(MOVED).unwrap().nodes);
    assert_eq!(steps::back(&done, &[MOVED]), None, "there is nothing to break off");
}

#[test]
fn a_move_that_cannot_begin_changes_nothing() {
    let settled = cluster(3, 2, 2);
    let unknown = PartitionId(9);
    let refused = steps::begin(&settled, &[(MOVED, ids([1, 2, 4])), (unknown, ids([1, 2, 4]))]);
    assert_eq!(refused, Err(BeginError::Unknown { partition: unknown }));
    let moving = steps::begin(&settled, &[(MOVED, ids([1, 2, 4]))]).unwrap();
    let refused = steps::begin(&moving, &[(MOVED, ids([4, 2, 3]))]).unwrap_err();
    assert_eq!(refused.to_string(), "partition p0 is moving already (step copying)");
    let refused = steps::begin(&settled, &[(MOVED, ids([1, 2]))]).unwrap_err();
    assert_eq!(refused.to_string(), "partition p0 would have 2 replicas of store s, and has 3");
    for list in [vec![], ids([1, 2, 1, 4])] {
        let refused = steps::begin(&settled, &[(MOVED, list)]);
        assert_eq!(refused, Err(BeginError::List { partition: MOVED }));
    }
    let refused = steps::begin(&settled, &[(MOVED, ids([1, 2, 9]))]).unwrap_err();
    assert!(matches!(&refused, BeginError::Document(ClusterError::NodeUnknown { .. })), "{refused}");
    let reordered = steps::begin(&settled, &[(MOVED, ids([3, 1, 2, 4]))]).unwrap();
    assert!(reordered.ring.is_settled(), "another order, or another fallback, moves no data");
    assert_eq!(reordered.ring.get(MOVED).unwrap().nodes, ids([3, 1, 2, 4]));
}

/// Another node judges conditions then, at once: clients that do not learn of it go on at the one before.
#[test]
fn a_reordering_of_replicas_raises_since_of_its_partition_and_one_of_fallbacks_alone_does_not() {
    let settled = Cluster { generation: Generation(7), ..cluster(3, 2, 2) };
    let other = PartitionId(1);
    let since = |cluster: &Cluster, id| {
        let partition = cluster.ring.get(id).unwrap();
        (partition.since, cluster.accepted_since(&cluster.stores[0], partition))
    };
    for list in [[2, 1, 3], [1, 3, 2]] {
        let reordered = steps::begin(&settled, &[(MOVED, ids(list))]).unwrap();
        assert_eq!((reordered.generation, reordered.ring.is_settled()), (Generation(8), true));
        // What was formed before is refused, by all that have adopted this.
        assert_eq!(since(&reordered, MOVED), (Generation(8), Generation(8)), "{list:?}");
        assert_eq!(since(&reordered, other), (Generation(0), Generation(1)), "{list:?}");
        // And so on, each time anew.
        let again = steps::begin(&reordered, &[(MOVED, ids([1, 2, 3]))]).unwrap();
        assert_eq!(since(&again, MOVED).0, Generation(9), "{list:?}");
    }
    for list in [vec![1, 2, 3, 4], vec![1, 2, 3]] {
        let list: Vec<NodeId> = list.into_iter().map(NodeId).collect();
        let others = steps::begin(&settled, &[(MOVED, list)]).unwrap();
        assert_eq!(since(&others, MOVED), (Generation(0), Generation(1)), "nobody is refused");
    }
}

#[test]
fn as_many_moves_begin_as_the_document_has_room_for() {
    let settled = cluster(3, 2, 2);
    let moves = [(MOVED, ids([1, 2, 4])), (PartitionId(1), ids([4, 2, 3]))];
    let all = steps::begin(&settled, &moves).unwrap();
    let bytes = all.document_bytes();
    assert_eq!(steps::begin_fitting(&settled, &moves, bytes), Ok((all, 2)));
    let (one, count) = steps::begin_fitting(&settled, &moves, bytes - 1).unwrap();
    assert_eq!((count, one), (1, steps::begin(&settled, &moves[..1]).unwrap()));
    let (none, count) = steps::begin_fitting(&settled, &moves, settled.document_bytes()).unwrap();
    assert_eq!((count, none), (0, settled));
}

#[test]
fn as_many_moves_begin_as_fit_whatever_the_room() {
    let zoned: Vec<_> = (1..=3).map(|id| (NodeId(id), Zone("z".to_owned()))).collect();
    let settled = Cluster { ring: Ring::equal_slices(8, &zoned), buckets: 8, ..cluster(3, 2, 2) };
    let moves: Vec<_> = (0..8).map(|id| (PartitionId(id), ids([1, 2, 4]))).collect();
    let begun: Vec<Cluster> = (0..=8).map(|count| steps::begin(&settled, &moves[..count]).unwrap()).collect();
    for count in 1..=8 {
        let bytes = begun[count].document_bytes();
        for (room, fits) in [(bytes, count), (bytes - 1, count - 1)] {
            let (next, begins) = steps::begin_fitting(&settled, &moves, room).unwrap();
            assert_eq!(begins, fits, "with room for {room} bytes");
            let expected = if fits == 0 { &settled } else { &begun[fits] };
            assert_eq!(&next, expected, "with room for {room} bytes");
        }
    }
}

#[test]
fn a_node_that_enters_for_several_stores_is_waited_for_once_while_it_copies() {
    let mut settled = cluster(3, 2, 2);
    let mut other = settled.stores[0].clone();
    other.name = StoreName::new("t").unwrap();
    settled.stores.push(other);
    settled.nodes.push(Node::new(NodeId(5), Zone("z".to_owned()), "h:1", None));
    let copying = steps::begin(&settled, &[(MOVED, ids([1, 5, 4]))]).unwrap();
    let waiting = waits(&steps::next(&copying, &adopted(&[1, 2, 3, 4, 5], Generation(2))));
    assert_eq!(waiting, ["n4 is still copying the partition", "n5 is still copying the partition"]);
}
