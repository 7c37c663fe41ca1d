//! `tontine status`: the cluster and its nodes.

use std::process::ExitCode;
use std::time::Duration;

use client::{Client, ClientError};
use model::{Cluster, Consistency, Node, NodeId, Partition, Role, Step};
use protocol::gossip::NodeLiveness;
use protocol::report::{ArtifactProgress, ArtifactState, ChoreReport, Parts, Report, Status};
use serde_json::{Value as Json, json};
use wire::ErrorCode;

use crate::artifact::told::scrub_line;
use crate::clocks;
use crate::context::CliContext;
use crate::durations;
use crate::failure::CliError;
use crate::output::{print, program};
use crate::ready::{read_only_json, stores_json};
use crate::text::{count, size, table};

/// A node, and what it says of itself.
#[derive(Clone)]
pub(crate) struct NodeStatus {
    pub(crate) node: Node,
    pub(crate) answer: Result<Report, ClientError>,
    /// By how many milliseconds its clock is ahead of this machine's, if it says.
    pub(crate) ahead_ms: Option<i64>,
}

impl NodeStatus {
    /// What it says, if it answered.
    pub(crate) fn report(&self) -> Option<&Report> {
        self.answer.as_ref().ok()
    }

    /// How it is, if it answered.
    pub(crate) fn status(&self) -> Option<&Status> {
        self.report()?.status.as_ref()
    }
}

/// Asks all nodes at once for these parts of their reports.
///
/// # Errors
/// When one refuses for want of a right or a secret: how the nodes are, this caller cannot know.
pub(crate) async fn ask_all(client: &Client, parts: Parts) -> Result<Vec<NodeStatus>, CliError> {
    let cluster = client.cluster();
    let asks = cluster.nodes.iter().map(|node| async move {
        let asked = clocks::now_ms();
        let answer = client.report(node.id, parts).await;
        let answered = clocks::now_ms();
        let ahead_ms = answer.as_ref().ok().map(|report| clocks::ahead_ms(report.at_ms, asked, answered));
        NodeStatus { node: node.clone(), answer, ahead_ms }
    });
    let nodes = futures_util::future::join_all(asks).await;
    let refused =
        nodes.iter().find_map(|status| status.answer.as_ref().err().filter(|error| is_judged(error)));
    refused.map_or_else(|| Ok(nodes.clone()), |error| Err(error.clone().into()))
}

/// Whether a node answered, and would not tell this caller.
fn is_judged(error: &ClientError) -> bool {
    matches!(error, ClientError::Failed { code: ErrorCode::Forbidden | ErrorCode::Unauthenticated, .. })
}

/// Whether a node answered.
pub(crate) fn is_up(nodes: &[NodeStatus], id: NodeId) -> bool {
    nodes.iter().any(|status| status.node.id == id && status.answer.is_ok())
}

