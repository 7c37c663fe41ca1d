//! Settings of a node's process that every way of running nodes shares.

use storage::Durability;

use crate::limits::LimitSettings;
use crate::server::EngineKind;

/// Settings that every way of running nodes shares.
#[derive(Clone, Debug, clap::Args)]
pub struct NodeSettings {
    /// Which engine keeps the records.
    #[arg(long, value_enum, default_value = "log")]
    pub engine: EngineKind,
    /// When a write is acknowledged: `always` (after its sync), `every:MS` (at once; synced at most MS milliseconds
    /// later, 1 to 60000), or `system` (at once; synced when the system likes). Only for the log engine.
    #[arg(long, default_value = "every:10", value_parser = parse_durability, value_name = "always|every:MS|system")]
    pub durability: Durability,
    /// Worker threads of one node, 1 to 512; by default one for each core, shared among the nodes of this machine.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=512), value_name = "THREADS")]
    pub workers: Option<u16>,
    /// Password that Redis clients must give; by default none. The variable TONTINE_PASSWORD keeps it off the process
    /// list.
    #[arg(long, env = "TONTINE_PASSWORD", hide_env_values = true)]
    pub password: Option<String>,
    /// How much a node takes in.
    #[command(flatten)]
    pub limits: LimitSettings,
    /// Milliseconds that a node may take to answer before another one is asked beside it, 1 to 60000.
    #[arg(
        long,
        default_value_t = 50,
        value_parser = clap::value_parser!(u64).range(1..=60_000),
        value_name = "MS"
    )]
    pub hedge_after_ms: u64,
    /// Seconds within which every pair of nodes compares what it shares, 1 to 604800.
    #[arg(
        long,
        default_value_t = 600,
        value_parser = clap::value_parser!(u64).range(1..=604_800),
        value_name = "SECONDS"
    )]
    pub repair_period_s: u64,
}

impl NodeSettings {
    /// Worker threads of each of `nodes` nodes on this machine.
    pub(crate) fn workers_each(&self, nodes: usize) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        self.workers.map_or((cores / nodes.max(1)).max(1), usize::from)
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
        if self.hedge_after_ms != 50 {
            arguments.push(format!("--hedge-after-ms={}", self.hedge_after_ms));
        }
        if self.repair_period_s != 600 {
            arguments.push(format!("--repair-period-s={}", self.repair_period_s));
        }
        arguments
    }
}

fn parse_durability(text: &str) -> Result<Durability, String> {
    match text {
        "always" => Ok(Durability::Always),
        "system" => Ok(Durability::System),
        other => other
            .strip_prefix("every:")
            .and_then(|ms| ms.trim_end_matches("ms").parse().ok())
            .filter(|ms| (1..=60_000).contains(ms))
            .map(|milliseconds| Durability::Every { milliseconds })
            .ok_or_else(|| "expected always, every:MS with 1 to 60000 milliseconds, or system".to_owned()),
    }
}

fn show_durability(durability: Durability) -> String {
    match durability {
        Durability::Always => "always".to_owned(),
        Durability::Every { milliseconds } => format!("every:{milliseconds}"),
        Durability::System => "system".to_owned(),
    }
}
