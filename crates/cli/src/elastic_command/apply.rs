//! `tontine elastic apply`: the policy of a fleet, from a file.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ::coordination::documents::elasticity::{self, FleetError, is_name};
use model::elasticity::{Fleet, Look, Policy, Rule, Sizing};
use runtime::Entropy;
use runtime::entropy::os::OsEntropy;
use serde_json::{Value as Json, json};

use super::fleets::{Fleets, unwritten};
use super::run::{ADAPTERS, read_adapters};
use crate::context::CliContext;
use crate::coordination::CoordinationArguments;
use crate::failure::CliError;
use crate::output::{print, program};
use crate::settings_file;

/// Creates a fleet, or replaces its policy.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
A policy:
  engine = \"tontine\"          # names in the controller's file of adapters
  provider = \"local\"
  machine-type = \"small\"      # one of the provider's types
  min = 3
  max = 6
  mode = \"auto\"               # observe (the default), advise, auto
  add = [{ of = \"any\", is = \"above\", bound = 40 }]
  remove = [{ of = \"all\", is = \"at-most\", bound = 15 }]

`docs/operating/elastic.md` explains every field. A new fleet has no machines; `tontine elastic adopt` makes members that
run already its own.")]
pub struct ApplyArguments {
    /// The file, TOML.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The fleet's name; by default the file's name without `.toml`.
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// The controller's file of adapters. A policy that names an adapter which it does not have is refused. It may be on
    /// another machine: then the names are not looked for.
    #[arg(long, default_value = ADAPTERS, value_name = "FILE")]
    pub adapters: PathBuf,
    /// Show what would change, and change nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Where fleets are kept.
    #[command(flatten)]
    pub service: CoordinationArguments,
}

/// Carries it out.
pub(super) async fn run(shared: &CliContext, arguments: ApplyArguments) -> Result<ExitCode, CliError> {
    let policy = read_policy(&arguments.file)?;
    let stem = arguments.file.file_stem().and_then(|stem| stem.to_str());
    let Some(name) = arguments.name.clone().or(stem.map(str::to_owned)).filter(|name| is_name(name)) else {
        return Err(CliError::Usage(
            "name the fleet with --name: 1 to 64 letters, digits, hyphens and underscores".to_owned(),
        ));
    };
    let notes = unnamed(&policy, &arguments.adapters)?;
    let fleets = Fleets::create(&arguments.service).await?;
    let (is_new, changes) = applied(&fleets, &name, &policy, arguments.dry_run).await?;
    let document = json!({
        "fleet": name, "created": is_new, "dry_run": arguments.dry_run, "notes": notes,
        "changes": changes.iter().map(|(field, from, to)| json!({ "field": field, "from": from, "to": to }))
            .collect::<Vec<_>>(),
    });
    print(shared.format(), &document, || {
        let text = text(&name, is_new, &changes, arguments.dry_run);
        std::iter::once(text).chain(notes.iter().cloned()).collect::<Vec<_>>().join("\n")
    });
    Ok(ExitCode::SUCCESS)
}

/// Refuses a policy whose adapters the controller's file does not have. A file that was named must be there; where none is in
/// the usual place, people are told that nobody has looked.
fn unnamed(policy: &Policy, path: &Path) -> Result<Vec<String>, CliError> {
    let shown = path.display();
    if path == Path::new(ADAPTERS) && !path.exists() {
        return Ok(vec![format!(
            "not checked: whether the controller's file of adapters has the engine {:?} and the provider {:?}; there is no \
             {shown} here, so name the file with --adapters",
            policy.engine, policy.provider
        )]);
    }
    let file = read_adapters(path)?;
    let engines: Vec<&str> = file.engines.keys().map(String::as_str).collect();
    let providers: Vec<&str> = file.providers.keys().map(String::as_str).collect();
    let asked = [("engine", &policy.engine, engines), ("provider", &policy.provider, providers)];
    let lacking = asked.into_iter().filter(|(_, name, has)| !has.contains(&name.as_str()));
    let told: Vec<String> = lacking
        .map(|(role, name, has)| {
            format!("{role}: {shown} has no {role} adapter {name:?}; it has {}", known(&has))
        })
        .collect();
    if told.is_empty() {
        return Ok(Vec::new());
    }
    Err(CliError::Usage(format!(
        "{}\nnothing was changed; write a name that the file has, or name the controller's own file with --adapters",
        told.join("\n")
    )))
}

/// A field, what it was and what it is.
type Change = (String, Json, Json);

async fn applied(
    fleets: &Fleets,
    name: &str,
    policy: &Policy,
    dry_run: bool,
) -> Result<(bool, Vec<Change>), CliError> {
    loop {
        let (written, is_new, changes) = match fleets.look_for(name).await? {
            None if dry_run => return Ok((true, Vec::new())),
            None => {
                let fleet = Fleet::new(name, format!("{:016x}", OsEntropy.next_u64()), policy.clone());
                (elasticity::create(&*fleets.session, &fleet).await, true, Vec::new())
            }
            Some((mut fleet, document)) => {
                may_replace(&fleet, policy)?;
                fits(fleets, &fleet, policy).await?;
                let changes = differences(&fleet.policy, policy);
                if dry_run || changes.is_empty() {
                    return Ok((false, changes));
                }
                fleet.policy = policy.clone();
                fleet.generation += 1;
                (elasticity::publish(&*fleets.session, &fleet, &document).await, false, changes)
            }
        };
        match written {
            Ok(()) => return Ok((is_new, changes)),
            Err(FleetError::Overtaken { .. }) => {}
            Err(error) => return Err(unwritten(error)),
        }
    }
}

/// Another provider does not list the machines of this one, so they would be taken for gone.
fn may_replace(fleet: &Fleet, policy: &Policy) -> Result<(), CliError> {
    let fields = [
        ("engine", &fleet.policy.engine, &policy.engine),
        ("provider", &fleet.policy.provider, &policy.provider),
    ];
    let changed = fields.into_iter().find(|(_, from, to)| from != to && !fleet.machines.is_empty());
    match changed {
        Some((field, from, _)) => Err(CliError::Usage(format!(
            "{field}: fleet {} has machines of {from}, and another one would not know them; keep {field} = \"{from}\", or \
             create another fleet with --name",
            fleet.name
        ))),
        None => Ok(()),
    }
}

/// Refuses what the adapters said last that they do not have. Where nobody has looked, `status` tells it later.
async fn fits(fleets: &Fleets, fleet: &Fleet, policy: &Policy) -> Result<(), CliError> {
    let is_same = (&fleet.policy.engine, &fleet.policy.provider) == (&policy.engine, &policy.provider);
    let look = fleets.last_look(&fleet.name).await?.filter(|_| is_same);
    match look.and_then(|look| misfits(policy, &look).into_iter().next()) {
        Some(misfit) => {
            Err(CliError::Usage(format!("{misfit}\nnothing was changed; the last policy stays in force")))
        }
        None => Ok(()),
    }
}

/// What a policy asks for that the adapters of a fleet do not have, by what a controller saw last.
pub(super) fn misfits(policy: &Policy, look: &Look) -> Vec<String> {
    let mut misfits = Vec::new();
    if let Ok(provider) = &look.provider {
        let types: Vec<&str> = provider.types.iter().map(|kind| kind.name.as_str()).collect();
        if !types.contains(&policy.machine_type.as_str()) {
            misfits.push(format!(
                "machine-type: the provider has no type {:?}; it has {}",
                policy.machine_type,
                known(&types)
            ));
        }
    }
    let Ok(engine) = &look.engine else { return misfits };
    if policy.min < engine.members_min {
        misfits.push(format!(
            "min: it is {}, and the engine keeps all copies with {} members at least; write that or more",
            policy.min, engine.members_min
        ));
    }
    let rules = |list: &'static str, rules: &[Rule]| -> Vec<(String, String)> {
        let one =
            |(number, rule): (usize, &Rule)| (format!("{list}[{number}].measure"), rule.measure.clone());
        rules.iter().enumerate().map(one).collect()
    };
    let mut asked = [rules("add", &policy.add), rules("remove", &policy.remove)].concat();
    if policy.sizing() != Sizing::Rules {
        asked.push(("objective.measure".to_owned(), policy.objective.measure.clone()));
    }
    let measures: Vec<&str> = engine.measures.iter().map(String::as_str).collect();
    // Nobody says which measures a source gives, nor which an adapter has that names none.
    let are_known = policy.sources.is_empty() && !measures.is_empty();
    asked.retain(|(_, measure)| are_known && !measures.contains(&measure.as_str()));
    misfits.extend(asked.into_iter().map(|(field, measure)| {
        format!("{field}: the engine does not measure {measure:?}; it measures {}", known(&measures))
    }));
    misfits
}

fn known(names: &[&str]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// Reads a policy, and checks it.
pub(super) fn read_policy(path: &Path) -> Result<Policy, CliError> {
    let text = std::fs::read_to_string(path)
        .map_err(CliError::io(format!("cannot read the policy in {}", path.display())))?;
    let wrong = |why: &str| {
        CliError::Usage(format!(
            "{}: {why}\nnothing was changed; the last policy stays in force",
            path.display()
        ))
    };
    let policy: Policy = settings_file::parse(&text).map_err(|why| wrong(&why))?;
    policy.check().map_err(|error| wrong(&error.to_string()))?;
    Ok(policy)
}

/// The fields in which two policies differ.
fn differences(from: &Policy, to: &Policy) -> Vec<Change> {
    let json = |policy: &Policy| serde_json::to_value(policy).expect("a policy is plain data");
    let mut changes = Vec::new();
    differ("", &json(from), &json(to), &mut changes);
    changes
}

fn differ(path: &str, from: &Json, to: &Json, changes: &mut Vec<Change>) {
    if from == to {
        return;
    }
    let (Json::Object(before), Json::Object(after)) = (from, to) else {
        return changes.push((path.to_owned(), from.clone(), to.clone()));
    };
    let mut names: Vec<&String> = before.keys().chain(after.keys()).collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        let value = |of: &serde_json::Map<String, Json>| of.get(name).cloned().unwrap_or(Json::Null);
        differ(&path, &value(before), &value(after), changes);
    }
}

fn text(name: &str, is_new: bool, changes: &[Change], dry_run: bool) -> String {
    let program = program();
    let would = if dry_run { "would be " } else { "" };
    if is_new {
        return format!(
            "fleet {name} {would}created; run a controller with `{program} elastic run`, and make members that run already its \
             own with `{program} elastic adopt {name} --member MEMBER`, or with `--all` where they are on machines of the provider"
        );
    }
    if changes.is_empty() {
        return format!("fleet {name} has this policy already");
    }
    let mut lines = vec![format!("policy of fleet {name} {would}replaced:")];
    let shown = |value: &Json| if value.is_null() { "none".to_owned() } else { value.to_string() };
    lines.extend(
        changes.iter().map(|(field, from, to)| format!("  {field}: {} → {}", shown(from), shown(to))),
    );
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_held_against_what_the_adapters_have() {
        let look: Look = serde_json::from_value(json!({
            "at": 1, "by": "here", "generation": 1,
            "provider": { "Ok": { "name": "p", "protocol": 1, "types": [{ "name": "small", "price_per_hour": "1" }] } },
            "instances": { "Ok": [] },
            "engine": { "Ok": { "name": "e", "protocol": 1, "acts_max": 1, "drain_cancellable": true, "members_min": 3,
                "measures": ["processor"] } },
            "members": { "Ok": [] },
        }))
        .unwrap();
        let policy = |min: u32, kind: &str, measure: &str| -> Policy {
            let rule = json!({ "measure": measure, "of": "any", "is": "above", "bound": 1 });
            let text = json!({
                "engine": "e", "provider": "p", "machine-type": kind, "min": min, "max": 6, "add": [rule],
            });
            serde_json::from_value(text).unwrap()
        };
        assert_eq!(misfits(&policy(3, "small", "processor"), &look), [""; 0]);
        assert_eq!(
            misfits(&policy(2, "huge", "processors"), &look),
            [
                "machine-type: the provider has no type \"huge\"; it has small",
                "min: it is 2, and the engine keeps all copies with 3 members at least; write that or more",
                "add[0].measure: the engine does not measure \"processors\"; it measures processor",
            ]
        );
        // A source may give it; the policy of the operator's guide is such a one.
        let source = json!({ "kind": "prometheus", "at": "http://{address}:9100/metrics" });
        let mut policy = policy(3, "small", "http_requests_total");
        policy.sources.push(serde_json::from_value(source).unwrap());
        assert_eq!(misfits(&policy, &look), [""; 0]);
    }
}
