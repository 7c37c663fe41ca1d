//! `tontine status`: the cluster and its nodes.

use std::process::ExitCode;
use std::time::Duration;

use client::{Client, ClientError};
use model::{Cluster, Consistency, Node, Partition, Role, Step};
use serde_json::{Value as Json, json};

use crate::artifact::told::scrub_line;
use crate::clocks;
use crate::durations;
use crate::failure::CliError;
use crate::output::{count, print, program, size, table};
use crate::ready::{read_only_json, stores_json};
use crate::shared::Shared;

/// A node, and what it says of itself.
#[derive(Clone)]
pub(crate) struct NodeStatus {
    pub(crate) node: Node,
    pub(crate) answer: Result<Json, ClientError>,
    /// By how many milliseconds its clock is ahead of this machine's, if it says.
    pub(crate) ahead_ms: Option<i64>,
}

impl NodeStatus {
    /// The node's id, as documents hold it.
    pub(crate) fn id(&self) -> u64 {
        u64::from(self.node.id.0)
    }
}

/// Asks all nodes at once.
pub(crate) async fn ask_all(client: &Client) -> Vec<NodeStatus> {
    let cluster = client.cluster();
    let asks = cluster.nodes.iter().map(|node| async move {
        let asked = clocks::now_ms();
        let answer = client.status(node.id).await;
        let answered = clocks::now_ms();
        let answer = answer.map(|bytes| serde_json::from_slice(&bytes).unwrap_or(Json::Null));
        let ahead_ms = answer.as_ref().ok().and_then(|status| clocks::ahead_ms(status, asked, answered));
        NodeStatus { node: node.clone(), answer, ahead_ms }
    });
    futures_util::future::join_all(asks).await
}

/// Whether a node answered.
pub(crate) fn is_up(nodes: &[NodeStatus], id: u64) -> bool {
    nodes.iter().any(|status| status.id() == id && status.answer.is_ok())
}

/// `tontine status`.
pub(crate) async fn status(shared: Shared) -> Result<ExitCode, CliError> {
    let client = shared.client().await?;
    let cluster = client.cluster();
    let nodes = ask_all(&client).await;
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
    for status in nodes {
        let Ok(answer) = &status.answer else { continue };
        let told = &answer["read_only"];
        let rate = told["fetching"]["rate_bytes_per_second"].as_u64().unwrap_or(0);
        for entry in told["artifacts"].as_array().into_iter().flatten() {
            let text = |field: &str| entry[field].as_str().unwrap_or("-").to_owned();
            let bytes = |field: &str| size(entry[field].as_u64().unwrap_or(0));
            let fetches = match entry["state"] == "fetching" {
                true => format!("{}/s", size(rate)),
                false => "-".to_owned(),
            };
            rows.push(vec![
                status.node.id.to_string(),
                text("store"),
                entry["number"].to_string(),
                text("state"),
                bytes("bytes"),
                bytes("bytes_total"),
                fetches,
            ]);
        }
    }
    if rows.len() == 1 {
        return String::new();
    }
    let answers = nodes.iter().filter_map(|status| Some((status.node.id, status.answer.as_ref().ok()?)));
    let scrubs = answers.map(|(node, answer)| (node, &answer["read_only"]["scrub"]));
    format!("\n{}{}", table(&rows), scrub_line(scrubs))
}

/// Alive, or what the first node that answers believes about one that does not.
async fn states(client: &Client, nodes: &[NodeStatus]) -> Vec<String> {
    let answering = nodes.iter().find(|status| status.answer.is_ok());
    let away = nodes.iter().any(|status| status.answer.is_err());
    let view = match answering.filter(|_| away) {
        Some(status) => crate::node_list::ask(client, status.node.id).await.unwrap_or(Json::Null),
        None => Json::Null,
    };
    let state = |status: &NodeStatus| match &status.answer {
        Ok(_) => "alive".to_owned(),
        Err(_) => match crate::node_list::state_of(&view, status.node.id) {
            state if ["suspected", "down", "left"].contains(&state.as_str()) => state,
            _ => "no answer".to_owned(),
        },
    };
    nodes.iter().map(state).collect()
}

fn node_json(status: &NodeStatus, state: &str) -> Json {
    let Node { id, zone, native, resp, weight, role, .. } = &status.node;
    let (answers, answer, error) = match &status.answer {
        Ok(answer) => (true, Some(answer), None),
        Err(error) => (false, None, Some(error.to_string())),
    };
    json!({ "node": id, "zone": zone, "native": native, "resp": resp, "weight": weight, "role": role, "answers": answers, "state": state, "status": answer, "error": error })
}

/// A number of each of a node's stores, summed up.
pub(crate) fn sum(answer: &Json, field: &str) -> u64 {
    let stores = answer["stores"].as_array().into_iter().flatten();
    stores.filter_map(|store| store[field].as_u64()).sum()
}

/// Keys of which a node holds nothing but tombstones, as far as it knows without looking.
pub(crate) fn tombstones(answer: &Json) -> u64 {
    answer["collection"]["tombstones"].as_u64().unwrap_or(0)
}

/// Hints that a node holds, and how fast they leave it.
fn hints(answer: &Json) -> String {
    let of = |field: &str| -> u64 {
        answer["hints"].as_array().into_iter().flatten().filter_map(|hint| hint[field].as_u64()).sum()
    };
    match of("hints_per_second") {
        0 => of("hints").to_string(),
        rate => format!("{} ({rate}/s)", of("hints")),
    }
}

fn node_row(status: &NodeStatus, state: &str) -> Vec<String> {
    let NodeStatus { node, answer, .. } = status;
    let dash = || "-".to_owned();
    let resp = node.resp.clone().unwrap_or_else(dash);
    let start = vec![node.id.to_string(), node.zone.to_string()];
    let leaving = if node.role == Role::Leaving { ", leaving" } else { "" };
    let rest = match answer {
        Ok(answer) => vec![
            format!("{state}{leaving}"),
            node.native.clone(),
            resp,
            answer["engine"].as_str().unwrap_or("-").to_owned(),
            sum(answer, "records").saturating_sub(tombstones(answer)).to_string(),
            tombstones(answer).to_string(),
            size(sum(answer, "live_bytes")),
            size(sum(answer, "disk_bytes")),
            hints(answer),
            durations::rough(Duration::from_secs(answer["uptime_s"].as_u64().unwrap_or(0))),
        ],
        Err(_) => {
            let unknown = std::iter::repeat_with(dash).take(7);
            [state.to_owned(), node.native.clone(), resp].into_iter().chain(unknown).collect()
        }
    };
    start.into_iter().chain(rest).collect()
}
