//! `tontine dev`: a whole cluster on this machine, from one command.
//!
//! Each node is its own process, `tontine serve`, as on any machine; so is the headmaster beside them. Whichever of
//! them ends, the others go on.

mod arguments;
mod closed;
mod creation;
mod elastic;

use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use control::bootstrap::RingShape;
use coordination::address::{Address, ServicePlace};
use coordination::documents::active_nodes_now;
use coordination::zookeeper::SESSION_TIMEOUT_DEFAULT;
use model::{Cluster, Consistency, Node, NodeId};
use serde_json::{Value as Json, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};

use crate::context::{CliContext, block_on};
use crate::coordination::CoordinationArguments;
use crate::engine_kind::EngineKind;
use crate::failure::CliError;
use crate::headmaster::Beside;
use crate::holder::PASSWORD_VARIABLE;
use crate::ready::{node_json, ready_line, stores_json};
use crate::stop_signals::{STOP_WITH_STDIN, StopSignals};
use crate::text::Format;
pub(crate) use arguments::DevArguments;

/// Longest wait for a child to serve.
const CHILD_START_TIME_MAX: Duration = Duration::from_secs(60);
/// Longest wait for a child to stop cleanly.
const CHILD_STOP_TIME_MAX: Duration = Duration::from_secs(30);
/// Pause between two looks at which nodes are registered.
const REGISTRATIONS_LOOK: Duration = Duration::from_secs(1);

/// Runs the cluster.
pub(crate) fn run(shared: &CliContext, arguments: DevArguments) -> Result<ExitCode, CliError> {
    let format = shared.format();
    arguments.settings.checked_password()?;
    block_on(async move {
        let coordination_dir = arguments.data_dir.join("coordination");
        if !coordination_dir.exists() {
            // Before anything is made: what cannot be shall leave no trace.
            crate::shape::check(&arguments.shape)?;
            if let Some(range) = arguments.elastic {
                let is_golden = arguments.shape.ring_wanted() == RingShape::Golden;
                range.check(arguments.shape.nodes_wanted() as usize, is_golden)?;
            }
        }
        let _held = crate::holder::hold(&arguments.data_dir)?;
        let here = ServicePlace {
            address: Address::Directory(coordination_dir.clone()),
            session_timeout: SESSION_TIMEOUT_DEFAULT,
            credentials: None,
        };
        let closed = arguments.tls.then(|| closed::Closed::open(&arguments.data_dir)).transpose()?;
        let creation::DirectoryStanding { mut cluster, own, place } =
            creation::create_or_find(&arguments, here, closed.as_ref()).await?;
        refuse_open_nodes(&cluster, closed.is_some())?;
        let (mine, added) = cluster.nodes.drain(..).partition(|node| node.id <= own);
        cluster.nodes = mine;
        // The nodes of a fleet's machines were added by nobody.
        for node in added.iter().filter(|_| arguments.elastic.is_none()) {
            say!("{}", added_line(node, &coordination_dir));
        }
        if cluster.nodes.is_empty() {
            return Err(CliError::Other(format!(
                "the cluster in {} has no node that `tontine dev` made; start its nodes with `tontine serve`",
                arguments.data_dir.display()
            )));
        }
        let mut elastic = match arguments.elastic {
            Some(range) => Some(elastic::Elastic::start(&arguments, range, &place, &cluster).await?),
            None => None,
        };
        let certificate = closed.as_ref().map(|closed| closed.words("headmaster")).transpose()?;
        let beside = (!arguments.no_headmaster)
            .then(|| headmaster_beside(&arguments, &place, certificate.unwrap_or_default()));
        let ran = run_nodes(&arguments, format, &cluster, (&place, closed.as_ref(), &mut elastic)).await;
        if let Some(beside) = beside {
            beside.stop().await;
        }
        if let Some(mut elastic) = elastic {
            elastic.stop_controller().await;
            elastic.rest();
        }
        ran.map_err(CliError::once)
    })
}

/// A cluster with users, or one that an operator has closed, is started as one.
fn refuse_open_nodes(cluster: &Cluster, with_tls: bool) -> Result<(), CliError> {
    match cluster.is_closed() && !with_tls {
        true => {
            Err(CliError::Usage("this cluster has users, so its nodes require TLS; add --tls".to_owned()))
        }
        false => Ok(()),
    }
}

/// Where the documents are, and the certificates of a closed cluster.
type There<'a> = (&'a ServicePlace, Option<&'a closed::Closed>);

/// The same, and what runs beside an elastic cluster.
type Beneath<'a> = (&'a ServicePlace, Option<&'a closed::Closed>, &'a mut Option<elastic::Elastic>);

