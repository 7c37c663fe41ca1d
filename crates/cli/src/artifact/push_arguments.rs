//! What the commands that put artifacts live are asked to do.

/// An artifact to stage.
#[derive(Clone, Debug, clap::Args)]
pub struct StageArguments {
    /// The artifact: a directory, or a URL (file, http, https, s3, hdfs).
    pub url: String,
    /// Seconds to wait; what was ordered goes on after them.
    #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
    pub timeout_s: u64,
    /// Say what would be done, and do nothing.
    #[arg(long)]
    pub dry_run: bool,
}

/// An artifact to push.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Example: a table goes live, and back
  tontine artifact build counts.tsv --key 1 --value 2 -s words --to words-2
  tontine artifact push words-2
  tontine artifact rollback words

Every node must be able to read the directory under the same path, or the URL (--allow-sources).
A headmaster carries the push out, which `tontine serve` and `tontine dev` start. So the push goes on when this command
ends early, and the same command watches it again.")]
pub struct PushArguments {
    /// Which one.
    #[command(flatten)]
    pub staged: StageArguments,
    /// How many replicas of each slice must hold it before it is served; by default all. The others catch up. A push that
    /// goes on stays as it is where you do not say otherwise.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u8).range(1..))]
    pub replicas: Option<u8>,
    /// End the push after this many seconds unless it is served by then. By default it waits for ever.
    #[arg(long, value_name = "SECONDS")]
    pub abort_after_s: Option<u64>,
}

/// A read-only store.
#[derive(Clone, Debug, clap::Args)]
pub struct OfStore {
    /// Name of the store.
    #[arg(id = "of_store", value_name = "STORE")]
    pub store: String,
    /// Say what would be done, and do nothing.
    #[arg(long)]
    pub dry_run: bool,
}

/// A listed artifact.
#[derive(Clone, Debug, clap::Args)]
pub struct OneArtifact {
    /// Name of the store.
    #[arg(id = "of_store", value_name = "STORE")]
    pub store: String,
    /// Number of the artifact, as `tontine artifact list` shows it.
    pub number: u64,
    /// Say what would be done, and do nothing.
    #[arg(long)]
    pub dry_run: bool,
}

/// A listed artifact to serve.
#[derive(Clone, Debug, clap::Args)]
pub struct SwapArguments {
    /// Which one.
    #[command(flatten)]
    pub artifact: OneArtifact,
    /// How many replicas of each slice must hold it; by default all.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u8).range(1..))]
    pub replicas: Option<u8>,
}

/// A store to take back to what it served before.
#[derive(Clone, Debug, clap::Args)]
pub struct RollbackArguments {
    /// Which one.
    #[command(flatten)]
    pub of: OfStore,
    /// How many replicas of each slice must hold it; by default all.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u8).range(1..))]
    pub replicas: Option<u8>,
}

/// Stores to list.
#[derive(Clone, Debug, clap::Args)]
pub struct ListArguments {
    /// Name of the store; by default all.
    #[arg(id = "of_store", value_name = "STORE")]
    pub store: Option<String>,
}