/// `tontine status`.
pub(crate) async fn status(shared: CliContext) -> Result<ExitCode, CliError> {
    let client = shared.client().await?;
    let cluster = client.cluster();
    let nodes = ask_all(&client, Parts::STATUS | Parts::ARTIFACTS).await?;
    let states = states(&client, &nodes).await;
    let steps: Vec<Step> = cluster.ring.partitions().iter().filter_map(Partition::step).collect();
    let at = |step| steps.iter().filter(|at| **at == step).count();
    let moving = match steps.len() {
        0 => String::new(),
        moving => format!(
            ", of which {moving} move ({} copying, {} joint, {} reading the new; see `{} plan history`)",
            at(Step::Copying),
            at(Step::Joint),
            at(Step::ReadingNew),
            program()
        ),
    };
    let document = json!({
        "cluster": cluster.name,
        "generation": cluster.generation,
        "partitions": cluster.ring.partitions().len(),
        "moving": { "copying": at(Step::Copying), "joint": at(Step::Joint), "reading_new": at(Step::ReadingNew) },
        "stores": stores_json(&cluster.stores),
        "read_only_stores": read_only_json(&cluster.read_only),
        "nodes": nodes.iter().zip(&states).map(|(node, state)| node_json(node, state)).collect::<Vec<_>>(),
    });
    print(shared.format(), &document, || {
        let mut rows = vec![
            [
                "NODE",
                "ZONE",
                "STATE",
                "NATIVE",
                "REDIS",
                "ENGINE",
                "RECORDS",
                "TOMBSTONES",
                "DATA",
                "DISK",
                "HINTS",
                "UPTIME",
            ]
            .map(str::to_owned)
            .to_vec(),
        ];
        rows.extend(nodes.iter().zip(&states).map(|(node, state)| node_row(node, state)));
        let stores = store_names(&cluster);
        format!(
            "cluster {}, generation {}, {}{moving}\nstores {}\n\n{}",
            cluster.name,
            cluster.generation.0,
            count(cluster.ring.partitions().len() as u64, "partition"),
            stores.join(", "),
            table(&rows)
        ) + &artifacts(&nodes)
            + &chores(&nodes)
    });
    let all_up = nodes.iter().all(|node| node.answer.is_ok());
    Ok(if all_up { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// The stores with their numbers, for people.
fn store_names(cluster: &Cluster) -> Vec<String> {
    let read_only = cluster.read_only.iter().map(|store| match store.served() {
        Some(served) => {
            format!("{} (N={}, serves artifact {})", store.name, store.replicas, served.number)
        }
        None => format!("{} (N={}, empty until the first `artifact push`)", store.name, store.replicas),
    });
    cluster
        .stores
        .iter()
        .map(|store| {
            let numbers = store.consistency;
            let told = |Consistency { replicas, reads_required, writes_required }: Consistency| {
                format!("N={replicas} R={reads_required} W={writes_required}")
            };
            let changes = store.coming.as_ref();
            let changes = changes.map(|coming| format!(", {} to {}", coming.step, told(coming.consistency)));
            format!("{} ({}{})", store.name, told(numbers), changes.unwrap_or_default())
        })
        .chain(read_only)
        .collect()
}

/// What each node has of artifacts and fetches, for people; empty where no store has any.
fn artifacts(nodes: &[NodeStatus]) -> String {
    let mut rows =
        vec![["NODE", "STORE", "ARTIFACT", "STATE", "HERE", "OF", "FETCHES"].map(str::to_owned).to_vec()];
    let told = nodes
        .iter()
        .filter_map(|status| status.report()?.artifacts.as_ref().map(|told| (status.node.id, told)));
    for (node, told) in told.clone() {
        let rate = told.fetching.rate_bytes_per_second;
        rows.extend(told.listed.iter().map(|artifact| artifact_row(node, artifact, rate)));
    }
    if rows.len() == 1 {
        return String::new();
    }
    let scrubs = told.map(|(node, told)| (node, &told.scrub));
    format!("\n{}{}", table(&rows), scrub_line(scrubs))
}

fn artifact_row(node: NodeId, artifact: &ArtifactProgress, rate: u64) -> Vec<String> {
    vec![
        node.to_string(),
        artifact.store.to_string(),
        artifact.number.to_string(),
        artifact.state.name().to_owned(),
        size(artifact.bytes),
        size(artifact.bytes_total),
        match artifact.state {
            ArtifactState::Fetching => format!("{}/s", size(rate)),
            _ => "-".to_owned(),
        },
    ]
}

/// The chores that failed or panicked, for people; empty where all is well.
fn chores(nodes: &[NodeStatus]) -> String {
    let each = nodes.iter().flat_map(|node| node.status().into_iter().map(|told| (node.node.id, told)));
    let lines = each.flat_map(|(node, told)| {
        let troubled = told.chores.iter().filter(|chore| chore.is_in_trouble());
        troubled.map(move |chore| format!("\n{}", chore_line(node, chore)))
    });
    let lines: String = lines.collect();
    if lines.is_empty() { lines } else { format!("\n{}", &lines[1..]) + "\n" }
}

/// What went wrong with a chore, and when it goes on.
pub(crate) fn chore_line(node: NodeId, chore: &ChoreReport) -> String {
    let ChoreReport { chore: name, failures, panics_total, seconds_left, last_error, .. } = chore;
    let rough = |seconds: f64| durations::rough(Duration::from_secs(seconds as u64));
    let last_rounds = match failures {
        1 => "its last round".to_owned(),
        failures => format!("its last {failures} rounds"),
    };
    let panicked = format!("panicked in {} since the node started", count(*panics_total, "round"));
    let happened = match (*panics_total, *failures) {
        (0, _) => format!("failed in {last_rounds}"),
        (_, 0) => format!("{panicked}, and works again"),
        _ => format!("{panicked}, and did not get through {last_rounds}"),
    };
    let last = last_error.as_ref().map(|last| format!("; {} ago: {}", rough(last.seconds_ago), last.error));
    let next = seconds_left.filter(|_| *failures > 0).map(|left| format!("; goes on in {}", rough(left)));
    format!("chore {name:?} of {node} {happened}{}{}", last.unwrap_or_default(), next.unwrap_or_default())
}

/// Alive, or what the first node that answers believes about one that does not.
async fn states(client: &Client, nodes: &[NodeStatus]) -> Vec<&'static str> {
    let answering = nodes.iter().find(|status| status.answer.is_ok());
    let away = nodes.iter().any(|status| status.answer.is_err());
    let view = match answering.filter(|_| away) {
        Some(status) => client.report(status.node.id, Parts::NODES).await.ok(),
        None => None,
    };
    let state = |status: &NodeStatus| match (&status.answer, view.as_ref()) {
        (Ok(_), _) => NodeLiveness::Alive.name(),
        (Err(_), view) => match view.and_then(|view| view.seen(status.node.id)).map(|seen| seen.state) {
            Some(state) if state != NodeLiveness::Alive => state.name(),
            _ => "no answer",
        },
    };
    nodes.iter().map(state).collect()
}

fn node_json(status: &NodeStatus, state: &str) -> Json {
    let Node { id, zone, native, resp, http, weight, role, .. } = &status.node;
    let error = status.answer.as_ref().err().map(ClientError::to_string);
    json!({ "node": id, "zone": zone, "native": native, "resp": resp, "http": http, "weight": weight, "role": role, "answers": status.answer.is_ok(), "state": state, "report": status.report(), "error": error })
}

/// Hints that a node holds, and how fast they leave it.
fn hints(status: &Status) -> String {
    let held: u64 = status.hints.iter().map(|held| held.hints).sum();
    match status.hints.iter().map(|held| held.hints_per_second).sum() {
        0_u64 => held.to_string(),
        rate => format!("{held} ({rate}/s)"),
    }
}

fn node_row(status: &NodeStatus, state: &str) -> Vec<String> {
    let node = &status.node;
    let dash = || "-".to_owned();
    let resp = node.resp.clone().unwrap_or_else(dash);
    let start = vec![node.id.to_string(), node.zone.to_string()];
    let leaving = if node.role == Role::Leaving { ", leaving" } else { "" };
    let rest = match status.status() {
        Some(status) => vec![
            format!("{state}{leaving}"),
            node.native.clone(),
            resp,
            status.engine.clone(),
            status.records().saturating_sub(status.tombstones()).to_string(),
            status.tombstones().to_string(),
            size(status.live_bytes()),
            size(status.stores.iter().map(|store| store.disk_bytes).sum()),
            hints(status),
            durations::rough(Duration::from_secs(status.uptime_s)),
        ],
        None => {
            let unknown = std::iter::repeat_with(dash).take(7);
            [state.to_owned(), node.native.clone(), resp].into_iter().chain(unknown).collect()
        }
    };
    start.into_iter().chain(rest).collect()
}

#[cfg(test)]
mod tests {
    use model::{Generation, WallMillis, Zone};
    use protocol::report::{ChoreError, ChoreState};

    use super::*;

    fn chore(failures: u64, panics_total: u64) -> ChoreReport {
        ChoreReport {
            chore: "bring in".to_owned(),
            state: ChoreState::Failed,
            seconds: 1.0,
            seconds_left: Some(4.2),
            rounds_total: 9,
            failures,
            panics: panics_total.min(failures),
            panics_total,
            last_error: Some(ChoreError { error: "the disk is full".to_owned(), seconds_ago: 61.0 }),
        }
    }

    #[test]
    fn a_line_says_what_went_wrong_with_a_chore_and_when_it_goes_on() {
        let line = |failures, panics| chore_line(NodeId(2), &chore(failures, panics));
        let expected =
            "chore \"bring in\" of n2 failed in its last round; 1m1s ago: the disk is full; goes on in 4s";
        assert_eq!(line(1, 0), expected);
        let expected = "chore \"bring in\" of n2 panicked in 2 rounds since the node started, and works again; 1m1s ago: \
                        the disk is full";
        assert_eq!(line(0, 2), expected);
        let expected = "chore \"bring in\" of n2 panicked in 2 rounds since the node started, and did not get through its \
                        last round; 1m1s ago: the disk is full; goes on in 4s";
        assert_eq!(line(1, 2), expected);
    }

    #[test]
    fn status_has_a_line_for_chores_in_trouble_and_none_for_others() {
        let of = |chores| {
            let node = Node::new(NodeId(2), Zone("a".to_owned()), "10.0.0.2:7401".to_owned(), None);
            let status = Some(Status { chores, ..Status::default() });
            let report = Report::new(NodeId(2), 1, WallMillis(0), Generation(1));
            vec![NodeStatus { node, answer: Ok(Report { status, ..report }), ahead_ms: None }]
        };
        assert_eq!(chores(&of(vec![chore(0, 0)])), "");
        let shown = chores(&of(vec![chore(0, 0), chore(1, 0), chore(0, 1)]));
        assert_eq!(shown.lines().filter(|line| line.starts_with("chore ")).count(), 2, "{shown}");
        assert!(shown.starts_with('\n') && shown.ends_with('\n'), "{shown:?}");
    }
}
