//! How soon after a swap nodes and clients follow it.

use std::time::{Duration, Instant};

use client::{Client, ClientError, ClientOptions};
use model::ArtifactOrder;
use model::{ArtifactNumber, StoreName};
use runtime::Ports;

use super::{build_of, in_words, number_of};
use crate::cluster::{Cluster, PATIENCE};
use crate::observe::addresses;

/// Swaps that are timed; the first is for warming up.
const SWAPS: usize = 21;
/// Replicas honour the artifact from before for 15 seconds; clients need not wait for that.
const HEARD_TIME_MAX: Duration = Duration::from_secs(10);

async fn client(cluster: &Cluster) -> Client {
    let options = ClientOptions { deadline: PATIENCE, ..ClientOptions::default() };
    Client::connect(&addresses(cluster), Ports::os().unwrap(), options).await.unwrap()
}

/// Reads until the value is of this artifact; how many gets that took.
async fn await_number(client: &Client, number: u64) -> usize {
    let (store, begun) = (client.store("words").unwrap(), Instant::now());
    for gets in 1.. {
        let value = store.get("word7").await.unwrap().value();
        let prefix = format!("{number}:");
        if value.is_some_and(|value| value.starts_with(prefix.as_bytes())) {
            return gets;
        }
        assert!(begun.elapsed() < HEARD_TIME_MAX, "it has not heard of artifact {number}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    unreachable!()
}

/// Orders a swap once all nodes have said that they hold what it serves, by the document of the swap before; when that
/// order was sent.
async fn order_until_staged(client: &Client, order: &ArtifactOrder) -> Instant {
    let begun = Instant::now();
    loop {
        let ordered = Instant::now();
        match client.order_artifacts(order).await {
            Ok(_) => return ordered,
            Err(ClientError::Refused { refusal, .. })
                if refusal.code() == "not-staged" && begun.elapsed() < PATIENCE =>
            {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

fn median(mut times: Vec<Duration>) -> (Duration, Duration) {
    times.sort();
    (times[times.len() / 2], *times.last().unwrap())
}

/// A client that had read before the first push once never heard of it.
#[test]
fn nodes_and_clients_learn_of_a_swap_within_moments() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = Cluster::with(3, &[]);
    cluster.run(&["store", "create", "words", "--read-only"]).exits(0);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (reader, user) = (client(&cluster).await, client(&cluster).await);
        assert_eq!(reader.store("words").unwrap().get("word7").await.unwrap().value(), None);
        for number in [1, 2] {
            cluster.run(&["artifact", "push", &build_of(folder.path(), number, 100)]).exits(0);
            await_number(&reader, number).await;
        }
        let mut doors = [1, 2, 3].map(|node| in_words(&cluster.resp(node)));
        let (mut nodes, mut clients) = (Vec::new(), Vec::new());
        for swap in 0..SWAPS {
            let number = 1 + swap as u64 % 2;
            let order = ArtifactOrder::Swap {
                store: StoreName::new("words").unwrap(),
                number: ArtifactNumber(number),
                replicas: None,
                first: false,
            };
            let ordered = order_until_staged(&user, &order).await;
            for door in &mut doors {
                while number_of(&door.call(&[b"GET", b"word7"])) != number {
                    assert!(ordered.elapsed() < PATIENCE, "a node has not heard of artifact {number}");
                }
            }
            nodes.push(ordered.elapsed());
            let gets = await_number(&reader, number).await;
            assert!(gets > 1 || swap == 0, "it reads by the document that it knows");
            clients.push(ordered.elapsed());
        }
        let ((nodes, nodes_max), (clients, clients_max)) =
            (median(nodes.split_off(1)), median(clients.split_off(1)));
        println!("from the order to the last of 3 nodes: {nodes:?}, at most {nodes_max:?}");
        println!("from the order to a client of the library: {clients:?}, at most {clients_max:?}");
    });
}
