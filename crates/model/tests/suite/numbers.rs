//! What a store whose numbers change asks of requests, step by step, and what is refused.

use model::cluster::{Accepted, NumbersError};
use model::store::NumbersToCome;
use model::{
    Cluster, Coming, Consistency, Generation, Node, NodeId, PartitionId, PreferenceList, Ring, Role, Step,
    Store, StoreName, Unknown, Zone,
};
use proptest::prelude::*;

fn numbers(replicas: u8, reads_required: u8, writes_required: u8) -> Consistency {
    Consistency { replicas, reads_required, writes_required }
}

fn store(from: Consistency, change: Option<(Step, Consistency)>) -> Store {
    let coming =
        change.map(|(step, consistency)| NumbersToCome { step, consistency, unknown: Unknown::new() });
    Store { coming, ..Store::new(StoreName::new("s").unwrap(), from).unwrap() }
}

/// Nodes 1 to 5 in three zones, and four partitions.
fn cluster(stores: Vec<Store>) -> Cluster {
    let node = |id: u32| Node::new(NodeId(id), Zone(format!("z{}", id % 3)), "h:1", None);
    let nodes: Vec<Node> = (1..=5).map(node).collect();
    let zoned: Vec<_> = nodes.iter().map(|node| (node.id, node.zone.clone())).collect();
    let cluster = Cluster::new("c", nodes, Ring::equal_slices_listing(4, &zoned, 4), stores);
    Cluster { buckets: 4, generation: Generation(9), ..cluster }
}

/// Readers, writers with their sets, and fallbacks, of a partition with nodes 1 to 5.
fn told(store: &Store) -> String {
    let nodes = (1..=5).map(NodeId).collect();
    let list = PreferenceList::of(store, &model::Partition::settled(PartitionId(0), 0, nodes));
    let sets: Vec<_> = list.sets().map(|(node, sets)| format!("{node} {sets:?}")).collect();
    let names = |nodes: &[NodeId]| nodes.iter().map(NodeId::to_string).collect::<Vec<_>>().join(" ");
    format!("{} | {} | {}", names(list.replicas()), sets.join(", "), names(list.fallbacks()))
}

#[test]
fn each_step_names_readers_writers_and_fallbacks() {
    let raised = |step| told(&store(numbers(2, 1, 2), Some((step, numbers(3, 2, 2)))));
    assert_eq!(
        raised(Step::Copying),
        "n1 n2 | n1 Both, n2 Both | n4 n5",
        "n3 enters, and stands in for nobody"
    );
    assert_eq!(raised(Step::Joint), "n1 n2 | n1 Both, n2 Both, n3 New | n4 n5");
    assert_eq!(raised(Step::ReadingNew), "n1 n2 n3 | n1 Both, n2 Both, n3 New | n4 n5");
    let lowered = |step| told(&store(numbers(3, 2, 2), Some((step, numbers(2, 1, 2)))));
    assert_eq!(lowered(Step::Copying), "n1 n2 n3 | n1 Both, n2 Both, n3 Both | n4 n5");
    assert_eq!(lowered(Step::Joint), "n1 n2 n3 | n1 Both, n2 Both, n3 Old | n4 n5");
    assert_eq!(lowered(Step::ReadingNew), "n1 n2 | n1 Both, n2 Both, n3 Old | n4 n5");
}

#[test]
fn each_set_of_replicas_uses_its_own_numbers() {
    let (old, new) = (numbers(3, 2, 2), numbers(5, 3, 4));
    let at = |step| {
        let store = store(old, Some((step, new)));
        (store.numbers_read(), store.numbers_written())
    };
    assert_eq!(at(Step::Copying), (old, (old, old)));
    assert_eq!(at(Step::Joint), (old, (old, new)));
    assert_eq!(at(Step::ReadingNew), (new, (old, new)));
    let settled = store(old, None);
    assert_eq!((settled.numbers_read(), settled.numbers_to_come()), (old, old));
}

#[test]
fn a_request_is_refused_by_the_greater_since_of_partition_and_store() {
    let changed = Store { since: Generation(7), ..store(numbers(2, 1, 2), None) };
    let mut cluster = cluster(vec![changed.clone()]);
    let mut partitions: Vec<_> = cluster.ring.clone().into();
    for (since, accepted) in [(0, 7), (8, 8)] {
        let of: &mut model::Partition = &mut partitions[0];
        of.since = Generation(since);
        assert_eq!(cluster.accepted_since(&changed, of), Generation(accepted));
    }
    cluster.generation_accepted_min = Generation(9);
    assert_eq!(cluster.accepted_since(&changed, &partitions[1]), Generation(9));
}

#[test]
fn a_document_says_of_numbers_only_what_has_changed() {
    let plain = cluster(vec![store(numbers(2, 1, 2), None)]);
    let changing = cluster(vec![store(numbers(2, 1, 2), Some((Step::Joint, numbers(3, 2, 2))))]);
    let changed = cluster(vec![Store { since: Generation(4), ..store(numbers(3, 2, 2), None) }]);
    for (cluster, says) in [(plain, false), (changing, true), (changed, true)] {
        let written = serde_json::to_string(&cluster).unwrap();
        assert_eq!(written.contains("coming") || written.contains("since"), says, "{written}");
        assert_eq!(serde_json::from_str::<Cluster>(&written).unwrap(), cluster);
    }
}

