//! The index on disk, so that a restart reads the end of the log and not all of it.
//!
//! The file is a row of blocks, each with its checksum; any damage makes the whole snapshot worthless, and the index
//! is rebuilt from the segments.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use model::{PartitionId, Token};
use runtime::{Disk, DiskError, File};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::format::{FORMAT_VERSION, SegmentKind, u32_at, u64_at};
use super::index::Slot;
use super::segment::parse_name;
use super::tail::Point;
use crate::error::StorageError;

pub(super) const MAGIC: [u8; 8] = *b"TONTIDX\0";

/// Name of the snapshot below the engine's directory, and while it is written.
pub(super) const NAME: &str = "index";
pub(super) const NAME_TEMPORARY: &str = "index.tmp";

const BLOCK_HEADER_BYTES: usize = 24;
pub(super) const ENTRY_BYTES: usize = 24;
const SEGMENT_BYTES: usize = 32;

/// Entries of one block at most: what a reader must hold, and what one step writes.
pub(super) const BLOCK_ENTRIES_MAX: usize = 8 << 10;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Block {
    Head = 1,
    Entries = 2,
    Segments = 3,
    End = 4,
}

/// What a snapshot says, its entries apart.
#[derive(Debug)]
pub(super) struct Snapshot {
    /// The log is replayed from here.
    pub(super) boundary: Point,
    pub(super) sequence_next: u64,
    pub(super) segment_next: u32,
    pub(super) segments: BTreeMap<u32, KnownSegment>,
    pub(super) entries: Vec<(PartitionId, Vec<Slot>)>,
    /// Of the file.
    pub(super) bytes: u64,
}

/// What a snapshot knows of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KnownSegment {
    pub(super) kind: u32,
    /// Bytes of it that were durable then.
    pub(super) length: u64,
    pub(super) markers: u64,
    pub(super) origin_max: u32,
}

/// The snapshot that a restart would begin with.
pub(super) struct LastSnapshot {
    /// Where the log ended when it was begun; 0 for one of an earlier life. Only grows.
    position: AtomicU64,
    /// Of its file; 0 when there is none.
    bytes: AtomicU64,
}

impl LastSnapshot {
    /// That of an earlier life, if there is one.
    pub(super) fn earlier(bytes: u64) -> LastSnapshot {
        LastSnapshot { position: AtomicU64::new(0), bytes: AtomicU64::new(bytes) }
    }

