//! Builds an artifact from sorted records: decides what the lowest tokens suggest, tells equal keys, cuts, and makes
//! each chunk. Who owns threads and progress (`tontine artifact build`) does the same steps beside each other.

use std::sync::Arc;

use model::{StoreName, Token};
use runtime::{Disk, DiskError};
use thiserror::Error;

use super::artifact::{MANIFEST_PATH, chunk_path};
use super::chunk_writer::{ChunkWriter, Finished, WriteError};
use super::coding::{Compression, Sealer, train};
use super::cut::{Cut, Cutter};
use super::format::{FileEntry, Layout, Slice};
use super::manifest::{Manifest, TokenHash};
use super::sort::{BuildRecord, Merged, Place, Records};

/// Keys and values of the lowest tokens by which layout and dictionary are chosen.
pub(super) const SAMPLE_BYTES: usize = 4 << 20;
/// Mean bytes of key and value above which records lie in slots. It comes from a prototype and was not measured
/// again (`docs/design/next.md`).
pub const PAGES_RECORD_BYTES_MAX: usize = 600;

/// What is to be done with records of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duplicates {
    /// The build fails and names both places.
    Refuse,
    /// The last one counts, in the order of inputs and lines.
    Last,
}

/// What an artifact is to be.
#[derive(Clone, Debug)]
pub struct BuildOptions {
    /// For which store.
    pub store: StoreName,
    /// Its number.
    pub number: u64,
    /// What makes tokens of keys.
    pub hash: TokenHash,
    /// How values are compressed.
    pub compression: Compression,
    /// How records lie; `None` leaves it to their size.
    pub layout: Option<Layout>,
    /// What is done with records of one key.
    pub duplicates: Duplicates,
}

/// Why an artifact cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A chunk cannot be written.
    #[error("{0}")]
    Write(#[from] WriteError),
    /// The disk refused.
    #[error("{0}")]
    Disk(#[from] DiskError),
    /// Two records have the same key.
    #[error("two records have the key {key:?}")]
    Duplicate {
        /// The key, escaped.
        key: String,
        /// Where the first one was read.
        first: Place,
        /// Where the second one was read.
        second: Place,
    },
    /// There is nothing to build.
    #[error("there are no records")]
    Empty,
}

/// What is decided before the first chunk.
#[derive(Clone, Debug)]
pub struct Settled {
    /// How records lie, unless one does not fit.
    pub layout: Layout,
    /// How values are compressed.
    pub compression: Compression,
    /// zstd's dictionary.
    pub dictionary: Vec<u8>,
}

impl Settled {
    fn of(options: &BuildOptions, sample: &Records) -> Settled {
        let mean = sample.payload_bytes() / sample.len().max(1);
        let by_size = if mean > PAGES_RECORD_BYTES_MAX { Layout::Slots } else { Layout::Pages };
        let dictionary = match options.compression {
            Compression::Zstd => train(&sample.iter().map(|record| record.value).collect::<Vec<_>>()),
            _ => Vec::new(),
        };
        Settled { layout: options.layout.unwrap_or(by_size), compression: options.compression, dictionary }
    }
}

/// What building hands out, in this order: what is settled, then each chunk from its beginning to its end.
pub enum BuildStep {
    /// What holds for all chunks.
    Settled(Settled),
    /// Of the next chunk.
    Cut(Cut),
}

/// Hands out the records of different keys, each with whether it is the last one.
pub(super) fn distinct<E: From<BuildError>>(
    mut merged: Merged,
    duplicates: Duplicates,
    each: &mut dyn FnMut(BuildRecord<'_>, bool) -> Result<(), E>,
) -> Result<(), E> {
    let failed = |error: DiskError| BuildError::from(error);
    let mut held = PendingRecord::default();
    loop {
        let next = merged.current();
        let again = next.is_some_and(|next| held.is_key_of(&next));
        if let (true, Some(next)) = (again && duplicates == Duplicates::Refuse, next) {
            let key = next.key.escape_ascii().to_string();
            return Err(BuildError::Duplicate { key, first: held.place, second: next.place }.into());
        }
        if let Some(record) = held.record().filter(|_| !again) {
            each(record, next.is_none())?;
        }
        match next {
            Some(next) => held.take(next),
            None if held.there => return Ok(()),
            None => return Err(BuildError::Empty.into()),
        }
        merged.advance().map_err(failed)?;
    }
}

/// Hands out the steps of a build. One that makes only a range of the chunks is told what is `settled`.
///
/// # Errors
/// When two records have one key, there is none at all, or `step` fails.
pub fn steps<E: From<BuildError>>(
    merged: Merged,
    options: &BuildOptions,
    settled: Option<Settled>,
    mut cutter: Cutter,
    step: &mut dyn FnMut(BuildStep) -> Result<(), E>,
) -> Result<(), E> {
    let mut sample = settled.is_none().then(Records::default);
    settled.map_or(Ok(()), |settled| step(BuildStep::Settled(settled)))?;
    let mut cuts = Vec::new();
    distinct(merged, options.duplicates, &mut |record: BuildRecord<'_>, is_last| {
        let full = match &mut sample {
            Some(records) => {
                records.push(record);
                records.payload_bytes() >= SAMPLE_BYTES
            }
            None => {
                cutter.push(record, &mut cuts);
                false
            }
        };
        if full || (is_last && sample.is_some()) {
            let records = sample.take().expect("it is there until it is full");
            step(BuildStep::Settled(Settled::of(options, &records)))?;
            for record in records.iter() {
                cutter.push(record, &mut cuts);
                cuts.drain(..).try_for_each(|cut| step(BuildStep::Cut(cut)))?;
            }
        }
        cuts.drain(..).try_for_each(|cut| step(BuildStep::Cut(cut)))
    })?;
    cutter.finish(&mut cuts);
    cuts.drain(..).try_for_each(|cut| step(BuildStep::Cut(cut)))
}

/// The record that goes on when the next one has another key.
#[derive(Default)]
struct PendingRecord {
    there: bool,
    token: u64,
    bytes: Vec<u8>,
    key_bytes: usize,
    place: Place,
}

impl PendingRecord {
    fn take(&mut self, record: BuildRecord<'_>) {
        self.there = true;
        self.token = record.token.0;
        self.place = record.place;
        self.key_bytes = record.key.len();
        self.bytes.clear();
        self.bytes.extend_from_slice(record.key);
        self.bytes.extend_from_slice(record.value);
    }

    fn is_key_of(&self, record: &BuildRecord<'_>) -> bool {
        self.there && self.token == record.token.0 && self.bytes[..self.key_bytes] == *record.key
    }

    fn record(&self) -> Option<BuildRecord<'_>> {
        self.there.then(|| {
            let (key, value) = self.bytes.split_at(self.key_bytes);
            BuildRecord { token: Token(self.token), key, value, place: self.place }
        })
    }
}

