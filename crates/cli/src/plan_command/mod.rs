//! `tontine plan`: create, look, apply, watch, abort.
//!
//! Must never: open a session with the coordination service. Commands give orders and read plans through any node.

mod shown;
mod wait;

use std::process::ExitCode;
use std::time::Duration;

use client::{Client, PlanQuery};
use model::order::{Office, Order, OrderOutcome, OrderRefusal};
use model::plan::{Consent, JoinCut, Phase, Planned, Wish};
use model::{Cluster, Consistency, Node, NodeId, PartitionId, Role};
use serde_json::json;

use crate::context::CliContext;
use crate::failure::CliError;
use crate::orders::{self, parse_node, parse_partition};
use crate::output::{print, program};
use crate::shape::parse_consistency;
use crate::words;

/// How long an order is given again for what passes by itself.
const ORDERED_FOR: Duration = Duration::from_secs(120);
/// Shortest pause before an order is given again.
const ORDER_PAUSE: Duration = Duration::from_secs(1);

/// How often a drain looks for a document by which it can be shown.
const DRAIN_LOOKS_MAX: u32 = 5;
/// How long a node that has just become a member may take until it serves.
const SERVES_AFTER_MAX: Duration = Duration::from_secs(30);

/// What can be done with plans.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum PlanCommand {
    /// Compute a plan and save it; nothing changes before it is applied.
    #[command(subcommand)]
    Create(CreateCommand),
    /// Show a plan: what moves, shares before and after, what blocks it, how far it is.
    Show(ShowArguments),
    /// Show each move of a plan, the partition's list before and after, and what is cut or joined.
    Diff(ShowArguments),
    /// Carry out a plan and wait for its end. The plan goes on if this command is stopped.
    Apply(ApplyArguments),
    /// Abort a plan: partitions whose move is not finished go back.
    Abort(ApplyArguments),
    /// Pause a plan: no partition takes a further step. Copies under way are finished.
    Pause(NumberArguments),
    /// Resume a paused plan.
    Resume(NumberArguments),
    /// List the plans: the last hundred are kept.
    #[command(alias = "list")]
    History,
}

/// For what a plan is.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum CreateCommand {
    /// Give each node its share of the partitions, by weight.
    Spread(CreateArguments),
    /// Move all data off these nodes.
    Drain {
        /// Which nodes, such as 4 or n4.
        #[arg(required = true, value_parser = parse_node, value_name = "NODE")]
        nodes: Vec<NodeId>,
        /// How.
        #[command(flatten)]
        create: CreateArguments,
    },
    /// Move all data of one node to another.
    Replace {
        /// The node that loses the data.
        #[arg(value_parser = parse_node, value_name = "NODE")]
        node: NodeId,
        /// The node that receives it.
        #[arg(long, value_parser = parse_node, value_name = "NODE")]
        by: NodeId,
        /// How.
        #[command(flatten)]
        create: CreateArguments,
    },
    /// Give a node without a partition of a golden ring a part of the largest one.
    Join {
        /// Which node, such as 4 or n4. It is a member.
        #[arg(value_parser = parse_node, value_name = "NODE")]
        node: NodeId,
        /// Cut the partition with most measured load instead, where that halves.
        #[arg(long, conflicts_with = "dry_run")]
        hottest: bool,
        /// How.
        #[command(flatten)]
        create: CreateArguments,
    },
    /// Move some partitions from one node to another.
    Move {
        /// Which partitions, such as 12 or p12.
        #[arg(required = true, value_parser = parse_partition, value_name = "PARTITION")]
        partitions: Vec<PartitionId>,
        /// The node that loses the data.
        #[arg(long, value_parser = parse_node, value_name = "NODE")]
        from: NodeId,
        /// The node that receives it.
        #[arg(long, value_parser = parse_node, value_name = "NODE")]
        to: NodeId,
        /// How.
        #[command(flatten)]
        create: CreateArguments,
    },
    /// Cut a partition in two. No data moves: both parts stay on the same nodes.
    Split {
        /// Which partition, such as 12 or p12.
        #[arg(value_parser = parse_partition, value_name = "PARTITION")]
        partition: PartitionId,
        /// The first token of its second part, where a bucket begins: a number, or 0x and the hexadecimal digits that
        /// `tontine route` prints. By default it is cut in the middle.
        #[arg(long, value_parser = parse_token, value_name = "TOKEN")]
        at: Option<u64>,
        /// How.
        #[command(flatten)]
        create: CreateArguments,
    },
    /// Merge two neighbouring partitions. If they lie on different nodes, the narrower one moves first.
    Merge {
        /// One of them, such as 12 or p12.
        #[arg(value_parser = parse_partition, value_name = "PARTITION")]
        partition: PartitionId,
        /// The one before or behind it.
        #[arg(value_parser = parse_partition, value_name = "NEIGHBOUR")]
        neighbour: PartitionId,
        /// How.
        #[command(flatten)]
        create: CreateArguments,
    },
    /// Cut every partition in the middle. No data moves.
    Double(CreateArguments),
    /// Change a store's N, R and W.
    Numbers {
        /// Which store.
        #[arg(id = "changed-store", value_name = "STORE")]
        store: String,
        /// The new N, R and W, for example `3,2,2`.
        #[arg(long, value_parser = parse_consistency, value_name = "N,R,W")]
        consistency: Consistency,
        /// Accept that a get may miss an acknowledged write, because R + W is not above N any more.
        #[arg(long)]
        accept_weaker: bool,
        /// How.
        #[command(flatten)]
        create: CreateArguments,
    },
}

