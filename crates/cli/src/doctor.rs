//! `tontine doctor`: what is wrong, who waits for whom, and what to do about it.

use std::process::ExitCode;
use std::time::Duration;

use model::NodeId;
use serde_json::{Value as Json, json};

use crate::failure::CliError;
use crate::output::{count, print, program, size};
use crate::shared::Shared;
use crate::status::{NodeStatus, ask_all, is_up, tombstones};

mod artifacts;
mod disks;
mod documents;
mod finding;
mod hints;
mod moves;
mod passwords;
mod replicas;
mod starting;
mod views;

use disks::{Refuses, refuses};
use finding::{Code, Finding};
use passwords::open_to_everybody;
use starting::{Spare, start_again};

/// Pause before nodes are asked again that do not go by the same document, or avoid each other.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// `tontine doctor`.
pub(crate) async fn doctor(shared: Shared) -> Result<ExitCode, CliError> {
    let client = shared.client().await?;
    let first = ask_all(&client).await;
    let generation = client.cluster().generation.0;
    // A document spreads in a moment, and while a plan is carried out there are two in a second.
    let nodes = match first.iter().all(|status| goes_by(status).is_none_or(|own| own == generation)) {
        true => first.clone(),
        false => {
            tokio::time::sleep(LOOK_AGAIN).await;
            let _ = client.refresh().await;
            ask_all(&client).await
        }
    };
    let look = crate::orders::look(&shared).await;
    let mut findings: Vec<Finding> = documents::unread(&look).into_iter().collect();
    let seen = look.seen();
    let cluster = client.cluster();
    findings.extend(cluster.stores.iter().flat_map(|store| replicas::numbers(&cluster, store)));
    let waits = seen.as_ref().map(|seen| &seen.waiting[..]).unwrap_or_default();
    let spare = Spare::find(&cluster, &nodes, waits);
    findings.extend(waits.iter().map(|node| starting::waits_to_join(node, &nodes)));
    // A node that is dead and in no list any more leaves within seconds, where a headmaster is at work: nothing is to do.
    let is_led = seen.as_ref().is_some_and(|seen| seen.has_headmaster && seen.headmaster_silent.is_none());
    let leaves = |status: &NodeStatus| is_led && status.node.gone && !cluster.ring.lists(status.node.id);
    for status in nodes.iter().filter(|status| !leaves(status)) {
        examine(status, &nodes, spare, &mut findings);
        let before = first.iter().find(|before| before.node.id == status.node.id).and_then(goes_by);
        findings.extend(left_behind(status, before, cluster.generation.0));
    }
    findings.extend(seen.as_ref().and_then(|seen| documents::older(&nodes, seen.generation)));
    findings.extend(views::avoided(&client, &nodes).await);
    findings.extend(replicas::too_few(&cluster, &nodes));
    findings.extend(wrong_clocks(&nodes));
    findings.extend(open_to_everybody(&nodes));
    findings.extend(stopped_repair(&nodes));
    findings.extend(hints::waiting(&nodes, &hints::heard(&client, &nodes).await));
    findings.extend(waiting_tombstones(&nodes));
    findings.extend(artifacts::found(&cluster, &nodes, seen.as_ref()));
    findings.extend(moves::found(&client, seen.as_ref()).await);
    let healthy = !findings.iter().any(Finding::is_bad);
    let document = json!({
        "healthy": healthy,
        "findings": findings.iter().map(Finding::json).collect::<Vec<_>>(),
    });
    print(shared.format(), &document, || describe(&findings, nodes.len()));
    Ok(if healthy { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// The generation that a node goes by.
fn goes_by(status: &NodeStatus) -> Option<u64> {
    status.answer.as_ref().ok()?["generation"].as_u64()
}

/// A node that has gone by another generation than this client since it was asked first.
fn left_behind(status: &NodeStatus, before: Option<u64>, generation: u64) -> Option<Finding> {
    let own = goes_by(status)?;
    (own != generation && before == Some(own)).then(|| Finding {
        code: Code::GenerationDiffers,
        node: Some(status.id()),
        store: None,
        what: format!(
            "{} is at generation {own} of the cluster, and this client at {generation}",
            status.node.id
        ),
        next: format!(
            "restore the connection of {} to the coordination service, and look from its machine: {} coordination show \
             --coordination ADDRESS",
            status.node.id,
            program()
        ),
    })
}

fn describe(findings: &[Finding], nodes: usize) -> String {
    if findings.is_empty() {
        return match nodes {
            1 => "healthy: the only node answers, and no work is pending".to_owned(),
            nodes => format!("healthy: all {nodes} nodes answer, and no work is pending"),
        };
    }
    let mut text = String::new();
    for finding in findings {
        let mark = if finding.is_bad() { "bad " } else { "note" };
        text.push_str(&format!("{mark}  {}\n      next: {}\n", finding.what, finding.next));
    }
    text
}

/// Nodes whose clocks are far from those of most.
fn wrong_clocks(nodes: &[NodeStatus]) -> Vec<Finding> {
    let ahead: Vec<_> = nodes.iter().filter_map(|status| Some((status.node.id, status.ahead_ms?))).collect();
    let finding = |(id, difference): (NodeId, i64)| Finding {
        code: Code::ClockOff,
        node: Some(id.0.into()),
        store: None,
        what: format!(
            "the clock of {id} is {} those of the other nodes, and the newest write of a key is the one with the latest time",
            crate::clocks::shown(difference)
        ),
        next: format!("set the clock on the machine of {id}, for example with NTP"),
    };
    crate::clocks::off(&ahead).into_iter().map(finding).collect()
}

/// Where somebody has stopped comparing, and left it so: one finding for each node.
fn stopped_repair(nodes: &[NodeStatus]) -> Vec<Finding> {
    let stopped = |status: &&NodeStatus| {
        status.answer.as_ref().is_ok_and(|answer| answer["repair_stopped"].as_bool() == Some(true))
    };
    let finding = |status: &NodeStatus| {
        Finding {
        code: Code::RepairStopped,
        node: Some(status.id()),
        store: None,
        what: format!("replica repair is stopped on {}", status.node.id),
        next: "until it is started again, even after a restart, only reads and hints bring replicas up to date: tontine repair start"
            .to_owned(),
    }
    };
    nodes.iter().filter(stopped).map(finding).collect()
}

/// The parts that somebody has stopped comparing at a node, and left it so.
fn stopped_parts(status: &NodeStatus, answer: &Json) -> Option<Finding> {
    let parts = answer["repair_stopped_parts"].as_array().into_iter().flatten().filter_map(Json::as_str);
    let parts: Vec<&str> = parts.collect();
    (!parts.is_empty()).then(|| Finding {
        code: Code::RepairPartsStopped,
        node: Some(status.id()),
        store: None,
        what: format!("replica repair is stopped on {} for {}", status.node.id, parts.join(", ")),
        next: "until it is started again, even after a restart, only reads and hints bring them up to date: tontine repair start"
            .to_owned(),
    })
}

/// What nodes have refused to hold.
fn refused_hints(status: &NodeStatus, answer: &Json) -> Option<Finding> {
    let refused = answer["hints_refused_total"].as_u64().filter(|&refused| refused > 0)?;
    let limit = size(answer["hint_bytes_max"].as_u64().unwrap_or(0));
    Some(Finding {
        code: Code::HintsRefused,
        node: Some(status.id()),
        store: None,
        what: format!(
            "{} has refused {} since it started: its hints had reached the limit of {limit}",
            status.node.id,
            count(refused, "hint"),
        ),
        next: "no action needed: no acknowledged write depends on these hints, and replica repair brings the other replicas up \
               to date; to run it now: tontine repair start"
            .to_owned(),
    })
}

/// That a node has lost its records and does not have all of them back.
fn refilling(status: &NodeStatus, answer: &Json) -> Option<Finding> {
    let progress = crate::repair::refilling(&answer["refill"])?;
    let id = status.node.id;
    Some(Finding {
        code: Code::Refilling,
        node: Some(status.id()),
        store: None,
        what: format!("{id} is refilling lost data from its peers: {progress}"),
        next: format!(
            "keep the other nodes running until {id} has caught up, since only they hold the missing data; see the progress \
             with `tontine repair status`"
        ),
    })
}

/// That a node does not know whether its directory is a copy of earlier days.
fn not_compared(status: &NodeStatus, answer: &Json) -> Option<Finding> {
    (answer["collection"]["compared"].as_bool() == Some(false)).then(|| Finding {
        code: Code::EpochNotCompared,
        node: Some(status.id()),
        store: None,
        what: format!(
            "{} has not verified its collection epoch ({}) against the cluster's since it started, so no node can remove \
             tombstones",
            status.node.id, answer["collection"]["epoch"]
        ),
        next: "see with `tontine coordination show` whether the coordination service answers; while it does not, there is nothing \
               else to mend; if it does, the node's data directory is an older copy: start it with an empty one"
            .to_owned(),
    })
}

/// What ends the wait for a node that does not answer. What to do in detail, the finding about the node itself says.
fn missing(nodes: &[NodeStatus], id: u64) -> Option<String> {
    let status = nodes.iter().find(|status| status.id() == id);
    match status {
        _ if is_up(nodes, id) => None,
        Some(status) if status.node.gone => {
            Some(format!("wait: n{id} was declared dead, and leaves when others have its data"))
        }
        _ => Some(format!("start n{id} again, or replace it, as said above")),
    }
}

/// For whom the collection of tombstones waits, if for anybody.
fn waiting_tombstones(nodes: &[NodeStatus]) -> Option<Finding> {
    let answers = || nodes.iter().filter_map(|status| status.answer.as_ref().ok());
    let missed = answers().find_map(|answer| answer["collection"]["waits_for"].as_u64())?;
    // Every replica holds its own: the most that one node holds is nearest to the number of deletions.
    let most = answers().map(tombstones).max().filter(|&most| most > 0)?;
    let waits = format!("{} {}", count(most, "tombstone"), if most == 1 { "waits" } else { "wait" });
    Some(Finding {
        code: Code::TombstonesWaiting,
        node: Some(missed),
        store: None,
        what: format!(
            "{waits} for n{missed}: a tombstone is removed when every node has confirmed the deletion"
        ),
        next: match missing(nodes, missed) {
            None => format!("wait: the nodes ask n{missed} again every few seconds"),
            Some(what) => {
                format!("{what}; until then tombstones take up space, and deleted keys stay deleted")
            }
        },
    })
}

fn examine(status: &NodeStatus, nodes: &[NodeStatus], spare: Option<Spare>, findings: &mut Vec<Finding>) {
    let id = status.node.id;
    let answer = match &status.answer {
        Ok(answer) => answer,
        Err(error) => {
            findings.push(Finding {
                code: Code::NodeDown,
                node: Some(status.id()),
                store: None,
                what: match status.node.gone {
                    true => format!(
                        "{id} at {} was declared dead, and its data is not complete elsewhere",
                        status.node.native
                    ),
                    false => format!("{id} at {} does not answer: {error}", status.node.native),
                },
                next: start_again(&status.node, nodes, spare),
            });
            return;
        }
    };
    findings.extend(disks::room(status, answer));
    findings.extend(refused_hints(status, answer));
    // A node whose storage has stopped gets nothing back.
    findings
        .extend(refilling(status, answer).filter(|_| !matches!(refuses(answer), Some(Refuses::Stopped(_)))));
    findings.extend(not_compared(status, answer));
    findings.extend(stopped_parts(status, answer));
    findings.extend(disks::damage(status, answer));
}

#[cfg(test)]
mod tests {
    use model::{Node, Zone};

    use super::*;

    fn status(id: u32, place: &Json, ahead_ms: i64) -> NodeStatus {
        let node = Node::new(NodeId(id), Zone("a".to_owned()), format!("10.0.0.{id}:7401"), None);
        NodeStatus { node, answer: Ok(json!({ "place": place })), ahead_ms: Some(ahead_ms) }
    }

    #[test]
    fn a_node_is_left_behind_when_it_stays_so_and_a_service_that_went_back_is_named() {
        let at = |generation: u64| {
            let status = status(2, &Json::Null, 0);
            NodeStatus { answer: Ok(json!({ "generation": generation })), ..status }
        };
        assert!(left_behind(&at(6), Some(5), 7).is_none(), "it goes on");
        assert!(left_behind(&at(7), Some(7), 7).is_none());
        let found = left_behind(&at(5), Some(5), 7).unwrap();
        assert_eq!(found.what, "n2 is at generation 5 of the cluster, and this client at 7");
        assert!(documents::older(&[at(7), at(9)], 9).is_none());
        let found = documents::older(&[at(7), at(9)], 8).unwrap();
        assert!(found.is_bad() && found.what.contains("holds generation 8 of the cluster document"));
    }

    #[test]
    fn a_wrong_clock_is_named() {
        let nodes = [status(1, &Json::Null, 0), status(2, &Json::Null, 90_000), status(3, &Json::Null, -5)];
        let found = wrong_clocks(&nodes);
        let said: Vec<_> = found.iter().map(|finding| (finding.node, finding.what.as_str())).collect();
        let expected = "the clock of n2 is 1m30s ahead of those of the other nodes, and the newest write of a key is the \
                        one with the latest time";
        assert_eq!(said, [(Some(2), expected)]);
    }
}