#[test]
fn a_document_in_which_two_things_change_at_once_is_refused() {
    let changing = |name: &str| {
        let store = store(numbers(2, 1, 2), Some((Step::Copying, numbers(3, 2, 2))));
        Store { name: StoreName::new(name).unwrap(), ..store }
    };
    assert_eq!(cluster(vec![changing("a")]).check(), Ok(()));
    let two = cluster(vec![changing("a"), changing("b")]).check().unwrap_err().to_string();
    assert_eq!(two, "store a changes its numbers while store b does, too");
    let mut moves = cluster(vec![changing("a")]);
    let mut partitions: Vec<model::Partition> = moves.ring.clone().into();
    let nodes = partitions[1].nodes.clone();
    partitions[1].coming = Some(Coming { step: Step::Copying, nodes, unknown: Unknown::new() });
    moves.ring = Ring::new(partitions).unwrap();
    assert_eq!(
        moves.check().unwrap_err().to_string(),
        "store a changes its numbers while partition p1 moves"
    );
    let future = cluster(vec![Store { since: Generation(10), ..changing("a") }]).check().unwrap_err();
    assert!(future.to_string().contains("store a"), "{future}");
    let wrong = store(numbers(2, 1, 2), Some((Step::Copying, numbers(3, 4, 2))));
    assert!(cluster(vec![wrong]).check().is_err(), "the next R is above the next N");
}

#[test]
fn a_change_that_cannot_be_is_refused_with_its_reason() {
    let cluster = cluster(vec![store(numbers(3, 2, 2), None)]);
    let (careful, bold) = (Accepted::default(), Accepted { fewer_zones: true, weaker: true });
    let check = |to, accepted| cluster.check_numbers("s", to, accepted).map(|store| store.name.to_string());
    let refused = |to, accepted| check(to, accepted).unwrap_err().to_string();
    assert_eq!(check(numbers(2, 2, 1), careful), Ok("s".to_owned()));
    assert!(cluster.check_numbers("t", numbers(2, 1, 2), bold).unwrap_err().to_string().contains("\"t\""));
    assert_eq!(refused(numbers(3, 2, 2), bold), "store s has N=3, R=2 and W=2 already");
    assert!(refused(numbers(2, 3, 1), bold).contains("1 <= R <= N"));
    assert!(refused(numbers(6, 3, 4), bold).contains("the cluster has 5 nodes that stay"));
    assert!(refused(numbers(5, 3, 3), bold).contains("lists 4 nodes"));
    assert!(refused(numbers(3, 1, 1), careful).contains("R + W is not above N"));
    assert!(check(numbers(3, 1, 1), bold).is_ok());
    let mut leaving = cluster.clone();
    leaving.nodes[4].role = Role::Leaving;
    leaving.nodes[3].gone = true;
    let few = leaving.check_numbers("s", numbers(4, 2, 3), bold).unwrap_err();
    assert_eq!(few, NumbersError::Nodes { replicas: 4, nodes: 3 });
}

#[test]
fn replicas_in_fewer_zones_than_they_could_lie_in_need_consent() {
    let mut cluster = cluster(vec![store(numbers(1, 1, 1), None)]);
    let mut partitions: Vec<model::Partition> = cluster.ring.clone().into();
    // Nodes 1 and 4 lie in the same zone.
    partitions[2].nodes = [1, 4, 2, 3].map(NodeId).to_vec();
    cluster.ring = Ring::new(partitions).unwrap();
    let zones = cluster.check_numbers("s", numbers(2, 1, 2), Accepted::default()).unwrap_err();
    let (replicas, partition) = (2, PartitionId(2));
    assert_eq!(zones, NumbersError::Zones { replicas, partition, zones: 1, possible: 2 });
    let accepted = Accepted { fewer_zones: true, ..Accepted::default() };
    assert!(cluster.check_numbers("s", numbers(2, 1, 2), accepted).is_ok());
    assert!(cluster.check_numbers("s", numbers(3, 2, 2), Accepted::default()).is_err(), "two of three zones");
    assert!(cluster.check_numbers("s", numbers(4, 2, 3), Accepted::default()).is_ok());
}

proptest! {
    #[test]
    fn a_request_meets_the_first_of_the_list_by_each_number(from in 1..=5_u8, to in 1..=5_u8, step in 0..3_usize) {
        let step = [Step::Copying, Step::Joint, Step::ReadingNew][step];
        let store = store(numbers(from, 1, 1), Some((step, numbers(to, 1, 1))));
        let nodes: Vec<NodeId> = (1..=5).map(NodeId).collect();
        let partition = model::Partition::settled(PartitionId(0), 0, nodes.clone());
        let list = PreferenceList::of(&store, &partition);
        let first = |n: u8| &nodes[..usize::from(n)];
        prop_assert_eq!(list.replicas(), first(if step == Step::ReadingNew { to } else { from }));
        prop_assert_eq!(list.is_joint(), step.writes_both());
        let mut writers = list.writers().to_vec();
        writers.sort();
        prop_assert_eq!(&writers[..], first(if step.writes_both() { from.max(to) } else { from }));
        for (node, sets) in list.sets() {
            prop_assert_eq!(sets.has_old(), first(from).contains(&node));
            prop_assert_eq!(sets.has_new(), !step.writes_both() || first(to).contains(&node));
        }
        prop_assert_eq!(list.fallbacks(), &nodes[usize::from(from.max(to))..]);
    }
}
