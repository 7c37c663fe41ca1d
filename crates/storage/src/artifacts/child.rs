//! Builds an artifact upon another one, its parent: with the parent's slices, layouts and dictionary. Chunks without a
//! change are the parent's; the others come with a delta where that is much smaller.
//!
//! ```text
//! sorted records ─▶ cut at the parent's slices ─▶ compared with the parent's chunk ─▶ delta ─▶ merged ─▶ chunk
//! ```
//!
//! Must never: make a chunk otherwise than a node does that has the parent's chunk and the delta.

use std::cmp::Ordering;
use std::sync::Arc;

use runtime::{Disk, DiskError};

use super::artifact::chunk_path;
use super::build::{BuildError, Duplicates, distinct, keep, publish};
use super::chunk_writer::{Finished, WriteError};
use super::coding::{Opener, Sealer};
use super::cut::Cut;
use super::delta::{DeltaWriter, FinishedDelta};
use super::format::{FileEntry, Slice};
use super::lineage::{DeltaEntry, Lineage};
use super::manifest::{ChunkEntry, Manifest};
use super::merge::{Merge, MergeError, MergeInputs};
use super::sort::{BuildRecord, Merged, Records};
use super::stream::{Broken, Item, Stream};

/// A delta is worth while when it is at most one of so many parts of the chunk that it makes: both lie at the source,
/// and a merge costs a node more than a fetch.
pub const DELTA_PART_MAX: u64 = 2;
/// Keys and values that are handed on at once.
const HANDED_BYTES: usize = 1 << 20;
/// Bytes of a file that are copied at once.
const COPIED_BYTES: usize = 1 << 20;
/// Largest value after decompression, whatever a record says.
const VALUE_BYTES_MAX: usize = 64 << 20;

/// What the records of a build are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordsGiven {
    /// All that the artifact is to hold.
    All,
    /// Changes of what the parent holds, each made by [`put`] or [`DELETE`].
    Changes,
}

/// The value of a record that deletes its key from what the parent holds.
pub const DELETE: &[u8] = &[1];

/// The value of a record that puts this one into what the parent holds.
pub fn put(value: &[u8]) -> Vec<u8> {
    [&[0], value].concat()
}

impl RecordsGiven {
    /// What a record says its key is to have; `None` deletes it.
    fn value(self, record: &[u8]) -> Option<&[u8]> {
        match (self, record) {
            (RecordsGiven::All, value) => Some(value),
            (RecordsGiven::Changes, [0, value @ ..]) => Some(value),
            (RecordsGiven::Changes, _) => None,
        }
    }
}

/// Hands out records cut at slices that follow each other, one chunk to a slice.
///
/// # Errors
/// When two records have one key, there is none at all, or `step` fails.
pub fn steps_within<E: From<BuildError>>(
    merged: Merged,
    duplicates: Duplicates,
    slices: &[Slice],
    step: &mut dyn FnMut(Cut) -> Result<(), E>,
) -> Result<(), E> {
    let mut held = Records::default();
    let mut slices_left = slices.iter();
    let mut slice = *slices_left.next().expect("an artifact has a chunk");
    step(Cut::Begin(slice))?;
    distinct::<E>(merged, duplicates, &mut |record: BuildRecord<'_>, _| {
        while record.token > slice.last {
            if !held.is_empty() {
                step(Cut::Records(std::mem::take(&mut held)))?;
            }
            step(Cut::End(slice.last))?;
            slice = *slices_left.next().expect("slices cover all tokens");
            step(Cut::Begin(slice))?;
        }
        held.push(record);
        if held.payload_bytes() >= HANDED_BYTES {
            step(Cut::Records(std::mem::take(&mut held)))?;
        }
        Ok(())
    })?;
    if !held.is_empty() {
        step(Cut::Records(held))?;
    }
    step(Cut::End(slice.last))?;
    for slice in slices_left {
        step(Cut::Begin(*slice))?;
        step(Cut::End(slice.last))?;
    }
    Ok(())
}

/// A chunk that is another than the parent's.
pub struct Changed {
    /// The chunk.
    pub chunk: Finished,
    /// How it is made of the parent's, unless that is not worth while.
    pub delta: Option<FinishedDelta>,
}

/// Makes chunks upon those of a parent, for one thread.
pub struct ChildMaker {
    disk: Arc<dyn Disk>,
    source: Arc<dyn Disk>,
    parent: Arc<Manifest>,
    given: RecordsGiven,
    sealer: Sealer,
    opener: Opener,
}

