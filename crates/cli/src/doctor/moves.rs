//! What moves, whom it waits for, and what is left behind.

use client::Client;
use control::plans::told;
use model::{NodeId, Partition};
use protocol::rebalance::{Facts, steps};
use wire::messages::MovesGot;

use super::finding::{Code, Finding};
use crate::output::{count, program};

/// One finding for all partitions that move, and one for each node that holds what is not its own.
pub(super) async fn found(client: &Client) -> Vec<Finding> {
    let cluster = client.cluster();
    let asks =
        cluster.nodes.iter().map(|node| async move { Some((node.id, client.moves(node.id).await.ok()?)) });
    let answers: Vec<(NodeId, MovesGot)> =
        futures_util::future::join_all(asks).await.into_iter().flatten().collect();
    let mut findings: Vec<Finding> = answers.iter().filter_map(|(node, told)| left(*node, told)).collect();
    let moving = cluster.ring.partitions().iter().filter_map(Partition::step).count();
    if moving == 0 {
        return findings;
    }
    let nodes = answers.iter().map(|(node, told)| (*node, told.facts())).collect();
    let waiting = told(&steps::next(&cluster, &Facts { nodes }).waiting);
    let (why, next) = match waiting.first() {
        Some(first) => (first.clone(), format!("see the plan with `{} plan history`", program())),
        None => (
            "their next step is due".to_owned(),
            format!("if this persists, no headmaster runs: start one with `{} headmaster`", program()),
        ),
    };
    findings.push(Finding {
        code: Code::PartitionsMoving,
        node: None,
        store: None,
        what: format!("{} on the way to other nodes: {why}", are(moving as u64)),
        next,
    });
    findings
}

fn are(partitions: u64) -> String {
    format!("{} {}", count(partitions, "partition"), if partitions == 1 { "is" } else { "are" })
}

fn left(node: NodeId, told: &MovesGot) -> Option<Finding> {
    let records: u64 = told.leftovers.iter().map(|leftover| leftover.records).sum();
    (!told.leftovers.is_empty()).then(|| Finding {
        code: Code::LeftoversHeld,
        node: Some(node.0.into()),
        store: None,
        what: format!("{node} holds {} of partitions that are not its own any more", count(records, "record")),
        next: "wait: it gives them to the replicas that lack them, and drops them; a replica that is down delays this"
            .to_owned(),
    })
}
