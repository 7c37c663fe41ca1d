//! Conditions of native writes are judged by R replicas, and by no fallback.

use std::sync::Arc;

use client::{ClientError, ClientOptions, PutOptions};
use model::{NodeId, Resolver};
use node::Node;
use wire::error::ErrorCode;
use wire::messages::Condition;

use crate::cluster::{RunningCluster, store};
use crate::handoff::{merge_at, replicas, shown};

/// The nodes with these ids.
fn nodes(cluster: &RunningCluster, ids: &[NodeId]) -> Vec<Arc<Node>> {
    ids.iter().map(|id| cluster.nodes[id.0 as usize - 1].clone()).collect()
}

fn code(error: &ClientError) -> ErrorCode {
    match error {
        ClientError::Failed { code, .. } => *code,
        other => panic!("{other:?}"),
    }
}

/// The first replica judged a condition by its own record alone: what it had missed it overwrote.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_condition_is_judged_by_r_replicas_and_not_by_its_stamper_alone() {
    for resolver in [Resolver::LastWriteWins, Resolver::Siblings] {
        let definition = model::Store { resolver, ..store(3, 2, 2) };
        let cluster = RunningCluster::start((3, 3), definition, |_| {}).await;
        let client = cluster.client(ClientOptions::default()).await;
        let carts = client.store("default").unwrap();
        let put = async |key: &str, condition| {
            let options = PutOptions { condition, ..PutOptions::default() };
            carts.put(key.to_owned(), "new", options).await.map_err(|error| code(&error))
        };
        let listed = replicas(&cluster.nodes[0], "k");
        merge_at(&nodes(&cluster, &listed[1..]), "k", "old", 90);
        assert_eq!(put("k", Condition::IfAbsent).await.unwrap_err(), ErrorCode::ConditionFailed);
        put("k", Condition::IfPresent).await.expect("two of three replicas hold it");
        assert_eq!(shown(&nodes(&cluster, &listed)[0], "k"), ["new"], "nothing is beside it");
        let entries =
            [("k", Condition::IfAbsent), ("fresh", Condition::IfAbsent), ("plain", Condition::None)];
        for (key, condition) in entries {
            let expected = if key == "k" { Err(ErrorCode::ConditionFailed) } else { Ok(()) };
            assert_eq!(put(key, condition).await.map(|_| ()), expected, "{key}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_r_replicas_fallbacks_take_a_put_but_no_condition() {
    let mut cluster = RunningCluster::start((5, 5), store(3, 2, 2), |_| {}).await;
    let client = cluster.client(ClientOptions::default()).await;
    let carts = client.store("default").unwrap();
    let listed = replicas(&cluster.nodes[0], "k");
    for id in &listed {
        cluster.stop(id.0 as usize - 1).await;
    }
    for condition in [Condition::IfAbsent, Condition::IfPresent] {
        let options = PutOptions { condition, ..PutOptions::default() };
        let refused = carts.put("k", "v", options).await.unwrap_err();
        assert!(refused.is_retryable(), "{refused:?}");
        assert_ne!(code(&refused), ErrorCode::ConditionFailed);
    }
    let written = carts.put("k", "v", PutOptions::default()).await.expect("two fallbacks take it");
    assert!(written.sloppy);
    let found = carts.get("k").await.expect("the fallbacks give what they hold");
    assert!(found.is_sloppy() && found.value().is_some());
    carts.delete("k", Default::default()).await.expect("a delete is as available as a put");
    let refused = carts.get("k").await.expect_err("a deletion that no replica knows is nothing found");
    assert_eq!(code(&refused), ErrorCode::InsufficientReplicas);
}