/// Makes chunks, for one thread.
pub struct ChunkMaker {
    disk: Arc<dyn Disk>,
    hash: TokenHash,
    layout: Layout,
    sealer: Sealer,
}

impl ChunkMaker {
    /// For chunks of an artifact whose output is this disk.
    pub fn new(disk: Arc<dyn Disk>, hash: TokenHash, settled: &Settled) -> ChunkMaker {
        let sealer = Sealer::new(settled.compression, &settled.dictionary);
        ChunkMaker { disk, hash, layout: settled.layout, sealer }
    }

    /// Makes a chunk at a path that is free, of what came after its beginning.
    ///
    /// # Errors
    /// When the disk refuses, or a token is not that of its key.
    pub fn make(
        &mut self,
        path: &str,
        outer: Slice,
        cuts: &mut dyn Iterator<Item = Cut>,
    ) -> Result<Finished, WriteError> {
        let mut writer = self.begin(path, outer)?;
        for cut in cuts {
            match cut {
                Cut::Records(records) => self.add(&mut writer, &records)?,
                Cut::End(last) => return writer.finish(last),
                Cut::Begin(_) => break,
            }
        }
        Err(WriteError::BrokenOff)
    }

    fn begin(&self, path: &str, outer: Slice) -> Result<ChunkWriter, WriteError> {
        ChunkWriter::create(self.disk.clone(), path, outer, self.layout)
    }

    fn add(&mut self, writer: &mut ChunkWriter, records: &Records) -> Result<(), WriteError> {
        for record in records.iter() {
            // Whoever sorted them may have used another hash.
            if self.hash.token(record.key) != record.token {
                return Err(WriteError::Order);
            }
            writer.add(record.token, record.key, record.value, &mut self.sealer)?;
        }
        Ok(())
    }

    /// Gives a chunk that is durable its name; what has the name already is the same.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn keep(&self, finished: &Finished) -> Result<(), DiskError> {
        keep(&*self.disk, &finished.path, finished.entry.file())
    }
}

/// Gives a file its name; what has the name already is the same.
pub(super) fn keep(disk: &dyn Disk, from: &str, file: FileEntry) -> Result<(), DiskError> {
    let path = chunk_path(file.digest);
    match disk.stat(&path) {
        Ok(there) if there.length == file.bytes => disk.remove(from),
        _ => disk.rename(from, &path),
    }
}

