//! `tontine node`: one storage node as a process of its own.

use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use coordination::CoordinationService;
use coordination::documents;
use coordination::embedded::EmbeddedSession;
use model::NodeId;
use storage::Durability;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::CliError;
use crate::limits::LimitSettings;
use crate::node_list::NodeListArguments;
use crate::output::print;
use crate::server::{EngineKind, NodeSpec, RunningNode};
use crate::shared::Shared;

/// The option by which `dev` ties a node to itself.
pub(crate) const STOP_WITH_STDIN: &str = "--stop-with-stdin";

/// Settings that every way of running nodes shares.
#[derive(Clone, Debug, clap::Args)]
pub struct NodeSettings {
    /// Which engine keeps the records.
    #[arg(long, value_enum, default_value = "log")]
    pub engine: EngineKind,
    /// When a write is acknowledged: `always` (after its sync), `every:MS` (at once; synced at most MS milliseconds
    /// later, 1 to 60000), or `system` (at once; synced when the system likes). Only for the log engine.
    #[arg(long, default_value = "every:10", value_parser = parse_durability, value_name = "always|every:MS|system")]
    pub durability: Durability,
    /// Worker threads of one node, 1 to 512; by default one for each core, shared among the nodes of this machine.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=512), value_name = "THREADS")]
    pub workers: Option<u16>,
    /// Password that Redis clients must give; by default none. The variable TONTINE_PASSWORD keeps it off the process
    /// list.
    #[arg(long, env = "TONTINE_PASSWORD", hide_env_values = true)]
    pub password: Option<String>,
    /// How much a node takes in.
    #[command(flatten)]
    pub limits: LimitSettings,
    /// Milliseconds that a node may take to answer before another one is asked beside it, 1 to 60000.
    #[arg(
        long,
        default_value_t = 50,
        value_parser = clap::value_parser!(u64).range(1..=60_000),
        value_name = "MS"
    )]
    pub hedge_after_ms: u64,
    /// Seconds within which every pair of nodes compares what it shares, 1 to 604800.
    #[arg(
        long,
        default_value_t = 600,
        value_parser = clap::value_parser!(u64).range(1..=604_800),
        value_name = "SECONDS"
    )]
    pub repair_period_s: u64,
}

/// What can be done with nodes beside running one.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum NodeVerb {
    /// Show the nodes' states as they see each other.
    List(NodeListArguments),
}

/// `tontine node` with or without a verb.
pub(crate) fn node(shared: Shared, mut arguments: NodeArguments) -> Result<ExitCode, CliError> {
    match arguments.verb.take() {
        Some(NodeVerb::List(arguments)) => {
            crate::commands::block_on(crate::node_list::list(shared, arguments))
        }
        None => run(&shared, arguments),
    }
}

/// Runs one node of a cluster on this machine.
#[derive(Clone, Debug, clap::Args)]
#[command(subcommand_negates_reqs = true, args_conflicts_with_subcommands = true)]
#[command(after_help = "\
Example: start node 2 of a cluster that `tontine dev` made, after it died
  tontine node --id 2 --data-dir tontine-data/node-2 --coordination tontine-data/coordination")]
pub struct NodeArguments {
    /// What to do with nodes, unless one shall run.
    #[command(subcommand)]
    pub verb: Option<NodeVerb>,
    /// The node's id in the cluster document: a number from 1.
    #[arg(long, value_name = "NUMBER", required = true)]
    pub id: Option<u32>,
    /// The cluster's name.
    #[arg(long, default_value = "dev", value_name = "NAME")]
    pub cluster: String,
    /// Where the node keeps its data; made if need be. It belongs to this node from then on.
    #[arg(long, value_name = "DIR", required = true)]
    pub data_dir: Option<PathBuf>,
    /// Directory of the embedded coordination service, shared by the nodes of this machine; for `tontine dev` it is
    /// `coordination` below its data directory.
    #[arg(long, value_name = "DIR", required = true)]
    pub coordination: Option<PathBuf>,
    /// Stop when the standard input ends, as for a child whose parent is gone.
    #[arg(long, hide = true)]
    pub stop_with_stdin: bool,
    /// How the node runs.
    #[command(flatten)]
    pub settings: NodeSettings,
}

impl NodeSettings {
    /// Worker threads of each of `nodes` nodes on this machine.
    pub(crate) fn workers_each(&self, nodes: usize) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        self.workers.map_or((cores / nodes.max(1)).max(1), usize::from)
    }

    /// The settings as arguments of another `tontine`.
    pub(crate) fn as_arguments(&self, workers: usize) -> Vec<String> {
        let engine = if self.engine == EngineKind::Memory { "memory" } else { "log" };
        let mut arguments = vec![
            format!("--engine={engine}"),
            format!("--durability={}", show_durability(self.durability)),
            format!("--workers={workers}"),
        ];
        arguments.extend(self.limits.as_arguments());
        if self.hedge_after_ms != 50 {
            arguments.push(format!("--hedge-after-ms={}", self.hedge_after_ms));
        }
        if self.repair_period_s != 600 {
            arguments.push(format!("--repair-period-s={}", self.repair_period_s));
        }
        arguments
    }
}

