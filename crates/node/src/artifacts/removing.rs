//! Closes and removes what no listed artifact names for what this node owns.
//!
//! Must never: remove what a fetch under the newest document writes, or anything of an artifact whose manifest is not here.

use std::collections::BTreeSet;

use model::ListedArtifact;
use storage::artifacts::{ChunkEntry, Digest, Manifest};

use super::{Artifacts, files};
use crate::events::Event;
use crate::stores::ReadOnly;
use crate::view::View;

/// What of a store is of use here.
#[derive(Default)]
struct Needed {
    /// Names of files among the chunks.
    names: BTreeSet<String>,
    chunks: BTreeSet<Digest>,
}

impl Needed {
    /// A chunk of what this node owns; what is here of one that is on its way; and its delta until it is made.
    fn add(&mut self, chunk: &ChunkEntry, delta: Option<Digest>, is_here: bool) {
        self.chunks.insert(chunk.digest);
        self.names.insert(chunk.digest.to_string());
        if is_here {
            return;
        }
        for file in [Some(chunk.digest), delta].into_iter().flatten() {
            self.names.extend([file.to_string(), format!("{file}{}", files::PART)]);
        }
        self.names.extend(files::MERGING.map(|ending| format!("{}{ending}", chunk.digest)));
    }
}

impl Artifacts {
    /// Adds what is of use here of an artifact; nothing where the disk does not say.
    async fn add_needed(
        &self,
        (view, store, manifest): (&View, &ReadOnly, &Manifest),
        needed: &mut Needed,
    ) -> Option<()> {
        let wanted = self.wanted(view, store, manifest);
        let here = self.here(store, manifest, &wanted).await.ok()?.sound;
        let delta = |place| manifest.lineage.as_ref().and_then(|lineage| lineage.delta(place));
        for (place, chunk) in manifest.chunks.iter().enumerate().filter(|(place, _)| wanted[*place]) {
            needed.add(chunk, delta(place).map(|delta| delta.digest), here[place]);
        }
        Some(())
    }

    /// Closes artifacts that the document does not list, forgets damage that concerns nobody any more, and removes files that
    /// no listed artifact names. As long as a manifest is not here, nobody knows what it names, and chunks stay.
    pub(super) async fn remove_unlisted(&self, view: &View, store: &ReadOnly) {
        let lists = |number, manifest| {
            let listed: Option<&ListedArtifact> = store.listed().artifact(number);
            listed.is_some_and(|listed| listed.manifest == manifest)
        };
        store.held().retain(lists);
        let name = store.listed().name.clone();
        let (mut needed, mut all_known) = (Needed::default(), true);
        let mut manifests = BTreeSet::from(["chunks".to_owned()]);
        for listed in &store.listed().artifacts {
            let file = files::manifest_name(listed);
            let known = match self.manifest_here(store, listed).await {
                Ok(Some(manifest)) => self.add_needed((view, store, &manifest), &mut needed).await,
                _ => {
                    manifests.insert(format!("{file}{}", files::PART));
                    None
                }
            };
            manifests.insert(file);
            all_known &= known.is_some();
        }
        if self.is_superseded(view) {
            return;
        }
        let mut named = vec![(files::directory(&name), manifests)];
        if all_known {
            store.held().retain_damaged(|chunk, _| needed.chunks.contains(&chunk));
            named.push((files::chunks(&name), needed.names));
        }
        let disk = self.disk.clone();
        let remove = move || {
            let mut removed = Vec::new();
            for (directory, named) in named {
                let Ok(found) = disk.list(&directory) else { continue };
                for file in found.into_iter().filter(|file| !named.contains(file)) {
                    match disk.remove(&format!("{directory}/{file}")) {
                        Ok(()) => removed.extend(files::number_of(&file)),
                        Err(error) => tracing::warn!(%error, "file of an artifact not removed"),
                    }
                }
            }
            removed
        };
        for number in self.wait(remove).await.unwrap_or_default() {
            let store = store.listed().name.to_string();
            self.events.record(Event::ArtifactRemoved { store, number });
        }
    }
}
