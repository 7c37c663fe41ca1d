//! `tontine node`: one storage node as a process of its own.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use control::orders::Order;
use coordination::address::Address;
use coordination::documents::ReadError;
use coordination::{CoordinationError, CoordinationService};
use model::{Cluster, Node, NodeId, Role, Weight};
use protocol::rebalance::planner::Consent;
use runtime::disk::os::OsDisk;

use crate::coordination::{CoordinationArguments, Found};
use crate::failure::CliError;
use crate::node_list::NodeListArguments;
use crate::node_settings::NodeSettings;
use crate::orders::{DocumentsArguments, parse_node};
use crate::output::print;
use crate::plan_command::{Ordering, give_and_wait, order_and_wait};
use crate::server::{NodeSpec, RunningNode};
use crate::shared::{Shared, block_on};
use crate::stop_signals::StopSignals;

/// What can be done with nodes beside running one.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum NodeVerb {
    /// Show which nodes are alive, as the nodes see each other.
    List(NodeListArguments),
    /// Make a waiting node a member. It holds no data until a plan gives it some.
    Add(MemberArguments),
    /// Move all data off a node, and remove it from the cluster when it holds nothing.
    #[command(alias = "decommission")]
    Drain(DrainArguments),
    /// Replace a dead node. Refused while any node still hears from it.
    Replace(ReplaceArguments),
    /// Keep a node as a spare: later plans give it no data.
    Standby(MemberArguments),
    /// Remove a node that holds nothing from the cluster.
    Remove(MemberArguments),
    /// Set a node's share of the data; later plans use it.
    Weight(WeightArguments),
    /// Cancel a drain: later plans give the node its share of the data again.
    Recommission(MemberArguments),
}

/// Which node.
#[derive(Clone, Debug, clap::Args)]
pub struct MemberArguments {
    /// The node, such as 4 or n4.
    #[arg(value_parser = parse_node, value_name = "NODE")]
    pub node: NodeId,
    /// Where the documents are.
    #[command(flatten)]
    pub documents: DocumentsArguments,
}

/// Which node, and how.
#[derive(Clone, Debug, clap::Args)]
pub struct DrainArguments {
    /// Which node.
    #[command(flatten)]
    pub member: MemberArguments,
    /// Accept that replicas lie in fewer zones than they do now.
    #[arg(long)]
    pub accept_fewer_zones: bool,
    /// Do not wait until its data is elsewhere.
    #[arg(long)]
    pub no_wait: bool,
}

/// Which node is dead, and who takes its places.
#[derive(Clone, Debug, clap::Args)]
pub struct ReplaceArguments {
    /// The node that is dead, such as 3 or n3.
    #[arg(value_parser = parse_node, value_name = "DEAD")]
    pub dead: NodeId,
    /// The node that takes its places. It holds none of its partitions yet.
    #[arg(value_parser = parse_node, value_name = "NEW")]
    pub new: NodeId,
    /// Accept that replicas lie in fewer zones than they do now.
    #[arg(long)]
    pub accept_fewer_zones: bool,
    /// Wait until it is certain that the node is dead: until it is not registered, and every other node has heard nothing
    /// of it for 20 s; two minutes at most. Without this, the order is refused at once.
    #[arg(long)]
    pub wait: bool,
    /// Do not wait until its data is there again.
    #[arg(long)]
    pub no_wait: bool,
    /// Where the documents are.
    #[command(flatten)]
    pub documents: DocumentsArguments,
}

/// Which node, and its weight.
#[derive(Clone, Debug, clap::Args)]
pub struct WeightArguments {
    /// Which node.
    #[command(flatten)]
    pub member: MemberArguments,
    /// 100 is an ordinary node; one of 200 carries twice as much.
    #[arg(value_parser = parse_weight, value_name = "WEIGHT")]
    pub weight: Weight,
}

fn parse_weight(text: &str) -> Result<Weight, String> {
    let weight = text.parse().map_err(|_| "expected a number, for example 100".to_owned())?;
    Weight::new(weight).map_err(|error| error.to_string())
}

/// `tontine node` with or without a verb.
pub(crate) fn node(shared: Shared, mut arguments: NodeArguments) -> Result<ExitCode, CliError> {
    match arguments.verb.take() {
        Some(NodeVerb::List(arguments)) => block_on(crate::node_list::list(shared, arguments)),
        Some(verb) => block_on(ordered(shared, verb)),
        None => run(&shared, arguments),
    }
}

/// Orders what a verb says.
async fn ordered(shared: Shared, verb: NodeVerb) -> Result<ExitCode, CliError> {
    let (MemberArguments { documents, .. }, order, no_wait) = match verb {
        NodeVerb::Replace(ReplaceArguments { dead, new, accept_fewer_zones, wait, no_wait, documents }) => {
            let consent = Consent { fewer_zones: accept_fewer_zones, ..Consent::default() };
            let order = Order::Replace { node: dead, by: new, consent };
            let ordering = if wait { Ordering::Patient } else { Ordering::Once };
            return give_and_wait(&shared, &documents, (order, ordering), no_wait).await;
        }
        NodeVerb::Standby(member) => {
            (member.clone(), Order::Cast { node: member.node, role: Role::Standby }, true)
        }
        NodeVerb::List(arguments) => return crate::node_list::list(shared, arguments).await,
        NodeVerb::Add(member) => (member.clone(), Order::Admit { node: member.node }, true),
        NodeVerb::Drain(DrainArguments { member, accept_fewer_zones, no_wait }) => {
            let consent = Consent { fewer_zones: accept_fewer_zones, ..Consent::default() };
            (member.clone(), Order::Drain { node: member.node, consent }, no_wait)
        }
        NodeVerb::Remove(member) => (member.clone(), Order::Remove { node: member.node }, true),
        NodeVerb::Weight(WeightArguments { member, weight }) => {
            (member.clone(), Order::Weigh { node: member.node, weight }, true)
        }
        NodeVerb::Recommission(member) => {
            (member.clone(), Order::Cast { node: member.node, role: Role::Serving }, true)
        }
    };
    order_and_wait(&shared, &documents, order, no_wait).await
}

