//! What a new cluster on this machine shall be: its nodes, zones, ports and numbers; and where one is already.
//!
//! **Architecture Invariant:** a cluster that cannot be is refused before anything is written, and whatever is written
//! before a failure lets the next start go on.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::TcpListener;

use control::bootstrap::{self, Blueprint, RingShape};
use coordination::DOCUMENT_BYTES_MAX;
use coordination::address::Place;
use model::{Cluster, ClusterId, Consistency, Node, NodeId, Weight, Zone};
use runtime::Entropy;
use runtime::entropy::os::OsEntropy;

use super::arguments::{DevArguments, ShapeArguments};
use super::closed::Closed;
use crate::cluster_command::create::prepare;
use crate::coordination::find_documents;
use crate::failure::CliError;
use crate::text::count;

/// First port of the native protocol that a new cluster tries; node 1 takes the next one.
const NATIVE_PORT_BASE: u16 = 7400;
/// First port of the Redis door that a new cluster tries; node 1 takes the next one.
const RESP_PORT_BASE: u16 = 7500;
/// First port of the HTTP door that a new cluster tries; node 1 takes the next one.
const HTTP_PORT_BASE: u16 = 7600;
/// From a node's native port to its Redis port, when the base is given.
const RESP_PORT_OFFSET: u16 = 100;
/// From a node's native port to its HTTP port, when the base is given.
const HTTP_PORT_OFFSET: u16 = 200;

/// Whether a new cluster can be as it is asked for.
///
/// # Errors
/// What cannot be, and what to ask for instead.
pub(crate) fn check(arguments: &ShapeArguments) -> Result<(), CliError> {
    let (nodes, zones) = (arguments.nodes_wanted(), arguments.zones_wanted());
    if zones > nodes {
        return Err(CliError::Usage(format!(
            "{zones} zones need at least {zones} nodes, and there are {nodes}; raise --nodes or lower --zones"
        )));
    }
    let address = "255.255.255.255:65535".to_owned();
    let node = |index: u32| Node::new(NodeId(index), zone(arguments, index), address.clone(), None);
    blueprint_of("dev", (1..=nodes).map(node).collect(), arguments)?;
    if arguments.port_base.is_some() {
        place_nodes(arguments)?;
    }
    Ok(())
}

/// The cluster of a data directory, and where its documents are.
pub(super) struct Standing {
    pub(super) cluster: Cluster,
    /// Up to which id its nodes are this command's own: later ones were added with `tontine serve`.
    pub(super) own: NodeId,
    pub(super) place: Place,
}

/// The cluster whose documents are, or were before they moved, in a directory; a new one when there is none yet.
pub(super) async fn create_or_find(
    arguments: &DevArguments,
    here: Place,
    closed: Option<&Closed>,
) -> Result<Standing, CliError> {
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
    Ok(Standing { cluster, own, place })
}

/// A cluster of this machine, on ports that are free now.
pub(crate) fn blueprint(name: &str, arguments: &ShapeArguments) -> Result<Blueprint, CliError> {
    let nodes = place_nodes(arguments)?;
    blueprint_of(name, nodes, arguments)
}

/// A cluster of these nodes.
pub(crate) fn blueprint_of(
    name: &str,
    nodes: Vec<Node>,
    arguments: &ShapeArguments,
) -> Result<Blueprint, CliError> {
    let consistency = consistency(arguments)?;
    let blueprint = Blueprint::new(name, nodes, consistency);
    let blueprint = blueprint.map_err(|error| CliError::Other(error.to_string()))?;
    let partitions = arguments.partitions.unwrap_or(blueprint.partitions);
    let id = Some(ClusterId(OsEntropy.next_u64()));
    let ring = arguments.ring_wanted();
    if ring == RingShape::Golden {
        check_golden(&blueprint.nodes, arguments)?;
    }
    let blueprint = Blueprint { id, ring, partitions, ..blueprint };
    let document = serde_json::to_vec(&blueprint.cluster()).expect("a cluster is plain data");
    if document.len() > DOCUMENT_BYTES_MAX {
        return Err(CliError::Usage(format!(
            "{partitions} partitions make a cluster document of {} bytes, and the limit is {DOCUMENT_BYTES_MAX}; lower \
             --partitions",
            document.len()
        )));
    }
    Ok(blueprint)
}

