//! A node whose session with the coordination service ends.

use std::time::Duration;

use bytes::Bytes;
use client::ClientOptions;
use coordination::documents::{self, active_node_path, office};
use coordination::memory::MemorySession;
use coordination::{CoordinationService, CreateMode, Expected, SessionId};
use model::order::{Done, Order, OrderOutcome, OrderRefusal};
use model::{Generation, NodeId, Weight};

use crate::cluster::{PATIENCE, RunningCluster, store};

/// Who has registered node 1, once that is somebody else than `ended`.
async fn owner_after(observer: &MemorySession, ended: Option<SessionId>) -> SessionId {
    loop {
        if let Ok(found) = observer.get(&active_node_path(NodeId(1))).await
            && found.stat.owner != ended
        {
            return found.stat.owner.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_node_whose_session_ends_registers_under_another_and_goes_on_following_the_cluster() {
    let cluster = RunningCluster::start((1, 1), store(1, 1, 1), |_| {}).await;
    let observer = cluster.service.open();
    let mut ended = None;
    for generation in 2..=3 {
        let owner = owner_after(&observer, ended).await;
        cluster.service.kill(owner);
        owner_after(&observer, Some(owner)).await;
        ended = Some(owner);
        let mut document = documents::read_cluster(&observer).await.unwrap().unwrap();
        document.generation = Generation(generation);
        documents::publish_cluster(&observer, &document).await.unwrap();
        while cluster.nodes[0].replica().view().generation() < Generation(generation) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    cluster.nodes[0].stop().await.unwrap();
    assert!(observer.get(&active_node_path(NodeId(1))).await.is_err(), "a stopped node is not active");
}

/// A node that restarts while the whole coordination service is away serves from its own copy of the documents, and
/// nobody would know of it if it did not register later.
#[tokio::test]
async fn a_node_that_starts_while_the_service_is_away_registers_once_it_is_back() {
    let mut cluster = RunningCluster::start((1, 1), store(1, 1, 1), |_| {}).await;
    let observer = cluster.service.open();
    owner_after(&observer, None).await;
    cluster.stop(0).await;
    cluster.service.set_available(false);
    cluster.start_again(0).await;
    assert_eq!(cluster.nodes[0].replica().view().generation(), Generation(1), "its own copy");
    cluster.service.set_available(true);
    assert!(observer.get(&active_node_path(NodeId(1))).await.is_err(), "nothing has registered it so far");
    owner_after(&observer, None).await;
    let mut document = documents::read_cluster(&observer).await.unwrap().unwrap();
    document.generation = Generation(2);
    documents::publish_cluster(&observer, &document).await.unwrap();
    while cluster.nodes[0].replica().view().generation() < Generation(2) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Otherwise an older copy of its directory would pass for one whose process was ended: nothing that this process
/// acknowledged would be brought in again.
#[tokio::test]
async fn a_node_that_starts_during_an_outage_is_remembered_under_its_incarnation_afterwards() {
    let mut cluster = RunningCluster::start((1, 1), store(1, 1, 1), |_| {}).await;
    let observer = cluster.service.open();
    owner_after(&observer, None).await;
    cluster.stop(0).await;
    cluster.service.set_available(false);
    cluster.start_again(0).await;
    let incarnation = cluster.nodes[0].incarnation();
    cluster.service.set_available(true);
    let told = || async { documents::read_member(&observer, NodeId(1)).await.unwrap().unwrap().incarnation };
    assert_ne!(told().await, incarnation, "nothing has told it so far");
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    while told().await != incarnation {
        assert!(tokio::time::Instant::now() < deadline, "{} is remembered, not {incarnation}", told().await);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// As after a restore of the ensemble from a backup, or from a server of it that is behind.
#[tokio::test]
async fn a_starting_node_that_is_served_an_older_document_follows_its_newer_copy() {
    let mut cluster = RunningCluster::start((1, 1), store(1, 1, 1), |_| {}).await;
    let observer = cluster.service.open();
    owner_after(&observer, None).await;
    let backup = observer.get(&documents::cluster_path()).await.unwrap();
    let mut document = documents::read_cluster(&observer).await.unwrap().unwrap();
    document.generation = Generation(2);
    documents::publish_cluster(&observer, &document).await.unwrap();
    while cluster.nodes[0].replica().view().adopted() < Generation(2) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    cluster.stop(0).await;
    observer.set(&documents::cluster_path(), backup.data, Expected::Any).await.unwrap();
    cluster.start_again(0).await;
    assert_eq!(cluster.nodes[0].replica().view().generation(), Generation(2));
    cluster.stop(0).await;
    cluster.service.set_available(false);
    cluster.start_again(0).await;
    assert_eq!(cluster.nodes[0].replica().view().generation(), Generation(2), "nor was the copy replaced");
}

fn weigh(weight: u32) -> Order {
    Order::Weigh { node: NodeId(1), weight: Weight::new(weight).unwrap() }
}

/// As after a restore of the ensemble from a backup: what followed the older document would be another one under a number
/// that the node knows. A headmaster that cannot reach the node does not find that.
#[tokio::test]
async fn a_node_takes_no_order_for_a_document_that_is_older_than_its_own() {
    let cluster = RunningCluster::start((1, 1), store(1, 1, 1), |_| {}).await;
    let observer = cluster.service.open();
    let client = cluster.client(ClientOptions::default()).await;
    let backup = observer.get(&documents::cluster_path()).await.unwrap();
    let mut document = documents::read_cluster(&observer).await.unwrap().unwrap();
    document.generation = Generation(2);
    documents::publish_cluster(&observer, &document).await.unwrap();
    while cluster.nodes[0].replica().view().adopted() < Generation(2) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    document.nodes[0].weight = Weight::new(300).unwrap();
    let other = serde_json::to_vec(&document).unwrap().into();
    for stored in [backup.data, other] {
        observer.set(&documents::cluster_path(), stored, Expected::Any).await.unwrap();
        let answer = client.order(&weigh(200), "test", PATIENCE).await.unwrap().answer;
        let restored = OrderRefusal::Restored { node: NodeId(1), generation: Generation(2) };
        assert_eq!(answer, Some(restored.into()));
    }
    let ordered = documents::orders::oldest_waiting(&observer, &mut Default::default()).await;
    assert_eq!(ordered, Ok(None), "nothing was ordered");
}

/// The node could not read the answer and said so at once; the client took that for the whole wait, and the order for one
/// without an answer.
#[tokio::test]
async fn an_order_waits_for_its_answer_even_if_the_session_of_the_node_ends() {
    let cluster = RunningCluster::start((1, 1), store(1, 1, 1), |_| {}).await;
    let observer = cluster.service.open();
    let candidate = documents::headmaster_path().child(office::CANDIDATE).unwrap();
    observer.create(&documents::headmaster_path(), Bytes::new(), CreateMode::Persistent).await.unwrap();
    let candidate = observer.create(&candidate, Bytes::new(), CreateMode::EphemeralSequential).await.unwrap();
    let client = cluster.client(ClientOptions::default()).await;
    let (order, wait) = (weigh(200), Duration::from_secs(8));
    let given = async { client.order(&order, "test", wait).await.unwrap().answer };
    let answer = OrderOutcome::Done {
        done: Done::NodeWeighs { node: NodeId(1), weight: Weight::new(200).unwrap() },
        plan: None,
        generation: Generation(1),
    };
    let answered = async {
        let number = loop {
            let waiting = documents::orders::oldest_waiting(&observer, &mut Default::default()).await;
            if let Some(given) = waiting.unwrap() {
                break given.number;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        // It watches the order by now.
        tokio::time::sleep(Duration::from_millis(200)).await;
        let owner = owner_after(&observer, None).await;
        cluster.service.kill(owner);
        owner_after(&observer, Some(owner)).await;
        documents::orders::answer(&observer, number, &answer).await.unwrap();
    };
    assert_eq!(tokio::join!(given, answered).0, Some(answer.clone()));
    drop(candidate);
}
