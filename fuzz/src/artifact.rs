//! Chunks of artifacts: a reader serves what was built, or refuses.

use model::Token;
use runtime::disk::simulated::SimulatedDisk;
use storage::artifacts::{
    Artifact, ChunkEntry, Compression, Digest, Layout, Manifest, Slice, TokenHash, WalkLimit, chunk_path,
    prove,
};
use xxhash_rust::xxh3::xxh3_64;

const FOOTER_BYTES: usize = 96;
const BLOCK_BYTES: usize = 1 << 20;
/// Pages of one walk; more mean that it never ends.
const PAGES_MAX: usize = 100_000;
/// Keys and values of the corpus.
const BUILT: [(&str, &str); 3] = [("one", "1"), ("three", "3"), ("two", "2")];

/// Panics when an artifact with this chunk serves what nobody built, or when a chunk with right checksums makes it
/// panic or walk for ever.
pub fn check(input: &[u8]) {
    read(input, true);
    // Behind the checksums nothing may panic either, whatever it makes of it.
    let repaired = with_right_checksums(input);
    read(&repaired, repaired == input);
}

/// Reads a chunk in all ways; what comes out must be what was built, if the checksums are the builder's.
fn read(chunk: &[u8], believed: bool) {
    let Some(entry) = entry(chunk) else { return };
    let manifest = Manifest {
        store: model::StoreName::new("words").expect("a name"),
        number: 7,
        hash: TokenHash::Xxh3,
        compression: Compression::None,
        dictionary: Vec::new(),
        chunks: vec![entry.clone()],
        lineage: None,
    };
    let disk = SimulatedDisk::new(0);
    disk.plant("manifest", &manifest.encode());
    disk.plant(&chunk_path(entry.digest), chunk);
    let _ = prove(&disk, "", &manifest, &entry);
    let Ok(artifact) = Artifact::open(&disk, "", &|_| true) else { return };
    for (key, value) in BUILT {
        let found = artifact.get(Token::of(key.as_bytes()), key.as_bytes());
        if let (true, Ok(Some(found))) = (believed, found) {
            assert_eq!(found, value.as_bytes(), "{key} has a value that nobody built");
        }
    }
    let mut from = Some(artifact.walk_from(Token(0)));
    for page in 0.. {
        assert!(page < PAGES_MAX, "a walk that never ends");
        let Some(cursor) = from else { break };
        let Ok(found) =
            artifact.walk(cursor, Token(u64::MAX), WalkLimit { records_max: 16, bytes_max: 1 << 20 })
        else {
            break;
        };
        from = found.next;
    }
}

/// What a manifest would say of a chunk, by its own footer.
fn entry(chunk: &[u8]) -> Option<ChunkEntry> {
    let footer = chunk.get(footer_at(chunk)?..)?.get(..FOOTER_BYTES)?;
    let number = |at: usize| u64::from_le_bytes(footer[at..at + 8].try_into().expect("eight bytes"));
    let layout = match footer[12] {
        1 => Layout::Pages,
        _ => Layout::Slots,
    };
    let slice = Slice { first: Token(number(16)), last: Token(number(24)) };
    let (records, payload_bytes) = (number(32), number(40));
    let digest = Digest::of(chunk);
    Some(ChunkEntry { digest, slice, layout, file_bytes: chunk.len() as u64, records, payload_bytes })
}

/// Inputs are shorter than a block, so there is one.
fn footer_at(chunk: &[u8]) -> Option<usize> {
    chunk.len().checked_sub(FOOTER_BYTES + 16).filter(|_| chunk.len() < BLOCK_BYTES)
}

/// The same bytes, with the checksums of index and footer as they must be for what is there.
fn with_right_checksums(chunk: &[u8]) -> Vec<u8> {
    let mut bytes = chunk.to_vec();
    let Some(at) = footer_at(chunk) else { return bytes };
    let number = |bytes: &[u8], place: usize| {
        u64::from_le_bytes(bytes[at + place..at + place + 8].try_into().expect("eight bytes"))
    };
    let data_bytes = (number(&bytes, 48) as usize).min(at);
    // Then the parts fit, whatever was changed.
    bytes[at + 48..at + 56].copy_from_slice(&(data_bytes as u64).to_le_bytes());
    bytes[at + 56..at + 64].copy_from_slice(&((at - data_bytes) as u64).to_le_bytes());
    let index = xxh3_64(&bytes[data_bytes..at]);
    bytes[at + 64..at + 72].copy_from_slice(&index.to_le_bytes());
    let check = xxh3_64(&bytes[at..at + FOOTER_BYTES - 8]);
    bytes[at + FOOTER_BYTES - 8..at + FOOTER_BYTES].copy_from_slice(&check.to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_corpus_is_chunks_whose_checksums_are_right() {
        for chunk in [
            &include_bytes!("../corpus/artifact/golden-pages")[..],
            include_bytes!("../corpus/artifact/golden-slots"),
        ] {
            assert_eq!(with_right_checksums(chunk), chunk);
            assert_eq!(entry(chunk).expect("it has a footer").records, 3);
        }
    }
}
