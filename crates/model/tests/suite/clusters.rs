//! Stores, and clusters as documents.

use model::limits::STORE_NAME_BYTES_MAX;
use model::{
    Cluster, Consistency, FallbackOrder, Generation, Key, Node, NodeId, Resolver, Ring, Store, StoreError,
    StoreName, Zone,
};
use proptest::prelude::*;

fn consistency(replicas: u8, reads_required: u8, writes_required: u8) -> Consistency {
    Consistency { replicas, reads_required, writes_required }
}

proptest! {
    #[test]
    fn quorums_are_valid_exactly_between_one_and_n(n in 0..6_u8, r in 0..7_u8, w in 0..7_u8) {
        let valid = (1..=n).contains(&r) && (1..=n).contains(&w);
        let consistency = consistency(n, r, w);
        prop_assert_eq!(consistency.validate().is_ok(), valid);
        prop_assert_eq!(Store::new(StoreName::new("carts").unwrap(), consistency).is_ok(), valid);
    }

    #[test]
    fn read_and_write_quorums_meet_exactly_when_no_split_of_the_replicas_separates_them(
        n in 1..=8_u8, r in 1..=8_u8, w in 1..=8_u8,
    ) {
        prop_assume!(r <= n && w <= n);
        // The first r replicas and the last w share one.
        let shared = (0..r).any(|replica| replica >= n - w);
        prop_assert_eq!(consistency(n, r, w).quorums_intersect(), shared);
    }

    #[test]
    fn store_names_are_short_lowercase_words(name in "[a-z0-9_A-Z.é-]{0,70}") {
        let fine = name.len() <= STORE_NAME_BYTES_MAX
            && name.chars().next().is_some_and(|c| c.is_ascii_lowercase())
            && name.chars().all(|c| matches!(c, 'a'..='z' | '0'..='9' | '_' | '-'));
        let made = StoreName::new(name.clone());
        prop_assert_eq!(made.is_ok(), fine);
        if let Err(error) = made {
            prop_assert_eq!(error, StoreError::Name { name });
        }
    }
}

fn cluster() -> Cluster {
    let node = |id: u32| Node {
        id: NodeId(id),
        zone: Zone(format!("z{id}")),
        native: format!("localhost:{}", 7000 + id),
        resp: (id == 1).then(|| "localhost:6379".to_owned()),
    };
    let nodes: Vec<Node> = (1..=3).map(node).collect();
    let zoned: Vec<_> = nodes.iter().map(|node| (node.id, node.zone.clone())).collect();
    let mut siblings = Store::new(StoreName::new("carts").unwrap(), consistency(3, 2, 2)).unwrap();
    siblings.resolver = Resolver::Siblings;
    let plain = Store::new(StoreName::new("sessions").unwrap(), consistency(2, 1, 1)).unwrap();
    Cluster {
        name: "dev".to_owned(),
        generation: Generation(4),
        generation_accepted_min: Generation(3),
        ring: Ring::equal_slices(8, &zoned),
        nodes,
        stores: vec![siblings, plain],
    }
}

#[test]
fn a_cluster_survives_its_document() {
    let document = serde_json::to_string_pretty(&cluster()).unwrap();
    assert_eq!(serde_json::from_str::<Cluster>(&document).unwrap(), cluster());
    let misnamed = document.replace("\"carts\"", "\"Carts\"");
    assert!(
        serde_json::from_str::<Cluster>(&misnamed).unwrap_err().to_string().contains("store name \"Carts\"")
    );
}

#[test]
fn a_key_is_routed_by_its_store_to_the_first_n_nodes_of_its_partition() {
    let cluster = cluster();
    let key = Key::new(&b"cart:1"[..]).unwrap();
    for (name, replicas) in [("carts", 3), ("sessions", 2)] {
        let store = cluster.store(name).unwrap();
        let (partition, list) = cluster.route(store, key.token());
        assert_eq!(partition, cluster.ring.partition(key.token()));
        assert_eq!(list.replicas(), &partition.nodes[..replicas]);
    }
    assert_eq!(cluster.store("baskets"), None);
    assert_eq!(cluster.node(NodeId(9)), None);
    assert_eq!(cluster.node(NodeId(2)).unwrap().native, "localhost:7002");
}

