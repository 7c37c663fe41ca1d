//! A node whose session with the coordination service ends.

use std::time::Duration;

use coordination::documents::{self, active_node_path};
use coordination::memory::MemorySession;
use coordination::{CoordinationService, Expected, SessionId};
use model::{Generation, NodeId};

use crate::cluster::{RunningCluster, store};

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
async fn a_node_that_starts_while_the_service_is_away_is_remembered_under_its_incarnation_once_it_is_back() {
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
async fn a_node_that_starts_and_is_served_an_older_document_goes_by_its_own_newer_copy() {
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
