//! A store gets other numbers: the plan, the steps, and whom each step waits for.

use std::collections::BTreeMap;

use model::cluster::{Accepted, NumbersError};
use model::{Cluster, Consistency, Generation, NodeId, PartitionId, Step, StoreName};
use protocol::rebalance::planner::{Consent, PlanRefusal, Renumber, Wish};
use protocol::rebalance::steps::{self, Waiting};
use protocol::report::{Entered, Facts};

use crate::planner::{cluster, planned, split, spread, wished};
use crate::steps::waiting_for;

fn consistency((replicas, reads_required, writes_required): (u8, u8, u8)) -> Consistency {
    Consistency { replicas, reads_required, writes_required }
}

/// Four partitions on four nodes, and a store with these numbers.
fn four(numbers: (u8, u8, u8)) -> Cluster {
    let mut four = cluster(4, &["a"; 4], 4, numbers.0);
    four.stores[0].consistency = consistency(numbers);
    four
}

fn numbers(numbers: (u8, u8, u8)) -> Wish {
    Wish::Numbers { store: "s".to_owned(), numbers: consistency(numbers) }
}

#[test]
fn a_plan_for_more_replicas_says_who_brings_in_what() {
    let before = four((2, 1, 2));
    let plan = wished(&before, numbers((3, 2, 2))).unwrap();
    let (from, to) = (consistency((2, 1, 2)), consistency((3, 2, 2)));
    let store = StoreName::new("s").unwrap();
    let expected = Renumber { store, from, to, partitions: 4, copies: 4 };
    assert_eq!((plan.change.numbers(), plan.copies(), plan.is_empty()), (Some(&expected), 4, false));
    assert_eq!((plan.moves().len(), plan.change.reshape()), (0, None));
    let places = |node| (node, (2, 3));
    assert_eq!(plan.places, (1..=4).map(NodeId).map(places).collect());
    for partition in before.ring.partitions() {
        assert_eq!(expected.entering(partition), &partition.nodes[2..3], "the next of its list");
    }
    let short = model::Partition { nodes: vec![NodeId(1), NodeId(2)], ..before.ring.partitions()[0].clone() };
    assert_eq!(expected.entering(&short), [], "where the list has one");
}

#[test]
fn a_plan_for_fewer_replicas_copies_nothing_and_one_for_the_same_numbers_is_empty() {
    let before = four((3, 2, 2));
    let plan = wished(&before, numbers((2, 2, 1))).unwrap();
    let expected = plan.change.numbers().cloned().unwrap();
    assert_eq!((expected.copies, plan.copies(), plan.is_empty()), (0, 0, false));
    assert_eq!(plan.places, (1..=4).map(|node| (NodeId(node), (3, 2))).collect());
    assert!(before.ring.partitions().iter().all(|partition| expected.entering(partition).is_empty()));
    let same = wished(&before, numbers((3, 2, 2))).unwrap();
    assert!(same.is_empty() && same.places.is_empty() && same.change.numbers().is_none());
}

#[test]
fn a_plan_is_empty_only_without_moves_other_bounds_and_other_numbers() {
    let before = Cluster { buckets: 64, ..four((2, 1, 2)) };
    let wishes =
        [Wish::Move { partitions: vec![PartitionId(0)], from: NodeId(1), to: NodeId(3) }, split(0, None)];
    for wish in wishes.into_iter().chain([numbers((3, 2, 2))]) {
        assert!(!wished(&before, wish.clone()).unwrap().is_empty(), "{wish:?}");
    }
    assert!(spread(&before).is_empty());
}