/// One node's process, and how to start it again by hand.
struct NodeProcess {
    id: NodeId,
    child: Child,
    /// Its end tells the child to stop. Kept beside the child, because waiting for a child closes what it still has.
    stdin: Option<ChildStdin>,
    command_line: String,
}

async fn run_nodes(
    arguments: &DevArguments,
    format: Format,
    cluster: &Cluster,
    (place, closed, elastic): Beneath<'_>,
) -> Result<ExitCode, CliError> {
    let mut signals = StopSignals::listen()?;
    let starts = cluster
        .nodes
        .iter()
        .map(|node| start_child(arguments, node.id, cluster.nodes.len(), (place, closed)));
    let (mut children, mut refused) = (Vec::new(), None);
    for started in futures_util::future::join_all(starts).await {
        match started {
            Ok(child) => children.push(child),
            // Each has said why by itself.
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    if let Some(error) = refused {
        // They hold their directories until they have ended, which must not meet the next start.
        for process in &mut children {
            stop_child(process).await;
        }
        return Err(error);
    }
    let processes: Vec<Option<u32>> = children.iter().map(|process| process.child.id()).collect();
    greet(arguments, format, cluster, (&processes, closed));
    if format == Format::Text {
        if elastic.is_some() {
            elastic::greet(cluster, place);
        }
        for process in &children {
            answer!("node {} is process {}", process.id.0, process.child.id().unwrap_or(0));
        }
        answer!();
    }
    let all_ended = async {
        watch_children(&mut children).await;
        none_registered(place).await
    };
    let ended = signals.unless_requested(false, all_ended).await;
    if let Some(elastic) = elastic {
        // It must not see how the nodes end.
        elastic.stop_controller().await;
    }
    if let Some(ended) = ended {
        ended?;
        return Err("all nodes have exited; read their messages above".to_owned().into());
    }
    say!("stopping");
    let mut clean = true;
    for process in &mut children {
        // Its end was told when it came. Whoever has started it again by hand stops it by hand.
        if !matches!(process.child.try_wait(), Ok(Some(_))) {
            clean &= stop_child(process).await;
        }
    }
    if clean {
        say!("stopped cleanly; {}", kept_where(arguments));
    }
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::from(2) })
}

async fn start_child(
    arguments: &DevArguments,
    id: NodeId,
    nodes: usize,
    (place, closed): There<'_>,
) -> Result<NodeProcess, CliError> {
    let program = std::env::current_exe().map_err(CliError::io("cannot find this program"))?;
    let mut words = vec![
        "serve".to_owned(),
        // So that it also comes back as this one when its directory is lost.
        format!("--id={}", id.0),
        format!("--data-dir={}", arguments.data_dir.join(format!("node-{}", id.0)).display()),
        format!("--coordination={}", place.address),
        format!("--log-file={}", crate::logging::node_file(&arguments.data_dir, id).display()),
        // It runs beside this process.
        "--no-headmaster".to_owned(),
    ];
    words.extend(arguments.settings.as_arguments(arguments.settings.workers_each(nodes)));
    if let Some(closed) = closed {
        words.push("--tls=require".to_owned());
        words.extend(closed.words(&format!("node-{}", id.0))?);
    }
    let mut command = Command::new(&program);
    command.args(&words).arg(STOP_WITH_STDIN).stdin(Stdio::piped()).stdout(Stdio::piped());
    if arguments.settings.no_password {
        // Once: a node that has started so needs none any more.
        command.arg("--no-password");
    }
    if let Some(password) = &arguments.settings.password {
        command.env(PASSWORD_VARIABLE, password);
    }
    // Ctrl-C at the terminal reaches the whole group; the nodes shall wait for our word.
    command.process_group(0);
    let mut child = command.spawn().map_err(CliError::io(format!("cannot start node {}", id.0)))?;
    let stdout = child.stdout.take().expect("stdout is piped");
    let mut lines = BufReader::new(stdout).lines();
    match tokio::time::timeout(CHILD_START_TIME_MAX, lines.next_line()).await {
        Ok(Ok(Some(_))) => {}
        Ok(_) => return Err(format!("node {} did not start; read its message above", id.0).into()),
        Err(_) => {
            return Err(format!(
                "node {} did not start within {CHILD_START_TIME_MAX:?}; read its log in {}",
                id.0,
                log_place(arguments).display()
            )
            .into());
        }
    }
    let mut command_line = vec![program.display().to_string()];
    command_line.extend(words);
    let command_line = crate::holder::shell(&command_line);
    let command_line = crate::holder::with_password(&command_line, arguments.settings.password.is_some());
    Ok(NodeProcess { id, stdin: child.stdin.take(), child, command_line })
}

