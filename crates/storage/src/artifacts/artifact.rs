//! Reads an artifact: from a key to its chunk, one key or many, or all in the order of tokens.

mod walk;

use std::ops::Range;

use bytes::Bytes;
use model::Token;
use runtime::{Disk, disk::waiting};

use super::chunk::{Aim, Chunk};
use super::coding::Opener;
use super::error::{OpenError, ReadError};
use super::manifest::Manifest;

pub use self::walk::{WalkCursor, WalkLimit, WalkPage};

/// Keys of a multi-get that are fetched ahead together: enough to hide memory, few enough for its caches.
const TOGETHER: usize = 32;
/// Largest value after decompression, whatever a record says.
const VALUE_BYTES_MAX: usize = 64 << 20;
/// Where a builder puts the manifest, and whoever fetches finds it.
pub const MANIFEST_PATH: &str = "manifest";

/// Where the file of a chunk lies, below the artifact's directory.
pub fn chunk_path(digest: super::Digest) -> String {
    format!("chunks/{digest}")
}

/// An artifact that is open: its chunks are mapped, as far as they are here.
pub struct Artifact {
    manifest: Manifest,
    opener: Opener,
    chunks: Vec<Option<Chunk>>,
    /// First token of each chunk.
    firsts: Vec<u64>,
    /// For the highest bits of a token, the last chunk that begins not after all the rest being zero.
    directory: Vec<u32>,
    directory_shift: u32,
}

impl Artifact {
    /// Opens an artifact below a directory of a disk. Chunks of which `wanted` says no are left out; others must be
    /// there and be what the manifest says. Reads manifest and indexes, but no data.
    ///
    /// # Errors
    /// When the manifest or a wanted chunk is missing, damaged, or lies.
    pub fn open(
        disk: &dyn Disk,
        directory: &str,
        wanted: &dyn Fn(&super::ChunkEntry) -> bool,
    ) -> Result<Artifact, OpenError> {
        let path =
            |name: &str| if directory.is_empty() { name.to_owned() } else { format!("{directory}/{name}") };
        let of_manifest = |error| OpenError::Disk { chunk: None, error };
        let file = disk.open(&path(MANIFEST_PATH)).map_err(of_manifest)?;
        let mut bytes = vec![0; file.length() as usize];
        let count = file.read_at(0, &mut bytes).map_err(of_manifest)?;
        let manifest = Manifest::decode(&bytes[..count])?;
        let place = |digest| path(&chunk_path(digest));
        Artifact::open_chunks(disk, manifest, &place, wanted)
    }

    /// Opens an artifact whose manifest is known, where `place` says the path of a chunk's file.
    ///
    /// # Errors
    /// As [`Artifact::open`].
    pub fn open_chunks(
        disk: &dyn Disk,
        manifest: Manifest,
        place: &dyn Fn(super::Digest) -> String,
        wanted: &dyn Fn(&super::ChunkEntry) -> bool,
    ) -> Result<Artifact, OpenError> {
        let (artifact, refused) = Artifact::open_sound(disk, manifest, place, wanted);
        refused.into_iter().next().map_or(Ok(artifact), |(_, error)| Err(error))
    }

    /// As [`Artifact::open_chunks`], but wanted chunks that cannot be opened are left out, too, and returned by position with
    /// the reason: [`OpenError::Chunk`] where the file is damaged, [`OpenError::Disk`] where the system refuses to open or
    /// map it.
    pub fn open_sound(
        disk: &dyn Disk,
        manifest: Manifest,
        place: &dyn Fn(super::Digest) -> String,
        wanted: &dyn Fn(&super::ChunkEntry) -> bool,
    ) -> (Artifact, Vec<(usize, OpenError)>) {
        let open = |entry: &super::ChunkEntry| {
            let refused = |error| OpenError::Disk { chunk: Some(entry.digest), error };
            Chunk::open(&*disk.open(&place(entry.digest)).map_err(refused)?, entry)
        };
        let mut refused = Vec::new();
        let mut chunks = Vec::with_capacity(manifest.chunks.len());
        for (position, entry) in manifest.chunks.iter().enumerate() {
            let opened = wanted(entry).then(|| open(entry)).transpose();
            chunks.push(opened.unwrap_or_else(|error| {
                refused.push((position, error));
                None
            }));
        }
        (Artifact::new(manifest, chunks), refused)
    }

    fn new(manifest: Manifest, chunks: Vec<Option<Chunk>>) -> Artifact {
        let firsts: Vec<u64> = manifest.chunks.iter().map(|entry| entry.slice.first.0).collect();
        assert!(
            firsts.first() == Some(&0) && firsts.is_sorted_by(|before, after| before < after),
            "artifact {} of {} was checked: its slices ascend from the first token",
            manifest.number,
            manifest.store
        );
        let bits = (2 * firsts.len() as u64).next_power_of_two().trailing_zeros().clamp(1, 22);
        let directory_shift = 64 - bits;
        let last_before =
            |start: u64| firsts.partition_point(|first| *first <= start).saturating_sub(1) as u32;
        let directory = (0..1_u64 << bits).map(|high| last_before(high << directory_shift)).collect();
        let opener = Opener::new(&manifest.dictionary);
        Artifact { manifest, opener, chunks, firsts, directory, directory_shift }
    }