/// Writes the manifest, after all else: with it the artifact is whole.
///
/// # Errors
/// When the disk refuses.
pub async fn publish(disk: &dyn Disk, manifest: &Manifest) -> Result<(), DiskError> {
    disk.sync_directory("chunks").await?;
    let path = format!("{MANIFEST_PATH}.tmp");
    match disk.remove(&path) {
        Ok(()) | Err(DiskError::NotFound { .. }) => {}
        Err(error) => return Err(error),
    }
    let file = disk.create(&path)?;
    file.append(&manifest.encode())?;
    file.sync().await?;
    disk.rename(&path, MANIFEST_PATH)?;
    disk.sync_directory("").await
}

/// Makes chunks in one thread, from records that are sorted or runs of them: all, or those of a range.
/// They lie at numbered paths that begin with `prefix`; `take` makes each durable and names it.
///
/// # Errors
/// As [`steps`].
pub fn make_chunks(
    disk: &Arc<dyn Disk>,
    prefix: &str,
    merged: Merged,
    options: &BuildOptions,
    settled: Option<Settled>,
    cutter: Cutter,
    take: &mut dyn FnMut(&ChunkMaker, Finished) -> Result<(), BuildError>,
) -> Result<Settled, BuildError> {
    let mut made: Option<(ChunkMaker, Settled)> = None;
    let mut writer = None;
    let mut number = 0;
    steps(merged, options, settled, cutter, &mut |step| {
        let cut = match step {
            BuildStep::Settled(settled) => {
                let maker = ChunkMaker::new(disk.clone(), options.hash, &settled);
                made = Some((maker, settled));
                return Ok(());
            }
            BuildStep::Cut(cut) => cut,
        };
        let (maker, _) = made.as_mut().expect("all is settled before the first chunk begins");
        match cut {
            Cut::Begin(outer) => {
                writer = Some(maker.begin(&format!("{prefix}{number:06}.tmp"), outer)?);
                number += 1;
                Ok(())
            }
            Cut::Records(records) => {
                let writer = writer.as_mut().expect("a chunk begins before its records");
                Ok::<(), BuildError>(maker.add(writer, &records)?)
            }
            Cut::End(last) => {
                let writer: ChunkWriter = writer.take().expect("a chunk ends after it began");
                take(maker, writer.finish(last)?)
            }
        }
    })?;
    Ok(made.expect("there are records, so all was settled").1)
}

/// What the records suggest that hold the lowest tokens, if they are those of a whole build or of its first range.
///
/// # Errors
/// As [`steps`].
pub fn settle(merged: Merged, options: &BuildOptions) -> Result<Settled, BuildError> {
    enum Stop {
        Failed(BuildError),
        Settled(Settled),
    }
    impl From<BuildError> for Stop {
        fn from(error: BuildError) -> Stop {
            Stop::Failed(error)
        }
    }
    let cutter = Cutter::new(&[0], (0, u64::MAX));
    let stopped = steps(merged, options, None, cutter, &mut |step| match step {
        BuildStep::Settled(settled) => Err(Stop::Settled(settled)),
        BuildStep::Cut(_) => unreachable!("all is settled before the first chunk begins"),
    });
    match stopped {
        Err(Stop::Settled(settled)) => Ok(settled),
        Err(Stop::Failed(error)) => Err(error),
        Ok(()) => unreachable!("what is settled ends the steps"),
    }
}

/// Builds an artifact in one thread, from records that are sorted or runs of them.
///
/// # Errors
/// As [`steps`].
pub async fn build(
    disk: Arc<dyn Disk>,
    merged: Merged,
    options: &BuildOptions,
    cutter: Cutter,
) -> Result<Manifest, BuildError> {
    let mut chunks: Vec<Finished> = Vec::new();
    let settled = make_chunks(&disk, "chunks/", merged, options, None, cutter, &mut |_, finished| {
        chunks.push(finished);
        Ok(())
    })?;
    let maker = ChunkMaker::new(disk.clone(), options.hash, &settled);
    for chunk in &chunks {
        chunk.file.sync().await?;
        maker.keep(chunk)?;
    }
    let manifest = Manifest {
        store: options.store.clone(),
        number: options.number,
        hash: options.hash,
        compression: options.compression,
        dictionary: settled.dictionary,
        chunks: chunks.into_iter().map(|finished| finished.entry).collect(),
        lineage: None,
    };
    publish(&*disk, &manifest).await?;
    Ok(manifest)
}
