//! Many keys whose values together are longer than any message.

use bytes::Bytes;
use client::ClientOptions;
use wire::messages::RequestOptions;

use crate::cluster::{PATIENCE, RunningCluster, store};
use crate::support::{Connection, lonely_node};

const VALUE_BYTES: usize = 15 * 1024 * 1024;

fn entries() -> Vec<(String, Bytes)> {
    (0..5_u8).map(|n| (format!("big{n}"), Bytes::from(vec![b'0' + n; VALUE_BYTES]))).collect()
}

/// A frame takes 64 MiB: before, a node refused to answer such a multi-get, and the client could not send such a
/// multi-put at all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_multi_put_and_a_multi_get_may_be_longer_than_a_frame() {
    let cluster = RunningCluster::start((3, 3), store(3, 2, 2), |_| {}).await;
    let options = ClientOptions { deadline: PATIENCE, hedge_after: PATIENCE, ..ClientOptions::default() };
    let store = cluster.client(options).await.store("default").unwrap();
    let options = RequestOptions::default();
    for written in store.multi_put(entries(), &options).await.unwrap() {
        assert!(!written.unwrap().sloppy);
    }
    let keys = entries().into_iter().map(|(key, _)| key);
    let found = store.multi_get(keys, &options).await.unwrap();
    for (found, (key, value)) in found.into_iter().zip(entries()) {
        let found = found.unwrap();
        assert!(found.value() == Some(value), "{key}");
        assert!(!found.is_sloppy() && found.replicas_answered() >= 2);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_clients_are_told_the_limit_that_a_multi_get_exceeds_and_can_count_its_keys() {
    let cluster = RunningCluster::start((1, 1), store(1, 1, 1), |_| {}).await;
    let options = ClientOptions { deadline: PATIENCE, ..ClientOptions::default() };
    let store = cluster.client(options).await.store("default").unwrap();
    for written in store.multi_put(entries(), &RequestOptions::default()).await.unwrap() {
        written.unwrap();
    }
    let mut redis = cluster.redis(0);
    redis
        .ask(
            "MGET big0 big1 big2 big3 big4",
            "-ERR frame-too-long: the values before this key fill the answer's limit of 62914560 bytes; ask for fewer keys\r\n",
        )
        .await;
    redis.ask("EXISTS big0 big1 big2 big3 big4 big5", ":5\r\n").await;
    redis.send(b"MGET big3 none\r\n").await;
    redis.expect(&format!("*2\r\n${VALUE_BYTES}\r\n{}\r\n$-1\r\n", "3".repeat(VALUE_BYTES))).await;
}

/// A pipeline of gets of large values held gigabytes for a client that does not read.
#[tokio::test]
async fn a_pipeline_of_large_answers_stays_within_its_bound_and_is_answered_in_order() {
    const VALUE_BYTES: usize = 8 << 20;
    const HELD_BYTES_MAX: usize = (64 << 20) + VALUE_BYTES + 1000;
    let (node, worker) = lonely_node(|_| {}).await;
    let mut deaf = Connection::to(node.clone(), &worker);
    let mut set = bytes::BytesMut::new();
    wire::resp::Command::encode(&[b"SET", b"large", &vec![b'a'; VALUE_BYTES]], &mut set);
    deaf.send(&set).await;
    deaf.expect("+OK\r\n").await;
    // Some travel together, and some do not. A write behind them waits until they are answered, also where they are read
    // again, and those behind it see it.
    let gets = "GET large\r\n".repeat(20) + &"GETRANGE large 0 -1\r\n".repeat(20);
    deaf.send(format!("{gets}SET large b\r\n{gets}").as_bytes()).await;
    let mut other = Connection::to(node.clone(), &worker);
    let mut most = 0;
    for _ in 0..100 {
        other.send(b"CLIENT LIST ID 1\r\n").await;
        let line = other.value().await;
        let held = line.split(' ').find_map(|field| field.strip_prefix("omem=")).expect("a field");
        most = most.max(held.parse::<usize>().unwrap());
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert!((4 * VALUE_BYTES..=HELD_BYTES_MAX).contains(&most), "{most} bytes are held");
    let answers = async {
        for _ in 0..40 {
            deaf.expect(&format!("${VALUE_BYTES}\r\n")).await;
            let value = deaf.bytes(VALUE_BYTES + 2).await;
            assert!(value[..VALUE_BYTES].iter().all(|&byte| byte == b'a'));
        }
        deaf.expect("+OK\r\n").await;
        deaf.expect(&"$1\r\nb\r\n".repeat(40)).await;
    };
    tokio::time::timeout(PATIENCE, answers).await.expect("all are answered");
}
