//! Proves a chunk without a cluster: each byte, each record, each way to a record.

use std::ops::ControlFlow;

use model::Token;
use runtime::{Disk, DiskError};

use super::artifact::chunk_path;
use super::chunk::{Chunk, ChunkRefused};
use super::coding::Opener;
use super::error::OpenError;
use super::format::Digest;
use super::format::{BLOCK_BYTES, body_bytes, chunk_digest};
use super::lineage::DeltaEntry;
use super::manifest::{ChunkEntry, Manifest};
use super::stream::{Broken, Stream};

/// Largest value after decompression, whatever a record says.
const VALUE_BYTES_MAX: usize = 64 << 20;

/// Verifies one chunk of an artifact that lies below a directory: the digest of all its bytes, what its footer says,
/// the order of its records and that each is found by its key.
///
/// # Errors
/// Says what is wrong.
pub fn prove(
    disk: &dyn Disk,
    directory: &str,
    manifest: &Manifest,
    entry: &ChunkEntry,
) -> Result<(), OpenError> {
    let refused = |error| OpenError::Disk { chunk: Some(entry.digest), error };
    let wrong = |what: String| OpenError::Chunk { chunk: entry.digest, what };
    let path = match directory {
        "" => chunk_path(entry.digest),
        directory => format!("{directory}/{}", chunk_path(entry.digest)),
    };
    let file = disk.open(&path).map_err(refused)?;
    let digest = digest(&*file, entry.file_bytes).map_err(refused)?;
    if digest != Some(entry.digest) {
        return Err(wrong("its bytes have another digest".to_owned()));
    }
    let chunk = Chunk::open(&*file, entry)?;
    let opener = Opener::new(&manifest.dictionary);
    let mut last: Option<(Token, Vec<u8>)> = None;
    let (mut records, mut payload_bytes) = (0, 0);
    let mut fault = None;
    let mut value = Vec::new();
    let walked = chunk.walk(0, &mut |visited| {
        let token = manifest.hash.token(visited.key);
        let mut check = || {
            if !entry.slice.contains(token) {
                return Err(format!("token {:016x} lies outside its slice", token.0));
            }
            if last.as_ref().is_some_and(|(before, key)| (*before, &key[..]) >= (token, visited.key)) {
                return Err("its records are not in order".to_owned());
            }
            let opened = opener.open(visited.coding, visited.stored, VALUE_BYTES_MAX);
            let opened = opened.ok_or("a value cannot be decompressed")?;
            value.clear();
            let found = chunk.get(chunk.aim(token, visited.key), token, visited.key, &opener, &mut value);
            if !matches!(found, Ok(true)) || value != opened {
                return Err("its index does not lead to a record".to_owned());
            }
            records += 1;
            payload_bytes += (visited.key.len() + opened.len()) as u64;
            last = Some((token, visited.key.to_vec()));
            Ok(())
        };
        match check() {
            Ok(()) => ControlFlow::Continue(()),
            Err(what) => {
                fault = Some(what);
                ControlFlow::Break(())
            }
        }
    });
    if let Some(what) = fault {
        return Err(wrong(what));
    }
    walked.map_err(|refused| match refused {
        ChunkRefused::Damaged => wrong("a checksum does not match".to_owned()),
        ChunkRefused::Disk(error) => OpenError::Disk { chunk: Some(entry.digest), error },
    })?;
    if (records, payload_bytes) != (entry.records, entry.payload_bytes) {
        return Err(wrong(format!("it holds {records} records, and the manifest says {}", entry.records)));
    }
    Ok(())
}

/// Verifies one delta of an artifact: the digest of all its bytes, the order of its changes, and that the chunk has them.
/// Whether it makes that chunk only [`merge`](super::merge) shows, with the parent's chunk.
///
/// # Errors
/// Says what is wrong.
pub fn prove_delta(disk: &dyn Disk, manifest: &Manifest, delta: &DeltaEntry) -> Result<(), OpenError> {
    let wrong = |what: &str| OpenError::Delta { delta: delta.digest, what: what.to_owned() };
    let refused = |error| OpenError::Disk { chunk: Some(delta.digest), error };
    let broken = |Broken(what): Broken| wrong(&what);
    let file = disk.open(&chunk_path(delta.digest)).map_err(refused)?;
    if digest(&*file, delta.file_bytes).map_err(refused)? != Some(delta.digest) {
        return Err(wrong("its bytes have another digest"));
    }
    let (mut changes, footer) = Stream::of_delta(file, manifest.hash).map_err(broken)?;
    let entry = &manifest.chunks[delta.chunk as usize];
    if (footer.slice, footer.parent) != (entry.slice, delta.parent) {
        return Err(wrong("it and the manifest contradict each other"));
    }
    let made = disk.open(&chunk_path(entry.digest)).map_err(refused)?;
    let made = Chunk::open(&*made, entry)?;
    let opener = Opener::new(&manifest.dictionary);
    let (mut puts, mut deletes) = (0, 0);
    let mut last: Option<(Token, Vec<u8>)> = None;
    let mut held = Vec::new();
    while let Some(change) = changes.current() {
        if last.as_ref().is_some_and(|(before, key)| (*before, &key[..]) >= (change.token, change.key)) {
            return Err(wrong("its changes are not in order"));
        }
        if !entry.slice.contains(change.token) {
            return Err(wrong("a change lies outside its slice"));
        }
        held.clear();
        let aim = made.aim(change.token, change.key);
        let found = made.get(aim, change.token, change.key, &opener, &mut held);
        let agrees = match change.sealed {
            None => matches!(found, Ok(false)),
            Some((coding, stored)) => {
                matches!(found, Ok(true))
                    && opener.open(coding, stored, VALUE_BYTES_MAX).is_some_and(|value| value == held)
            }
        };
        if !agrees {
            return Err(wrong("the chunk that it makes does not have one of its changes"));
        }
        match change.sealed {
            Some(_) => puts += 1,
            None => deletes += 1,
        }
        last = Some((change.token, change.key.to_vec()));
        changes.advance().map_err(broken)?;
    }
    let said = [(footer.puts, footer.deletes), (delta.puts, delta.deletes)];
    match said == [(puts, deletes); 2] {
        true => Ok(()),
        false => Err(wrong("it holds another number of changes than the manifest says")),
    }
}

/// The digest of a chunk's bytes, block by block; `None` when they are no chunk's.
fn digest(file: &dyn runtime::File, file_bytes: u64) -> Result<Option<Digest>, DiskError> {
    if file.length() != file_bytes {
        return Ok(None);
    }
    let Some(body) = body_bytes(file_bytes) else { return Ok(None) };
    let mut blocks = Vec::new();
    let mut block = vec![0; BLOCK_BYTES];
    let mut at = 0;
    while at < body {
        let wanted = (body - at).min(BLOCK_BYTES as u64) as usize;
        if file.read_at(at, &mut block[..wanted])? < wanted {
            return Ok(None);
        }
        blocks.extend_from_slice(&Digest::of(&block[..wanted]).0);
        at += wanted as u64;
    }
    let mut listed = vec![0; blocks.len()];
    file.read_at(body, &mut listed)?;
    Ok((listed == blocks).then(|| chunk_digest(&blocks, body)))
}
