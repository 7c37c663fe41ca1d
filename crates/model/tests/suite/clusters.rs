//! Stores, and clusters as documents.

use model::limits::{FALLBACKS_LISTED, STORE_NAME_BYTES_MAX};
use model::{
    Cluster, Consistency, FallbackOrder, Generation, Key, Node, NodeId, PartitionId, Resolver, Ring, Role,
    Store, StoreError, StoreName, Token, Zone,
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
    let node = |id: u32| {
        let (native, resp) = (format!("localhost:{}", 7000 + id), "localhost:6379".to_owned());
        Node::new(NodeId(id), Zone(format!("z{id}")), native, (id == 1).then_some(resp))
    };
    let nodes: Vec<Node> = (1..=3).map(node).collect();
    let zoned: Vec<_> = nodes.iter().map(|node| (node.id, node.zone.clone())).collect();
    let mut siblings = Store::new(StoreName::new("carts").unwrap(), consistency(3, 2, 2)).unwrap();
    siblings.resolver = Resolver::Siblings;
    let plain = Store::new(StoreName::new("sessions").unwrap(), consistency(2, 1, 1)).unwrap();
    let cluster = Cluster::new("dev", nodes, Ring::equal_slices(8, &zoned), vec![siblings, plain]);
    Cluster { generation: Generation(4), generation_accepted_min: Generation(3), ..cluster }
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
        let (partition, list) = cluster.route(store, Token::of(key.bytes()));
        assert_eq!(partition, cluster.ring.partition(Token::of(key.bytes())));
        assert_eq!(list.replicas(), &partition.nodes[..replicas]);
    }
    assert_eq!(cluster.store("baskets"), None);
    assert_eq!(cluster.node(NodeId(9)), None);
    assert_eq!(cluster.node(NodeId(2)).unwrap().native, "localhost:7002");
}

/// Six nodes in three zones, and a store of two replicas with this order of fallbacks.
fn zoned(fallbacks: FallbackOrder) -> (Cluster, Store) {
    let node = |id: u32| {
        Node::new(NodeId(id), Zone(format!("z{}", id % 3)), format!("localhost:{}", 7000 + id), None)
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
            let (partition, list) = cluster.route(&store, Token::of(key.bytes()));
            assert_eq!(list.replicas(), &partition.nodes[..2]);
            let mut all = [list.replicas(), list.fallbacks()].concat();
            all.sort();
            assert_eq!(all, (1..=6).map(NodeId).collect::<Vec<_>>(), "{order:?}");
            assert_eq!(
                cluster.route(&store, Token::of(key.bytes())).1,
                list,
                "everybody finds the same order"
            );
        }
    }
}

#[test]
fn any_spreads_the_keys_of_one_partition_over_all_other_nodes_and_consistent_does_not() {
    let first_fallbacks = |order| {
        let (cluster, store) = zoned(order);
        let of_first = |key: &Key| cluster.ring.partition(Token::of(key.bytes())).id.0 == 0;
        let keys = (0..4000).map(|number| Key::new(format!("k{number}")).unwrap()).filter(of_first);
        keys.map(|key| cluster.route(&store, Token::of(key.bytes())).1.fallbacks()[0])
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
        let list = cluster.route(&store, Token::of(key.bytes())).1;
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
    let list = cluster.route(&store, Token::of(b"k")).1;
    assert!(!list.fallbacks().iter().any(|&fallback| list.is_near(fallback, list.replicas()[0])));
}

/// A document in which nothing says more than it must.
const PLAIN: &str = r#"{"form":5,"name":"dev","generation":3,"generation_accepted_min":2,"nodes_changed":1,
    "nodes":[{"id":1,"zone":"a","native":"h:1","resp":null},{"id":2,"zone":"b","native":"h:2","resp":"h:3"}],
    "ring":[{"id":0,"start":0,"nodes":[1,2]},{"id":1,"start":9223372036854775808,"nodes":[2,1]}],"buckets":2,
    "stores":[{"name":"s","consistency":{"replicas":2,"reads_required":1,"writes_required":2},"resolver":"siblings",
        "sloppy":true,"fallbacks":"consistent","reads":"fast","value_bytes_max":10,"siblings_max":3}]}"#;

#[test]
fn what_a_document_does_not_say_is_as_in_a_new_cluster() {
    let cluster: Cluster = serde_json::from_str(PLAIN).unwrap();
    assert!(cluster.nodes.iter().all(|node| node.weight.get() == 100 && node.role == Role::Serving));
    assert!(cluster.ring.is_settled());
    for partition in cluster.ring.partitions() {
        assert_eq!(cluster.accepted_since(&cluster.stores[0], partition), Generation(2));
    }
    let again = serde_json::to_string(&cluster).unwrap();
    assert_eq!(serde_json::from_str::<Cluster>(&again).unwrap(), cluster);
}