/// How a plan is created.
#[derive(Clone, Debug, clap::Args)]
pub struct CreateArguments {
    /// Show the plan without saving it.
    #[arg(long)]
    pub dry_run: bool,
    /// Accept that replicas lie in fewer zones than they do now.
    #[arg(long)]
    pub accept_fewer_zones: bool,
}

/// Which plan.
#[derive(Clone, Debug, clap::Args)]
pub struct NumberArguments {
    /// Number of the plan.
    #[arg(value_name = "NUMBER")]
    pub plan: u64,
}

/// Which plan is shown.
#[derive(Clone, Debug, clap::Args)]
pub struct ShowArguments {
    /// Number of the plan; by default the one that is under way, or else the newest.
    #[arg(value_name = "NUMBER")]
    pub plan: Option<u64>,
}

/// Which plan, and whether its end is waited for.
#[derive(Clone, Debug, clap::Args)]
pub struct ApplyArguments {
    /// Which plan.
    #[command(flatten)]
    pub number: NumberArguments,
    /// Do not wait for the end.
    #[arg(long)]
    pub no_wait: bool,
}

/// Carries out a command.
pub(crate) async fn run(shared: CliContext, command: PlanCommand) -> Result<ExitCode, CliError> {
    match command {
        PlanCommand::Create(command) => create(&shared, command).await,
        PlanCommand::Show(arguments) => {
            let planned = find(&shared, &arguments).await?;
            print(shared.format(), &shown::json(&planned), || shown::text(&planned));
            Ok(ExitCode::SUCCESS)
        }
        PlanCommand::Diff(arguments) => {
            let planned = find(&shared, &arguments).await?;
            let json = json!({ "plan": planned.number, "change": planned.plan.change });
            print(shared.format(), &json, || shown::diff(&planned.plan));
            Ok(ExitCode::SUCCESS)
        }
        PlanCommand::Apply(ApplyArguments { number, no_wait }) => {
            order_and_wait(&shared, Order::Apply { plan: number.plan }, no_wait).await
        }
        PlanCommand::Abort(ApplyArguments { number, no_wait }) => {
            order_and_wait(&shared, Order::Abort { plan: number.plan }, no_wait).await
        }
        PlanCommand::Pause(arguments) => {
            order_and_wait(&shared, Order::Pause { plan: arguments.plan }, true).await
        }
        PlanCommand::Resume(arguments) => {
            order_and_wait(&shared, Order::Resume { plan: arguments.plan }, true).await
        }
        PlanCommand::History => history(&shared).await,
    }
}

