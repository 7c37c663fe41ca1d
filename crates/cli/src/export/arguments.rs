//! What an export is asked to do.

use std::time::Duration;

use crate::durations;
use crate::file_format::FileFormat;

/// Where the records go, and how they are written.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tontine export people.jsonl                  one {\"key\": …, \"value\": …} a line, in the order of their tokens
  tontine export people.csv                    a row key,value,expires_ms after a header
  tontine export - --format tsv | sort | less
  tontine load people.jsonl --key key --value value    brings an export back")]
pub struct ExportArguments {
    /// The file; standard output when left out or `-`.
    pub file: Option<String>,
    /// Replace the file if it exists.
    #[arg(long)]
    pub force: bool,
    /// How records are written; guessed from the file's extension, jsonl on standard output. deb822 writes values
    /// only.
    #[arg(long, value_enum)]
    pub format: Option<FileFormat>,
    /// Leave out when values expire: the field or column `expires_ms`, which tsv and csv have for every record.
    #[arg(long)]
    pub no_expires: bool,
    /// Leave out the first line of tsv and csv, which names the columns.
    #[arg(long)]
    pub no_header: bool,
    /// In tsv, write tabs, line ends and backslashes as `\t`, `\n`, `\r` and `\\`.
    #[arg(long)]
    pub escapes: bool,
    /// Write every sibling: in jsonl as `values`, otherwise a row for each.
    #[arg(long)]
    pub with_siblings: bool,
    /// How long a partition without enough replicas is tried again before the export fails.
    #[arg(long, default_value = "1m", value_parser = durations::parse, value_name = "DURATION")]
    pub patience: Duration,
    /// Go on without records that are damaged at every replica that answers, and say how many; without it they end
    /// the export.
    #[arg(long)]
    pub leave_out_damaged: bool,
}
