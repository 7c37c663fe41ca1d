//! Deltas of artifacts: a merge makes the chunk that was built, or refuses.

use std::sync::{Arc, OnceLock};

use model::Token;
use runtime::Disk;
use runtime::disk::simulated::SimulatedDisk;
use storage::artifacts::{
    ChunkEntry, Compression, DeltaEntry, Digest, Layout, Lineage, Manifest, MergeError, MergeInputs, Slice,
    TokenHash, chunk_path, merge, prove_delta,
};
use xxhash_rust::xxh3::xxh3_64;

const FOOTER_BYTES: usize = 96;
const BLOCK_BYTES: usize = 1 << 20;
/// The parent's chunk.
const PARENT: &[u8] = include_bytes!("../corpus/artifact/golden-pages");
/// The delta that was built upon it.
const GOLDEN: &[u8] = include_bytes!("../corpus/delta/golden-words");

/// Panics when a merge hands out what nobody built, or when a delta with right checksums makes it panic.
pub fn check(input: &[u8]) {
    merged(input);
    // Behind the checksums nothing may panic either, whatever it makes of it.
    merged(&with_right_checksums(input));
}

/// The chunk that the delta was built for.
fn wanted() -> &'static (ChunkEntry, Vec<u8>) {
    static WANTED: OnceLock<(ChunkEntry, Vec<u8>)> = OnceLock::new();
    WANTED.get_or_init(|| {
        let digest: Digest = "38c207301547f4ca1c879f5cb750d158".parse().expect("a digest");
        let slice = Slice { first: Token(0), last: Token(u64::MAX) };
        let (file_bytes, records, payload_bytes) = (PARENT.len() as u64, 3, 15);
        let entry = ChunkEntry { digest, slice, layout: Layout::Pages, file_bytes, records, payload_bytes };
        let bytes = attempt(GOLDEN, &entry).expect("it was built of it");
        (entry, bytes)
    })
}

fn merged(delta: &[u8]) {
    let (entry, bytes) = wanted();
    if let Ok(made) = attempt(delta, entry) {
        assert!(made == *bytes, "a merge made what nobody built");
    }
}

/// What a manifest would say of a delta, by its own footer.
fn entry(delta: &[u8]) -> Option<DeltaEntry> {
    let footer = delta.get(footer_at(delta)?..)?.get(..FOOTER_BYTES)?;
    let number = |at: usize| u64::from_le_bytes(footer[at..at + 8].try_into().expect("eight bytes"));
    Some(DeltaEntry {
        digest: Digest::of(delta),
        parent: Digest(footer[56..72].try_into().expect("sixteen bytes")),
        file_bytes: delta.len() as u64,
        puts: number(32),
        deletes: number(40),
        chunk: 0,
    })
}

fn attempt(delta: &[u8], wanted: &ChunkEntry) -> Result<Vec<u8>, Option<MergeError>> {
    let by = entry(delta).ok_or(None)?;
    let node = SimulatedDisk::new(0);
    node.plant("parent", PARENT);
    node.plant(&chunk_path(by.digest), delta);
    let inputs = MergeInputs {
        parent: node.open("parent").expect("it was planted"),
        delta: node.open(&chunk_path(by.digest)).expect("it was planted"),
    };
    let disk: Arc<dyn Disk> = Arc::new(node.clone());
    let made = merge(&disk, "made", inputs, TokenHash::Xxh3, (wanted, &by))?;
    let bytes = node.contents(&made.path).expect("it was made");
    node.plant(&chunk_path(wanted.digest), &bytes);
    let manifest = Manifest {
        store: model::StoreName::new("words").expect("a name"),
        number: 8,
        hash: TokenHash::Xxh3,
        compression: Compression::None,
        dictionary: Vec::new(),
        chunks: vec![wanted.clone()],
        lineage: Some(Lineage { number: 7, manifest: Digest::of(b"the parent"), deltas: vec![by.clone()] }),
    };
    let _ = prove_delta(&node, &manifest, &by);
    Ok(bytes)
}

/// Inputs are shorter than a block, so there is one.
fn footer_at(delta: &[u8]) -> Option<usize> {
    delta.len().checked_sub(FOOTER_BYTES + 16).filter(|_| delta.len() < BLOCK_BYTES)
}

/// The same bytes, with length of the changes and checksum of the footer as they must be for what is there.
fn with_right_checksums(delta: &[u8]) -> Vec<u8> {
    let mut bytes = delta.to_vec();
    let Some(at) = footer_at(delta) else { return bytes };
    bytes[at + 48..at + 56].copy_from_slice(&(at as u64).to_le_bytes());
    let check = xxh3_64(&bytes[at..at + FOOTER_BYTES - 8]);
    bytes[at + FOOTER_BYTES - 8..at + FOOTER_BYTES].copy_from_slice(&check.to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_corpus_is_a_delta_whose_checksums_are_right() {
        assert_eq!(with_right_checksums(GOLDEN), GOLDEN);
        let by = entry(GOLDEN).expect("it has a footer");
        assert_eq!((by.puts, by.deletes), (2, 1));
        assert_eq!(wanted().1.len(), PARENT.len());
    }
}
