//! Makes a chunk of the parent's chunk and a delta. Builders and nodes do the same here, so they get the same bytes.
//!
//! Records that the delta does not name are copied as they are stored, so no version of a compressor can change them.
//!
//! Must never: hand out a chunk that is not the one that the manifest names.

use std::cmp::Ordering;
use std::sync::Arc;

use runtime::{Disk, File};
use thiserror::Error;

use super::chunk_writer::{ChunkWriter, Finished, WriteError};
use super::coding::value_bytes;
use super::format::Digest;
use super::lineage::DeltaEntry;
use super::manifest::{ChunkEntry, TokenHash};
use super::stream::{Broken, Item, Stream};

/// Why a chunk cannot be made of the parent's chunk and a delta.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MergeError {
    /// The parent's chunk is not what it was.
    #[error("chunk {chunk} of the parent cannot be read: {what}")]
    Parent {
        /// The chunk.
        chunk: Digest,
        /// What is wrong.
        what: String,
    },
    /// The delta is not what the manifest says, or is for another chunk.
    #[error("delta {delta} cannot be used: {what}")]
    Delta {
        /// The delta.
        delta: Digest,
        /// What is wrong.
        what: String,
    },
    /// Another chunk came of it than the manifest names.
    #[error("delta {delta} makes chunk {made} instead of {wanted}")]
    Differs {
        /// The delta.
        delta: Digest,
        /// What came of it.
        made: Digest,
        /// What the manifest names.
        wanted: Digest,
    },
    /// What comes of it cannot be written.
    #[error("{0}")]
    Write(#[from] WriteError),
}

/// A parent's chunk and a delta that are open.
pub struct MergeInputs {
    /// The parent's chunk.
    pub parent: Arc<dyn File>,
    /// The delta.
    pub delta: Arc<dyn File>,
}

/// Makes a chunk at a path that is free, and removes it if it is not the one that the manifest names. Waits for the disk.
///
/// # Errors
/// See [`MergeError`]. What else was begun at paths that begin with this one may be removed.
pub fn merge(
    disk: &Arc<dyn Disk>,
    path: &str,
    inputs: MergeInputs,
    hash: TokenHash,
    (wanted, delta): (&ChunkEntry, &DeltaEntry),
) -> Result<Finished, MergeError> {
    let made = apply(disk, path, inputs, hash, delta)?;
    if made.entry == *wanted {
        return Ok(made);
    }
    disk.remove(&made.path).map_err(WriteError::Disk)?;
    let (delta, made, wanted) = (delta.digest, made.entry.digest, wanted.digest);
    Err(MergeError::Differs { delta, made, wanted })
}

/// Makes whatever chunk comes of it.
pub(super) fn apply(
    disk: &Arc<dyn Disk>,
    path: &str,
    inputs: MergeInputs,
    hash: TokenHash,
    entry: &DeltaEntry,
) -> Result<Finished, MergeError> {
    let of_parent = |Broken(what)| MergeError::Parent { chunk: entry.parent, what };
    let of_delta = |Broken(what)| MergeError::Delta { delta: entry.digest, what };
    let (mut parent, footer) = Stream::of_chunk(inputs.parent, hash).map_err(of_parent)?;
    let (mut delta, said) = Stream::of_delta(inputs.delta, hash).map_err(of_delta)?;
    if (said.parent, said.puts, said.deletes) != (entry.parent, entry.puts, entry.deletes) {
        return Err(of_delta(Broken("it and the manifest contradict each other".to_owned())));
    }
    if said.slice != footer.slice {
        return Err(of_delta(Broken("it is for another slice than the parent's chunk".to_owned())));
    }
    let mut writer = ChunkWriter::like(disk.clone(), path, &footer)?;
    loop {
        let order = match (parent.current(), delta.current()) {
            (None, None) => break,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(old), Some(new)) => (old.token, old.key).cmp(&(new.token, new.key)),
        };
        if order.is_lt() {
            parent.current().map_or(Ok(()), |item| add(&mut writer, &item, entry))?;
            parent.advance().map_err(of_parent)?;
            continue;
        }
        let change = delta.current().expect("it is not at its end");
        if change.sealed.is_none() && order.is_gt() {
            return Err(of_delta(Broken("it deletes a key that is not there".to_owned())));
        }
        add(&mut writer, &change, entry)?;
        delta.advance().map_err(of_delta)?;
        if order.is_eq() {
            parent.advance().map_err(of_parent)?;
        }
    }
    Ok(writer.finish(footer.slice.last)?)
}

/// A record goes on, unless it deletes its key.
fn add(writer: &mut ChunkWriter, item: &Item<'_>, entry: &DeltaEntry) -> Result<(), MergeError> {
    let Some((coding, stored)) = item.sealed else { return Ok(()) };
    let bytes = value_bytes(coding, stored).ok_or_else(|| MergeError::Delta {
        delta: entry.digest,
        what: "a value is too short for its compression".to_owned(),
    })?;
    Ok(writer.add_sealed(item.token, item.key, (coding, stored), bytes)?)
}
