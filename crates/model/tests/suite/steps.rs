//! What a partition that moves asks of requests, step by step.

use model::{
    Cluster, Coming, Consistency, FallbackOrder, Generation, Node, NodeId, Partition, PartitionId,
    PreferenceList, Ring, Role, Sets, Step, Store, StoreName, Token, Unknown, Zone,
};
use proptest::prelude::*;

const STEPS: [Step; 3] = [Step::Copying, Step::Joint, Step::ReadingNew];

fn ids(ids: &[u32]) -> Vec<NodeId> {
    ids.iter().copied().map(NodeId).collect()
}

fn store(replicas: u8, fallbacks: FallbackOrder) -> Store {
    let consistency = Consistency { replicas, reads_required: 1, writes_required: 1 };
    Store { fallbacks, ..Store::new(StoreName::new("s").unwrap(), consistency).unwrap() }
}

fn moving(step: Step, from: &[u32], to: &[u32]) -> Partition {
    let coming = Coming { step, nodes: ids(to), unknown: Unknown::new() };
    Partition { coming: Some(coming), ..Partition::settled(PartitionId(0), 0, ids(from)) }
}

/// Readers, writers with their sets, and fallbacks.
fn told(list: &PreferenceList) -> String {
    let sets: Vec<_> = list.sets().map(|(node, sets)| format!("{node} {sets:?}")).collect();
    let names = |nodes: &[NodeId]| nodes.iter().map(NodeId::to_string).collect::<Vec<_>>().join(" ");
    format!("{} | {} | {}", names(list.replicas()), sets.join(", "), names(list.fallbacks()))
}

#[test]
fn each_step_names_readers_writers_and_fallbacks() {
    let store = store(3, FallbackOrder::Consistent);
    let settled = Partition::settled(PartitionId(0), 0, ids(&[1, 2, 3, 4, 5]));
    assert_eq!(told(&PreferenceList::of(&store, &settled)), "n1 n2 n3 | n1 Both, n2 Both, n3 Both | n4 n5");
    let at = |step| told(&PreferenceList::of(&store, &moving(step, &[1, 2, 3, 4, 5], &[1, 4, 3, 5, 2])));
    assert_eq!(at(Step::Copying), "n1 n2 n3 | n1 Both, n2 Both, n3 Both | n5", "n4 enters");
    assert_eq!(at(Step::Joint), "n1 n2 n3 | n1 Both, n2 Old, n3 Both, n4 New | n5");
    assert_eq!(
        at(Step::ReadingNew),
        "n1 n4 n3 | n1 Both, n4 New, n3 Both, n2 Old | n5",
        "n2 still takes writes"
    );
}

#[test]
fn entering_and_leaving_nodes_are_never_fallbacks() {
    for fallbacks in [FallbackOrder::Consistent, FallbackOrder::Any, FallbackOrder::Proximity] {
        let store = store(2, fallbacks);
        for step in STEPS {
            let mut nodes: Vec<Node> =
                (1..=6).map(|id| Node::new(NodeId(id), Zone(format!("z{}", id % 3)), "h", None)).collect();
            nodes[5].role = Role::Leaving;
            let ring = Ring::new(vec![moving(step, &[1, 2, 3, 4, 5], &[2, 3, 1, 4, 5])]).unwrap();
            let cluster = Cluster::new("c", nodes, ring, vec![store.clone()]);
            let list = cluster.route(&store, Token(7)).1;
            let mut fallbacks = list.fallbacks().to_vec();
            fallbacks.sort();
            assert_eq!(fallbacks, ids(&[4, 5]), "{step}, {list:?}");
            for turn in 0..3 {
                let turned = list.clone().beginning_at(turn);
                let mut sets: Vec<_> = [turned.sets().collect(), list.sets().collect::<Vec<_>>()].to_vec();
                sets.iter_mut().for_each(|sets| sets.sort_by_key(|(node, _)| *node));
                assert_eq!(sets[0], sets[1], "each keeps its sets");
            }
        }
    }
}

/// Two lists over eight nodes.
fn lists() -> impl Strategy<Value = (Vec<u32>, Vec<u32>)> {
    let list = || prop::sample::subsequence((1..=8_u32).collect::<Vec<_>>(), 1..=8).prop_shuffle();
    (list(), list())
}

proptest! {
    #[test]
    fn a_request_meets_the_first_n_of_each_list_that_counts((from, to) in lists(), n in 1..5_u8, step in 0..3_usize) {
        let (store, step) = (store(n, FallbackOrder::Consistent), STEPS[step]);
        let partition = moving(step, &from, &to);
        let list = PreferenceList::of(&store, &partition);
        let first = |nodes: &[u32]| ids(&nodes[..nodes.len().min(usize::from(n))]);
        let (old, new) = (first(&from), first(&to));
        prop_assert_eq!(list.replicas(), if step == Step::ReadingNew { &new[..] } else { &old[..] });
        prop_assert_eq!(list.is_joint(), step != Step::Copying);
        let of = |counts: fn(Sets) -> bool| {
            let mut nodes: Vec<_> =
                list.sets().filter(|(_, sets)| counts(*sets)).map(|(node, _)| node).collect();
            nodes.sort();
            nodes
        };
        let sorted = |mut nodes: Vec<NodeId>| { nodes.sort(); nodes };
        prop_assert_eq!(of(Sets::has_old), sorted(old.clone()));
        prop_assert_eq!(of(Sets::has_new), sorted(if step.writes_both() { new.clone() } else { old.clone() }));
        let writers: Vec<_> = model::routing::writers(&store, &partition).collect();
        prop_assert_eq!(list.writers(), &writers[..]);
        let stands_in = |node: &NodeId| !old.contains(node) && !new.contains(node);
        prop_assert!(list.fallbacks().iter().all(stands_in));
        let expected = partition.reading().iter().filter(|node| stands_in(node)).count();
        prop_assert_eq!(list.fallbacks().len(), expected);
    }

    #[test]
    fn a_moving_ring_survives_its_document((from, to) in lists(), step in 0..3_usize, since in 0..9_u64) {
        let partition = Partition { since: Generation(since), ..moving(STEPS[step], &from, &to) };
        let ring = Ring::new(vec![partition]).unwrap();
        let document = serde_json::to_string(&ring).unwrap();
        prop_assert_eq!(serde_json::from_str::<Ring>(&document).unwrap(), ring);
    }
}
