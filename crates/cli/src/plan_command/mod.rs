//! `tontine plan`: create, look, apply, watch, abort.
//!
//! Must never: change a cluster document. The headmaster does; commands give it orders and read what it wrote.

mod shown;
mod wait;

use std::process::ExitCode;
use std::time::Duration;

use ::coordination::documents::ReadError;
use control::orders::{Answer, Order};
use control::plans::{self, PlanDocument, Planned};
use model::{Consistency, NodeId, PartitionId};
use protocol::rebalance::planner::{Consent, Wish};
use serde_json::json;

use crate::dev::parse_consistency;
use crate::failure::CliError;
use crate::orders::{Documents, DocumentsArguments, parse_node, parse_partition, unread};
use crate::output::{print, program};
use crate::shared::Shared;

/// How long an order is given again for what passes by itself.
const ORDERED_FOR: Duration = Duration::from_secs(120);
/// Shortest pause before an order is given again.
const ORDER_PAUSE: Duration = Duration::from_secs(1);

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
    History(HistoryArguments),
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
    /// Where the documents are.
    #[command(flatten)]
    pub documents: DocumentsArguments,
}

/// Which plan.
#[derive(Clone, Debug, clap::Args)]
pub struct NumberArguments {
    /// Number of the plan.
    #[arg(value_name = "NUMBER")]
    pub plan: u64,
    /// Where the documents are.
    #[command(flatten)]
    pub documents: DocumentsArguments,
}