/// Runs the node until it is told to stop.
pub(crate) fn run(shared: &Shared, arguments: NodeArguments) -> Result<ExitCode, CliError> {
    let (Some(id), Some(data_dir), Some(coordination_dir)) =
        (arguments.id, arguments.data_dir.clone(), arguments.coordination.clone())
    else {
        return Err(CliError::Usage("say which node to run, or `tontine node list`".to_owned()));
    };
    crate::commands::block_on(async move {
        let refused = |error: &dyn std::fmt::Display| CliError::Other(error.to_string());
        let no_cluster = || {
            CliError::Other(format!(
                "{} holds no cluster; create one first, for example with `tontine dev`, whose coordination directory is \
                 `coordination` below its data directory",
                coordination_dir.display()
            ))
        };
        if !coordination_dir.is_dir() {
            // Opening would make one: what cannot be shall leave no trace.
            return Err(no_cluster());
        }
        let session = EmbeddedSession::open(&coordination_dir).await.map_err(|error| refused(&error))?;
        let cluster = documents::read_cluster(&session).await.map_err(|error| refused(&error))?;
        session.close().await.map_err(|error| refused(&error))?;
        let Some(cluster) = cluster else { return Err(no_cluster()) };
        let settings = &arguments.settings;
        let spec = NodeSpec {
            id: NodeId(id),
            cluster: arguments.cluster.clone(),
            data_dir,
            coordination_dir,
            engine: settings.engine,
            durability: settings.durability,
            workers: settings.workers_each(1),
            password: settings.password.clone(),
            limits: settings.limits,
            hedge_after: Duration::from_millis(settings.hedge_after_ms),
            repair_period: Duration::from_secs(settings.repair_period_s),
        };
        let mut signals = StopSignals::listen()?;
        let running = RunningNode::start(&spec, &cluster).await?;
        let me = cluster.node(spec.id).expect("a node that started is a member");
        crate::holder::note_launch(&spec.coordination_dir, spec.id, spec.password.is_some());
        print(shared.format(), &crate::dev::node_json(me, Some(std::process::id())), || {
            crate::dev::ready_line(me)
        });
        signals.requested(arguments.stop_with_stdin).await;
        running.stop().await?;
        Ok(ExitCode::SUCCESS)
    })
}

/// The kernel's word that a file would outgrow `ulimit -f`, on every architecture that Rust's Linux targets of tier 1
/// have. Left alone it ends the process.
const FILE_SIZE_EXCEEDED: i32 = 25;

/// Ctrl-C and SIGTERM, heard from the moment this is made: make it before saying that anything runs.
///
/// A file that may not grow is a full disk from then on, not the end of the process: the write that met it is told.
pub(crate) struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
    _file_size_exceeded: Signal,
}

impl StopSignals {
    pub(crate) fn listen() -> Result<StopSignals, CliError> {
        let listen = |kind| signal(kind).map_err(CliError::io("cannot listen for signals"));
        Ok(StopSignals {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            _file_size_exceeded: listen(SignalKind::from_raw(FILE_SIZE_EXCEEDED))?,
        })
    }

    /// Completes on either, or at the end of standard input if that is wanted.
    pub(crate) async fn requested(&mut self, with_stdin: bool) {
        let stdin_ended = async {
            if !with_stdin {
                return std::future::pending().await;
            }
            let (ended, end) = tokio::sync::oneshot::channel();
            // A thread of its own: a read that waits for ever must not keep the process from stopping.
            std::thread::spawn(move || {
                let mut stdin = std::io::stdin().lock();
                let mut buffer = [0; 64];
                while matches!(stdin.read(&mut buffer), Ok(read) if read > 0) {}
                // Nobody waits when the node stops for another reason.
                let _ = ended.send(());
            });
            // The thread ends only after it has sent.
            let _ = end.await;
        };
        tokio::select! {
            biased;
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            () = stdin_ended => {}
        }
    }
}

fn parse_durability(text: &str) -> Result<Durability, String> {
    match text {
        "always" => Ok(Durability::Always),
        "system" => Ok(Durability::System),
        other => other
            .strip_prefix("every:")
            .and_then(|ms| ms.trim_end_matches("ms").parse().ok())
            .filter(|ms| (1..=60_000).contains(ms))
            .map(|milliseconds| Durability::Every { milliseconds })
            .ok_or_else(|| "expected always, every:MS with 1 to 60000 milliseconds, or system".to_owned()),
    }
}

fn show_durability(durability: Durability) -> String {
    match durability {
        Durability::Always => "always".to_owned(),
        Durability::Every { milliseconds } => format!("every:{milliseconds}"),
        Durability::System => "system".to_owned(),
    }
}