#[test]
fn a_change_of_numbers_that_cannot_be_is_refused_with_what_may_be_done() {
    let before = four((3, 2, 2));
    let refused = |cluster: &Cluster, wish: Wish| match wished(cluster, wish) {
        Err(PlanRefusal::Numbers(error)) => error,
        other => panic!("{other:?}"),
    };
    let weak = consistency((3, 1, 2));
    assert_eq!(refused(&before, numbers((3, 1, 2))), NumbersError::Weaker { numbers: weak });
    let weaker = Consent { weaker: true, ..Consent::default() };
    assert_eq!(planned(&before, &numbers((3, 1, 2)), weaker).unwrap().copies(), 0);
    assert_eq!(refused(&before, numbers((5, 3, 3))), NumbersError::Nodes { replicas: 5, nodes: 4 },);
    let unknown = Wish::Numbers { store: "other".to_owned(), numbers: consistency((3, 1, 3)) };
    assert_eq!(refused(&before, unknown), NumbersError::NoStore { store: "other".to_owned() });
    let begun = steps::begin_numbers(&before, "s", consistency((2, 2, 1)), Accepted::default()).unwrap();
    for wish in [numbers((3, 3, 1)), Wish::Spread] {
        let store = StoreName::new("s").unwrap();
        assert_eq!(refused(&begun, wish), NumbersError::Changes { store, step: Step::Copying });
    }
}

#[test]
fn a_plan_for_other_numbers_says_beforehand_which_steps_wait_for_a_node_that_is_away() {
    let blocked = |from, to, away: &[u32]| {
        let begun = steps::begin_numbers(&four(from), "s", consistency(to), Accepted::default()).unwrap();
        let away: Vec<NodeId> = away.iter().copied().map(NodeId).collect();
        let blocked = steps::numbers_blocked_by(&begun, &away);
        blocked
            .iter()
            .map(|(step, partition, waiting)| format!("{partition} {step}: {}", waiting_for(waiting)))
            .collect::<Vec<_>>()
    };
    assert_eq!(blocked((2, 1, 2), (3, 2, 2), &[]), [""; 0]);
    // n4 enters p1, and is one of two replicas of p2 and p3, of which each get needs one.
    let expected = [
        "p1 copying: n4 is still copying the partition",
        "p1 joint: n4 must compare store s with 1 of n2, n3",
        "p2 reading-new: 1 of n4 must adopt generation 2 before older gets of store s end",
        "p3 reading-new: 1 of n4 must adopt generation 2 before older gets of store s end",
    ];
    assert_eq!(blocked((2, 1, 2), (3, 2, 2), &[4]), expected);
    assert_eq!(steps::numbers_blocked_by(&four((2, 1, 2)), &[NodeId(4)]), [], "nothing changes");
}

/// What is known when these nodes, which all stay, have merged at this generation with themselves and another.
fn merged(nodes: &[u32], generation: Generation) -> Facts {
    let mut facts = Facts::default();
    for &node in nodes {
        let sources = [node, node % 3 + 1].map(NodeId).into();
        let merged = BTreeMap::from([(StoreName::new("s").unwrap(), sources)]);
        let entered = Entered { incarnation: 1, generation, whole: true, merged };
        let known = facts.nodes.entry(NodeId(node)).or_default();
        known.incarnation = Some(1);
        known.adopted = Some((1, generation));
        known.entered.insert(PartitionId(0), entered);
    }
    facts
}

#[test]
fn enough_remaining_replicas_merge_to_hold_each_write_by_the_next_numbers() {
    let one = cluster(1, &["a"; 3], 3, 3);
    for (from, to, enough) in
        [((3, 2, 2), (3, 3, 1), 1), ((3, 2, 2), (3, 1, 3), 3), ((3, 1, 3), (3, 2, 2), 2)]
    {
        let mut before = one.clone();
        before.stores[0].consistency = consistency(from);
        let mut joint = steps::begin_numbers(&before, "s", consistency(to), Accepted::default()).unwrap();
        joint.stores[0].coming.as_mut().unwrap().step = Step::Joint;
        for done in 0..=3_u32 {
            let merging: Vec<u32> = (1..=done).collect();
            let outcome = steps::next(&joint, &merged(&merging, joint.generation));
            let waits: Vec<Waiting> = outcome.waiting.into_iter().flat_map(|(_, waiting)| waiting).collect();
            let expected = if done < enough { 3 - done as usize } else { 0 };
            assert_eq!(
                (outcome.next.is_some(), waits.len()),
                (done >= enough, expected),
                "{from:?} {to:?} {done}"
            );
        }
    }
}
