//! Where the files of artifacts lie below the data directory.

use model::{ListedArtifact, StoreName};
use runtime::Disk;
use storage::readonly::Digest;

/// What a file is called until all of it is here.
pub(super) const PART: &str = ".part";

/// The directory of a store.
pub(super) fn directory(store: &StoreName) -> String {
    format!("artifacts/{store}")
}

/// The directory of its chunks.
pub(super) fn chunks(store: &StoreName) -> String {
    format!("artifacts/{store}/chunks")
}

/// A chunk.
pub(super) fn chunk(store: &StoreName, digest: Digest) -> String {
    format!("artifacts/{store}/chunks/{digest}")
}

/// The name of a manifest in the store's directory.
pub(super) fn manifest_name(listed: &ListedArtifact) -> String {
    format!("{}-{}", listed.number, listed.manifest)
}

/// A manifest.
pub(super) fn manifest(store: &StoreName, listed: &ListedArtifact) -> String {
    format!("artifacts/{store}/{}", manifest_name(listed))
}

/// A chunk that is being made of the parent's. No manifest names it, so what is left of it is removed.
pub(super) fn merging(store: &StoreName, digest: Digest) -> String {
    format!("{}.merging", chunk(store, digest))
}

/// Bytes of all files of a store that are here, those on their way included.
pub(super) fn bytes(disk: &dyn Disk, store: &StoreName) -> u64 {
    let of_directory = |directory: String| -> u64 {
        let named = disk.list(&directory).unwrap_or_default();
        named
            .iter()
            .filter_map(|file| disk.stat(&format!("{directory}/{file}")).ok())
            .map(|stat| stat.length)
            .sum()
    };
    of_directory(directory(store)) + of_directory(chunks(store))
}

/// What is here of a chunk that is on its way.
pub(super) fn part(store: &StoreName, digest: Digest) -> String {
    format!("{}{PART}", chunk(store, digest))
}
