//! Makes chunks of what is here already and of what has changed: the parent's chunk, and a delta.
//!
//! ```text
//!   the parent's chunk here? ─▶ delta: fetched as a chunk is ─▶ merged, a piece at a time ─▶ digest compared ─▶ named
//!         └ no, or anything goes wrong: the whole chunk is fetched
//! ```
//!
//! Deltas come from the source only: replicas have merged theirs, and give whole chunks.
//! Gets know nothing of it: until the chunk has its name, the artifact is not staged.
//!
//! Must never: keep an artifact from being staged that could be fetched without deltas.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use runtime::DiskError;
use storage::artifacts::{
    ChunkEntry, DeltaEntry, Finished, Merge, MergeError, MergeInputs, TokenHash, WriteError,
};

use super::bring::{Wanted, at_disk};
use super::origin::Errand;
use super::{Artifacts, NotYet, Trouble, files};
use crate::events::Event;

/// Bytes of records that are merged before requests and newer documents are looked at.
const STEP_BYTES: u64 = 1 << 20;

/// Why a chunk is fetched whole although there is a delta.
enum Whole {
    /// It could not be fetched now.
    NotFetched,
    /// It is of no use here, and is not tried again.
    Useless(String),
    /// Nor would the chunk come.
    Halt(NotYet),
}

impl From<NotYet> for Whole {
    fn from(not_yet: NotYet) -> Whole {
        match not_yet {
            NotYet::Failed(_, Trouble::Source) => Whole::NotFetched,
            NotYet::Failed(error, Trouble::Corrupt) => Whole::Useless(error),
            not_yet => Whole::Halt(not_yet),
        }
    }
}

impl From<MergeError> for Whole {
    fn from(error: MergeError) -> Whole {
        match error {
            MergeError::Write(WriteError::Disk(error)) => Whole::Halt(at_disk(error)),
            error => Whole::Useless(error.to_string()),
        }
    }
}

/// A bug that a merge meets keeps no chunk from coming.
fn useless(not_yet: NotYet) -> Whole {
    match not_yet {
        NotYet::Failed(error, _) => Whole::Useless(error),
        NotYet::Changed => Whole::Halt(NotYet::Changed),
    }
}

impl Artifacts {
    /// Brings one chunk: by its delta where the parent's chunk is here, otherwise whole.
    pub(super) async fn bring_chunk(
        &self,
        errand: &Errand<'_>,
        chunk: &ChunkEntry,
        delta: Option<&DeltaEntry>,
    ) -> Result<(), NotYet> {
        let claim = self.claim(errand.view, errand.name(), chunk.digest).await?;
        let has_come = claim.has_waited && self.is_here(errand, chunk).await?;
        if !has_come {
            self.bring_claimed(errand, chunk, delta).await?;
        }
        self.has_come(errand.need, chunk.digest);
        Ok(())
    }

    /// Whether another fetch has brought a chunk.
    async fn is_here(&self, errand: &Errand<'_>, chunk: &ChunkEntry) -> Result<bool, NotYet> {
        let (disk, path, bytes) =
            (self.disk.clone(), files::chunk(errand.name(), chunk.digest), chunk.file_bytes);
        let look = move || disk.stat(&path).ok().filter(|stat| stat.length == bytes);
        let file = self.wait(look).await?.map(|stat| stat.identity);
        let damaged = errand.store.held().damaged();
        Ok(file.is_some_and(|file| !damaged.contains(&(chunk.digest, file))))
    }

