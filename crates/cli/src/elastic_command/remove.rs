//! `tontine elastic remove`: a fleet that nobody wants managed any more.
//!
//! Must never: leave a machine behind that is half way, or one that is paid for without saying so.

use std::process::ExitCode;

use ::coordination::documents::elasticity::{self, FleetError};
use model::elasticity::adapter::InstanceState;
use model::elasticity::{Fleet, Look, Machine, MachineState, Token};
use serde_json::json;

use super::fleets::{Fleets, unwritten};
use super::shown;
use crate::context::CliContext;
use crate::coordination::CoordinationArguments;
use crate::failure::CliError;
use crate::output::{print, program};
use crate::text::count;

/// Removes a fleet.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tontine elastic remove shop                    a fleet that has no machine of its provider
  tontine elastic remove shop --keep-machines    its machines go on serving; nobody manages them, and they cost what they cost

Members are not touched. Machines that are kept have the fleet's tag: a new fleet of this name can adopt them.")]
pub struct RemoveArguments {
    /// The fleet's name.
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Leave machines that serve as they are.
    #[arg(long)]
    pub keep_machines: bool,
    /// Where fleets are kept.
    #[command(flatten)]
    pub service: CoordinationArguments,
}

/// Carries it out.
pub(super) async fn run(shared: &CliContext, arguments: RemoveArguments) -> Result<ExitCode, CliError> {
    let fleets = Fleets::open(&arguments.service).await?;
    let name = &arguments.name;
    let kept = loop {
        let (fleet, document) = fleets.read(name).await?;
        let look = fleets.last_look(name).await?;
        if let Some(why) = refusal(&fleet, look.as_ref(), arguments.keep_machines) {
            return Err(CliError::Other(format!("fleet {name} is not removed: {why}")));
        }
        match elasticity::remove(&*fleets.session, name, &document).await {
            Ok(()) => break instances(&fleet),
            Err(FleetError::Overtaken { .. }) => {}
            Err(error) => return Err(unwritten(error)),
        }
    };
    print(shared.format(), &json!({ "fleet": name, "removed": true, "kept": kept }), || match kept.len() {
        0 => format!("fleet {name} is removed"),
        number => format!(
            "fleet {name} is removed; {} serve on and are paid for until you end them at the provider: {}",
            count(number as u64, "machine"),
            kept.join(", ")
        ),
    });
    Ok(ExitCode::SUCCESS)
}

/// Machines of the provider, as it calls them.
fn instances(fleet: &Fleet) -> Vec<String> {
    fleet.machines.iter().filter_map(|machine| machine.instance.clone()).collect()
}

/// Why a fleet stays, and what helps.
fn refusal(fleet: &Fleet, look: Option<&Look>, keeps: bool) -> Option<String> {
    let (program, name) = (program(), &fleet.name);
    let is_under_way = |machine: &&Machine| machine.state != MachineState::Serving;
    if let Some(machine) = fleet.machines.iter().find(is_under_way) {
        return Some(format!(
            "{} is {}; wait until nothing is under way (`{program} elastic status {name}`), take back what is with `{program} \
             elastic abort {name}`, and write `standby = 0` where machines stand by",
            shown::called(machine),
            machine.state.name()
        ));
    }
    if let Some(stray) = look.and_then(|look| stray(fleet, look)) {
        return Some(format!(
            "the provider has {stray} for it, which came late; let a controller end it first (`{program} elastic run`)"
        ));
    }
    let machines = instances(fleet);
    (!machines.is_empty() && !keeps).then(|| {
        format!(
            "{} of the provider serve in it ({}); leave them as they are with `{program} elastic remove {name} \
             --keep-machines`, or let them go first: lower `min` in its policy, then `{program} elastic plan {name} -{}`",
            count(machines.len() as u64, "machine"),
            machines.join(", "),
            machines.len()
        )
    })
}

/// A machine at the provider that was asked for with a token of this fleet, and that no entry has.
fn stray(fleet: &Fleet, look: &Look) -> Option<String> {
    let is_stray = |id: &str, token: &Option<String>| {
        let is_ours = token.clone().is_some_and(|token| Token(token).number(&fleet.uid).is_some());
        is_ours && !fleet.machines.iter().any(|machine| machine.instance.as_deref() == Some(id))
    };
    let mut listed = look.instances.iter().flatten().filter(|one| one.state != InstanceState::Ended);
    listed.find(|one| is_stray(&one.id, &one.token)).map(|one| one.id.clone())
}

#[cfg(test)]
mod tests {
    use model::WallMillis;
    use model::elasticity::Money;

    use super::*;

    fn fleet(states: &[(MachineState, Option<&str>)]) -> Fleet {
        let policy = json!({ "engine": "e", "provider": "p", "machine-type": "t", "min": 1, "max": 4 });
        let mut fleet = Fleet::new("shop", "a1b2", serde_json::from_value(policy).unwrap());
        for (number, (state, instance)) in (1..).zip(states) {
            fleet.machines.push(Machine {
                token: Token::new("a1b2", number),
                instance: instance.map(str::to_owned),
                address: None,
                member: Some(format!("n{number}")),
                kind: "t".to_owned(),
                price_per_hour: Money(0),
                state: *state,
                since: WallMillis(0),
                began: WallMillis(0),
                decision: None,
                standby: false,
                adopted: instance.is_none(),
                gone: None,
                note: None,
            });
        }
        fleet
    }

    #[test]
    fn a_fleet_is_removed_only_where_nothing_is_under_way_and_no_machine_is_forgotten() {
        let (serving, draining) = (MachineState::Serving, MachineState::Draining);
        let refused = |states: &[(MachineState, Option<&str>)], keeps| refusal(&fleet(states), None, keeps);
        assert_eq!(refused(&[], false), None);
        assert_eq!(refused(&[(serving, None)], false), None);
        assert_eq!(refused(&[(serving, Some("i-1"))], true), None);
        let why = refused(&[(serving, None), (serving, Some("i-1"))], false).unwrap();
        assert!(
            why.contains("1 machine of the provider serve in it (i-1)") && why.contains("plan shop -1"),
            "{why}"
        );
        for keeps in [true, false] {
            let why = refused(&[(draining, Some("i-1"))], keeps).unwrap();
            assert!(why.contains("n1 is draining"), "{why}");
        }
        let look: Look = serde_json::from_value(json!({
            "at": 1, "by": "here", "generation": 1,
            "provider": { "Err": "away" }, "engine": { "Err": "away" }, "members": { "Err": "away" },
            "instances": { "Ok": [{ "id": "i-9", "token": "a1b2-7", "state": "running" }] },
        }))
        .unwrap();
        let why = refusal(&fleet(&[]), Some(&look), true).unwrap();
        assert!(why.contains("i-9"), "{why}");
    }
}
