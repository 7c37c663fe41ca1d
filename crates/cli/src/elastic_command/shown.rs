//! What a fleet is: its machines, its decisions, and what a controller saw last.

use std::process::ExitCode;

use model::elasticity::adapter::Member;
use model::elasticity::{Decision, Fleet, Look, Machine, MachineState, Mode, Reason};
use protocol::elasticity::setting;
use serde_json::json;

use super::fleets::{Fleets, now};
use super::{apply, away, words};
use crate::context::CliContext;
use crate::coordination::CoordinationArguments;
use crate::failure::CliError;
use crate::output::{print, program};
use crate::text::{moment, table};

/// How old a look may be before it is said to be old, in milliseconds.
const LOOK_AGE_MAX: u64 = 30_000;
/// The measure that people look for first.
const PROCESSOR: &str = "processor";

/// Shows fleets.
#[derive(Clone, Debug, clap::Args)]
pub struct StatusArguments {
    /// The fleet's name; without it, all fleets are listed.
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
    /// Where fleets are kept.
    #[command(flatten)]
    pub service: CoordinationArguments,
}

/// Shows decisions.
#[derive(Clone, Debug, clap::Args)]
pub struct HistoryArguments {
    /// The fleet's name.
    #[arg(value_name = "NAME")]
    pub name: String,
    /// This many of the last decisions.
    #[arg(long, short = 'n', default_value = "20", value_name = "COUNT")]
    pub count: usize,
    /// Only those that did something: that set a size, or replaced a machine. Not what was thought meanwhile.
    #[arg(long)]
    pub acts: bool,
    /// Where fleets are kept.
    #[command(flatten)]
    pub service: CoordinationArguments,
}

/// What people call a machine: its member, its instance, or its token.
pub(super) fn called(machine: &Machine) -> String {
    let named = machine.member.clone().or_else(|| machine.instance.clone());
    named.unwrap_or_else(|| machine.token.to_string())
}

/// A machine's member, as a controller saw it last.
pub(super) fn member<'a>(machine: &Machine, look: Option<&'a Look>) -> Option<&'a Member> {
    let members = look?.members.as_ref().ok()?;
    members.iter().find(|member| Some(&member.id) == machine.member.as_ref())
}

/// What a controller saw last; refused where none has looked.
pub(super) async fn needed_look(fleets: &Fleets, name: &str) -> Result<Look, CliError> {
    fleets.last_look(name).await?.ok_or_else(|| {
        CliError::Other(format!(
            "no controller has looked at fleet {name} yet; start one with `{} elastic run`",
            program()
        ))
    })
}

/// Shows one fleet, or lists all.
pub(super) async fn status(shared: &CliContext, arguments: StatusArguments) -> Result<ExitCode, CliError> {
    let fleets = Fleets::open(&arguments.service).await?;
    let controller = fleets.controller().await?;
    let Some(name) = &arguments.name else {
        let mut all = Vec::new();
        for name in fleets.names().await? {
            let Some((fleet, _)) = fleets.look_for(&name).await? else { continue };
            let look = fleets.last_look(&name).await?;
            let answering = fleet.serving() - away::not_answering(&fleet, look.as_ref());
            all.push((fleet, answering));
        }
        let documents: Vec<&Fleet> = all.iter().map(|(fleet, _)| fleet).collect();
        print(shared.format(), &json!({ "controller": controller, "fleets": documents }), || list(&all));
        return Ok(ExitCode::SUCCESS);
    };
    let (fleet, _) = fleets.read(name).await?;
    let look = fleets.last_look(name).await?;
    let document = json!({
        "controller": controller, "fleet": fleet, "look": look, "size_set_by": setting(&fleet),
        "away": away::json(&fleet, look.as_ref(), now()),
        "answering": fleet.serving() - away::not_answering(&fleet, look.as_ref()),
    });
    print(shared.format(), &document, || text(&fleet, look.as_ref(), controller.as_deref()));
    Ok(ExitCode::SUCCESS)
}

