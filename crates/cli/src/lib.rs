//! The command line: `tontine <noun> <verb>`.
//!
//! Answers go to stdout, everything else to stderr. Exit status: 0 done, 1 no (not found, unhealthy), 2 failed,
//! 3 unknown (a write that may have happened). With `-o json` errors are JSON as well.
//!
//! **Architecture Invariant:** commands use the client library and the control plane like anybody else; only `serve`,
//! `node` and `dev` run storage nodes.

#![deny(clippy::print_stdout, clippy::print_stderr)]

#[macro_use]
mod output;

mod adapter;
mod addresses;
mod artifact;
mod audit;
mod balance_command;
mod cert_command;
mod clocks;
mod cluster_command;
mod command_line;
mod commands;
mod completions;
mod context;
mod coordination;
mod dates;
mod dev;
mod doctor;
mod durations;
mod elastic_command;
mod engine_kind;
mod events;
mod export;
mod failure;
mod feeds;
mod file_format;
mod file_system;
mod headmaster;
mod holder;
mod input;
mod key_list;
mod keys;
mod limits;
mod load;
mod log_file;
mod logging;
mod losses;
mod manual;
mod mistakes;
mod node_command;
mod node_list;
mod node_settings;
mod orders;
mod plan_command;
mod port_holder;
mod progress;
mod ready;
mod repair;
mod serve;
mod server;
mod settings_file;
mod shape;
mod status;
mod stop_signals;
mod store_command;
mod text;
mod tls_settings;
mod user_command;
mod watchdog;
mod words;

use std::process::ExitCode;

pub use commands::Arguments;

/// Parses the command line and carries it out.
pub fn run() -> ExitCode {
    runtime::panics::end_the_process();
    // Nodes map a file for each chunk of an artifact, and so do commands that read one.
    runtime::disk::os::raise_descriptor_limit();
    let arguments = match command_line::read::<Arguments>(std::env::args_os()) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    logging::begin(arguments.command.node_log());
    let format = arguments.shared.format();
    let is_role = arguments.command.is_role();
    let done = commands::carry_out(arguments);
    // A node stops as it was told to, also when nobody could read its first lines.
    let done = if is_role { done } else { done.and_then(output::written) };
    done.unwrap_or_else(|error| failure::report(format, &error))
}
