//! `tontine elastic simulate`: what policies would have cost for a trace of load, side by side.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use model::elasticity::{Money, Policy, Rule, Sizing};
use protocol::elasticity::trace::{Machines, TraceOutcome, play, wanted};
use serde_json::{Value as Json, json};

use super::apply::read_policy;
use super::words;
use crate::context::CliContext;
use crate::failure::CliError;
use crate::output::print;
use crate::text::table;

/// Rows of a trace at most: a row for each ten seconds of a year.
const ROWS_MAX: usize = 4_000_000;

/// Plays a trace.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
A trace is CSV without a header: seconds, and operations in a second from then on:
  0,1200
  60,1350

Each policy is played by the controller that `elastic run` has, on machines that boot, join and drain in given times and \
share the load evenly. They are compared with machines for the peak at all times, with a policy that knows the future, and \
with one that divides the load by what one machine carries.

Example:
  tontine elastic simulate --trace day.csv --policy rules,target,forecast --operations 2000 --price 0.10 shop.toml")]
pub struct SimulateArguments {
    /// A file with a policy, as of `elastic apply`: its bounds, objective, rules and cooldowns are played.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The trace.
    #[arg(long, value_name = "CSV")]
    pub trace: PathBuf,
    /// How the size is chosen: rules, target, forecast, separated by commas.
    #[arg(long, value_delimiter = ',', value_parser = parse_sizing, default_value = "rules,target,forecast")]
    pub policy: Vec<Sizing>,
    /// Operations in a second that use one machine to 100 %.
    #[arg(long, value_name = "NUMBER", value_parser = parse_operations)]
    pub operations: f64,
    /// Operations that members carry out for one of the trace. A request that clients count may be one of several at members,
    /// where there are copies.
    #[arg(long, value_name = "NUMBER", value_parser = parse_operations, default_value = "1")]
    pub work: f64,
    /// What an hour of a machine costs.
    #[arg(long, value_name = "MONEY", default_value = "1")]
    pub price: Money,
    /// Seconds until the engine sees a machine that was asked for.
    #[arg(long, value_name = "SECONDS", default_value_t = 90)]
    pub boots: u64,
    /// Seconds until it serves from then on.
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    pub joins: u64,
    /// Seconds until nothing is on a machine that leaves.
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    pub drains: u64,
}

fn parse_operations(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number > 0.0 => Ok(number),
        _ => Err("expected a number above 0".to_owned()),
    }
}

fn parse_sizing(text: &str) -> Result<Sizing, String> {
    match text {
        "rules" => Ok(Sizing::Rules),
        "target" => Ok(Sizing::Target),
        "forecast" => Ok(Sizing::Forecast),
        _ => Err("expected rules, target or forecast".to_owned()),
    }
}

fn name(sizing: Sizing) -> &'static str {
    match sizing {
        Sizing::Rules => "rules",
        Sizing::Target => "target",
        Sizing::Forecast => "forecast",
    }
}

/// Carries it out.
pub(super) fn run(shared: &CliContext, arguments: &SimulateArguments) -> Result<ExitCode, CliError> {
    let policy = read_policy(&arguments.file)?;
    played_measures(&policy, &arguments.file)?;
    let mut trace = read_trace(&arguments.trace)?;
    trace.iter_mut().for_each(|(_, load)| *load *= arguments.work);
    let machines = Machines {
        price_per_hour: arguments.price,
        operations: arguments.operations,
        boots_s: arguments.boots,
        joins_s: arguments.joins,
        drains_s: arguments.drains,
    };
    let wanted = trace.iter().map(|(_, load)| wanted(*load, &machines, &policy)).max().unwrap_or(0);
    let peak = wanted.clamp(policy.min, policy.max);
    let fixed = TraceOutcome::fixed(&trace, &machines, &policy, peak);
    let best = TraceOutcome::clairvoyant(&trace, &machines, &policy);
    let even = TraceOutcome::evenly_divided(&trace, &machines, &policy);
    let references = [("fixed for the peak", fixed), ("the future known", best), ("even division", even)];
    let mut rows = Vec::from(references.map(|(name, outcome)| (name.to_owned(), outcome)));
    let lent = (arguments.policy.contains(&Sizing::Rules) && has_no_rules(&policy)).then(Policy::paper_rules);
    for &sizing in &arguments.policy {
        let policy = with(&policy, sizing);
        rows.push((name(sizing).to_owned(), play(&trace, &machines, &policy)));
    }
    let of =
        |outcome: &TraceOutcome, other: &TraceOutcome| outcome.paid.0 as f64 / other.paid.0.max(1) as f64;
    let rules = |(add, remove): &(Vec<Rule>, Vec<Rule>)| json!({ "add": add, "remove": remove });
    let lent_rules = lent.as_ref().map(rules);
    let document = json!({ "peak_wants": wanted, "rules_of_the_paper": lent_rules, "policies": rows.iter().map(|(name, outcome)| json!({
        "policy": name, "paid": outcome.paid, "machine_minutes": outcome.machine_minutes,
        "of_fixed": of(outcome, &fixed), "of_best": of(outcome, &best),
        "minutes_out_of_objective": outcome.minutes_out, "minutes": outcome.minutes, "minutes_held_by_budget": outcome.minutes_held,
        "ready_minutes": outcome.ready_minutes,
        "members_most": outcome.members_most, "changes": outcome.changes,
    })).collect::<Vec<Json>>() });
    print(shared.format(), &document, || {
        let head = [
            "policy",
            "paid",
            "of fixed",
            "of the best",
            "minutes out",
            "budget held",
            "most members",
            "changes",
        ];
        let lines = rows.iter().map(|(name, outcome)| {
            vec![
                name.clone(),
                outcome.paid.to_string(),
                format!("{:.2}", of(outcome, &fixed)),
                format!("{:.2}", of(outcome, &best)),
                format!("{:.0} of {:.0}", outcome.minutes_out, outcome.minutes),
                format!("{:.0}", outcome.minutes_held),
                outcome.members_most.to_string(),
                outcome.changes.to_string(),
            ]
        });
        let head = head.map(str::to_owned).to_vec();
        let table = table(&std::iter::once(head).chain(lines).collect::<Vec<_>>());
        let cut = (wanted > policy.max).then(|| {
            format!(
                "\nThe peak wants {wanted} members, and `max` allows {}: no row carries it within the objective.",
                policy.max
            )
        });
        std::iter::once(table).chain(lent.as_ref().map(told_lent)).chain(cut).collect::<Vec<_>>().join("\n")
    });
    Ok(ExitCode::SUCCESS)
}

