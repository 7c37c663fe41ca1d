//! Brings manifests and chunks to this disk, from their source or from replicas, and removes what nobody names any more.
//!
//! Four chunks come at a time. Each goes on after its last block that is here, whatever broke it off: another document, a
//! source that failed, or the end of the process.

use std::borrow::Borrow;
use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use model::{ListedArtifact, StoreName};
use protocol::artifacts::Origin;
use runtime::{Disk, DiskError};
use storage::artifacts::{
    CHUNKS_MAX, ChunkEntry, DICTIONARY_BYTES_MAX, DeltaEntry, Digest, Fetch, FetchError, FileEntry,
    MANIFEST_PATH, Manifest, Slice, TokenHash,
};

use super::fetching::Need;
use super::origin::{Errand, Giver};
use super::{Artifacts, NotYet, Trouble, failed, files};
use crate::events::Event;
use crate::stores::ReadOnly;
use crate::view::View;

/// Chunks that come at a time: enough to keep a disk busy while others are verified and synced.
const CHUNKS_TOGETHER: usize = 4;
/// After this many failed chunks no more are begun, until it is tried again.
const FAILURES_MAX: usize = 4;
/// Longest manifest: as many chunks as there may be, each with a delta, and a dictionary.
const MANIFEST_BYTES_MAX: u64 = (CHUNKS_MAX as u64) * 128 + DICTIONARY_BYTES_MAX as u64 + 4096;

/// A file that is still to be fetched.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    /// The slice that it is for: other nodes that own a part of it may give it.
    pub(super) slice: Slice,
    pub(super) file: FileEntry,
    /// Whether it is a delta, which goes when its chunk is made.
    pub(super) is_delta: bool,
}

/// A chunk that is missing, and the delta that may make it.
pub(super) type Missing<'a> = (&'a ChunkEntry, Option<&'a DeltaEntry>);

/// Why a chunk does not come from one giver.
enum Halt {
    /// No other one would help.
    Here(NotYet),
    /// Another one may.
    There(NotYet),
}

impl Halt {
    fn there(not_yet: NotYet) -> Halt {
        match not_yet {
            NotYet::Changed => Halt::Here(NotYet::Changed),
            not_yet => Halt::There(not_yet),
        }
    }
}

/// What this node's disk says.
pub(super) fn at_disk(error: impl Borrow<DiskError>) -> NotYet {
    let error = error.borrow();
    let trouble = if *error == DiskError::Full { Trouble::Room } else { Trouble::Node };
    NotYet::Failed(error.to_string(), trouble)
}

fn corrupt(what: String) -> NotYet {
    NotYet::Failed(what, Trouble::Corrupt)
}

/// The bytes of a whole file.
pub(super) fn read_whole(disk: &dyn Disk, path: &str) -> Result<Vec<u8>, DiskError> {
    let file = disk.open(path)?;
    if file.length() > MANIFEST_BYTES_MAX {
        let reason =
            format!("it has {} bytes, and no manifest has more than {MANIFEST_BYTES_MAX}", file.length());
        return Err(DiskError::Failed { path: path.to_owned(), reason });
    }
    let mut bytes = vec![0; file.length() as usize];
    let read = file.read_at(0, &mut bytes)?;
    bytes.truncate(read);
    Ok(bytes)
}

/// Checks that bytes are the manifest that the document lists.
pub(super) fn check_manifest(
    store: &StoreName,
    listed: &ListedArtifact,
    bytes: &[u8],
) -> Result<Manifest, String> {
    let digest = Digest::of(bytes);
    if digest.0 != listed.manifest.0 {
        return Err(format!(
            "its manifest has the digest {digest}, and the document lists {}",
            listed.manifest
        ));
    }
    let manifest =
        Manifest::decode(bytes).map_err(|error| format!("its manifest cannot be used: {error}"))?;
    if manifest.store != *store || manifest.number != listed.number.0 {
        return Err(format!("it is artifact {} of store {}", manifest.number, manifest.store));
    }
    if manifest.hash != TokenHash::Xxh3 {
        return Err("its tokens are made by another hash than those of the ring".to_owned());
    }
    Ok(manifest)
}

impl Artifacts {
    /// The manifest of an artifact, if it is here. That of an open artifact was read and compared when it was opened: then it
    /// is looked only whether the file is still there.
    pub(super) async fn manifest_here(
        &self,
        store: &ReadOnly,
        listed: &ListedArtifact,
    ) -> Result<Option<Manifest>, NotYet> {
        let (disk, name, listed) = (self.disk.clone(), store.listed().name.clone(), listed.clone());
        let open = store.held().open(listed.number, listed.manifest);
        let path = files::manifest(&name, &listed);
        if let Some(open) = open {
            let there = self.wait(move || disk.stat(&path).is_ok_and(|stat| stat.length > 0)).await?;
            return Ok(there.then(|| open.artifact.manifest().clone()));
        }
        let read = move || match read_whole(&*disk, &path) {
            Ok(bytes) => Ok(check_manifest(&name, &listed, &bytes).ok()),
            Err(DiskError::NotFound { .. }) => Ok(None),
            Err(error) => Err(at_disk(error)),
        };
        self.wait(read).await?
    }

