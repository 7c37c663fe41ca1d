//! How records are read from a file, as people say it on the command line.

use crate::file_format::FileFormat;

/// How records are read from a file.
#[derive(Clone, Debug, clap::Args)]
pub struct ReadArguments {
    /// Format of the file; guessed from its extension by default.
    #[arg(long, value_enum)]
    pub format: Option<FileFormat>,
    /// Column or field that holds the key: a name or, in tsv and csv, a number counted from 1. Needed for all of these.
    #[arg(long, value_name = "COLUMN")]
    pub key: Option<String>,
    /// Column or field that holds the value. By default, jsonl and deb822 store the whole record.
    #[arg(long, value_name = "COLUMN")]
    pub value: Option<String>,
    /// The first line of a tsv or csv file names the columns (the default if a column is given by name).
    #[arg(long, conflicts_with = "no_header")]
    pub header: bool,
    /// The first line of a tsv or csv file is a record (the default if all columns are given by number).
    #[arg(long)]
    pub no_header: bool,
    /// Character that separates the columns of a tsv or csv file, for example `;`, `|` or `\t`.
    #[arg(long, value_name = "CHARACTER", value_parser = parse_delimiter)]
    pub delimiter: Option<u8>,
    /// In tsv, replace `\t`, `\n`, `\r` and `\\` with the characters that they stand for.
    #[arg(long)]
    pub escapes: bool,
}

fn parse_delimiter(text: &str) -> Result<u8, String> {
    match (text, text.as_bytes()) {
        ("\\t", _) => Ok(b'\t'),
        (_, [b'"' | b'\n' | b'\r' | b'\\']) => {
            Err(format!("{text:?} has another meaning in these files; choose another character"))
        }
        (_, [byte]) if byte.is_ascii() => Ok(*byte),
        _ => Err("use one ASCII character, or \\t for a tab".to_owned()),
    }
}
