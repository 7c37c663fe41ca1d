//! What a cluster on this machine is asked to be.

use std::path::PathBuf;

use control::bootstrap::RingShape;
use model::Consistency;
use model::limits::PARTITIONS_MAX;

use crate::node_settings::NodeSettings;

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
    /// Let the cluster grow and shrink by itself between so many members, for example 3..6. Further nodes run on addresses
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

/// What a new cluster on this machine shall be.
#[derive(Clone, Debug, clap::Args)]
pub struct ShapeArguments {
    /// Number of nodes in a new cluster, 1 to 64; 3 by default.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=64), value_name = "COUNT")]
    pub nodes: Option<u32>,
    /// Number of zones (failure domains) in a new cluster, 1 to 64; 1 by default.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=64), value_name = "COUNT")]
    pub zones: Option<u32>,
    /// N, R and W of the stores in a new cluster, for example `3,2,2`: the replicas of each key, how many must answer a
    /// get, and how many must acknowledge a put. By default, N is 3 or the number of nodes, and R and W are majorities.
    #[arg(long, value_parser = parse_consistency, value_name = "N,R,W")]
    pub consistency: Option<Consistency>,
    /// Replicas of each key in a new cluster, with majorities for R and W; 3 by default.
    #[arg(long, conflicts_with = "consistency", value_name = "COUNT")]
    pub replicas: Option<u8>,
    /// Partitions of a new cluster, a power of two; 1024 by default. Each is moved as a whole.
    #[arg(long, value_parser = parse_partitions, value_name = "COUNT")]
    pub partitions: Option<usize>,
    /// How the ring of a new cluster is cut: into equal slices, or golden, with one partition for each node. A node that
    /// joins a golden ring gets a part of the largest partition. There are no weights and zones.
    #[arg(long, value_enum, value_name = "SHAPE")]
    pub ring: Option<RingKind>,
    /// Ports of a new cluster: node n serves the native protocol on PORT + n, Redis clients on PORT + 100 + n, and HTTP
    /// clients on PORT + 200 + n. The default is 7400, with any free port in place of one that is in use.
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..=65_000))]
    pub port_base: Option<u16>,
}

/// How a ring is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum RingKind {
    /// Into equal slices.
    Equal,
    /// Into one partition for each node, by the golden ratio.
    Golden,
}

impl ShapeArguments {
    /// How the ring of a new cluster is cut.
    pub(crate) fn ring_wanted(&self) -> RingShape {
        match self.ring {
            Some(RingKind::Golden) => RingShape::Golden,
            Some(RingKind::Equal) | None => RingShape::Equal,
        }
    }

    /// Nodes of a new cluster.
    pub(crate) fn nodes_wanted(&self) -> u32 {
        self.nodes.unwrap_or(3)
    }

    /// Zones of a new cluster.
    pub(super) fn zones_wanted(&self) -> u32 {
        self.zones.unwrap_or(1)
    }
}

/// Reads how many partitions there shall be. They are of the same size and made of whole buckets, so there are as many as
/// a power of two.
fn parse_partitions(text: &str) -> Result<usize, String> {
    let expected = format!("expected a power of two from 1 to {PARTITIONS_MAX}");
    let count: usize = text.parse().map_err(|_| expected.clone())?;
    if count == 0 || count > PARTITIONS_MAX {
        return Err(expected);
    }
    match count.is_power_of_two() {
        true => Ok(count),
        false => Err(format!("{expected}, for example {}", count.next_power_of_two())),
    }
}

/// Reads `N,R,W`.
pub(crate) fn parse_consistency(text: &str) -> Result<Consistency, String> {
    let numbers: Vec<u8> = text.split(',').map_while(|part| part.trim().parse().ok()).collect();
    let [replicas, reads_required, writes_required] = numbers[..] else {
        return Err("expected N,R,W, for example 3,2,2".to_owned());
    };
    let consistency = Consistency { replicas, reads_required, writes_required };
    consistency.validate().map_err(|error| error.to_string())?;
    Ok(consistency)
}
