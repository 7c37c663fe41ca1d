//! `tontine dev`: a whole cluster on this machine, from one command.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use control::bootstrap::{self, Blueprint};
use coordination::CoordinationService;
use coordination::embedded::EmbeddedSession;
use model::{Cluster, Consistency, Node, NodeId, Zone};
use serde_json::{Value as Json, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};

use crate::failure::CliError;
use crate::node_command::{NodeSettings, StopSignals};
use crate::output::Format;
use crate::server::{NodeSpec, RunningNode};
use crate::shared::Shared;

/// First port of the native protocol that a new cluster tries; node 1 takes the next one.
const NATIVE_PORT_BASE: u16 = 7400;
/// First port of the Redis door that a new cluster tries; node 1 takes the next one.
const RESP_PORT_BASE: u16 = 7500;
/// From a node's native port to its Redis port, when the base is given.
const RESP_PORT_OFFSET: u16 = 100;
/// Longest wait for a child to serve.
const CHILD_START_TIME_MAX: Duration = Duration::from_secs(60);
/// Longest wait for a child to stop cleanly.
const CHILD_STOP_TIME_MAX: Duration = Duration::from_secs(30);

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
    /// Nodes of a new cluster, 1 to 64.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=64), value_name = "COUNT")]
    pub nodes: u32,
    /// Zones (failure domains) over which a new cluster's nodes are spread, 1 to 64.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64), value_name = "COUNT")]
    pub zones: u32,
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

/// Runs the cluster.
pub(crate) fn run(shared: &Shared, arguments: DevArguments) -> Result<ExitCode, CliError> {
    let format = shared.format();
    crate::commands::block_on(async move {
        let _held = crate::holder::hold(&arguments.data_dir)?;
        let coordination_dir = arguments.data_dir.join("coordination");
        let cluster = create_or_find(&arguments, &coordination_dir).await?;
        let specs: Vec<NodeSpec> =
            cluster.nodes.iter().map(|node| spec(&arguments, node, &cluster, &coordination_dir)).collect();
        if arguments.separate_processes {
            run_children(&arguments, format, &cluster, &specs).await
        } else {
            run_here(&arguments, format, &cluster, &specs).await
        }
    })
}

/// A node for programs; with its process, if it has one of its own or shares one.
pub(crate) fn node_json(node: &Node, process: Option<u32>) -> Json {
    json!({
        "id": node.id,
        "zone": node.zone,
        "native": node.native,
        "resp": node.resp,
        "process_id": process,
    })
}

/// What a node says when it serves. Tests and tools read it.
pub(crate) fn ready_line(node: &Node) -> String {
    let resp = node.resp.as_deref().unwrap_or("-");
    format!("node {}  zone {}  native {}  redis (resp) {resp}", node.id.0, node.zone, node.native)
}

async fn run_here(
    arguments: &DevArguments,
    format: Format,
    cluster: &Cluster,
    specs: &[NodeSpec],
) -> Result<ExitCode, CliError> {
    let mut signals = StopSignals::listen()?;
    let mut running = Vec::new();
    for spec in specs {
        running.push(RunningNode::start(spec, cluster).await?);
    }
    let process = Some(std::process::id());
    greet(arguments, format, cluster, &vec![process; cluster.nodes.len()]);
    signals.requested(false).await;
    eprintln!("stopping");
    for node in running {
        node.stop().await?;
    }
    eprintln!("stopped cleanly; the data is in {}", arguments.data_dir.display());
    Ok(ExitCode::SUCCESS)
}

/// One node's process, and how to start it again by hand.
struct NodeProcess {
    id: NodeId,
    child: Child,
    /// Its end tells the child to stop. Kept beside the child, because waiting for a child closes what it still has.
    stdin: Option<ChildStdin>,
    command_line: String,
}

