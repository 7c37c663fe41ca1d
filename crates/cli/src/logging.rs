//! Where the log of this process goes, and what is in it.
//!
//! | command | its log |
//! |---|---|
//! | `tontine serve` | standard error, or the files of `--log-file` |
//! | `tontine dev` | the files `DATA/log/node-N.log` of each node |
//! | every other command | standard error, warnings and errors only |
//!
//! What a command has to say to the person who typed it is no log: it goes to standard output and standard error as ever.
//!
//! Must never: let a key, a value or a password into a log.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::str::FromStr as _;

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::Directive;
use tracing_subscriber::fmt::writer::BoxMakeWriter;

use crate::log_file::LogFile;

/// The variable with a filter for each module, for developers: `TONTINE_LOG=node=debug,info`.
const FILTER_VARIABLE: &str = "TONTINE_LOG";

/// How much nodes write to their log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    /// Failures that need an operator.
    Error,
    /// Also failures that resolve themselves: rejected requests, a slow disk, a lost node.
    Warn,
    /// Also normal operation: starts, stops, membership, repairs.
    Info,
    /// Also the steps of each component.
    Debug,
    /// Everything.
    Trace,
}

/// The form of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One line per entry, for people.
    #[default]
    Text,
    /// One JSON document per line, for programs.
    Json,
}

/// What nodes write to their log.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct LogSettings {
    /// Lowest severity that the nodes log; `info` by default.
    #[arg(long, value_enum, value_name = "LEVEL")]
    pub log_level: Option<LogLevel>,
    /// Format of the nodes' log.
    #[arg(long, value_enum, default_value = "text", value_name = "FORMAT")]
    pub log_format: LogFormat,
}

impl LogLevel {
    fn name(self) -> &'static str {
        match self {
            LogLevel::Error => "error",
            LogLevel::Warn => "warn",
            LogLevel::Info => "info",
            LogLevel::Debug => "debug",
            LogLevel::Trace => "trace",
        }
    }
}

impl LogSettings {
    /// The settings as arguments of another `tontine`.
    pub(crate) fn as_arguments(self) -> Vec<String> {
        let level = self.log_level.map(|level| format!("--log-level={}", level.name()));
        let format = (self.log_format == LogFormat::Json).then(|| "--log-format=json".to_owned());
        level.into_iter().chain(format).collect()
    }
}

/// Where the logs of the processes are that `dev` starts.
pub(crate) fn directory(cluster_data: &Path) -> PathBuf {
    cluster_data.join("log")
}

/// The log of a node that `dev` starts.
pub(crate) fn node_file(cluster_data: &Path, node: model::NodeId) -> PathBuf {
    directory(cluster_data).join(format!("node-{}.log", node.0))
}

/// What a process that runs nodes logs, and where.
pub(crate) struct NodeLog {
    /// What its command line asks for.
    pub(crate) settings: LogSettings,
    /// The file; standard error if there is none.
    pub(crate) file: Option<PathBuf>,
}

/// What is logged at a level. The client of ZooKeeper tells each attempt to connect, in its own words; what matters
/// of that, the crate `coordination` tells. A command that runs no nodes says in its error what that has to say.
fn directives(level: LogLevel, runs_nodes: bool) -> String {
    let quiet = if runs_nodes { "" } else { ",coordination=error" };
    match level {
        LogLevel::Error | LogLevel::Debug | LogLevel::Trace => level.name().to_owned(),
        LogLevel::Warn | LogLevel::Info => format!("{},zookeeper_client=error{quiet}", level.name()),
    }
}

/// What is logged: at this level, or as a developer asks by [`FILTER_VARIABLE`].
///
/// Of h2 only errors are, whoever asks. It warns of what any stranger can send as often as it likes, and at lower levels
/// tells paths, and so keys.
fn filter(
    level: Option<LogLevel>,
    asked: Option<EnvFilter>,
    unless: LogLevel,
    runs_nodes: bool,
) -> EnvFilter {
    let filter = match (level, asked) {
        (None, Some(asked)) => asked,
        (level, _) => EnvFilter::new(directives(level.unwrap_or(unless), runs_nodes)),
    };
    filter.add_directive(Directive::from_str("h2=error").expect("a module and a level"))
}

/// Begins to log; `nodes` if this process runs nodes.
pub(crate) fn begin(nodes: Option<NodeLog>) {
    let runs_nodes = nodes.is_some();
    let (settings, file, unless_asked) = nodes.map_or_else(
        || (LogSettings { log_level: None, log_format: LogFormat::Text }, None, LogLevel::Warn),
        |NodeLog { settings, file }| (settings, file, LogLevel::Info),
    );
    let asked = EnvFilter::try_from_env(FILTER_VARIABLE).ok();
    let filter = filter(settings.log_level, asked, unless_asked, runs_nodes);
    let colour = file.is_none()
        && std::io::stderr().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|no| no.is_empty());
    let writer = match file {
        Some(path) => {
            let log = LogFile::new(path);
            BoxMakeWriter::new(move || log.clone())
        }
        None => BoxMakeWriter::new(std::io::stderr),
    };
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(writer)
        // It would be said on stderr, which may be what failed, and end the process.
        .log_internal_errors(false)
        .with_ansi(colour);
    match settings.log_format {
        LogFormat::Text => log.init(),
        LogFormat::Json => {
            log.json().flatten_event(true).with_current_span(false).with_span_list(false).init()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_h2_only_errors_are_logged_whoever_asks_for_more() {
        let has = |filter: EnvFilter, directive: &str| {
            let text = filter.to_string();
            assert!(text.split(',').any(|one| one == directive), "{directive} is not in {text}");
            assert!(text.split(',').filter(|one| one.starts_with("h2")).eq(["h2=error"]), "{text}");
        };
        for level in LogLevel::value_variants() {
            has(filter(Some(*level), None, LogLevel::Info, true), level.name());
            has(filter(None, None, *level, true), level.name());
        }
        for asked in ["trace", "trace,h2=trace", "trace,h2"] {
            has(filter(None, Some(EnvFilter::new(asked)), LogLevel::Info, true), "trace");
        }
    }
}
