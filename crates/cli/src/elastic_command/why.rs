//! `tontine elastic why`: why so many, why not more, why not fewer.

use std::process::ExitCode;
use std::time::Duration;

use model::WallMillis;
use model::elasticity::Reading;
use protocol::elasticity::{LoadRoom, Obstacle, RuleRoom, Why, why};
use serde_json::{Value as Json, json};

use super::fleets::{Fleets, now};
use super::{away, shown, words};
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
    let look = fleets.last_look(&fleet.name).await?;
    // What is away now says nothing of an earlier time.
    let is_now = arguments.at.is_none();
    let document = json!({
        "fleet": fleet.name, "at": at, "decision": answer.decision,
        "standby": shown::standby(&fleet),
        "away": is_now.then(|| away::json(&fleet, look.as_ref(), at)),
        "not_more": obstacle_json(&fleet.name, &answer.more, at),
        "not_fewer": obstacle_json(&fleet.name, &answer.fewer, at),
    });
    print(shared.format(), &document, || {
        std::iter::once(text(&fleet.name, &answer, at))
            .chain(shown::standby(&fleet))
            .chain(is_now.then(|| away::lines(&fleet, look.as_ref(), at)).into_iter().flatten())
            .collect::<Vec<_>>()
            .join("\n")
    });
    Ok(ExitCode::SUCCESS)
}

fn obstacle_json(name: &str, obstacle: &Obstacle, at: WallMillis) -> Json {
    match obstacle {
        Obstacle::Held(held) => json!({ "held": held, "words": words::held_at(name, held, at) }),
        Obstacle::Rules(rules) => {
            let one = |RuleRoom { rule, value, covered_s }: &RuleRoom| json!({ "rule": rule, "value": value, "covered_seconds": covered_s });
            json!({ "rules": rules.iter().map(one).collect::<Vec<_>>() })
        }
        Obstacle::Load(room) => {
            let LoadRoom { load, needed, members, carries, low_s } = room;
            json!({ "load": load, "needed": needed, "members": members, "carries": carries, "low_seconds": low_s })
        }
        Obstacle::Done => json!({ "done": true }),
    }
}

fn text(name: &str, answer: &Why, at: WallMillis) -> String {
    let decision = &answer.decision;
    let mut lines = vec![format!("decision {}", shown::sentence(name, decision))];
    lines.push(format!("not more:  {}", obstacle(name, &answer.more, at)));
    lines.push(format!("not fewer: {}", obstacle(name, &answer.fewer, at)));
    if !decision.readings.is_empty() {
        lines.push(format!("\nit was decided by\n{}", readings(&decision.readings)));
    }
    lines.join("\n")
}

fn obstacle(name: &str, obstacle: &Obstacle, at: WallMillis) -> String {
    match obstacle {
        Obstacle::Held(held) => words::held_at(name, held, at),
        Obstacle::Done => "it was being carried out".to_owned(),
        Obstacle::Rules(rules) if rules.is_empty() => "the policy has no rule for it".to_owned(),
        Obstacle::Rules(rules) => {
            let one = |RuleRoom { rule, value, covered_s }: &RuleRoom| {
                let value = value.map_or("not known".to_owned(), |value| format!("{value:.1}"));
                format!("{value}, and the rule asks for {}", words::rule_covered(rule, *covered_s))
            };
            rules.iter().map(one).collect::<Vec<_>>().join("; ")
        }
        Obstacle::Load(room) => load(room),
    }
}

