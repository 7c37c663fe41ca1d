//! Which engine keeps a node's records, and how durable, as options say it.
//!
//! Settings are read with it and a node is run by it, so it lies below both.
//!
//! **Architecture Invariant:** no engine is opened here.

use storage::Durability;

/// Which engine keeps the records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum EngineKind {
    /// A log on disk: durable.
    #[default]
    Log,
    /// Memory only: all data is lost when the process ends.
    Memory,
}

/// As the option is written.
pub(crate) fn show_durability(durability: Durability) -> String {
    match durability {
        Durability::Always => "always".to_owned(),
        Durability::Every { milliseconds } => format!("every:{milliseconds}ms"),
        Durability::System => "system".to_owned(),
    }
}