impl CreateCommand {
    /// What is wished for, and how.
    fn wish(self) -> (Wish, CreateArguments) {
        match self {
            CreateCommand::Numbers { store, consistency: numbers, create, .. } => {
                (Wish::Numbers { store, numbers }, create)
            }
            CreateCommand::Spread(create) => (Wish::Spread, create),
            CreateCommand::Drain { nodes, create } => (Wish::Drain { nodes }, create),
            CreateCommand::Replace { node, by, create } => (Wish::Replace { node, by }, create),
            CreateCommand::Join { node, hottest, create } => {
                (Wish::Join { node, cut: join_cut(hottest) }, create)
            }
            CreateCommand::Move { partitions, from, to, create } => {
                (Wish::Move { partitions, from, to }, create)
            }
            CreateCommand::Split { partition, at, create } => (Wish::Split { partition, at }, create),
            CreateCommand::Merge { partition, neighbour: other, create } => {
                (Wish::Merge { partition, other }, create)
            }
            CreateCommand::Double(create) => (Wish::Double, create),
        }
    }
}

/// What is cut for a node that joins a golden ring.
fn join_cut(hottest: bool) -> JoinCut {
    if hottest { JoinCut::Hottest } else { JoinCut::Widest }
}

/// Gives a member without a partition of a golden ring a part of one: shows the plan, and carries it out.
pub(crate) async fn join(
    shared: &CliContext,
    client: &Client,
    (node, hottest): (NodeId, bool),
    no_wait: bool,
) -> Result<ExitCode, CliError> {
    let wish = Wish::Join { node, cut: join_cut(hottest) };
    let order = Order::Create { wish, consent: Consent::default() };
    // A new member's figures take a while.
    let answer = ordered(client, &order, if hottest { Ordering::Patient } else { Ordering::Once }).await?;
    let plan = match &answer {
        OrderOutcome::Done { plan: Some(plan), .. } => *plan,
        OrderOutcome::Done { done, .. } => return Err(CliError::Other(words::done(done, None))),
        refused => return Err(orders::refused(client, &order, refused).await),
    };
    let asked = client.plan(PlanQuery { number: Some(plan), ..PlanQuery::default() }).await;
    let page = asked.map_err(|error| wait::unseen(plan, "is created", &error))?;
    if let Some(planned) = &page.plan {
        say!("{}", shown::preview(planned));
    }
    let (order, began) = (Order::Apply { plan }, tokio::time::Instant::now());
    loop {
        let answer = ordered(client, &order, Ordering::Once).await?;
        // One that has just become a member serves a moment later.
        let is_deaf = matches!(&answer, OrderOutcome::Refused { refusal: OrderRefusal::NodeDeaf { .. }, .. });
        if !is_deaf || began.elapsed() >= SERVES_AFTER_MAX {
            return await_end(shared, client, (&order, &answer), no_wait).await;
        }
        tokio::time::sleep(ORDER_PAUSE).await;
    }
}

/// Shows on standard error who gets the partition of a node that is drained, on a golden ring. What cannot be the order
/// itself will say.
pub(crate) async fn drain_shown(shared: &CliContext, node: NodeId) -> Result<(), CliError> {
    let client = shared.client().await?;
    let wish = Wish::Drain { nodes: vec![node] };
    for _ in 0..DRAIN_LOOKS_MAX {
        let cluster = client.refresh().await?;
        if !cluster.ring.is_golden() {
            break;
        }
        if let Ok(plan) = protocol::rebalance::planner::plan(&cluster, &wish, Consent::default()) {
            say!("{}", shown::dry(&plan.document(wish, Consent::default())).trim_end());
            break;
        }
        if cluster.ring.is_settled() {
            break;
        }
        // Who was asked may be a document behind, by which an earlier plan is still under way.
        tokio::time::sleep(ORDER_PAUSE).await;
    }
    Ok(())
}

