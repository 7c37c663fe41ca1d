//! How records are written: JSON lines, rows between tabs or commas, or the values alone as stanzas.

use std::io;

use bytes::Bytes;
use model::{Version, WallMillis};
use serde_json::{Map, Value as Json, json};

use super::arguments::ExportArguments;
use super::sink::Sink;
use crate::failure::CliError;
use crate::file_format::{EXPIRES, FileFormat};
use crate::input::unfit_stanza;
use crate::text::{bytes_json, shown};

/// How records are written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    format: FileFormat,
    header: bool,
    escapes: bool,
    with_siblings: bool,
    expires: bool,
}

impl Form {
    /// Checks the arguments.
    pub(super) fn new(arguments: &ExportArguments) -> Result<Form, CliError> {
        let format = match (arguments.format, arguments.file.as_deref()) {
            (None, None | Some("-")) => FileFormat::Jsonl,
            (given, file) => FileFormat::given_or_guessed(given, file.unwrap_or("-"))?,
        };
        if matches!(format, FileFormat::Voldemort | FileFormat::Parquet) {
            return Err(CliError::Usage(
                "Parquet and files of Voldemort are read, and never written; use tsv, csv or jsonl"
                    .to_owned(),
            ));
        }
        if arguments.escapes && format != FileFormat::Tsv {
            return Err(CliError::Usage(
                "--escapes applies only to tsv; the other formats have their own quoting".to_owned(),
            ));
        }
        if arguments.no_header && !matches!(format, FileFormat::Tsv | FileFormat::Csv) {
            return Err(CliError::Usage("--no-header applies only to tsv and csv".to_owned()));
        }
        Ok(Form {
            format,
            header: !arguments.no_header,
            escapes: arguments.escapes,
            with_siblings: arguments.with_siblings,
            expires: !arguments.no_expires,
        })
    }
}

/// Writes records.
pub(super) struct RowWriter {
    form: Form,
    output: Sink,
    row: Vec<u8>,
}

impl RowWriter {
    /// Begins with the header, if there is one.
    pub(super) fn new(form: Form, output: Sink) -> Result<Self, CliError> {
        let mut rows = RowWriter { form, output, row: Vec::new() };
        if form.header && matches!(form.format, FileFormat::Tsv | FileFormat::Csv) {
            let mut names: Vec<&[u8]> = vec![b"key", b"value"];
            names.extend(form.expires.then_some(EXPIRES.as_bytes()));
            rows.columns(&names)?;
        }
        Ok(rows)
    }

    /// Writes a record, unless nothing of it is live; returns whether it did.
    pub(super) fn write(
        &mut self,
        key: &Bytes,
        winner: &Version,
        live: &[&Version],
        now: WallMillis,
    ) -> Result<bool, CliError> {
        let shown: Vec<&Version> = if self.form.with_siblings {
            live.to_vec()
        } else {
            std::iter::once(winner).filter(|winner| winner.live(now).is_some()).collect()
        };
        if shown.is_empty() {
            return Ok(false);
        }
        if self.form.format == FileFormat::Jsonl {
            let line = self.json(key, &shown, now).to_string();
            self.put(&[line.as_bytes(), b"\n"])?;
            return Ok(true);
        }
        for version in shown {
            if let Some(value) = version.live(now) {
                self.row(key, value, version.expires)?;
            }
        }
        Ok(true)
    }

    /// Whether the time at which a value expires is written.
    pub(super) fn keeps_expiry(&self) -> bool {
        self.form.expires && self.form.format != FileFormat::Deb822
    }

    /// Hands everything to the system.
    pub(super) fn finish(&mut self) -> Result<(), CliError> {
        self.output.finish().map_err(CliError::io("cannot write the export"))
    }