async fn run_children(
    arguments: &DevArguments,
    format: Format,
    cluster: &Cluster,
    specs: &[NodeSpec],
) -> Result<ExitCode, CliError> {
    let mut signals = StopSignals::listen()?;
    let mut children = Vec::new();
    for spec in specs {
        children.push(start_child(arguments, spec).await?);
    }
    let processes: Vec<Option<u32>> = children.iter().map(|process| process.child.id()).collect();
    greet(arguments, format, cluster, &processes);
    if format == Format::Text {
        for process in &children {
            println!("node {} is process {}", process.id.0, process.child.id().unwrap_or(0));
        }
        println!();
    }
    let all_ended = watch_children(&mut children);
    let asked = tokio::select! {
        biased;
        () = signals.requested(false) => true,
        () = all_ended => false,
    };
    if !asked {
        return Err("all nodes have ended; see their messages above".to_owned().into());
    }
    eprintln!("stopping");
    let mut clean = true;
    for process in &mut children {
        // Its end was told when it came. Whoever has started it again by hand stops it by hand.
        if !matches!(process.child.try_wait(), Ok(Some(_))) {
            clean &= stop_child(process).await;
        }
    }
    if clean {
        eprintln!("stopped cleanly; the data is in {}", arguments.data_dir.display());
    }
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::from(2) })
}

async fn start_child(arguments: &DevArguments, spec: &NodeSpec) -> Result<NodeProcess, CliError> {
    let program = std::env::current_exe().map_err(CliError::io("cannot find this program"))?;
    let mut words = vec![
        "node".to_owned(),
        format!("--id={}", spec.id.0),
        format!("--cluster={}", spec.cluster),
        format!("--data-dir={}", spec.data_dir.display()),
        format!("--coordination={}", spec.coordination_dir.display()),
    ];
    words.extend(arguments.settings.as_arguments(spec.workers));
    let mut command = Command::new(&program);
    command.args(&words).arg("--stop-with-stdin").stdin(Stdio::piped()).stdout(Stdio::piped());
    if let Some(password) = &arguments.settings.password {
        command.env("TONTINE_PASSWORD", password);
    }
    // Ctrl-C at the terminal reaches the whole group; the nodes shall wait for our word.
    command.process_group(0);
    let mut child = command.spawn().map_err(CliError::io(format!("cannot start node {}", spec.id.0)))?;
    let stdout = child.stdout.take().expect("stdout is piped");
    let mut lines = BufReader::new(stdout).lines();
    match tokio::time::timeout(CHILD_START_TIME_MAX, lines.next_line()).await {
        Ok(Ok(Some(_))) => {}
        Ok(_) => return Err(format!("node {} did not start; its message is above", spec.id.0).into()),
        Err(_) => {
            return Err(format!("node {} does not serve after {CHILD_START_TIME_MAX:?}", spec.id.0).into());
        }
    }
    let mut command_line = vec![program.display().to_string()];
    command_line.extend(words);
    let command_line = crate::holder::shell(&command_line);
    Ok(NodeProcess { id: spec.id, stdin: child.stdin.take(), child, command_line })
}

/// Says when a node ends; completes when all have.
async fn watch_children(children: &mut [NodeProcess]) {
    let watches = children.iter_mut().map(|process| async {
        let ended = process.child.wait().await;
        let how = ended.map_or_else(|error| error.to_string(), |status| status.to_string());
        eprintln!("node {} has ended ({how}); start it again with\n  {}", process.id.0, process.command_line);
    });
    futures_util::future::join_all(watches).await;
}

async fn stop_child(process: &mut NodeProcess) -> bool {
    drop(process.stdin.take());
    match tokio::time::timeout(CHILD_STOP_TIME_MAX, process.child.wait()).await {
        Ok(Ok(status)) if status.success() => true,
        Ok(ended) => {
            let how = ended.map_or_else(|error| error.to_string(), |status| status.to_string());
            eprintln!("node {} ended with {how}", process.id.0);
            false
        }
        Err(_) => {
            eprintln!("node {} did not stop within {CHILD_STOP_TIME_MAX:?} and is killed", process.id.0);
            // It may have ended this very moment.
            let _ = process.child.kill().await;
            false
        }
    }
}

