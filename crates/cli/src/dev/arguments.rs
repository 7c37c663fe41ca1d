//! What a cluster on this machine is asked to be.

use std::path::PathBuf;

use crate::node_settings::NodeSettings;
use crate::shape::ShapeArguments;

/// Runs a cluster on this machine until Ctrl-C.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tontine dev                                    three nodes, data in ./tontine-data; requests survive killing one
  tontine dev --nodes 5 --zones 3 --data-dir d   five nodes in three zones, data in ./d
  tontine dev --engine memory --nodes 1          for application tests: no data is kept

A cluster keeps the nodes, zones, N, R, W and ports that it was created with.")]
pub struct DevArguments {
    /// What a new cluster shall be.
    #[command(flatten)]
    pub shape: ShapeArguments,
    /// Where the cluster keeps its data. A cluster that is already there starts again with its own settings.
    #[arg(long, default_value = "tontine-data", value_name = "DIR")]
    pub data_dir: PathBuf,
    /// Start no headmaster beside the nodes.
    #[arg(long)]
    pub no_headmaster: bool,
    /// Let the cluster grow and shrink by itself between this many members, for example 3..6. Further nodes run on addresses
    /// 127.0.0.10 to 127.0.0.40.
    #[arg(long, value_parser = super::elastic::parse_range, value_name = "MIN..MAX", conflicts_with_all = ["tls", "no_headmaster"])]
    pub elastic: Option<super::elastic::Range>,
    /// Start a closed cluster: make certificates and, for a new cluster, a user `root` in the folder `tls` of --data-dir.
    #[arg(long)]
    pub tls: bool,
    /// How the nodes run.
    #[command(flatten)]
    pub settings: NodeSettings,
}
