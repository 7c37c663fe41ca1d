//! What a manifest says of the artifact that it was built upon: its parent, and how chunks are made of the parent's.
//!
//! A manifest with a lineage has its own format, so that programs that know none refuse it by name.

use super::format::{Digest, FileEntry};
use super::manifest::{ManifestError, lies, take};

/// Format of a manifest with a lineage.
pub const FORMAT_WITH_PARENT: u32 = 2;
/// Bytes of a delta's entry.
const ENTRY_BYTES: usize = 64;

/// The artifact that another one was built upon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lineage {
    /// Its number.
    pub number: u64,
    /// Digest of its manifest.
    pub manifest: Digest,
    /// How chunks are made of its chunks, in their order; those without a delta are fetched whole.
    pub deltas: Vec<DeltaEntry>,
}

/// What a manifest says of a delta.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeltaEntry {
    /// Names its file.
    pub digest: Digest,
    /// The parent's chunk of the same slice.
    pub parent: Digest,
    /// Length of its file.
    pub file_bytes: u64,
    /// How many keys have a new value.
    pub puts: u64,
    /// How many keys are gone.
    pub deletes: u64,
    /// Which chunk it makes, by its place in the manifest.
    pub chunk: u32,
}

impl DeltaEntry {
    /// Its file.
    pub fn file(&self) -> FileEntry {
        FileEntry { digest: self.digest, bytes: self.file_bytes }
    }
}

impl Lineage {
    /// How the chunk at this place is made, unless it is fetched whole.
    pub fn delta(&self, chunk: usize) -> Option<&DeltaEntry> {
        let at = self.deltas.binary_search_by_key(&chunk, |delta| delta.chunk as usize);
        at.ok().map(|at| &self.deltas[at])
    }

    pub(super) fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.number.to_le_bytes());
        bytes.extend_from_slice(&self.manifest.0);
        bytes.extend_from_slice(&(self.deltas.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        for delta in &self.deltas {
            bytes.extend_from_slice(&delta.digest.0);
            bytes.extend_from_slice(&delta.parent.0);
            for number in [delta.file_bytes, delta.puts, delta.deletes] {
                bytes.extend_from_slice(&number.to_le_bytes());
            }
            bytes.extend_from_slice(&delta.chunk.to_le_bytes());
            bytes.extend_from_slice(&[0; 4]);
        }
    }

    /// Reads what follows the entries of this many chunks.
    pub(super) fn decode(mut rest: &[u8], chunks: usize) -> Result<Lineage, ManifestError> {
        let number = u64::from_le_bytes(take(&mut rest)?);
        let manifest = Digest(take(&mut rest)?);
        let count = u32::from_le_bytes(take(&mut rest)?) as usize;
        let zeros: [u8; 4] = take(&mut rest)?;
        if zeros != [0; 4] || count > chunks {
            return Err(lies("a field is out of range"));
        }
        if rest.len() != count * ENTRY_BYTES {
            return Err(lies(format!("it names {count} deltas and lists {}", rest.len() / ENTRY_BYTES)));
        }
        let deltas = rest.chunks_exact(ENTRY_BYTES).map(entry).collect::<Result<Vec<_>, _>>()?;
        let ordered = deltas.is_sorted_by(|before, after| before.chunk < after.chunk);
        if !ordered || deltas.last().is_some_and(|last| last.chunk as usize >= chunks) {
            return Err(lies("its deltas are in another order than its chunks"));
        }
        Ok(Lineage { number, manifest, deltas })
    }
}

fn entry(mut bytes: &[u8]) -> Result<DeltaEntry, ManifestError> {
    let rest = &mut bytes;
    let (digest, parent) = (Digest(take(rest)?), Digest(take(rest)?));
    let mut number = || take(rest).map(u64::from_le_bytes);
    let (file_bytes, puts, deletes) = (number()?, number()?, number()?);
    let chunk = u32::from_le_bytes(take(rest)?);
    match take(rest)? {
        [0, 0, 0, 0] => Ok(DeltaEntry { digest, parent, file_bytes, puts, deletes, chunk }),
        _ => Err(lies("a field is out of range")),
    }
}
