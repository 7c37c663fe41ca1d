//! Where the files of artifacts lie below the data directory.

use model::{ListedArtifact, StoreName};
use runtime::Disk;
use storage::artifacts::Digest;

/// Where the directories of all stores lie.
pub(super) const ROOT: &str = "artifacts";

/// What a file is called until all of it is here.
pub(super) const PART: &str = ".part";

/// The directory of a store.
pub(super) fn directory(store: &StoreName) -> String {
    format!("{ROOT}/{store}")
}

/// The directory of its chunks.
pub(super) fn chunks(store: &StoreName) -> String {
    format!("{ROOT}/{store}/chunks")
}

/// A chunk.
pub(super) fn chunk(store: &StoreName, digest: Digest) -> String {
    format!("{}/{digest}", chunks(store))
}

/// The name of a manifest in the store's directory.
pub(super) fn manifest_name(listed: &ListedArtifact) -> String {
    format!("{}-{}", listed.number, listed.manifest)
}

/// The number of the artifact whose manifest has this name; nothing for other files.
pub(super) fn number_of(file: &str) -> Option<u64> {
    let (number, digest) = file.split_once('-')?;
    digest.parse::<Digest>().ok().and(number.parse().ok())
}

/// A manifest.
pub(super) fn manifest(store: &StoreName, listed: &ListedArtifact) -> String {
    format!("{}/{}", directory(store), manifest_name(listed))
}

/// How the files end in which a chunk is made of the parent's: the first one, and where it turns to slots.
pub(super) const MERGING: [&str; 2] = [".merging", ".merging.slots"];

/// A chunk that is being made of the parent's. What is left of it is removed when the chunk is here, or not wanted.
pub(super) fn merging(store: &StoreName, digest: Digest) -> String {
    format!("{}{}", chunk(store, digest), MERGING[0])
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