fn spec(arguments: &DevArguments, node: &Node, cluster: &Cluster, coordination_dir: &Path) -> NodeSpec {
    let settings = &arguments.settings;
    NodeSpec {
        id: node.id,
        cluster: cluster.name.clone(),
        data_dir: arguments.data_dir.join(format!("node-{}", node.id.0)),
        coordination_dir: coordination_dir.to_owned(),
        engine: settings.engine,
        durability: settings.durability,
        workers: settings.workers_each(cluster.nodes.len()),
        password: settings.password.clone(),
        connections_max: settings.connections_max as usize,
        hedge_after: Duration::from_millis(settings.hedge_after_ms),
        repair_period: Duration::from_secs(settings.repair_period_s),
    }
}

async fn create_or_find(arguments: &DevArguments, coordination_dir: &Path) -> Result<Cluster, CliError> {
    let refused = |error: &dyn std::fmt::Display| CliError::Other(error.to_string());
    let session = EmbeddedSession::open(coordination_dir).await.map_err(|error| refused(&error))?;
    let found = coordination::documents::read_cluster(&session).await.map_err(|error| refused(&error))?;
    let cluster = match found {
        Some(cluster) => {
            if cluster.nodes.len() != arguments.nodes as usize {
                eprintln!(
                    "the cluster in {} has {} nodes and goes on with them (--nodes is for a new one)",
                    arguments.data_dir.display(),
                    cluster.nodes.len()
                );
            }
            cluster
        }
        None => {
            let nodes = place_nodes(arguments)?;
            let consistency = consistency(arguments)?;
            let blueprint = Blueprint::new("dev", nodes, consistency).map_err(|error| refused(&error))?;
            bootstrap::create(&session, &blueprint).await.map_err(|error| refused(&error))?
        }
    };
    session.close().await.map_err(|error| refused(&error))?;
    Ok(cluster)
}

fn consistency(arguments: &DevArguments) -> Result<Consistency, CliError> {
    if let Some(consistency) = arguments.consistency {
        if u32::from(consistency.replicas) > arguments.nodes {
            return Err(too_few(consistency.replicas, arguments.nodes));
        }
        return Ok(consistency);
    }
    let most = u8::try_from(arguments.nodes.min(3)).expect("at most three");
    let replicas = arguments.replicas.unwrap_or(most);
    if replicas == 0 || u32::from(replicas) > arguments.nodes {
        return Err(too_few(replicas, arguments.nodes));
    }
    let majority = replicas / 2 + 1;
    Ok(Consistency { replicas, reads_required: majority, writes_required: majority })
}

fn too_few(replicas: u8, nodes: u32) -> CliError {
    CliError::Other(format!("{replicas} replicas need 1 to {nodes}, the number of nodes; raise --nodes"))
}

/// Nodes with their zones and free ports.
fn place_nodes(arguments: &DevArguments) -> Result<Vec<Node>, CliError> {
    let mut nodes = Vec::new();
    let native_base = arguments.port_base.unwrap_or(NATIVE_PORT_BASE);
    let resp_base = arguments.port_base.map_or(RESP_PORT_BASE, |base| base + RESP_PORT_OFFSET);
    let may_differ = arguments.port_base.is_none();
    let mut wanted = Vec::new();
    // Held until all are found, so that none is handed out twice.
    let mut held = Vec::new();
    for index in 1..=arguments.nodes {
        let offset = u16::try_from(index).expect("at most 64 nodes");
        let native = free_address(native_base + offset, may_differ, &mut held)?;
        let resp = free_address(resp_base + offset, may_differ, &mut held)?;
        wanted.extend([(native_base + offset, native.clone()), (resp_base + offset, resp.clone())]);
        let zone = Zone(format!("zone-{}", (index - 1) % arguments.zones + 1));
        nodes.push(Node { id: NodeId(index), zone, native, resp: Some(resp) });
    }
    warn_of_other_ports(&wanted);
    Ok(nodes)
}