fn has_no_rules(policy: &Policy) -> bool {
    policy.add.is_empty() && policy.remove.is_empty()
}

/// That a policy without rules was played with those of the paper.
fn told_lent((add, remove): &(Vec<Rule>, Vec<Rule>)) -> String {
    let told = |rules: &[Rule]| rules.iter().map(words::rule).collect::<Vec<_>>().join(" or ");
    format!(
        "\nThe policy has no rules, so the row `rules` plays those of the paper: {} adds, {} removes.",
        told(add),
        told(remove)
    )
}

/// The policy with another way to choose the size; the paper's rules where it has none.
fn with(policy: &Policy, sizing: Sizing) -> Policy {
    let mut policy = Policy { sizing: Some(sizing), ..policy.clone() };
    if sizing == Sizing::Rules && has_no_rules(&policy) {
        (policy.add, policy.remove) = Policy::paper_rules();
    }
    policy
}

/// Refuses rules of measures that a trace does not have: they would never hold, and look cheapest.
fn played_measures(policy: &Policy, file: &Path) -> Result<(), CliError> {
    const PLAYED: [&str; 2] = ["processor", "operations"];
    let rules = |list: &'static str, rules: &[Rule]| {
        let unknown = rules.iter().position(|rule| !PLAYED.contains(&rule.measure.as_str()));
        unknown.map(|place| (format!("{list}[{place}].measure"), rules[place].measure.clone()))
    };
    match rules("add", &policy.add).or_else(|| rules("remove", &policy.remove)) {
        None => Ok(()),
        Some((field, measure)) => Err(CliError::Usage(format!(
            "{}: {field}: a trace says nothing of {measure:?}, so this rule would never hold; simulate one of processor or \
             operations",
            file.display()
        ))),
    }
}

fn read_trace(path: &Path) -> Result<Vec<(u64, f64)>, CliError> {
    let shown = path.display();
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .trim(csv::Trim::All)
        .from_path(path)
        .map_err(|error| CliError::Usage(format!("cannot read the trace {shown}: {error}")))?;
    let mut trace: Vec<(u64, f64)> = Vec::new();
    for (number, row) in (1..).zip(reader.records()) {
        let wrong = |why: &str| {
            CliError::Usage(format!(
                "{shown}, row {number}: {why}; a row is `seconds,operations in a second`"
            ))
        };
        let row = row.map_err(|error| wrong(&error.to_string()))?;
        if row.len() != 2 {
            return Err(wrong(&format!("it has {} fields and not 2", row.len())));
        }
        let at = row[0].parse().map_err(|_| wrong(&format!("{:?} is no number of seconds", &row[0])))?;
        let load: f64 = row[1].parse().map_err(|_| wrong(&format!("{:?} is no number", &row[1])))?;
        if !load.is_finite() || load < 0.0 {
            return Err(wrong(&format!("a load of {load} cannot be")));
        }
        if trace.last().is_some_and(|(before, _)| *before >= at) {
            return Err(wrong("it is not later than the row before it"));
        }
        trace.push((at, load));
        if trace.len() > ROWS_MAX {
            return Err(wrong(&format!("a trace has {ROWS_MAX} rows at most")));
        }
    }
    match trace.len() {
        0 | 1 => Err(CliError::Usage(format!("the trace {shown} has fewer than two rows"))),
        _ => Ok(trace),
    }
}
