//! Ids of nodes: none is ever given twice, whatever becomes of whoever took it.

use std::collections::BTreeSet;

use coordination::documents::{
    ActiveNode, Member, ReadError, ids_path, prepare_ids, publish_cluster, read_ids, register, take_id,
    write_member,
};
use coordination::memory::{MemoryFaults, MemoryService};
use coordination::{CoordinationService, Expected};
use futures_util::future::join_all;
use model::{Cluster, Node, NodeId, Ring, Zone};

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
