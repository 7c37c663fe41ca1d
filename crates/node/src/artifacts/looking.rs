//! The look: opens what is here, confirms what is whole, and says what is missing. It fetches nothing, so no fetch keeps
//! another artifact waiting, however long it takes.
//!
//! Each chunk is opened from the file that has its name at that moment. When another file takes the name, because the chunk
//! was fetched again, each artifact that has the old one open is opened anew.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use model::artifacts::Standing;
use model::routing::slices_held;
use model::{ArtifactNumber, Generation, ListedArtifact, StoreName};
use storage::artifacts::{Artifact, ChunkEntry, Digest, Manifest, OpenError};

use super::fetching::Need;
use super::{Artifacts, FetchProgress, NotYet, State, Trouble, files};
use crate::events::Event;
use crate::stores::{FileIdentity, Open, ReadOnly};
use crate::view::View;

/// Everything that a document lists: what is served first, then what is kept, then what was never served.
fn listed(view: &View) -> Vec<(Arc<ReadOnly>, ListedArtifact)> {
    let each = |store: &Arc<ReadOnly>| {
        let artifacts = store.listed().artifacts.clone();
        artifacts.into_iter().map(|artifact| (store.clone(), artifact)).collect::<Vec<_>>()
    };
    let mut all: Vec<_> = view.read_only_stores().iter().flat_map(each).collect();
    all.sort_by_key(|(_, artifact)| match artifact.standing {
        Standing::Served => 0,
        Standing::Kept => 1,
        Standing::Staging => 2,
    });
    all
}

/// The files of an artifact's chunks, by position.
pub(super) struct Here {
    /// The file that has the chunk's name and length, where the chunk is wanted.
    pub(super) files: Vec<Option<FileIdentity>>,
    /// Whether that file is not known to be damaged.
    pub(super) sound: Vec<bool>,
}

impl Artifacts {
    /// Opens what is here already, and fetches nothing.
    pub(super) async fn open_present(&self) {
        let view = self.view.get();
        for (store, listed) in listed(&view) {
            let Ok(Some(manifest)) = self.manifest_here(&store, &listed).await else { continue };
            let wanted = self.wanted(&view, &store, &manifest);
            let Ok(here) = self.here(&store, &manifest, &wanted).await else { continue };
            let under = if here.sound == wanted { view.cluster().generation } else { Generation::default() };
            if let Err(NotYet::Failed(error, _)) = self.open(&store, &listed, manifest, here, under).await {
                tracing::warn!(store = %store.listed().name, number = listed.number.0, error, "artifact not opened");
            }
        }
    }

    /// Looks once at everything that the document lists, and says what is missing; `None` when a newer document came
    /// meanwhile. Thorough: files are looked for, too.
    pub(super) async fn look(&self, thorough: bool) -> Option<Vec<Need>> {
        let view = self.view.get();
        let mut missing = Vec::new();
        for (store, listed) in listed(&view) {
            if self.is_superseded(&view) {
                return None;
            }
            match self.examine(&view, &store, &listed, thorough).await {
                Ok(true) => {}
                Ok(false) => missing.push(Need { view: view.clone(), store, listed }),
                Err(error) => self.note_failure(&store, listed.number, error),
            }
        }
        if thorough || self.removed_under.load(Ordering::Relaxed) != view.cluster().generation.0 {
            for store in view.read_only_stores() {
                self.remove_unlisted(&view, store).await;
            }
            self.removed_under.store(view.cluster().generation.0, Ordering::Relaxed);
        }
        let lists = |(name, number): &(StoreName, ArtifactNumber)| {
            view.cluster().read_only(name.as_str()).is_some_and(|store| store.artifact(*number).is_some())
        };
        self.progress.lock().retain(|key, _| lists(key));
        self.origins.lock().retain(|key, _| lists(key));
        (!self.is_superseded(&view)).then_some(missing)
    }

    /// Something went wrong with an artifact; what is not known yet is told.
    pub(super) fn note_failure(&self, store: &ReadOnly, number: ArtifactNumber, error: NotYet) {
        let NotYet::Failed(error, trouble) = error else { return };
        let name = &store.listed().name;
        let known = self.progress.lock().entry((name.clone(), number)).or_default().fail(&error, trouble);
        if !known {
            let (store, number) = (name.to_string(), number.0);
            tracing::warn!(store, number, error, "artifact not staged");
            self.events.record(Event::ArtifactFailed { store, number, error });
        }
    }

