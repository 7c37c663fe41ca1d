//! What every command knows, and which commands have no use for which part of it.
//!
//! **Architecture Invariant:** an option that was typed is honoured or refused, never ignored.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::Resettable;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches};
use client::{Client, ClientOptions};
use runtime::Ports;

use crate::commands::Arguments;
use crate::failure::{self, CliError};
use crate::output::Format;

/// What every command knows.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Options of every command")]
pub struct Shared {
    /// Native addresses of some nodes of the cluster; one that answers is enough.
    #[arg(
        long,
        global = true,
        env = "TONTINE_CONNECT",
        value_delimiter = ',',
        default_value = "127.0.0.1:7401,127.0.0.1:7402,127.0.0.1:7403",
        value_name = "HOST:PORT,…"
    )]
    pub connect: Vec<String>,
    /// Whether addresses were given, and not only guessed.
    #[arg(skip)]
    pub connect_named: bool,
    /// The store; `tontine status` lists them.
    #[arg(
        long,
        short = 's',
        global = true,
        env = "TONTINE_STORE",
        default_value = "default",
        value_name = "NAME"
    )]
    pub store: String,
    /// Whether a store was named: some commands are about all of them otherwise.
    #[arg(skip)]
    pub store_named: bool,
    /// How answers and errors are shown: for people, or as JSON (one document on standard output; an error is one on
    /// standard error).
    #[arg(long, short = 'o', global = true, value_enum, default_value = "text", value_name = "FORMAT")]
    pub output: Format,
    /// The same as `-o json`.
    #[arg(long, global = true)]
    pub json: bool,
    /// Milliseconds after which a request without an answer is given up.
    #[arg(
        long,
        global = true,
        env = "TONTINE_DEADLINE_MS",
        default_value_t = 5000,
        value_parser = clap::value_parser!(u32).range(1..=3_600_000),
        value_name = "MS"
    )]
    pub deadline_ms: u32,
}

impl Shared {
    /// How answers are shown.
    pub(crate) fn format(&self) -> Format {
        if self.json { Format::Json } else { self.output }
    }

    /// A client of the cluster.
    pub(crate) async fn client(&self) -> Result<Client, CliError> {
        if let Some(odd) = self.connect.iter().find(|address| !address.contains(':')) {
            return Err(CliError::Usage(format!(
                "--connect takes addresses like 127.0.0.1:7401, one or more between commas; {odd:?} has no port"
            )));
        }
        let ports = Ports::os().map_err(CliError::io("cannot start the background thread"))?;
        let deadline = Duration::from_millis(u64::from(self.deadline_ms));
        let options = ClientOptions { name: "tontine-cli".to_owned(), deadline, ..ClientOptions::default() };
        let connected = Client::connect(&self.connect, ports, options).await;
        connected.map_err(|error| CliError::NoAnswer { error, named: self.connect_named })
    }
}

/// Reads the command line; answers `--help` and mistakes itself.
pub(crate) fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Arguments, ExitCode> {
    let words: Vec<OsString> = words.into_iter().collect();
    let refused = |error: clap::Error| {
        let answers = [ErrorKind::DisplayHelp, ErrorKind::DisplayVersion];
        if answers.contains(&error.kind()) || !wants_json(&words) {
            // Only a closed terminal can refuse; there is nobody left to tell.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
        let message = error.render().to_string();
        // What comes after a blank line is about help, for people.
        let message = message.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ");
        failure::report(Format::Json, &CliError::Usage(message.trim_end().to_owned()))
    };
    let matches = match Arguments::command().try_get_matches_from(&words) {
        Ok(matches) => matches,
        // What the environment says counts as typed when a mistake is explained, and seems to be required.
        Err(error) => {
            let bare = typed_only(Arguments::command()).try_get_matches_from(&words);
            return Err(refused(bare.err().unwrap_or(error)));
        }
    };
    let mut arguments = Arguments::from_arg_matches(&matches).map_err(refused)?;
    arguments.shared.store_named = is_named(&matches, "store");
    arguments.shared.connect_named = is_named(&matches, "connect");
    match ignored(&matches) {
        None => Ok(arguments),
        Some(error) => Err(failure::report(arguments.shared.format(), &error)),
    }
}

/// The command line without what the environment says.
fn typed_only(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|argument| argument.env(Resettable::Reset));
    command.mut_subcommands(typed_only)
}

