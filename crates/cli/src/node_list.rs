//! `tontine node list`: who is alive, as the nodes themselves see it.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use client::Client;
use model::{Cluster, Node, NodeId, Role, Weight};
use protocol::gossip::NodeLiveness;
use protocol::rebalance::entering::Way;
use protocol::report::{NodeSeen, Parts, Report};
use serde::Serialize;
use serde_json::{Value as Json, json};

use crate::context::CliContext;
use crate::failure::CliError;
use crate::output::print;
use crate::text::{Format, size, table};

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
pub(crate) async fn list(shared: CliContext, arguments: NodeListArguments) -> Result<ExitCode, CliError> {
    let client = shared.client().await?;
    loop {
        let Listing { mut document, mut text, is_calm } = if arguments.all_views {
            all_views(&client).await
        } else {
            one_view(&client, arguments.from).await?
        };
        if let Some(seen) = crate::orders::look(&shared).await {
            text.push_str(&waiting_text(&seen.waiting));
            document["waiting"] = seen.waiting.iter().map(waiting_json).collect();
        }
        if arguments.watch && shared.format() == Format::Text && std::io::stdout().is_terminal() {
            // Home, and clear to the end: a watch shows the present.
            let _ = write!(crate::output::Stdout, "\x1b[H\x1b[2J");
        }
        print(shared.format(), &document, || text);
        if !arguments.watch {
            return Ok(if is_calm { ExitCode::SUCCESS } else { ExitCode::from(1) });
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

/// What is shown.
struct Listing {
    document: Json,
    text: String,
    /// Whether no node is suspected or down in any view, and all views are there.
    is_calm: bool,
}

/// A node as another one sees it, with what the cluster document says of it.
#[derive(Serialize)]
struct Row<'a> {
    #[serde(flatten)]
    seen: &'a NodeSeen,
    #[serde(flatten)]
    documented: Option<Documented>,
}

/// What the cluster document says of a node: its role, and what moves to it and away from it.
#[derive(Serialize)]
struct Documented {
    role: Role,
    weight: Weight,
    partitions_in: usize,
    partitions_out: usize,
}

impl Documented {
    fn of(cluster: &Cluster, node: NodeId) -> Option<Documented> {
        let node = cluster.node(node)?;
        let definitions = cluster.definitions();
        let partitions = cluster.ring.partitions().iter();
        let ways: Vec<Way> =
            partitions.filter_map(|partition| Way::of(&definitions, partition, node.id)).collect();
        let count = |way| ways.iter().filter(|of| **of == way).count();
        Some(Documented {
            role: node.role,
            weight: node.weight,
            partitions_in: count(Way::Enters),
            partitions_out: count(Way::Leaves),
        })
    }

    /// What moves to the node and away from it.
    fn moves(&self) -> String {
        let moves = [(self.partitions_in, "in"), (self.partitions_out, "out")];
        let words = moves.iter().filter(|(count, _)| *count > 0).map(|(count, way)| format!("{count} {way}"));
        let words: Vec<String> = words.collect();
        if words.is_empty() { "-".to_owned() } else { words.join(", ") }
    }
}

/// Whether no node is suspected or down.
fn is_calm(view: &Report) -> bool {
    let mut seen = view.nodes.iter().flatten();
    seen.all(|seen| matches!(seen.state, NodeLiveness::Alive | NodeLiveness::Left))
}

async fn one_view(client: &Client, from: Option<u32>) -> Result<Listing, CliError> {
    let cluster = client.cluster();
    let asked = cluster.nodes.iter().map(|node| node.id).filter(|id| from.is_none_or(|from| from == id.0));
    let mut reasons = Vec::new();
    for node in asked {
        match client.report(node, Parts::NODES).await {
            Ok(view) => {
                let seen = view.nodes.iter().flatten();
                let rows: Vec<Row<'_>> =
                    seen.map(|seen| Row { seen, documented: Documented::of(&cluster, seen.node) }).collect();
                let text = format!("as seen by {node}\n\n{}", view_table(&rows));
                let mut document = json!(view);
                document["nodes"] = json!(rows);
                return Ok(Listing { document, text, is_calm: is_calm(&view) });
            }
            Err(reason) => reasons.push(format!("{node}: {reason}")),
        }
    }
    Err(match reasons.is_empty() {
        true => CliError::Other(format!("the cluster has no node {}", from.unwrap_or_default())),
        false => CliError::Other(format!("no node answers; {}", reasons.join("; "))),
    })
}

fn view_table(nodes: &[Row<'_>]) -> String {
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
    rows.extend(nodes.iter().map(view_row));
    table(&rows)
}

fn view_row(Row { seen, documented }: &Row<'_>) -> Vec<String> {
    fn or_dash<T: ToString>(value: Option<T>) -> String {
        value.map_or("-".to_owned(), |value| value.to_string())
    }
    let said = &seen.said;
    vec![
        seen.node.to_string(),
        or_dash(seen.zone.as_ref()),
        seen.state.name().to_owned(),
        or_dash(documented.as_ref().map(|of| role(of.role))),
        or_dash(documented.as_ref().map(|of| of.weight.get())),
        or_dash(documented.as_ref().map(Documented::moves)),
        format!("{:.1}", seen.phi),
        format!("{:.1} s ago", seen.heard_ms_ago as f64 / 1000.0),
        or_dash(said.incarnation),
        or_dash(said.generation.map(|generation| generation.0)),
        or_dash(said.operations_per_second),
        or_dash(said.data_bytes.map(size)),
        seen.why.clone(),
    ]
}

fn role(role: Role) -> &'static str {
    match role {
        Role::Serving => "serving",
        Role::Leaving => "leaving",
        Role::Standby => "standby",
    }
}

async fn all_views(client: &Client) -> Listing {
    let cluster = client.cluster();
    let asks = cluster.nodes.iter().map(|node| async move {
        let view = client.report(node.id, Parts::NODES).await;
        (node.id, view.map_err(|error| error.to_string()))
    });
    let views = futures_util::future::join_all(asks).await;
    let document = json!({
        "views": views
            .iter()
            .map(|(node, view)| match view {
                Ok(view) => json!(view),
                Err(reason) => json!({ "node": node, "error": reason }),
            })
            .collect::<Vec<_>>(),
    });
    let state_of = |view: &Report, node| view.seen(node).map_or("-", |seen| seen.state.name());
    let mut heading = vec!["SEEN BY".to_owned()];
    heading.extend(cluster.nodes.iter().map(|node| node.id.to_string()));
    let mut rows = vec![heading];
    for (viewer, view) in &views {
        let mut row = vec![viewer.to_string()];
        row.extend(cluster.nodes.iter().map(|node| match view {
            Ok(_) if node.id == *viewer => "-".to_owned(),
            Ok(view) => state_of(view, node.id).to_owned(),
            Err(_) => "?".to_owned(),
        }));
        rows.push(row);
    }
    let disputed: Vec<String> = cluster
        .nodes
        .iter()
        .filter(|node| {
            let states = views.iter().filter(|(viewer, _)| *viewer != node.id);
            let mut states = states.filter_map(|(_, view)| Some(state_of(view.as_ref().ok()?, node.id)));
            let first = states.next();
            states.any(|state| Some(state) != first)
        })
        .map(|node| node.id.to_string())
        .collect();
    let verdict = match disputed.is_empty() {
        true => "all views agree".to_owned(),
        false => format!("views differ about {}", disputed.join(", ")),
    };
    Listing {
        document,
        text: format!("{}\n{verdict}", table(&rows)),
        is_calm: views.iter().all(|(_, view)| view.as_ref().is_ok_and(is_calm)),
    }
}