/// Shows what would be cut for a node, by the newest cluster document, and changes nothing. A node that `node add` would
/// not take is refused here, too.
pub(crate) async fn join_dry(shared: &CliContext, node: NodeId) -> Result<ExitCode, CliError> {
    let client = shared.client().await?;
    let mut cluster = client.refresh().await?.as_ref().clone();
    let (_, office) = client.office().await?;
    if let Some(reason) = office.unread {
        return Err(CliError::Other(format!(
            "no plan is shown: the coordination service cannot be read ({reason}), so nobody knows whether {node} can join; \
             `{} doctor` says what to do",
            program()
        )));
    }
    match newcomer(&cluster, &office, node) {
        Ok(None) => {}
        Ok(Some(new)) => {
            cluster.nodes.push(new);
            cluster.nodes.sort_by_key(|known| known.id);
        }
        Err(refusal) => {
            let (text, refusal) = (words::why(&refusal), Box::new(refusal));
            return Err(CliError::Refused { text, refusal, retryable: false });
        }
    }
    let wish = Wish::Join { node, cut: JoinCut::Widest };
    dry(shared, &cluster, wish, Consent::default())
}

/// The entry that a node would get as a member; `None` of one that is a member.
///
/// # Errors
/// Why it can be none, as the headmaster would say.
fn newcomer(cluster: &Cluster, office: &Office, node: NodeId) -> Result<Option<Node>, OrderRefusal> {
    match cluster.node(node).map(|known| known.role) {
        Some(Role::Leaving) => return Err(OrderRefusal::NodeIsLeaving { node }),
        Some(_) => return Ok(None),
        None => {}
    }
    let is_it = |known: &&Node| known.id == node;
    if office.left.iter().any(|known| is_it(&known)) {
        return Err(OrderRefusal::NodeWasMember { node });
    }
    let new = office.waiting.iter().find(is_it).ok_or(OrderRefusal::NodeNotRegistered { node })?;
    protocol::headmaster::unfit(cluster, new).map_or(Ok(Some(new.clone())), Err)
}

async fn create(shared: &CliContext, command: CreateCommand) -> Result<ExitCode, CliError> {
    let weaker = matches!(&command, CreateCommand::Numbers { accept_weaker: true, .. });
    let (wish, arguments) = command.wish();
    let consent = Consent { fewer_zones: arguments.accept_fewer_zones, weaker };
    if let Wish::Replace { node, by } = wish
        && node == by
    {
        let refusal = Box::new(OrderRefusal::OwnPlaces { node });
        let text = format!("no plan was created: {}", words::why(&refusal));
        return Err(CliError::Refused { text, refusal, retryable: false });
    }
    if arguments.dry_run {
        return show_dry(shared, wish, consent).await;
    }
    let client = shared.client().await?;
    let order = Order::Create { wish, consent };
    let (done, plan) = match orders::order(&client, &order).await? {
        OrderOutcome::Done { done, plan, .. } => (done, plan),
        refused => return Err(orders::refused(&client, &order, &refused).await),
    };
    let Some(plan) = plan else {
        let text = words::done(&done, plan);
        print(shared.format(), &json!({ "plan": null, "done": done }), || text.clone());
        return Ok(ExitCode::SUCCESS);
    };
    let asked = client.plan(PlanQuery { number: Some(plan), ..PlanQuery::default() }).await;
    let page = asked.map_err(|error| wait::unseen(plan, "is created", &error))?;
    let planned = page.plan.ok_or_else(|| CliError::Other("the plan was deleted meanwhile".to_owned()))?;
    print(shared.format(), &shown::json(&planned), || shown::text(&planned));
    Ok(ExitCode::SUCCESS)
}

/// Shows the plan for a wish, by the newest cluster document, and keeps nothing.
pub(crate) async fn show_dry(
    shared: &CliContext,
    wish: Wish,
    consent: Consent,
) -> Result<ExitCode, CliError> {
    let cluster = shared.client().await?.refresh().await?;
    dry(shared, &cluster, wish, consent)
}

