//! `tontine node`: one storage node as a process of its own.

use std::path::PathBuf;
use std::process::ExitCode;

use coordination::CoordinationService;
use coordination::documents;
use coordination::embedded::EmbeddedSession;
use model::NodeId;

use crate::failure::CliError;
use crate::node_list::NodeListArguments;
use crate::node_settings::NodeSettings;
use crate::output::print;
use crate::server::{NodeSpec, RunningNode};
use crate::shared::{Shared, block_on};
use crate::stop_signals::StopSignals;

/// What can be done with nodes beside running one.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum NodeVerb {
    /// Show which nodes are alive, as the nodes see each other.
    List(NodeListArguments),
}

/// `tontine node` with or without a verb.
pub(crate) fn node(shared: Shared, mut arguments: NodeArguments) -> Result<ExitCode, CliError> {
    match arguments.verb.take() {
        Some(NodeVerb::List(arguments)) => block_on(crate::node_list::list(shared, arguments)),
        None => run(&shared, arguments),
    }
}

/// Runs one node of a cluster on this machine.
#[derive(Clone, Debug, clap::Args)]
#[command(subcommand_negates_reqs = true, args_conflicts_with_subcommands = true)]
#[command(after_help = "\
Example: restart node 2 of a cluster that `tontine dev` created
  tontine node --id 2 --data-dir tontine-data/node-2 --coordination tontine-data/coordination")]
pub struct NodeArguments {
    /// What to do with nodes, unless one shall run.
    #[command(subcommand)]
    pub verb: Option<NodeVerb>,
    /// Id of the node in the cluster: a number from 1.
    #[arg(long, value_name = "NUMBER", required = true)]
    pub id: Option<u32>,
    /// Name of the cluster.
    #[arg(long, default_value = "dev", value_name = "NAME")]
    pub cluster: String,
    /// Where the node keeps its data. It is created if it does not exist, and belongs to this node from then on.
    #[arg(long, value_name = "DIR", required = true)]
    pub data_dir: Option<PathBuf>,
    /// Directory of the embedded coordination service, which all nodes on this machine share. For a cluster of `tontine
    /// dev`, it is `coordination` in the cluster's data directory.
    #[arg(long, value_name = "DIR", required = true)]
    pub coordination: Option<PathBuf>,
    /// Log to this file instead of standard error. The file is rotated at 16 MiB, and four older ones are kept.
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<PathBuf>,
    /// Stop when the standard input ends, as for a child whose parent is gone.
    #[arg(long, hide = true)]
    pub stop_with_stdin: bool,
    /// How the node runs.
    #[command(flatten)]
    pub settings: NodeSettings,
}

/// Runs the node until it is told to stop.
pub(crate) fn run(shared: &Shared, arguments: NodeArguments) -> Result<ExitCode, CliError> {
    let (Some(id), Some(data_dir), Some(coordination_dir)) =
        (arguments.id, arguments.data_dir.clone(), arguments.coordination.clone())
    else {
        return Err(CliError::Usage("give --id, --data-dir and --coordination to run a node; to list the nodes, run `tontine node list`".to_owned()));
    };
    block_on(async move {
        let refused = |error: &dyn std::fmt::Display| CliError::Other(error.to_string());
        let no_cluster = || {
            CliError::Other(format!(
                "{} holds no cluster; create one with `tontine dev` first, and use the directory `coordination` in its \
                 data directory",
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
            password: settings.checked_password()?,
            no_password: settings.no_password,
            limits: settings.limits,
            hedge_after: settings.hedge_after,
            repair_period: settings.repair_period,
        };
        let mut signals = StopSignals::listen()?;
        let running = RunningNode::start(&spec, &cluster).await?;
        let me = cluster.node(spec.id).expect("a node that started is a member");
        crate::holder::note_launch(&spec.coordination_dir, spec.id, spec.password.is_some());
        print(shared.format(), &crate::ready::node_json(me, Some(std::process::id())), || {
            crate::ready::ready_line(me)
        });
        signals.requested(arguments.stop_with_stdin).await;
        running.stop().await?;
        Ok(ExitCode::SUCCESS)
    })
}
