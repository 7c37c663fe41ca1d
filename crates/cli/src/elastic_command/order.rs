//! Orders to a fleet: `plan`, `adopt`, `abort`, `resume`, `approve`.

use std::process::ExitCode;

use model::elasticity::adapter::MemberState;
use model::elasticity::{Fleet, FleetOrder, Look, Machine, MachineState, Resize};
use serde_json::json;

use super::fleets::Fleets;
use super::wait;
use crate::context::CliContext;
use crate::coordination::CoordinationArguments;
use crate::failure::CliError;
use crate::output::{print, program};

/// A fleet.
#[derive(Clone, Debug, clap::Args)]
pub struct NamedArguments {
    /// The fleet's name.
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Where fleets are kept.
    #[command(flatten)]
    pub service: CoordinationArguments,
}

/// Orders another size.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tontine elastic plan shop +1
  tontine elastic plan shop -2 --no-wait

Guards override this order: min and max, the engine's fewest members, what carries the load with one member lost, the
budget, and one act at a time.")]
pub struct PlanArguments {
    /// The fleet's name.
    #[arg(value_name = "NAME")]
    pub name: String,
    /// This many members more (`+2`) or fewer (`-1`).
    #[arg(value_name = "+N|-N", value_parser = parse_resize, allow_negative_numbers = true)]
    pub resize: i32,
    /// Say what would be done, and order nothing.
    #[arg(long, conflicts_with = "no_wait")]
    pub dry_run: bool,
    /// Return once the order is answered. The change goes on.
    #[arg(long)]
    pub no_wait: bool,
    /// Where fleets are kept.
    #[command(flatten)]
    pub service: CoordinationArguments,
}

/// Makes a member one of the fleet.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tontine elastic adopt shop i-07 n4         machine i-07 of the provider runs member n4
  tontine elastic adopt shop --all           every machine with the fleet's tag whose address is a serving member's
  tontine elastic adopt shop --member n1     a member without a machine at the provider: it is counted, and never ended")]
pub struct AdoptArguments {
    /// The fleet's name.
    #[arg(value_name = "NAME")]
    pub name: String,
    /// What the provider calls the machine.
    #[arg(value_name = "INSTANCE", required_unless_present_any = ["all", "alone"], requires = "member")]
    pub instance: Option<String>,
    /// What the engine calls the member on it.
    #[arg(value_name = "MEMBER")]
    pub member: Option<String>,
    /// Adopt a member that has no machine at the provider. It is counted, and never ended. May be given more than once.
    #[arg(long = "member", value_name = "MEMBER", conflicts_with_all = ["instance", "all"])]
    pub alone: Vec<String>,
    /// Adopt every machine with the fleet's tag whose address is a serving member's.
    #[arg(long, conflicts_with = "instance")]
    pub all: bool,
    /// Where fleets are kept.
    #[command(flatten)]
    pub service: CoordinationArguments,
}

/// Approves a decision.
#[derive(Clone, Debug, clap::Args)]
pub struct ApproveArguments {
    /// The fleet's name.
    #[arg(value_name = "NAME")]
    pub name: String,
    /// The decision's number; `tontine elastic history NAME` lists them.
    #[arg(value_name = "NUMBER")]
    pub decision: u64,
    /// Where fleets are kept.
    #[command(flatten)]
    pub service: CoordinationArguments,
}

/// Reads `+2` or `-1`.
fn parse_resize(text: &str) -> Result<i32, String> {
    let expected = || "expected +N or -N, for example +1".to_owned();
    if !text.starts_with(['+', '-']) {
        return Err(expected());
    }
    let number: i32 = text.parse().map_err(|_| expected())?;
    if number == 0 || number.unsigned_abs() > 1000 { Err(expected()) } else { Ok(number) }
}