    fn json(&self, key: &Bytes, shown: &[&Version], now: WallMillis) -> Json {
        let values = || shown.iter().filter_map(|version| version.live(now)).map(|value| bytes_json(value));
        let mut object = Map::new();
        object.insert("key".to_owned(), bytes_json(key));
        if self.form.with_siblings {
            object.insert("values".to_owned(), values().collect());
            let expires = || shown.iter().map(|version| version.expires.map(|at| at.0));
            if self.form.expires && expires().any(|at| at.is_some()) {
                object.insert(EXPIRES.to_owned(), expires().collect());
            }
        } else {
            object.insert("value".to_owned(), values().next().unwrap_or(Json::Null));
            if let Some(expires) = shown[0].expires.filter(|_| self.form.expires) {
                object.insert(EXPIRES.to_owned(), json!(expires.0));
            }
        }
        Json::Object(object)
    }

    fn row(&mut self, key: &[u8], value: &[u8], expires: Option<WallMillis>) -> Result<(), CliError> {
        if self.form.format == FileFormat::Deb822 {
            return self.stanza(key, value);
        }
        let expires = expires.map(|at| at.0.to_string()).unwrap_or_default();
        let columns = [key, value, expires.as_bytes()];
        self.columns(if self.form.expires { &columns } else { &columns[..2] })
    }

    /// The first column is the key.
    fn columns(&mut self, columns: &[&[u8]]) -> Result<(), CliError> {
        match self.form.format {
            FileFormat::Csv => {
                let mut writer = csv::Writer::from_writer(std::mem::take(&mut self.row));
                writer.write_record(columns).map_err(|error| CliError::Other(error.to_string()))?;
                let mut row = writer.into_inner().map_err(|error| CliError::Other(error.to_string()))?;
                self.put(&[&row])?;
                row.clear();
                self.row = row;
                Ok(())
            }
            FileFormat::Tsv if self.form.escapes => {
                let columns: Vec<Vec<u8>> = columns.iter().map(|column| escape(column)).collect();
                self.put(&[&columns.join(&b'\t'), b"\n"])
            }
            FileFormat::Tsv => {
                let mut bytes = columns.iter().copied().flatten();
                if let Some(byte) = bytes.find(|byte| matches!(byte, b'\t' | b'\n' | b'\r')) {
                    let what = format!("contains {}", [*byte].escape_ascii());
                    return Err(unfit(columns[0], &what, "--escapes"));
                }
                self.put(&[&columns.join(&b'\t'), b"\n"])
            }
            FileFormat::Jsonl | FileFormat::Deb822 | FileFormat::Parquet | FileFormat::Voldemort => {
                unreachable!("written without columns")
            }
        }
    }

    fn stanza(&mut self, key: &[u8], value: &[u8]) -> Result<(), CliError> {
        if let Some(reason) = unfit_stanza(value) {
            return Err(unfit(key, &format!("is not a deb822 stanza ({reason})"), "--format jsonl"));
        }
        let end: &[u8] = if value.ends_with(b"\n") { b"\n" } else { b"\n\n" };
        self.put(&[value, end])
    }

    fn put(&mut self, parts: &[&[u8]]) -> Result<(), CliError> {
        let written: io::Result<()> = parts.iter().try_for_each(|part| self.output.put(part));
        written.map_err(CliError::io("cannot write the export"))
    }
}

fn unfit(key: &[u8], what: &str, instead: &str) -> CliError {
    CliError::Other(format!(
        "the record of key {:?} {what}, which this format cannot hold; use {instead}",
        shown(key)
    ))
}

fn escape(field: &[u8]) -> Vec<u8> {
    let mut escaped = Vec::with_capacity(field.len());
    for &byte in field {
        match byte {
            b'\t' => escaped.extend_from_slice(b"\\t"),
            b'\n' => escaped.extend_from_slice(b"\\n"),
            b'\r' => escaped.extend_from_slice(b"\\r"),
            b'\\' => escaped.extend_from_slice(b"\\\\"),
            other => escaped.push(other),
        }
    }
    escaped
}
