//! `tontine balance replay`: says what a policy would have done about recorded loads.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use model::balance::Settings;
use model::plan::Rule;
use protocol::rebalance::replay::{Replay, ReplayEvent};
use serde_json::json;

use super::trace::TraceReader;
use crate::context::CliContext;
use crate::durations;
use crate::failure::CliError;
use crate::output::{print, program};
use crate::text::{count, size};
use crate::words;

/// Replays recorded loads.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Needs no cluster. The policy decides as the headmaster would, and what it does changes the loads that follow:
recorded work of the n-th place of a partition goes to the node that is in that place by then.

  even           the autopilot's own
  thresholds     a node above 84% gives a random partition to one below 70%
  greedy         the busiest node always gives its dearest partition to the idlest, to compare with
  no-reordering  as even, without changing the order of lists, to compare with")]
pub struct ReplayArguments {
    /// What `balance record` wrote.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The policy: even, thresholds, greedy or no-reordering.
    #[arg(long, value_parser = parse_rule, value_name = "POLICY")]
    pub policy: Rule,
}

fn parse_rule(text: &str) -> Result<Rule, String> {
    let words = || Rule::ALL.map(Rule::word).join(", ");
    Rule::named(text).ok_or_else(|| format!("expected one of {}", words()))
}

/// `tontine balance replay`.
pub(super) fn run(shared: &CliContext, arguments: &ReplayArguments) -> Result<ExitCode, CliError> {
    let mut trace = TraceReader::open(&arguments.file)?;
    let settings = Settings { policy: arguments.policy, ..trace.head.settings.clone() };
    let (cluster, began_ms, file) = (trace.head.cluster.clone(), trace.head.at_ms, arguments.file.display());
    let mut replay: Option<Replay> = None;
    while let Some(mut look) = trace.next()? {
        if let Some(replay) = &mut replay {
            replay.look(&look);
            continue;
        }
        let document = look.document.take().ok_or_else(|| {
            CliError::Other(format!(
                "{file} does not begin with the cluster's document, so nobody knows who held what; record another one with \
                 `{} balance record FILE`",
                program()
            ))
        })?;
        replay.insert(Replay::new(document, settings.clone(), began_ms)).look(&look);
    }
    if trace.is_cut {
        say!("the last line of {file} is cut and was left out: it was not written to its end");
    }
    let Some(replay) = replay else {
        return Err(CliError::Other(format!(
            "{file} has no look at any load; record one for a minute or more with `{} balance record FILE`",
            program()
        )));
    };
    let document = json!({
        "cluster": cluster,
        "policy": arguments.policy,
        "at_ms": began_ms,
        "cut": trace.is_cut,
        "events": replay.events,
        "summary": replay.summary,
    });
    print(shared.format(), &document, || text(&cluster, arguments.policy, &settings, &replay));
    Ok(ExitCode::SUCCESS)
}

fn text(cluster: &str, rule: Rule, settings: &Settings, replay: &Replay) -> String {
    let mut text = format!("cluster {cluster}, policy {}\n\n", rule.word());
    for event in &replay.events {
        let (after_ms, told) = match event {
            ReplayEvent::Acts { after_ms, decision, .. } => (after_ms, words::decision_in_short(decision)),
            ReplayEvent::Says { after_ms, says } => (after_ms, words::says(says, settings)),
            ReplayEvent::Follows { after_ms } => (
                after_ms,
                "nodes, partitions or numbers changed; from here on by the recorded lists".to_owned(),
            ),
        };
        let acts = if matches!(event, ReplayEvent::Acts { .. }) { "acts: " } else { "" };
        text.push_str(&format!("{:>8.1} s  {acts}{told}\n", *after_ms as f64 / 1000.0));
    }
    let told = &replay.summary;
    let lasted = durations::shown(Duration::from_secs(told.lasted_ms / 1000));
    let over_mean = |permille: u64| match permille {
        0 => "unknown".to_owned(),
        permille => format!("{:.2}", permille as f64 / 1000.0),
    };
    text.push_str(&format!(
        "\n{} over {lasted}: {}, {}, {}; {} copied, {} within residence-s\nlargest over mean: {} before, {} after\n",
        count(told.looks, "look"),
        count(told.plans, "plan"),
        match told.copies {
            1 => "1 copy".to_owned(),
            copies => format!("{copies} copies"),
        },
        count(told.reorders, "reordering"),
        size(told.bytes),
        count(told.returns, "return"),
        over_mean(told.largest_over_mean_before),
        over_mean(told.largest_over_mean_after),
    ));
    text
}
