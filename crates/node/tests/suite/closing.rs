//! What Redis clients notice of a node that stops.

use std::time::Duration;

use crate::support::{Connection, lonely_node};

const STOPPING: &str = "-SHUTTINGDOWN shutting-down: this node is stopping; try another node\r\n";

/// Each call of the classes in the guides raised an error, once the node had begun to stop.
#[tokio::test]
async fn a_connection_ends_after_its_next_answer_once_the_node_stops() {
    let (node, worker) = lonely_node(|_| {}).await;
    let mut redis = Connection::to(node.clone(), &worker);
    redis.ask("SET k v", "+OK\r\n").await;
    node.leave().await;
    redis.ask("GET k", "$1\r\nv\r\n").await;
    assert!(redis.is_closed().await);
    let mut pipelined = Connection::to(node.clone(), &worker);
    pipelined.send(b"MGET k\r\nEXISTS k\r\nGET k\r\n").await;
    pipelined.expect("*1\r\n$1\r\nv\r\n:1\r\n$1\r\nv\r\n").await;
    assert!(pipelined.is_closed().await, "all that came with the first command was answered");
}

#[tokio::test]
async fn a_quiet_connection_ends_between_two_commands() {
    let (node, worker) = lonely_node(|_| {}).await;
    let (mut quiet, mut half) =
        (Connection::to(node.clone(), &worker), Connection::to(node.clone(), &worker));
    quiet.ask("SET k v", "+OK\r\n").await;
    half.send(b"EXIS").await;
    node.leave().await;
    let stopping = tokio::spawn(async move { node.settle().await });
    assert!(quiet.is_closed().await);
    assert!(!stopping.is_finished(), "half a command is waited for");
    half.send(b"TS k\r\n").await;
    half.expect(":1\r\n").await;
    assert!(half.is_closed().await);
    stopping.await.unwrap();
}

#[tokio::test]
async fn a_command_that_comes_too_late_is_told_that_nothing_was_done() {
    let (node, worker) = lonely_node(|_| {}).await;
    let mut half = Connection::to(node.clone(), &worker);
    half.ask("SET k v", "+OK\r\n").await;
    half.send(b"DE").await;
    node.leave().await;
    node.settle().await;
    half.send(b"L k\r\n").await;
    half.expect(STOPPING).await;
    assert!(half.is_closed().await);
}

#[tokio::test]
async fn a_door_without_clients_does_not_keep_a_node_from_stopping() {
    let (node, worker) = lonely_node(|_| {}).await;
    let door = worker.door.clone();
    let closing = tokio::spawn(async move { door.closing().await });
    node.leave().await;
    closing.await.unwrap();
    worker.door.closing().await;
    let began = tokio::time::Instant::now();
    node.settle().await;
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
}
