//! How a file is read: its format and its columns, checked before anything is opened.

use super::arguments::ReadArguments;
use crate::failure::CliError;
use crate::file_format::{EXPIRES, FileFormat};

/// A column of a delimited file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Column {
    /// Counted from 0.
    Number(usize),
    /// As the header names it.
    Name(String),
}

impl std::fmt::Display for Column {
    /// As people count and name them.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Column::Number(number) => write!(f, "column {}", number + 1),
            Column::Name(name) => write!(f, "column {name:?}"),
        }
    }
}

impl Column {
    fn parse(text: &str) -> Column {
        match text.parse::<usize>() {
            Ok(number) if number >= 1 => Column::Number(number - 1),
            _ => Column::Name(text.to_owned()),
        }
    }
}

/// How a file is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReadSettings {
    /// tsv and csv.
    Delimited {
        /// Commas and quotes, or tabs.
        csv: bool,
        /// Which columns are wanted.
        columns: Wanted<Column, Column>,
        /// Whether the first line names the columns.
        header: bool,
        /// Whether backslashes escape.
        escapes: bool,
        /// What separates two columns.
        delimiter: u8,
    },
    /// jsonl.
    Jsonl(Fields),
    /// deb822.
    Deb822(Fields),
    /// Parquet.
    #[cfg(feature = "parquet")]
    Parquet(super::parquet::ParquetColumns),
}

/// Where a record's parts are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted<Part, ValuePart> {
    /// Where the key is.
    pub(crate) key: Part,
    /// Where the value is.
    pub(crate) value: ValuePart,
    /// Where the time of its expiry is.
    pub(crate) expires: Expires<Part>,
}

/// Parts by the names of their fields; the value is the whole record if it has none.
pub(crate) type Fields = Wanted<String, Option<String>>;

/// Where the time of a value's expiry is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expires<Part> {
    /// Nowhere: values live for ever.
    Never,
    /// There, if the file has such a part: as an export writes it.
    IfThere(Part),
    /// There.
    There(Part),
}

impl<Part> Expires<Part> {
    /// The part to look for, if any.
    pub(crate) fn part(&self) -> Option<&Part> {
        match self {
            Expires::Never => None,
            Expires::IfThere(part) | Expires::There(part) => Some(part),
        }
    }

    fn map<Other>(self, other: impl FnOnce(Part) -> Other) -> Expires<Other> {
        match self {
            Expires::Never => Expires::Never,
            Expires::IfThere(part) => Expires::IfThere(other(part)),
            Expires::There(part) => Expires::There(other(part)),
        }
    }
}

/// Where expiry is unless the command says so. Only what is named as an export names it is taken for an export: a
/// column that happens to have the name must not make other data vanish.
pub(crate) fn expires_of_export(arguments: &ReadArguments) -> Expires<String> {
    if arguments.key.as_deref() == Some("key") && arguments.value.as_deref() == Some("value") {
        return Expires::IfThere(EXPIRES.to_owned());
    }
    Expires::Never
}

impl ReadSettings {
    /// Checks the arguments for a file of this name.
    pub(crate) fn new(
        file: &str,
        arguments: &ReadArguments,
        expires: Expires<String>,
    ) -> Result<ReadSettings, CliError> {
        let format = FileFormat::given_or_guessed(arguments.format, file)?;
        let delimited = matches!(format, FileFormat::Tsv | FileFormat::Csv);
        if !delimited && (arguments.header || arguments.no_header) {
            return Err(CliError::Usage("--header and --no-header apply only to tsv and csv".to_owned()));
        }
        if !delimited && arguments.delimiter.is_some() {
            return Err(CliError::Usage("--delimiter applies only to tsv and csv".to_owned()));
        }
        if arguments.escapes && format != FileFormat::Tsv {
            return Err(CliError::Usage(
                "--escapes applies only to tsv; the other formats have their own quoting".to_owned(),
            ));
        }
        let (key, value) = (key_of(arguments)?.to_owned(), arguments.value.clone());
        let fields = Wanted { key, value, expires: expires.clone() };
        match format {
            FileFormat::Jsonl => Ok(ReadSettings::Jsonl(fields)),
            FileFormat::Deb822 => Ok(ReadSettings::Deb822(fields)),
            FileFormat::Parquet => parquet_settings(fields),
            FileFormat::Voldemort => Err(CliError::Usage(
                "--format voldemort is read by `tontine artifact build` only, because an artifact is what it becomes"
                    .to_owned(),
            )),
            FileFormat::Tsv | FileFormat::Csv => {
                delimited_settings(arguments, expires, format == FileFormat::Csv)
            }
        }
    }

