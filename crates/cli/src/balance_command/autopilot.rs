//! `tontine balance on|off|observe|set|why`: what the autopilot may do, and why it did what it did, or nothing.

use std::process::ExitCode;

use client::PlanQuery;
use model::balance::{Away, Mode, Policy, PolicyChange, Says};
use model::order::{Balancing, Order, OrderOutcome};
use model::plan::{Decision, Planned};
use model::{Cluster, NodeId, PartitionId};
use serde_json::{Value as Json, json};

use super::keys;
use crate::context::CliContext;
use crate::failure::CliError;
use crate::orders;
use crate::output::{print, program};
use crate::words;

/// What shall be explained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A node.
    Node(NodeId),
    /// A partition.
    Partition(PartitionId),
    /// A plan.
    Plan(u64),
}

/// What shall be explained.
#[derive(Clone, Debug, clap::Args)]
pub struct WhyArguments {
    /// A node (n3), a partition (p12), or the number of a plan (7). Without one: what the autopilot thinks now.
    #[arg(value_parser = parse_subject, value_name = "NODE|PARTITION|PLAN")]
    pub subject: Option<Subject>,
}

/// What shall be otherwise.
#[derive(Clone, Debug, clap::Args)]
pub struct SetArguments {
    /// Settings such as over-mean=120 or quiet=22-6; all of them are set, or none. `balance why` shows all.
    #[arg(value_parser = parse_setting, value_name = "NAME=VALUE", required = true)]
    pub settings: Vec<(String, String)>,
}

fn parse_subject(text: &str) -> Result<Subject, String> {
    let number = |text: &str| text.parse::<u32>().ok();
    let found = match text.as_bytes().first() {
        Some(b'n') => number(&text[1..]).map(|id| Subject::Node(NodeId(id))),
        Some(b'p') => number(&text[1..]).map(|id| Subject::Partition(PartitionId(id))),
        _ => text.parse().ok().map(Subject::Plan),
    };
    found.ok_or_else(|| {
        "expected a node such as n3, a partition such as p12, or the number of a plan".to_owned()
    })
}