    /// What it is.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Bytes that it keeps in memory, beside what the system keeps of its files.
    pub fn resident_bytes(&self) -> usize {
        let chunks = self.chunks.iter().flatten().map(|chunk| chunk.resident_bytes() + size_of::<Chunk>());
        chunks.sum::<usize>() + self.firsts.len() * 8 + self.directory.len() * 4
    }

    /// Looks again which pages of its files are in memory. To be done again and again, away from requests.
    pub fn refresh(&self) {
        self.chunks.iter().flatten().for_each(Chunk::refresh);
    }

    #[inline]
    fn position(&self, token: Token) -> usize {
        let mut position = self.directory[(token.0 >> self.directory_shift) as usize] as usize;
        while self.firsts.get(position + 1).is_some_and(|first| *first <= token.0) {
            position += 1;
        }
        debug_assert!(
            self.manifest.chunks[position].slice.contains(token),
            "{token:?} lies in chunk {position} of {}",
            self.firsts.len()
        );
        position
    }

    #[inline]
    fn chunk(&self, token: Token) -> Result<&Chunk, ReadError> {
        let position = self.position(token);
        self.chunks[position]
            .as_ref()
            .ok_or_else(|| ReadError::NotHere { chunk: self.manifest.chunks[position].digest })
    }

    /// The value of a key; `None` when the artifact has no such key.
    ///
    /// # Errors
    /// See [`ReadError`]. None of them says anything about whether the key is there.
    pub fn get(&self, token: Token, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        let mut value = Vec::new();
        Ok(self.get_into(token, key, &mut value)?.then(|| value.into()))
    }

    /// As [`Artifact::get`], into a buffer: the value is appended to `out`. False when there is no such key.
    ///
    /// # Errors
    /// As [`Artifact::get`]; `out` is as it was.
    #[inline]
    pub fn get_into(&self, token: Token, key: &[u8], out: &mut Vec<u8>) -> Result<bool, ReadError> {
        let chunk = self.chunk(token)?;
        let start = out.len();
        chunk.get(chunk.aim(token, key), token, key, &self.opener, out).map_err(|refused| {
            out.truncate(start);
            chunk.error(refused)
        })
    }

    /// The values of many keys, whose memory they share.
    pub fn get_many(&self, keys: &[(Token, &[u8])]) -> Vec<Result<Option<Bytes>, ReadError>> {
        let mut values = Vec::new();
        let mut found = Vec::with_capacity(keys.len());
        self.get_many_into(keys, &mut values, &mut |place| found.push(place));
        assert_eq!(found.len(), keys.len(), "each key is told of once");
        let values = Bytes::from(values);
        found.into_iter().map(|place| place.map(|place| place.map(|place| values.slice(place)))).collect()
    }

    /// As [`Artifact::get_many`], into a buffer: `found` is told for each key in turn where its value lies in `out`.
    /// What is not in memory is asked of the device for all keys at once.
    pub fn get_many_into(
        &self,
        keys: &[(Token, &[u8])],
        out: &mut Vec<u8>,
        found: &mut dyn FnMut(Result<Option<Range<usize>>, ReadError>),
    ) {
        let may_wait = waiting::may_wait();
        for keys in keys.chunks(TOGETHER) {
            let mut aims: [Option<(&Chunk, Aim)>; TOGETHER] = [None; TOGETHER];
            for (aimed, (token, key)) in aims.iter_mut().zip(keys) {
                if let Ok(chunk) = self.chunk(*token) {
                    let aim = chunk.aim(*token, key);
                    chunk.prefetch(aim, may_wait);
                    *aimed = Some((chunk, aim));
                }
            }
            for (aimed, (token, _)) in aims.iter().zip(keys) {
                if let Some((chunk, aim)) = aimed {
                    chunk.prefetch_record(*aim, *token, may_wait);
                }
            }
            for (aimed, (token, key)) in aims.iter().zip(keys) {
                let start = out.len();
                let answer = match aimed {
                    None => self.chunk(*token).map(|_| false),
                    Some((chunk, aim)) => chunk
                        .get(*aim, *token, key, &self.opener, out)
                        .map_err(|refused| chunk.error(refused)),
                };
                found(match answer {
                    Ok(there) => Ok(there.then_some(start..out.len())),
                    Err(error) => {
                        out.truncate(start);
                        Err(error)
                    }
                });
            }
        }
    }
}