/// Fleets, each with how many of its members serve and answer.
fn list(fleets: &[(Fleet, u32)]) -> String {
    if fleets.is_empty() {
        return format!("there is no fleet; create one with `{} elastic apply FILE`", program());
    }
    let heading =
        ["FLEET", "SERVE", "WANTED", "MIN", "MAX", "MODE", "AN HOUR", ""].map(str::to_owned).to_vec();
    let row = |(fleet, answering): &(Fleet, u32)| {
        let wanted = fleet.target.map_or("-".to_owned(), |target| target.to_string());
        vec![
            fleet.name.clone(),
            answering.to_string(),
            wanted,
            fleet.policy.min.to_string(),
            fleet.policy.max.to_string(),
            mode(fleet.policy.mode).to_owned(),
            fleet.cost_per_hour().to_string(),
            if fleet.paused.is_some() { "paused" } else { "" }.to_owned(),
        ]
    };
    table(&std::iter::once(heading).chain(fleets.iter().map(row)).collect::<Vec<_>>())
}

fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Observe => "observe",
        Mode::Advise => "advise",
        Mode::Auto => "auto",
    }
}

pub(super) fn text(fleet: &Fleet, look: Option<&Look>, controller: Option<&str>) -> String {
    let policy = &fleet.policy;
    let mut lines = vec![format!(
        "fleet {}: {}, {} wanted ({} to {}); mode {}; an hour costs {}",
        fleet.name,
        away::serve(fleet, look),
        fleet.target.map_or("none".to_owned(), |target| target.to_string()),
        policy.min,
        policy.max,
        mode(policy.mode),
        fleet.cost_per_hour(),
    )];
    lines.push(match controller {
        Some(process) => format!("controller: {process}"),
        None => format!("controller: none runs; start one with `{} elastic run`", program()),
    });
    lines.extend(standby(fleet));
    if let Some(paused) = &fleet.paused {
        lines.push(format!(
            "paused since {}: {}; `{} elastic resume {}` goes on",
            moment(paused.at.0),
            paused.why,
            program(),
            fleet.name
        ));
    }
    lines.push(String::new());
    lines.push(machines(fleet, look));
    lines.extend(away::lines(fleet, look, now()).into_iter().map(|line| format!("away: {line}")));
    lines.extend(seen(fleet, look));
    let setting = setting(fleet);
    if let Some(decision) = setting {
        lines.push(format!("size set by decision {}", sentence(&fleet.name, decision)));
    }
    if let Some(decision) = fleet.decisions.last().filter(|last| setting != Some(*last)) {
        lines.push(format!("last decision: {}", sentence(&fleet.name, decision)));
    }
    lines.join("\n")
}

/// How many stand by, where any do or shall.
pub(super) fn standby(fleet: &Fleet) -> Option<String> {
    let (ready, wanted) = (fleet.in_state(MachineState::Ready).count(), fleet.standby_wanted());
    if ready == 0 && fleet.policy.standby == 0 {
        return None;
    }
    let held = fleet.standby_held.as_ref().map(|held| format!("; held: {}", words::held(&fleet.name, held)));
    Some(format!("standby: {ready} ready, {wanted} wanted{}", held.unwrap_or_default()))
}

