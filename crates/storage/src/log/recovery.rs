//! Opening: from files to an index.
//!
//! With a usable snapshot only the log after its boundary is read, in order, each record overriding what was before
//! (`replay`). Without one all segments are read and the highest sequence of each key wins (`rebuild`).
//!
//! Damage is of two kinds. Bytes that were never synced may be missing or garbled after a power cut: nothing in them
//! was promised, they are skipped, and cut off at the log's end. Bytes that a mark, a snapshot or a finished
//! compaction says were synced must be there: if they are not, the disk lost them. Such a record, when its key can
//! still be read, stays in the index, so that a get says *corrupt* rather than answer with an older value.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use runtime::Disk;

use super::damage::{Damage, DamagedPlace};
use super::format::{FORMAT_VERSION, SEGMENT_HEADER_BYTES, SegmentHeader, SegmentKind, read_segment_header};
use super::index::{Index, Slot};
use super::reading::{Files, Reading, Synced, read_twice};
use super::rebuild::Rebuild;
use super::replay::Replay;
use super::segment::{Segment, Segments, parse_name};
use super::snapshot::{self, Snapshot};
use crate::error::StorageError;

/// What opening found.
pub(super) struct Recovered {
    pub(super) index: Index,
    pub(super) segments: Segments,
    pub(super) sequence_next: u64,
    /// The lowest segment whose bytes may not be synced.
    pub(super) unsynced_from: u32,
    /// Bytes of the log that were read.
    pub(super) read_bytes: u64,
    pub(super) snapshot_bytes: u64,
    /// Segments with records that may not be synced, whatever later syncs say.
    pub(super) doubtful: Vec<Arc<Segment>>,
    /// Records that are lost.
    pub(super) damage: Damage,
}

/// Reads a directory. Changes nothing but to remove what is superfluous and to cut a torn end.
pub(super) fn recover(disk: &dyn Disk, directory: &str, engine: u64) -> Result<Recovered, StorageError> {
    let (files, mut corrupt) = open_segments(disk, directory, engine)?;
    let snapshot = snapshot::load(disk, directory, engine)?;
    let snapshot = snapshot.filter(|snapshot| holds(snapshot, &files, &mut corrupt));
    let (index, reading, from) = match &snapshot {
        Some(snapshot) => replay(snapshot, &files)?,
        None => rebuild(&files)?,
    };
    corrupt.extend(&reading.corrupt);
    // The highest id that is known to have been given out, if only to a file that never came to be.
    let highest = files.values().map(|segment| segment.id.max(segment.origin_max())).max().unwrap_or(0);
    // One id is for the segment that this life begins with, and one more is never given out.
    let next = (highest.checked_add(2), reading.sequence_max.checked_add(1));
    let (Some(_), Some(sequence_after)) = next else {
        let reason = "it holds the last segment or record number that there is, which no engine lives to use"
            .to_owned();
        return Err(StorageError::Foreign { directory: directory.to_owned(), reason });
    };
    let known = snapshot.as_ref();
    let segments = Segments::from_id(known.map_or(0, |snapshot| snapshot.segment_next).max(highest + 1));
    for segment in files.into_values() {
        let superfluous = known.is_some_and(|snapshot| !snapshot.needs(&segment));
        if superfluous {
            disk.remove(&segment.path)?;
        } else {
            segments.insert(segment);
        }
    }
    cut_torn_ends(disk, &segments, &reading)?;
    count_live(&index, &segments);
    // What was torn may be gone.
    let doubtful = reading.doubtful.iter().filter_map(|id| segments.get(*id)).collect();
    let damage = damage(&index, &corrupt, &reading.unsound);
    Ok(Recovered {
        index,
        segments,
        sequence_next: known.map_or(1, |snapshot| snapshot.sequence_next).max(sequence_after),
        unsynced_from: from,
        read_bytes: reading.bytes,
        snapshot_bytes: known.map_or(0, |snapshot| snapshot.bytes),
        doubtful,
        damage,
    })
}

/// Opens all segments and removes what an interrupted compaction or snapshot left.
fn open_segments(
    disk: &dyn Disk,
    directory: &str,
    engine: u64,
) -> Result<(Files, BTreeSet<DamagedPlace>), StorageError> {
    let mut files = Files::new();
    let mut corrupt = BTreeSet::new();
    for name in disk.list(directory)? {
        let path = format!("{directory}/{name}");
        if name.ends_with(".tmp") {
            disk.remove(&path)?;
            continue;
        }
        let Some((id, kind)) = parse_name(&name) else { continue };
        let file = disk.open(&path)?;
        let mut header = [0; SEGMENT_HEADER_BYTES];
        let count = file.read_at(0, &mut header)?;
        match read_segment_header(&header[..count], engine, id) {
            SegmentHeader::Ours => {}
            SegmentHeader::Newer { version } => {
                let supported = FORMAT_VERSION;
                return Err(StorageError::NewerFormat { found: version, supported });
            }
            SegmentHeader::Foreign => {
                let reason = format!("its file {name} was written by another engine");
                return Err(StorageError::Foreign { directory: directory.to_owned(), reason });
            }
            // Its records can be read all the same; if it has none, it is a torn end.
            SegmentHeader::Damaged if count == SEGMENT_HEADER_BYTES => {
                corrupt.insert((id, 0));
            }
            SegmentHeader::Damaged => {}
        }
        files.insert(id, Arc::new(Segment::existing(directory, engine, id, kind, file)));
    }
    Ok((files, corrupt))
}

