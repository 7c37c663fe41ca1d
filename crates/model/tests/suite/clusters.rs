//! Stores, and clusters as documents.

use model::limits::STORE_NAME_BYTES_MAX;
use model::{
    Cluster, Consistency, Generation, Key, Node, NodeId, Resolver, Ring, Store, StoreError, StoreName, Zone,
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