/// Says when a node ends; completes when all have.
async fn watch_children(children: &mut [NodeProcess]) {
    let watches = children.iter_mut().map(|process| async {
        let ended = process.child.wait().await;
        let how = ended.map_or_else(|error| error.to_string(), |status| status.to_string());
        say!("node {} has exited ({how}); restart it with\n  {}", process.id.0, process.command_line);
    });
    futures_util::future::join_all(watches).await;
}

/// Completes when no node is registered any more: those that somebody has started again by hand need the headmaster that
/// runs beside this.
async fn none_registered(place: &ServicePlace) -> Result<(), CliError> {
    let session = crate::coordination::open(place, false).await?;
    let mut told = Vec::new();
    loop {
        let active = active_nodes_now(&*session).await.map_err(crate::cluster_command::unread)?;
        let ids: Vec<String> = active.iter().map(|active| active.node.id.to_string()).collect();
        if ids.is_empty() {
            let _ = session.close().await;
            return Ok(());
        }
        if ids != told {
            say!(
                "the nodes that dev started have exited; dev goes on for {}, started again by hand",
                ids.join(", ")
            );
            told = ids;
        }
        tokio::time::sleep(REGISTRATIONS_LOOK).await;
    }
}

async fn stop_child(process: &mut NodeProcess) -> bool {
    drop(process.stdin.take());
    match tokio::time::timeout(CHILD_STOP_TIME_MAX, process.child.wait()).await {
        Ok(Ok(status)) if status.success() => true,
        Ok(ended) => {
            let how = ended.map_or_else(|error| error.to_string(), |status| status.to_string());
            say!("node {} did not stop cleanly ({how})", process.id.0);
            false
        }
        Err(_) => {
            say!("node {} did not stop within {CHILD_STOP_TIME_MAX:?} and was killed", process.id.0);
            // It may have ended this very moment.
            let _ = process.child.kill().await;
            false
        }
    }
}

/// Starts a headmaster for this cluster.
fn headmaster_beside(arguments: &DevArguments, place: &ServicePlace, certificate: Vec<String>) -> Beside {
    let service = CoordinationArguments {
        coordination: Some(place.address.clone()),
        coordination_credentials: None,
        session_timeout: place.session_timeout,
    };
    let log = log_place(arguments).join("headmaster.log");
    Beside::start(&service, certificate, arguments.settings.log, Some(log))
}

/// A node that somebody added, and that is not started here.
fn added_line(node: &Node, coordination_dir: &Path) -> String {
    match crate::holder::noted_launch(coordination_dir, node.id) {
        Some(launch) => format!(
            "{} was added with `tontine serve`, which runs it; if it has ended, start it in the folder {} with\n  {}",
            node.id,
            launch.directory,
            crate::holder::with_password(&launch.command, launch.needs_password)
        ),
        None => format!("{} was added with `tontine serve`, which runs it", node.id),
    }
}

/// The directory with a log for each process.
fn log_place(arguments: &DevArguments) -> PathBuf {
    crate::logging::directory(&arguments.data_dir)
}

/// What becomes of the records when the cluster stops.
fn kept_where(arguments: &DevArguments) -> String {
    match arguments.settings.engine {
        EngineKind::Memory => "the memory engine keeps no data".to_owned(),
        EngineKind::Log => format!("the data is in {}", arguments.data_dir.display()),
    }
}

/// How curl reaches a closed cluster. The secret is in no process list.
const CLOSED_CURL: &str = "printf 'Authorization: Bearer %s' \"$(cat \"$TONTINE_SECRET_FILE\")\" | curl --cacert \
                           \"$TONTINE_TLS_AUTHORITY\" -H @- https";

/// How Redis's command line reaches a closed cluster.
fn closed_redis_cli(host: &str, port: &str, has_user: bool) -> String {
    let secret = if has_user { "REDISCLI_AUTH=\"$(cat \"$TONTINE_SECRET_FILE\")\" " } else { "" };
    format!(
        "{secret}redis-cli --tls --cacert \"$TONTINE_TLS_AUTHORITY\" -h {host} -p \
         {port} set greeting hello"
    )
}

