//! Tontine's own documents, on the service in memory.

use std::sync::Arc;

use bytes::Bytes;
use coordination::documents::{
    ActiveNode, NoStoreError, PublishError, ReadError, RegisterError, active_node_path, active_nodes,
    cluster_path, create_store, publish_cluster, read_cluster, readdress, register, watch_cluster,
};
use coordination::memory::{MemoryFaults, MemoryService};
use coordination::{CoordinationError, CoordinationService, Expected};
use model::{Cluster, Consistency, Generation, Node, NodeId, Ring, Store, StoreName, Zone};

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
    let json = r#"{"node":{"id":1,"zone":"a","native":"127.0.0.1:7001","resp":null},"incarnation":2,"reads_form":5}"#;
    assert_eq!(data, json);
}

/// A store that was answered as created exists, and one that was refused for certain does not, whatever the service
/// leaves without an answer.
#[tokio::test]
async fn a_store_is_created_once_although_the_service_confirms_nothing() {
    let consistency = Consistency { replicas: 1, reads_required: 1, writes_required: 1 };
    let store = Store::new(StoreName::new("carts").unwrap(), consistency).unwrap();
    let (mut created, mut doubtful) = (0, 0);
    for seed in 0..300 {
        let service = MemoryService::new();
        let session = service.open();
        publish_cluster(&session, &cluster(1)).await.unwrap();
        service.set_faults(MemoryFaults { seed, indeterminate_per_mille: 700, ..MemoryFaults::default() });
        let answer = create_store(&session, &store, None).await;
        service.set_faults(MemoryFaults::default());
        let stored = read_cluster(&session).await.unwrap().unwrap();
        match answer {
            Ok(answered) => {
                created += 1;
                assert_eq!(answered.stores, std::slice::from_ref(&store), "seed {seed}");
                assert_eq!(stored, answered, "seed {seed}: nothing else was changed");
                assert_eq!(stored.generation, Generation(2), "seed {seed}");
            }
            Err(NoStoreError::Publish(PublishError::Read(ReadError::Coordination(
                CoordinationError::Indeterminate { .. },
            )))) => doubtful += 1,
            Err(error) => panic!("seed {seed}: {error}"),
        }
    }
    assert!(created > 100 && doubtful > 10, "{created} created, {doubtful} in doubt");
    let again = MemoryService::new().open();
    publish_cluster(&again, &cluster(1)).await.unwrap();
    create_store(&again, &store, None).await.unwrap();
    let exists = create_store(&again, &store, None).await.unwrap_err();
    assert_eq!(exists.to_string(), "store carts exists already");
}

/// An operator restored the service from an older copy. What was written then took the place of documents that nodes knew:
/// two histories met at one number, `doctor` called the cluster healthy, and a store was gone.
#[tokio::test]
async fn nobody_changes_a_document_that_is_older_than_what_they_go_by() {
    let session = MemoryService::new().open();
    publish_cluster(&session, &cluster(3)).await.unwrap();
    let consistency = Consistency { replicas: 1, reads_required: 1, writes_required: 1 };
    let store = Store::new(StoreName::new("carts").unwrap(), consistency).unwrap();
    let other = cluster(2).with_store(store.clone()).unwrap();
    assert_eq!(other.generation, Generation(3), "another one of the same number");
    for known in [cluster(4), other] {
        let older = PublishError::Older { stored: Generation(3), known: known.generation };
        let refused = create_store(&session, &store, Some(&known)).await;
        assert_eq!(refused, Err(NoStoreError::Publish(older.clone())));
        let me = cluster(3).nodes.first().cloned().unwrap();
        let refused = readdress(&session, &me, Some(&known)).await.unwrap_err();
        assert!(refused.is_older(), "{refused}");
        assert_eq!(read_cluster(&session).await.unwrap(), Some(cluster(3)), "nothing was changed");
    }
    create_store(&session, &store, Some(&cluster(3))).await.unwrap();
}