/// Orders another size, and waits until it is reached.
pub(super) async fn plan(shared: &CliContext, arguments: PlanArguments) -> Result<ExitCode, CliError> {
    let fleets = Fleets::open(&arguments.service).await?;
    let (name, resize) = (&arguments.name, Resize(arguments.resize));
    let (fleet, _) = fleets.read(name).await?;
    if let Some(warning) = unadopted(&fleet, fleets.last_look(name).await.unwrap_or_default().as_ref()) {
        say!("{warning}");
    }
    if arguments.dry_run {
        return wait::dry_run(shared, &fleets, name, resize).await;
    }
    let number = fleets.order(name, &FleetOrder::Plan(resize)).await?;
    if !arguments.no_wait {
        wait::until_settled(&fleets, name).await?;
    }
    let (fleet, _) = fleets.read(name).await?;
    let target = fleet.target.unwrap_or(0);
    let document = json!({
        "fleet": name, "order": number, "target": target, "serving": fleet.serving(),
        "settled": !arguments.no_wait,
    });
    print(shared.format(), &document, || match arguments.no_wait {
        true => format!(
            "fleet {name} goes to {}; watch it with `{} elastic status {name}`",
            super::words::members(target),
            program()
        ),
        false => format!("fleet {name} has {}", super::words::members(fleet.serving())),
    });
    Ok(ExitCode::SUCCESS)
}

/// That members serve which nobody adopted, so that a plan does not count them.
fn unadopted(fleet: &Fleet, look: Option<&Look>) -> Option<String> {
    let found = super::shown::homeless(fleet, look?);
    let serving = found.iter().filter(|one| one.state == MemberState::Serving);
    let members: Vec<&str> = serving.map(|one| one.id.as_str()).collect();
    (!members.is_empty()).then(|| {
        format!(
            "warning: {} serve and are not of fleet {name}, so this plan does not count them; `{} elastic adopt \
             {name} --all` takes those on machines of the provider, and `{} elastic adopt {name} {}` counts them without one",
            members.join(", "),
            program(),
            program(),
            members.iter().map(|member| format!("--member {member}")).collect::<Vec<_>>().join(" "),
            name = fleet.name
        )
    })
}

/// Adopts.
pub(super) async fn adopt(shared: &CliContext, arguments: AdoptArguments) -> Result<ExitCode, CliError> {
    let fleets = Fleets::open(&arguments.service).await?;
    let name = &arguments.name;
    let mut pairs: Vec<(Option<String>, String)> =
        arguments.alone.iter().map(|member| (None, member.clone())).collect();
    if let (Some(instance), Some(member)) = (&arguments.instance, &arguments.member) {
        pairs.push((Some(instance.clone()), member.clone()));
    }
    if arguments.all {
        pairs.extend(all_pairs(&fleets, name).await?);
    }
    for (instance, member) in &pairs {
        let order = FleetOrder::Adopt { instance: instance.clone(), member: member.clone() };
        fleets.order(name, &order).await?;
    }
    let adopted: Vec<_> =
        pairs.iter().map(|(instance, member)| json!({ "instance": instance, "member": member })).collect();
    print(shared.format(), &json!({ "fleet": name, "adopted": adopted }), || {
        let line = |(instance, member): &(Option<String>, String)| match instance {
            Some(instance) => format!("{member} on {instance} is of fleet {name}"),
            None => format!("{member} is counted in fleet {name}, and is never ended"),
        };
        match pairs.is_empty() {
            true => format!("there is nothing to adopt for fleet {name}"),
            false => pairs.iter().map(line).collect::<Vec<_>>().join("\n"),
        }
    });
    Ok(ExitCode::SUCCESS)
}

/// Machines with the fleet's tag, each with the serving member at its address, that the fleet does not have.
async fn all_pairs(fleets: &Fleets, name: &str) -> Result<Vec<(Option<String>, String)>, CliError> {
    let (fleet, _) = fleets.read(name).await?;
    let look = super::shown::needed_look(fleets, name).await?;
    let (instances, members) = match (look.instances, look.members) {
        (Ok(instances), Ok(members)) => (instances, members),
        (Err(why), _) | (_, Err(why)) => return Err(CliError::Other(why)),
    };
    let is_of_fleet = |id: &str| fleet.machines.iter().any(|machine| machine.instance.as_deref() == Some(id));
    let mut pairs = Vec::new();
    for instance in instances.iter().filter(|instance| !is_of_fleet(&instance.id)) {
        let at_its_address = members.iter().find(|member| {
            instance.address.is_some()
                && member.address == instance.address
                && member.state == model::elasticity::adapter::MemberState::Serving
        });
        if let Some(member) = at_its_address {
            pairs.push((Some(instance.id.clone()), member.id.clone()));
        }
    }
    Ok(pairs)
}