/// Six nodes in three zones, and a store of two replicas with this order of fallbacks.
fn zoned(fallbacks: FallbackOrder) -> (Cluster, Store) {
    let node = |id: u32| Node {
        id: NodeId(id),
        zone: Zone(format!("z{}", id % 3)),
        native: format!("localhost:{}", 7000 + id),
        resp: None,
    };
    let nodes: Vec<Node> = (1..=6).map(node).collect();
    let zones: Vec<_> = nodes.iter().map(|node| (node.id, node.zone.clone())).collect();
    let store = Store::new(StoreName::new("carts").unwrap(), consistency(2, 1, 1)).unwrap();
    let store = Store { fallbacks, ..store };
    let ring = Ring::equal_slices(8, &zones);
    (Cluster { nodes, ring, stores: vec![store.clone()], ..cluster() }, store)
}

const ORDERS: [FallbackOrder; 3] = [FallbackOrder::Consistent, FallbackOrder::Any, FallbackOrder::Proximity];

#[test]
fn whatever_the_order_of_fallbacks_replicas_stay_and_every_other_node_is_a_fallback_once() {
    for order in ORDERS {
        let (cluster, store) = zoned(order);
        for number in 0..200 {
            let key = Key::new(format!("k{number}")).unwrap();
            let (partition, list) = cluster.route(&store, key.token());
            assert_eq!(list.replicas(), &partition.nodes[..2]);
            let mut all = [list.replicas(), list.fallbacks()].concat();
            all.sort();
            assert_eq!(all, (1..=6).map(NodeId).collect::<Vec<_>>(), "{order:?}");
            assert_eq!(cluster.route(&store, key.token()).1, list, "everybody finds the same order");
        }
    }
}

#[test]
fn any_spreads_the_keys_of_one_partition_over_all_other_nodes_and_consistent_does_not() {
    let first_fallbacks = |order| {
        let (cluster, store) = zoned(order);
        let of_first = |key: &Key| cluster.ring.partition(key.token()).id.0 == 0;
        let keys = (0..4000).map(|number| Key::new(format!("k{number}")).unwrap()).filter(of_first);
        keys.map(|key| cluster.route(&store, key.token()).1.fallbacks()[0])
            .collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(first_fallbacks(FallbackOrder::Any).len(), 4);
    assert_eq!(first_fallbacks(FallbackOrder::Consistent).len(), 1);
}

#[test]
fn proximity_keeps_a_stand_in_within_the_zone_of_the_replica() {
    let (cluster, store) = zoned(FallbackOrder::Proximity);
    let zone = |id: NodeId| cluster.node(id).unwrap().zone.clone();
    for number in 0..200 {
        let key = Key::new(format!("k{number}")).unwrap();
        let list = cluster.route(&store, key.token()).1;
        let [first, second] = list.replicas() else { panic!("two replicas") };
        // Two nodes in each zone: one is the replica, the other its stand-in.
        assert_eq!(zone(list.fallbacks()[0]), zone(*first));
        assert_eq!(zone(list.fallbacks()[1]), zone(*second));
        for &fallback in list.fallbacks() {
            for &replica in list.replicas() {
                assert_eq!(list.is_near(fallback, replica), zone(fallback) == zone(replica));
            }
        }
        for first in 0..4 {
            let turned = list.clone().beginning_at(first);
            assert_eq!(turned.replicas()[0], list.replicas()[first % 2]);
            assert_eq!(turned.fallbacks(), list.fallbacks());
            let near = |list: &model::PreferenceList| {
                list.replicas().iter().filter(|&&replica| list.is_near(list.fallbacks()[0], replica)).count()
            };
            assert_eq!((near(&turned), turned.is_near(list.fallbacks()[0], list.replicas()[0])), (1, true));
        }
    }
    let (cluster, store) = zoned(FallbackOrder::Consistent);
    let list = cluster.route(&store, Key::new("k").unwrap().token()).1;
    assert!(!list.fallbacks().iter().any(|&fallback| list.is_near(fallback, list.replicas()[0])));
}

#[test]
fn a_store_of_an_older_document_turns_to_the_next_on_the_ring() {
    let document = serde_json::to_string(&cluster()).unwrap();
    let older = document.replace("\"fallbacks\":\"consistent\",", "");
    assert_ne!(older, document);
    assert_eq!(serde_json::from_str::<Cluster>(&older).unwrap(), cluster());
    let unknown = document.replace("\"fallbacks\":\"consistent\"", "\"fallbacks\":\"nearest\"");
    let error = serde_json::from_str::<Cluster>(&unknown).unwrap_err().to_string();
    assert!(error.contains("nearest") && error.contains("proximity"), "{error}");
}
