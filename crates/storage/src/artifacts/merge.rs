//! Makes a chunk of the parent's chunk and a delta. Builders and nodes do the same here, so they get the same bytes.
//!
//! Records that the delta does not name are copied as they are stored, so no version of a compressor can change them.
//!
//! Must never: hand out a chunk that is not the one that the manifest names.

use std::cmp::Ordering;
use std::sync::Arc;

use model::Token;
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

/// A chunk that is being made.
pub struct Merge {
    disk: Arc<dyn Disk>,
    parent: Stream,
    delta: Stream,
    writer: ChunkWriter,
    by: DeltaEntry,
    /// Where the slice ends.
    last: Token,
    /// Bytes of stored records that went through.
    done: u64,
}

impl Merge {
    /// Begins a chunk at a path that is free. Waits for the disk, as all of it does.
    ///
    /// # Errors
    /// When the parent's chunk and the delta do not belong together, or cannot be read.
    pub fn begin(
        disk: &Arc<dyn Disk>,
        path: &str,
        inputs: MergeInputs,
        hash: TokenHash,
        by: &DeltaEntry,
    ) -> Result<Merge, MergeError> {
        let of_delta = |broken| of_delta(by, broken);
        let (parent, footer) =
            Stream::of_chunk(inputs.parent, hash).map_err(|broken| of_parent(by, broken))?;
        let (delta, said) = Stream::of_delta(inputs.delta, hash).map_err(of_delta)?;
        if (said.parent, said.puts, said.deletes) != (by.parent, by.puts, by.deletes) {
            return Err(of_delta(Broken("it and the manifest contradict each other".to_owned())));
        }
        if said.slice != footer.slice {
            return Err(of_delta(Broken("it is for another slice than the parent's chunk".to_owned())));
        }
        let writer = ChunkWriter::like(disk.clone(), path, &footer)?;
        let (disk, last) = (disk.clone(), footer.slice.last);
        Ok(Merge { disk, parent, delta, writer, by: by.clone(), last, done: 0 })
    }

    /// Goes on for at least this many bytes of records; false when none is left.
    ///
    /// # Errors
    /// See [`MergeError`].
    pub fn step(&mut self, bytes: u64) -> Result<bool, MergeError> {
        let until = self.done.saturating_add(bytes);
        while self.done < until {
            let order = match (self.parent.current(), self.delta.current()) {
                (None, None) => return Ok(false),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(old), Some(new)) => (old.token, old.key).cmp(&(new.token, new.key)),
            };
            let from = if order.is_lt() { &self.parent } else { &self.delta };
            let item = from.current().expect("the one that comes first is there");
            if item.sealed.is_none() && order.is_gt() {
                return Err(of_delta(&self.by, Broken("it deletes a key that is not there".to_owned())));
            }
            self.done += item.key.len() as u64 + item.sealed.map_or(0, |(_, stored)| stored.len() as u64);
            add(&mut self.writer, &item, &self.by)?;
            if order.is_ge() {
                self.delta.advance().map_err(|broken| of_delta(&self.by, broken))?;
            }
            if order.is_le() {
                self.parent.advance().map_err(|broken| of_parent(&self.by, broken))?;
            }
        }
        Ok(true)
    }

    /// Ends the chunk, and removes it if it is not the one that the manifest names.
    ///
    /// # Errors
    /// [`MergeError::Differs`], or when the disk refuses.
    ///
    /// # Panics
    /// When records are left.
    pub fn finish(self, wanted: &ChunkEntry) -> Result<Finished, MergeError> {
        let (disk, delta) = (self.disk.clone(), self.by.digest);
        let made = self.finish_as_is()?;
        if made.entry == *wanted {
            return Ok(made);
        }
        disk.remove(&made.path).map_err(WriteError::Disk)?;
        Err(MergeError::Differs { delta, made: made.entry.digest, wanted: wanted.digest })
    }

    /// Ends whatever chunk came of it.
    pub(super) fn finish_as_is(self) -> Result<Finished, MergeError> {
        assert!(self.parent.current().is_none() && self.delta.current().is_none(), "no records are left");
        Ok(self.writer.finish(self.last)?)
    }
}

/// Makes a chunk at a path that is free, at once.
///
/// # Errors
/// See [`MergeError`].
pub fn merge(
    disk: &Arc<dyn Disk>,
    path: &str,
    inputs: MergeInputs,
    hash: TokenHash,
    (wanted, by): (&ChunkEntry, &DeltaEntry),
) -> Result<Finished, MergeError> {
    let mut merge = Merge::begin(disk, path, inputs, hash, by)?;
    while merge.step(u64::MAX)? {}
    merge.finish(wanted)
}

fn of_parent(by: &DeltaEntry, Broken(what): Broken) -> MergeError {
    MergeError::Parent { chunk: by.parent, what }
}

fn of_delta(by: &DeltaEntry, Broken(what): Broken) -> MergeError {
    MergeError::Delta { delta: by.digest, what }
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