fn machines(fleet: &Fleet, look: Option<&Look>) -> String {
    if fleet.machines.is_empty() {
        return format!(
            "it has no machines; adopt members that run already with `{program} elastic adopt {name} --member MEMBER`, or those \
             on machines of the provider with `{program} elastic adopt {name} --all`\n",
            program = program(),
            name = fleet.name
        );
    }
    let heading = ["MACHINE", "MEMBER", "ADDRESS", "STATE", "SINCE", "TYPE", "MEASURED", ""]
        .map(str::to_owned)
        .to_vec();
    let now = now().0;
    let row = |machine: &Machine| {
        let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        let member = member(machine, look);
        let measured = member.map(|member| measures_of(member, fleet)).filter(|text| !text.is_empty());
        let purpose =
            (machine.standby && machine.state != MachineState::Ready).then(|| "to stand by".to_owned());
        let notes = [purpose, machine.note.clone(), member.and_then(|member| member.detail.clone())];
        let notes: Vec<String> = notes.into_iter().flatten().collect();
        vec![
            or_dash(&machine.instance),
            or_dash(&machine.member),
            or_dash(&machine.address),
            machine.state.name().to_owned(),
            words::ago(now, machine.since.0),
            machine.kind.clone(),
            measured.unwrap_or_else(|| "-".to_owned()),
            notes.join("; "),
        ]
    };
    table(&std::iter::once(heading).chain(fleet.machines.iter().map(row)).collect::<Vec<_>>())
}

/// What a member measured of what the rules ask for; without rules, its processor and the first few others.
fn measures_of(member: &Member, fleet: &Fleet) -> String {
    let rules = || fleet.policy.add.iter().chain(&fleet.policy.remove);
    let is_asked = |name: &String| rules().next().is_none() || rules().any(|rule| rule.measure == *name);
    let one = |(name, measured): (&String, &model::elasticity::adapter::Measured)| {
        format!("{name} {:.1} ({} s)", measured.value, measured.age_ms / 1000)
    };
    let mut asked: Vec<_> = member.measures.iter().filter(|(name, _)| is_asked(name)).collect();
    asked.sort_by_key(|(name, _)| name.as_str() != PROCESSOR);
    asked.into_iter().take(3).map(one).collect::<Vec<_>>().join(", ")
}

/// Members that run on no machine of the fleet.
pub(super) fn homeless<'a>(fleet: &Fleet, look: &'a Look) -> Vec<&'a Member> {
    let is_on = |machine: &Machine, one: &Member| {
        machine.member.as_deref() == Some(&one.id)
            || (machine.address.is_some() && machine.address == one.address)
    };
    let has_machine = |one: &Member| fleet.machines.iter().any(|machine| is_on(machine, one));
    look.members.iter().flatten().filter(|one| !has_machine(one)).collect()
}

/// Names them, in a fleet that has machines; one that has none is told to adopt anyway.
fn told_homeless(fleet: &Fleet, look: &Look) -> Option<String> {
    let found: Vec<&str> = homeless(fleet, look).into_iter().map(|one| one.id.as_str()).collect();
    if found.is_empty() || fleet.machines.is_empty() {
        return None;
    }
    Some(format!(
        "members on no machine of the fleet: {}; `{} elastic adopt {} --member MEMBER` takes one in",
        found.join(", "),
        program(),
        fleet.name
    ))
}

/// What the last look says beside the machines.
fn seen(fleet: &Fleet, look: Option<&Look>) -> Vec<String> {
    let Some(look) = look else { return vec!["no controller has looked yet".to_owned()] };
    let mut lines = Vec::new();
    let age = now().0.saturating_sub(look.at.0);
    if age > LOOK_AGE_MAX {
        lines.push(format!("a controller looked last {} ago", words::ago(now().0, look.at.0)));
    }
    let unheard = [
        look.provider.as_ref().err(),
        look.instances.as_ref().err(),
        look.engine.as_ref().err(),
        look.members.as_ref().err(),
    ];
    for why in unheard.into_iter().flatten().chain(&look.failures) {
        let line = format!("failed: {why}");
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    for misfit in apply::misfits(&fleet.policy, look) {
        lines.push(format!("policy: {misfit}"));
    }
    for warning in look.provider.iter().flat_map(|facts| &facts.warnings) {
        lines.push(format!("note: {warning}"));
    }
    lines.extend(told_homeless(fleet, look));
    let count = strangers(fleet, look).len();
    if count > 0 {
        lines.push(format!("orphans: {count}; `{} elastic orphans {}` lists them", program(), fleet.name));
    }
    lines
}

/// Machines with the fleet's tag that are not its own.
fn strangers<'a>(fleet: &Fleet, look: &'a Look) -> Vec<&'a model::elasticity::adapter::Instance> {
    let is_known = |id: &str| fleet.machines.iter().any(|machine| machine.instance.as_deref() == Some(id));
    let is_ours = |token: &Option<String>| {
        token.clone().is_some_and(|token| model::elasticity::Token(token).number(&fleet.uid).is_some())
    };
    let listed = look.instances.iter().flatten();
    listed
        .filter(|instance| instance.state != model::elasticity::adapter::InstanceState::Ended)
        .filter(|instance| !is_known(&instance.id) && !is_ours(&instance.token))
        .collect()
}

