//! `tontine dev --elastic 3..6`: a fleet of this machine beside the nodes of `dev`.
//!
//! Its machines are processes of `tontine adapter local`. They sleep while `dev` does not run, and keep their data.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use coordination::CoordinationService;
use coordination::address::ServicePlace;
use coordination::documents::elasticity;
use model::Cluster;
use model::elasticity::{Cooldowns, Direction, Fleet, FleetOrder, Mode, Policy, Rule, Spread};
use runtime::Entropy;
use runtime::entropy::os::OsEntropy;
use tokio::task::JoinHandle;

use super::DevArguments;
use crate::adapter::{Addresses, resting};
use crate::elastic_command::Fleets;
use crate::failure::CliError;
use crate::headmaster::Beside;
use crate::stop_signals::STOP_WITH_STDIN;

/// Pause before a node is adopted once more; it doubles.
const ADOPTION_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause.
const ADOPTION_PAUSE_MAX: Duration = Duration::from_secs(60);
/// Operations in a second above which a node of `dev` is busy, and up to which all are quiet.
const BUSY: f64 = 5_000.0;
const QUIET: f64 = 2_000.0;
/// Over this many seconds.
const SPAN_S: u64 = 30;
/// Members that a fleet of `dev` may have.
const MEMBERS_MAX: u32 = 64;

/// The fewest and the most members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    min: u32,
    max: u32,
}

/// Reads `3..6`.
pub(super) fn parse_range(text: &str) -> Result<Range, String> {
    let expected = "expected the fewest and the most members, for example 3..6";
    let (min, max) = text.split_once("..").ok_or(expected)?;
    let (min, max) = (min.parse().map_err(|_| expected)?, max.parse().map_err(|_| expected)?);
    match (1..=MEMBERS_MAX).contains(&min) && min <= max && max <= MEMBERS_MAX {
        true => Ok(Range { min, max }),
        false => Err(format!("{expected}; 1 to {MEMBERS_MAX}, the fewest first")),
    }
}

impl Range {
    /// Refuses a range that cannot be kept to, and any for a golden ring. The nodes of `dev` are of its fleet and are never
    /// ended, and each further one has an address of the local provider.
    pub(super) fn check(self, nodes: usize, is_golden: bool) -> Result<(), CliError> {
        if is_golden {
            return Err(CliError::Usage(
                "a golden ring grows by `tontine node add` alone; leave out --elastic, or use a cluster without --ring golden"
                    .to_owned(),
            ));
        }
        let (min, max) = (self.min, self.max);
        let fewest = u32::try_from(nodes).unwrap_or(u32::MAX);
        let addresses = Addresses::default();
        let most = fewest.saturating_add(addresses.count()).min(MEMBERS_MAX.max(fewest));
        let nodes = crate::text::count(nodes as u64, "node");
        let why = match () {
            () if max < fewest => format!("it has no room for the {nodes} of this cluster"),
            () if min < fewest => {
                format!("the {nodes} of this cluster are of its fleet, and are never ended")
            }
            () if max > most => format!(
                "beside the {nodes} of this cluster there are {} addresses for machines, {addresses}",
                addresses.count()
            ),
            () => return Ok(()),
        };
        let least = min.clamp(fewest, most);
        let up_to = max.clamp((least + 1).min(most), most);
        Err(CliError::Usage(format!(
            "--elastic {min}..{max} cannot be: {why}; say {fewest} to {most}, for example --elastic {least}..{up_to}"
        )))
    }
}

/// What runs beside the nodes.
pub(super) struct Elastic {
    controller: Beside,
    adoption: JoinHandle<()>,
    machines: PathBuf,
}

