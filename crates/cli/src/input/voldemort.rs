//! The files of a read-only store of Voldemort, in its format ro2, which keeps keys.
//!
//! ```text
//! <master partition>_<replica>_<chunk>.index    hash (8 bytes), place in the data (4)
//! <master partition>_<replica>_<chunk>.data     count (2), then as often: key's length (4), value's (4), key, value
//! ```
//!
//! Numbers are big endian. Every replica has all records of its partitions, so only replica 0 is read.
//! Checksums in `.metadata` are over whole files and are not compared; lengths and places are.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use model::limits::VALUE_BYTES_MAX;
use model::{Key, limits::KEY_BYTES_MAX};
use serde_json::Value as Json;

use crate::failure::CliError;

/// Bytes of an entry of an index.
const ENTRY_BYTES: usize = 12;
/// Bytes read from a file at a time.
const READ_BYTES: usize = 256 * 1024;

/// Reads the records of one directory.
pub(crate) struct VoldemortReader {
    /// Data files that are to be read yet, the next one last.
    files: Vec<PathBuf>,
    open: Option<Open>,
    /// Records so far.
    records: u64,
    /// Bytes of data so far.
    bytes: u64,
}

/// A data file and its index.
struct Open {
    path: PathBuf,
    index: BufReader<File>,
    data: BufReader<File>,
    place: u64,
    /// Records that are left of the current place: keys whose hashes are equal share one.
    left: u16,
}

impl VoldemortReader {
    /// For the version of a store that lies in a directory.
    pub(crate) fn open(directory: &str) -> Result<VoldemortReader, CliError> {
        let folder = Path::new(directory);
        let listed = std::fs::read_dir(folder)
            .and_then(|entries| {
                entries.map(|entry| entry.map(|entry| entry.file_name())).collect::<Result<Vec<_>, _>>()
            })
            .map_err(CliError::io(format!("cannot read {directory}")))?;
        refuse_other_formats(folder, directory)?;
        let mut files = Vec::new();
        for name in listed.iter().filter_map(|name| name.to_str()) {
            if name.ends_with(".gz") {
                return Err(CliError::Other(format!(
                    "{directory}/{name} is compressed; unpack it with gunzip first"
                )));
            }
            let Some(stem) = name.strip_suffix(".data") else { continue };
            let parts: Vec<Option<u32>> = stem.split('_').map(|part| part.parse().ok()).collect();
            match parts[..] {
                [Some(_), Some(0), Some(_)] => files.push(folder.join(name)),
                [Some(_), Some(_), Some(_)] => {}
                [Some(_)] | [Some(_), Some(_)] => return Err(no_keys(directory, "ro0 or ro1")),
                _ => {}
            }
        }
        if files.is_empty() {
            return Err(CliError::Other(format!(
                "{directory} holds no data of replica 0 (files such as 3_0_0.data). Name the directory of one version, such \
                 as {directory}/version-7"
            )));
        }
        files.sort_unstable_by(|a, b| b.cmp(a));
        Ok(VoldemortReader { files, open: None, records: 0, bytes: 0 })
    }

    /// The next record.
    pub(crate) fn next(&mut self) -> Result<Option<(Bytes, Bytes)>, CliError> {
        loop {
            let Some(open) = &mut self.open else {
                let Some(path) = self.files.pop() else { return Ok(None) };
                self.open = Some(Open::new(path)?);
                continue;
            };
            if let Some(record) = open.next()? {
                self.records += 1;
                self.bytes += (8 + record.0.len() + record.1.len()) as u64;
                return Ok(Some(record));
            }
            self.open = None;
        }
    }

    /// Number of the last record, counted from 1.
    pub(crate) fn number(&self) -> u64 {
        self.records
    }

    /// Bytes read so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Open {
    fn new(path: PathBuf) -> Result<Open, CliError> {
        let open = |path: &Path| {
            let file = File::open(path).map_err(CliError::io(format!("cannot read {}", path.display())))?;
            Ok::<_, CliError>(BufReader::with_capacity(READ_BYTES, file))
        };
        Ok(Open { index: open(&path.with_extension("index"))?, data: open(&path)?, path, place: 0, left: 0 })
    }

