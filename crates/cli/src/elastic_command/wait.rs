//! Waiting until a fleet has the size that was ordered, and saying what an order would do.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use model::elasticity::adapter::Evidence;
use model::elasticity::{
    Fleet, FleetOrder, FleetOrderGiven, Look, Machine, MachineState, Resize, RuleVerdict,
};
use protocol::elasticity::{Controller, FleetAction, Observation, Question, setting};
use serde_json::json;

use super::fleets::{Fleets, LOOK, now};
use super::{away, shown, words};
use crate::context::CliContext;
use crate::failure::CliError;
use crate::output::{print, program};

/// Shortest time between two lines.
const LINE_INTERVAL: Duration = Duration::from_secs(2);
/// After how long without a controller a command says so.
const ALONE_TIME_MAX: Duration = Duration::from_secs(20);

/// Waits until as many members serve as are wanted, and nothing is under way.
pub(super) async fn until_settled(fleets: &Fleets, name: &str) -> Result<(), CliError> {
    let (mut said, mut alone): (Option<(Instant, String)>, Option<Instant>) = (None, None);
    let mut is_told = false;
    loop {
        let (fleet, _) = fleets.read(name).await?;
        if is_settled(&fleet) {
            return Ok(());
        }
        if let Some(paused) = &fleet.paused {
            return Err(CliError::Other(format!(
                "fleet {name} is paused: {}; look at it with `{program} elastic status {name}`, then run `{program} elastic \
                 resume {name}`",
                paused.why,
                program = program()
            )));
        }
        let look = fleets.last_look(name).await?;
        let line = line(&fleet, look.as_ref());
        let is_due =
            said.as_ref().is_none_or(|(at, before)| at.elapsed() >= LINE_INTERVAL && *before != line);
        if is_due {
            say!("{line}");
            said = Some((Instant::now(), line));
        }
        match fleets.controller().await? {
            Some(_) => (alone, is_told) = (None, false),
            None => {
                let since = *alone.get_or_insert_with(Instant::now);
                if since.elapsed() >= ALONE_TIME_MAX && !is_told {
                    is_told = true;
                    say!(
                        "no controller runs, so nothing goes on; start one with `{} elastic run`",
                        program()
                    );
                }
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Whether the size is reached. Machines that failed are told, and not waited for: they may stay until somebody helps.
fn is_settled(fleet: &Fleet) -> bool {
    fleet.target == Some(fleet.serving()) && !fleet.machines.iter().any(is_moving)
}

fn is_moving(machine: &Machine) -> bool {
    machine.is_coming() || (machine.state.is_leaving() && machine.state != MachineState::Failed)
}

/// How far a fleet is, on one line.
fn line(fleet: &Fleet, look: Option<&Look>) -> String {
    let answering = fleet.serving() - away::not_answering(fleet, look);
    let mut parts = vec![format!("{answering} of {} serve", fleet.target.unwrap_or(0))];
    let moving = |machine: &&Machine| machine.state.is_coming() || machine.state.is_leaving();
    for machine in fleet.machines.iter().filter(moving) {
        let mut part = format!("{} {}", shown::called(machine), machine.state.name());
        if let Some(permille) = shown::member(machine, look).and_then(|member| member.permille) {
            part.push_str(&format!(" {}.{} %", permille / 10, permille % 10));
        }
        if machine.standby {
            part.push_str(", to stand by");
        }
        if let Some(note) = &machine.note {
            part.push_str(&format!(" ({note})"));
        }
        parts.push(part);
    }
    let last = || fleet.decisions.last().filter(|decision| decision.verdict != RuleVerdict::Unknown);
    let setting = setting(fleet).filter(|decision| decision.ended.is_none());
    if let Some(held) = setting.or_else(last).and_then(|decision| decision.held.as_ref()) {
        parts.push(format!("held: {}", words::held(&fleet.name, held)));
    }
    let failures = look.map_or(&[][..], |look| &look.failures);
    parts.extend(failures.iter().take(1).cloned());
    parts.join("; ")
}

/// Says what an order would do, by what a controller saw last. Nothing is written, and no adapter is asked.
pub(super) async fn dry_run(
    shared: &CliContext,
    fleets: &Fleets,
    name: &str,
    resize: Resize,
) -> Result<ExitCode, CliError> {
    let (mut fleet, _) = fleets.read(name).await?;
    let look = shown::needed_look(fleets, name).await?;
    let before = fleet.clone();
    let number = fleet.orders.iter().map(|given| given.number).max().unwrap_or(0) + 1;
    let order = FleetOrder::Plan(resize);
    fleet.orders.push(FleetOrderGiven { number, order, by: crate::orders::user(), at: now(), answer: None });
    let (next, asks) = decided(fleet, &look);
    let answer =
        next.orders.iter().find(|given| given.number == number).and_then(|given| given.answer.clone());
    if let Some(Err(held)) = &answer {
        return Err(CliError::Other(format!("the order would be refused: {}", words::held(name, held))));
    }
    let steps = steps(&before, &next, &asks);
    let document = json!({
        "fleet": name, "dry_run": true, "target": next.target, "steps": steps,
        "cost_per_hour": { "from": before.cost_per_hour(), "to": next.cost_per_hour() },
    });
    print(shared.format(), &document, || {
        let mut lines = vec![format!(
            "fleet {name} would go from {} to {}; an hour would cost {} instead of {}",
            words::members(before.serving()),
            words::members(next.target.unwrap_or(0)),
            next.cost_per_hour(),
            before.cost_per_hour()
        )];
        lines.extend(steps.iter().map(|step| format!("  {step}")));
        lines.join("\n")
    });
    Ok(ExitCode::SUCCESS)
}

/// The document that a controller would publish first, and what it would ask before. What must be asked is taken for
/// granted.
fn decided(fleet: Fleet, look: &Look) -> (Fleet, Vec<Question>) {
    let mut seen = Observation {
        now: now(),
        provider: look.provider.clone(),
        instances: look.instances.clone(),
        engine: look.engine.clone(),
        members: look.members.clone(),
        preflight: Default::default(),
        evidence: Default::default(),
        refused: Default::default(),
        samples: Vec::new(),
        fleet,
    };
    let mut asks = Vec::new();
    loop {
        let turn = Controller::new().decide(&seen);
        let before = asks.len();
        for action in turn.actions {
            match action {
                FleetAction::Publish(next) => return (*next, asks),
                FleetAction::Ask(question) if !asks.contains(&question) => {
                    match &question {
                        Question::Preflight { instance } => {
                            seen.preflight.insert(instance.clone(), Ok(()));
                        }
                        Question::EvidenceOf { member: of } | Question::EvidenceAt { address: of } => {
                            seen.evidence.insert(of.clone(), Ok(proof()));
                        }
                    }
                    asks.push(question);
                }
                _ => {}
            }
        }
        if asks.len() == before {
            return (seen.fleet, asks);
        }
    }
}

/// Evidence as it must be for a machine to be ended.
fn proof() -> Evidence {
    Evidence {
        witnesses: vec!["the other members".to_owned()],
        owns_nothing: Some(true),
        nothing_moves: Some(true),
        nothing_short: Some(true),
        detail: None,
    }
}

fn steps(before: &Fleet, next: &Fleet, asks: &[Question]) -> Vec<String> {
    let mut steps = Vec::new();
    for question in asks {
        steps.push(match question {
            Question::Preflight { instance } => {
                format!("the provider is asked whether it would end {instance}")
            }
            Question::EvidenceOf { member: of } | Question::EvidenceAt { address: of } => {
                format!("the other members are asked whether anything is on {of}")
            }
        });
    }
    for machine in &next.machines {
        let was = before.machines.iter().find(|other| other.token == machine.token);
        match (was.map(|was| was.state), machine.state) {
            (Some(was_so), is) if was_so == is && was.is_some_and(|was| was.standby) && !machine.standby => {
                steps.push(format!("{} stands by, and joins", shown::called(machine)));
            }
            (Some(was), is) if was == is => {}
            (_, MachineState::Requested) => steps.push(format!(
                "a machine of type {} is asked for, at {} an hour{}",
                machine.kind,
                machine.price_per_hour,
                if machine.standby { ", to stand by" } else { "" }
            )),
            (_, state) => steps.push(format!("{} becomes {}", shown::called(machine), state.name())),
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use model::WallMillis;
    use model::elasticity::adapter::{
        EngineFacts, Instance, InstanceState, Member, MemberState, ProviderFacts,
    };
    use model::elasticity::{Money, Token};

    use super::*;

    fn machine(number: u64, state: MachineState) -> Machine {
        Machine {
            token: Token::new("a1b2", number),
            instance: Some(format!("i-{number}")),
            address: Some(format!("h{number}")),
            member: Some(format!("n{number}")),
            kind: "t".to_owned(),
            price_per_hour: Money(0),
            state,
            since: now(),
            began: WallMillis(0),
            decision: None,
            gone: None,
            standby: false,
            adopted: false,
            note: None,
        }
    }

    fn fleet(states: &[MachineState]) -> Fleet {
        let policy = json!({ "engine": "e", "provider": "p", "machine-type": "t", "min": 1, "max": 4 });
        let mut fleet = Fleet::new("shop", "a1b2", serde_json::from_value(policy).unwrap());
        fleet.machines = (1..).zip(states).map(|(number, state)| machine(number, *state)).collect();
        fleet.target = Some(fleet.serving());
        fleet.next_token = fleet.machines.len() as u64 + 1;
        fleet
    }

    #[test]
    fn nobody_waits_for_a_machine_that_failed() {
        assert!(is_settled(&fleet(&[MachineState::Serving, MachineState::Failed])));
        for state in [MachineState::Joining, MachineState::Draining, MachineState::Empty] {
            assert!(!is_settled(&fleet(&[MachineState::Serving, state])), "{state:?}");
        }
    }

    #[test]
    fn a_dry_run_answers_what_a_controller_would_ask() {
        let before = fleet(&[MachineState::Serving, MachineState::Serving, MachineState::Failed]);
        let member = |number: u64, state| Member {
            id: format!("n{number}"),
            address: Some(format!("h{number}")),
            state,
            permille: None,
            detail: None,
            measures: Default::default(),
        };
        let instance = |number: u64| Instance {
            id: format!("i-{number}"),
            token: Some(Token::new("a1b2", number).0),
            address: Some(format!("h{number}")),
            state: InstanceState::Running,
            kind: None,
            detail: None,
        };
        let states = [MemberState::Serving, MemberState::Serving, MemberState::Drained];
        let look = Look {
            at: now(),
            by: "here".to_owned(),
            generation: 1,
            provider: Ok(ProviderFacts {
                name: "p".to_owned(),
                protocol: 1,
                types: Vec::new(),
                quota: None,
                warnings: Vec::new(),
            }),
            instances: Ok((1..=3).map(instance).collect()),
            engine: Ok(EngineFacts {
                name: "e".to_owned(),
                protocol: 1,
                acts_max: 1,
                drain_cancellable: true,
                joins_at_boot: false,
                members_min: 1,
                measures: Vec::new(),
            }),
            members: Ok((1..).zip(states).map(|(number, state)| member(number, state)).collect()),
            failures: Vec::new(),
            silent: Default::default(),
        };
        let (next, asks) = decided(before.clone(), &look);
        let evidence = Question::EvidenceOf { member: "n3".to_owned() };
        assert_eq!(asks, [evidence, Question::Preflight { instance: "i-3".to_owned() }]);
        assert_eq!(
            steps(&before, &next, &asks),
            [
                "the other members are asked whether anything is on n3",
                "the provider is asked whether it would end i-3",
                "n3 becomes terminating",
            ]
        );
    }
}
