//! `tontine cluster admit`: the cluster document names nodes that wait.
//!
//! Must never: touch the ring. A node that is admitted holds no partition until a plan gives it some.

use std::collections::BTreeSet;
use std::process::ExitCode;

use coordination::documents::{self, ActiveNode};
use model::NodeId;
use serde_json::json;

use super::{registered, shown, unread};
use crate::coordination::CoordinationArguments;
use crate::failure::CliError;
use crate::output::print;
use crate::shared::Shared;

/// Which nodes.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Example: start a fourth node of a `tontine dev` cluster, and let it in
  tontine serve --coordination dir:tontine-data/coordination --data-dir tontine-data/node-4
  tontine cluster admit --coordination dir:tontine-data/coordination

A node that is admitted serves requests for all keys. It holds no partitions until a plan gives it some: run
`tontine plan create spread`. Where a headmaster runs, `tontine node add` does the same.")]
pub struct AdmitArguments {
    /// Ids of the nodes, such as 4; all nodes that wait by default.
    #[arg(value_name = "ID")]
    pub ids: Vec<u32>,
    /// Where the documents of the cluster are.
    #[command(flatten)]
    pub service: CoordinationArguments,
}

/// Carries it out.
pub(super) async fn run(shared: Shared, arguments: AdmitArguments) -> Result<ExitCode, CliError> {
    let service = arguments.service.existing().await?;
    let cluster = documents::read_cluster(&*service).await.map_err(unread)?.ok_or_else(|| {
        CliError::Other(
            "there is no cluster yet; the first nodes are named by `tontine cluster create`".to_owned(),
        )
    })?;
    let mut waiting = registered(&*service).await?.0;
    waiting.retain(|active| cluster.node(active.node.id).is_none());
    let (left, mut waiting): (Vec<_>, Vec<_>) =
        waiting.into_iter().partition(|active| active.cluster.is_some());
    let asked: BTreeSet<NodeId> = arguments.ids.iter().copied().map(NodeId).collect();
    if let Some(odd) = asked.iter().find(|id| waiting.iter().all(|active| active.node.id != **id)) {
        let why = match cluster.node(*odd) {
            Some(_) => "is a member already",
            None if left.iter().any(|active| active.node.id == *odd) => {
                "was a member: it has left the cluster, or the coordination service was restored from an older copy"
            }
            None => "is not registered",
        };
        return Err(CliError::Other(format!("{odd} {why}; {}", waiting_line(&waiting))));
    }
    if !asked.is_empty() {
        waiting.retain(|active| asked.contains(&active.node.id));
    }
    let changed =
        documents::admit(&*service, &waiting).await.map_err(|error| match error.coordination() {
            Some(error) => CliError::Coordination(error.clone()),
            None => CliError::Other(error.to_string()),
        })?;
    // The document stands, however the session ends.
    let _ = service.close().await;
    let nodes: Vec<_> = waiting.iter().map(|active| crate::ready::node_json(&active.node, None)).collect();
    let document = json!({ "cluster": changed.name, "generation": changed.generation.0, "nodes": nodes });
    print(shared.format(), &document, || {
        if waiting.is_empty() {
            return waiting_line(&waiting);
        }
        let mut text =
            format!("cluster {} is at generation {} and names:", changed.name, changed.generation.0);
        for active in &waiting {
            text.push_str(&format!("\n  {}", shown(active)));
        }
        text.push_str(
            "\nAn admitted node serves requests for all keys, but holds no partitions; `tontine plan create spread` gives it \
             its share.",
        );
        text
    });
    Ok(if waiting.is_empty() { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

fn waiting_line(waiting: &[ActiveNode]) -> String {
    match waiting {
        [] => "no node is waiting".to_owned(),
        waiting => format!("waiting: {}", waiting.iter().map(shown).collect::<Vec<_>>().join(", ")),
    }
}