    async fn bring_claimed(
        &self,
        errand: &Errand<'_>,
        chunk: &ChunkEntry,
        delta: Option<&DeltaEntry>,
    ) -> Result<(), NotYet> {
        if let Some(delta) = delta {
            match self.bring_by_delta(errand, chunk, delta).await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(Whole::NotFetched) => errand.without_deltas.store(true, Ordering::Relaxed),
                Err(Whole::Halt(not_yet)) => return Err(not_yet),
                Err(Whole::Useless(error)) => self.give_up(errand, (chunk, delta), error),
            }
        }
        self.bring_file(errand, Wanted { slice: chunk.slice, file: chunk.file(), is_delta: false }).await
    }

    /// Makes one chunk by its delta; false when the parent's chunk is not here, or the delta was of no use before.
    async fn bring_by_delta(
        &self,
        errand: &Errand<'_>,
        chunk: &ChunkEntry,
        delta: &DeltaEntry,
    ) -> Result<bool, Whole> {
        let name = errand.name();
        let useless = self.useless.lock().contains(&(name.clone(), delta.digest));
        if useless || errand.without_deltas.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let (disk, parent) = (self.disk.clone(), files::chunk(name, delta.parent));
        let (path, wanted) = (files::chunk(name, delta.digest), delta.file());
        let at = path.clone();
        let look = move || {
            let fetched = disk.stat(&at).is_ok_and(|stat| stat.length == wanted.bytes);
            (disk.stat(&parent).is_ok(), fetched)
        };
        let (possible, fetched) = self.wait(look).await?;
        if !possible {
            return Ok(false);
        }
        if !fetched {
            self.bring_file(errand, Wanted { slice: chunk.slice, file: wanted, is_delta: true }).await?;
        }
        let made = self.make(errand, chunk, delta).await?;
        made.file.sync().await.map_err(|error| Whole::Halt(at_disk(error)))?;
        made.file.drop_cached(0..made.file.length());
        let renamed = self.disk.rename(&made.path, &files::chunk(name, chunk.digest));
        renamed.map_err(|error| Whole::Halt(at_disk(error)))?;
        // A look may have removed it, and removes it otherwise.
        let _ = self.disk.remove(&path);
        self.counters.merged.add(chunk.file_bytes);
        let mut progress = self.progress.lock();
        let progress = progress.entry((name.clone(), errand.listed.number)).or_default();
        (progress.bytes, progress.chunks) = (progress.bytes + chunk.file_bytes, progress.chunks + 1);
        Ok(true)
    }

    /// Merges, a piece at a time.
    async fn make(
        &self,
        errand: &Errand<'_>,
        chunk: &ChunkEntry,
        delta: &DeltaEntry,
    ) -> Result<Finished, Whole> {
        let (name, disk, by) = (errand.name(), self.disk.clone(), delta.clone());
        let (parent, path) = (files::chunk(name, delta.parent), files::chunk(name, delta.digest));
        let into = files::merging(name, chunk.digest);
        let begin = move || {
            // What a merge that was broken off has left.
            match disk.remove(&into) {
                Ok(()) | Err(DiskError::NotFound { .. }) => {}
                Err(error) => return Err(Whole::Halt(at_disk(error))),
            }
            let useless = |error: DiskError| Whole::Useless(error.to_string());
            let inputs = MergeInputs {
                parent: disk.open(&parent).map_err(useless)?,
                delta: disk.open(&path).map_err(useless)?,
            };
            let disk: Arc<dyn runtime::Disk> = disk;
            Ok(Merge::begin(&disk, &into, inputs, TokenHash::Xxh3, &by)?)
        };
        let mut merge = self.wait(begin).await.map_err(useless)??;
        loop {
            if self.is_superseded(errand.view) {
                return Err(Whole::Halt(NotYet::Changed));
            }
            self.await_merging(STEP_BYTES).await;
            let step = move || {
                let stepped = merge.step(STEP_BYTES);
                (merge, stepped)
            };
            let (merged, stepped) = self.wait(step).await.map_err(useless)?;
            merge = merged;
            if !stepped? {
                break;
            }
        }
        let wanted = chunk.clone();
        Ok(self.wait(move || merge.finish(&wanted)).await.map_err(useless)??)
    }

    /// A delta is of no use here: its chunk is fetched whole, now and later.
    fn give_up(&self, errand: &Errand<'_>, (chunk, delta): (&ChunkEntry, &DeltaEntry), error: String) {
        self.useless.lock().insert((errand.name().clone(), delta.digest));
        // Whatever stays has no name that counts, and goes with the next look for files.
        let _ = self.disk.remove(&files::chunk(errand.name(), delta.digest));
        self.counters.useless_deltas.increment();
        let (store, number, chunk) =
            (errand.name().to_string(), errand.listed.number.0, chunk.digest.to_string());
        tracing::warn!(store, number, chunk, error, "delta of an artifact not used");
        self.events.record(Event::ArtifactDeltaUnused { store, number, chunk, error });
    }
}
