//! The manifest of an artifact: what it is, and its chunks in the order of their slices.

use model::{StoreName, Token};
use thiserror::Error;
use xxhash_rust::xxh3::xxh3_64;

use super::coding::{Compression, DICTIONARY_BYTES_MAX};
use super::format::{Digest, FORMAT, FileEntry, Layout, Slice};
use super::lineage::{DeltaEntry, FORMAT_WITH_PARENT, Lineage};

const MAGIC: &[u8; 8] = b"TONTMANI";
/// Bytes of a chunk's entry.
const ENTRY_BYTES: usize = 64;
/// Chunks of one artifact at most: as many as a ring has partitions, and as many parts of them.
pub const CHUNKS_MAX: usize = 1 << 21;

/// The hash that makes tokens of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenHash {
    /// XXH3-64 with seed 0, as rings use it.
    Xxh3,
    /// Its highest bits only, so that tokens tie. For tests; no ring uses it.
    Cut {
        /// How many, 0 to 63.
        bits: u8,
    },
}

impl TokenHash {
    /// The token of a key.
    #[inline]
    pub fn token(self, key: &[u8]) -> Token {
        match self {
            TokenHash::Xxh3 => Token::of(key),
            TokenHash::Cut { bits: 0 } => Token(0),
            TokenHash::Cut { bits } => Token(Token::of(key).0 & (u64::MAX << (64 - bits))),
        }
    }

    fn code(self) -> u8 {
        match self {
            TokenHash::Xxh3 => 1,
            TokenHash::Cut { bits } => 128 | bits,
        }
    }

    fn of(code: u8) -> Option<TokenHash> {
        match code {
            1 => Some(TokenHash::Xxh3),
            128..192 => Some(TokenHash::Cut { bits: code & 63 }),
            _ => None,
        }
    }
}

/// What a manifest says of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkEntry {
    /// Names its file.
    pub digest: Digest,
    /// Its slice.
    pub slice: Slice,
    /// How its records lie.
    pub layout: Layout,
    /// Length of its file.
    pub file_bytes: u64,
    /// How many records it has.
    pub records: u64,
    /// Bytes of their keys and values before compression.
    pub payload_bytes: u64,
}

impl ChunkEntry {
    /// Its file.
    pub fn file(&self) -> FileEntry {
        FileEntry { digest: self.digest, bytes: self.file_bytes }
    }
}

/// An artifact's table of contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The store that it was built for.
    pub store: StoreName,
    /// Its number.
    pub number: u64,
    /// What makes tokens of keys.
    pub hash: TokenHash,
    /// How values are compressed.
    pub compression: Compression,
    /// zstd's dictionary; empty without one.
    pub dictionary: Vec<u8>,
    /// The chunks in the order of their slices, which together cover all tokens.
    pub chunks: Vec<ChunkEntry>,
    /// What it was built upon; `None` when it was built by itself.
    pub lineage: Option<Lineage>,
}

/// Why bytes are no manifest.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ManifestError {
    /// They do not begin as a manifest does.
    #[error("it is no manifest of an artifact")]
    Foreign,
    /// Written by a newer program.
    #[error(
        "it has format {found}, and this program reads formats up to {FORMAT_WITH_PARENT}; upgrade tontine"
    )]
    NewerFormat {
        /// The format found.
        found: u32,
    },
    /// The checksum does not hold.
    #[error("its checksum does not match: it was cut or changed")]
    Corrupt,
    /// It says what cannot be.
    #[error("it contradicts itself: {what}")]
    Lies {
        /// What is wrong.
        what: String,
    },
}

pub(super) fn lies(what: impl Into<String>) -> ManifestError {
    ManifestError::Lies { what: what.into() }
}

