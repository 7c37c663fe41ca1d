//! A node whose session with the coordination service ends.

use std::time::Duration;

use coordination::documents::{self, active_node_path};
use coordination::memory::MemorySession;
use coordination::{CoordinationService, SessionId};
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
