//! How records are written: JSON lines, rows between tabs or commas, or the values alone as stanzas.

use std::io::{self, Write};

use bytes::Bytes;
use model::{Version, WallMillis};
use serde_json::{Map, Value as Json, json};

use super::ExportArguments;
use crate::failure::CliError;
use crate::load::FileFormat;
use crate::output::{bytes_json, shown};

/// How records are written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    format: FileFormat,
    header: bool,
    escapes: bool,
    with_siblings: bool,
}

impl Form {
    /// Checks the arguments.
    pub(super) fn new(arguments: &ExportArguments) -> Result<Form, CliError> {
        let format = match (arguments.format, arguments.file.as_deref()) {
            (None, None | Some("-")) => FileFormat::Jsonl,
            (given, file) => FileFormat::given_or_guessed(given, file.unwrap_or("-"))?,
        };
        if arguments.escapes && format != FileFormat::Tsv {
            return Err(CliError::Usage(
                "--escapes is for tsv; the other formats have their own quoting".to_owned(),
            ));
        }
        if arguments.no_header && !matches!(format, FileFormat::Tsv | FileFormat::Csv) {
            return Err(CliError::Usage("--no-header is for tsv and csv".to_owned()));
        }
        Ok(Form {
            format,
            header: !arguments.no_header,
            escapes: arguments.escapes,
            with_siblings: arguments.with_siblings,
        })
    }
}

/// Writes records.
pub(super) struct RowWriter {
    form: Form,
    output: Box<dyn Write>,
    row: Vec<u8>,
}

impl RowWriter {
    /// Begins with the header, if there is one.
    pub(super) fn new(form: Form, output: Box<dyn Write>) -> Result<Self, CliError> {
        let mut rows = RowWriter { form, output, row: Vec::new() };
        if form.header && matches!(form.format, FileFormat::Tsv | FileFormat::Csv) {
            rows.row(b"key", b"value")?;
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
        for value in shown.iter().filter_map(|version| version.live(now)) {
            self.row(key, value)?;
        }
        Ok(true)
    }

    /// Hands everything to the system.
    pub(super) fn finish(mut self) -> Result<(), CliError> {
        self.output.flush().map_err(CliError::io("cannot write the export"))
    }

    fn json(&self, key: &Bytes, shown: &[&Version], now: WallMillis) -> Json {
        let values = || shown.iter().filter_map(|version| version.live(now)).map(|value| bytes_json(value));
        let mut object = Map::new();
        object.insert("key".to_owned(), bytes_json(key));
        if self.form.with_siblings {
            object.insert("values".to_owned(), values().collect());
        } else {
            object.insert("value".to_owned(), values().next().unwrap_or(Json::Null));
            if let Some(expires) = shown[0].expires {
                object.insert("expires_ms".to_owned(), json!(expires.0));
            }
        }
        Json::Object(object)
    }

    fn row(&mut self, key: &[u8], value: &[u8]) -> Result<(), CliError> {
        match self.form.format {
            FileFormat::Csv => {
                let mut writer = csv::Writer::from_writer(std::mem::take(&mut self.row));
                writer.write_record([key, value]).map_err(|error| CliError::Other(error.to_string()))?;
                let mut row = writer.into_inner().map_err(|error| CliError::Other(error.to_string()))?;
                self.put(&[&row])?;
                row.clear();
                self.row = row;
                Ok(())
            }
            FileFormat::Tsv if self.form.escapes => {
                let (key, value) = (escape(key), escape(value));
                self.put(&[&key, b"\t", &value, b"\n"])
            }
            FileFormat::Tsv => {
                if let Some(byte) = key.iter().chain(value).find(|byte| matches!(byte, b'\t' | b'\n' | b'\r'))
                {
                    let byte = [*byte];
                    return Err(unfit(key, &format!("has a {} in it", byte.escape_ascii()), "--escapes"));
                }
                self.put(&[key, b"\t", value, b"\n"])
            }
            FileFormat::Deb822 => {
                if value.is_empty() || value.split(|&byte| byte == b'\n').rev().skip(1).any(is_blank) {
                    return Err(unfit(
                        key,
                        "is no stanza: it is empty or has a blank line",
                        "--format jsonl",
                    ));
                }
                let end: &[u8] = if value.ends_with(b"\n") { b"\n" } else { b"\n\n" };
                self.put(&[value, end])
            }
            FileFormat::Jsonl => unreachable!("written as an object"),
        }
    }

    fn put(&mut self, parts: &[&[u8]]) -> Result<(), CliError> {
        let written: io::Result<()> = parts.iter().try_for_each(|part| self.output.write_all(part));
        written.map_err(CliError::io("cannot write the export"))
    }
}

fn is_blank(line: &[u8]) -> bool {
    line.iter().all(u8::is_ascii_whitespace)
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
