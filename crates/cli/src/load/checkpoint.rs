//! How far a load has come, kept in a file beside the input so that `--resume` can go on there.
//!
//! The checkpoint names the input by size, time of change and a hash of its beginning, and the way it was read: a
//! load never goes on in a file that is another one now. A checkpoint that is too old only repeats puts.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use model::Token;
use serde::{Deserialize, Serialize};

use super::arguments::LoadArguments;
use crate::failure::CliError;
use crate::input::{Position, Source};

/// Bytes at the beginning of the input that are hashed.
const PREFIX_BYTES: u64 = 64 * 1024;
/// Appended to the input's name.
const SUFFIX: &str = ".tontine-load";

/// What identifies an input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Identity {
    /// Size in bytes.
    bytes: u64,
    /// Time of the last change in nanoseconds since 1970, in base 10: JSON numbers are too small.
    changed_ns: String,
    /// Hash of the first 64 KiB, in base 16.
    prefix: String,
}

/// What the file holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Document {
    input: Identity,
    /// How the input is read, and where its records go.
    load: String,
    /// Everything before it is acknowledged.
    acknowledged: Position,
}

/// The checkpoint of one load.
#[derive(Clone, Debug)]
pub(super) struct Checkpoint {
    path: PathBuf,
    document: Document,
}

impl Checkpoint {
    /// The checkpoint of a load that begins or goes on; `None` for an input that cannot be read twice.
    pub(super) fn prepare(
        source: &Source,
        arguments: &LoadArguments,
        load: String,
    ) -> Result<Option<Checkpoint>, CliError> {
        let Source::File(input) = source else { return Ok(None) };
        let path = arguments.checkpoint.clone().unwrap_or_else(|| beside(input));
        let identity = identify(input).map_err(CliError::io(format!("cannot read {}", input.display())))?;
        let Some(identity) = identity else {
            if arguments.resume {
                return Err(format!("cannot resume {}: it is not a regular file", input.display()).into());
            }
            return Ok(None);
        };
        let fresh = Document { input: identity, load, acknowledged: Position::default() };
        let found = read(&path)?;
        let document = match (found, arguments.resume) {
            (Some(found), true) => go_on(found?, fresh, &path)?,
            (None, true) => {
                say!("found no checkpoint {}: starting from the beginning", path.display());
                fresh
            }
            (Some(Ok(found)), false) if found.input == fresh.input && found.load == fresh.load => {
                say!(
                    "starting from the beginning; to continue at line {} instead, add --resume",
                    found.acknowledged.line + 1
                );
                fresh
            }
            (_, false) => fresh,
        };
        Ok(Some(Checkpoint { path, document }))
    }

    /// Writes the file for the first time, so that it is known now rather than when it is needed that it can be.
    pub(super) fn begin(&self) -> Result<(), CliError> {
        self.save(self.start()).map_err(|error| CliError::Io {
            what: format!(
                "cannot write the checkpoint {} (choose another place with --checkpoint FILE)",
                self.path.display()
            ),
            error,
        })
    }

    /// Where the load goes on.
    pub(super) fn start(&self) -> Position {
        self.document.acknowledged
    }

    /// Its file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the file, whole or not at all.
    pub(super) fn save(&self, acknowledged: Position) -> std::io::Result<()> {
        let document = Document { acknowledged, ..self.document.clone() };
        let text = serde_json::to_vec_pretty(&document).expect("a checkpoint is plain data");
        let mut name = self.path.as_os_str().to_owned();
        name.push(".new");
        let new = PathBuf::from(name);
        let mut file = File::create(&new)?;
        file.write_all(&text)?;
        file.sync_all()?;
        std::fs::rename(&new, &self.path)
    }

    /// Removes the file: everything is loaded.
    pub(super) fn remove(&self) -> std::io::Result<()> {
        std::fs::remove_file(&self.path)
    }
}

fn beside(input: &Path) -> PathBuf {
    let mut name = input.as_os_str().to_owned();
    name.push(SUFFIX);
    name.into()
}

fn read(path: &Path) -> Result<Option<Result<Document, CliError>>, CliError> {
    match std::fs::read(path) {
        Ok(text) => Ok(Some(serde_json::from_slice(&text).map_err(|error| {
            format!("{} is not a valid checkpoint: {error}; load the file without --resume", path.display())
                .into()
        }))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(CliError::io(format!("cannot read the checkpoint {}", path.display()))(error)),
    }
}

fn go_on(found: Document, fresh: Document, path: &Path) -> Result<Document, CliError> {
    let what = if found.input != fresh.input {
        let (then, now) = (&found.input, &fresh.input);
        if then.bytes != now.bytes {
            format!("the file had {} bytes and now has {}", then.bytes, now.bytes)
        } else if then.prefix != now.prefix {
            "the beginning of the file has changed".to_owned()
        } else {
            "the file has changed since".to_owned()
        }
    } else if found.load != fresh.load {
        format!("the earlier load read {}, and this one reads {}", found.load, fresh.load)
    } else {
        return Ok(found);
    };
    Err(format!(
        "cannot resume from the checkpoint {}: {what}; load the file without --resume",
        path.display()
    )
    .into())
}

/// What identifies the file; `None` when it is not a regular one.
fn identify(path: &Path) -> std::io::Result<Option<Identity>> {
    let facts = std::fs::metadata(path)?;
    if !facts.is_file() {
        return Ok(None);
    }
    let mut prefix = Vec::new();
    File::open(path)?.take(PREFIX_BYTES).read_to_end(&mut prefix)?;
    let changed = facts.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(Some(Identity {
        bytes: facts.len(),
        changed_ns: changed.as_nanos().to_string(),
        prefix: format!("{:016x}", Token::of(&prefix).0),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(bytes: u64, prefix: &str, load: &str) -> Document {
        let input = Identity { bytes, changed_ns: "1".to_owned(), prefix: prefix.to_owned() };
        Document { input, load: load.to_owned(), acknowledged: Position::default() }
    }

    #[test]
    fn another_file_or_another_way_of_reading_it_is_refused() {
        let check = |found: Document, expected: &str| {
            let fresh = document(10, "aa", "one way");
            let refusal = go_on(found, fresh, Path::new("x")).unwrap_err().to_string();
            assert!(refusal.contains(expected), "{refusal}");
        };
        check(document(9, "aa", "one way"), "had 9 bytes and now has 10");
        check(document(10, "bb", "one way"), "the beginning of the file has changed");
        check(document(10, "aa", "another way"), "the earlier load read another way");
        assert!(go_on(document(10, "aa", "w"), document(10, "aa", "w"), Path::new("x")).is_ok());
    }

    #[test]
    fn a_checkpoint_is_found_again_as_it_was_saved() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoint = Checkpoint { path: folder.path().join("c"), document: document(10, "aa", "w") };
        checkpoint.save(Position { byte: 7, line: 3 }).unwrap();
        let found = read(&checkpoint.path).unwrap().unwrap().unwrap();
        assert_eq!(found.acknowledged, Position { byte: 7, line: 3 });
        std::fs::write(&checkpoint.path, "{").unwrap();
        assert!(read(&checkpoint.path).unwrap().unwrap().is_err());
    }
}
