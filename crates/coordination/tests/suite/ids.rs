//! Ids of nodes, and what changes in the cluster document without a plan.

use std::collections::BTreeSet;

use coordination::documents::{
    ActiveNode, AddressTaken, Member, MembershipError, ReadError, admit, ids_path, prepare_ids,
    publish_cluster, read_cluster, read_ids, readdress, register, take_id, write_member,
};
use coordination::memory::{MemoryFaults, MemoryService};
use coordination::{CoordinationError, CoordinationService, Expected};
use futures_util::future::join_all;
use model::{Cluster, Generation, Node, NodeId, Ring, Zone};

fn node(id: u32, native: &str) -> Node {
    Node::new(NodeId(id), Zone("a".into()), native, None)
}

fn cluster(nodes: &[u32]) -> Cluster {
    let members: Vec<_> = nodes.iter().map(|id| (NodeId(*id), Zone("a".into()))).collect();
    let nodes = nodes.iter().map(|id| node(*id, &format!("h{id}:1"))).collect();
    Cluster::new("test", nodes, Ring::equal_slices(8, &members), Vec::new())
}

/// Takers whose sessions end and whose writes stay unanswered give up and begin anew, as processes do that are killed. Others
/// come between the calls of one.
#[tokio::test]
async fn no_id_is_ever_given_twice_whatever_becomes_of_the_takers() {
    let mut lost = 0;
    for seed in 0..200 {
        let service = MemoryService::new();
        prepare_ids(&service.open(), 0, 7).await.unwrap();
        let (lost_per_mille, indeterminate_per_mille, behind_max) = (100, 300, 3);
        let behind_at_first = seed % 2 == 0;
        let faults =
            MemoryFaults { seed, lost_per_mille, indeterminate_per_mille, behind_max, behind_at_first };
        service.set_faults(faults);
        service.set_yielding(true);
        let takers = (0..8).map(|taker| {
            let service = service.clone();
            async move {
                let (mut kept, mut session) = (Vec::new(), service.open());
                for _ in 0..20 {
                    // Others take ids meanwhile, and its session may not have seen that.
                    match take_id(&session, taker).await {
                        Ok((id, _)) => kept.push(id),
                        // It may have been given an id, which is lost then.
                        Err(_) => session = service.open(),
                    }
                }
                kept
            }
        });
        let kept: Vec<NodeId> = join_all(takers).await.into_iter().flatten().collect();
        let distinct: BTreeSet<NodeId> = kept.iter().copied().collect();
        assert_eq!(distinct.len(), kept.len(), "seed {seed}: {kept:?}");
        service.set_faults(MemoryFaults::default());
        service.set_yielding(false);
        let ids = read_ids(&service.open()).await.unwrap().unwrap();
        assert!(distinct.iter().all(|id| id.0 <= ids.last), "seed {seed}");
        lost += ids.last as usize - distinct.len();
    }
    assert!(lost > 1000, "the faults cost {lost} ids");
}

#[tokio::test]
async fn ids_that_are_named_registered_or_remembered_are_not_given() {
    let service = MemoryService::new();
    let session = service.open();
    publish_cluster(&session, &cluster(&[1, 2, 5])).await.unwrap();
    assert_eq!(take_id(&session, 1).await.unwrap().0, NodeId(6));
    let active = ActiveNode::new(node(9, "h9:1"), 1);
    register(&session, &active).await.unwrap();
    assert_eq!(take_id(&session, 1).await.unwrap().0, NodeId(10));
    write_member(&session, NodeId(20), &Member::default()).await.unwrap();
    let (id, origin) = take_id(&session, 2).await.unwrap();
    assert_eq!((id, origin), (NodeId(21), format!("{:016x}", 1)), "whoever came first made it up");
    let ids = prepare_ids(&session, 30, 3).await.unwrap();
    assert_eq!((ids.last, ids.named), (30, 30));
    let text = br#"{"origin":"a","last":40,"named":0,"later":[1]}"#;
    session.set(&ids_path(), text[..].into(), Expected::Any).await.unwrap();
    assert_eq!(take_id(&session, 1).await.unwrap(), (NodeId(41), "a".to_owned()));
    let stored = session.get(&ids_path()).await.unwrap().data;
    assert!(String::from_utf8_lossy(&stored).contains(r#""later":[1]"#), "{stored:?}");
    session.set(&ids_path(), b"{"[..].into(), Expected::Any).await.unwrap();
    assert!(matches!(take_id(&session, 1).await, Err(ReadError::Malformed { .. })));
}

#[tokio::test]
async fn nodes_are_admitted_and_readdressed_beside_one_another() {
    let service = MemoryService::new();
    let session = service.open();
    let waiting: Vec<ActiveNode> =
        (3..=10).map(|id| ActiveNode::new(node(id, &format!("h{id}:1")), 1)).collect();
    let refused = admit(&session, &waiting).await;
    assert_eq!(refused, Err(MembershipError::NoCluster));
    publish_cluster(&session, &cluster(&[1, 2])).await.unwrap();
    let ring = read_cluster(&session).await.unwrap().unwrap().ring;
    let admitting = waiting.iter().map(|active| {
        let service = service.clone();
        async move { admit(&service.open(), std::slice::from_ref(active)).await.map(drop) }
    });
    let moving = (1..=2).map(|id| {
        let service = service.clone();
        async move { readdress(&service.open(), &node(id, &format!("moved{id}:1")), None).await.map(drop) }
    });
    let (admitted, moved) = tokio::join!(join_all(admitting), join_all(moving));
    assert!(admitted.into_iter().chain(moved).all(|done| done.is_ok()));
    let now = read_cluster(&session).await.unwrap().unwrap();
    assert_eq!((now.generation, &now.ring), (Generation(11), &ring), "one generation for each change");
    let natives: Vec<&str> = now.nodes.iter().map(|node| node.native.as_str()).collect();
    let expected = ["moved1:1", "moved2:1", "h3:1", "h4:1", "h5:1", "h6:1", "h7:1", "h8:1", "h9:1", "h10:1"];
    assert_eq!(natives, expected);
    readdress(&session, &node(1, "h1:1"), None).await.unwrap();
    let again = readdress(&session, &node(1, "moved1:1"), None).await.unwrap();
    assert!(again.nodes_changed <= Generation(11), "a node that moves is no other one");
    let now = again;

    // What is so already is no change.
    assert_eq!(admit(&session, &waiting).await.unwrap().generation, Generation(13));
    assert_eq!(readdress(&session, &node(1, "moved1:1"), None).await.unwrap().generation, Generation(13));
    let taken = AddressTaken { node: NodeId(2), address: "h3:1".into(), other: NodeId(3) };
    let refused = readdress(&session, &node(2, "h3:1"), None).await;
    assert_eq!(refused, Err(MembershipError::AddressTaken(taken)));
    let twin = ActiveNode::new(node(11, "h3:1"), 1);
    assert!(matches!(admit(&session, &[twin]).await, Err(MembershipError::AddressTaken(_))));
    assert!(matches!(
        readdress(&session, &node(12, "x:1"), None).await,
        Err(MembershipError::NotMember { .. })
    ));
    assert_eq!(read_cluster(&session).await.unwrap().unwrap(), now, "what is refused changes nothing");
    service.set_available(false);
    let away = readdress(&session, &node(1, "other:1"), None).await.unwrap_err();
    assert!(matches!(away.coordination(), Some(CoordinationError::Unavailable { .. })), "{away}");
}
