//! Manifests of artifacts, with and without a parent: what is read is written as the very same bytes.

use storage::artifacts::{Manifest, ManifestError};
use xxhash_rust::xxh3::xxh3_64;

/// Panics when a manifest is read that would be written otherwise, or that names a delta of no chunk.
pub fn check(input: &[u8]) {
    let _ = read(input);
    // Behind the checksum, too.
    let _ = read(&with_right_checksum(input));
}

fn read(bytes: &[u8]) -> Result<Manifest, ManifestError> {
    let manifest = Manifest::decode(bytes)?;
    assert!(manifest.encode() == bytes, "it is written otherwise than it was read");
    for delta in manifest.deltas() {
        let chunk = delta.chunk as usize;
        assert!(chunk < manifest.chunks.len(), "a delta makes a chunk that is none");
        let lineage = manifest.lineage.as_ref().expect("there are deltas");
        assert_eq!(lineage.delta(chunk), Some(delta));
    }
    assert_eq!(manifest.files().count(), manifest.chunks.len() + manifest.deltas().len());
    Ok(manifest)
}

fn with_right_checksum(input: &[u8]) -> Vec<u8> {
    let mut bytes = input.to_vec();
    if let Some(at) = bytes.len().checked_sub(8) {
        let check = xxh3_64(&bytes[..at]);
        bytes[at..].copy_from_slice(&check.to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_corpus_is_manifests_that_are_read() {
        let alone = include_bytes!("../corpus/manifest/golden-slots");
        assert_eq!(read(alone).expect("it was built").lineage, None);
        let child = read(include_bytes!("../corpus/manifest/golden-child")).expect("it was built");
        assert_eq!(child.deltas().len(), 1);
        assert_eq!(with_right_checksum(alone), alone);
    }
}
