//! What moves, whom it waits for, and what is left behind.

use model::order::Office;
use model::plan::Phase;
use model::{Cluster, Partition};
use protocol::headmaster::held_up;
use protocol::rebalance::steps;
use protocol::report::Facts;
use protocol::report::Report;

use super::finding::{Code, Finding};
use crate::output::program;
use crate::status::NodeStatus;
use crate::text::count;
use crate::words;

/// One finding for all partitions that move, and one for each node that holds what is not its own.
pub(super) fn found(cluster: &Cluster, nodes: &[NodeStatus], seen: Option<&Office>) -> Vec<Finding> {
    let reports = || nodes.iter().filter_map(NodeStatus::report);
    let mut findings: Vec<Finding> = reports().filter_map(left).collect();
    let moving = cluster.ring.partitions().iter().filter_map(Partition::step).count();
    if moving == 0 {
        return findings;
    }
    let nodes = reports().filter_map(|report| Some((report.node, report.facts()?))).collect();
    let waiting = held_up(&steps::next(cluster, &Facts { nodes }).waiting);
    let (why, next) = why(waiting.first().map(words::held), seen);
    findings.push(Finding {
        code: Code::PartitionsMoving,
        node: None,
        store: None,
        what: format!("{} on the way to other nodes: {why}", are(moving as u64)),
        next,
    });
    findings
}

/// Why partitions stand where they do, and what to do.
fn why(waiting: Option<String>, seen: Option<&Office>) -> (String, String) {
    let program = program();
    let plan = seen.and_then(|seen| seen.plan.as_ref());
    if let Some(plan) = plan.filter(|plan| plan.phase == Some(Phase::Paused)) {
        let number = plan.number;
        let next = format!(
            "go on with `{program} plan resume {number}`, or go back with `{program} plan abort {number}`"
        );
        return (format!("plan {number} is paused"), next);
    }
    if seen.is_some_and(|seen| seen.headmaster.is_none()) {
        let next = format!(
            "start one with `{program} headmaster --coordination ADDRESS`, the address that nodes were given"
        );
        return ("no headmaster runs, so they take no step".to_owned(), next);
    }
    let show = match plan {
        Some(plan) => format!("see the plan with `{program} plan show {}`", plan.number),
        None => format!("see the plan with `{program} plan history`"),
    };
    match waiting {
        Some(first) => (first, show),
        None => {
            let next = format!(
                "if this persists, the plan is paused, or no headmaster runs: look with `{program} plan history`, and start \
                 one with `{program} headmaster`"
            );
            ("their next step is due".to_owned(), if plan.is_some() { show } else { next })
        }
    }
}

fn are(partitions: u64) -> String {
    format!("{} {}", count(partitions, "partition"), if partitions == 1 { "is" } else { "are" })
}

fn left(report: &Report) -> Option<Finding> {
    let (node, leftovers) = (report.node, &report.moves.as_ref()?.leftovers);
    let records: u64 = leftovers.iter().map(|leftover| leftover.records).sum();
    (!leftovers.is_empty()).then(|| Finding {
        code: Code::LeftoversHeld,
        node: Some(node),
        store: None,
        what: format!("{node} holds {} of partitions that are not its own any more", count(records, "record")),
        next: "wait: it gives them to the replicas that lack them, and drops them; a replica that is down delays this"
            .to_owned(),
    })
}