    /// Looks at one artifact, and opens it when all of it is here, or when an open chunk has got another file. False when
    /// something is missing.
    async fn examine(
        &self,
        view: &View,
        store: &ReadOnly,
        listed: &ListedArtifact,
        thorough: bool,
    ) -> Result<bool, NotYet> {
        let generation = view.cluster().generation;
        let key = (store.listed().name.clone(), listed.number);
        let open = store.held().open(listed.number, listed.manifest);
        let damaged = store.held().damaged();
        self.tell_damaged(store);
        let is_told = || {
            let progress = self.progress.lock();
            progress
                .get(&key)
                .is_some_and(|told| told.state == State::Staged && told.whole_under == generation)
        };
        if let Some(open) = &open
            && open.whole_under() == generation
            && !damaged.iter().any(|(chunk, _)| open.position(*chunk).is_some())
            && !thorough
            && is_told()
        {
            return Ok(true);
        }
        let Some(manifest) = self.manifest_here(store, listed).await? else {
            self.note_missing(&key, &[]);
            return Ok(false);
        };
        let wanted = self.wanted(view, store, &manifest);
        let here = self.here(store, &manifest, &wanted).await?;
        let whole = here.sound == wanted;
        if !whole {
            let each = manifest.chunks.iter().zip(here.sound.iter().copied()).zip(&wanted);
            let owned: Vec<_> = each.filter(|(_, wanted)| **wanted).map(|(owned, _)| owned).collect();
            self.note_missing(&key, &owned);
        }
        let is_open = |open: &&Arc<Open>| whole && open.files == here.files && open.chunks == wanted;
        if let Some(open) = open.as_ref().filter(is_open) {
            if open.whole_under() != generation || !is_told() {
                open.set_whole_under(generation);
                self.now_is(key, FetchProgress::of(&manifest, &wanted, generation));
            }
            return Ok(true);
        }
        if !whole && !open.as_ref().is_some_and(|open| gains(open, &here.files, &wanted)) {
            return Ok(false);
        }
        let under = if whole { generation } else { Generation::default() };
        let was_whole = open.is_some_and(|open| open.whole_under() != Generation::default());
        let is_whole = self.open(store, listed, manifest, here, under).await?;
        if is_whole && !was_whole {
            let (store, number) = (key.0.to_string(), listed.number.0);
            self.events.record(Event::ArtifactStaged { store, number });
        }
        Ok(is_whole)
    }

    /// What was told to be whole is not any more, whether it is fetched now or waits for its turn.
    fn note_missing(&self, key: &(StoreName, ArtifactNumber), owned: &[(&ChunkEntry, bool)]) {
        if let Some(progress) = self.progress.lock().get_mut(key) {
            progress.lacks(owned);
        }
    }

    /// Which of the wanted chunks are here. What was damaged and has another file now is forgotten.
    pub(super) async fn here(
        &self,
        store: &ReadOnly,
        manifest: &Manifest,
        wanted: &[bool],
    ) -> Result<Here, NotYet> {
        let (disk, name) = (self.disk.clone(), store.listed().name.clone());
        let each = manifest.chunks.iter().zip(wanted);
        let chunks: Vec<(Digest, u64, bool)> =
            each.map(|(chunk, wanted)| (chunk.digest, chunk.file_bytes, *wanted)).collect();
        let look = move || {
            let file = |(digest, bytes, wanted): (Digest, u64, bool)| {
                let stat = if wanted { disk.stat(&files::chunk(&name, digest)).ok()? } else { return None };
                (stat.length == bytes).then_some(stat.identity)
            };
            chunks.into_iter().map(file).collect::<Vec<_>>()
        };
        let files = self.wait(look).await?;
        let each = || manifest.chunks.iter().zip(&files);
        let now: BTreeMap<Digest, FileIdentity> =
            each().filter_map(|(chunk, file)| Some((chunk.digest, (*file)?))).collect();
        store.held().retain_damaged(|chunk, file| now.get(&chunk).is_none_or(|now| *now == file));
        let damaged = store.held().damaged();
        let is_sound = |(chunk, file): (&ChunkEntry, &Option<FileIdentity>)| {
            file.is_some_and(|file| !damaged.contains(&(chunk.digest, file)))
        };
        let sound = each().map(is_sound).collect();
        Ok(Here { files, sound })
    }

    /// Tells of damaged chunks, once each until they have come again.
    fn tell_damaged(&self, store: &ReadOnly) {
        let (mut told, held, store) = (self.damage_told.lock(), store.held(), &store.listed().name);
        let damaged: BTreeSet<Digest> = held.damaged().into_iter().map(|(chunk, _)| chunk).collect();
        told.retain(|(of, chunk)| of != store || damaged.contains(chunk));
        for chunk in damaged {
            if told.insert((store.clone(), chunk)) {
                self.counters.corrupt_here.increment();
                tracing::warn!(%store, %chunk, "chunk of an artifact found corrupt");
                let (store, chunk) = (store.to_string(), chunk.to_string());
                self.events.record(Event::ArtifactCorrupt { store, chunk });
            }
        }
    }

