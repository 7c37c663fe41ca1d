//! Tontine's own documents, on the service in memory.

use std::sync::Arc;

use bytes::Bytes;
use coordination::documents::{
    ActiveNode, PublishError, ReadError, RegisterError, active_node_path, active_nodes, cluster_path,
    publish_cluster, read_cluster, register, watch_cluster,
};
use coordination::memory::MemoryService;
use coordination::{CoordinationError, CoordinationService, Expected};
use model::{Cluster, Generation, Node, NodeId, Ring, Zone};

fn node(id: u32, port: u16) -> Node {
    let native = format!("127.0.0.1:{port}");
    Node::new(NodeId(id), Zone("a".into()), native, None)
}

fn active(id: u32, port: u16, incarnation: u64) -> ActiveNode {
    ActiveNode::new(node(id, port), incarnation)
}

fn cluster(generation: u64) -> Cluster {
    let ring = Ring::equal_slices(8, &[(NodeId(1), Zone("a".into()))]);
    Cluster {
        generation: Generation(generation),
        generation_accepted_min: Generation(generation.saturating_sub(1)),
        ..Cluster::new("test", vec![node(1, 7001)], ring, Vec::new())
    }
}

#[tokio::test]
async fn active_nodes_are_listed_until_their_sessions_end() {
    let service = MemoryService::new();
    let (first, second) = (service.open(), service.open());
    assert_eq!(active_nodes(&first).await.unwrap().0, []);
    register(&first, &active(2, 7002, 1)).await.unwrap();
    register(&second, &active(10, 7010, 5)).await.unwrap();
    let (nodes, watch) = active_nodes(&first).await.unwrap();
    assert_eq!(nodes, [active(2, 7002, 1), active(10, 7010, 5)]);
    service.kill(second.session());
    watch.fired().await.unwrap();
    assert_eq!(active_nodes(&first).await.unwrap().0, [active(2, 7002, 1)]);
}

#[tokio::test]
async fn two_nodes_with_one_id_are_told_so() {
    let service = MemoryService::new();
    let (first, second) = (service.open(), service.open());
    register(&first, &active(1, 7001, 1)).await.unwrap();
    let error = register(&second, &active(1, 7999, 1)).await.unwrap_err();
    let other = Some(Box::new(active(1, 7001, 1)));
    assert_eq!(error, RegisterError::AlreadyActive { id: NodeId(1), other });
    let said = error.to_string();
    assert!(said.contains("two nodes with one id") && said.contains("127.0.0.1:7001"), "{said}");
    // A process that was killed before its directory knew its incarnation cannot be told from another node.
    assert!(said.contains("last process") && said.contains("try again in 10 s"), "{said}");

    // The same session may say something new about its node.
    register(&first, &active(1, 7005, 2)).await.unwrap();
    assert_eq!(active_nodes(&second).await.unwrap().0, [active(1, 7005, 2)]);
    service.kill(first.session());
    register(&second, &active(1, 7999, 1)).await.unwrap();
    assert_eq!(active_nodes(&second).await.unwrap().0, [active(1, 7999, 1)]);
}

#[tokio::test]
async fn only_newer_cluster_documents_are_stored() {
    let service = MemoryService::new();
    let (first, second) = (service.open(), service.open());
    assert_eq!(read_cluster(&first).await.unwrap(), None);
    publish_cluster(&first, &cluster(3)).await.unwrap();
    for late in [1, 3] {
        let error = publish_cluster(&second, &cluster(late)).await.unwrap_err();
        let (stored, offered) = (Generation(3), Generation(late));
        assert_eq!(error, PublishError::Superseded { stored, offered });
    }
    publish_cluster(&second, &cluster(7)).await.unwrap();
    assert_eq!(read_cluster(&first).await.unwrap(), Some(cluster(7)));

    let foreign = Cluster { name: "foreign".into(), ..cluster(8) };
    let error = publish_cluster(&second, &foreign).await.unwrap_err();
    assert!(matches!(error, PublishError::OtherCluster { .. }), "{error}");
    assert_eq!(read_cluster(&first).await.unwrap(), Some(cluster(7)));
}

#[tokio::test]
async fn a_cluster_document_that_nobody_could_read_is_not_stored() {
    let session = MemoryService::new().open();
    publish_cluster(&session, &cluster(1)).await.unwrap();
    let without = |cluster: Cluster| Cluster { nodes: cluster.nodes[1..].to_vec(), ..cluster };
    let error = publish_cluster(&session, &without(cluster(2))).await.unwrap_err();
    assert!(matches!(error, PublishError::Invalid { offered: Generation(2), .. }), "{error}");
    assert_eq!(read_cluster(&session).await.unwrap(), Some(cluster(1)));
}

#[tokio::test]
async fn followers_get_every_newer_cluster_document_and_only_those() {
    let service = MemoryService::new();
    let (writer, reader) = (service.open(), Arc::new(service.open()));
    publish_cluster(&writer, &cluster(1)).await.unwrap();
    let mut all = watch_cluster(reader.clone(), None);
    let mut newer = watch_cluster(reader, Some(Generation(1)));
    assert_eq!(all.next().await.unwrap(), cluster(1));
    let second = cluster(2);
    let (published, seen) = tokio::join!(publish_cluster(&writer, &second), newer.next());
    published.unwrap();
    assert_eq!(seen.unwrap(), second);
    publish_cluster(&writer, &cluster(3)).await.unwrap();
    assert_eq!(all.next().await.unwrap(), cluster(3), "a slow follower gets the newest");
    assert_eq!(newer.next().await.unwrap(), cluster(3));

    let mut waiting = Box::pin(newer.next());
    assert!(futures_util::poll!(&mut waiting).is_pending());
    writer.set(&cluster_path(), Bytes::from_static(b"{"), Expected::Any).await.unwrap();
    let error = waiting.await.unwrap_err();
    assert!(matches!(error, ReadError::Malformed { .. }), "{error}");
    let refused = publish_cluster(&writer, &cluster(4)).await.unwrap_err();
    assert!(matches!(refused, PublishError::Read(ReadError::Malformed { .. })), "{refused}");
    writer.delete(&cluster_path(), Expected::Any).await.unwrap();
    publish_cluster(&writer, &cluster(4)).await.unwrap();
    assert_eq!(newer.next().await.unwrap(), cluster(4));
}

#[tokio::test]
async fn followers_are_told_of_a_lost_session_and_of_an_unavailable_service() {
    let service = MemoryService::new();
    let session = Arc::new(service.open());
    let mut follower = watch_cluster(session.clone(), None);
    service.set_available(false);
    let error = follower.next().await.unwrap_err();
    assert!(matches!(error, ReadError::Coordination(CoordinationError::Unavailable { .. })), "{error}");
    service.set_available(true);
    publish_cluster(&*session, &cluster(1)).await.unwrap();
    assert_eq!(follower.next().await.unwrap(), cluster(1), "a follower goes on when the service is back");
    service.kill(session.session());
    let lost = ReadError::Coordination(CoordinationError::SessionLost);
    assert_eq!(follower.next().await.unwrap_err(), lost);
}

/// Operators and other programs read these bytes.
#[tokio::test]
async fn a_registration_is_readable_json() {
    let session = MemoryService::new().open();
    register(&session, &active(1, 7001, 2)).await.unwrap();
    let data = session.get(&active_node_path(NodeId(1))).await.unwrap().data;
    let json = r#"{"node":{"id":1,"zone":"a","native":"127.0.0.1:7001","resp":null},"incarnation":2,"reads_form":8}"#;
    assert_eq!(data, json);
}
