//! How what one replica lacks reaches it: hints to their targets, to whoever took a target's place, and at the limit;
//! and read repair.

use std::time::{Duration, Instant};

use bytes::Bytes;
use client::ClientOptions;
use model::{Cluster, Generation, NodeId, Ring};
use node::Node;
use node::stores::KeyPlace;
use protocol::report::{Parts, Status};

use crate::cluster::{PATIENCE, RunningCluster, store};
use crate::support::{order, values};

/// Waits until `holds`; `what` says what never came.
async fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn hints(node: &Node) -> u64 {
    node.replica().hints().pending().into_iter().map(|(_, count)| count).sum()
}

fn status(node: &Node) -> Status {
    node.report(Parts::STATUS).status.unwrap()
}

fn kinds(node: &Node) -> Vec<&'static str> {
    node.events().after(0, usize::MAX).into_iter().map(|recorded| recorded.event.kind()).collect()
}

/// Parks a write at `holder` for `target`, as a coordinator would that did not reach it.
fn park(holder: &Node, target: NodeId, key: &str, value: &str) {
    let scratch = crate::support::store(99, model::Resolver::LastWriteWins);
    let stamped =
        scratch.stamp(crate::support::place(key.as_bytes()), key.as_bytes(), order(value, None)).unwrap();
    let view = holder.replica().view().get();
    let local = view.store("default").unwrap();
    holder.replica().park(target, local, key.as_bytes(), &stamped.set).0.unwrap();
}

/// Merges a write that `stamp` stamped into the records of these nodes, and of no other.
pub(crate) fn merge_at(nodes: &[std::sync::Arc<Node>], key: &str, value: &str, stamp: u32) {
    let key = key.as_bytes();
    let scratch = crate::support::store(stamp, model::Resolver::LastWriteWins);
    let stamped = scratch.stamp(crate::support::place(key), key, order(value, None)).unwrap();
    for node in nodes {
        let view = node.replica().view().get();
        let local = view.store("default").unwrap();
        local.merge(view.route(local, key).place, key, &stamped.set).unwrap();
    }
}

/// What a node's own record of a key shows.
pub(crate) fn shown(node: &Node, key: &str) -> Vec<String> {
    let view = node.replica().view().get();
    let local = view.store("default").unwrap();
    let KeyPlace { partition, token } = view.route(local, key.as_bytes()).place;
    values(&local.get(KeyPlace { partition, token }, key.as_bytes()).unwrap())
}

