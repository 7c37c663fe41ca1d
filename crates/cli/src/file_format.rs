//! How records are written in a file, the same for `load` and `export`.

use std::path::Path;

use clap::ValueEnum;

use crate::failure::CliError;

/// The column or field that an export writes the time of expiry to.
pub(crate) const EXPIRES: &str = "expires_ms";

/// How records are written in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FileFormat {
    /// Columns separated by tabs, one record per line.
    Tsv,
    /// Columns separated by commas, quoted as in RFC 4180.
    Csv,
    /// One JSON object per line.
    Jsonl,
    /// Stanzas of `Field: text` lines separated by blank lines, such as Debian's package lists.
    Deb822,
    /// Parquet, whose columns of key and value are bytes or text; needs a program that was built with the feature `parquet`.
    Parquet,
    /// Files of a read-only store of Voldemort (ro2), which only `artifact build` reads: name the directory of a version.
    Voldemort,
}

impl FileFormat {
    /// The format that a file's name suggests.
    pub(crate) fn guess(file: &str) -> Option<FileFormat> {
        // How a file is packed is seen from its first bytes; its name ends with that all the same.
        let file = [".gz", ".zst", ".zstd"].iter().find_map(|end| file.strip_suffix(end)).unwrap_or(file);
        let path = Path::new(file);
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("tsv" | "tab") => Some(FileFormat::Tsv),
            Some("csv") => Some(FileFormat::Csv),
            Some("jsonl" | "ndjson" | "json") => Some(FileFormat::Jsonl),
            Some("parquet") => Some(FileFormat::Parquet),
            Some("deb822" | "control" | "dsc") => Some(FileFormat::Deb822),
            _ => (path.file_name()? == "Packages").then_some(FileFormat::Deb822),
        }
    }

    /// Guesses, or says what to add.
    pub(crate) fn given_or_guessed(given: Option<FileFormat>, file: &str) -> Result<FileFormat, CliError> {
        given.or_else(|| FileFormat::guess(file)).ok_or_else(|| {
            format!(
                "cannot tell the format of {file:?} from its name; add --format tsv, csv, jsonl or deb822"
            )
            .into()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_guessed_from_extensions_and_never_invented() {
        assert_eq!(FileFormat::guess("a/b.tsv"), Some(FileFormat::Tsv));
        assert_eq!(FileFormat::guess("b.ndjson"), Some(FileFormat::Jsonl));
        assert_eq!(FileFormat::guess("b.parquet"), Some(FileFormat::Parquet));
        assert_eq!(FileFormat::guess("lists/Packages"), Some(FileFormat::Deb822));
        assert_eq!(FileFormat::guess("b.csv.gz"), Some(FileFormat::Csv));
        assert_eq!(FileFormat::guess("Packages.zst"), Some(FileFormat::Deb822));
        assert_eq!(FileFormat::guess("b.gz"), None);
        assert_eq!(FileFormat::guess("-"), None);
        assert_eq!(FileFormat::guess("data.txt"), None);
    }
}
