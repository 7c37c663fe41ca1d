//! `tontine node`: what can be done with the nodes of a cluster.

use std::process::ExitCode;

use model::order::{Done, Order, OrderOutcome, OrderRefusal};
use model::plan::Consent;
use model::{NodeId, Role, Weight};

use crate::context::CliContext;
use crate::failure::CliError;
use crate::node_list::NodeListArguments;
use crate::orders::parse_node;
use crate::output::program;
use crate::plan_command::{Ordering, drain_shown, give_and_wait, join, join_dry, order_and_wait};
use crate::words;

/// What can be done with nodes.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum NodeVerb {
    /// Show which nodes are alive, as the nodes see each other.
    List(NodeListArguments),
    /// Make a waiting node a member. It gets its share of the data from the autopilot, or by a plan. On a golden ring it
    /// gets a part of the largest partition.
    Add(AddArguments),
    /// Move all data off a node, and remove it from the cluster when it holds nothing.
    #[command(alias = "decommission")]
    Drain(DrainArguments),
    /// Replace a dead node, or veto that a standby replaces it. Refused while any node still hears from it.
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
}

/// Which node, and what for.
#[derive(Clone, Debug, clap::Args)]
pub struct AddArguments {
    /// Which node.
    #[command(flatten)]
    pub member: MemberArguments,
    /// Keep it as a spare that holds no data: it takes the places of a node that is dead.
    #[arg(long)]
    pub standby: bool,
    /// Golden rings: cut the partition with most measured load, where that halves.
    #[arg(long, conflicts_with_all = ["standby", "dry_run"])]
    pub hottest: bool,
    /// Golden rings: show what would be cut, and change nothing.
    #[arg(long, conflicts_with = "standby")]
    pub dry_run: bool,
    /// Golden rings: do not wait until the data is there.
    #[arg(long, conflicts_with = "standby")]
    pub no_wait: bool,
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
    #[arg(value_parser = parse_node, value_name = "NEW", required_unless_present = "veto", conflicts_with = "veto")]
    pub new: Option<NodeId>,
    /// Let no standby take its places until it was back, unless it is ordered. Without a veto, a standby does so when the
    /// node was away for 15 minutes (`tontine balance set replace-after-s=900`).
    #[arg(long, conflicts_with_all = ["accept_fewer_zones", "wait", "no_wait"])]
    pub veto: bool,
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

/// Does what a verb says.
pub(crate) async fn run(shared: CliContext, verb: NodeVerb) -> Result<ExitCode, CliError> {
    match verb {
        NodeVerb::List(arguments) => crate::node_list::list(shared, arguments).await,
        verb => ordered(shared, verb).await,
    }
}

/// Makes a node a member, and on a golden ring gives it a partition.
async fn add(shared: &CliContext, arguments: &AddArguments) -> Result<ExitCode, CliError> {
    let &AddArguments { member: MemberArguments { node }, hottest, dry_run, no_wait, .. } = arguments;
    let admit = Order::Admit { node };
    let client = shared.client().await?;
    if !client.refresh().await?.ring.is_golden() {
        if hottest || dry_run {
            let refusal = Box::new(OrderRefusal::Wish(model::plan::PlanRefusal::NotGolden));
            return Err(CliError::Refused { text: words::why(&refusal), refusal, retryable: false });
        }
        return order_and_wait(shared, admit, true).await;
    }
    if dry_run {
        return join_dry(shared, node).await;
    }
    match crate::orders::order(&client, &admit).await? {
        OrderOutcome::Done { done, .. } => {
            if matches!(done, Done::NodeAdmitted { .. }) {
                say!(
                    "{node} is a member now; if it does not get its part, `{} node add {}` goes on",
                    program(),
                    node.0
                );
            }
            let joined = join(shared, &client, (node, hottest), no_wait).await;
            joined.map_err(|error| half_way(node, error))
        }
        answer => Err(crate::orders::refused(&client, &admit, &answer).await),
    }
}

/// The error of a node that is a member and did not get a part.
fn half_way(node: NodeId, error: CliError) -> CliError {
    let has_none = |refusal: &OrderRefusal| {
        !matches!(refusal, OrderRefusal::Wish(model::plan::PlanRefusal::HasPartition { .. }))
    };
    match error {
        CliError::Refused { refusal, text, retryable } if has_none(&refusal) => {
            let goes_on = format!("`{} node add {}` goes on then", program(), node.0);
            let text = format!("{text}; {node} is a member meanwhile and holds nothing, and {goes_on}");
            CliError::Refused { refusal, text, retryable }
        }
        error => error,
    }
}

/// Orders what a verb says.
async fn ordered(shared: CliContext, verb: NodeVerb) -> Result<ExitCode, CliError> {
    let (order, no_wait) = match verb {
        NodeVerb::Replace(ReplaceArguments { dead, new: None, .. }) => {
            return crate::balance_command::veto(&shared, dead).await;
        }
        NodeVerb::Replace(ReplaceArguments {
            dead,
            new: Some(new),
            accept_fewer_zones,
            wait,
            no_wait,
            ..
        }) => {
            let consent = Consent { fewer_zones: accept_fewer_zones, ..Consent::default() };
            let order = Order::Replace { node: dead, by: new, consent };
            let ordering = if wait { Ordering::Patient } else { Ordering::Once };
            return give_and_wait(&shared, (order, ordering), no_wait).await;
        }
        NodeVerb::Standby(member) => (Order::Cast { node: member.node, role: Role::Standby }, true),
        NodeVerb::List(arguments) => return crate::node_list::list(shared, arguments).await,
        NodeVerb::Add(arguments @ AddArguments { standby: false, .. }) => {
            return add(&shared, &arguments).await;
        }
        NodeVerb::Add(AddArguments { member, standby: true, .. }) => {
            // Both at once: a member that serves gets its share within a minute.
            let client = shared.client().await?;
            let admit = Order::Admit { node: member.node };
            match crate::orders::order(&client, &admit).await? {
                OrderOutcome::Done { .. } => {}
                answer => return Err(crate::orders::refused(&client, &admit, &answer).await),
            }
            (Order::Cast { node: member.node, role: Role::Standby }, true)
        }
        NodeVerb::Drain(DrainArguments { member, accept_fewer_zones, no_wait }) => {
            let consent = Consent { fewer_zones: accept_fewer_zones, ..Consent::default() };
            drain_shown(&shared, member.node).await?;
            (Order::Drain { node: member.node, consent }, no_wait)
        }
        NodeVerb::Remove(member) => (Order::Remove { node: member.node }, true),
        NodeVerb::Weight(WeightArguments { member, weight }) => {
            (Order::Weigh { node: member.node, weight }, true)
        }
        NodeVerb::Recommission(member) => (Order::Cast { node: member.node, role: Role::Serving }, true),
    };
    order_and_wait(&shared, order, no_wait).await
}
