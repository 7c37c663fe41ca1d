//! `tontine adapter check`: runs an adapter as a child and holds it against the contract.
//!
//! It speaks to it as a controller does, and says of each rule whether it is kept. Rules that cost money are tried only
//! where a type of machine is named.
//!
//! Must never: join, drain or forget a member, end a machine that it did not ask for itself, or show what an adapter wrote
//! beside the words of an error. It may hold secrets.

mod child;
mod engine;
mod provider;

use std::process::ExitCode;
use std::time::Duration;

use model::elasticity::adapter::{EngineFacts, PROTOCOL, ProviderFacts};
use model::unquoted;
use serde::Serialize;
use serde_json::{Value as Json, json};

use self::child::{CallResult, Child};
use super::rpc::{NO_JSON, NO_METHOD, NO_REQUEST, PARAMS};
use crate::durations;
use crate::failure::CliError;
use crate::output::print;
use crate::text::Format;

/// Runs an adapter, and holds it against the contract.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tontine adapter check -- tontine adapter local --dir machines
  tontine adapter check --type local -- tontine adapter local --dir machines

With --type it asks a provider for one machine and ends it again. docs/reference/adapters.md is the contract.")]
pub struct CheckArguments {
    /// Ask a provider for a machine of this type, and end it. Without this, none is asked for.
    #[arg(long = "type", value_name = "TYPE")]
    pub kind: Option<String>,
    /// The fleet in whose name it asks; one that nobody manages.
    #[arg(long, value_name = "NAME", default_value = "adapter-check")]
    pub fleet: String,
    /// How long an answer may take.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = durations::parse)]
    pub answer_within: Duration,
    /// How long a machine may take to run, and to be gone.
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = durations::parse)]
    pub machine_within: Duration,
    /// The adapter's command line.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// Whether one rule is kept.
#[derive(Serialize)]
struct Check {
    check: &'static str,
    ok: bool,
    why: Option<String>,
}

/// What is found of an adapter.
struct Checking<'a> {
    arguments: &'a CheckArguments,
    child: Child,
    checks: Vec<Check>,
}

/// Whether a rule is kept; otherwise why not.
type Kept = Result<(), String>;

