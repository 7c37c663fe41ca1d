//! Writes that one replica must not or cannot stamp: another does, or the same one once it has what it lacks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use client::{ClientOptions, DeleteOptions, PutOptions};
use model::{Epoch, Timestamp, WallMillis};
use node::Node;
use runtime::clock::os::OsClock;
use runtime::{Clock, Disk};
use wire::ErrorCode;

use crate::cluster::{PATIENCE, RunningCluster, store};
use crate::support::{Connection, order, place};

async fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Merges a write into the records of these nodes, and of no other.
fn merge_at(nodes: &[Arc<Node>], key: &str, value: &str) {
    let key = key.as_bytes();
    let scratch = crate::support::store(99, model::Resolver::LastWriteWins);
    let stamped = scratch.stamp(place(key), key, order(value, None)).unwrap();
    for node in nodes {
        let view = node.replica().view().get();
        let local = view.store("default").unwrap();
        local.merge(view.route(local, key).place, key, &stamped.set).unwrap();
    }
}

fn knows(node: &Node, key: &str) -> bool {
    let view = node.replica().view().get();
    let local = view.store("default").unwrap();
    !local.get(view.route(local, key.as_bytes()).place, key.as_bytes()).unwrap().is_empty()
}

/// This many keys that begin with `name`, and whose first replica is the first node.
fn keys_of_the_first(cluster: &RunningCluster, name: &str, count: usize) -> Vec<String> {
    let view = cluster.nodes[0].replica().view().get();
    let local = view.store("default").unwrap();
    let is_first = |key: &String| {
        view.route(local, key.as_bytes()).preference.replicas()[0] == cluster.nodes[0].replica().node()
    };
    (0..).map(|number| format!("{name}{number}")).filter(is_first).take(count).collect()
}

/// Sets and deletes many keys at once at a node that stamps nothing.
async fn many_keys_are_written(door: &mut Connection, keys: &[String]) {
    let pairs: Vec<String> = keys.iter().map(|key| format!("{key} v")).collect();
    door.ask(&format!("SET {} v", keys[0]), "+OK\r\n").await;
    door.ask(&format!("MSET {}", pairs.join(" ")), "+OK\r\n").await;
    let count = format!(":{}\r\n", keys.len());
    door.ask(&format!("EXISTS {}", keys.join(" ")), &count).await;
    door.ask(&format!("DEL {}", keys.join(" ")), &count).await;
    door.ask(&format!("EXISTS {}", keys.join(" ")), ":0\r\n").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_keys_are_written_at_a_node_that_refills() {
    let mut cluster = RunningCluster::start((3, 3), store(3, 1, 2), |_| {}).await;
    // What is in memory is gone, and with one peer alone no partition can become whole.
    cluster.stop(2).await;
    cluster.stop(0).await;
    cluster.start_again(0).await;
    let refill = cluster.nodes[0].antientropy().report().refill.map(|refill| refill.partitions_left);
    assert_eq!(refill, Some(8), "it waits for the third node");
    let keys = keys_of_the_first(&cluster, "k", 300);
    many_keys_are_written(&mut cluster.redis(0), &keys).await;
    let refill = cluster.nodes[0].antientropy().report().refill.map(|refill| refill.partitions_left);
    assert_eq!(refill, Some(8), "it still does");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_keys_are_written_at_a_node_whose_disk_is_full() {
    let cluster = RunningCluster::start_logging(3, store(3, 2, 2), |_| {}).await;
    fill(&cluster).await;
    let keys = keys_of_the_first(&cluster, "k", 300);
    many_keys_are_written(&mut cluster.redis(0), &keys).await;
    assert!(is_full(&cluster));
}

/// Whether the first node's disk has no room for a value.
fn is_full(cluster: &RunningCluster) -> bool {
    let view = cluster.nodes[0].replica().view().get();
    let local = view.store("default").unwrap();
    let stamped = local.stamp(view.route(local, b"full").place, b"full", order("v", None));
    stamped.is_err_and(|failure| failure.code == ErrorCode::DiskFull)
}

/// Leaves the first node no room for a value.
async fn fill(cluster: &RunningCluster) {
    let disk = cluster.disk(0);
    disk.set_capacity(Some(disk.used_bytes()));
    wait_until("the disk is not full", || is_full(cluster)).await;
}

/// Reads keys that the first node lacks, so that it is read last for a moment.
async fn find_behind(door: &mut Connection, keys: &[String]) {
    for key in keys {
        door.ask(&format!("GET {key}"), "$3\r\nold\r\n").await;
    }
}

/// Reads pass over a replica that lacks much, and each read before such a write passed over the very one that refused it:
/// nobody brought it what it lacked, and sixteen attempts ended with *another client changed the key*.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_refused_by_its_first_replica_for_a_missing_record_brings_it_that_record() {
    let cluster = RunningCluster::start((3, 3), store(3, 2, 2), |config| {
        config.repair.collection.interval = Duration::from_millis(20);
        config.repair.antientropy.period = Duration::from_secs(24 * 3600);
    })
    .await;
    let commands: [(&str, &str); 5] = [
        ("SET {a} new XX", "+OK\r\n"),
        ("SET {a} new GET", "$3\r\nold\r\n"),
        ("EXPIRE {a} 1000", ":1\r\n"),
        ("DEL {a}", ":1\r\n"),
        ("DEL {a} {b}", ":2\r\n"),
    ];
    let keys = keys_of_the_first(&cluster, "k", 2 * commands.len());
    let others = keys_of_the_first(&cluster, "other", 20 * (commands.len() + 1));
    keys.iter().chain(&others).for_each(|key| merge_at(&cluster.nodes[1..], key, "old"));
    let only = keys_of_the_first(&cluster, "only", 1).pop().unwrap();
    merge_at(&cluster.nodes[..1], &only, "old");
    // A deletion is forgotten, and it was later than all these.
    let client = cluster.client(ClientOptions::default()).await.store("default").unwrap();
    client.put("deleted", "v", PutOptions::default()).await.unwrap();
    client.delete(Bytes::from("deleted"), DeleteOptions::default()).await.unwrap();
    let forgets = |node: &Arc<Node>| node.replica().epochs().tag() > Epoch(0) && !knows(node, "deleted");
    wait_until("the deletion is remembered", || cluster.nodes.iter().all(forgets)).await;

    let mut door = cluster.redis(1);
    let mut others = others.chunks(20);
    for (command, keys) in commands.into_iter().zip(keys.chunks(2)) {
        find_behind(&mut door, others.next().unwrap()).await;
        assert!(keys.iter().all(|key| !knows(&cluster.nodes[0], key)));
        let (command, expected) = command;
        door.ask(&command.replace("{a}", &keys[0]).replace("{b}", &keys[1]), expected).await;
    }
    // Nor does it learn of what that replica alone has.
    find_behind(&mut door, others.next().unwrap()).await;
    door.ask(&format!("SET {only} new NX"), "$-1\r\n").await;
}

/// A full disk could not be brought what the write replaced, so its node judged by what it lacked: sixteen times *other
/// clients changed the key*, and nobody had.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_without_room_for_a_key_does_not_judge_its_writes() {
    let cluster = RunningCluster::start_logging(3, store(3, 2, 2), |config| {
        config.repair.collection.interval = Duration::from_millis(20);
        config.repair.antientropy.period = Duration::from_secs(24 * 3600);
    })
    .await;
    let (keys, old) = (keys_of_the_first(&cluster, "k", 5), "v".repeat(OLD_BYTES as usize));
    keys.iter().for_each(|key| merge_at(&cluster.nodes[1..], key, &old));
    // A deletion is forgotten, and it was later than all these.
    let client = cluster.client(ClientOptions::default()).await.store("default").unwrap();
    client.put("deleted", "v", PutOptions::default()).await.unwrap();
    client.delete(Bytes::from("deleted"), DeleteOptions::default()).await.unwrap();
    let forgets = |node: &Arc<Node>| node.replica().epochs().tag() > Epoch(0) && !knows(node, "deleted");
    wait_until("the deletion is remembered", || cluster.nodes.iter().all(forgets)).await;
    let view = cluster.nodes[0].replica().view().get();
    let local = view.store("default").unwrap();
    let room = || local.engine().room().unwrap();
    // Room for tombstones and small values, and for none of the old ones.
    let disk = cluster.disk(0);
    let reserve = disk.available_bytes() - room().bytes;
    disk.set_capacity(Some(disk.used_bytes() + reserve + OLD_BYTES / 2));
    wait_until("there is still room", || room().bytes < OLD_BYTES).await;
    let answer = format!("${OLD_BYTES}\r\n{old}\r\n");
    let commands = [
        ("SET {} new XX", "+OK\r\n"),
        ("SET {} new GET", &answer),
        ("GETDEL {}", &answer),
        ("PEXPIRE {} 1", ":1\r\n"),
        ("DEL {}", ":1\r\n"),
    ];
    let mut door = cluster.redis(1);
    for ((command, expected), key) in commands.into_iter().zip(&keys) {
        door.ask(&command.replace("{}", key), expected).await;
    }
    assert!(room().wanted > 0, "no old value had room");
}

