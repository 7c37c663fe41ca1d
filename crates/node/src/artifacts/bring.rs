//! Brings manifests and chunks from their source to this disk, and removes what nobody names any more.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use model::{ArtifactNumber, ListedArtifact, StoreName};
use runtime::{Disk, DiskError};
use storage::readonly::{
    CHUNKS_MAX, ChunkEntry, DICTIONARY_BYTES_MAX, Digest, Fetch, MANIFEST_PATH, Manifest, TokenHash,
    chunk_path,
};

use super::{Artifacts, NotYet, files};
use crate::stores::ReadOnly;
use crate::view::View;

/// Bytes a second that a node fetches at most: about half of what one core copies and verifies, and of a common disk.
const FETCH_BYTES_PER_SECOND: u64 = 128 << 20;
/// Bytes that a fetch leaves free on the disk, for the stores that take writes.
const SPACE_LEFT_BYTES: u64 = 256 << 20;
/// Longest manifest: as many chunks as there may be, and a dictionary.
const MANIFEST_BYTES_MAX: u64 = (CHUNKS_MAX as u64) * 64 + DICTIONARY_BYTES_MAX as u64 + 4096;

fn failed(error: impl ToString) -> NotYet {
    NotYet::Failed(error.to_string())
}

/// The bytes of a whole file.
fn read_whole(disk: &dyn Disk, path: &str) -> Result<Vec<u8>, DiskError> {
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
fn check_manifest(store: &StoreName, listed: &ListedArtifact, bytes: &[u8]) -> Result<Manifest, String> {
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
    /// The manifest of an artifact, if it is here.
    pub(super) async fn manifest_here(
        &self,
        store: &ReadOnly,
        listed: &ListedArtifact,
    ) -> Result<Option<Manifest>, NotYet> {
        let (disk, name, listed) = (self.disk.clone(), store.listed().name.clone(), listed.clone());
        let read = move || match read_whole(&*disk, &files::manifest(&name, &listed)) {
            Ok(bytes) => Ok(check_manifest(&name, &listed, &bytes).ok()),
            Err(DiskError::NotFound { .. }) => Ok(None),
            Err(error) => Err(failed(error)),
        };
        self.wait(read).await?
    }

    /// Brings the manifest of an artifact from its source.
    pub(super) async fn bring_manifest(
        &self,
        store: &ReadOnly,
        listed: &ListedArtifact,
    ) -> Result<Manifest, NotYet> {
        let (disk, name) = (self.disk.clone(), store.listed().name.clone());
        let (source, wanted) = (self.source(listed).await?, listed.clone());
        let url = listed.source.clone();
        let bring = move || {
            let bytes =
                read_whole(&*source, MANIFEST_PATH).map_err(|error| failed(format!("{url}: {error}")))?;
            let manifest =
                check_manifest(&name, &wanted, &bytes).map_err(|what| failed(format!("{url}: {what}")))?;
            let part = format!("{}{}", files::manifest(&name, &wanted), files::PART);
            match disk.remove(&part) {
                Ok(()) | Err(DiskError::NotFound { .. }) => {}
                Err(error) => return Err(failed(error)),
            }
            let file = disk.create(&part).map_err(failed)?;
            file.append(&bytes).map_err(failed)?;
            Ok((manifest, file))
        };
        let (manifest, file) = self.wait(bring).await??;
        file.sync().await.map_err(failed)?;
        let path = files::manifest(&store.listed().name, listed);
        self.disk.rename(&format!("{path}{}", files::PART), &path).map_err(failed)?;
        self.disk.sync_directory(&files::directory(&store.listed().name)).await.map_err(failed)?;
        Ok(manifest)
    }

    /// The files of an artifact's source.
    async fn source(&self, listed: &ListedArtifact) -> Result<Arc<dyn Disk>, NotYet> {
        let sources = self.sources.clone();
        let sources = sources.ok_or_else(|| failed("this node reads from no sources"))?;
        let url = listed.source.clone();
        self.wait(move || sources.open(&url)).await?.map_err(NotYet::Failed)
    }

    /// Which of the wanted chunks are here.
    pub(super) async fn here(
        &self,
        store: &ReadOnly,
        manifest: &Manifest,
        mut wanted: Vec<bool>,
    ) -> Vec<bool> {
        let (disk, name) = (self.disk.clone(), store.listed().name.clone());
        let chunks: Vec<(Digest, u64)> =
            manifest.chunks.iter().map(|chunk| (chunk.digest, chunk.file_bytes)).collect();
        let nothing = vec![false; wanted.len()];
        let look = move || {
            for ((digest, bytes), wanted) in chunks.into_iter().zip(&mut wanted) {
                *wanted =
                    *wanted && disk.stat(&files::chunk(&name, digest)).is_ok_and(|stat| stat.length == bytes);
            }
            wanted
        };
        self.wait(look).await.unwrap_or(nothing)
    }

    /// Brings the wanted chunks that are not here. Goes back for every newer document after each chunk, which stays.
    pub(super) async fn bring_chunks(
        &self,
        view: &View,
        store: &ReadOnly,
        listed: &ListedArtifact,
        manifest: &Manifest,
        (wanted, here): (&[bool], Vec<bool>),
    ) -> Result<(), NotYet> {
        let (name, number) = (&store.listed().name, listed.number);
        let owned: Vec<(&ChunkEntry, bool)> = manifest
            .chunks
            .iter()
            .zip(wanted.iter().zip(here))
            .filter(|(_, (wanted, _))| **wanted)
            .map(|(chunk, (_, here))| (chunk, here))
            .collect();
        let mut seen = BTreeSet::new();
        let missing: Vec<&ChunkEntry> = owned
            .iter()
            .filter(|(chunk, here)| !here && seen.insert(chunk.digest))
            .map(|(chunk, _)| *chunk)
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        self.progress.lock().entry((name.clone(), number)).or_default().begin(&owned);
        let needed: u64 = missing.iter().map(|chunk| chunk.file_bytes).sum();
        let available = self.disk.available_bytes();
        if needed.saturating_add(SPACE_LEFT_BYTES) > available {
            return Err(failed(format!(
                "fetching needs {needed} bytes, and the disk has {available} bytes left, of which {SPACE_LEFT_BYTES} stay \
                 free; free space, or delete artifacts with `tontine artifact delete`"
            )));
        }
        let source = self.source(listed).await?;
        for chunk in missing {
            self.bring_chunk(&source, name, listed, chunk).await?;
            self.disk.sync_directory(&files::chunks(name)).await.map_err(failed)?;
            if self.view.generation() != view.cluster().generation {
                return Err(NotYet::Changed);
            }
        }
        Ok(())
    }

    /// Brings one chunk, at no more than the pace.
    async fn bring_chunk(
        &self,
        source: &Arc<dyn Disk>,
        name: &StoreName,
        listed: &ListedArtifact,
        chunk: &ChunkEntry,
    ) -> Result<(), NotYet> {
        let part = format!("{}{}", files::chunk(name, chunk.digest), files::PART);
        let told = |error: storage::readonly::FetchError| failed(format!("{}: {error}", listed.source));
        let (from, to, entry, into) = (source.clone(), self.disk.clone(), chunk.clone(), part.clone());
        let begin = move || Fetch::begin((&*from, &chunk_path(entry.digest)), (&*to, &into), &entry);
        let mut fetch = self.wait(begin).await?.map_err(told)?;
        let clock = &self.ports.clock;
        let mut next = clock.now();
        loop {
            let step = move || {
                let stepped = fetch.step();
                (fetch, stepped)
            };
            let stepped;
            (fetch, stepped) = self.wait(step).await?;
            let bytes = stepped.map_err(told)? as u64;
            if bytes == 0 {
                break;
            }
            self.count(name, listed.number, bytes);
            next = next
                .max(clock.now())
                .after(Duration::from_nanos(bytes * 1_000_000_000 / FETCH_BYTES_PER_SECOND));
            let view = self.view.get();
            let listing = view.cluster().read_only(name.as_str());
            if listing.and_then(|store| store.artifact(listed.number)).is_none() {
                return Err(NotYet::Changed);
            }
            clock.sleep_until(next).await;
        }
        fetch.finish().await.map_err(told)?;
        self.disk.rename(&part, &files::chunk(name, chunk.digest)).map_err(failed)?;
        self.progress.lock().entry((name.clone(), listed.number)).or_default().chunks += 1;
        Ok(())
    }

    fn count(&self, name: &StoreName, number: ArtifactNumber, bytes: u64) {
        let mut progress = self.progress.lock();
        let progress = progress.entry((name.clone(), number)).or_default();
        progress.bytes += bytes;
        progress.bytes_fetched += bytes;
    }

    /// Closes artifacts that the document does not list, and removes files that no listed artifact names. As long as a
    /// manifest is not here, nobody knows what it names, and chunks stay.
    pub(super) async fn remove_unlisted(&self, view: &View, store: &ReadOnly) {
        let lists = |number, manifest| {
            let listed: Option<&ListedArtifact> = store.listed().artifact(number);
            listed.is_some_and(|listed| listed.manifest == manifest)
        };
        store.held().retain(lists);
        let name = store.listed().name.clone();
        let mut chunks = Some(BTreeSet::new());
        let mut manifests = BTreeSet::new();
        for listed in &store.listed().artifacts {
            manifests.insert(files::manifest_name(listed));
            match self.manifest_here(store, listed).await {
                Ok(Some(manifest)) => {
                    chunks.iter_mut().for_each(|chunks| {
                        chunks.extend(manifest.chunks.iter().map(|chunk| chunk.digest.to_string()));
                    });
                }
                _ => chunks = None,
            }
        }
        let wanted = chunks.map(|chunks| (files::chunks(&name), chunks));
        let named = [(files::directory(&name), manifests)].into_iter().chain(wanted).collect::<Vec<_>>();
        if self.view.generation() != view.cluster().generation {
            return;
        }
        let disk = self.disk.clone();
        let remove = move || {
            for (directory, named) in named {
                let Ok(found) = disk.list(&directory) else { continue };
                for file in found.into_iter().filter(|file| !named.contains(file) && file != "chunks") {
                    if let Err(error) = disk.remove(&format!("{directory}/{file}")) {
                        tracing::warn!(%error, "file of an artifact not removed");
                    }
                }
            }
        };
        let _ = self.wait(remove).await;
    }
}