impl Elastic {
    /// Writes the file of adapters and the fleet, wakes its machines, and starts a controller.
    pub(super) async fn start(
        arguments: &DevArguments,
        range: Range,
        place: &ServicePlace,
        cluster: &Cluster,
    ) -> Result<Elastic, CliError> {
        if arguments.settings.password.is_some() {
            return Err(CliError::Usage(
                "--elastic starts nodes without a password; leave one of both out".to_owned(),
            ));
        }
        range.check(cluster.nodes.len(), cluster.ring.is_golden())?;
        let place_of =
            std::path::absolute(&arguments.data_dir).map_err(CliError::io("cannot find --data-dir"))?;
        let machines = place_of.join("machines");
        let adapters = place_of.join("elastic").join("adapters.toml");
        write_adapters(arguments, &adapters, (&machines, place, cluster))?;
        let session = crate::coordination::open(place, false).await?;
        publish(&*session, &cluster.name, range).await?;
        resting::wake(&machines).map_err(|why| CliError::Other(format!("cannot start {why}")))?;
        let members: Vec<String> = cluster.nodes.iter().map(|node| node.id.to_string()).collect();
        let adoption = tokio::spawn(adopt(session, cluster.name.clone(), members));
        let mut words = vec![
            "elastic".to_owned(),
            "run".to_owned(),
            format!("--coordination={}", place.address),
            format!("--adapters={}", adapters.display()),
            format!("--log-file={}", super::log_place(arguments).join("elastic.log").display()),
        ];
        words.extend(arguments.settings.log.as_arguments());
        words.push(STOP_WITH_STDIN.to_owned());
        Ok(Elastic { controller: Beside::keep("controller of fleets", words), adoption, machines })
    }

    /// Ends the controller.
    pub(super) async fn stop_controller(&mut self) {
        self.adoption.abort();
        self.controller.end().await;
    }

    /// Lets the machines sleep. Only once no controller runs.
    pub(super) fn rest(self) {
        match resting::rest(&self.machines) {
            Ok(0) => {}
            Ok(count) => {
                say!("{} stopped; they keep their data", crate::text::count(count as u64, "machine"))
            }
            Err(error) => say!("machines were not stopped: {error}"),
        }
    }
}

/// What a newcomer may type.
pub(super) fn greet(cluster: &Cluster, place: &ServicePlace) {
    let program = crate::output::program();
    let service = crate::holder::shell(&[place.address.to_string()]);
    answer!("\nfleet {} grows and shrinks by itself; look at it, or order a size:", cluster.name);
    for verb in ["status", "plan", "why"] {
        let size = if verb == "plan" { " +1" } else { "" };
        answer!("  {program} elastic {verb} {}{size} --coordination {service}", cluster.name);
    }
}

fn write_adapters(
    arguments: &DevArguments,
    file: &Path,
    (machines, place, cluster): (&Path, &ServicePlace, &Cluster),
) -> Result<(), CliError> {
    let program = std::env::current_exe().map_err(CliError::io("cannot find this program"))?;
    let program = program.display().to_string();
    let native: Vec<&str> = cluster.nodes.iter().map(|node| node.native.as_str()).collect();
    // Each machine has its own address, so the port of the first node is free there.
    let port = native.first().and_then(|first| first.rsplit_once(':')).map_or("7401", |(_, port)| port);
    let mut engine: Vec<String> =
        [&program, "adapter", "tontine", "--connect", &native.join(","), "--port", port, "--coordination"]
            .map(str::to_owned)
            .to_vec();
    engine.push(place.address.to_string());
    engine.push("--".to_owned());
    engine.extend(arguments.settings.as_arguments(1));
    let provider =
        [&program, "adapter", "local", "--dir", &machines.display().to_string()].map(str::to_owned);
    let text = format!(
        "# Written by `tontine dev --elastic` at each start.\n[engines.tontine]\ncommand = {}\n\n[providers.local]\ncommand \
         = {}\n",
        quoted(&engine),
        quoted(&provider)
    );
    let directory = file.parent().expect("it has a name below a directory");
    std::fs::create_dir_all(directory)
        .and_then(|()| std::fs::write(file, text))
        .map_err(CliError::io(format!("cannot write {}", file.display())))
}

/// Words as TOML writes them.
fn quoted(words: &[String]) -> String {
    // Texts of JSON are texts of TOML, but for DEL, which no path of `dev` has.
    serde_json::to_string(words).expect("words are texts")
}

