//! Chunks are brought from a source, whole or from where an earlier fetch was broken off, and what is another chunk is not.

use runtime::disk::simulated::SimulatedDisk;
use storage::artifacts::{
    BLOCK_BYTES, Compression, Cutter, Fetch, FetchError, Layout, SourceChunk, TokenHash, VerifiedFile,
    chunk_path,
};

use crate::artifacts::{build_cut, build_in, now, options};

#[test]
fn a_chunk_is_fetched_whole_and_a_source_that_gives_another_is_refused() {
    let source = SimulatedDisk::new(1);
    let records: Vec<_> = (0..40_u32).map(|key| (key.to_be_bytes().to_vec(), vec![7; 200])).collect();
    let manifest =
        build_in(&source, &records, 1, &[0], &options(TokenHash::Xxh3, None, Compression::None)).unwrap();
    let entry = &manifest.chunks[0];
    let path = chunk_path(entry.digest);
    let sound = source.contents(&path).unwrap();
    let fetch = |bytes: &[u8]| -> Result<Vec<u8>, FetchError> {
        let (from, to) = (SimulatedDisk::new(2), SimulatedDisk::new(3));
        from.plant(&path, bytes);
        to.plant("part", b"what an earlier fetch has left");
        let chunk = SourceChunk::open(&from, entry.file())?;
        let mut fetch =
            Fetch::resume((&to, "part"), entry.file(), chunk.read(Fetch::list(entry.file())?)?, 0)?;
        while let Some(next) = fetch.wanted() {
            fetch.put(&chunk.read(next)?)?;
        }
        now(fetch.finish())?;
        Ok(to.contents("part").unwrap())
    };
    let streamed = |bytes: &[u8]| -> Result<Vec<u8>, FetchError> {
        let from = SimulatedDisk::new(2);
        from.plant(&path, bytes);
        let (mut file, mut read) = (VerifiedFile::open(&from, entry.file())?, Vec::new());
        while let Some(part) = file.read()? {
            read.extend(part);
        }
        Ok(read)
    };
    assert_eq!(fetch(&sound).unwrap(), sound);
    assert_eq!(streamed(&sound).unwrap(), sound);
    for at in (0..sound.len()).step_by(61).chain([sound.len() - 1]) {
        let mut flipped = sound.clone();
        flipped[at] ^= 4;
        assert!(matches!(fetch(&flipped), Err(FetchError::Differs { .. })), "a bit of byte {at}");
        assert!(
            matches!(streamed(&flipped), Err(FetchError::Differs { .. })),
            "a bit of byte {at}, streamed"
        );
    }
    let longer = [&sound[..], b"x"].concat();
    for wrong in [&sound[..sound.len() - 1], &longer, b""] {
        assert!(matches!(fetch(wrong), Err(FetchError::Differs { .. })), "{} bytes", wrong.len());
        assert!(matches!(streamed(wrong), Err(FetchError::Differs { .. })), "{} bytes", wrong.len());
    }
}

/// Power cuts, kills and other bytes leave any beginning of the chunk, or garbage behind it.
#[test]
fn a_fetch_goes_on_after_the_last_block_that_is_here_and_right() {
    let source = SimulatedDisk::new(1);
    let records: Vec<_> = (0..3500_u32).map(|key| (key.to_be_bytes().to_vec(), vec![7; 1000])).collect();
    let options = options(TokenHash::Xxh3, Some(Layout::Slots), Compression::None);
    let cutter = Cutter::new(&[0], (1, 64 << 20));
    let manifest = build_cut(&source, &records, 1, cutter, &options).unwrap();
    let entry = &manifest.chunks[0];
    let sound = source.contents(&chunk_path(entry.digest)).unwrap();
    let body = Fetch::list(entry.file()).unwrap().start as usize;
    assert!(body > 3 * BLOCK_BYTES && body < 4 * BLOCK_BYTES, "{body}");
    let chunk = SourceChunk::open(&source, entry.file()).unwrap();
    let resumed = |left: &[u8]| {
        let to = SimulatedDisk::new(3);
        to.plant("part", left);
        let list = chunk.read(Fetch::list(entry.file()).unwrap()).unwrap();
        let mut fetch = Fetch::resume((&to, "part"), entry.file(), list, 0).unwrap();
        let here = fetch.here() as usize;
        while let Some(next) = fetch.wanted() {
            fetch.put(&chunk.read(next).unwrap()).unwrap();
        }
        now(fetch.finish()).unwrap();
        assert!(to.contents("part").unwrap() == sound, "the whole chunk");
        here
    };
    for (length, here) in [
        (0, 0),
        (BLOCK_BYTES - 1, 0),
        (BLOCK_BYTES, BLOCK_BYTES),
        (3 * BLOCK_BYTES + 5, 3 * BLOCK_BYTES),
        (body, body),
        (body + 7, body),
        (sound.len(), body),
    ] {
        assert_eq!(resumed(&sound[..length]), here, "{length} bytes were here");
    }
    assert_eq!(resumed(&[&sound[..], b"and more"].concat()), body);
    let mut torn = sound.clone();
    torn[BLOCK_BYTES + 9] ^= 1;
    assert_eq!(resumed(&torn), BLOCK_BYTES, "what lies behind a wrong block is fetched again");
}