fn dry(shared: &CliContext, cluster: &Cluster, wish: Wish, consent: Consent) -> Result<ExitCode, CliError> {
    let bytes_max = ::coordination::DOCUMENT_BYTES_MAX - protocol::headmaster::ROOM_LEFT;
    let plan = protocol::headmaster::planned(cluster, &wish, consent, bytes_max);
    let plan = plan.map_err(|refusal| CliError::Refused {
        text: format!("no plan was created: {}", words::wish_refused(&refusal)),
        refusal: Box::new(OrderRefusal::Wish(refusal)),
        retryable: false,
    })?;
    let plan = plan.document(wish, consent);
    print(shared.format(), &json!({ "plan": null, "document": plan }), || shown::dry(&plan));
    Ok(ExitCode::SUCCESS)
}

/// The plan that was asked for, or else the one that is under way, or else the newest.
async fn find(shared: &CliContext, arguments: &ShowArguments) -> Result<Planned, CliError> {
    let client = shared.client().await?;
    let page = client.plan(PlanQuery { number: arguments.plan, ..PlanQuery::default() }).await?;
    let program = program();
    let named =
        arguments.plan.map_or_else(|| "the newest plan".to_owned(), |number| format!("plan {number}"));
    match (page.plan, page.unread, arguments.plan) {
        (Some(planned), ..) => Ok(planned),
        (None, Some(detail), _) => Err(CliError::Other(format!(
            "{named} is not understood: {detail}; a later version created it: run `{program} plan show` of that version"
        ))),
        (None, None, Some(number)) => Err(unknown(number)),
        (None, None, None) => Err(CliError::Other(format!(
            "there is no plan yet; create one with `{program} plan create`; `{program} help plan create` lists what can be \
             planned"
        ))),
    }
}

/// The error of a plan that nobody has heard of, or that is not kept any more.
pub(crate) fn unknown(plan: u64) -> CliError {
    let refusal = Box::new(OrderRefusal::PlanUnknown { plan });
    CliError::Refused { text: words::why(&refusal), refusal, retryable: false }
}

/// Gives an order about a plan, or one that may begin one, and waits for the plan's end.
pub(crate) async fn order_and_wait(
    shared: &CliContext,
    order: Order,
    no_wait: bool,
) -> Result<ExitCode, CliError> {
    give_and_wait(shared, (order, Ordering::Once), no_wait).await
}

/// The same, with a choice of what to do about a refusal.
pub(crate) async fn give_and_wait(
    shared: &CliContext,
    (order, ordering): (Order, Ordering),
    no_wait: bool,
) -> Result<ExitCode, CliError> {
    let client = shared.client().await?;
    let answer = ordered(&client, &order, ordering).await?;
    await_end(shared, &client, (&order, &answer), no_wait).await
}