/// Which plan is shown.
#[derive(Clone, Debug, clap::Args)]
pub struct ShowArguments {
    /// Number of the plan; by default the one that is under way, or else the newest.
    #[arg(value_name = "NUMBER")]
    pub plan: Option<u64>,
    /// Where the documents are.
    #[command(flatten)]
    pub documents: DocumentsArguments,
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

/// Where plans are listed.
#[derive(Clone, Debug, clap::Args)]
pub struct HistoryArguments {
    /// Where the documents are.
    #[command(flatten)]
    pub documents: DocumentsArguments,
}

/// Carries out a command.
pub(crate) async fn run(shared: Shared, command: PlanCommand) -> Result<ExitCode, CliError> {
    match command {
        PlanCommand::Create(command) => create(&shared, command).await,
        PlanCommand::Show(arguments) => {
            let (documents, planned) = find(&shared, &arguments).await?;
            print(shared.format(), &shown::json(&planned), || shown::text(&planned));
            documents.close().await;
            Ok(ExitCode::SUCCESS)
        }
        PlanCommand::Diff(arguments) => {
            let (documents, planned) = find(&shared, &arguments).await?;
            let PlanDocument { moves, reshape, numbers, .. } = &planned.plan;
            let number = planned.number;
            let json = json!({ "plan": number, "moves": moves, "reshape": reshape, "numbers": numbers });
            print(shared.format(), &json, || shown::diff(&planned.plan));
            documents.close().await;
            Ok(ExitCode::SUCCESS)
        }
        PlanCommand::Apply(arguments) => {
            let plan = arguments.number.plan;
            order_and_wait(&shared, &arguments.number.documents, Order::Apply { plan }, arguments.no_wait)
                .await
        }
        PlanCommand::Abort(arguments) => {
            let plan = arguments.number.plan;
            order_and_wait(&shared, &arguments.number.documents, Order::Abort { plan }, arguments.no_wait)
                .await
        }
        PlanCommand::Pause(arguments) => {
            let order = Order::Pause { plan: arguments.plan };
            order_and_wait(&shared, &arguments.documents, order, true).await
        }
        PlanCommand::Resume(arguments) => {
            let order = Order::Resume { plan: arguments.plan };
            order_and_wait(&shared, &arguments.documents, order, true).await
        }
        PlanCommand::History(arguments) => history(&shared, &arguments.documents).await,
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

async fn create(shared: &Shared, command: CreateCommand) -> Result<ExitCode, CliError> {
    let weaker = matches!(&command, CreateCommand::Numbers { accept_weaker: true, .. });
    let (wish, arguments) = command.wish();
    let consent = Consent { fewer_zones: arguments.accept_fewer_zones, weaker };
    if arguments.dry_run {
        return show_dry(shared, &arguments.documents, wish, consent).await;
    }
    let documents = Documents::open(shared, &arguments.documents).await?;
    let answer = documents.order(Order::Create { wish, consent }).await?;
    let planned = match answer {
        Answer { done: false, text, .. } => return Err(CliError::Other(refused(&text))),
        Answer { plan: Some(plan), .. } => plans::read(&*documents.service, plan).await.map_err(unread)?,
        Answer { text, .. } => {
            print(shared.format(), &json!({ "plan": null, "answer": text }), || text.clone());
            return Ok(ExitCode::SUCCESS);
        }
    };
    documents.close().await;
    let planned = planned.ok_or_else(|| CliError::Other("the plan was deleted meanwhile".to_owned()))?;
    print(shared.format(), &shown::json(&planned), || shown::text(&planned));
    Ok(ExitCode::SUCCESS)
}

/// Shows the plan for a wish, and keeps nothing.
pub(crate) async fn show_dry(
    shared: &Shared,
    documents: &DocumentsArguments,
    wish: Wish,
    consent: Consent,
) -> Result<ExitCode, CliError> {
    let documents = Documents::open(shared, documents).await?;
    let plan = plans::planned(&documents.cluster, &wish, consent);
    documents.close().await;
    let plan = plan.map_err(|refusal| CliError::Other(refused(&refusal.to_string())))?;
    let plan = PlanDocument::new(plan, wish, consent);
    print(shared.format(), &json!({ "plan": null, "document": plan }), || shown::dry(&plan));
    Ok(ExitCode::SUCCESS)
}

fn refused(reason: &str) -> String {
    format!("no plan was created: {reason}")
}

async fn find(shared: &Shared, arguments: &ShowArguments) -> Result<(Documents, Planned), CliError> {
    let documents = Documents::open(shared, &arguments.documents).await?;
    let number = match arguments.plan {
        Some(number) => number,
        None => latest(&documents).await?,
    };
    let planned = plans::read(&*documents.service, number).await.map_err(|error| match error {
        ReadError::Malformed { reason, .. } => CliError::Other(format!(
            "plan {number} is not understood: {reason}; a later version created it: run `{} plan show {number}` of that \
             version",
            program()
        )),
        error => unread(error),
    })?;
    let planned = planned.ok_or_else(|| {
        CliError::Other(format!("there is no plan {number}; list them with `{} plan history`", program()))
    })?;
    Ok((documents, planned))
}

/// The plan that is under way, or else the newest.
async fn latest(documents: &Documents) -> Result<u64, CliError> {
    let all = plans::read_all(&*documents.service).await.map_err(unread)?;
    let is_under_way =
        |(_, found): &&(u64, Result<Planned, String>)| found.as_ref().is_ok_and(Planned::is_under_way);
    let plan = all.iter().rev().find(is_under_way).or_else(|| all.last());
    plan.map(|(number, _)| *number).ok_or_else(|| {
        CliError::Other(format!(
            "there is no plan yet; create one with `{program} plan create`; `{program} help plan create` lists what can be \
             planned",
            program = program()
        ))
    })
}

/// Gives an order about a plan, or one that may begin one, and waits for the plan's end.
pub(crate) async fn order_and_wait(
    shared: &Shared,
    documents: &DocumentsArguments,
    order: Order,
    no_wait: bool,
) -> Result<ExitCode, CliError> {
    give_and_wait(shared, documents, (order, Ordering::Once), no_wait).await
}

/// The same, with a choice of what to do about a refusal.
pub(crate) async fn give_and_wait(
    shared: &Shared,
    documents: &DocumentsArguments,
    (order, ordering): (Order, Ordering),
    no_wait: bool,
) -> Result<ExitCode, CliError> {
    let documents = Documents::open(shared, documents).await?;
    let wanted = if matches!(order, Order::Abort { .. }) { "aborted" } else { "done" };
    let answer = ordered(&documents, order, ordering).await?;
    if !answer.done {
        documents.close().await;
        return Err(CliError::Other(answer.text));
    }
    let ended = match answer.plan {
        Some(plan) if !no_wait => {
            say!("{}", answer.text);
            Some(wait::until_ended(&documents, plan).await?)
        }
        _ => None,
    };
    documents.close().await;
    let Some(planned) = ended else {
        print(shared.format(), &json!({ "plan": answer.plan, "answer": answer.text }), || {
            match answer.plan {
                Some(plan) => {
                    format!("{}; see how far it is with `{} plan show {plan}`", answer.text, program())
                }
                None => answer.text.clone(),
            }
        });
        return Ok(ExitCode::SUCCESS);
    };
    print(shared.format(), &shown::json(&planned), || shown::end(&planned));
    Ok(if planned.word() == wanted { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// What to do about a refusal for what passes by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ordering {
    /// It is the answer.
    Once,
    /// The order is given again, until something else is answered.
    Patient,
}

async fn ordered(documents: &Documents, order: Order, ordering: Ordering) -> Result<Answer, CliError> {
    let (mut is_told, began) = (false, tokio::time::Instant::now());
    loop {
        let answer = documents.order(order.clone()).await?;
        // Whoever lives that long is not dead; a later outage must not make him so.
        let may_wait = ordering == Ordering::Patient && began.elapsed() < ORDERED_FOR;
        let again = answer.again_after_ms.filter(|_| may_wait && !answer.done);
        let Some(again) = again else { return Ok(answer) };
        if !std::mem::replace(&mut is_told, true) {
            say!("waits: {}", answer.text);
        }
        tokio::time::sleep(Duration::from_millis(again).max(ORDER_PAUSE)).await;
    }
}

async fn history(shared: &Shared, arguments: &DocumentsArguments) -> Result<ExitCode, CliError> {
    let documents = Documents::open(shared, arguments).await?;
    let all = plans::read_all(&*documents.service).await.map_err(unread)?;
    documents.close().await;
    let one = |(number, found): &(u64, Result<Planned, String>)| match found {
        Ok(planned) => shown::json(planned),
        Err(reason) => json!({ "plan": number, "phase": "not-understood", "reason": reason }),
    };
    let json = json!({ "plans": all.iter().map(one).collect::<Vec<_>>() });
    print(shared.format(), &json, || shown::history(&all));
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
