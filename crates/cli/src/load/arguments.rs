//! What a load is asked to do.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::durations;
use crate::input::ReadArguments;

/// A file of records, and how it is read.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tontine load people.csv --key id --value name       columns by the names in the first line
  tontine load export.csv --key 1 --value 3 --delimiter ';'
  tontine load events.jsonl.gz --key id               gzip and zstd files are decompressed
  tontine load events.jsonl --key id                  the value is the whole line
  tontine load Packages --key Package                 Debian's package lists; stores whole stanzas
  generate | tontine load - --format tsv --key 1 --value 2
  tontine load all.jsonl --key key --value value      loads what `tontine export` wrote
  tontine load people.csv --key id --value name --resume

A load can run while nodes fail: it retries every write that is not acknowledged.")]
pub struct LoadArguments {
    /// The file to load; `-` reads standard input.
    pub file: String,
    /// How it is read.
    #[command(flatten)]
    pub read: ReadArguments,
    /// Column or field that holds the expiry time, in milliseconds since 1970; a value without one never expires. With
    /// `--key key --value value`, as for an export, the default is `expires_ms`.
    #[arg(long, value_name = "COLUMN", conflicts_with = "no_expires")]
    pub expires: Option<String>,
    /// Ignore expiry times: no loaded value expires.
    #[arg(long)]
    pub no_expires: bool,
    /// How many batches to send at the same time, 1 to 256.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256), value_name = "COUNT")]
    pub parallel: u16,
    /// How many keys to put in a batch, 1 to 10000; a batch also ends at 1 MiB.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u16).range(1..=10_000), value_name = "KEYS")]
    pub batch: u16,
    /// How many records to send in a second at most, so that the cluster has time for others. Batches get smaller where
    /// necessary. Without it, a load is as fast as the cluster allows.
    #[arg(long, value_name = "RECORDS_PER_SECOND")]
    pub rate: Option<NonZeroU32>,
    /// How long to retry a batch that makes no progress before the load fails.
    #[arg(long, default_value = "1m", value_parser = durations::parse, value_name = "DURATION")]
    pub patience: Duration,
    /// Skip bad records and list them, instead of stopping at the first one.
    #[arg(long)]
    pub skip_bad: bool,
    /// Continue where the last load of this file stopped.
    #[arg(long)]
    pub resume: bool,
    /// Where to record the progress for `--resume`; next to the input file by default.
    #[arg(long, value_name = "FILE")]
    pub checkpoint: Option<std::path::PathBuf>,
}
