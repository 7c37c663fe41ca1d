//! Records that are damaged on the disk of one replica, met by requests: nobody is told a lie, and they are mended.

use std::time::{Duration, Instant};

use bytes::Bytes;
use client::{ClientOptions, PutOptions};
use model::VersionSet;
use node::Node;
use wire::messages::Failure;

use crate::cluster::{PATIENCE, RunningCluster, store};

const VALUE: &str = "a value that is long enough to be found again";

/// Three nodes that compare nothing and scrub nothing by themselves.
async fn cluster() -> RunningCluster {
    RunningCluster::start_logging(3, store(3, 2, 2), |config| {
        config.repair.antientropy.period = Duration::from_secs(24 * 3600);
    })
    .await
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn record(node: &Node, key: &Bytes) -> Result<VersionSet, Failure> {
    let view = node.replica().view().get();
    let store = &view.stores()[0];
    store.get(view.route(store, key).place, key)
}

/// Flips a bit of the value on a node's disk, once it is there: a record can be read before it is written.
async fn damage(cluster: &RunningCluster, position: usize) {
    let needle = VALUE.as_bytes();
    let disk = cluster.disk(position);
    let mut place = None;
    until("the value is on the disk", || {
        place = disk.files().into_iter().find_map(|(path, bytes)| {
            let at = bytes.windows(needle.len()).position(|window| window == needle)?;
            Some((path, at as u64))
        });
        place.is_some()
    })
    .await;
    let (path, at) = place.unwrap();
    assert!(disk.flip_bit(&path, at, 2));
}

/// The value of a metric without labels.
fn metric(node: &Node, name: &str) -> u64 {
    let text = node.metrics().text();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{name} is missing in\n{text}")).parse().unwrap()
}

fn kinds(node: &Node) -> Vec<&'static str> {
    node.events().after(0, 4096).into_iter().map(|recorded| recorded.event.kind()).collect()
}

async fn put(cluster: &RunningCluster, key: &Bytes) -> client::StoreHandle {
    let client = cluster.client(ClientOptions::default()).await.store("default").unwrap();
    client.put(key.clone(), VALUE, PutOptions::default()).await.unwrap();
    let all = || cluster.nodes.iter().all(|node| record(node, key).is_ok_and(|set| !set.is_empty()));
    until("all have it", all).await;
    client
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_corrupt_record_met_by_a_get_is_masked_counted_reported_and_mended() {
    let (cluster, key) = (cluster().await, Bytes::from("k"));
    let client = put(&cluster, &key).await;
    let before = record(&cluster.nodes[0], &key).unwrap();
    damage(&cluster, 1).await;
    // Which replicas a get asks first is the client's business.
    let deadline = Instant::now() + PATIENCE;
    while metric(&cluster.nodes[1], "tontine_node_corrupt_reads_total") == 0 {
        assert!(Instant::now() < deadline, "no get has met it");
        assert_eq!(client.get(key.clone()).await.unwrap().value(), Some(VALUE.into()));
    }
    assert_eq!(client.get(key.clone()).await.unwrap().value(), Some(VALUE.into()));
    let node = &cluster.nodes[1];
    until("it is told of", || kinds(node).contains(&"corrupt-met")).await;
    until("the repair is counted", || metric(node, "tontine_antientropy_repaired_records_total") == 1).await;
    assert_eq!(record(node, &key).unwrap(), before);
}

/// Nobody who asks one replica sends it what it lacks; comparing does, because the damaged leaf is recounted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_corrupt_record_that_only_one_replica_meets_is_mended_by_comparing() {
    let (cluster, key) = (cluster().await, Bytes::from("k"));
    put(&cluster, &key).await;
    let before = record(&cluster.nodes[0], &key).unwrap();
    damage(&cluster, 2).await;
    let met = record(&cluster.nodes[2], &key).unwrap_err();
    assert_eq!(met.code, wire::ErrorCode::Corrupt);
    until("it is mended", || record(&cluster.nodes[2], &key).is_ok_and(|set| set == before)).await;
    assert!(kinds(&cluster.nodes[2]).contains(&"corrupt-met"));
}

/// Each get that met it once was a new event, and had the other replicas asked again, twice a second for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_that_cannot_be_mended_is_reported_once() {
    let cluster = RunningCluster::start_logging(1, store(1, 1, 1), |_| {}).await;
    let key = Bytes::from("k");
    put(&cluster, &key).await;
    damage(&cluster, 0).await;
    let node = &cluster.nodes[0];
    let told = || kinds(node).into_iter().filter(|&kind| kind == "corrupt-met").count();
    let met = || record(node, &key).is_err_and(|failure| failure.code == wire::ErrorCode::Corrupt);
    until("it is told of", || met() && told() > 0).await;
    // It is looked for every 500 ms.
    for _ in 0..30 {
        assert!(met());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(told(), 1);
}
