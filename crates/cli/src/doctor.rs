//! `tontine doctor`: what is wrong, who waits for whom, and what to do about it.

use std::process::ExitCode;
use std::time::Duration;

use model::balance::Mode;
use model::{Generation, NodeId};
use protocol::report::{Parts, RepairReport, Status};
use serde_json::json;

use crate::context::CliContext;
use crate::failure::{CliError, no_tls};
use crate::output::{print, program};
use crate::status::{NodeStatus, ask_all, is_up};
use crate::text::{count, size};

mod artifacts;
mod certificates;
mod chores;
mod disks;
mod documents;
mod finding;
mod hints;
mod leaving;
mod moves;
mod office;
mod passwords;
mod replicas;
mod starting;
mod views;

use disks::{Refuses, refuses};
use finding::{Code, Finding};
use passwords::open_to_everybody;
use starting::{Spare, start_again};

/// Pause before nodes are asked again that do not follow the same document, or avoid each other.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// What nodes are asked: not what each believes about all others, which grows with the square of the cluster.
fn parts() -> Parts {
    Parts::STATUS | Parts::MOVES | Parts::REPAIR | Parts::ARTIFACTS
}

/// `tontine doctor`.
pub(crate) async fn doctor(shared: CliContext) -> Result<ExitCode, CliError> {
    let client = shared.client().await?;
    let first = ask_all(&client, parts()).await?;
    let generation = client.cluster().generation;
    // A document spreads in a moment, and while a plan is carried out there are two in a second.
    let nodes = match first.iter().all(|status| goes_by(status).is_none_or(|own| own == generation)) {
        true => first.clone(),
        false => {
            tokio::time::sleep(LOOK_AGAIN).await;
            let _ = client.refresh().await;
            ask_all(&client, parts()).await?
        }
    };
    let look = office::look(&shared).await;
    let mut findings: Vec<Finding> = documents::unread(look.as_ref()).into_iter().collect();
    let seen = look.filter(|office| office.generation.is_some());
    let cluster = client.cluster();
    findings.extend(cluster.stores.iter().flat_map(|store| replicas::numbers(&cluster, store)));
    let waits = seen.as_ref().map(|seen| &seen.waiting[..]).unwrap_or_default();
    let of_fleets = seen.as_ref().map(|seen| seen.of_fleets.clone()).unwrap_or_default();
    let spare = Spare::find(&cluster, &nodes, waits, &of_fleets);
    findings.extend(waits.iter().map(|node| starting::waits_to_join(node, &nodes, of_fleets.get(&node.id))));
    findings.extend(starting::empty(&cluster));
    findings.extend(seen.iter().flat_map(|seen| leaving::found(&cluster, seen)));
    let balancing = seen.as_ref().and_then(|seen| seen.balancing.as_ref());
    findings.extend(balancing.into_iter().flat_map(office::stopped));
    let verdict = balancing
        .filter(|balancing| balancing.policy.as_ref().is_none_or(|policy| policy.mode != Mode::Off))
        .and_then(|balancing| balancing.verdict.as_ref());
    findings.extend(verdict.into_iter().flat_map(starting::replaced_soon));
    // A node that is dead and in no list any more leaves within seconds, where a headmaster is at work: nothing is to do.
    let is_led = seen
        .as_ref()
        .is_some_and(|seen| seen.headmaster.as_ref().is_some_and(|holder| holder.silent_ms.is_none()));
    let leaves = |status: &NodeStatus| is_led && status.node.gone && !cluster.ring.lists(status.node.id);
    for status in nodes.iter().filter(|status| !leaves(status)) {
        examine(status, &nodes, spare, &mut findings);
        let before = first.iter().find(|before| before.node.id == status.node.id).and_then(goes_by);
        findings.extend(left_behind(status, before, cluster.generation));
    }
    findings.extend(seen.as_ref().and_then(|seen| documents::older(&nodes, seen.generation?.0)));
    findings.extend(views::avoided(&client, &nodes).await);
    findings.extend(replicas::too_few(&cluster, &nodes));
    findings.extend(wrong_clocks(&nodes));
    findings.extend(open_to_everybody(&nodes));
    findings.extend(certificates::found(&cluster, &nodes));
    findings.extend(stopped_repair(&nodes));
    findings.extend(hints::waiting(&nodes, &hints::heard(&client, &nodes).await));
    findings.extend(waiting_tombstones(&nodes));
    findings.extend(artifacts::found(&cluster, &nodes, seen.as_ref()));
    findings.extend(seen.as_ref().and_then(office::found));
    findings.extend(moves::found(&cluster, &nodes, seen.as_ref()));
    let healthy = !findings.iter().any(Finding::is_bad);
    let document = json!({
        "healthy": healthy,
        "findings": findings.iter().map(Finding::json).collect::<Vec<_>>(),
    });
    print(shared.format(), &document, || describe(&findings, nodes.len()));
    Ok(if healthy { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// The generation that a node follows.
fn goes_by(status: &NodeStatus) -> Option<Generation> {
    status.report().map(|report| report.generation)
}

/// A node that has followed another generation than this client since it was asked first.
fn left_behind(status: &NodeStatus, before: Option<Generation>, generation: Generation) -> Option<Finding> {
    let own = goes_by(status)?;
    (own != generation && before == Some(own)).then(|| Finding {
        code: Code::GenerationDiffers,
        node: Some(status.node.id),
        store: None,
        what: format!(
            "{} is at generation {} of the cluster, and this client at {}",
            status.node.id, own.0, generation.0
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
        node: Some(id),
        store: None,
        what: format!(
            "the clock of {id} is {} those of the other nodes, and the newest write of a key is the one with the latest time",
            crate::clocks::shown(difference)
        ),
        next: format!("set the clock on the machine of {id}, for example with NTP"),
    };
    crate::clocks::off(&ahead).into_iter().map(finding).collect()
}

fn repair(status: &NodeStatus) -> Option<&RepairReport> {
    status.report()?.repair.as_ref()
}

/// Where somebody has stopped comparing, and left it so: one finding for each node.
fn stopped_repair(nodes: &[NodeStatus]) -> Vec<Finding> {
    let stopped = |status: &&NodeStatus| repair(status).is_some_and(|repair| repair.stopped);
    let finding = |status: &NodeStatus| {
        Finding {
        code: Code::RepairStopped,
        node: Some(status.node.id),
        store: None,
        what: format!("replica repair is stopped on {}", status.node.id),
        next: "until it is started again, even after a restart, only reads and hints bring replicas up to date: tontine repair start"
            .to_owned(),
    }
    };
    nodes.iter().filter(stopped).map(finding).collect()
}

/// The parts that somebody has stopped comparing at a node, and left it so.
fn stopped_parts(status: &NodeStatus) -> Option<Finding> {
    let parts: Vec<String> = repair(status)?.stopped_parts.iter().map(ToString::to_string).collect();
    (!parts.is_empty()).then(|| Finding {
        code: Code::RepairPartsStopped,
        node: Some(status.node.id),
        store: None,
        what: format!("replica repair is stopped on {} for {}", status.node.id, parts.join(", ")),
        next: "until it is started again, even after a restart, only reads and hints bring them up to date: tontine repair start"
            .to_owned(),
    })
}

/// What nodes have refused to hold.
fn refused_hints(status: &NodeStatus, told: &Status) -> Option<Finding> {
    let (refused, limit) = (told.hints_refused_total, size(told.hint_bytes_max));
    (refused > 0).then(|| Finding {
        code: Code::HintsRefused,
        node: Some(status.node.id),
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
fn refilling(status: &NodeStatus) -> Option<Finding> {
    let progress = crate::repair::refilling(status.report()?.refill()?)?;
    let id = status.node.id;
    Some(Finding {
        code: Code::Refilling,
        node: Some(status.node.id),
        store: None,
        what: format!("{id} is refilling lost data from its peers: {progress}"),
        next: format!(
            "keep the other nodes running until {id} has caught up, since only they hold the missing data; see the progress \
             with `tontine repair status`"
        ),
    })
}

/// That a node does not know whether its directory is a copy of earlier days.
fn not_compared(status: &NodeStatus, told: &Status) -> Option<Finding> {
    let collection = told.collection.as_ref()?;
    (!collection.compared).then(|| Finding {
        code: Code::EpochNotCompared,
        node: Some(status.node.id),
        store: None,
        what: format!(
            "{} has not verified its collection epoch ({}) against the cluster's since it started, so no node can remove \
             tombstones",
            status.node.id, collection.epoch.0
        ),
        next: "see with `tontine coordination show` whether the coordination service answers; while it does not, there is nothing \
               else to mend; if it does, the node's data directory is an older copy: start it with an empty one"
            .to_owned(),
    })
}

/// What ends the wait for a node that does not answer. What to do in detail, the finding about the node itself says.
fn missing(nodes: &[NodeStatus], id: NodeId) -> Option<String> {
    let status = nodes.iter().find(|status| status.node.id == id);
    match status {
        _ if is_up(nodes, id) => None,
        Some(status) if status.node.gone => {
            Some(format!("wait: {id} was declared dead, and leaves when others have its data"))
        }
        _ => Some(format!("start {id} again, or replace it, as said above")),
    }
}

/// For whom the collection of tombstones waits, if for anybody.
fn waiting_tombstones(nodes: &[NodeStatus]) -> Option<Finding> {
    let told = || nodes.iter().filter_map(NodeStatus::status);
    let missed = told().find_map(|told| told.collection.as_ref()?.waits_for)?;
    // Every replica holds its own: the most that one node holds is nearest to the number of deletions.
    let most = told().map(Status::tombstones).max().filter(|&most| most > 0)?;
    let waits = format!("{} {}", count(most, "tombstone"), if most == 1 { "waits" } else { "wait" });
    Some(Finding {
        code: Code::TombstonesWaiting,
        node: Some(missed),
        store: None,
        what: format!(
            "{waits} for {missed}: a tombstone is removed when every node has confirmed the deletion"
        ),
        next: match missing(nodes, missed) {
            None => format!("wait: the nodes ask {missed} again every few seconds"),
            Some(what) => {
                format!("{what}; until then tombstones take up space, and deleted keys stay deleted")
            }
        },
    })
}

fn examine(status: &NodeStatus, nodes: &[NodeStatus], spare: Option<Spare>, findings: &mut Vec<Finding>) {
    let id = status.node.id;
    let report = match &status.answer {
        Ok(report) => report,
        Err(error) => {
            findings.push(Finding {
                code: Code::NodeDown,
                node: Some(status.node.id),
                store: None,
                what: match status.node.gone {
                    true => format!(
                        "{id} at {} was declared dead, and its data is not complete elsewhere",
                        status.node.native
                    ),
                    false => format!("{id} at {} does not answer: {error}", status.node.native),
                },
                next: match no_tls(error) && !status.node.gone {
                    true => starting::certificates(&status.node),
                    false => start_again(&status.node, nodes, spare),
                },
            });
            return;
        }
    };
    let Some(told) = &report.status else { return };
    findings.extend(disks::room(status, told));
    findings.extend(refused_hints(status, told));
    // A node whose storage has stopped gets nothing back.
    findings.extend(refilling(status).filter(|_| !matches!(refuses(told), Some(Refuses::Stopped(_)))));
    findings.extend(not_compared(status, told));
    findings.extend(stopped_parts(status));
    findings.extend(chores::panicked(status, told));
    findings.extend(disks::damage(status, told));
}

#[cfg(test)]
mod tests {
    use model::{Node, WallMillis, Zone};
    use protocol::report::Report;

    use super::*;

    /// A node that answers with nothing but a status that is as `told`.
    pub(super) fn answering(id: u32, told: Status) -> NodeStatus {
        let node = Node::new(NodeId(id), Zone("a".to_owned()), format!("10.0.0.{id}:7401"), None);
        let report = Report::new(NodeId(id), 1, WallMillis(0), Generation(1));
        NodeStatus { node, answer: Ok(Report { status: Some(told), ..report }), ahead_ms: None }
    }

    /// A node that does not answer.
    pub(super) fn away(id: u32) -> NodeStatus {
        let error = client::ClientError::Unreachable { detail: "no process listens there".to_owned() };
        NodeStatus { answer: Err(error), ..answering(id, Status::default()) }
    }

    #[test]
    fn a_node_is_left_behind_when_it_stays_so_and_a_service_that_went_back_is_named() {
        let at = |generation: u64| {
            let mut status = answering(2, Status::default());
            status.answer.as_mut().unwrap().generation = Generation(generation);
            status
        };
        let behind =
            |own, before, client| left_behind(&at(own), Some(Generation(before)), Generation(client));
        assert!(behind(6, 5, 7).is_none(), "it goes on");
        assert!(behind(7, 7, 7).is_none());
        let found = behind(5, 5, 7).unwrap();
        assert_eq!(found.what, "n2 is at generation 5 of the cluster, and this client at 7");
        assert!(documents::older(&[at(7), at(9)], 9).is_none());
        let found = documents::older(&[at(7), at(9)], 8).unwrap();
        assert!(found.is_bad() && found.what.contains("holds generation 8 of the cluster document"));
    }

    #[test]
    fn a_wrong_clock_is_named() {
        let ahead = [(1, 0), (2, 90_000), (3, -5)];
        let nodes = ahead.map(|(id, ahead_ms)| NodeStatus {
            ahead_ms: Some(ahead_ms),
            ..answering(id, Status::default())
        });
        let found = wrong_clocks(&nodes);
        let said: Vec<_> = found.iter().map(|finding| (finding.node, finding.what.as_str())).collect();
        let expected = "the clock of n2 is 1m30s ahead of those of the other nodes, and the newest write of a key is the \
                        one with the latest time";
        assert_eq!(said, [(Some(NodeId(2)), expected)]);
    }
}
