//! Reading the command line: which options a command has no use for, and how mistakes are told.
//!
//! **Architecture Invariant:** an option that was typed is honoured or refused, never ignored.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::builder::Resettable;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches};

use crate::context::CliContext;
use crate::failure::{self, CliError};
use crate::mistakes;
use crate::output;
use crate::text::Format;

/// An option that a command has no use for, by its id, and why.
pub(crate) type Useless = (&'static str, &'static str);

/// The arguments of all commands.
pub(crate) trait CommandLine: CommandFactory + FromArgMatches {
    /// What every command knows.
    fn shared(&mut self) -> &mut CliContext;

    /// Which of that a command has no use for; `path` names the command with its nouns, without the program.
    fn useless(path: &str) -> &'static [Useless];
}

/// Reads the command line; answers `--help` and mistakes itself.
pub(crate) fn read<Arguments: CommandLine>(
    words: impl IntoIterator<Item = OsString>,
) -> Result<Arguments, ExitCode> {
    let words: Vec<OsString> = words.into_iter().collect();
    let refused = |error: clap::Error| {
        // Who types the program's name alone wants its help.
        let is_bare = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand && words.len() == 1;
        if is_answer(&error) || is_bare {
            let code = ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
            let printed = error.print().map_err(CliError::io("the help could not be written"));
            let written = printed.and_then(|()| output::written(code));
            return written.unwrap_or_else(|error| failure::report(Format::Text, &error));
        }
        if let Some(message) = mistakes::explained(&error, &command::<Arguments>(), &words) {
            let format = if wants_json(&words) { Format::Json } else { Format::Text };
            return failure::report(format, &CliError::Usage(message));
        }
        let message = error.render().to_string();
        let message = message.trim_start_matches("error: ").trim_end();
        if !wants_json(&words) {
            // One prefix for every error, whoever finds it.
            say!("tontine: {message}");
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
        // What comes after a blank line is about help, for people.
        let message = message.split("\n\n").next().unwrap_or_default();
        failure::report(Format::Json, &CliError::Usage(message.trim_end().to_owned()))
    };
    let matches = match command::<Arguments>().try_get_matches_from(&words) {
        Ok(matches) => matches,
        Err(error) if is_answer(&error) => return Err(refused(error)),
        // What the environment says counts as typed when a mistake is explained, and seems to be required.
        Err(error) => {
            let bare = typed_only(command::<Arguments>()).try_get_matches_from(&words);
            return Err(refused(bare.err().unwrap_or(error)));
        }
    };
    let mut arguments = Arguments::from_arg_matches(&matches).map_err(refused)?;
    arguments.shared().store_named = is_named(&matches, "store");
    arguments.shared().connect_named = is_named(&matches, "connect");
    match ignored::<Arguments>(&matches) {
        None => Ok(arguments),
        Some(error) => Err(failure::report(arguments.shared().format(), &error)),
    }
}

/// Whether somebody asked for it.
fn is_answer(error: &clap::Error) -> bool {
    [ErrorKind::DisplayHelp, ErrorKind::DisplayVersion].contains(&error.kind())
}

/// All commands, each with the options of every command that it has a use for: its help names no others.
pub(crate) fn command<Arguments: CommandLine>() -> clap::Command {
    let command = negative_numbers(Arguments::command());
    let global: Vec<clap::Arg> = command.get_arguments().filter(|arg| arg.is_global_set()).cloned().collect();
    without_useless::<Arguments>(command, &global, "")
}

/// Hides what a command has no use for. It is read all the same, so that it can be refused with the reason.
fn without_useless<Arguments: CommandLine>(
    command: clap::Command,
    global: &[clap::Arg],
    path: &str,
) -> clap::Command {
    let names: Vec<String> = command.get_subcommands().map(|below| below.get_name().to_owned()).collect();
    names.into_iter().fold(command, |command, name| {
        let path = format!("{path} {name}").trim_start().to_owned();
        command.mut_subcommand(name, |below| {
            let useless = Arguments::useless(&path);
            let below = global.iter().fold(below, |below, arg| {
                let is_useless = useless.iter().any(|(id, _)| arg.get_id() == id);
                below.arg(arg.clone().hide(is_useless))
            });
            without_useless::<Arguments>(below, global, &path)
        })
    })
}

/// A negative number is the value of the option before it, and never an option, so that the option can refuse it.
fn negative_numbers(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|argument| {
        let takes_value = !argument.is_positional() && argument.get_action().takes_values();
        if takes_value { argument.allow_negative_numbers(true) } else { argument }
    });
    command.mut_subcommands(negative_numbers)
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

/// An option that was typed and would be ignored.
pub(crate) fn ignored<Arguments: CommandLine>(matches: &ArgMatches) -> Option<CliError> {
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
    let found = Arguments::useless(&path).iter().find(|(id, _)| typed(id));
    if let Some((id, why)) = found {
        return Some(refuse(id, why));
    }
    let targeted = ["bench load", "bench run"].contains(&path.as_str()) && typed("target");
    (targeted && typed("connect")).then(|| refuse("connect", "--target says where"))
}

#[cfg(test)]
mod tests {
    use super::*;

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