fn parse_setting(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE, for example over-mean=120")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Changes what the autopilot does.
pub(crate) async fn turn(shared: &CliContext, mode: Mode) -> Result<ExitCode, CliError> {
    change(shared, PolicyChange::Mode { mode }).await
}

/// Changes its numbers.
pub(crate) async fn set(shared: &CliContext, arguments: SetArguments) -> Result<ExitCode, CliError> {
    change(shared, PolicyChange::Set { settings: arguments.settings }).await
}

/// Lets no standby take the places of a node that is away.
pub(crate) async fn veto(shared: &CliContext, node: NodeId) -> Result<ExitCode, CliError> {
    change(shared, PolicyChange::Veto { node }).await
}

async fn change(shared: &CliContext, change: PolicyChange) -> Result<ExitCode, CliError> {
    let client = shared.client().await?;
    let order = Order::Balance { change };
    match orders::order(&client, &order).await? {
        OrderOutcome::Done { done, plan, .. } => {
            print(shared.format(), &json!({ "done": done }), || match &order {
                Order::Balance { change: PolicyChange::Veto { node } } => words::vetoed(*node),
                _ => words::done(&done, plan),
            });
            Ok(ExitCode::SUCCESS)
        }
        answer => Err(orders::refused(&client, &order, &answer).await),
    }
}

/// Says why something was done, or nothing is.
pub(crate) async fn why(shared: &CliContext, arguments: WhyArguments) -> Result<ExitCode, CliError> {
    let client = shared.client().await?;
    if let Some(Subject::Plan(number)) = arguments.subject {
        let planned = find_plan(&client, number).await?;
        print(shared.format(), &plan_json(&planned), || plan_text(&planned));
        return Ok(ExitCode::SUCCESS);
    }
    let (_, office) = client.office().await?;
    if let Some(unread) = &office.unread {
        return Err(CliError::Other(format!("the documents of the autopilot cannot be read: {unread}")));
    }
    let balancing = office.balancing.unwrap_or(Balancing { policy: None, verdict: None });
    let cluster = client.cluster();
    let plans = match arguments.subject {
        None => Vec::new(),
        Some(subject) => {
            let plans = plans_about(&client, subject).await?;
            if plans.is_empty() {
                check_subject(&cluster, subject)?;
            }
            plans
        }
    };
    let hottest = match arguments.subject {
        Some(Subject::Partition(partition)) => Some((partition, keys::hottest(&client, partition).await)),
        _ => None,
    };
    let unread = balancing.verdict.as_ref().filter(|verdict| verdict.policy_unread.is_some());
    let unknown = Policy { mode: unread.map_or(Mode::Observe, |verdict| verdict.mode), ..Policy::unknown() };
    let policy = balancing.policy.clone().unwrap_or(unknown);
    let mut document = json!({
        "policy": policy,
        "verdict": balancing.verdict,
        "plans": plans.iter().map(plan_json).collect::<Vec<_>>(),
    });
    if let Some((_, hottest)) = &hottest {
        document["hottest"] = hottest.json();
    }
    print(shared.format(), &document, || {
        let mut text = standing(&policy, &balancing);
        if let Some(subject) = arguments.subject {
            text.push_str(&about(&cluster, subject, &plans));
        }
        if let Some((partition, hottest)) = &hottest {
            text.push_str(&format!("\n{}", hottest.text(*partition)));
        }
        text
    });
    Ok(ExitCode::SUCCESS)
}

async fn find_plan(client: &client::Client, number: u64) -> Result<Planned, CliError> {
    let page = client.plan(PlanQuery { number: Some(number), ..PlanQuery::default() }).await?;
    page.plan.ok_or_else(|| crate::plan_command::unknown(number))
}

fn check_subject(cluster: &Cluster, subject: Subject) -> Result<(), CliError> {
    let missing = match subject {
        Subject::Node(node) if cluster.node(node).is_none() => {
            format!("{node} is no member; `{} node list` shows all nodes", program())
        }
        Subject::Partition(partition) if cluster.ring.get(partition).is_none() => {
            format!(
                "the ring has no partition {partition}; `{program} status` says how many it has, and `{program} route KEY` in \
                 which one a key lies",
                program = program()
            )
        }
        _ => return Ok(()),
    };
    Err(CliError::Other(missing))
}

/// The last plans that changed something of it, the newest first.
async fn plans_about(client: &client::Client, subject: Subject) -> Result<Vec<Planned>, CliError> {
    const SHOWN: usize = 5;
    let all = client.plan(PlanQuery { all: true, ..PlanQuery::default() }).await?.plans;
    let mut found = Vec::new();
    for summary in all.iter().rev().filter(|summary| summary.phase.is_some()) {
        let query = PlanQuery { number: Some(summary.number), ..PlanQuery::default() };
        let Some(planned) = client.plan(query).await?.plan else { continue };
        let cut =
            planned.plan.decision.as_ref().and_then(|decision| Some((decision.node, decision.cut.as_ref()?)));
        let is_cut = cut.is_some_and(|(relieved, cut)| match subject {
            Subject::Partition(partition) => cut.partition == partition,
            Subject::Node(node) => relieved == node,
            Subject::Plan(number) => number == planned.number,
        });
        let concerns = is_cut
            || planned.plan.change.moves().iter().any(|one| match subject {
                Subject::Partition(partition) => one.partition == partition,
                Subject::Node(node) => {
                    one.from.contains(&node) != one.to.contains(&node) || place(one, node).is_some()
                }
                Subject::Plan(number) => number == planned.number,
            });
        if concerns {
            found.push(planned);
        }
        if found.len() == SHOWN {
            break;
        }
    }
    Ok(found)
}

/// From which place to which a node goes in a list, if it does.
fn place(one: &model::plan::Move, node: NodeId) -> Option<(usize, usize)> {
    let at = |list: &[NodeId]| list.iter().position(|known| *known == node);
    let (from, to) = (at(&one.from)?, at(&one.to)?);
    (from != to).then_some((from, to))
}

/// A verdict that says the same is written anew seldom: from this age on that is said, in seconds.
const TOLD_AGAIN_S: u64 = 35;

fn standing(policy: &Policy, balancing: &Balancing) -> String {
    let mut text = format!("{}\n", words::policy(policy));
    text.push_str(&format!("settings: {}\n", words::settings(&policy.settings)));
    if policy.mode == Mode::Off {
        text.push_str(&format!("\n{}\n", words::says(&Says::Off, &policy.settings)));
        return text;
    }
    let Some(verdict) = &balancing.verdict else {
        text.push_str("it has said nothing yet; a headmaster must run, see `tontine doctor`\n");
        return text;
    };
    if let Some(unread) = &verdict.policy_unread {
        text.push_str(&format!(
            "its policy cannot be read any more ({unread}), and the last one goes on; `{} balance set` writes it anew\n",
            program()
        ));
    }
    let age = crate::clocks::now_ms().unsigned_abs().saturating_sub(verdict.at_ms) / 1000;
    let since = if age < TOLD_AGAIN_S { "" } else { ", and nothing else since" };
    text.push_str(&format!("\n{age} s ago{since}: {}\n", words::verdict(verdict, &policy.settings, age)));
    let is_planned = matches!(verdict.says, Says::PlanUnderWay { .. });
    for away in &verdict.away {
        // The plan may be what gives its places to a standby.
        let away = if is_planned { &Away { held: None, by: None, ..away.clone() } } else { away };
        text.push_str(&format!("\n{}\n", words::away(away, age)));
    }
    if !verdict.seen.is_empty() {
        text.push_str(&format!("\n{}", words::balance_nodes(&verdict.seen)));
    }
    text.push_str(&words::balance_lost(verdict.thought_of, &verdict.lost));
    text
}

fn about(cluster: &Cluster, subject: Subject, plans: &[Planned]) -> String {
    let mut text = String::from("\n");
    if let Subject::Partition(partition) = subject
        && let Some(known) = cluster.ring.get(partition)
    {
        let nodes: Vec<String> = cluster.replicas_in(&known.nodes).iter().map(NodeId::to_string).collect();
        text.push_str(&format!("{partition} lies on {}\n", nodes.join(", ")));
    }
    if plans.is_empty() {
        text.push_str("no plan that is kept has changed anything of it\n");
    }
    for planned in plans {
        text.push_str(&plan_text(planned));
        text.push('\n');
    }
    text
}

fn plan_json(planned: &Planned) -> Json {
    let came_of = planned.state.as_ref().and_then(|state| state.came_of);
    json!({
        "plan": planned.number,
        "phase": planned.word(),
        "by": planned.plan.by,
        "created_ms": planned.plan.created_ms,
        "decision": planned.plan.decision,
        "came_of": came_of,
    })
}

fn plan_text(planned: &Planned) -> String {
    let (plan, number) = (&planned.plan, planned.number);
    let when = crate::text::moment(plan.created_ms);
    let head = format!("plan {number}, {}, of {when}", planned.word());
    match &plan.decision {
        Some(decision) => format!("{head}\n{}", full(decision, planned)),
        None => format!(
            "{head}: ordered by {}, not by the autopilot; `{} plan show {number}` shows it\n",
            plan.by,
            program()
        ),
    }
}

fn full(decision: &Decision, planned: &Planned) -> String {
    let came_of = planned.state.as_ref().and_then(|state| state.came_of.as_ref());
    words::decision(decision, came_of, planned.plan.change.moves())
}