impl Manifest {
    /// How many records the artifact has.
    pub fn records(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.records).sum()
    }

    /// Bytes of their keys and values before compression.
    pub fn payload_bytes(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.payload_bytes).sum()
    }

    /// Bytes of the chunks' files, each once.
    pub fn file_bytes(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.file_bytes).sum()
    }

    /// Its deltas, in the order of the chunks that they make.
    pub fn deltas(&self) -> &[DeltaEntry] {
        self.lineage.as_ref().map_or(&[], |lineage| &lineage.deltas)
    }

    /// All files that it names: those of chunks, and of deltas.
    pub fn files(&self) -> impl Iterator<Item = FileEntry> {
        self.chunks.iter().map(ChunkEntry::file).chain(self.deltas().iter().map(DeltaEntry::file))
    }

    /// Which of its chunks touch these slices of tokens (first and last), which ascend.
    pub fn touching(&self, slices: &[(Token, Token)]) -> Vec<bool> {
        let touches = |chunk: &ChunkEntry| {
            let at = slices.partition_point(|(_, last)| *last < chunk.slice.first);
            slices.get(at).is_some_and(|(first, _)| *first <= chunk.slice.last)
        };
        self.chunks.iter().map(touches).collect()
    }

    /// Its digest.
    pub fn digest(&self) -> Digest {
        Digest::of(&self.encode())
    }

    /// The bytes of its file.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        let format = if self.lineage.is_some() { FORMAT_WITH_PARENT } else { FORMAT };
        bytes.extend_from_slice(&format.to_le_bytes());
        bytes.push(self.hash.code());
        bytes.push(self.compression.code());
        let store = self.store.as_str();
        bytes.push(store.len() as u8);
        bytes.push(0);
        bytes.extend_from_slice(&self.number.to_le_bytes());
        bytes.extend_from_slice(&(self.dictionary.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&(self.chunks.len() as u32).to_le_bytes());
        bytes.extend_from_slice(store.as_bytes());
        bytes.extend_from_slice(&self.dictionary);
        for chunk in &self.chunks {
            bytes.extend_from_slice(&chunk.digest.0);
            for number in [
                chunk.slice.first.0,
                chunk.slice.last.0,
                chunk.file_bytes,
                chunk.records,
                chunk.payload_bytes,
            ] {
                bytes.extend_from_slice(&number.to_le_bytes());
            }
            bytes.extend_from_slice(&[chunk.layout.code(), 0, 0, 0, 0, 0, 0, 0]);
        }
        self.lineage.iter().for_each(|lineage| lineage.encode(&mut bytes));
        let check = xxh3_64(&bytes);
        bytes.extend_from_slice(&check.to_le_bytes());
        bytes
    }

    /// Reads a manifest and checks that it does not contradict itself.
    ///
    /// # Errors
    /// When it is none, is damaged, or says what cannot be.
    pub fn decode(bytes: &[u8]) -> Result<Manifest, ManifestError> {
        if !bytes.starts_with(MAGIC) || bytes.len() < MAGIC.len() + 12 {
            return Err(ManifestError::Foreign);
        }
        let found = u32::from_le_bytes(bytes[8..12].try_into().expect("four bytes"));
        if found != FORMAT && found != FORMAT_WITH_PARENT {
            return Err(ManifestError::NewerFormat { found });
        }
        let (body, check) = bytes.split_at(bytes.len() - 8);
        if xxh3_64(body).to_le_bytes() != check {
            return Err(ManifestError::Corrupt);
        }
        let mut rest = &body[12..];
        let head: [u8; 4] = take(&mut rest)?;
        let [hash, compression, store_bytes, zero] = head;
        let number = u64::from_le_bytes(take(&mut rest)?);
        let dictionary_bytes = u32::from_le_bytes(take(&mut rest)?) as usize;
        let count = u32::from_le_bytes(take(&mut rest)?) as usize;
        let store = take_bytes(&mut rest, usize::from(store_bytes))?;
        let dictionary = take_bytes(&mut rest, dictionary_bytes)?.to_vec();
        if zero != 0 || dictionary_bytes > DICTIONARY_BYTES_MAX || count > CHUNKS_MAX {
            return Err(lies("a field is out of range"));
        }
        let entries = take_bytes(&mut rest, count * ENTRY_BYTES)
            .map_err(|_| lies(format!("it names {count} chunks and lists fewer")))?;
        let lineage = match found {
            FORMAT if rest.is_empty() => None,
            FORMAT => return Err(lies(format!("something follows its {count} chunks"))),
            _ => Some(Lineage::decode(rest, count)?),
        };
        let store = std::str::from_utf8(store).ok().and_then(|name| StoreName::new(name).ok());
        let manifest = Manifest {
            store: store.ok_or_else(|| lies("its store's name is none"))?,
            number,
            hash: TokenHash::of(hash).ok_or_else(|| lies(format!("hash {hash} is unknown")))?,
            compression: Compression::of(compression)
                .ok_or_else(|| lies(format!("compression {compression} is unknown")))?,
            dictionary,
            chunks: entries.chunks_exact(ENTRY_BYTES).map(entry).collect::<Result<_, _>>()?,
            lineage,
        };
        manifest.validate()?;
        Ok(manifest)
    }

    /// Checks that the chunks' slices follow each other without gap or overlap and cover all tokens.
    ///
    /// # Errors
    /// [`ManifestError::Lies`] otherwise.
    pub fn validate(&self) -> Result<(), ManifestError> {
        let mut next = Some(0);
        for ChunkEntry { slice, records, payload_bytes, .. } in &self.chunks {
            if next != Some(slice.first.0) || slice.last < slice.first {
                let expected = next.map_or("no further chunk".to_owned(), |next| format!("{next:016x}"));
                return Err(lies(format!(
                    "a slice begins at {:016x} instead of {expected}: there is a gap, an overlap or another order",
                    slice.first.0
                )));
            }
            if records > payload_bytes {
                return Err(lies("a chunk has more records than bytes"));
            }
            next = slice.last.0.checked_add(1);
        }
        match next {
            None => Ok(()),
            Some(next) => Err(lies(format!("no slice holds token {next:016x}"))),
        }
    }
}

fn entry(bytes: &[u8]) -> Result<ChunkEntry, ManifestError> {
    let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    if bytes[57..].iter().any(|&byte| byte != 0) {
        return Err(lies("a field is out of range"));
    }
    Ok(ChunkEntry {
        digest: Digest(bytes[..16].try_into().expect("sixteen bytes")),
        slice: Slice { first: Token(number(16)), last: Token(number(24)) },
        layout: Layout::of(bytes[56]).ok_or_else(|| lies(format!("layout {} is unknown", bytes[56])))?,
        file_bytes: number(32),
        records: number(40),
        payload_bytes: number(48),
    })
}

fn take_bytes<'a>(rest: &mut &'a [u8], count: usize) -> Result<&'a [u8], ManifestError> {
    let (taken, left) = rest.split_at_checked(count).ok_or_else(|| lies("it ends in the middle"))?;
    *rest = left;
    Ok(taken)
}

pub(super) fn take<const COUNT: usize>(rest: &mut &[u8]) -> Result<[u8; COUNT], ManifestError> {
    Ok(take_bytes(rest, COUNT)?.try_into().expect("as many as were taken"))
}