    fn next(&mut self) -> Result<Option<(Bytes, Bytes)>, CliError> {
        if self.left == 0 {
            let mut entry = [0; ENTRY_BYTES];
            if self.ends()? {
                return Ok(None);
            }
            self.index.read_exact(&mut entry).map_err(|_| self.damaged("its index ends too early"))?;
            let [.., a, b, c, d] = entry;
            if u64::from(u32::from_be_bytes([a, b, c, d])) != self.place {
                return Err(self.damaged("its index names another place"));
            }
            self.left = u16::from_be_bytes(self.take()?);
            if !(1..=i16::MAX as u16).contains(&self.left) {
                return Err(self.damaged("it has no records at a place"));
            }
        }
        self.left -= 1;
        let key_bytes = u32::from_be_bytes(self.take()?) as usize;
        let value_bytes = u32::from_be_bytes(self.take()?) as usize;
        if key_bytes > KEY_BYTES_MAX || value_bytes > VALUE_BYTES_MAX {
            return Err(self.damaged(&format!(
                "a record has {key_bytes} bytes of key and {value_bytes} of value, over the limits of {KEY_BYTES_MAX} and \
                 {VALUE_BYTES_MAX}"
            )));
        }
        let (key, value) = (self.bytes(key_bytes)?, self.bytes(value_bytes)?);
        Key::check(&key).map_err(|error| self.damaged(&error.to_string()))?;
        Ok(Some((key, value)))
    }

    /// Whether nothing is left, of the data and of the index.
    fn ends(&mut self) -> Result<bool, CliError> {
        let failed = |error| CliError::io(format!("cannot read {}", self.path.display()))(error);
        let rest = |file: &mut BufReader<File>| file.fill_buf().map(|rest| !rest.is_empty());
        match (rest(&mut self.index).map_err(failed)?, rest(&mut self.data).map_err(failed)?) {
            (false, true) => Err(self.damaged("its index ends too early")),
            (more, _) => Ok(!more),
        }
    }

    fn take<const COUNT: usize>(&mut self) -> Result<[u8; COUNT], CliError> {
        let mut bytes = [0; COUNT];
        self.data.read_exact(&mut bytes).map_err(|_| self.damaged("it ends within a record"))?;
        self.place += COUNT as u64;
        Ok(bytes)
    }

    fn bytes(&mut self, count: usize) -> Result<Bytes, CliError> {
        let mut bytes = vec![0; count];
        self.data.read_exact(&mut bytes).map_err(|_| self.damaged("it ends within a record"))?;
        self.place += count as u64;
        Ok(bytes.into())
    }

    fn damaged(&self, what: &str) -> CliError {
        let (path, place) = (self.path.display(), self.place);
        CliError::Other(format!(
            "{path} at byte {place}: {what}. Copy it again from Voldemort, or build it again there"
        ))
    }
}

/// The formats of the paper keep hashes of keys only.
fn no_keys(directory: &str, format: &str) -> CliError {
    CliError::Other(format!(
        "{directory} has format {format}, which keeps MD5 digests instead of keys, and without its bytes a key has no \
         place on a ring. Build from what the store was built from, or let Voldemort build it in format ro2"
    ))
}

fn refuse_other_formats(folder: &Path, directory: &str) -> Result<(), CliError> {
    let path = folder.join(".metadata");
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        // Voldemort takes such a directory for ro2, too.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(CliError::io(format!("cannot read {}", path.display()))(error)),
    };
    let metadata: Json = serde_json::from_str(&text)
        .map_err(|error| CliError::Other(format!("{} is no JSON: {error}", path.display())))?;
    match metadata["format"].as_str() {
        Some("ro2") => Ok(()),
        Some(other @ ("ro0" | "ro1")) => Err(no_keys(directory, other)),
        other => Err(CliError::Other(format!("{} names format {other:?}, not ro2", path.display()))),
    }
}