    /// The same of a file of which only the keys count. It needs no column or field with a value.
    pub(crate) fn of_keys(file: &str, arguments: &ReadArguments) -> Result<ReadSettings, CliError> {
        let format = FileFormat::given_or_guessed(arguments.format, file)?;
        let delimited = matches!(format, FileFormat::Tsv | FileFormat::Csv);
        // A value by name says that the files have headers.
        let named = matches!(arguments.value.as_deref().map(Column::parse), Some(Column::Name(_)));
        let header = arguments.header || (delimited && named && !arguments.no_header);
        let arguments = ReadArguments { value: arguments.key.clone(), header, ..arguments.clone() };
        ReadSettings::new(file, &arguments, Expires::Never)
    }

    /// What must stay the same between a load and its resumption.
    pub(crate) fn describe(&self, cluster: &str, store: &str) -> String {
        let read = match self {
            ReadSettings::Delimited { csv, columns, header, escapes, delimiter } => {
                let usual = if *csv { b',' } else { b'\t' };
                let between = match delimiter {
                    byte if *byte == usual => String::new(),
                    byte => format!(" between {:?}", char::from(*byte)),
                };
                let format = if *csv { "csv" } else { "tsv" };
                let header = if *header { "with a header" } else { "without a header" };
                let escapes = if *escapes { ", with escapes" } else { "" };
                let value = columns.value.to_string();
                format!(
                    "{format}{between} {header}{escapes}, {}",
                    parts(&columns.key, &value, &columns.expires)
                )
            }
            ReadSettings::Jsonl(fields) => format!("jsonl, {}", fields.describe()),
            ReadSettings::Deb822(fields) => format!("deb822, {}", fields.describe()),
            #[cfg(feature = "parquet")]
            ReadSettings::Parquet(columns) => {
                format!("parquet, keys from {:?}, values from {:?}", columns.key, columns.value)
            }
        };
        format!("{read}, into store {store:?} of cluster {cluster:?}")
    }
}

impl Fields {
    fn describe(&self) -> String {
        let value =
            self.value.as_deref().map_or_else(|| "the whole record".to_owned(), |name| format!("{name:?}"));
        parts(&format!("{:?}", self.key), &value, &self.expires.clone().map(|name| format!("{name:?}")))
    }
}

/// Where a record's parts are, in words.
fn parts<Part: std::fmt::Display>(key: &Part, value: &str, expires: &Expires<Part>) -> String {
    let expires = match expires {
        Expires::Never => String::new(),
        Expires::IfThere(part) => format!(", expiry from {part} if it is there"),
        Expires::There(part) => format!(", expiry from {part}"),
    };
    format!("keys from {key}, values from {value}{expires}")
}

fn key_of(arguments: &ReadArguments) -> Result<&str, CliError> {
    arguments.key.as_deref().ok_or_else(|| {
        CliError::Usage("name the column or field that holds the key: add --key COLUMN".to_owned())
    })
}

#[cfg(feature = "parquet")]
fn parquet_settings(Wanted { key, value, expires }: Fields) -> Result<ReadSettings, CliError> {
    let Some(value) = value else {
        let what = "parquet needs the column that holds the value: add --value COLUMN";
        return Err(CliError::Usage(what.to_owned()));
    };
    if let Expires::There(_) = expires {
        return Err(CliError::Usage("of Parquet no expiry is read; leave out --expires".to_owned()));
    }
    Ok(ReadSettings::Parquet(super::parquet::ParquetColumns { key, value }))
}

#[cfg(not(feature = "parquet"))]
fn parquet_settings(_: Fields) -> Result<ReadSettings, CliError> {
    Err(CliError::Other(
        "this program was built without Parquet; build it with `cargo build --release -p cli --features parquet`, or \
         convert the file to tsv, csv or jsonl"
            .to_owned(),
    ))
}

fn delimited_settings(
    arguments: &ReadArguments,
    expires: Expires<String>,
    csv: bool,
) -> Result<ReadSettings, CliError> {
    let Some(value) = &arguments.value else {
        return Err(CliError::Usage(
            "tsv and csv need the column that holds the value: add --value COLUMN".to_owned(),
        ));
    };
    let (key, value) = (Column::parse(key_of(arguments)?), Column::parse(value));
    let expires = expires.map(|column| Column::parse(&column));
    let named = [Some(&key), Some(&value), expires.part()].into_iter().find_map(|column| match column {
        Some(Column::Name(name)) => Some(name),
        _ => None,
    });
    if let (Some(name), true) = (named, arguments.no_header) {
        return Err(format!(
            "--no-header leaves column {name:?} without a name; give its number, counted from 1"
        )
        .into());
    }
    let header = arguments.header || named.is_some();
    let columns = Wanted { key, value, expires };
    let delimiter = arguments.delimiter.unwrap_or(if csv { b',' } else { b'\t' });
    Ok(ReadSettings::Delimited { csv, columns, header, escapes: arguments.escapes, delimiter })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_positions_and_zero_is_a_name() {
        assert_eq!(Column::parse("1"), Column::Number(0));
        assert_eq!(Column::parse("0"), Column::Name("0".to_owned()));
        assert_eq!(Column::parse("id"), Column::Name("id".to_owned()));
    }
}
