//! Settings of a node's process that every way of running nodes shares.

use std::time::Duration;

use runtime::sources::AllowedPrefix;
use storage::Durability;

use crate::durations;
use crate::engine_kind::{EngineKind, show_durability};
use crate::failure::CliError;
use crate::holder::PASSWORD_VARIABLE;
use crate::limits::LimitSettings;
use crate::logging::LogSettings;

/// What a node may read artifacts from unless it is told: any directory of its machine, and no network.
const ALLOW_SOURCES_DEFAULT: &str = "file:///";

/// Settings that every way of running nodes shares.
#[derive(Clone, Debug, clap::Args)]
pub struct NodeSettings {
    /// Storage engine.
    #[arg(long, value_enum, default_value = "log")]
    pub engine: EngineKind,
    /// When writes are synced to disk: `always` (before they are acknowledged), `every:10ms` (in the background, at this
    /// interval, 1ms to 1m), or `system` (when the operating system does it). Log engine only.
    #[arg(long, default_value = "every:10ms", value_parser = parse_durability, value_name = "always|every:DURATION|system")]
    pub durability: Durability,
    /// Worker threads of each node, 1 to 512; by default, the nodes on this machine share one for each core.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=512), value_name = "THREADS")]
    pub workers: Option<u16>,
    /// Password that Redis and HTTP clients must give; none by default. Set TONTINE_PASSWORD instead to keep it out of the process
    /// list. A node that was started with a password refuses to start without one.
    #[arg(long, env = PASSWORD_VARIABLE, hide_env_values = true)]
    pub password: Option<String>,
    /// Start without a password, even if the last start had one. The node requires none from then on.
    #[arg(long)]
    pub no_password: bool,
    /// Host names, with commas between them, under which HTTP clients reach the node beside its addresses, localhost and the
    /// name of --advertise. Other names are refused: a web page may have made its own name lead here.
    #[arg(long, value_delimiter = ',', value_parser = parse_host_name, value_name = "NAME,…")]
    pub http_name: Vec<String>,
    /// How much a node takes in.
    #[command(flatten)]
    pub limits: LimitSettings,
    /// Write no audit log: who gave which order, and who was refused.
    #[arg(long)]
    pub no_audit_log: bool,
    /// What a node writes to its log.
    #[command(flatten)]
    pub log: LogSettings,
    /// How long a node may take to answer before another node is asked too, 1ms to 1m.
    #[arg(
        long,
        default_value = "50ms",
        value_parser = durations::within(Duration::from_millis(1), Duration::from_secs(60)),
        value_name = "DURATION"
    )]
    pub hedge_after: Duration,
    /// How often each pair of nodes compares its replicas, 1s to 7d.
    #[arg(
        long,
        alias = "repair-period-s",
        default_value = "10m",
        value_parser = durations::within(Duration::from_secs(1), Duration::from_secs(604_800)),
        value_name = "DURATION"
    )]
    pub repair_period: Duration,
    /// URLs below which artifacts may be read, with commas between them: file:///DIRECTORY, http(s)://HOST/PATH,
    /// s3://BUCKET/PATH, hdfs://HOST/PATH.
    #[arg(long, value_delimiter = ',', default_value = ALLOW_SOURCES_DEFAULT, value_name = "URL,…")]
    pub allow_sources: Vec<AllowedPrefix>,
}

impl NodeSettings {
    /// Worker threads of each of `nodes` nodes on this machine.
    pub(crate) fn workers_each(&self, nodes: usize) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        self.workers.map_or((cores / nodes.max(1)).max(1), usize::from)
    }

    /// The password that Redis and HTTP clients must give, if any.
    ///
    /// # Errors
    /// When it is empty, as it is where a script's variable was never set, and when it is both given and given up.
    pub(crate) fn checked_password(&self) -> Result<Option<String>, CliError> {
        match &self.password {
            Some(password) if password.is_empty() => Err(CliError::Usage(format!(
                "the password for Redis clients is empty; set {PASSWORD_VARIABLE} to the cluster's password, or unset it \
                 if the cluster has none"
            ))),
            Some(_) if self.no_password => Err(CliError::Usage(format!(
                "--no-password cannot be combined with a password; leave out --no-password, or unset \
                 {PASSWORD_VARIABLE} and leave out --password"
            ))),
            password => Ok(password.clone()),
        }
    }

    /// The settings as arguments of another `tontine`.
    pub(crate) fn as_arguments(&self, workers: usize) -> Vec<String> {
        let engine = if self.engine == EngineKind::Memory { "memory" } else { "log" };
        let mut arguments = vec![
            format!("--engine={engine}"),
            format!("--durability={}", show_durability(self.durability)),
            format!("--workers={workers}"),
        ];
        arguments.extend(self.limits.as_arguments());
        arguments.extend(self.log.as_arguments());
        arguments.extend(self.no_audit_log.then(|| "--no-audit-log".to_owned()));
        if self.hedge_after != Duration::from_millis(50) {
            arguments.push(format!("--hedge-after={}", durations::shown(self.hedge_after)));
        }
        if self.repair_period != Duration::from_secs(600) {
            arguments.push(format!("--repair-period={}", durations::shown(self.repair_period)));
        }
        if !self.http_name.is_empty() {
            arguments.push(format!("--http-name={}", self.http_name.join(",")));
        }
        let allowed: Vec<String> = self.allow_sources.iter().map(ToString::to_string).collect();
        if allowed != [ALLOW_SOURCES_DEFAULT] {
            arguments.push(format!("--allow-sources={}", allowed.join(",")));
        }
        arguments
    }
}

/// A name of a host, as `Host` has it before its port.
fn parse_host_name(text: &str) -> Result<String, String> {
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || "-._".contains(letter);
    match !text.is_empty() && text.chars().all(is_letter) {
        true => Ok(text.to_owned()),
        false => {
            Err("give the name alone, without a port, a scheme or a path, such as db.example".to_owned())
        }
    }
}

fn parse_durability(text: &str) -> Result<Durability, String> {
    match text {
        "always" => Ok(Durability::Always),
        "system" => Ok(Durability::System),
        // A number without a unit is in milliseconds here: so it was before there were units.
        other => other
            .strip_prefix("every:")
            .and_then(|time| match time.parse::<u64>() {
                Ok(milliseconds) => Some(Duration::from_millis(milliseconds)),
                Err(_) => durations::parse(time).ok(),
            })
            .and_then(|time| u64::try_from(time.as_millis()).ok())
            .filter(|milliseconds| (1..=60_000).contains(milliseconds))
            .map(|milliseconds| Durability::Every { milliseconds })
            .ok_or_else(|| "use always, system, or every: with 1ms to 1m, for example every:10ms".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_name_that_could_never_match_is_refused() {
        for name in ["db.example", "n1", "a-b_c.example", "10.0.0.1"] {
            assert_eq!(parse_host_name(name).as_deref(), Ok(name));
        }
        for name in ["", "db.example:7601", "http://db.example", "db.example/", "[::1]", "a b", "*"] {
            assert!(parse_host_name(name).is_err(), "{name}");
        }
    }
}