    /// Brings the manifest of an artifact from its source, or from another node that has it.
    pub(super) async fn bring_manifest(
        &self,
        view: &View,
        store: &ReadOnly,
        listed: &ListedArtifact,
    ) -> Result<Manifest, NotYet> {
        let of_source = match self.source(listed).await {
            Err(error) => Err(error),
            Ok(source) => {
                let read = self.wait(move || read_whole(&*source, MANIFEST_PATH)).await?;
                read.map_err(|error| failed(format!("{}: {error}", listed.source)))
            }
        };
        let of_source = of_source.and_then(|bytes| self.checked(store, listed, bytes));
        let (manifest, bytes) = match of_source {
            Ok(sound) => sound,
            Err(error) => {
                let others = self.manifest_of_others(view, store, listed, MANIFEST_BYTES_MAX).await;
                // What is wrong with the source matters to people, and not who else had none.
                let sound = others.and_then(|bytes| self.checked(store, listed, bytes).ok());
                sound.ok_or(error)?
            }
        };
        self.keep_manifest(&store.listed().name, listed, bytes).await?;
        Ok(manifest)
    }

    fn checked(
        &self,
        store: &ReadOnly,
        listed: &ListedArtifact,
        bytes: Vec<u8>,
    ) -> Result<(Manifest, Vec<u8>), NotYet> {
        let manifest = check_manifest(&store.listed().name, listed, &bytes)
            .map_err(|what| corrupt(format!("{}: {what}", listed.source)))?;
        Ok((manifest, bytes))
    }

    /// Writes a manifest to this disk.
    pub(super) async fn keep_manifest(
        &self,
        name: &StoreName,
        listed: &ListedArtifact,
        bytes: Vec<u8>,
    ) -> Result<(), NotYet> {
        let path = files::manifest(name, listed);
        let part = format!("{path}{}", files::PART);
        let (disk, into) = (self.disk.clone(), part.clone());
        let write = move || {
            match disk.remove(&into) {
                Ok(()) | Err(DiskError::NotFound { .. }) => {}
                Err(error) => return Err(at_disk(error)),
            }
            let file = disk.create(&into).map_err(at_disk)?;
            file.append(&bytes).map_err(at_disk)?;
            Ok(file)
        };
        let file = self.wait(write).await??;
        file.sync().await.map_err(at_disk)?;
        self.disk.rename(&part, &path).map_err(at_disk)?;
        self.sync_directories(name).await
    }

    /// Makes the directories of a store durable, up to the root: each may have been made just now.
    async fn sync_directories(&self, name: &StoreName) -> Result<(), NotYet> {
        for directory in [&*files::directory(name), files::ROOT, ""] {
            self.disk.sync_directory(directory).await.map_err(at_disk)?;
        }
        Ok(())
    }

    /// Brings the wanted chunks that are not here. Goes back for every newer document; what came stays.
    pub(super) async fn bring_chunks(
        &self,
        need: &Need,
        manifest: &Manifest,
        (wanted, here): (&[bool], Vec<bool>),
    ) -> Result<(), NotYet> {
        let (name, number) = (&need.store.listed().name, need.listed.number);
        let each = || manifest.chunks.iter().enumerate().zip(wanted.iter().zip(&here));
        let owned: Vec<(&ChunkEntry, bool)> = each()
            .filter(|(_, (wanted, _))| **wanted)
            .map(|((_, chunk), (_, here))| (chunk, *here))
            .collect();
        self.check_mappings(need, owned.len())?;
        let mut seen = BTreeSet::new();
        let delta = |place| manifest.lineage.as_ref().and_then(|lineage| lineage.delta(place));
        let missing: Vec<Missing<'_>> = each()
            .filter(|((_, chunk), (wanted, here))| **wanted && !**here && seen.insert(chunk.digest))
            .map(|((place, chunk), _)| (chunk, delta(place)))
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        let first = self.progress.lock().entry((name.clone(), number)).or_default().begin(&owned);
        if first {
            let (chunks, bytes) =
                (missing.len() as u64, missing.iter().map(|(chunk, _)| chunk.file_bytes).sum());
            let store = name.to_string();
            self.events.record(Event::ArtifactFetching { store, number: number.0, chunks, bytes });
        }
        self.check_room(need, &missing).await?;
        let origins = self.origins.lock().entry((name.clone(), number)).or_default().clone();
        self.bring_all(&Errand::new(need, origins), missing).await
    }