/// Says what came of an order, and waits for the end of the plan that it began.
async fn await_end(
    shared: &CliContext,
    client: &Client,
    (order, answer): (&Order, &OrderOutcome),
    no_wait: bool,
) -> Result<ExitCode, CliError> {
    let wanted = if matches!(order, Order::Abort { .. }) { "aborted" } else { "done" };
    let OrderOutcome::Done { done, plan, .. } = answer else {
        return Err(orders::refused(client, order, answer).await);
    };
    let text = words::done(done, *plan);
    let ended = match plan {
        Some(plan) if !no_wait => {
            say!("{text}");
            Some(wait::until_ended(client, *plan).await?)
        }
        _ => None,
    };
    let Some(planned) = ended else {
        print(shared.format(), &json!({ "plan": plan, "done": done }), || match plan {
            Some(plan) => format!("{text}; see how far it is with `{} plan show {plan}`", program()),
            None => text.clone(),
        });
        return Ok(ExitCode::SUCCESS);
    };
    print(shared.format(), &shown::json(&planned), || shown::end(&planned));
    if planned.word() == Phase::Aborted.word() {
        still_leaving(client, &planned.plan.wish).await;
    }
    Ok(if planned.word() == wanted { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// Says which nodes still leave although the plan of their drain was aborted: that is their role, which the plan leaves.
async fn still_leaving(client: &Client, wish: &Wish) {
    let Wish::Drain { nodes } = wish else { return };
    let Ok(cluster) = client.refresh().await else { return };
    let leaves = |node: &&NodeId| cluster.node(**node).is_some_and(|known| known.role == Role::Leaving);
    for node in nodes.iter().filter(leaves) {
        let (program, id) = (program(), node.0);
        say!(
            "{node} still counts as leaving: keep it with `{program} node recommission {id}`, or let it go with `{program} node \
             drain {id}`"
        );
    }
}

/// What to do about a refusal for what passes by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ordering {
    /// It is the answer.
    Once,
    /// The order is given again, until something else is answered.
    Patient,
}

async fn ordered(client: &Client, order: &Order, ordering: Ordering) -> Result<OrderOutcome, CliError> {
    let (mut is_told, began) = (false, tokio::time::Instant::now());
    loop {
        let answer = orders::order(client, order).await?;
        // Whoever lives that long is not dead; a later outage must not make him so.
        let may_wait = ordering == Ordering::Patient && began.elapsed() < ORDERED_FOR;
        let OrderOutcome::Refused { refusal, again_after_ms: Some(again) } = &answer else {
            return Ok(answer);
        };
        if !may_wait {
            return Ok(answer);
        }
        if !std::mem::replace(&mut is_told, true) {
            say!("waits: {}", words::refused(order, refusal, &client.cluster()));
        }
        tokio::time::sleep(Duration::from_millis(*again).max(ORDER_PAUSE)).await;
    }
}

async fn history(shared: &CliContext) -> Result<ExitCode, CliError> {
    let client = shared.client().await?;
    let page = client.plan(PlanQuery { all: true, ..PlanQuery::default() }).await?;
    print(shared.format(), &json!({ "plans": page.plans }), || shown::history(&page.plans));
    Ok(ExitCode::SUCCESS)
}

fn parse_token(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| {
        "expected a token, for example 288230376151711744, or 0x0400000000000000 with the digits that `tontine route` prints"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use model::{Ring, Zone};

    use super::*;

    /// A plan was shown for a node that had left, for one that does not exist, and for one of another zone.
    #[test]
    fn a_plan_is_shown_only_for_a_node_that_would_be_taken() {
        let node = |id: u32, zone: &str| {
            Node::new(NodeId(id), Zone(zone.to_owned()), format!("10.0.0.{id}:7401"), None)
        };
        let ring = Ring::golden(&[1, 2].map(NodeId), 16, 2).unwrap();
        let mut cluster = Cluster::new("c", vec![node(1, "a"), node(2, "a")], ring, Vec::new());
        cluster.nodes[1].role = Role::Leaving;
        let waiting =
            vec![node(3, "a"), node(4, "b"), Node { native: "10.0.0.1:7401".to_owned(), ..node(5, "a") }];
        let office = Office { waiting, left: vec![node(6, "a")], ..Office::default() };
        let of = |id| newcomer(&cluster, &office, NodeId(id));
        assert_eq!(of(1), Ok(None));
        assert_eq!(of(2), Err(OrderRefusal::NodeIsLeaving { node: NodeId(2) }));
        assert_eq!(of(3), Ok(Some(node(3, "a"))));
        assert!(matches!(of(4), Err(OrderRefusal::Wish(_))), "of another zone");
        assert!(matches!(of(5), Err(OrderRefusal::AddressTaken { .. })));
        assert_eq!(of(6), Err(OrderRefusal::NodeWasMember { node: NodeId(6) }));
        assert_eq!(of(7), Err(OrderRefusal::NodeNotRegistered { node: NodeId(7) }));
    }
}