/// Runs one node of a cluster on this machine.
#[derive(Clone, Debug, clap::Args)]
#[command(subcommand_negates_reqs = true, args_conflicts_with_subcommands = true)]
#[command(after_help = "\
Example: restart node 2 of a cluster that `tontine dev` created
  tontine node --id 2 --data-dir tontine-data/node-2 --coordination tontine-data/coordination")]
pub struct NodeArguments {
    /// What to do with nodes; without it, a node runs.
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
    /// Which coordination service.
    #[command(flatten)]
    pub service: CoordinationArguments,
    /// Log to this file instead of standard error. The file is rotated at 16 MiB, and four older ones are kept.
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<PathBuf>,
    /// Listen on other addresses than loopback although neither clients nor nodes are authenticated and nothing is
    /// encrypted.
    #[arg(long)]
    pub insecure: bool,
    /// Stop when the standard input ends, as for a child whose parent is gone.
    #[arg(long, hide = true)]
    pub stop_with_stdin: bool,
    /// How the node runs.
    #[command(flatten)]
    pub settings: NodeSettings,
}

/// Runs the node until it is told to stop.
pub(crate) fn run(shared: &Shared, arguments: NodeArguments) -> Result<ExitCode, CliError> {
    let (Some(id), Some(data_dir)) = (arguments.id, arguments.data_dir.clone()) else {
        return Err(CliError::Usage(
            "give --id, --data-dir and --coordination to run a node; to list the nodes, run `tontine node list`".to_owned(),
        ));
    };
    block_on(async move { start(shared, arguments, id, data_dir).await.map_err(CliError::of_a_start) })
}

async fn start(
    shared: &Shared,
    arguments: NodeArguments,
    id: u32,
    data_dir: PathBuf,
) -> Result<ExitCode, CliError> {
    let mut signals = StopSignals::listen()?;
    let mut session = None;
    let start = begin(&arguments, NodeId(id), data_dir, &mut session);
    let started = signals.unless_requested(arguments.stop_with_stdin, start).await.transpose();
    if !matches!(started, Ok(Some(_)))
        && let Some(session) = &session
    {
        // The registration would stay as long as the session lives.
        crate::coordination::leave(&**session).await;
    }
    let Some((running, me)) = started? else { return Ok(ExitCode::SUCCESS) };
    print(shared.format(), &crate::ready::node_json(&me, Some(std::process::id())), || {
        crate::ready::ready_line(&me)
    });
    signals.requested(arguments.stop_with_stdin).await;
    running.stop().await?;
    Ok(ExitCode::SUCCESS)
}

/// Finds the documents and starts the node. What it opens is in `opened`, however it ends.
async fn begin(
    arguments: &NodeArguments,
    id: NodeId,
    data_dir: PathBuf,
    opened: &mut Option<Arc<dyn CoordinationService>>,
) -> Result<(RunningNode, Node), CliError> {
    let named = arguments.service.place_to_go_by()?;
    let no_cluster = |address: &Address| {
        CliError::Other(format!(
            "{address} holds no cluster; create one with `tontine cluster create` first, or with `tontine dev` and use the \
                 directory `coordination` in its data directory"
        ))
        .later()
    };
    let address = named.address.clone();
    let found = crate::coordination::find_documents(named, &data_dir).await?;
    let found = found.ok_or_else(|| no_cluster(&address))?;
    found.correct(&address);
    let Found { place: coordination, session, cluster } = found;
    *opened = Some(session.clone());
    let cluster = match cluster {
        Ok(Some(cluster)) => cluster,
        Ok(None) => return Err(no_cluster(&coordination.address)),
        Err(ReadError::Coordination(CoordinationError::Unavailable { reason })) => {
            // The node's own copy says where to listen. Everything else is for the node to settle.
            own_copy(&data_dir).ok_or_else(|| {
                CliError::Other(format!(
                    "cannot find the cluster document: {reason}; and {} holds no copy of it",
                    data_dir.display()
                ))
                .later()
            })?
        }
        Err(ReadError::Coordination(error)) => return Err(error.into()),
        Err(error) => return Err(CliError::Other(error.to_string())),
    };
    let settings = &arguments.settings;
    let spec = NodeSpec {
        id,
        cluster: arguments.cluster.clone(),
        data_dir,
        coordination,
        engine: settings.engine,
        durability: settings.durability,
        workers: settings.workers_each(1),
        password: settings.checked_password()?,
        no_password: settings.no_password,
        limits: settings.limits,
        hedge_after: settings.hedge_after,
        repair_period: settings.repair_period,
        allow_sources: settings.allow_sources.clone(),
        addresses: None,
        insecure: arguments.insecure,
    };
    let running = RunningNode::start(&spec, &cluster, session).await?;
    if let Address::Directory(directory) = &spec.coordination.address {
        crate::holder::note_launch(directory, spec.id, spec.password.is_some());
    }
    let me = cluster.node(spec.id).expect("a node that started is a member");
    Ok((running, me.clone()))
}

/// The copy of the cluster document in a node's data directory; nothing is made where there is none.
pub(crate) fn own_copy(data_dir: &Path) -> Option<Cluster> {
    data_dir.is_dir().then(|| OsDisk::open(data_dir).ok()).flatten().and_then(|disk| node::own_copy(&disk))
}