#[test]
fn fields_of_a_later_program_survive_a_rewrite() {
    let later = PLAIN
        .replace(r#""generation":3"#, r#""generation":3,"mood":{"of":["the",1,"day"]}"#)
        .replace(r#""zone":"a""#, r#""zone":"a","engine":"v8""#)
        .replace(r#""start":0"#, r#""start":0,"heat":7"#)
        .replace(r#""nodes":[2,1]"#, r#""nodes":[2,1],"coming":{"step":"joint","nodes":[1,2],"why":"so"}"#)
        .replace(r#""sloppy":true"#, r#""sloppy":true,"colour":"red""#);
    let cluster: Cluster = serde_json::from_str(&later).unwrap();
    let again = serde_json::to_string(&cluster).unwrap();
    for survivor in [
        r#""mood":{"of":["the",1,"day"]}"#,
        r#""engine":"v8""#,
        r#""heat":7"#,
        r#""why":"so""#,
        r#""colour":"red""#,
    ] {
        assert!(again.contains(survivor), "{survivor} is gone from {again}");
    }
    assert_eq!(serde_json::from_str::<Cluster>(&again).unwrap(), cluster);
}

/// A program of before would look for keys where they are not: it must refuse the document.
#[test]
fn must_not_2_a_program_of_before_reads_a_document_with_windows() {
    let node = Node::new(NodeId(1), Zone("z".to_owned()), "127.0.0.1:7001".to_owned(), None);
    let ring = Ring::equal_slices(4, &[(NodeId(1), Zone("z".to_owned()))]);
    let mut store = Store::new(StoreName::new("feeds").unwrap(), consistency(1, 1, 1)).unwrap();
    let plain = Cluster::new("shop", vec![node], ring, vec![store.clone()]);
    assert_eq!(plain.form(), model::cluster::FORM);
    let key = model::KeyPattern::new("feed:{group}:{sequence}").unwrap();
    let windows =
        model::Windows { theta: 64, key, buckets: plain.buckets, unknown: model::Unknown::default() };
    store.placement = model::Placement::Windows(windows);
    let placed = Cluster { stores: vec![store], ..plain };
    let json = serde_json::to_string(&placed).unwrap();
    assert!(json.starts_with(r#"{"form":7,"#), "{json}");
    assert_eq!(serde_json::from_str::<Cluster>(&json).unwrap(), placed);
    // What a headmaster of before made of it: it passes over what it does not know.
    let passed_over = json.replace(r#""form":7"#, r#""form":5"#);
    let error = serde_json::from_str::<Cluster>(&passed_over).unwrap_err().to_string();
    assert!(error.contains("it says form 5, and what it has needs form 7"), "{error}");
}

#[test]
fn a_document_of_another_form_is_refused_by_its_number_whatever_else_it_holds() {
    let refused = |document: &str| {
        assert!(serde_json::from_str::<Cluster>(document).is_err());
        model::cluster::refused_form(document.as_bytes()).unwrap()
    };
    assert_eq!(
        refused(r#"{"form":9,"name":7,"ring":"a circle"}"#),
        "it has form 9, and this program understands forms 5 to 8: a later program wrote it; upgrade this one"
    );
    assert_eq!(
        refused(r#"{"form":4,"name":7,"ring":"a circle"}"#),
        "it has form 4, and this program understands forms 5 to 8: an earlier program wrote it; export the data with that \
         program, and load it into a new cluster of this one"
    );
    // Before forms were numbered.
    assert!(refused(&PLAIN.replace(r#""form":5,"#, "")).starts_with("it has form 1"));
    for no_document in ["{", "{}", PLAIN] {
        assert_eq!(model::cluster::refused_form(no_document.as_bytes()), None, "{no_document}");
    }
}

/// A program that knows no golden rings would spread one: the form keeps it away, and a lower one is a lie.
#[test]
fn a_document_with_a_golden_ring_says_form_8_and_is_refused_under_a_lower_one() {
    let owned = PLAIN.replace(r#""nodes":[1,2]}"#, r#""nodes":[1,2],"owner":1}"#);
    let golden = owned.replace(r#""nodes":[2,1]"#, r#""nodes":[2,1],"owner":2"#);
    assert!(owned != PLAIN && golden != owned);
    let error = serde_json::from_str::<Cluster>(&owned).unwrap_err().to_string();
    assert!(error.contains("belongs to a node and others do not"), "{error}");
    let error = serde_json::from_str::<Cluster>(&golden).unwrap_err().to_string();
    assert!(error.contains("it says form 5, and what it has needs form 8"), "{error}");
    let said = golden.replace(r#""form":5"#, r#""form":8"#);
    let read: Cluster = serde_json::from_str(&said).unwrap();
    assert!(read.ring.is_golden());
    let written = serde_json::to_string(&read).unwrap();
    assert!(written.starts_with(r#"{"form":8,"#), "{written}");
    // Its owner is a member, as all that a document names.
    let strange = said.replace(r#""owner":2"#, r#""owner":77"#);
    let error = serde_json::from_str::<Cluster>(&strange).unwrap_err().to_string();
    assert!(error.contains("lists node n77, which the document does not know"), "{error}");
}

#[test]
fn a_step_that_this_program_does_not_know_is_refused_by_its_name() {
    let unknown =
        PLAIN.replace(r#""nodes":[2,1]"#, r#""nodes":[2,1],"coming":{"step":"flying","nodes":[1,2]}"#);
    let error = serde_json::from_str::<Cluster>(&unknown).unwrap_err().to_string();
    assert!(error.contains("flying") && error.contains("reading-new"), "{error}");
}

#[test]
fn documents_that_do_not_hold_together_are_refused_with_what_is_wrong() {
    let check = |from: &str, to: &str, says: &str| {
        let edited = PLAIN.replacen(from, to, 1);
        assert_ne!(edited, PLAIN, "{from}");
        let error = serde_json::from_str::<Cluster>(&edited).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    };
    check(r#""id":2"#, r#""id":1"#, "lists node n1 twice");
    check(r#""nodes":[1,2]"#, r#""nodes":[1,7]"#, "p0 lists node n7, which the document does not know");
    check(r#""nodes":[1,2]"#, r#""nodes":[1,1]"#, "p0 lists no node, or one twice");
    check(r#""nodes":[1,2]"#, r#""nodes":[]"#, "p0 lists no node, or one twice");
    let coming = |nodes: &str| format!(r#""nodes":[1,2],"coming":{{"step":"copying","nodes":{nodes}}}"#);
    check(r#""nodes":[1,2]"#, &coming("[2]"), "p0 moves to 1 nodes, and store s needs 2 replicas");
    check(r#""nodes":[1,2]"#, &coming("[2,2]"), "p0 lists no node, or one twice");
    check(r#""nodes":[1,2]"#, &coming("[2,9]"), "p0 lists node n9");
    check(r#""nodes":[1,2]"#, r#""nodes":[1,2],"since":4"#, "generation 4 is named for partition p0");
    check(r#""generation_accepted_min":2"#, r#""generation_accepted_min":9"#, "generation 9 is named");
    check(r#""writes_required":2"#, r#""writes_required":3"#, "store s: store needs 1 <= R <= N");
    check(r#""zone":"a""#, r#""zone":"a","weight":0"#, "a node's weight is 1 to 100000, got 0");
    check(r#""zone":"a""#, r#""zone":"a","role":"king""#, "king");
    check(r#""id":1,"start":9223372036854775808,"#, "", "position 1 does not say where it starts");
}

#[test]
fn the_largest_ring_fits_a_document() {
    let count = 1_000;
    let nodes: Vec<Node> = (1..=count)
        .map(|id| {
            let zone = Zone(format!("rack-{}", id % 40));
            Node::new(NodeId(id), zone, format!("10.20.{}.{}:7400", id / 256, id % 256), None)
        })
        .collect();
    let zones: Vec<_> = nodes.iter().map(|node| (node.id, node.zone.clone())).collect();
    let ring = Ring::equal_slices_listing(16_384, &zones, 3 + FALLBACKS_LISTED);
    let mut partitions = ring.partitions().to_vec();
    // Each has moved at some time, and some were split in two.
    partitions.iter_mut().for_each(|partition| partition.since = Generation(1_234_567));
    for position in [16_000, 9_000, 77] {
        let mut half = partitions[position].clone();
        (half.id, half.start) = (PartitionId(20_000 + position as u32), half.start + (1 << 49));
        partitions.insert(position + 1, half);
    }
    let ring = Ring::new(partitions).unwrap();
    let stores = cluster().stores;
    let cluster = Cluster { generation: Generation(1_234_567), ..Cluster::new("big", nodes, ring, stores) };
    let document = serde_json::to_string(&cluster).unwrap();
    assert!(document.len() < 1_044_480, "{} bytes", document.len());
    assert_eq!(serde_json::from_str::<Cluster>(&document).unwrap(), cluster);
}
