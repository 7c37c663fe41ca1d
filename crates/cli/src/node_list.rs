//! `tontine node list`: who is alive, as the nodes themselves see it.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use client::Client;
use model::{Cluster, Node, NodeId};
use protocol::rebalance::entering::Way;
use serde_json::{Value as Json, json};

use crate::failure::CliError;
use crate::output::{Format, print, size, table};
use crate::shared::Shared;

/// Pause between two looks with `--watch`.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Shows the nodes as one of them sees them.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
States:
  alive      its heartbeats arrive
  suspected  requests avoid it, and other nodes keep its writes as hints
  down       it refuses connections, or has been silent for ten seconds
  left       it announced that it was stopping

MOVES counts partitions that move to the node (in) and away from it (out).

Exits with 1 unless every node is alive or left.")]
pub struct NodeListArguments {
    /// Show the view of this node; by default, of the first node that answers.
    #[arg(long, value_name = "NUMBER")]
    pub from: Option<u32>,
    /// Show every node's view of every other node, which reveals a network that fails in one direction.
    #[arg(long, conflicts_with = "from")]
    pub all_views: bool,
    /// Refresh every second until Ctrl-C.
    #[arg(long)]
    pub watch: bool,
}

/// `tontine node list`.
pub(crate) async fn list(shared: Shared, arguments: NodeListArguments) -> Result<ExitCode, CliError> {
    let client = shared.client().await?;
    loop {
        let (mut document, mut text) = if arguments.all_views {
            all_views(&client).await
        } else {
            one_view(&client, arguments.from).await?
        };
        if let Some(seen) = crate::orders::look(&shared).await.seen() {
            text.push_str(&waiting_text(&seen.waiting));
            document["waiting"] = seen.waiting.iter().map(waiting_json).collect();
        }
        if arguments.watch && shared.format() == Format::Text && std::io::stdout().is_terminal() {
            // Home, and clear to the end: a watch shows the present.
            let _ = write!(crate::output::Stdout, "\x1b[H\x1b[2J");
        }
        print(shared.format(), &document, || text);
        if !arguments.watch {
            return Ok(if is_calm(&document) { ExitCode::SUCCESS } else { ExitCode::from(1) });
        }
        crate::output::check()?;
        tokio::time::sleep(WATCH_INTERVAL).await;
    }
}

/// Nodes that are no members yet, one a line.
fn waiting_text(waiting: &[Node]) -> String {
    let line = |node: &Node| {
        let (id, address) = (node.id, &node.native);
        format!(
            "\n{id} at {address} is no member; to make it one, run `{} node add {}`",
            crate::output::program(),
            id.0
        )
    };
    waiting.iter().map(line).collect()
}

fn waiting_json(node: &Node) -> Json {
    json!({ "node": node.id, "native": node.native, "zone": node.zone })
}

/// Whether nobody is suspected or down in any view that the document holds.
fn is_calm(document: &Json) -> bool {
    let mut views: Vec<&Json> = document["views"].as_array().into_iter().flatten().collect();
    views.push(document);
    let mut seen = views.iter().filter_map(|view| view["nodes"].as_array()).flatten();
    seen.all(|node| matches!(node["state"].as_str(), Some("alive" | "left")))
        && views.iter().all(|view| view["error"].is_null())
}

/// What a node believes about all nodes.
pub(crate) async fn ask(client: &Client, node: NodeId) -> Result<Json, String> {
    let answer = client.nodes_seen_by(node).await.map_err(|error| error.to_string())?;
    serde_json::from_slice(&answer).map_err(|error| error.to_string())
}

async fn one_view(client: &Client, from: Option<u32>) -> Result<(Json, String), CliError> {
    let cluster = client.cluster();
    let asked = cluster.nodes.iter().map(|node| node.id).filter(|id| from.is_none_or(|from| from == id.0));
    let mut reasons = Vec::new();
    for node in asked {
        match ask(client, node).await {
            Ok(mut view) => {
                add_documented(&cluster, &mut view);
                let text = format!("as seen by {node}\n\n{}", view_table(&view));
                return Ok((view, text));
            }
            Err(reason) => reasons.push(format!("{node}: {reason}")),
        }
    }
    Err(match reasons.is_empty() {
        true => CliError::Other(format!("the cluster has no node {}", from.unwrap_or_default())),
        false => CliError::Other(format!("no node answers; {}", reasons.join("; "))),
    })
}