pub(crate) fn replicas(node: &Node, key: &str) -> Vec<NodeId> {
    let view = node.replica().view().get();
    let local = view.store("default").unwrap();
    view.route(local, key.as_bytes()).preference.replicas().to_vec()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hints_reach_their_target_and_are_removed() {
    let cluster = RunningCluster::start((3, 3), store(3, 2, 2), |_| {}).await;
    let (holder, target) = (&cluster.nodes[0], &cluster.nodes[1]);
    for number in 0..300 {
        park(holder, NodeId(2), &format!("k{number}"), &format!("v{number}"));
    }
    wait_until("the hints are not delivered", || hints(holder) == 0).await;
    for number in 0..300 {
        assert_eq!(shown(target, &format!("k{number}")), [format!("v{number}")]);
    }
    wait_until("no event tells of it", || kinds(holder).contains(&"hints-drained")).await;
    assert!(kinds(holder).contains(&"hints-parked"));
    assert_eq!(status(holder).hints.len(), 0);
    assert!(holder.metrics().text().contains("tontine_handoff_hints_delivered_total 300"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hint_for_a_node_that_does_not_hold_the_key_reaches_those_that_do() {
    let cluster = RunningCluster::start((3, 3), store(1, 1, 1), |_| {}).await;
    let holder = &cluster.nodes[0];
    for number in 0..60 {
        let key = format!("k{number}");
        let stranger = (1..=3).map(NodeId).find(|id| !replicas(holder, &key).contains(id)).unwrap();
        park(holder, stranger, &key, "v");
    }
    wait_until("the hints find no new owner", || hints(holder) == 0).await;
    for number in 0..60 {
        let key = format!("k{number}");
        let owner = replicas(holder, &key)[0];
        assert_eq!(shown(&cluster.nodes[owner.0 as usize - 1], &key), ["v"], "{key} at {owner}");
    }
}

/// The third node never answers, and leaves the cluster with hints outstanding.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hints_for_a_node_that_was_removed_reach_its_successors() {
    let quick = |config: &mut node::NodeConfig| config.hints.handoff.lost_after = Duration::from_millis(200);
    let cluster = RunningCluster::start((3, 2), store(2, 1, 1), quick).await;
    let (holder, other) = (&cluster.nodes[0], &cluster.nodes[1]);
    let of_third = |key: &String| replicas(holder, key).contains(&NodeId(3));
    let keys: Vec<String> = (0..100).map(|number| format!("k{number}")).filter(of_third).collect();
    assert!(!keys.is_empty());
    for key in &keys {
        park(holder, NodeId(3), key, "v");
    }
    let view = holder.replica().view().get();
    let nodes: Vec<_> = view.cluster().nodes[..2].to_vec();
    let zones: Vec<_> = nodes.iter().map(|node| (node.id, node.zone.clone())).collect();
    let smaller = Cluster {
        generation: Generation(2),
        nodes_changed: Generation(2),
        nodes,
        ring: Ring::equal_slices(8, &zones),
        ..view.cluster().as_ref().clone()
    };
    coordination::documents::publish_cluster(&cluster.service.open(), &smaller).await.unwrap();
    wait_until("the hints do not reach the successors", || hints(holder) == 0).await;
    for key in &keys {
        assert_eq!(shown(holder, key), ["v"], "the holder itself is a replica now");
        assert_eq!(shown(other, key), ["v"]);
    }
}

/// Gives up what is older than a moment, and looks for it all the time.
fn impatient(config: &mut node::NodeConfig) {
    config.hints.handoff.lost_after = Duration::from_millis(200);
    config.hints.handoff.age_max = Duration::from_millis(100);
    config.hints.handoff.sweep_every = Duration::from_millis(50);
}

/// The replica that takes an old hint may be the one that acknowledged the write: of two copies, its own and the hint,
/// one was left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hint_that_counts_as_a_copy_is_not_given_up_to_fewer_replicas() {
    // The third never answers.
    for (writes_required, stays) in [(2, true), (1, false)] {
        let cluster = RunningCluster::start((3, 2), store(2, 1, writes_required), impatient).await;
        let of_third = |key: &String| replicas(&cluster.nodes[0], key).contains(&NodeId(3));
        let keys: Vec<String> = (0..60).map(|number| format!("k{number}")).filter(of_third).collect();
        let holder_of = |key: &String| {
            let is_replica = replicas(&cluster.nodes[0], key).contains(&NodeId(1));
            if is_replica {
                (&cluster.nodes[1], &cluster.nodes[0])
            } else {
                (&cluster.nodes[0], &cluster.nodes[1])
            }
        };
        assert!(keys.len() > 10, "{keys:?}");
        keys.iter().for_each(|key| park(holder_of(key).0, NodeId(3), key, "v"));
        let held = || cluster.nodes.iter().map(|node| hints(node)).sum::<u64>();
        if stays {
            // Forty times as long as it takes where one replica is enough.
            tokio::time::sleep(Duration::from_secs(4)).await;
            assert_eq!(held(), keys.len() as u64);
        } else {
            wait_until("the hints are not given up", || held() == 0).await;
            keys.iter().for_each(|key| assert_eq!(shown(holder_of(key).1, key), ["v"]));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hint_that_is_given_up_is_held_by_all_replicas_that_are_up() {
    let cluster = RunningCluster::start((3, 2), store(3, 2, 2), impatient).await;
    for number in 0..20 {
        park(&cluster.nodes[0], NodeId(3), &format!("k{number}"), "v");
    }
    wait_until("the hints are not given up", || hints(&cluster.nodes[0]) == 0).await;
    for node in &cluster.nodes[..2] {
        (0..20).for_each(|number| assert_eq!(shown(node, &format!("k{number}")), ["v"]));
    }
}

/// A full hint store once made nodes refuse writes that needed no hint (seen in other stores of this family).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hints_beyond_the_limit_are_refused_and_counted_and_writes_still_succeed() {
    let full = |config: &mut node::NodeConfig| config.hints.bytes_max = 0;
    let cluster = RunningCluster::start((3, 3), store(3, 2, 2), full).await;
    cluster.nodes[2].stop().await.unwrap();
    let options = ClientOptions { deadline: PATIENCE, hedge_after: PATIENCE, ..ClientOptions::default() };
    let client = cluster.client(options).await;
    let store = client.store("default").unwrap();
    for number in 0..20 {
        let written = store.put(format!("k{number}"), Bytes::from("v"), Default::default()).await.unwrap();
        assert_eq!(written.acks, 2);
    }
    let holders = &cluster.nodes[..2];
    let refused = || holders.iter().map(|node| node.replica().hints().refused()).sum::<u64>();
    wait_until("no hint is refused", || refused() >= 20).await;
    assert!(holders.iter().all(|node| hints(node) == 0));
    let told = |node: &Node| kinds(node).contains(&"hints-refused");
    wait_until("no event tells of it", || holders.iter().any(|node| told(node))).await;
    let counted: u64 = holders.iter().map(|node| status(node).hints_refused_total).sum();
    assert!(counted >= 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_get_that_saw_stale_or_missing_records_repairs_them_after_its_answer() {
    let cluster = RunningCluster::start((3, 3), store(3, 3, 1), |_| {}).await;
    merge_at(&cluster.nodes[..1], "k", "old", 98);
    tokio::time::sleep(Duration::from_millis(2)).await;
    merge_at(&cluster.nodes[1..2], "k", "new", 99);
    let options = ClientOptions { deadline: PATIENCE, hedge_after: PATIENCE, ..ClientOptions::default() };
    let client = cluster.client(options).await;
    let found = client.store("default").unwrap().get("k").await.unwrap();
    assert_eq!(found.value(), Some(Bytes::from("new")));
    for node in &cluster.nodes {
        wait_until("a replica is not repaired", || shown(node, "k") == ["new"]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_came_back_without_many_keys_is_read_last_until_it_has_caught_up() {
    const KEYS: u64 = 600;
    let cluster = RunningCluster::start((3, 3), store(3, 2, 2), |_| {}).await;
    for number in 0..KEYS {
        merge_at(&cluster.nodes[..2], &format!("k{number}"), "value", 99);
    }
    // What was written a moment ago may be on its way to it.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let client = cluster.client(ClientOptions { deadline: PATIENCE, ..ClientOptions::default() }).await;
    let store = client.store("default").unwrap();
    let requests = || {
        let text = cluster.nodes[2].metrics().text();
        let line = text.lines().find_map(|line| line.strip_prefix("tontine_node_requests_total "));
        line.unwrap().parse::<u64>().unwrap()
    };
    let before = requests();
    for number in 0..KEYS {
        let found = store.get(format!("k{number}")).await.unwrap();
        assert_eq!(found.value(), Some(Bytes::from("value")));
    }
    // Two thirds of the keys have it among the two replicas that would be asked first, and each that is asked there is
    // repaired there: 800 requests.
    let asked = requests() - before;
    assert!((1..KEYS / 2).contains(&asked), "{asked} requests came to the node that lacks everything");
}