impl ChildMaker {
    /// For an output on this disk, upon a parent whose files are at `source`.
    pub fn new(
        disk: Arc<dyn Disk>,
        source: Arc<dyn Disk>,
        parent: Arc<Manifest>,
        given: RecordsGiven,
    ) -> ChildMaker {
        let sealer = Sealer::new(parent.compression, &parent.dictionary);
        let opener = Opener::new(&parent.dictionary);
        ChildMaker { disk, source, parent, given, sealer, opener }
    }

    /// Makes the chunk at this place at paths that are free and begin so, of what came after its beginning; none when it
    /// is the parent's.
    ///
    /// # Errors
    /// When the parent's chunk is damaged, or the disk refuses.
    pub fn make(
        &mut self,
        path: &str,
        number: usize,
        cuts: &mut dyn Iterator<Item = Cut>,
    ) -> Result<Option<Changed>, MergeError> {
        let entry = self.parent.chunks[number].clone();
        let delta_path = format!("{path}.delta");
        let mut delta = DeltaWriter::create(&*self.disk, &delta_path, (entry.digest, entry.slice))?;
        self.compare(&entry, &mut delta, cuts)?;
        if delta.is_empty() {
            self.disk.remove(&delta_path).map_err(WriteError::Disk)?;
            return Ok(None);
        }
        let delta = delta.finish(number as u32)?;
        let inputs = MergeInputs { parent: self.parents(&entry)?, delta: delta.file.clone() };
        let mut merge = Merge::begin(&self.disk, path, inputs, self.parent.hash, &delta.entry)?;
        while merge.step(u64::MAX)? {}
        let chunk = merge.finish_as_is()?;
        if delta.entry.file_bytes * DELTA_PART_MAX <= chunk.entry.file_bytes {
            return Ok(Some(Changed { chunk, delta: Some(delta) }));
        }
        self.disk.remove(&delta_path).map_err(WriteError::Disk)?;
        Ok(Some(Changed { chunk, delta: None }))
    }

    fn parents(&self, entry: &ChunkEntry) -> Result<Arc<dyn runtime::File>, MergeError> {
        let chunk = entry.digest;
        let damaged = |what| MergeError::Parent { chunk, what };
        let file = self.source.open(&chunk_path(chunk)).map_err(|error| damaged(error.to_string()))?;
        match file.length() == entry.file_bytes {
            true => Ok(file),
            false => Err(damaged("it has another length than its manifest says".to_owned())),
        }
    }

    /// Writes what is another than in the parent's chunk.
    fn compare(
        &mut self,
        entry: &ChunkEntry,
        delta: &mut DeltaWriter,
        cuts: &mut dyn Iterator<Item = Cut>,
    ) -> Result<(), MergeError> {
        let chunk = entry.digest;
        let damaged = |Broken(what)| MergeError::Parent { chunk, what };
        let (mut old, footer) = Stream::of_chunk(self.parents(entry)?, self.parent.hash).map_err(damaged)?;
        if (footer.slice, footer.layout) != (entry.slice, entry.layout) {
            return Err(damaged(Broken("it and its manifest contradict each other".to_owned())));
        }
        for cut in cuts {
            let records = match cut {
                Cut::Records(records) => records,
                Cut::Begin(_) => break,
                Cut::End(_) => {
                    while let (RecordsGiven::All, Some(gone)) = (self.given, old.current()) {
                        delta.delete(gone.key)?;
                        old.advance().map_err(damaged)?;
                    }
                    return Ok(());
                }
            };
            for new in records.iter() {
                // Whoever sorted them may have used another hash.
                if self.parent.hash.token(new.key) != new.token {
                    return Err(WriteError::Order.into());
                }
                let mut is_there = false;
                while let Some(before) = old.current() {
                    match (before.token, before.key).cmp(&(new.token, new.key)) {
                        Ordering::Less if self.given == RecordsGiven::All => delta.delete(before.key)?,
                        Ordering::Less => {}
                        order => {
                            is_there = order.is_eq();
                            break;
                        }
                    }
                    old.advance().map_err(damaged)?;
                }
                match self.given.value(new.value) {
                    Some(value) => {
                        let before = old.current().filter(|_| is_there);
                        if !before.is_some_and(|before| self.holds(&before, value)) {
                            delta.put(new.key, self.sealer.seal(value))?;
                        }
                    }
                    None if is_there => delta.delete(new.key)?,
                    None => {}
                }
                if is_there {
                    old.advance().map_err(damaged)?;
                }
            }
        }
        Err(WriteError::BrokenOff.into())
    }

    /// Whether a record has this value.
    fn holds(&self, item: &Item<'_>, value: &[u8]) -> bool {
        let Some((coding, stored)) = item.sealed else { return false };
        match coding {
            super::Compression::None => stored == value,
            coding => self.opener.open(coding, stored, VALUE_BYTES_MAX).is_some_and(|held| held == value),
        }
    }

