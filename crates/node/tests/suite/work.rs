//! What a node counts as work: as a replica, whoever asks, and as a coordinator of its clients.

use std::sync::Arc;
use std::time::Duration;

use client::{ClientOptions, PutOptions};
use model::NodeId;
use node::Node;
use protocol::report::{LoadReport, Parts, WorkDone};

use crate::cluster::{PATIENCE, RunningCluster, store};

const KEYS: u64 = 200;

fn load(node: &Node) -> LoadReport {
    node.report(Parts::LOAD).load.unwrap()
}

/// Waits until each node has merged or stamped this many writes: the last of three replicas is not waited for by a put.
async fn until_written(nodes: &[Arc<Node>], writes: u64) -> Vec<LoadReport> {
    let settled = async {
        loop {
            let loads: Vec<LoadReport> = nodes.iter().map(|node| load(node)).collect();
            let written = |load: &LoadReport| load.work().puts + load.work().stamped;
            if loads.iter().all(|load| written(load) >= writes) {
                return loads;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, settled).await.expect("every replica gets every write")
}

/// A client that knows the ring has its puts stamped by the first of each list.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_replica_counts_its_own_work_and_the_first_of_each_list_stamps() {
    let cluster = RunningCluster::start((3, 3), store(3, 2, 2), |_| {}).await;
    let client = cluster.client(ClientOptions { deadline: PATIENCE, ..ClientOptions::default() }).await;
    let client = client.store("default").unwrap();
    for number in 0..KEYS {
        client.put(format!("key-{number}"), "value", PutOptions::default()).await.unwrap();
    }
    let loads = until_written(&cluster.nodes, KEYS).await;
    let ring = cluster.nodes[0].replica().view().get().cluster().ring.clone();
    for (own, load) in (1..).map(NodeId).zip(&loads) {
        assert_eq!((load.partitions.len(), load.rest_partitions), (8, 0), "{own} has a part in all");
        for told in &load.partitions {
            let first = ring.get(told.partition).unwrap().nodes[0];
            let WorkDone { puts, stamped, gets, .. } = told.work;
            assert_eq!((stamped > 0, puts > 0, gets), (first == own, first != own, 0), "{own}: {told:?}");
            assert!(told.bytes > 0, "{own}: {told:?}");
        }
        // The node that stamps drives the others.
        assert_eq!((load.coordinated_puts, load.coordinated_gets), (load.work().stamped, 0), "{own}");
        assert_eq!(load.own_stamped, 0, "{own} stamps because of its place");
        assert_eq!((load.workers, load.processors > 0.0), (1, true));
        assert!(load.ran_us.is_none(), "this test's threads are no workers: {load:?}");
        assert!(load.disk_available_bytes.is_some());
    }
    let stamped: u64 = loads.iter().map(|load| load.work().stamped).sum();
    assert_eq!(stamped, KEYS, "one stamps each");
}

/// A client that does not know it has them stamped where it asks, if that is a replica.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_node_coordinates_for_its_clients_and_all_replicas_work() {
    let cluster = RunningCluster::start((3, 3), store(3, 2, 2), |_| {}).await;
    let mut redis = cluster.redis(1);
    for number in 0..KEYS {
        redis.send(format!("SET key-{number} value\r\n").as_bytes()).await;
        redis.expect("+OK\r\n").await;
    }
    let written = until_written(&cluster.nodes, KEYS).await;
    for number in 0..KEYS {
        redis.send(format!("GET key-{number}\r\n").as_bytes()).await;
        redis.expect("$5\r\nvalue\r\n").await;
    }
    let stamped: Vec<u64> = written.iter().map(|load| load.work().stamped).collect();
    assert_eq!(stamped, [0, KEYS, 0]);
    let loads: Vec<LoadReport> = cluster.nodes.iter().map(|node| load(node)).collect();
    let gets: u64 = loads.iter().map(|load| load.work().gets).sum();
    assert!(gets >= 2 * KEYS, "R replicas answer each get: {gets}");
    let coordinated = loads.iter().map(|load| (load.coordinated_gets, load.coordinated_puts));
    assert_eq!(coordinated.collect::<Vec<_>>(), [(0, 0), (KEYS, KEYS), (0, 0)]);
    // It asks itself first and stamps itself, whatever its place.
    let own = loads.iter().map(|load| (load.work().own_gets, load.own_stamped));
    assert_eq!(own.collect::<Vec<_>>(), [(0, 0), (KEYS, KEYS), (0, 0)]);
    let text = cluster.nodes[1].metrics().text();
    for line in [
        format!("tontine_coordinated_gets_total {KEYS}\n"),
        format!("tontine_coordinated_puts_total {KEYS}\n"),
        format!("tontine_replica_gets_total {}\n", loads[1].work().gets),
        format!("tontine_stamped_puts_total {KEYS}\n"),
    ] {
        assert!(text.contains(&line), "{line} is not in {text}");
    }
}

/// With one copy a node answers at once, without its coordinator.
#[tokio::test]
async fn work_answered_at_once_counts_and_what_a_node_reads_for_itself_does_not() {
    let cluster = RunningCluster::start((1, 1), store(1, 1, 1), |_| {}).await;
    let mut redis = cluster.redis(0);
    redis.send(b"SET k v\r\nSET k w\r\nGET k\r\nGET nothing\r\nDEL k\r\nMGET a b c\r\n").await;
    redis.expect("+OK\r\n+OK\r\n$1\r\nw\r\n$-1\r\n:1\r\n*3\r\n$-1\r\n$-1\r\n$-1\r\n").await;
    let told = load(&cluster.nodes[0]);
    // A delete reads first.
    assert_eq!(told.work(), WorkDone { gets: 6, puts: 0, stamped: 3, own_gets: 6 });
    assert_eq!((told.coordinated_gets, told.coordinated_puts), (6, 3));
    redis.send(b"KEYS *\r\nDBSIZE\r\n").await;
    redis.expect("*0\r\n:0\r\n").await;
    cluster.nodes[0].antientropy().scrub_now().await;
    assert_eq!(load(&cluster.nodes[0]).work(), told.work());
}
