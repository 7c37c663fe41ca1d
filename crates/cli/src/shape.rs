//! What a new cluster shall be: its nodes, zones, ports, numbers and ring.
//!
//! `tontine dev` and `tontine cluster create` ask for the same, and refuse the same.
//!
//! **Architecture Invariant:** nothing is written here, so what cannot be leaves no trace.

use std::io::ErrorKind;
use std::net::TcpListener;

use control::bootstrap::{Blueprint, RingShape};
use coordination::DOCUMENT_BYTES_MAX;
use model::limits::PARTITIONS_MAX;
use model::{ClusterId, Consistency, Node, NodeId, Weight, Zone};
use runtime::Entropy;
use runtime::entropy::os::OsEntropy;

use crate::failure::CliError;

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
    pub(crate) fn zones_wanted(&self) -> u32 {
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
    struct Asked {
        #[command(flatten)]
        shape: ShapeArguments,
    }

    fn shape_of(words: &str) -> ShapeArguments {
        Asked::try_parse_from(format!("dev {words}").split_whitespace()).unwrap().shape
    }

    #[test]
    fn a_new_cluster_has_as_many_partitions_as_are_asked_for_and_odd_numbers_are_refused() {
        let node = Node::new(NodeId(1), Zone("a".to_owned()), "127.0.0.1:7401".to_owned(), None);
        for (asked, buckets) in [(1, 4096), (16, 4096), (32, 4096), (8192, 8192)] {
            let shape = shape_of(&format!("--nodes 1 --partitions {asked}"));
            let cluster = blueprint_of("dev", vec![node.clone()], &shape).unwrap().cluster();
            assert_eq!((cluster.ring.partitions().len(), cluster.buckets), (asked, buckets));
        }
        let refused = |count: &str| {
            let parsed = Asked::try_parse_from(["dev", "--partitions", count]);
            parsed.err().map(|error| error.to_string()).unwrap_or_default()
        };
        for count in ["0", "x", "2097152", "99999999999999999999"] {
            let said = refused(count);
            assert!(said.contains("expected a power of two from 1 to 1048576"), "{count}: {said}");
        }
        assert!(refused("1000").contains("from 1 to 1048576, for example 1024"));
        let said = check(&shape_of("--partitions 1048576")).unwrap_err().to_string();
        assert!(said.contains("1048576 partitions make a cluster document of"), "{said}");
    }
}