    /// Brings chunks, a few at a time. One that cannot be had does not keep the others from coming.
    async fn bring_all(&self, errand: &Errand<'_>, missing: Vec<Missing<'_>>) -> Result<(), NotYet> {
        let mut missing = missing.into_iter();
        let mut flights = FuturesUnordered::new();
        let (mut changed, mut failures, mut why, mut came) = (false, 0, None, false);
        loop {
            while flights.len() < CHUNKS_TOGETHER && failures < FAILURES_MAX && !changed {
                let Some((chunk, delta)) = missing.next() else { break };
                flights.push(Box::pin(self.bring_chunk(errand, chunk, delta)));
            }
            match flights.next().await {
                None => break,
                Some(Ok(())) => came = true,
                Some(Err(NotYet::Changed)) => changed = true,
                Some(Err(error)) => {
                    failures += 1;
                    why = why.or(Some(error));
                }
            }
        }
        if came {
            self.disk.sync_directory(&files::chunks(errand.name())).await.map_err(at_disk)?;
            self.sync_directories(errand.name()).await?;
        }
        match why {
            _ if changed => Err(NotYet::Changed),
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Brings one file from whoever gives it.
    pub(super) async fn bring_file(&self, errand: &Errand<'_>, wanted: Wanted) -> Result<(), NotYet> {
        let clock = &self.ports.clock;
        let order = errand.origins.lock().choose(clock.now());
        let (mut counted, mut of_source, mut of_replicas) = (0, None, None);
        for origin in order.into_iter().filter(|origin| !wanted.is_delta || *origin == Origin::Source) {
            let reason = match self.givers(errand, wanted, origin).await {
                Err(NotYet::Changed) => return Err(NotYet::Changed),
                Err(reason) => Some(reason),
                Ok(givers) => {
                    let mut reason = None;
                    for giver in givers {
                        match self.bring_from(errand, wanted, &giver, &mut counted).await {
                            Ok(()) => return Ok(()),
                            Err(Halt::Here(not_yet)) => return Err(not_yet),
                            Err(Halt::There(why)) => reason = Some(why),
                        }
                    }
                    reason
                }
            };
            errand.origins.lock().failed(origin, clock.now());
            match origin {
                Origin::Source => of_source = reason,
                Origin::Replicas => of_replicas = reason,
            }
        }
        // What is wrong with the source matters to people; replicas may rightly have nothing yet.
        Err(of_source.or(of_replicas).unwrap_or_else(|| failed("nobody gives it")))
    }

    /// Brings one file from one giver, at no more than the pace.
    async fn bring_from(
        &self,
        errand: &Errand<'_>,
        wanted: Wanted,
        giver: &Giver,
        counted: &mut u64,
    ) -> Result<(), Halt> {
        let entry = wanted.file;
        let (name, digest, clock) = (errand.name(), entry.digest, &self.ports.clock);
        let key = (name.clone(), digest);
        let place = Fetch::list(entry).map_err(|error| self.halt(giver, error))?;
        let list = self.read_chunk(errand, giver, entry, place).await.map_err(Halt::there)?;
        let (disk, part) = (self.disk.clone(), files::part(name, digest));
        let verified = self.verified.lock().remove(&key).unwrap_or(0);
        let resume = move || Fetch::resume((&*disk, &part), entry, list, verified);
        let resumed = self.wait(resume).await.map_err(Halt::Here)?;
        let mut fetch = resumed.map_err(|error| self.halt(giver, error))?;
        let mut took = Duration::ZERO;
        let begun_at = fetch.here();
        self.count(errand, wanted, (begun_at, counted), 0);
        while let Some(range) = fetch.wanted() {
            self.verified.lock().insert(key.clone(), fetch.here());
            let bytes = range.end - range.start;
            if self.is_superseded(errand.view) {
                return Err(Halt::Here(NotYet::Changed));
            }
            self.await_turn(bytes).await;
            let asked_at = clock.now();
            let block = self.read_chunk(errand, giver, entry, range).await.map_err(Halt::there)?;
            took += clock.now().since(asked_at);
            let put = move || {
                let put = fetch.put(&block);
                (fetch, put)
            };
            let put = self.wait(put).await.map_err(Halt::Here)?;
            fetch = put.0;
            put.1.map_err(|error| self.halt(giver, error))?;
            self.count(errand, wanted, (fetch.here(), counted), bytes);
        }
        self.verified.lock().remove(&key);
        let came = fetch.here() - begun_at;
        if let Err(error) = fetch.finish().await {
            // Nobody knows what is on the platter, and the next attempt would compare what memory still shows.
            let _ = self.disk.remove(&files::part(name, digest));
            return Err(self.halt(giver, error));
        }
        let renamed = self.disk.rename(&files::part(name, digest), &files::chunk(name, digest));
        renamed.map_err(|error| Halt::Here(at_disk(error)))?;
        if came > 0 {
            errand.origins.lock().gave(giver.origin(), came, took);
        }
        if !wanted.is_delta {
            let mut progress = self.progress.lock();
            progress.entry((name.clone(), errand.listed.number)).or_default().chunks += 1;
        }
        Ok(())
    }

    /// Whether there is a newer document than the one by which something is fetched.
    pub(super) fn is_superseded(&self, view: &View) -> bool {
        self.view.generation() != view.cluster().generation
    }

    /// What an error of a fetch says about where to go on. Counts chunks that are given wrong.
    fn halt(&self, giver: &Giver, error: FetchError) -> Halt {
        let reason = match giver {
            Giver::Source(_) => error.to_string(),
            Giver::Replica(node) => format!("{node}: {error}"),
        };
        match error {
            FetchError::Target { error: why, .. } => {
                let trouble = if why == DiskError::Full { Trouble::Room } else { Trouble::Node };
                Halt::Here(NotYet::Failed(reason, trouble))
            }
            FetchError::Differs { .. } => {
                match giver {
                    Giver::Source(_) => self.counters.corrupt_at_source.increment(),
                    Giver::Replica(_) => self.counters.corrupt_at_replicas.increment(),
                }
                Halt::There(corrupt(reason))
            }
            _ => Halt::There(failed(reason)),
        }
    }

    /// Counts what of a file is here, of which `counted` is counted already, and what came.
    fn count(&self, errand: &Errand<'_>, wanted: Wanted, (here, counted): (u64, &mut u64), came: u64) {
        let mut progress = self.progress.lock();
        let progress = progress.entry((errand.name().clone(), errand.listed.number)).or_default();
        let more = here.saturating_sub(*counted);
        progress.bytes_fetched += came;
        if came > 0 {
            progress.comes();
        }
        match wanted.is_delta {
            true => {
                progress.bytes_fetched_as_deltas += came;
                self.counters.as_deltas.add(came);
            }
            false => progress.bytes += more,
        }
        *counted += more;
    }
}

#[cfg(test)]
mod tests {
    use model::artifacts::ReadOnlyStore;
    use model::{ArtifactNumber, ManifestDigest, Token};
    use storage::artifacts::{ChunkEntry, Compression, Layout};

    use super::*;

    fn manifest() -> Manifest {
        let chunk = ChunkEntry {
            digest: Digest([1; 16]),
            slice: Slice::WHOLE,
            layout: Layout::Pages,
            file_bytes: 8192,
            records: 1,
            payload_bytes: 2,
        };
        Manifest {
            store: StoreName::new("words").unwrap(),
            number: 7,
            hash: TokenHash::Xxh3,
            compression: Compression::None,
            dictionary: Vec::new(),
            chunks: vec![chunk],
            lineage: None,
        }
    }

    /// What a node says of a source's manifest where the document lists artifact 7 of store words.
    fn refusal(bytes: &[u8], digest: Digest) -> Option<String> {
        let words = StoreName::new("words").unwrap();
        let store = ReadOnlyStore::new(words.clone(), 1);
        let store = store.stage(ArtifactNumber(7), ManifestDigest(digest.0), "file:///words").unwrap();
        check_manifest(&words, &store.artifacts[0], bytes).err()
    }

    #[test]
    fn a_manifest_of_another_artifact_store_hash_or_format_is_refused() {
        let lies = |change: &dyn Fn(&mut Manifest)| {
            let mut manifest = manifest();
            change(&mut manifest);
            let bytes = manifest.encode();
            refusal(&bytes, Digest::of(&bytes)).expect("it lies")
        };
        let sound = manifest().encode();
        assert_eq!(refusal(&sound, Digest::of(&sound)), None);
        let another = refusal(&sound, Digest([9; 16])).unwrap();
        assert!(another.contains("and the document lists 0909"), "{another}");
        assert_eq!(lies(&|manifest| manifest.number = 8), "it is artifact 8 of store words");
        let store = lies(&|manifest| manifest.store = StoreName::new("books").unwrap());
        assert_eq!(store, "it is artifact 7 of store books");
        let hash = lies(&|manifest| manifest.hash = TokenHash::Cut { bits: 3 });
        assert_eq!(hash, "its tokens are made by another hash than those of the ring");
        let gap = lies(&|manifest| manifest.chunks[0].slice.first = Token(1));
        assert!(gap.contains("its manifest cannot be used: it contradicts itself"), "{gap}");
        let mut newer = sound.clone();
        newer[8] = 3;
        let newer = refusal(&newer, Digest::of(&newer)).unwrap();
        assert!(newer.contains("it has format 3") && newer.contains("upgrade tontine"), "{newer}");
    }
}
