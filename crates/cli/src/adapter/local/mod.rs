//! `tontine adapter local`: machines that are processes of this host.
//!
//! ```text
//!   DIR/.lock                   held while a machine is made, so that no two get one address
//!   DIR/FLEET/TOKEN/            a machine: see `place`
//!   DIR/FLEET/.ended/TOKEN      a token that has had its machine: it works once
//! ```
//!
//! A machine outlives the adapter that started it, and its controller. Whether it runs is told by a lock that its processes
//! inherit, never by a process id, so a reused id is never taken for it.
//!
//! Must never: touch a directory that has no `machine.json` of ours, start two machines for one token, or one more for a
//! token whose machine has ended.

pub(super) mod addresses;
mod groups;
mod launching;
mod place;
mod processes;
pub(crate) mod resting;
mod types;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use model::elasticity::Money;
use model::elasticity::adapter::{Instances, PROTOCOL, ProviderFacts};
use serde::Deserialize;
use serde_json::Value as Json;

use self::addresses::Addresses;
use self::place::{LocalMachine, Place, Places};
use self::types::Type;
use super::rpc::{self, Adapter, RpcFailure};
use crate::failure::CliError;

pub(super) use self::launching::launch;

/// How often an adapter goes on with machines that are being ended.
const TEND_PAUSE: Duration = Duration::from_millis(250);

/// Where machines are, and which there may be.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Every machine is a directory DIR/FLEET/TOKEN with its boot script, its log and its data. The script is run by /bin/sh and \
finds MACHINE_ADDRESS, MACHINE_DATA and MACHINE_TOKEN in its environment.

docs/reference/adapters.md is the contract that it speaks, on standard input and output.")]
pub struct LocalArguments {
    /// Where the machines are; it is created if it does not exist.
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
    /// Addresses of this host, one for each machine.
    #[arg(long, value_name = "FIRST-LAST", default_value_t)]
    pub addresses: Addresses,
    /// A type of machine, such as small:price=0.1,processors=0.5. May be given several times. By default there is one,
    /// local, with the price and the processors given.
    #[arg(long = "type", value_name = "NAME:…", conflicts_with_all = ["price", "processors"])]
    pub types: Vec<Type>,
    /// What an hour of a machine costs.
    #[arg(long, value_name = "AMOUNT", default_value = "0.10")]
    pub price: Money,
    /// Processors that a machine may use, by a control group. Without this, as many as there are.
    #[arg(long, value_name = "COUNT", value_parser = types::processors)]
    pub processors: Option<u64>,
}

/// Which machine's process this becomes.
#[derive(Clone, Debug, clap::Args)]
pub struct LaunchArguments {
    /// Its directory.
    #[arg(value_name = "DIR")]
    pub place: PathBuf,
}

/// Runs the adapter until standard input ends.
pub(super) async fn run(arguments: LocalArguments) -> Result<ExitCode, CliError> {
    let LocalArguments { dir, addresses, mut types, price, processors } = arguments;
    if types.is_empty() {
        types.push(Type { name: "local".to_owned(), price, processors_milli: processors });
    }
    let made = std::fs::create_dir_all(&dir).and_then(|()| dir.canonicalize());
    let dir = made.map_err(CliError::io(format!("cannot create the directory {}", dir.display())))?;
    let places = Places::new(dir, addresses);
    let tended = places.clone();
    // It ends with the process.
    let tend = move || {
        loop {
            tended.tend();
            std::thread::sleep(TEND_PAUSE);
        }
    };
    let started = std::thread::Builder::new().name("tending".into()).spawn(tend);
    started.map_err(CliError::io("cannot start the thread that ends machines"))?;
    rpc::serve(&Local { places, types }).await
}

struct Local {
    places: Places,
    types: Vec<Type>,
}

const METHODS: [&str; 5] = ["describe", "list", "ensure", "preflight", "terminate"];

/// What `ensure` is given.
#[derive(Deserialize)]
struct Ensure {
    fleet: String,
    token: String,
    #[serde(rename = "type")]
    kind: String,
    script: String,
}

#[derive(Deserialize)]
struct Whole {
    fleet: String,
}

#[derive(Deserialize)]
struct One {
    fleet: String,
    instance: String,
}

impl Adapter for Local {
    async fn call(&self, method: &str, params: Json) -> Result<Json, RpcFailure> {
        match method {
            "describe" => {
                place::check_name("fleet", &rpc::read::<Whole>(params)?.fleet)?;
                rpc::written(&self.facts())
            }
            "list" => {
                let Whole { fleet } = rpc::read(params)?;
                let instances = self.places.list(&fleet)?;
                rpc::written(&Instances { instances })
            }
            "ensure" => self.ensure(rpc::read(params)?),
            "preflight" => {
                let place = self.named(params)?;
                match place.owned()? {
                    Some(_) => Ok(rpc::nothing()),
                    None => Err(RpcFailure::refused(format!("there is no machine {}", place.token()))),
                }
            }
            "terminate" => {
                self.named(params)?.terminate()?;
                self.places.tend();
                Ok(rpc::nothing())
            }
            _ => Err(RpcFailure::method(method, &METHODS)),
        }
    }
}

impl Local {
    fn facts(&self) -> ProviderFacts {
        let capped = self.types.iter().any(|kind| kind.processors_milli.is_some());
        let uncapped = capped.then(groups::trial).and_then(Result::err);
        let warnings = uncapped.map(|why| {
            format!(
                "processors are not capped: {why}; machines use as many as there are, so measures of processors say little"
            )
        });
        ProviderFacts {
            name: "local".to_owned(),
            protocol: PROTOCOL,
            types: self.types.iter().map(Type::facts).collect(),
            quota: Some(self.places.addresses().count()),
            warnings: warnings.into_iter().collect(),
        }
    }

    fn named(&self, params: Json) -> Result<Place, RpcFailure> {
        let One { fleet, instance } = rpc::read(params)?;
        self.places.place(&fleet, &instance)
    }

    fn ensure(&self, wanted: Ensure) -> Result<Json, RpcFailure> {
        let Ensure { fleet, token, kind, script } = wanted;
        let place = self.places.place(&fleet, &token)?;
        let Some(found) = self.types.iter().find(|one| one.name == kind) else {
            let names: Vec<&str> = self.types.iter().map(|one| one.name.as_str()).collect();
            let names = names.join(", ");
            return Err(RpcFailure::refused(format!(
                "there is no type {kind:?} of machines; there is {names}"
            )));
        };
        let machine = LocalMachine::new((fleet, token), found);
        self.places.make(&place, machine, &script)?;
        launching::start(&place)?;
        Ok(rpc::nothing())
    }
}