/// Whether an option is given on the command line or in the environment.
fn is_named(matches: &ArgMatches, id: &str) -> bool {
    let mut deepest = matches;
    while let Some((_, below)) = deepest.subcommand() {
        deepest = below;
    }
    !matches!(deepest.value_source(id), None | Some(ValueSource::DefaultValue))
}

/// Whether JSON was asked for, on a command line that cannot be read otherwise.
fn wants_json(words: &[OsString]) -> bool {
    let words: Vec<&str> =
        words.iter().map_while(|word| word.to_str()).take_while(|word| *word != "--").collect();
    words.iter().any(|word| ["--json", "-ojson", "-o=json", "--output=json"].contains(word))
        || words.windows(2).any(|pair| ["-o", "--output"].contains(&pair[0]) && pair[1] == "json")
}

/// What a command has no use for, and why.
fn useless(path: &str) -> &'static [(&'static str, &'static str)] {
    const CONNECT_NODE: (&str, &str) = ("connect", "it runs nodes and connects to none");
    const STORE_NODE: (&str, &str) = ("store", "it runs nodes, which serve all stores");
    const DEADLINE_NODE: (&str, &str) = ("deadline_ms", "it sends no requests");
    const CONNECT_BENCH: (&str, &str) = ("connect", "it starts the servers that it measures");
    const DEADLINE_BENCH: (&str, &str) = ("deadline_ms", "requests are bounded by --timeout");
    const DEADLINE_SCENARIO: (&str, &str) = ("deadline_ms", "the deadline is part of what it measures");
    match path {
        "dev" | "node" => &[CONNECT_NODE, STORE_NODE, DEADLINE_NODE],
        "status" | "doctor" => &[("store", "it shows all stores")],
        "bench load" | "bench run" => &[DEADLINE_BENCH],
        "bench compare" => &[("connect", "name the systems with --a and --b"), DEADLINE_BENCH],
        "bench resp" => &[CONNECT_BENCH, ("store", "Redis clients use the default store"), DEADLINE_SCENARIO],
        "bench persistent" | "bench cluster" => &[CONNECT_BENCH, DEADLINE_SCENARIO],
        _ => &[],
    }
}

/// An option that was typed and would be ignored.
fn ignored(matches: &ArgMatches) -> Option<CliError> {
    let (mut deepest, mut path) = (matches, Vec::new());
    while let Some((name, below)) = deepest.subcommand() {
        path.push(name);
        deepest = below;
    }
    let path = path.join(" ");
    let typed = |id: &str| deepest.value_source(id) == Some(ValueSource::CommandLine);
    let refuse = |id: &str, why: &str| {
        CliError::Usage(format!("--{} has no effect on `tontine {path}`: {why}", id.replace('_', "-")))
    };
    let found = useless(&path).iter().find(|(id, _)| typed(id));
    if let Some((id, why)) = found {
        return Some(refuse(id, why));
    }
    let targeted = ["bench load", "bench run"].contains(&path.as_str()) && typed("target");
    (targeted && typed("connect")).then(|| refuse("connect", "--target says where"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(words: &str) -> Option<String> {
        let matches = Arguments::command().try_get_matches_from(words.split(' ')).unwrap();
        ignored(&matches).map(|error| error.to_string())
    }

    #[test]
    fn options_that_would_be_ignored_are_refused() {
        assert_eq!(refusal("tontine get k --connect h:1 -s carts --deadline-ms 9"), None);
        assert_eq!(refusal("tontine bench run --connect h:1"), None);
        let refused = refusal("tontine --connect h:1 dev").unwrap();
        assert!(refused.starts_with("--connect has no effect on `tontine dev`"), "{refused}");
        assert!(refusal("tontine bench cluster --connect h:1").unwrap().contains("starts the servers"));
        assert!(refusal("tontine bench run --target h:1 --connect h:1").unwrap().contains("--target"));
        assert!(refusal("tontine bench run --deadline-ms 7").unwrap().contains("--timeout"));
        assert!(refusal("tontine status -s carts").unwrap().contains("all stores"));
    }

    #[test]
    fn a_wish_for_json_is_seen_on_any_command_line() {
        let wants = |line: &str| wants_json(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        for line in
            ["tontine nope --json", "tontine get -o json", "tontine --output=json", "tontine -ojson x"]
        {
            assert!(wants(line), "{line}");
        }
        for line in ["tontine put k json", "tontine put k -- --json", "tontine -o text"] {
            assert!(!wants(line), "{line}");
        }
    }
}