    /// Opens an artifact from these files, in place of what is open of it. `whole_under` names the document of which they are
    /// all, if they are. A chunk that is damaged is noted and left out; false when something is missing.
    async fn open(
        &self,
        store: &ReadOnly,
        listed: &ListedArtifact,
        manifest: Manifest,
        Here { mut files, .. }: Here,
        whole_under: Generation,
    ) -> Result<bool, NotYet> {
        let (disk, name) = (self.disk.clone(), store.listed().name.clone());
        let mut chunks: Vec<bool> = files.iter().map(Option::is_some).collect();
        let wanted: BTreeMap<u64, bool> =
            manifest.chunks.iter().map(|chunk| chunk.slice.first.0).zip(chunks.clone()).collect();
        let open = move || {
            let wanted = |chunk: &ChunkEntry| wanted[&chunk.slice.first.0];
            Artifact::open_sound(&*disk, manifest, &|digest| files::chunk(&name, digest), &wanted)
        };
        let (artifact, refused) = self.wait(open).await?;
        let (key, mut failure) = ((store.listed().name.clone(), listed.number), None);
        for (position, error) in refused {
            chunks[position] = false;
            match (&error, files[position]) {
                (OpenError::Chunk { chunk, .. }, Some(file)) => {
                    tracing::warn!(store = %key.0, number = key.1.0, %error, "chunk of an artifact not opened");
                    store.held().note_damage(*chunk, file);
                }
                _ => {
                    // The file may be sound: it is tried again.
                    files[position] = None;
                    failure = Some(NotYet::Failed(error.to_string(), Trouble::Node));
                }
            }
        }
        let open = store.held().open(listed.number, listed.manifest);
        if let Some(failure) = failure.take_if(|_| open.is_some()) {
            return Err(failure);
        }
        let is_open = files.iter().zip(&chunks).all(|(file, open)| file.is_some() == *open);
        let under = if is_open && failure.is_none() { whole_under } else { Generation::default() };
        let progress = FetchProgress::of(artifact.manifest(), &chunks, under);
        store.held().put(listed.number, Open::new(listed.manifest, artifact, (chunks, files), under));
        let is_whole = under != Generation::default();
        let replaces = |known: &FetchProgress| is_whole || known.state == State::Staged;
        if self.progress.lock().get(&key).is_none_or(replaces) {
            self.now_is(key, progress);
        }
        failure.map_or(Ok(is_whole), Err)
    }

    /// Notes how far an artifact is; what was fetched of it stays told.
    fn now_is(&self, which: (StoreName, ArtifactNumber), now: FetchProgress) {
        let mut progress = self.progress.lock();
        let known = progress.entry(which).or_default();
        let (bytes_fetched, bytes_fetched_as_deltas) = (known.bytes_fetched, known.bytes_fetched_as_deltas);
        *known = FetchProgress { bytes_fetched, bytes_fetched_as_deltas, ..now };
    }

    /// Which chunks of an artifact touch what this node owns, or is about to own.
    pub(super) fn wanted(&self, view: &View, store: &ReadOnly, manifest: &Manifest) -> Vec<bool> {
        manifest.touching(&slices_held(&view.cluster().ring, store.definition(), self.node))
    }
}

/// Whether opening what is here would replace an open chunk by its new file, and lose none that is open and wanted: a file
/// that was removed is still read where it is mapped.
fn gains(open: &Open, files: &[Option<FileIdentity>], wanted: &[bool]) -> bool {
    let each = || open.files.iter().zip(&open.chunks).zip(files.iter().zip(wanted));
    let replaced = each().any(|((was, _), (now, _))| was.is_some() && now.is_some() && was != now);
    replaced && each().all(|((_, open), (now, wanted))| !(*open && *wanted) || now.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driven::keeper::{Built, Keeper, empty};

    /// By another document the node may own other slices, of which nobody has looked whether they are here.
    #[test]
    fn an_artifact_is_whole_under_the_document_by_which_it_was_checked() {
        let built = Built::new("words", 1);
        let stores = || vec![built.served(&empty("words"))];
        let mut keeper = Keeper::whole(stores(), &[&built]);
        let (stage, artifacts) = (keeper.home.stage.clone(), keeper.node.artifacts().clone());
        let view = artifacts.view.get();
        keeper.adopt(stores());
        keeper.until_whole();
        let (store, listed) = listed(&view).remove(0);
        let examined = stage.run(artifacts.examine(&view, &store, &listed, true));
        assert!(matches!(examined, Ok(true)));
        assert_eq!(keeper.told_of(&built).whole_under, view.cluster().generation);
        let open = store.held().open(listed.number, listed.manifest).unwrap();
        assert_eq!(open.whole_under(), view.cluster().generation);
    }
}
