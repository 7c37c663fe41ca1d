//! The command line: `tontine <noun> <verb>`.
//!
//! Answers go to stdout, everything else to stderr. Exit status: 0 done, 1 no (not found, unhealthy), 2 failed.
//!
//! **Architecture Invariant:** commands use the client library and the control plane like anybody else; only `node`
//! and `dev` run storage nodes.

mod commands;
mod dev;
mod export;
mod failure;
mod keys;
mod load;
mod node_command;
mod output;
mod progress;
mod server;
mod status;

use std::process::ExitCode;

use clap::Parser;

pub use commands::Arguments;

/// Parses the command line and carries it out.
pub fn run() -> ExitCode {
    let arguments = Arguments::parse();
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("TONTINE_LOG")
                .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn")),
        )
        .with_writer(std::io::stderr)
        .init();
    match commands::carry_out(arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("tontine: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