/// Holds an adapter against the contract.
pub(super) fn run(format: Format, arguments: &CheckArguments) -> Result<ExitCode, CliError> {
    let child = Child::start(&arguments.command, arguments.answer_within)?;
    let mut checking = Checking { arguments, child, checks: Vec::new() };
    checking.all()?;
    let checks = checking.checks;
    let failed = checks.iter().filter(|check| !check.ok).count();
    let document = json!({ "checks": checks, "failed": failed });
    print(format, &document, || {
        let line = |check: &Check| match &check.why {
            None => format!("ok      {}\n", check.check),
            Some(why) => format!("FAILED  {}: {why}\n", check.check),
        };
        let lines: String = checks.iter().map(line).collect();
        format!("{lines}{} of {} checks failed", failed, checks.len())
    });
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// Which side of a controller an adapter is on.
enum Side {
    Provider(ProviderFacts),
    Engine(EngineFacts),
}

impl Side {
    fn read(facts: Json) -> Result<Side, String> {
        let read = |error: serde_json::Error| format!("describe cannot be read: {}", unquoted::json(&error));
        match facts.get("types") {
            Some(_) => serde_json::from_value(facts).map(Side::Provider).map_err(read),
            None => serde_json::from_value(facts).map(Side::Engine).map_err(read),
        }
    }

    fn check(&self) -> Kept {
        let (name, protocol) = match self {
            Side::Provider(ProviderFacts { name, protocol, .. }) => (name, *protocol),
            Side::Engine(EngineFacts { name, protocol, .. }) => (name, *protocol),
        };
        if name.is_empty() {
            return Err("its name is empty".to_owned());
        }
        if protocol != PROTOCOL {
            return Err(format!(
                "it speaks version {protocol} of the contract, and this program version {PROTOCOL}"
            ));
        }
        match self {
            Side::Provider(facts) if facts.types.is_empty() => Err("it has no types of machines".to_owned()),
            Side::Engine(facts) if facts.acts_max == 0 || facts.members_min == 0 => {
                Err("acts_max and members_min are 1 at least".to_owned())
            }
            _ => Ok(()),
        }
    }
}

/// The fields in which two answers differ.
fn differing(one: &Json, other: &Json) -> String {
    let (Json::Object(one), Json::Object(other)) = (one, other) else { return "answer".to_owned() };
    let names = one.keys().chain(other.keys().filter(|name| !one.contains_key(*name)));
    let differing: Vec<&str> =
        names.filter(|name| one.get(*name) != other.get(*name)).map(String::as_str).collect();
    differing.join(", ")
}

impl Checking<'_> {
    fn note(&mut self, check: &'static str, kept: Kept) -> bool {
        let ok = kept.is_ok();
        self.checks.push(Check { check, ok, why: kept.err() });
        ok
    }

    /// The result of a call that must succeed, as the contract has it.
    fn result<T: serde::de::DeserializeOwned>(&mut self, method: &str, params: &Json) -> Result<T, String> {
        match self.child.call(method, params)? {
            CallResult::Result(result) => serde_json::from_value(result)
                .map_err(|error| format!("{method} answers in another form: {}", unquoted::json(&error))),
            CallResult::Error { code, message } => Err(format!("{method} fails with {code}: {message}")),
        }
    }

    /// A call must fail with this code.
    fn fails(&mut self, method: &str, params: &Json, wanted: i32) -> Kept {
        match self.child.call(method, params)? {
            CallResult::Error { code, message } if !message.is_empty() && code == wanted => Ok(()),
            CallResult::Error { code, .. } => {
                Err(format!("it fails with {code}, or without a message; {wanted} is due"))
            }
            CallResult::Result(_) => Err(format!("it succeeds, and an error {wanted} is due")),
        }
    }

    fn all(&mut self) -> Result<(), CliError> {
        let whole = json!({ "fleet": self.arguments.fleet });
        let described = self.result::<Json>("describe", &whole).and_then(Side::read);
        let side = match described {
            Ok(side) => {
                let kept = side.check();
                self.note("it describes itself", kept);
                Some(side)
            }
            Err(why) => {
                self.note("it describes itself", Err(why));
                None
            }
        };
        self.common(&whole);
        match side {
            Some(Side::Provider(facts)) => self.provider(&facts)?,
            Some(Side::Engine(_)) => self.engine()?,
            None => {}
        }
        let noise = self.child.noise();
        self.note("nothing but answers on standard output", noise);
        let ended = self.child.end();
        self.note("it ends when standard input ends", ended);
        Ok(())
    }

    /// What providers and engines have in common.
    fn common(&mut self, whole: &Json) {
        let alike = (|| {
            let (one, other): (Json, Json) =
                (self.result("describe", whole)?, self.result("describe", whole)?);
            if one == other {
                Ok(())
            } else {
                Err(format!("describe gives another {} the second time", differing(&one, &other)))
            }
        })();
        self.note("two calls in a row are answered alike", alike);
        let unknown = self.fails("no-such-method", whole, NO_METHOD);
        self.note("a method that it does not know is an error -32601", unknown);
        let lacking = self.fails("describe", &json!({}), PARAMS);
        self.note("parameters without a fleet are an error -32602", lacking);
        let mut further = whole.clone();
        further["a-field-of-a-later-version"] = json!(1);
        let further = self.result::<Json>("describe", &further).map(drop);
        self.note("fields that it does not know are passed over", further);
        let broken = self.child.broken("{\"jsonrpc\":", NO_JSON);
        self.note("a line that is no JSON is an error -32700", broken);
        let wrong = self.child.broken("[1]", NO_REQUEST);
        self.note("JSON that is no request is an error -32600", wrong);
        let piped = self.child.at_once("describe", whole, 5);
        self.note("calls that do not wait for each other are all answered", piped);
    }

    /// Goes on with another process, which must know nothing less.
    fn start_again(&mut self) -> Result<(), CliError> {
        let ended = self.child.end();
        let noise = self.child.noise();
        if ended.and(noise).is_ok() {
            self.child = Child::start(&self.arguments.command, self.arguments.answer_within)?;
        }
        Ok(())
    }
}