/// True when everything that the snapshot speaks of is there.
fn holds(snapshot: &Snapshot, files: &Files, corrupt: &mut BTreeSet<DamagedPlace>) -> bool {
    let there = |id: u32, length: u64| files.get(&id).is_some_and(|segment| segment.written() >= length);
    let missing: Vec<u32> = snapshot
        .segments
        .iter()
        .filter(|(id, known)| {
            let kind = files.get(id).is_some_and(|segment| known.is(segment.kind));
            !kind || !there(**id, known.length)
        })
        .map(|(id, _)| *id)
        .collect();
    let reaches =
        |slot: &&Slot| snapshot.segments.contains_key(&slot.segment) && there(slot.segment, slot.end());
    let mut slots = snapshot.entries.iter().flat_map(|(_, slots)| slots);
    let beyond = slots.find(|slot| !reaches(slot)).map(|slot| slot.segment);
    let boundary = snapshot.boundary;
    let sound = missing.is_empty()
        && beyond.is_none()
        && (boundary.offset == 0 || there(boundary.segment, u64::from(boundary.offset)));
    if !sound {
        tracing::error!(
            ?missing,
            ?beyond,
            "index snapshot names segments that are not there, or points past an end, reading all segments"
        );
        corrupt.extend(missing.into_iter().chain(beyond).map(|id| (id, 0)));
    }
    sound
}

impl Snapshot {
    /// False for what was emptied before the snapshot, or copied after it (its sources are still there then).
    fn needs(&self, segment: &Segment) -> bool {
        self.segments.contains_key(&segment.id) || self.is_tail(segment)
    }

    fn is_tail(&self, segment: &Segment) -> bool {
        segment.kind == SegmentKind::Log && segment.id >= self.boundary.segment
    }
}

type Read = (Index, Reading, u32);

fn replay(snapshot: &Snapshot, files: &Files) -> Result<Read, StorageError> {
    let tail: Vec<(Arc<Segment>, u64)> = files
        .values()
        .filter(|segment| snapshot.is_tail(segment))
        .map(|segment| {
            let boundary = u64::from(snapshot.boundary.offset);
            let from = if segment.id == snapshot.boundary.segment { boundary } else { 0 };
            (segment.clone(), from.max(SEGMENT_HEADER_BYTES as u64))
        })
        .collect();
    for (id, known) in &snapshot.segments {
        let segment = &files[id];
        segment.set_markers(known.markers, known.origin_max);
        if !snapshot.is_tail(segment) {
            segment.note_synced(segment.written());
        }
    }
    let lengths = snapshot.segments.iter().map(|(id, known)| (*id, known.length)).collect();
    let (target, reading) = read_twice(&tail, Synced::of_lengths(lengths), || Replay::new(snapshot, files))?;
    Ok((target.into_index(), reading, snapshot.boundary.segment))
}

fn rebuild(files: &Files) -> Result<Read, StorageError> {
    let all: Vec<(Arc<Segment>, u64)> =
        files.values().map(|segment| (segment.clone(), SEGMENT_HEADER_BYTES as u64)).collect();
    let (target, reading) = read_twice(&all, Synced::default(), || Rebuild::new(files))?;
    let from = files.keys().next().copied().unwrap_or(0);
    Ok((target.into_index(), reading, from))
}

fn cut_torn_ends(disk: &dyn Disk, segments: &Segments, reading: &Reading) -> Result<(), StorageError> {
    for (segment, good_end) in &reading.torn {
        tracing::info!(path = %segment.path, good_end, "cutting a torn end");
        if *good_end <= SEGMENT_HEADER_BYTES as u64 {
            segments.remove(segment.id);
            disk.remove(&segment.path)?;
        } else {
            segment.cut(*good_end)?;
        }
    }
    Ok(())
}

/// What is lost: places where a record could be, and records that are damaged but for their keys, of which only those
/// count that nothing has replaced.
fn damage(index: &Index, places: &BTreeSet<DamagedPlace>, unsound: &BTreeSet<DamagedPlace>) -> Damage {
    let mut held = BTreeSet::new();
    if !places.is_empty() || !unsound.is_empty() {
        index.for_each(|slot| {
            let place = slot.place();
            if places.contains(&place) || unsound.contains(&place) {
                held.insert(place);
            }
        });
    }
    Damage::found(held, places.iter().copied())
}

/// Live bytes of segments, from the finished index.
fn count_live(index: &Index, segments: &Segments) {
    let all: BTreeMap<u32, Arc<Segment>> =
        segments.all().into_iter().map(|segment| (segment.id, segment)).collect();
    index.for_each(|slot| {
        if let Some(segment) = all.get(&slot.segment) {
            segment.add_live(slot.space());
        }
    });
}
