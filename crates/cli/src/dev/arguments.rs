//! What a cluster on this machine is asked to be.

use std::path::PathBuf;

use model::Consistency;

use crate::node_settings::NodeSettings;

/// Runs a cluster on this machine until Ctrl-C.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tontine dev                                    three nodes in one process, data in ./tontine-data
  tontine dev --separate-processes               one process for each node: kill one, and nothing fails
  tontine dev --nodes 5 --zones 3 --data-dir d   five nodes over three zones, data in ./d
  tontine dev --engine memory --nodes 1          for tests of an application: nothing is kept

Nodes, zones, N, R, W and ports are settled when the data directory is new; later starts keep them.")]
pub struct DevArguments {
    /// Nodes of a new cluster, 1 to 64; 3 by default.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=64), value_name = "COUNT")]
    pub nodes: Option<u32>,
    /// Zones (failure domains) over which a new cluster's nodes are spread, 1 to 64; 1 by default.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=64), value_name = "COUNT")]
    pub zones: Option<u32>,
    /// N, R and W of a new cluster's stores, for example `3,2,2`: replicas of each key, replicas that a get and that a
    /// put waits for. By default three replicas (or as many as there are nodes) and majorities.
    #[arg(long, value_parser = parse_consistency, value_name = "N,R,W")]
    pub consistency: Option<Consistency>,
    /// Replicas of a new cluster's stores, with majorities for R and W; 3 by default.
    #[arg(long, conflicts_with = "consistency", value_name = "COUNT")]
    pub replicas: Option<u8>,
    /// Where the cluster keeps its data; made if need be. An existing cluster goes on as it was.
    #[arg(long, default_value = "tontine-data", value_name = "DIR")]
    pub data_dir: PathBuf,
    /// Ports of a new cluster: node n serves the native protocol on PORT + n and Redis clients on PORT + 100 + n.
    /// By default 7400, and any free port where one of those is taken.
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..=65_000))]
    pub port_base: Option<u16>,
    /// Run each node as a process of its own.
    #[arg(long)]
    pub separate_processes: bool,
    /// How the nodes run.
    #[command(flatten)]
    pub settings: NodeSettings,
}

impl DevArguments {
    /// Nodes of a new cluster.
    pub(super) fn nodes_wanted(&self) -> u32 {
        self.nodes.unwrap_or(3)
    }

    /// Zones of a new cluster.
    pub(super) fn zones_wanted(&self) -> u32 {
        self.zones.unwrap_or(1)
    }
}

/// Reads `N,R,W`.
fn parse_consistency(text: &str) -> Result<Consistency, String> {
    let numbers: Vec<u8> = text.split(',').map_while(|part| part.trim().parse().ok()).collect();
    let [replicas, reads_required, writes_required] = numbers[..] else {
        return Err("expected N,R,W, for example 3,2,2".to_owned());
    };
    let consistency = Consistency { replicas, reads_required, writes_required };
    consistency.validate().map_err(|error| error.to_string())?;
    Ok(consistency)
}