    pub(super) fn position(&self) -> u64 {
        self.position.load(Ordering::Relaxed)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Another one is durable in its place.
    pub(super) fn replace(&self, position: u64, bytes: u64) {
        let before = self.position.swap(position, Ordering::Relaxed);
        assert!(
            before <= position && bytes > 0,
            "a snapshot replaces an older one: {before}, then {position}"
        );
        self.bytes.store(bytes, Ordering::Relaxed);
    }
}

pub(super) fn encode_entry(out: &mut Vec<u8>, slot: &Slot) {
    out.extend_from_slice(&slot.token.0.to_le_bytes());
    for word in [slot.fingerprint, slot.segment, slot.offset, slot.length] {
        out.extend_from_slice(&word.to_le_bytes());
    }
}

fn decode_entry(bytes: &[u8]) -> Slot {
    Slot {
        token: Token(u64_at(bytes, 0)),
        fingerprint: u32_at(bytes, 8),
        segment: u32_at(bytes, 12),
        offset: u32_at(bytes, 16),
        length: u32_at(bytes, 20),
    }
}

/// Reads the snapshot of a directory; `None` when there is none that can be used.
pub(super) fn load(disk: &dyn Disk, directory: &str, engine: u64) -> Result<Option<Snapshot>, StorageError> {
    let file = match disk.open(&format!("{directory}/{NAME}")) {
        Ok(file) => file,
        Err(DiskError::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let mut blocks = Blocks { length: file.length(), file, offset: 0, block: 0 };
    let snapshot = decode(&mut blocks, engine)?;
    if snapshot.is_none() {
        tracing::warn!(directory, "index snapshot cannot be used, reading all segments");
    }
    Ok(snapshot)
}

/// False when a segment that the snapshot names is not there, or is shorter than it was durable then. It reads what the
/// snapshot says of segments and nothing of its entries; where there is no usable snapshot, nobody knows of any.
pub(super) fn has_its_segments(disk: &dyn Disk, directory: &str, engine: u64) -> Result<bool, StorageError> {
    let file = match disk.open(&format!("{directory}/{NAME}")) {
        Ok(file) => file,
        Err(DiskError::NotFound { .. }) => return Ok(true),
        Err(error) => return Err(error.into()),
    };
    let mut blocks = Blocks { length: file.length(), file, offset: 0, block: 0 };
    let head = blocks.next()?.filter(|(kind, _, head)| is_ours(*kind, head, engine));
    if head.is_none() {
        return Ok(true);
    }
    let named = |name: String| parse_name(&name).map(|(id, kind)| (id, (kind, name)));
    let there: BTreeMap<u32, (SegmentKind, String)> =
        disk.list(directory)?.into_iter().filter_map(named).collect();
    while blocks.skip(Block::Entries)? {}
    let Some((kind, _, segments)) = blocks.next()? else { return Ok(true) };
    if kind != Block::Segments as u32 || segments.len() % SEGMENT_BYTES != 0 {
        return Ok(true);
    }
    for (id, known) in segments.chunks_exact(SEGMENT_BYTES).map(decode_segment) {
        // Of one that had just begun nothing was promised, not even its name.
        if known.length == 0 {
            continue;
        }
        let Some((_, name)) = there.get(&id).filter(|(kind, _)| known.is(*kind)) else { return Ok(false) };
        if disk.open(&format!("{directory}/{name}"))?.length() < known.length {
            return Ok(false);
        }
    }
    Ok(true)
}

fn is_ours(kind: u32, head: &[u8], engine: u64) -> bool {
    kind == Block::Head as u32
        && head.len() == 40
        && head[..8] == MAGIC
        && u32_at(head, 8) == FORMAT_VERSION
        && u64_at(head, 32) == engine
}

/// Reads blocks; stops at the first that does not hold.
struct Blocks {
    file: Arc<dyn File>,
    length: u64,
    offset: u64,
    block: u64,
}

impl Blocks {
    /// Passes over a block of this kind without looking into it; false when the next one is none.
    fn skip(&mut self, kind: Block) -> Result<bool, DiskError> {
        let mut header = [0; BLOCK_HEADER_BYTES];
        let count = self.file.read_at(self.offset, &mut header)?;
        let end = self
            .offset
            .checked_add(BLOCK_HEADER_BYTES as u64)
            .and_then(|at| at.checked_add(u64_at(&header, 16)));
        match end.filter(|end| count == BLOCK_HEADER_BYTES && *end <= self.length) {
            Some(end) if u32_at(&header, 8) == kind as u32 => {
                (self.offset, self.block) = (end, self.block + 1);
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    fn next(&mut self) -> Result<Option<(u32, PartitionId, Vec<u8>)>, DiskError> {
        let mut header = [0; BLOCK_HEADER_BYTES];
        if self.file.read_at(self.offset, &mut header)? < BLOCK_HEADER_BYTES {
            return Ok(None);
        }
        let payload = u64_at(&header, 16);
        let left = self.length.saturating_sub(self.offset + BLOCK_HEADER_BYTES as u64);
        if payload > left {
            return Ok(None);
        }
        let mut bytes = vec![0; BLOCK_HEADER_BYTES + payload as usize];
        let count = self.file.read_at(self.offset, &mut bytes)?;
        if count < bytes.len() || xxh3_64_with_seed(&bytes[8..], self.block) != u64_at(&bytes, 0) {
            return Ok(None);
        }
        self.offset += bytes.len() as u64;
        self.block += 1;
        let payload = bytes.split_off(BLOCK_HEADER_BYTES);
        Ok(Some((u32_at(&bytes, 8), PartitionId(u32_at(&bytes, 12)), payload)))
    }
}

fn decode(blocks: &mut Blocks, engine: u64) -> Result<Option<Snapshot>, DiskError> {
    let Some((kind, _, head)) = blocks.next()? else { return Ok(None) };
    if !is_ours(kind, &head, engine) {
        return Ok(None);
    }
    let mut snapshot = Snapshot {
        boundary: Point { segment: u32_at(&head, 12), offset: u32_at(&head, 16) },
        segment_next: u32_at(&head, 20),
        sequence_next: u64_at(&head, 24),
        segments: BTreeMap::new(),
        entries: Vec::new(),
        bytes: blocks.length,
    };
    while let Some((kind, partition, payload)) = blocks.next()? {
        if kind == Block::Entries as u32 && payload.len() % ENTRY_BYTES == 0 {
            let slots = payload.chunks_exact(ENTRY_BYTES).map(decode_entry).collect();
            snapshot.entries.push((partition, slots));
        } else if kind == Block::Segments as u32 && payload.len() % SEGMENT_BYTES == 0 {
            snapshot.segments.extend(payload.chunks_exact(SEGMENT_BYTES).map(decode_segment));
        } else if kind == Block::End as u32 && blocks.offset == blocks.length {
            return Ok(Some(snapshot));
        } else {
            return Ok(None);
        }
    }
    Ok(None)
}

fn decode_segment(bytes: &[u8]) -> (u32, KnownSegment) {
    let known = KnownSegment {
        kind: u32_at(bytes, 4),
        length: u64_at(bytes, 8),
        markers: u64_at(bytes, 16),
        origin_max: u32_at(bytes, 24),
    };
    (u32_at(bytes, 0), known)
}

impl KnownSegment {
    pub(super) fn is(&self, kind: SegmentKind) -> bool {
        self.kind == kind as u32
    }
}