/// Says which of the usual ports were taken.
fn warn_of_other_ports(wanted: &[(u16, String)]) {
    let is_other = |(port, address): &&(u16, String)| !address.ends_with(&format!(":{port}"));
    let taken: Vec<String> = wanted.iter().filter(is_other).map(|(port, _)| port.to_string()).collect();
    if !taken.is_empty() {
        eprintln!(
            "warning: of the usual ports, {} are taken; this cluster has chosen others and keeps them (--port-base \
             chooses, with a new --data-dir)",
            taken.join(", ")
        );
    }
}

/// The wanted port if it is free; otherwise any, if it may differ.
fn free_address(port: u16, may_differ: bool, held: &mut Vec<TcpListener>) -> Result<String, CliError> {
    let listener = TcpListener::bind(("127.0.0.1", port))
        .or_else(|error| if may_differ { TcpListener::bind(("127.0.0.1", 0)) } else { Err(error) })
        .map_err(CliError::io(format!("cannot take port {port} on 127.0.0.1")))?;
    let address = listener.local_addr().map_err(CliError::io("no free port on 127.0.0.1"))?;
    held.push(listener);
    Ok(address.to_string())
}

fn greet(arguments: &DevArguments, format: Format, cluster: &Cluster, processes: &[Option<u32>]) {
    if format == Format::Json {
        let nodes: Vec<Json> =
            cluster.nodes.iter().zip(processes).map(|(node, process)| node_json(node, *process)).collect();
        let connect: Vec<&str> = cluster.nodes.iter().map(|node| node.native.as_str()).collect();
        let document = json!({
            "cluster": cluster.name,
            "data_directory": arguments.data_dir,
            "connect": connect.join(","),
            "nodes": nodes,
            "stores": cluster.stores,
        });
        return crate::output::print(format, &document, String::new);
    }
    let native: Vec<&str> = cluster.nodes.iter().map(|node| node.native.as_str()).collect();
    let first = &cluster.nodes[0];
    let (host, port) = first.resp.as_deref().and_then(|resp| resp.rsplit_once(':')).unwrap_or(("-", "-"));
    let store = cluster.store("default").map(|store| store.consistency);
    println!();
    for node in &cluster.nodes {
        println!("{}", ready_line(node));
    }
    if let Some(Consistency { replicas, reads_required, writes_required }) = store {
        println!(
            "\nstores default (last write wins) and siblings: N={replicas} R={reads_required} W={writes_required}"
        );
    }
    println!("data in {}", arguments.data_dir.display());
    println!("\ntry, in another terminal:");
    let is_default = native.first() == Some(&"127.0.0.1:7401");
    if !is_default {
        println!(
            "  # the usual ports (from 7401) were taken or others were asked for, so say where the cluster is:"
        );
        println!("  export TONTINE_CONNECT={}", native.join(","));
    }
    let program = crate::output::program();
    for command in ["put greeting hello", "get greeting", "route greeting", "status"] {
        println!("  {program} {command}");
    }
    println!("  redis-cli -h {host} -p {port} set greeting hello");
    println!("\nCtrl-C stops the cluster cleanly; the same command starts it again with its data.\n");
}

fn parse_consistency(text: &str) -> Result<Consistency, String> {
    let numbers: Vec<u8> = text.split(',').map_while(|part| part.trim().parse().ok()).collect();
    let [replicas, reads_required, writes_required] = numbers[..] else {
        return Err("expected N,R,W, for example 3,2,2".to_owned());
    };
    let consistency = Consistency { replicas, reads_required, writes_required };
    consistency.validate().map_err(|error| error.to_string())?;
    Ok(consistency)
}
