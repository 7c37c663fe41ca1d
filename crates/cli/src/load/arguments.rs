//! What a load is asked to do.

use std::time::Duration;

use crate::durations;
use crate::file_format::FileFormat;

/// A file of records, and how it is read.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tontine load people.csv --key id --value name       columns by the names in the first line
  tontine load export.csv --key 1 --value 3 --delimiter ';'
  tontine load events.jsonl.gz --key id               gzip and zstd files are read as they are
  tontine load events.jsonl --key id                  the value is the whole line
  tontine load Packages --key Package                 Debian's package lists: the value is the whole stanza
  generate | tontine load - --format tsv --key 1 --value 2
  tontine load all.jsonl --key key --value value      what `tontine export all.jsonl` wrote, expiry included
  tontine load people.csv --key id --value name --resume

A load may run while nodes fail: what is not acknowledged is sent again.")]
pub struct LoadArguments {
    /// The file; `-` reads standard input.
    pub file: String,
    /// How records are written; guessed from the file's extension when left out.
    #[arg(long, value_enum)]
    pub format: Option<FileFormat>,
    /// Column or field with the key: a name, or for tsv and csv a number counted from 1.
    #[arg(long, value_name = "COLUMN")]
    pub key: String,
    /// Column or field with the value; jsonl and deb822 take the whole record when it is left out.
    #[arg(long, value_name = "COLUMN")]
    pub value: Option<String>,
    /// Column or field with the time at which the value expires, in milliseconds since 1970; nothing there lives for
    /// ever. Left out, `expires_ms` is read of what an export wrote, with its `--key key --value value`.
    #[arg(long, value_name = "COLUMN", conflicts_with = "no_expires")]
    pub expires: Option<String>,
    /// Load values that expire as values that live for ever.
    #[arg(long)]
    pub no_expires: bool,
    /// The first line of a tsv or csv file names the columns (assumed when a column is given by name).
    #[arg(long, conflicts_with = "no_header")]
    pub header: bool,
    /// The first line of a tsv or csv file is a record (assumed when both columns are given by number).
    #[arg(long)]
    pub no_header: bool,
    /// What stands between two columns of a tsv or csv file, one character of ASCII: `;`, `|` or `\t`, for example.
    #[arg(long, value_name = "CHARACTER", value_parser = parse_delimiter)]
    pub delimiter: Option<u8>,
    /// In tsv, read `\t`, `\n`, `\r` and `\\` as the characters that they stand for.
    #[arg(long)]
    pub escapes: bool,
    /// Batches under way at the same time, 1 to 256.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256), value_name = "COUNT")]
    pub parallel: u16,
    /// Keys in one batch, 1 to 10000; a batch also ends at 1 MiB.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u16).range(1..=10_000), value_name = "KEYS")]
    pub batch: u16,
    /// How long a batch that makes no progress is tried again before the load fails.
    #[arg(long, default_value = "1m", value_parser = durations::parse, value_name = "DURATION")]
    pub patience: Duration,
    /// Count and list bad records instead of stopping at the first.
    #[arg(long)]
    pub skip_bad: bool,
    /// Go on where the last load of this file stopped.
    #[arg(long)]
    pub resume: bool,
    /// Where progress is recorded for `--resume`; beside the input by default.
    #[arg(long, value_name = "FILE")]
    pub checkpoint: Option<std::path::PathBuf>,
}

fn parse_delimiter(text: &str) -> Result<u8, String> {
    match (text, text.as_bytes()) {
        ("\\t", _) => Ok(b'\t'),
        (_, [b'"' | b'\n' | b'\r' | b'\\']) => {
            Err(format!("{text:?} has a meaning of its own in these files"))
        }
        (_, [byte]) if byte.is_ascii() => Ok(*byte),
        _ => Err("write one character of ASCII, or \\t for a tab".to_owned()),
    }
}