    /// Gives files that are durable their names; what has a name already is the same.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn keep(&self, chunk: &Finished, delta: Option<&FinishedDelta>) -> Result<(), DiskError> {
        keep(&*self.disk, &chunk.path, chunk.entry.file())?;
        delta.map_or(Ok(()), |delta| keep(&*self.disk, &delta.path, delta.entry.file()))
    }
}

/// The manifest of an artifact upon a parent. `made` are the chunks that are others than the parent's, by their places.
pub fn child_manifest(
    parent: &Manifest,
    number: u64,
    made: impl IntoIterator<Item = (usize, ChunkEntry, Option<DeltaEntry>)>,
) -> Manifest {
    let mut child = Manifest { number, ..parent.clone() };
    let mut deltas = Vec::new();
    for (place, chunk, delta) in made {
        child.chunks[place] = chunk;
        deltas.extend(delta);
    }
    deltas.sort_by_key(|delta| delta.chunk);
    child.lineage = Some(Lineage { number: parent.number, manifest: parent.digest(), deltas });
    child
}

/// Copies a file of a parent to an output, unless it is there.
///
/// # Errors
/// When a disk refuses, or the file is shorter than the manifest says.
pub async fn copy(from: &dyn Disk, to: &dyn Disk, file: FileEntry) -> Result<(), DiskError> {
    let FileEntry { digest, bytes } = file;
    let path = chunk_path(digest);
    if to.stat(&path).is_ok_and(|there| there.length == bytes) {
        return Ok(());
    }
    let source = from.open(&path)?;
    let temporary = format!("{path}.tmp");
    match to.remove(&temporary) {
        Ok(()) | Err(DiskError::NotFound { .. }) => {}
        Err(error) => return Err(error),
    }
    let target = to.create(&temporary)?;
    let mut buffer = vec![0; COPIED_BYTES];
    let mut at = 0;
    while at < bytes {
        let wanted = (bytes - at).min(COPIED_BYTES as u64) as usize;
        let read = source.read_at(at, &mut buffer[..wanted])?;
        if read == 0 {
            let reason = format!("it ends at {at}, and its manifest says {bytes}");
            return Err(DiskError::Failed { path, reason });
        }
        target.append(&buffer[..read])?;
        at += read as u64;
    }
    target.sync().await?;
    to.rename(&temporary, &path)
}

/// Why an artifact cannot be built upon a parent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChildError {
    /// The records cannot be built.
    #[error("{0}")]
    Build(#[from] BuildError),
    /// A chunk cannot be made.
    #[error("{0}")]
    Merge(#[from] MergeError),
}

impl From<DiskError> for ChildError {
    fn from(error: DiskError) -> ChildError {
        ChildError::Build(error.into())
    }
}

/// Builds an artifact upon a parent in one thread, from records that are sorted or runs of them.
///
/// # Errors
/// As [`steps_within`] and [`ChildMaker::make`].
pub async fn build_child(
    disk: Arc<dyn Disk>,
    merged: Merged,
    (source, parent): (Arc<dyn Disk>, &Manifest),
    number: u64,
    (given, duplicates): (RecordsGiven, Duplicates),
) -> Result<Manifest, ChildError> {
    let parent = Arc::new(parent.clone());
    let mut maker = ChildMaker::new(disk.clone(), source.clone(), parent.clone(), given);
    let slices: Vec<Slice> = parent.chunks.iter().map(|chunk| chunk.slice).collect();
    let (mut cuts, mut place, mut changed) = (Vec::new(), 0, Vec::new());
    steps_within::<ChildError>(merged, duplicates, &slices, &mut |cut| {
        let ends = matches!(cut, Cut::End(_));
        if !matches!(cut, Cut::Begin(_)) {
            cuts.push(cut);
        }
        if ends {
            let path = format!("chunks/{place:06}.tmp");
            if let Some(Changed { chunk, delta }) = maker.make(&path, place, &mut cuts.drain(..))? {
                changed.push((place, chunk, delta));
            }
            place += 1;
        }
        Ok(())
    })?;
    for (_, chunk, delta) in &changed {
        chunk.file.sync().await?;
        if let Some(delta) = delta {
            delta.file.sync().await?;
        }
        maker.keep(chunk, delta.as_ref())?;
    }
    let made =
        changed.into_iter().map(|(place, chunk, delta)| (place, chunk.entry, delta.map(|delta| delta.entry)));
    let manifest = child_manifest(&parent, number, made);
    for (_, same) in parent.chunks.iter().zip(&manifest.chunks).filter(|(old, new)| old == new) {
        copy(&*source, &*disk, same.file()).await?;
    }
    publish(&*disk, &manifest).await?;
    Ok(manifest)
}
