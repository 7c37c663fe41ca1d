//! Values that expire: gone from every node after their time, index and bytes, and not back with a late message.

use protocol::report::Parts;
use std::time::{Duration, Instant};

use bytes::Bytes;
use client::{ClientOptions, PutOptions};
use node::Node;

use crate::cluster::{PATIENCE, RunningCluster, store};

async fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn records(node: &Node) -> u64 {
    node.replica().view().get().stores()[0].engine().stats().records
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired_keys_leave_nothing_behind_on_any_node() {
    let cluster = RunningCluster::start((3, 3), store(3, 2, 2), |config| {
        config.repair.collection.interval = Duration::from_millis(20);
        (config.repair.expiry.interval, config.repair.expiry.margin) =
            (Duration::from_millis(20), Duration::from_millis(200));
    })
    .await;
    let client = cluster.client(ClientOptions::default()).await.store("default").unwrap();
    let brief = PutOptions { ttl: Some(Duration::from_millis(300)), ..PutOptions::default() };
    for number in 0..60 {
        let key = Bytes::from(format!("k{number}"));
        let options = if number % 6 == 0 { PutOptions::default() } else { brief.clone() };
        client.put(key, "value", options).await.unwrap();
    }
    // Their time is over, and they are written anew: these stay.
    tokio::time::sleep(Duration::from_millis(400)).await;
    for number in [1, 2] {
        client.put(format!("k{number}"), "again", PutOptions::default()).await.unwrap();
    }
    wait_until("expired values stay", || cluster.nodes.iter().all(|node| records(node) == 12)).await;
    // Where others reaped all of a node's values, its own list of keys has its turn later.
    let expiring = |node: &Node| node.report(Parts::STATUS).status.unwrap().stores[0].expiring_keys;
    wait_until("keys stay listed", || cluster.nodes.iter().all(|node| expiring(node) == 0)).await;
    for number in 0..60 {
        let found = client.get(format!("k{number}")).await.unwrap();
        assert_eq!(found.value().is_some(), number % 6 == 0 || number == 1 || number == 2, "k{number}");
    }
    for node in &cluster.nodes {
        let store = &node.report(Parts::STATUS).status.unwrap().stores[0];
        assert_eq!(store.expiring_keys, 0, "{store:?}");
        assert_eq!(store.expired_values_reaped_total * 5, store.expired_bytes_reaped_total);
        let text = node.metrics().text();
        for name in ["keys_pending", "values_reaped_total", "bytes_reaped_total"] {
            assert!(text.contains(&format!("tontine_expiry_{name}")), "{name}");
        }
    }
    let kinds = cluster.nodes.iter().flat_map(|node| node.events().after(0, 1000));
    assert!(kinds.map(|event| event.event.kind()).any(|kind| kind == "expired-reaped"));
}