/// Whether a golden ring can be as it is asked for: its partitions are as many as its nodes, and lists follow the ring
/// alone.
fn check_golden(nodes: &[Node], arguments: &ShapeArguments) -> Result<(), CliError> {
    if arguments.partitions.is_some() {
        return Err(CliError::Usage(
            "a golden ring has one partition for each node; leave out --partitions, or --ring golden"
                .to_owned(),
        ));
    }
    let first = nodes.first();
    if let Some(heavy) = nodes.iter().find(|node| node.weight != Weight::default()) {
        return Err(CliError::Usage(format!(
            "a golden ring has no weights, and {} has weight {}; leave out --ring golden",
            heavy.id,
            heavy.weight.get()
        )));
    }
    match nodes.iter().find(|node| first.is_some_and(|first| first.zone != node.zone)) {
        Some(other) => Err(CliError::Usage(format!(
            "a golden ring has no zones, and {} is in zone {} while {} is in zone {}; name one zone for all nodes, or leave \
             out --ring golden",
            other.id, other.zone, nodes[0].id, nodes[0].zone
        ))),
        None => Ok(()),
    }
}

/// The zone of a node of a new cluster on this machine.
fn zone(arguments: &ShapeArguments, index: u32) -> Zone {
    Zone(format!("zone-{}", (index - 1) % arguments.zones_wanted() + 1))
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

fn consistency(arguments: &ShapeArguments) -> Result<Consistency, CliError> {
    if let Some(consistency) = arguments.consistency {
        if u32::from(consistency.replicas) > arguments.nodes_wanted() {
            return Err(too_few(consistency.replicas, arguments.nodes_wanted()));
        }
        return Ok(consistency);
    }
    let most = u8::try_from(arguments.nodes_wanted().min(3)).expect("at most three");
    let replicas = arguments.replicas.unwrap_or(most);
    if replicas == 0 || u32::from(replicas) > arguments.nodes_wanted() {
        return Err(too_few(replicas, arguments.nodes_wanted()));
    }
    let majority = replicas / 2 + 1;
    Ok(Consistency { replicas, reads_required: majority, writes_required: majority })
}

fn too_few(replicas: u8, nodes: u32) -> CliError {
    CliError::Other(match replicas {
        0 => "a store needs at least 1 replica of each key; raise --replicas".to_owned(),
        _ => format!(
            "{replicas} replicas need at least {replicas} nodes, and there are {nodes}; raise --nodes, or ask for fewer \
             replicas"
        ),
    })
}

/// Nodes with their zones and free ports.
fn place_nodes(arguments: &ShapeArguments) -> Result<Vec<Node>, CliError> {
    let mut nodes = Vec::new();
    let native_base = arguments.port_base.unwrap_or(NATIVE_PORT_BASE);
    let resp_base = arguments.port_base.map_or(RESP_PORT_BASE, |base| base + RESP_PORT_OFFSET);
    let http_base = arguments.port_base.map_or(HTTP_PORT_BASE, |base| base + HTTP_PORT_OFFSET);
    let may_differ = arguments.port_base.is_none();
    let mut wanted = Vec::new();
    // Held until all are found, so that none is handed out twice.
    let mut held = Vec::new();
    for index in 1..=arguments.nodes_wanted() {
        let offset = u16::try_from(index).expect("at most 64 nodes");
        let mut find = |port, door| {
            free_address(port, may_differ, &mut held)
                .map_err(|error| not_free(arguments, index, port, door, error))
        };
        let native = find(native_base + offset, "the native protocol")?;
        let resp = find(resp_base + offset, "Redis clients")?;
        let http = find(http_base + offset, "HTTP clients")?;
        wanted.extend([
            (native_base + offset, native.clone()),
            (resp_base + offset, resp.clone()),
            (http_base + offset, http.clone()),
        ]);
        let node = Node::new(NodeId(index), zone(arguments, index), native, Some(resp));
        nodes.push(Node { http: Some(http), ..node });
    }
    warn_of_other_ports(&wanted);
    Ok(nodes)
}

/// Says which of the usual ports were taken.
fn warn_of_other_ports(wanted: &[(u16, String)]) {
    let is_other = |(port, address): &&(u16, String)| !address.ends_with(&format!(":{port}"));
    let taken: Vec<String> = wanted.iter().filter(is_other).map(|(port, _)| port.to_string()).collect();
    if !taken.is_empty() {
        say!(
            "warning: {} in use, so this cluster uses other ports, and keeps them; to choose the ports, create a cluster \
             with --port-base and a new --data-dir",
            match &taken[..] {
                [port] => format!("port {port} is"),
                ports => format!("ports {} are", ports.join(", ")),
            }
        );
    }
}

/// The wanted port if it is free; otherwise any, if it may differ.
fn free_address(port: u16, may_differ: bool, held: &mut Vec<TcpListener>) -> std::io::Result<String> {
    let listener = TcpListener::bind(("127.0.0.1", port))
        .or_else(|error| if may_differ { TcpListener::bind(("127.0.0.1", 0)) } else { Err(error) })?;
    let address = listener.local_addr()?;
    held.push(listener);
    Ok(address.to_string())
}

/// Says that a port cannot be taken, who has it as far as that can be told, and what to do.
fn not_free(arguments: &ShapeArguments, node: u32, port: u16, door: &str, error: std::io::Error) -> CliError {
    let Some(base) = arguments.port_base else {
        return CliError::io("no free port on 127.0.0.1")(error);
    };
    let reason = match error.kind() {
        ErrorKind::AddrInUse => format!("is in use{}", crate::port_holder::shown(port)),
        _ => format!("cannot be used ({error})"),
    };
    let ranges = [0, RESP_PORT_OFFSET, HTTP_PORT_OFFSET].map(|offset| {
        let first = u32::from(base + offset);
        format!("{} to {}", first + 1, first + arguments.nodes_wanted())
    });
    CliError::Other(format!(
        "port {port} on 127.0.0.1, for {door} at node {node}, {reason}; choose another --port-base PORT (this one needs \
         {}, {} and {}), or leave it out to use any free ports; no cluster was created",
        ranges[0], ranges[1], ranges[2],
    ))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Dev {
        #[command(flatten)]
        arguments: DevArguments,
    }

    fn dev(words: &str) -> ShapeArguments {
        Dev::try_parse_from(format!("dev {words}").split_whitespace()).unwrap().arguments.shape
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
                &dev("--nodes 4 --zones 2 --consistency 3,2,2 --partitions 1024 --port-base 7400"),
                &cluster
            ),
            [""; 0]
        );
        assert_eq!(kept(&dev("--replicas 3"), &cluster), [""; 0], "what nobody asked for");
        let other = dev("--nodes 5 --zones 3 --consistency 3,3,1 --partitions 16 --port-base 9000");
        let expected = [
            "4 nodes (not --nodes 5)",
            "2 zones (not --zones 3)",
            "N,R,W of 3,2,2 (not --consistency 3,3,1)",
            "1024 partitions (not --partitions 16)",
            "ports from 127.0.0.1:7401 on (not --port-base 9000)",
        ];
        assert_eq!(kept(&other, &cluster), expected);
        assert_eq!(kept(&dev("--nodes 4 --replicas 1"), &cluster), ["3 replicas (not --replicas 1)"]);
    }

    #[test]
    fn a_new_cluster_has_as_many_partitions_as_are_asked_for_and_odd_numbers_are_refused() {
        let node = Node::new(NodeId(1), Zone("a".to_owned()), "127.0.0.1:7401".to_owned(), None);
        for (asked, buckets) in [(1, 4096), (16, 4096), (32, 4096), (8192, 8192)] {
            let shape = dev(&format!("--nodes 1 --partitions {asked}"));
            let cluster = blueprint_of("dev", vec![node.clone()], &shape).unwrap().cluster();
            assert_eq!((cluster.ring.partitions().len(), cluster.buckets), (asked, buckets));
        }
        let refused = |count: &str| {
            let parsed = Dev::try_parse_from(["dev", "--partitions", count]);
            parsed.err().map(|error| error.to_string()).unwrap_or_default()
        };
        for count in ["0", "x", "2097152", "99999999999999999999"] {
            let said = refused(count);
            assert!(said.contains("expected a power of two from 1 to 1048576"), "{count}: {said}");
        }
        assert!(refused("1000").contains("from 1 to 1048576, for example 1024"));
        let said = check(&dev("--partitions 1048576")).unwrap_err().to_string();
        assert!(said.contains("1048576 partitions make a cluster document of"), "{said}");
    }
}