/// Creates the fleet, or gives it these bounds.
async fn publish(session: &dyn CoordinationService, name: &str, range: Range) -> Result<(), CliError> {
    let failed = |error: &dyn std::fmt::Display| CliError::Other(error.to_string());
    loop {
        let found = elasticity::read(session, name).await.map_err(|error| failed(&error))?;
        let written = match found {
            None => {
                let uid = format!("{:016x}", OsEntropy.next_u64());
                elasticity::create(session, &Fleet::new(name, uid, policy(range))).await
            }
            Some((fleet, _)) if (fleet.policy.min, fleet.policy.max) == (range.min, range.max) => {
                return Ok(());
            }
            Some((mut fleet, document)) => {
                (fleet.policy.min, fleet.policy.max) = (range.min, range.max);
                fleet.policy.standby = fleet.policy.standby.min(range.max - range.min);
                fleet.generation += 1;
                elasticity::publish(session, &fleet, &document).await
            }
        };
        match written {
            Ok(()) => return Ok(()),
            Err(elasticity::FleetError::Overtaken { .. }) => {}
            Err(error) => return Err(failed(&error)),
        }
    }
}

/// Rules on operations: all machines of `dev` share the processors of this one, so how busy these are says little of one.
/// Means are short, because nobody who tries it waits for five minutes.
fn policy(range: Range) -> Policy {
    let rule = |of, is, bound| Rule { measure: "operations".to_owned(), of, is, bound, over: SPAN_S };
    Policy {
        engine: "tontine".to_owned(),
        provider: "local".to_owned(),
        machine_type: "local".to_owned(),
        min: range.min,
        max: range.max,
        standby: 0,
        mode: Mode::Auto,
        budget: Default::default(),
        deadlines: Default::default(),
        sources: Vec::new(),
        add: vec![rule(Spread::Any, Direction::Above, BUSY)],
        remove: vec![rule(Spread::All, Direction::AtMost, QUIET)],
        sizing: None,
        objective: Default::default(),
        cooldowns: Cooldowns { grow: 5, shrink: SPAN_S },
        sample_age_max: 30,
    }
}

/// Makes the nodes of `dev` members of the fleet. They have no machine at the provider, so nobody ends them.
async fn adopt(session: Arc<dyn CoordinationService>, name: String, members: Vec<String>) {
    let orders = Fleets::new(session);
    for member in members {
        let mut pause = ADOPTION_PAUSE;
        loop {
            let order = FleetOrder::Adopt { instance: None, member: member.clone() };
            match orders.has_member(&name, &member).await {
                Ok(true) => break,
                Ok(false) => match orders.order(&name, &order).await {
                    Ok(_) => break,
                    Err(error) => tracing::info!(member, %error, "node not adopted yet"),
                },
                Err(error) => tracing::info!(member, %error, "fleet not read"),
            }
            tokio::time::sleep(pause).await;
            pause = ADOPTION_PAUSE_MAX.min(pause * 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_room_for_the_nodes_of_dev() {
        let range = parse_range("3..6").unwrap();
        range.check(3, false).unwrap();
        let golden = range.check(3, true).unwrap_err().to_string();
        assert!(golden.contains("`tontine node add` alone"), "{golden}");
        let refused =
            |range: &str, nodes| parse_range(range).unwrap().check(nodes, false).unwrap_err().to_string();
        assert_eq!(
            refused("3..6", 8),
            "--elastic 3..6 cannot be: it has no room for the 8 nodes of this cluster; say 8 to 39, for example --elastic 8..9"
        );
        assert_eq!(
            refused("2..3", 3),
            "--elastic 2..3 cannot be: the 3 nodes of this cluster are of its fleet, and are never ended; say 3 to 34, for \
             example --elastic 3..4"
        );
        assert_eq!(
            refused("3..60", 3),
            "--elastic 3..60 cannot be: beside the 3 nodes of this cluster there are 31 addresses for machines, \
             127.0.0.10-127.0.0.40; say 3 to 34, for example --elastic 3..34"
        );
        let many = refused("3..6", 40);
        assert!(many.ends_with("say 40 to 64, for example --elastic 40..41"), "{many}");
        for wrong in ["3", "6..3", "0..3", "3..65", "a..b"] {
            assert!(parse_range(wrong).is_err(), "{wrong}");
        }
    }
}