/// What a newcomer may type: by the command line, Redis's, and curl.
fn try_this(arguments: &DevArguments, node: &Node, closed: Option<&closed::Closed>) {
    let program = crate::output::program();
    let (host, port) = node.resp.as_deref().and_then(|resp| resp.rsplit_once(':')).unwrap_or(("-", "-"));
    for command in ["put greeting hello", "get greeting", "route greeting", "status"] {
        answer!("  {program} {command}");
    }
    let has_password = arguments.settings.password.is_some();
    let redis_cli = format!("redis-cli -h {host} -p {port} set greeting hello");
    let redis_cli = match closed {
        Some(closed) => closed_redis_cli(host, port, closed.secret().is_some()),
        None => crate::holder::with_redis_password(&redis_cli, has_password),
    };
    answer!("  {redis_cli}");
    if let Some(http) = &node.http {
        let curl = match (closed, has_password) {
            (Some(closed), _) if closed.secret().is_some() => CLOSED_CURL,
            (Some(_), _) => "curl --cacert \"$TONTINE_TLS_AUTHORITY\" https",
            (None, true) => "curl -u \":$TONTINE_PASSWORD\" http",
            (None, false) => "curl http",
        };
        answer!("  {curl}://{http}/v1/stores/default/keys/greeting");
    }
}

/// How to add a node.
fn how_to_add(arguments: &DevArguments, cluster: &Cluster, closed: Option<&closed::Closed>) {
    let program = crate::output::program();
    let last = cluster.nodes.last().map_or(0, |node| node.id.0);
    let words = |verb: &str| {
        let service = format!("dir:{}", arguments.data_dir.join("coordination").display());
        format!("{program} {verb} --coordination {}", crate::holder::shell(&[service]))
    };
    let data_dir = arguments.data_dir.join(format!("node-{}", last + 1)).display().to_string();
    answer!(
        "\nto add a node, start it in another terminal, make it a member, and give it its share of the data:"
    );
    let (certify, tls) =
        closed.map(|closed| closed.words_to_show(&format!("node-{}", last + 1))).unwrap_or_default();
    if !certify.is_empty() {
        answer!("  {program} {certify}");
    }
    answer!("  {} --data-dir {}{tls}", words("serve"), crate::holder::shell(&[data_dir]));
    answer!("  {program} node add {}", last + 1);
    if !cluster.ring.is_golden() {
        answer!("  {program} plan create spread");
        answer!("  {program} plan apply NUMBER        # the number that `plan create` prints");
    }
}

fn greet(
    arguments: &DevArguments,
    format: Format,
    cluster: &Cluster,
    (processes, closed): (&[Option<u32>], Option<&closed::Closed>),
) {
    if format == Format::Json {
        let nodes: Vec<Json> =
            cluster.nodes.iter().zip(processes).map(|(node, process)| node_json(node, *process)).collect();
        let connect: Vec<&str> = cluster.nodes.iter().map(|node| node.native.as_str()).collect();
        let document = json!({
            "cluster": cluster.name,
            "data_directory": arguments.data_dir,
            "log": log_place(arguments),
            "connect": connect.join(","),
            "nodes": nodes,
            "stores": stores_json(&cluster.stores),
            "tls_authority": closed.map(closed::Closed::authority),
            "secret_file": closed.and_then(closed::Closed::secret),
        });
        return crate::output::print(format, &document, String::new);
    }
    let native: Vec<&str> = cluster.nodes.iter().map(|node| node.native.as_str()).collect();
    let first = &cluster.nodes[0];
    let store = cluster.store("default").map(|store| store.consistency);
    answer!();
    for node in &cluster.nodes {
        answer!("{}", ready_line(node));
    }
    if let Some(Consistency { replicas, reads_required, writes_required }) = store {
        answer!(
            "\nstores default (last write wins) and siblings: N={replicas} R={reads_required} W={writes_required}"
        );
    }
    answer!("{}", kept_where(arguments));
    answer!("the log is in {}", log_place(arguments).display());
    answer!("\ntry this in another terminal:");
    let is_default = native.first() == Some(&"127.0.0.1:7401");
    if !is_default {
        answer!("  # this cluster does not use the default ports, so name its addresses:");
        answer!("  export TONTINE_CONNECT={}", native.join(","));
    }
    if let Some(closed) = closed {
        match closed.secret() {
            Some(secret) => {
                answer!("  # this cluster is closed: name its authority, and your secret");
                answer!("  export TONTINE_SECRET_FILE={}", secret.display());
            }
            None => {
                answer!(
                    "  # this cluster speaks TLS, and has no user yet, so it serves anyone; to close it:"
                );
                answer!("  # tontine user create root admin --secret-to root.secret");
            }
        }
        answer!("  export TONTINE_TLS_AUTHORITY={}", closed.authority().display());
    }
    try_this(arguments, first, closed);
    how_to_add(arguments, cluster, closed);
    let again = if arguments.settings.engine == EngineKind::Memory { "empty" } else { "with its data" };
    answer!("\nCtrl-C stops the cluster cleanly; the same command starts it again {again}.\n");
}