/// Lists machines with the fleet's tag that are not its own.
pub(super) async fn orphans(
    shared: &CliContext,
    arguments: super::order::NamedArguments,
) -> Result<ExitCode, CliError> {
    let fleets = Fleets::open(&arguments.service).await?;
    let (fleet, _) = fleets.read(&arguments.name).await?;
    let look = needed_look(&fleets, &arguments.name).await?;
    if let Err(why) = &look.instances {
        return Err(CliError::Other(format!("the provider did not list its machines: {why}")));
    }
    let found = strangers(&fleet, &look);
    print(shared.format(), &json!({ "fleet": fleet.name, "orphans": found }), || {
        if found.is_empty() {
            return format!("fleet {} has no orphans", fleet.name);
        }
        let heading = ["MACHINE", "ADDRESS", "TOKEN", "TYPE"].map(str::to_owned).to_vec();
        let row = |instance: &&model::elasticity::adapter::Instance| {
            let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
            vec![
                instance.id.clone(),
                or_dash(&instance.address),
                or_dash(&instance.token),
                or_dash(&instance.kind),
            ]
        };
        let rows: Vec<_> = std::iter::once(heading).chain(found.iter().map(row)).collect();
        format!(
            "{}nobody ends these; adopt one with `{} elastic adopt {} MACHINE MEMBER`, or end it at the provider",
            table(&rows),
            program(),
            fleet.name
        )
    });
    Ok(ExitCode::SUCCESS)
}

/// Lists decisions.
pub(super) async fn history(shared: &CliContext, arguments: HistoryArguments) -> Result<ExitCode, CliError> {
    let fleets = Fleets::open(&arguments.service).await?;
    let (fleet, _) = fleets.read(&arguments.name).await?;
    let shown = last(&fleet.decisions, arguments.count, arguments.acts);
    print(shared.format(), &json!({ "fleet": fleet.name, "decisions": shown }), || match shown.is_empty() {
        true if arguments.acts => format!("nothing was done to fleet {} that is still kept", fleet.name),
        true => format!("nothing was decided about fleet {} yet", fleet.name),
        false => shown.iter().map(|one| marked(&fleet.name, one)).collect::<Vec<_>>().join("\n"),
    });
    Ok(ExitCode::SUCCESS)
}

/// The last decisions, or the last that did something.
fn last(decisions: &[Decision], count: usize, acts: bool) -> Vec<&Decision> {
    let mut shown: Vec<&Decision> =
        decisions.iter().rev().filter(|one| !acts || is_act(one)).take(count).collect();
    shown.reverse();
    shown
}

/// Whether a decision did something, by itself or as an order, and was not only thought.
fn is_act(decision: &Decision) -> bool {
    decision.set || decision.reasons.iter().any(|reason| matches!(reason, Reason::Replaces { .. }))
}

/// A decision of the history, with a mark where it did something.
fn marked(fleet: &str, decision: &Decision) -> String {
    let mark = if is_act(decision) { '*' } else { ' ' };
    format!("{mark} {}", sentence(fleet, decision))
}