/// Takes back what is under way.
pub(super) async fn abort(shared: &CliContext, arguments: NamedArguments) -> Result<ExitCode, CliError> {
    let fleets = Fleets::open(&arguments.service).await?;
    let (fleet, _) = fleets.read(&arguments.name).await?;
    if is_at_rest(&fleet) {
        print(shared.format(), &json!({ "fleet": fleet.name, "order": null }), || {
            format!("nothing is under way in fleet {}, so nothing is taken back", fleet.name)
        });
        return Ok(ExitCode::SUCCESS);
    }
    let done =
        "goes back to the members that serve; machines that were asked for are ended once nothing is on them";
    simple(shared, arguments, &FleetOrder::Abort, done).await
}

/// Whether there is nothing that an abort could take back.
fn is_at_rest(fleet: &Fleet) -> bool {
    let is_moving = |machine: &Machine| {
        machine.is_coming() || matches!(machine.state, MachineState::Draining | MachineState::Empty)
    };
    let waits = fleet.orders.iter().any(|given| given.answer.is_none());
    let is_reached = fleet.target.is_none_or(|target| target == fleet.serving());
    !waits && is_reached && !fleet.machines.iter().any(is_moving)
}

/// Ends a pause.
pub(super) async fn resume(shared: &CliContext, arguments: NamedArguments) -> Result<ExitCode, CliError> {
    let fleets = Fleets::open(&arguments.service).await?;
    let (fleet, _) = fleets.read(&arguments.name).await?;
    if fleet.paused.is_none() && fleet.failures == 0 && fleet.failed.is_none() {
        print(shared.format(), &json!({ "fleet": fleet.name, "order": null }), || {
            format!("fleet {} was not paused, so there is nothing to resume", fleet.name)
        });
        return Ok(ExitCode::SUCCESS);
    }
    let done = match fleet.paused {
        Some(_) => "goes on; its pause is over",
        None => "was not paused; failures of before count no longer",
    };
    simple(shared, arguments, &FleetOrder::Resume, done).await
}

/// Approves a decision.
pub(super) async fn approve(shared: &CliContext, arguments: ApproveArguments) -> Result<ExitCode, CliError> {
    let ApproveArguments { name, decision, service } = arguments;
    let order = FleetOrder::Approve { decision };
    simple(shared, NamedArguments { name, service }, &order, "carries the decision out").await
}

async fn simple(
    shared: &CliContext,
    arguments: NamedArguments,
    order: &FleetOrder,
    done: &str,
) -> Result<ExitCode, CliError> {
    let fleets = Fleets::open(&arguments.service).await?;
    let name = &arguments.name;
    let number = fleets.order(name, order).await?;
    print(shared.format(), &json!({ "fleet": name, "order": number }), || format!("fleet {name} {done}"));
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_before_members_were_adopted_warns_with_the_command_that_adopts() {
        let policy = json!({ "engine": "e", "provider": "p", "machine-type": "t", "min": 1, "max": 3 });
        let fleet = Fleet::new("shop", "a1b2", serde_json::from_value(policy).unwrap());
        let look = |members: serde_json::Value| -> Look {
            serde_json::from_value(json!({
                "at": 1, "by": "here", "generation": 1, "provider": { "Err": "away" }, "instances": { "Err": "away" },
                "engine": { "Err": "away" }, "members": { "Ok": members },
            }))
            .unwrap()
        };
        let waits = json!({ "id": "n3", "state": "waiting" });
        let serve = ["n1", "n2"].map(|id| json!({ "id": id, "state": "serving" }));
        let warned = unadopted(&fleet, Some(&look(json!([serve[0], serve[1], waits])))).unwrap();
        assert!(warned.starts_with("warning: n1, n2 serve and are not of fleet shop"), "{warned}");
        assert!(warned.contains("elastic adopt shop --member n1 --member n2`"), "{warned}");
        assert_eq!(unadopted(&fleet, Some(&look(json!([waits])))), None);
        assert_eq!(unadopted(&fleet, None), None);
    }
}