/// A value for which a disk has no room that has room for small ones.
const OLD_BYTES: u64 = 64 << 10;

/// A write that a node stamps wins over what it was told of before: its client may have been told of that, too. Clocks
/// differ, so the node has to follow what others stamped, also where it holds nothing of it.
#[tokio::test]
async fn a_node_stamps_later_than_the_versions_it_passed_on_or_read() {
    for passes_on in [true, false] {
        let cluster = RunningCluster::start((2, 2), store(1, 1, 1), |_| {}).await;
        let views: Vec<_> = cluster.nodes.iter().map(|node| node.replica().view().get()).collect();
        let local = |node: usize| views[node].store("default").unwrap();
        // Twenty minutes ahead of this machine.
        let ahead = Timestamp(0).next(WallMillis(OsClock::new().wall().0 + 20 * 60 * 1000));
        local(0).see(ahead);
        let first = &keys_of_the_first(&cluster, "first-", 1)[0];
        let held_by_the_second = |key: &String| {
            views[1].route(local(1), key.as_bytes()).preference.replicas()[0]
                == cluster.nodes[1].replica().node()
        };
        let second = (0..).map(|number| format!("second-{number}")).find(held_by_the_second).unwrap();
        let mut door = cluster.redis(1);
        match passes_on {
            true => door.ask(&format!("SET {first} v"), "+OK\r\n").await,
            false => {
                cluster.redis(0).ask(&format!("SET {first} v"), "+OK\r\n").await;
                door.ask(&format!("GET {first}"), "$1\r\nv\r\n").await;
            }
        }
        door.ask(&format!("SET {second} w"), "+OK\r\n").await;
        let place = views[1].route(local(1), second.as_bytes()).place;
        let stamped = local(1).get(place, second.as_bytes()).unwrap().timestamp_max();
        assert!(stamped > ahead, "passes on: {passes_on}");
    }
}