/// A decision about a fleet on one line.
pub(super) fn sentence(fleet: &str, decision: &Decision) -> String {
    let reason = |reason| words::reason(reason, &decision.readings);
    let reasons: Vec<String> = decision.reasons.iter().map(reason).collect();
    let mut line = format!(
        "{} at {}: {}, from {} to {}",
        decision.number,
        moment(decision.at.0),
        words::verdict(decision.verdict),
        decision.members,
        decision.target
    );
    if !reasons.is_empty() {
        line.push_str(&format!(" ({})", reasons.join("; ")));
    }
    if decision.from_standby > 0 {
        line.push_str(&format!("; {} from standby", decision.from_standby));
    }
    if let Some(held) = &decision.held {
        line.push_str(&format!("; held: {}", words::held(fleet, held)));
    }
    if let Some(expected) = decision.expected {
        line.push_str(&format!("; expected {expected:.1}"));
    }
    if let Some(came) = decision.came {
        line.push_str(&format!("; came to {came:.1}"));
    }
    if decision.ended.is_some() {
        line.push_str("; done");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_done_stands_out_of_what_was_thought_and_can_be_listed_alone() {
        let decision = |number: u64, set: bool, reasons: serde_json::Value| -> Decision {
            serde_json::from_value(json!({
                "number": number, "at": 0, "members": 3, "verdict": "stay", "target": 3, "reasons": reasons, "set": set,
            }))
            .unwrap()
        };
        let all = [
            decision(1, true, json!([{ "code": "ordered", "by": "op" }])),
            decision(2, false, json!([])),
            decision(3, false, json!([{ "code": "replaces", "token": "a1b2-3" }])),
            decision(4, false, json!([])),
        ];
        let shown = |count, acts| last(&all, count, acts).iter().map(|one| one.number).collect::<Vec<_>>();
        assert_eq!((shown(20, false), shown(20, true)), (vec![1, 2, 3, 4], vec![1, 3]));
        assert_eq!((shown(2, false), shown(1, true)), (vec![3, 4], vec![3]));
        let starts: Vec<String> = all.iter().map(|one| marked("shop", one)[..3].to_owned()).collect();
        assert_eq!(starts, ["* 1", "  2", "* 3", "  4"]);
    }

    #[test]
    fn members_on_no_machine_are_named_and_the_processor_comes_first() {
        let policy = "engine = \"e\"\nprovider = \"p\"\nmachine-type = \"t\"\nmin = 1\nmax = 3\n";
        let mut fleet = Fleet::new("shop", "a1b2".to_owned(), toml::from_str(policy).unwrap());
        let looked = |members: serde_json::Value| -> Look {
            serde_json::from_value(json!({
                "at": 1, "by": "here", "generation": 1, "provider": { "Err": "away" }, "instances": { "Err": "away" },
                "engine": { "Err": "away" }, "members": { "Ok": members }, "failures": [],
            }))
            .unwrap()
        };
        let value = json!({ "value": 1.0, "age_ms": 2000 });
        let measures = json!({ "a": value, "b": value, "c": value, "processor": value });
        let look = looked(json!([
            { "id": "n1", "state": "serving", "measures": measures },
            { "id": "n2", "address": "h2", "state": "waiting" },
        ]));
        assert_eq!(told_homeless(&fleet, &look), None, "a fleet without machines is told to adopt anyway");
        let member = &look.members.as_ref().unwrap()[0];
        assert_eq!(measures_of(member, &fleet), "processor 1.0 (2 s), a 1.0 (2 s), b 1.0 (2 s)");
        fleet.machines.push(serde_json::from_value(json!({
            "token": "a1b2-1", "member": "n1", "state": "serving", "since": 1, "began": 1, "type": "t", "price_per_hour": "0"
        })).unwrap());
        let told = told_homeless(&fleet, &look).unwrap();
        assert!(told.starts_with("members on no machine of the fleet: n2; `"), "{told}");
    }
}