/// What members carry, beside what they must.
fn load(room: &LoadRoom) -> String {
    let members = words::members(room.members);
    let carries = match room.carries {
        Some(carries) if room.members > 1 => {
            format!("{members} carry {carries}/s within the objective, even with one of them lost")
        }
        Some(carries) => format!("{members} carry {carries}/s within the objective"),
        None => format!("nobody knows yet what {members} carry"),
    };
    let Some(low_s) = room.low_s else {
        let load = room.load.map_or("not known".to_owned(), |load| format!("{load}/s"));
        return format!("the load is {load}, and {carries}");
    };
    let low = durations::rough(Duration::from_secs(low_s));
    let needed = match room.needed {
        Some(needed) => format!("which is {needed}/s now"),
        None => "which was not measured for the most part".to_owned(),
    };
    let load = room.load.map(|load| format!("; the load is {load}/s")).unwrap_or_default();
    format!("{carries}; one leaves once that covers the highest load of {low} plus 5 %, {needed}{load}")
}

fn readings(readings: &[Reading]) -> String {
    let heading = ["MEMBER", "MEASURE", "MEAN", "COVERS", "AGE"].map(str::to_owned).to_vec();
    let row = |reading: &Reading| {
        let mean = reading.mean.map_or("unknown".to_owned(), |mean| format!("{mean:.1}"));
        let seconds =
            |millis: Option<u64>| millis.map_or("-".to_owned(), |millis| format!("{} s", millis / 1000));
        let (covers, age) = (seconds(reading.covered_ms), seconds(reading.age_ms));
        vec![reading.member.clone(), reading.measure.clone(), mean, covers, age]
    };
    table(&std::iter::once(heading).chain(readings.iter().map(row)).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_is_told_with_what_members_carry_and_how_long_it_must_be_low() {
        let more =
            LoadRoom { load: Some(900), needed: Some(900), members: 3, carries: Some(1200), low_s: None };
        let told = |room: &LoadRoom| obstacle("shop", &Obstacle::Load(room.clone()), WallMillis(0));
        assert_eq!(
            told(&more),
            "the load is 900/s, and 3 members carry 1200/s within the objective, even with one of them lost"
        );
        let fewer =
            LoadRoom { needed: Some(1050), members: 2, carries: Some(800), low_s: Some(900), ..more.clone() };
        let words = "2 members carry 800/s within the objective, even with one of them lost; one leaves once that covers the highest load of 15m plus \
                     5 %, which is 1050/s now; the load is 900/s";
        assert_eq!(told(&fewer), words);
        let unknown = LoadRoom { load: None, needed: None, carries: None, ..fewer };
        let words = "nobody knows yet what 2 members carry; one leaves once that covers the highest load of 15m plus 5 %, \
                     which was not measured for the most part";
        assert_eq!(told(&unknown), words);
        let json = obstacle_json("shop", &Obstacle::Load(more), WallMillis(0));
        assert_eq!(
            (&json["load"], &json["carries"], &json["low_seconds"]),
            (&json!(900), &json!(1200), &Json::Null)
        );
    }

    #[test]
    fn a_rule_whose_span_samples_cover_in_part_is_told_with_that_part() {
        let rule = json!({ "measure": "operations", "of": "any", "is": "above", "bound": 5000, "over": 30 });
        let rule: model::elasticity::Rule = serde_json::from_value(rule).unwrap();
        let told = |covered_s| {
            let room = RuleRoom { rule: rule.clone(), value: Some(12.0), covered_s };
            obstacle("shop", &Obstacle::Rules(vec![room]), WallMillis(0))
        };
        let whole = "12.0, and the rule asks for operations of any member above 5000 over 30 s";
        assert_eq!(told(Some(30)), whole);
        assert_eq!(told(None), whole, "documents of before do not say it");
        assert_eq!(told(Some(18)), format!("{whole}, of which samples covered 18 s"));
        let reading = Reading {
            member: "n1".to_owned(),
            measure: "operations".to_owned(),
            mean: Some(12.0),
            age_ms: Some(1_000),
            covered_ms: Some(18_900),
        };
        assert_eq!(
            readings(&[reading]),
            "MEMBER  MEASURE     MEAN  COVERS  AGE\nn1      operations  12.0  18 s    1 s\n"
        );
    }
}
