//! The cluster of a data directory: the one that is there already, or a new one.
//!
//! **Architecture Invariant:** a cluster that cannot be is refused before anything is written, and whatever is written
//! before a failure lets the next start go on.

use std::collections::BTreeSet;

use control::bootstrap::{self, RingShape};
use coordination::address::ServicePlace;
use model::{Cluster, Consistency, Node, NodeId};

use super::arguments::DevArguments;
use super::closed::Closed;
use crate::cluster_command::create::prepare;
use crate::coordination::find_documents;
use crate::failure::CliError;
use crate::shape::{ShapeArguments, blueprint, check};
use crate::text::count;

/// The cluster of a data directory, and where its documents are.
pub(super) struct DirectoryStanding {
    pub(super) cluster: Cluster,
    /// Up to which id its nodes are this command's own: later ones were added with `tontine serve`.
    pub(super) own: NodeId,
    pub(super) place: ServicePlace,
}

/// The cluster whose documents are, or were before they moved, in a directory; a new one when there is none yet.
pub(super) async fn create_or_find(
    arguments: &DevArguments,
    here: ServicePlace,
    closed: Option<&Closed>,
) -> Result<DirectoryStanding, CliError> {
    let refused = |error: &dyn std::fmt::Display| CliError::Other(error.to_string());
    // What one node remembers of a move, all do.
    let found = find_documents(here.clone(), &arguments.data_dir.join("node-1")).await?;
    let (place, session, found) = match found {
        Some(found) => {
            if let Some(moved) = found.moved_from(&here.address) {
                say!("{moved}");
            }
            (found.place, found.session, found.cluster.map_err(|error| refused(&error))?)
        }
        None => {
            let session = crate::coordination::open(&here, true).await?;
            (here, session, None)
        }
    };
    let cluster = match found {
        Some(cluster) => {
            let kept = kept(&arguments.shape, &cluster);
            if !kept.is_empty() {
                say!(
                    "the cluster in {} already exists and keeps {}; for other settings, create a cluster with a new \
                     --data-dir",
                    arguments.data_dir.display(),
                    kept.join(", ")
                );
            }
            cluster
        }
        None => {
            check(&arguments.shape)?;
            let mut blueprint = blueprint("dev", &arguments.shape)?;
            if let Some(closed) = closed {
                blueprint.users = closed.users()?;
                blueprint.nodes.iter_mut().for_each(|node| node.tls = true);
            }
            prepare(&*session, arguments.shape.nodes_wanted()).await?;
            bootstrap::create(&*session, &blueprint).await.map_err(|error| refused(&error))?
        }
    };
    let ids = coordination::documents::read_ids(&*session).await.map_err(|error| refused(&error))?;
    session.close().await.map_err(|error| refused(&error))?;
    let own = NodeId(ids.map_or(0, |ids| ids.named));
    Ok(DirectoryStanding { cluster, own, place })
}

/// What a cluster that exists has otherwise than the arguments ask, and keeps.
fn kept(arguments: &ShapeArguments, cluster: &Cluster) -> Vec<String> {
    let mut kept = Vec::new();
    let nodes = cluster.nodes.len();
    if let Some(asked) = arguments.nodes.filter(|&asked| asked as usize != nodes) {
        kept.push(format!("{} (not --nodes {asked})", count(nodes as u64, "node")));
    }
    let zones = cluster.nodes.iter().map(|node| &node.zone).collect::<BTreeSet<_>>().len();
    if let Some(asked) = arguments.zones.filter(|&asked| asked as usize != zones) {
        kept.push(format!("{} (not --zones {asked})", count(zones as u64, "zone")));
    }
    let stands = cluster.store("default").map(|store| store.consistency);
    let numbers = |numbers: Consistency| {
        let Consistency { replicas, reads_required, writes_required } = numbers;
        format!("{replicas},{reads_required},{writes_required}")
    };
    if let Some(stands) = stands {
        if let Some(asked) = arguments.consistency.filter(|asked| *asked != stands) {
            kept.push(format!("N,R,W of {} (not --consistency {})", numbers(stands), numbers(asked)));
        }
        if let Some(asked) = arguments.replicas.filter(|asked| *asked != stands.replicas) {
            kept.push(format!("{} (not --replicas {asked})", count(stands.replicas.into(), "replica")));
        }
    }
    let golden = RingShape::Golden == arguments.ring_wanted();
    if arguments.ring.is_some() && golden != cluster.ring.is_golden() {
        let (has, asked) = if golden { ("equal", "golden") } else { ("golden", "equal") };
        kept.push(format!("a ring that is {has} (not --ring {asked})"));
    }
    let partitions = cluster.ring.partitions().len();
    if let Some(asked) = arguments.partitions.filter(|&asked| asked != partitions) {
        kept.push(format!("{} (not --partitions {asked})", count(partitions as u64, "partition")));
    }
    let at = |node: &Node, base: u16| node.native.ends_with(&format!(":{}", u32::from(base) + node.id.0));
    if let Some(base) = arguments.port_base.filter(|&base| !cluster.nodes.iter().all(|node| at(node, base))) {
        let first = cluster.nodes.first().map_or("none", |node| node.native.as_str());
        kept.push(format!("ports from {first} on (not --port-base {base})"));
    }
    kept
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use control::bootstrap::Blueprint;
    use model::Zone;

    use super::*;

    #[derive(Parser)]
    struct Asked {
        #[command(flatten)]
        shape: ShapeArguments,
    }

    fn shape_of(words: &str) -> ShapeArguments {
        Asked::try_parse_from(format!("dev {words}").split_whitespace()).unwrap().shape
    }

    #[test]
    fn what_an_existing_cluster_has_otherwise_is_told() {
        let nodes: Vec<Node> = (1..=4_u16)
            .map(|id| {
                let native = format!("127.0.0.1:{}", 7400 + id);
                Node::new(NodeId(id.into()), Zone(format!("zone-{}", id % 2)), native, None)
            })
            .collect();
        let consistency = Consistency { replicas: 3, reads_required: 2, writes_required: 2 };
        let cluster = Blueprint::new("dev", nodes, consistency).unwrap().cluster();
        assert_eq!(
            kept(
                &shape_of("--nodes 4 --zones 2 --consistency 3,2,2 --partitions 1024 --port-base 7400"),
                &cluster
            ),
            [""; 0]
        );
        assert_eq!(kept(&shape_of("--replicas 3"), &cluster), [""; 0], "what nobody asked for");
        let other = shape_of("--nodes 5 --zones 3 --consistency 3,3,1 --partitions 16 --port-base 9000");
        let expected = [
            "4 nodes (not --nodes 5)",
            "2 zones (not --zones 3)",
            "N,R,W of 3,2,2 (not --consistency 3,3,1)",
            "1024 partitions (not --partitions 16)",
            "ports from 127.0.0.1:7401 on (not --port-base 9000)",
        ];
        assert_eq!(kept(&other, &cluster), expected);
        assert_eq!(kept(&shape_of("--nodes 4 --replicas 1"), &cluster), ["3 replicas (not --replicas 1)"]);
    }
}
