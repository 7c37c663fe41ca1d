//! What an export is asked to do.

use std::time::Duration;

use crate::durations;
use crate::file_format::FileFormat;

/// Where the records go, and how they are written.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tontine export people.jsonl                  one {\"key\": …, \"value\": …} per line
  tontine export people.csv                    a header, then key,value,expires_ms
  tontine export people.jsonl.gz               compressed with gzip; .zst compresses with zstd
  tontine export - --format tsv | sort | less

To load an export again: tontine load people.jsonl --key key --value value")]
pub struct ExportArguments {
    /// The file to write; `-` and no file mean standard output. A file whose name ends in `.gz` or `.zst` is compressed.
    pub file: Option<String>,
    /// Replace the file if it exists.
    #[arg(long)]
    pub force: bool,
    /// Format of the file; guessed from its extension by default, and jsonl on standard output. deb822 writes only the
    /// values.
    #[arg(long, value_enum)]
    pub format: Option<FileFormat>,
    /// Leave out the expiry times: the field or column `expires_ms`.
    #[arg(long)]
    pub no_expires: bool,
    /// Leave out the header line of tsv and csv.
    #[arg(long)]
    pub no_header: bool,
    /// In tsv, write tabs, line ends and backslashes as `\t`, `\n`, `\r` and `\\`.
    #[arg(long)]
    pub escapes: bool,
    /// Write every sibling: as `values` in jsonl, as one row each in the other formats.
    #[arg(long)]
    pub with_siblings: bool,
    /// How long to retry a partition that has too few replicas before the export fails.
    #[arg(long, default_value = "1m", value_parser = durations::parse, value_name = "DURATION")]
    pub patience: Duration,
    /// Leave out records that are damaged on every replica that answers, and count them. By default, such a record ends
    /// the export. Of an artifact nothing is left out.
    #[arg(long)]
    pub leave_out_damaged: bool,
    /// Export this artifact of a read-only store, whether it is served or not; by default the one that is served when the
    /// export begins. `tontine artifact list` shows the numbers.
    #[arg(long, value_name = "NUMBER")]
    pub artifact: Option<u64>,
}
