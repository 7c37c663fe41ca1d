//! `tontine status` and `tontine doctor`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use client::{Client, ClientError};
use model::Node;
use serde_json::{Value as Json, json};

use crate::failure::CliError;
use crate::output::{print, size, table};
use crate::shared::Shared;

/// Free disk below which the doctor warns: writes stop at the engine's reserve of 128 MiB.
const DISK_LOW_BYTES: u64 = 1 << 30;

struct NodeStatus {
    node: Node,
    answer: Result<Json, ClientError>,
}

async fn ask_all(client: &Client) -> Vec<NodeStatus> {
    let cluster = client.cluster();
    let asks = cluster.nodes.iter().map(|node| async move {
        let answer = client.status(node.id).await;
        let answer = answer.map(|bytes| serde_json::from_slice(&bytes).unwrap_or(Json::Null));
        NodeStatus { node: node.clone(), answer }
    });
    futures_util::future::join_all(asks).await
}

/// `tontine status`.
pub(crate) async fn status(shared: Shared) -> Result<ExitCode, CliError> {
    let client = shared.client().await?;
    let cluster = client.cluster();
    let nodes = ask_all(&client).await;
    let document = json!({
        "cluster": cluster.name,
        "generation": cluster.generation,
        "partitions": cluster.ring.partitions().len(),
        "stores": cluster.stores,
        "nodes": nodes.iter().map(node_json).collect::<Vec<_>>(),
    });
    print(shared.format(), &document, || {
        let mut rows = vec![
            ["NODE", "ZONE", "STATE", "NATIVE", "REDIS", "ENGINE", "RECORDS", "DATA", "DISK", "HINTS", "UP"]
                .map(str::to_owned)
                .to_vec(),
        ];
        rows.extend(nodes.iter().map(node_row));
        let stores: Vec<String> = cluster
            .stores
            .iter()
            .map(|store| {
                let numbers = store.consistency;
                format!(
                    "{} (N={} R={} W={})",
                    store.name, numbers.replicas, numbers.reads_required, numbers.writes_required
                )
            })
            .collect();
        format!(
            "cluster {}, generation {}, {} partitions\nstores {}\n\n{}",
            cluster.name,
            cluster.generation.0,
            cluster.ring.partitions().len(),
            stores.join(", "),
            table(&rows)
        )
    });
    let all_up = nodes.iter().all(|node| node.answer.is_ok());
    Ok(if all_up { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn node_json(status: &NodeStatus) -> Json {
    let Node { id, zone, native, resp } = &status.node;
    let (up, answer, error) = match &status.answer {
        Ok(answer) => (true, Some(answer), None),
        Err(error) => (false, None, Some(error.to_string())),
    };
    json!({ "id": id, "zone": zone, "native": native, "resp": resp, "up": up, "status": answer, "error": error })
}

fn sum(answer: &Json, field: &str) -> u64 {
    let stores = answer["stores"].as_array().into_iter().flatten();
    stores.filter_map(|store| store[field].as_u64()).sum()
}

fn hints(answer: &Json) -> u64 {
    answer["hints"].as_array().into_iter().flatten().filter_map(|hint| hint["hints"].as_u64()).sum()
}

fn node_row(status: &NodeStatus) -> Vec<String> {
    let NodeStatus { node, answer } = status;
    let dash = || "-".to_owned();
    let resp = node.resp.clone().unwrap_or_else(dash);
    let start = vec![node.id.to_string(), node.zone.to_string()];
    let rest = match answer {
        Ok(answer) => vec![
            "up".to_owned(),
            node.native.clone(),
            resp,
            answer["engine"].as_str().unwrap_or("-").to_owned(),
            sum(answer, "records").to_string(),
            size(sum(answer, "live_bytes")),
            size(sum(answer, "disk_bytes")),
            hints(answer).to_string(),
            format!("{} s", answer["uptime_s"].as_u64().unwrap_or(0)),
        ],
        Err(_) => {
            vec!["down".to_owned(), node.native.clone(), resp, dash(), dash(), dash(), dash(), dash(), dash()]
        }
    };
    start.into_iter().chain(rest).collect()
}

/// One thing that the doctor found.
struct Finding {
    bad: bool,
    what: String,
    next: String,
}

/// `tontine doctor`.
pub(crate) async fn doctor(shared: Shared) -> Result<ExitCode, CliError> {
    let client = shared.client().await?;
    let nodes = ask_all(&client).await;
    let mut findings = Vec::new();
    let cluster = client.cluster();
    for store in &cluster.stores {
        let numbers = store.consistency;
        if !numbers.quorums_intersect() {
            findings.push(Finding {
                bad: false,
                what: format!(
                    "store {}: R + W is not above N, so a get may miss an acknowledged put",
                    store.name
                ),
                next: "raise R or W if clients must read their own writes".to_owned(),
            });
        }
        if usize::from(numbers.replicas) > cluster.nodes.len() {
            findings.push(Finding {
                bad: true,
                what: format!(
                    "store {} wants {} replicas, there are fewer nodes",
                    store.name, numbers.replicas
                ),
                next: "add nodes".to_owned(),
            });
        }
    }
    for status in &nodes {
        examine(status, cluster.generation.0, &nodes, &mut findings);
    }
    findings.extend(waiting_hints(&nodes));
    let healthy = !findings.iter().any(|finding| finding.bad);
    let document = json!({
        "healthy": healthy,
        "findings": findings
            .iter()
            .map(|finding| json!({ "bad": finding.bad, "what": finding.what, "next": finding.next }))
            .collect::<Vec<_>>(),
    });
    print(shared.format(), &document, || describe(&findings, nodes.len()));
    Ok(if healthy { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn describe(findings: &[Finding], nodes: usize) -> String {
    if findings.is_empty() {
        return format!("healthy: all {nodes} nodes answer, and nothing waits");
    }
    let mut text = String::new();
    for finding in findings {
        let mark = if finding.bad { "bad " } else { "note" };
        text.push_str(&format!("{mark}  {}\n      next: {}\n", finding.what, finding.next));
    }
    text
}

/// What the nodes hold for each other, one finding for each node that waits for something.
fn waiting_hints(nodes: &[NodeStatus]) -> Vec<Finding> {
    let mut waiting: BTreeMap<u64, (u64, Vec<String>)> = BTreeMap::new();
    for status in nodes {
        let Ok(answer) = &status.answer else { continue };
        for hint in answer["hints"].as_array().into_iter().flatten() {
            let (Some(target), Some(count)) = (hint["target"].as_u64(), hint["hints"].as_u64()) else {
                continue;
            };
            if count > 0 {
                let (total, holders) = waiting.entry(target).or_default();
                *total += count;
                holders.push(status.node.id.to_string());
            }
        }
    }
    let is_up =
        |id: u64| nodes.iter().any(|status| u64::from(status.node.id.0) == id && status.answer.is_ok());
    let finding = |(target, (count, holders)): (u64, (u64, Vec<String>))| Finding {
        bad: false,
        what: format!("{count} hints wait for n{target}, held by {}", holders.join(", ")),
        next: if is_up(target) {
            "nothing: the writes are safe where they are, and gets repair what that node lacks".to_owned()
        } else {
            format!("start node {target} again; the writes are safe where they are until then")
        },
    };
    waiting.into_iter().map(finding).collect()
}

/// How to start a node again: as it was started, or as its neighbours' directories suggest.
fn start_again(dead: &Node, nodes: &[NodeStatus]) -> String {
    let places = nodes.iter().filter_map(|status| Some(&status.answer.as_ref().ok()?["place"]));
    let text =
        |place: &Json, field: &str| place[field].as_str().filter(|text| !text.is_empty()).map(PathBuf::from);
    let mut guess = None;
    for place in places {
        let Some(coordination) = text(place, "coordination_directory") else { continue };
        if let Some(launch) = crate::holder::noted_launch(&coordination, dead.id) {
            let password = if launch.needs_password { " (with its TONTINE_PASSWORD)" } else { "" };
            return format!(
                "start it again{password}, from the folder {}, and look at what it says:\n        {}",
                launch.directory, launch.command
            );
        }
        let data = text(place, "data_directory")
            .and_then(|data| Some(data.parent()?.join(format!("node-{}", dead.id.0))));
        guess = guess.or_else(|| Some((data?, coordination)));
    }
    match guess {
        Some((data, coordination)) if data.is_dir() => {
            let words = [
                crate::output::program(),
                "node".to_owned(),
                format!("--id={}", dead.id.0),
                format!("--data-dir={}", data.display()),
                format!("--coordination={}", coordination.display()),
            ];
            format!("start it again, and look at what it says:\n        {}", crate::holder::shell(&words))
        }
        _ => format!(
            "start it again on its machine, and look at what it says:\n        tontine node --id={} --data-dir=DIR \
             --coordination=DIR",
            dead.id.0
        ),
    }
}

fn examine(status: &NodeStatus, generation: u64, nodes: &[NodeStatus], findings: &mut Vec<Finding>) {
    let id = status.node.id;
    let answer = match &status.answer {
        Ok(answer) => answer,
        Err(error) => {
            findings.push(Finding {
                bad: true,
                what: format!("{id} at {} does not answer: {error}", status.node.native),
                next: start_again(&status.node, nodes),
            });
            return;
        }
    };
    if answer["generation"].as_u64() != Some(generation) {
        findings.push(Finding {
            bad: true,
            what: format!("{id} is at generation {}, this client at {generation}", answer["generation"]),
            next: "wait a moment; if it stays, the node cannot reach the coordination service".to_owned(),
        });
    }
    let corrupt = sum(answer, "corrupt_records_total");
    if corrupt > 0 {
        findings.push(Finding {
            bad: true,
            what: format!("{id} found {corrupt} records that fail their checksum since it started"),
            next: "check the disk; gets are answered by the other replicas".to_owned(),
        });
    }
    if answer["engine"] == "log"
        && let Some(free) = answer["disk_available_bytes"].as_u64()
        && free < DISK_LOW_BYTES
    {
        findings.push(Finding {
            bad: true,
            what: format!("{id} has {} of disk left", size(free)),
            next: "make room; writes are refused when the reserve of 128 MiB is reached".to_owned(),
        });
    }
}
