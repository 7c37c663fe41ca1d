//! `tontine elastic why`: why so many, why not more, why not fewer.

use std::process::ExitCode;

use model::WallMillis;
use model::elasticity::{Reading, Rule};
use protocol::elasticity::{Obstacle, Why, why};
use serde_json::{Value as Json, json};

use super::fleets::{Fleets, now};
use super::{shown, words};
use crate::context::CliContext;
use crate::coordination::CoordinationArguments;
use crate::failure::CliError;
use crate::output::{print, program};
use crate::text::table;
use crate::{dates, durations};

/// Explains a size.
#[derive(Clone, Debug, clap::Args)]
pub struct WhyArguments {
    /// The fleet's name.
    #[arg(value_name = "NAME")]
    pub name: String,
    /// At this time, such as `2026-11-21T19:40:00Z`, or that long ago, such as `10m`; now by default.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub at: Option<WallMillis>,
    /// Where fleets are kept.
    #[command(flatten)]
    pub service: CoordinationArguments,
}

fn parse_time(text: &str) -> Result<WallMillis, String> {
    if let Some(millis) = dates::parse_utc(text) {
        return Ok(WallMillis(millis));
    }
    let ago = durations::parse(text)
        .map_err(|_| "expected a time such as 2026-11-21T19:40:00Z, or a duration such as 10m".to_owned())?;
    Ok(WallMillis(now().0.saturating_sub(u64::try_from(ago.as_millis()).unwrap_or(u64::MAX))))
}

/// Carries it out.
pub(super) async fn run(shared: &CliContext, arguments: WhyArguments) -> Result<ExitCode, CliError> {
    let fleets = Fleets::open(&arguments.service).await?;
    let (fleet, _) = fleets.read(&arguments.name).await?;
    let at = arguments.at.unwrap_or_else(now);
    let Some(answer) = why(&fleet, at) else {
        return Err(CliError::Other(match fleet.decisions.first() {
            None => format!("nothing was decided about fleet {} yet", fleet.name),
            Some(first) => format!(
                "no decision about fleet {} is kept that is so old; the oldest is of {}; `{} elastic history {}` lists them",
                fleet.name,
                dates::utc(first.at.0),
                program(),
                fleet.name
            ),
        }));
    };
    let document = json!({
        "fleet": fleet.name, "at": at, "decision": answer.decision,
        "standby": shown::standby(&fleet),
        "not_more": obstacle_json(&fleet.name, &answer.more), "not_fewer": obstacle_json(&fleet.name, &answer.fewer),
    });
    print(shared.format(), &document, || {
        std::iter::once(text(&fleet.name, &answer))
            .chain(shown::standby(&fleet))
            .collect::<Vec<_>>()
            .join("\n")
    });
    Ok(ExitCode::SUCCESS)
}

fn obstacle_json(name: &str, obstacle: &Obstacle) -> Json {
    match obstacle {
        Obstacle::Held(held) => json!({ "held": held, "words": words::held(name, held) }),
        Obstacle::Rules(rules) => {
            let one = |(rule, value): &(Rule, Option<f64>)| json!({ "rule": rule, "value": value });
            json!({ "rules": rules.iter().map(one).collect::<Vec<_>>() })
        }
        Obstacle::Done => json!({ "done": true }),
    }
}

fn text(name: &str, answer: &Why) -> String {
    let decision = &answer.decision;
    let mut lines = vec![format!("decision {}", shown::sentence(name, decision))];
    lines.push(format!("not more:  {}", obstacle(name, &answer.more)));
    lines.push(format!("not fewer: {}", obstacle(name, &answer.fewer)));
    if !decision.readings.is_empty() {
        lines.push(format!("\nit was decided by\n{}", readings(&decision.readings)));
    }
    lines.join("\n")
}

fn obstacle(name: &str, obstacle: &Obstacle) -> String {
    match obstacle {
        Obstacle::Held(held) => words::held(name, held),
        Obstacle::Done => "it was being carried out".to_owned(),
        Obstacle::Rules(rules) if rules.is_empty() => "the policy has no rule for it".to_owned(),
        Obstacle::Rules(rules) => {
            let one = |(rule, value): &(Rule, Option<f64>)| match value {
                Some(value) => format!("{value:.1}, and the rule asks for {}", words::rule(rule)),
                None => format!("not known, and the rule asks for {}", words::rule(rule)),
            };
            rules.iter().map(one).collect::<Vec<_>>().join("; ")
        }
    }
}

fn readings(readings: &[Reading]) -> String {
    let heading = ["MEMBER", "MEASURE", "MEAN", "AGE"].map(str::to_owned).to_vec();
    let row = |reading: &Reading| {
        let mean = reading.mean.map_or("unknown".to_owned(), |mean| format!("{mean:.1}"));
        let age = reading.age_ms.map_or("-".to_owned(), |age| format!("{} s", age / 1000));
        vec![reading.member.clone(), reading.measure.clone(), mean, age]
    };
    table(&std::iter::once(heading).chain(readings.iter().map(row)).collect::<Vec<_>>())
}
