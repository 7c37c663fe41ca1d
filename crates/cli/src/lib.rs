//! The command line: `tontine <noun> <verb>`.
//!
//! Answers go to stdout, everything else to stderr. Exit status: 0 done, 1 no (not found, unhealthy), 2 failed,
//! 3 unknown (a write that may have happened). With `-o json` errors are JSON as well.
//!
//! **Architecture Invariant:** commands use the client library and the control plane like anybody else; only `node`
//! and `dev` run storage nodes.

#![deny(clippy::print_stdout, clippy::print_stderr)]

#[macro_use]
mod output;

mod command_line;
mod commands;
mod completions;
mod dev;
mod doctor;
mod durations;
mod events;
mod export;
mod failure;
mod file_format;
mod holder;
mod key_list;
mod keys;
mod limits;
mod load;
mod losses;
mod node_command;
mod node_list;
mod node_settings;
mod port_holder;
mod progress;
mod ready;
mod repair;
mod server;
mod shared;
mod status;
mod stop_signals;

use std::io::IsTerminal;
use std::process::ExitCode;

pub use commands::Arguments;

/// Parses the command line and carries it out.
pub fn run() -> ExitCode {
    let arguments = match command_line::read::<Arguments>(std::env::args_os()) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("TONTINE_LOG")
                .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn")),
        )
        .with_writer(std::io::stderr)
        // It would be said on stderr, which is what failed, and end the process.
        .log_internal_errors(false)
        .with_ansi(
            std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|no| no.is_empty()),
        )
        .init();
    let format = arguments.shared.format();
    commands::carry_out(arguments).unwrap_or_else(|error| failure::report(format, &error))
}