/// What the cluster document says of each node: its role, and what moves to it and away from it.
fn add_documented(cluster: &Cluster, view: &mut Json) {
    let definitions = cluster.definitions();
    for seen in view["nodes"].as_array_mut().into_iter().flatten() {
        let is_seen = |node: &&Node| seen["node"].as_u64() == Some(u64::from(node.id.0));
        let Some(node) = cluster.nodes.iter().find(is_seen) else { continue };
        let partitions = cluster.ring.partitions().iter();
        let ways: Vec<Way> =
            partitions.filter_map(|partition| Way::of(&definitions, partition, node.id)).collect();
        let count = |way| ways.iter().filter(|of| **of == way).count();
        seen["role"] = json!(node.role);
        seen["weight"] = json!(node.weight);
        seen["partitions_in"] = json!(count(Way::Enters));
        seen["partitions_out"] = json!(count(Way::Leaves));
    }
}

/// What moves to a node and away from it.
fn moves_text(node: &Json) -> String {
    let moves = [(&node["partitions_in"], "in"), (&node["partitions_out"], "out")];
    let words = moves.iter().filter_map(|(count, way)| {
        count.as_u64().filter(|count| *count > 0).map(|count| format!("{count} {way}"))
    });
    let words: Vec<String> = words.collect();
    if words.is_empty() { "-".to_owned() } else { words.join(", ") }
}

fn view_table(view: &Json) -> String {
    let heading = [
        "NODE",
        "ZONE",
        "STATE",
        "ROLE",
        "WEIGHT",
        "MOVES",
        "PHI",
        "HEARD",
        "INCARNATION",
        "GEN",
        "OPS/S",
        "DATA",
        "WHY",
    ];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    for node in view["nodes"].as_array().into_iter().flatten() {
        let text = |field: &str| node[field].as_str().unwrap_or("-").to_owned();
        let number = |field: &str| node[field].as_u64().map_or("-".to_owned(), |number| number.to_string());
        rows.push(vec![
            format!("n{}", number("node")),
            text("zone"),
            text("state"),
            text("role"),
            number("weight"),
            moves_text(node),
            format!("{:.1}", node["phi"].as_f64().unwrap_or(0.0)),
            format!("{:.1} s ago", node["heard_ms_ago"].as_u64().unwrap_or(0) as f64 / 1000.0),
            number("incarnation"),
            number("generation"),
            number("operations_per_second"),
            node["data_bytes"].as_u64().map_or("-".to_owned(), size),
            text("why"),
        ]);
    }
    table(&rows)
}

async fn all_views(client: &Client) -> (Json, String) {
    let cluster = client.cluster();
    let asks = cluster.nodes.iter().map(|node| async move { (node.id, ask(client, node.id).await) });
    let views = futures_util::future::join_all(asks).await;
    let document = json!({
        "views": views
            .iter()
            .map(|(node, view)| match view {
                Ok(view) => view.clone(),
                Err(reason) => json!({ "node": node, "error": reason }),
            })
            .collect::<Vec<_>>(),
    });
    let mut heading = vec!["SEEN BY".to_owned()];
    heading.extend(cluster.nodes.iter().map(|node| node.id.to_string()));
    let mut rows = vec![heading];
    for (viewer, view) in &views {
        let mut row = vec![viewer.to_string()];
        row.extend(cluster.nodes.iter().map(|node| match view {
            Ok(_) if node.id == *viewer => "-".to_owned(),
            Ok(view) => state_of(view, node.id),
            Err(_) => "?".to_owned(),
        }));
        rows.push(row);
    }
    let disputed: Vec<String> = cluster
        .nodes
        .iter()
        .filter(|node| {
            let mut states = views.iter().filter(|(viewer, _)| *viewer != node.id);
            let mut states =
                states.by_ref().filter_map(|(_, view)| Some(state_of(view.as_ref().ok()?, node.id)));
            let first = states.next();
            states.any(|state| Some(&state) != first.as_ref())
        })
        .map(|node| node.id.to_string())
        .collect();
    let verdict = match disputed.is_empty() {
        true => "all views agree".to_owned(),
        false => format!("views differ about {}", disputed.join(", ")),
    };
    (document, format!("{}\n{verdict}", table(&rows)))
}

/// What a view says about a node; `-` when nothing.
pub(crate) fn state_of(view: &Json, node: NodeId) -> String {
    let nodes = view["nodes"].as_array().into_iter().flatten();
    let found = nodes.into_iter().find(|seen| seen["node"].as_u64() == Some(u64::from(node.0)));
    found.and_then(|seen| seen["state"].as_str()).unwrap_or("-").to_owned()
}
