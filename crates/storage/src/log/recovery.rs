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
use std::sync::atomic::Ordering;

use runtime::{Disk, DiskError};

use super::format::{
    Kind, RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES, SegmentHeader, SegmentKind, header_holds, peek,
    read_segment_header,
};
use super::index::{PartitionIndex, Slot};
use super::reader::{Item, Record, SegmentReader};
use super::rebuild::Rebuild;
use super::replay::Replay;
use super::segment::{Segment, Segments, parse_name};
use super::snapshot::{self, Snapshot};
use super::tail::Point;
use crate::StorageError;
use crate::partitions::Partitions;

/// What opening found.
pub(super) struct Recovered {
    pub(super) index: Partitions<PartitionIndex>,
    pub(super) segments: Segments,
    pub(super) segment_next: u32,
    pub(super) sequence_next: u64,
    /// The lowest segment whose bytes may not be synced.
    pub(super) unsynced_from: u32,
    /// Bytes of the log that were read.
    pub(super) read_bytes: u64,
    pub(super) snapshot_bytes: u64,
    /// Segment and offset of records that are lost.
    pub(super) corrupt: BTreeSet<(u32, u32)>,
    /// How many of them the index does not point at: nobody can tell whose they were.
    pub(super) unplaced: u64,
}

/// Takes the records of segments, in the order of the log.
pub(super) trait Target {
    /// `slot` is where the record lies; its value may be damaged.
    fn apply(&mut self, slot: Slot, record: &Record<'_>) -> Result<(), DiskError>;
}

/// What is known to have been synced, whatever the bytes look like now.
#[derive(Clone, Default)]
struct Synced {
    /// From the first segment to a point.
    marks: Vec<(u32, Point)>,
    /// Bytes of a segment.
    lengths: BTreeMap<u32, u64>,
}

impl Synced {
    fn covers(&self, segment: &Segment, end: u64) -> bool {
        segment.kind == SegmentKind::Compacted
            || self.lengths.get(&segment.id).is_some_and(|&length| end <= length)
            || self.marks.iter().any(|(first, to)| {
                let before = segment.id < to.segment;
                *first <= segment.id && (before || (segment.id == to.segment && end <= u64::from(to.offset)))
            })
    }
}

/// One reading of segments.
#[derive(Default)]
struct Reading {
    marks: Vec<(u32, Point)>,
    /// Damage was met whose kind depends on marks further on.
    doubtful: bool,
    /// Where the last good record of a segment ends, if garbage follows that nothing promised.
    torn: Vec<(Arc<Segment>, u64)>,
    /// Damage that hides what was there.
    corrupt: BTreeSet<(u32, u32)>,
    /// Records that are damaged, but for their keys: what came later may have replaced them.
    unsound: BTreeSet<(u32, u32)>,
    sequence_max: u64,
    bytes: u64,
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
    let unplaced = corrupt.len() as u64;
    corrupt.extend(still_held(&index, &reading.unsound));
    let segments = Segments::default();
    let highest = files.keys().next_back().copied().unwrap_or(0);
    for segment in files.into_values() {
        let superfluous = snapshot.as_ref().is_some_and(|snapshot| !snapshot.needs(&segment));
        if superfluous {
            disk.remove(&segment.path)?;
        } else {
            segments.insert(segment);
        }
    }
    let next = (highest.checked_add(1), reading.sequence_max.checked_add(1));
    let (Some(segment_after), Some(sequence_after)) = next else {
        let reason = "it holds the last segment or record number that there is, which no engine lives to use"
            .to_owned();
        return Err(StorageError::Foreign { directory: directory.to_owned(), reason });
    };
    cut_torn_ends(disk, &segments, &reading)?;
    count_live(&index, &segments);
    let known = snapshot.as_ref();
    Ok(Recovered {
        index,
        segments,
        segment_next: known.map_or(0, |snapshot| snapshot.segment_next).max(segment_after),
        sequence_next: known.map_or(1, |snapshot| snapshot.sequence_next).max(sequence_after),
        unsynced_from: from,
        read_bytes: reading.bytes,
        snapshot_bytes: known.map_or(0, |snapshot| snapshot.bytes),
        corrupt,
        unplaced,
    })
}

type Files = BTreeMap<u32, Arc<Segment>>;

/// Opens all segments and removes what an interrupted compaction or snapshot left.
fn open_segments(
    disk: &dyn Disk,
    directory: &str,
    engine: u64,
) -> Result<(Files, BTreeSet<(u32, u32)>), StorageError> {
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
                let supported = super::format::FORMAT_VERSION;
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
fn holds(snapshot: &Snapshot, files: &Files, corrupt: &mut BTreeSet<(u32, u32)>) -> bool {
    let there = |id: u32, length: u64| {
        files.get(&id).is_some_and(|segment| segment.written.load(Ordering::Relaxed) >= length)
    };
    let missing: Vec<u32> = snapshot
        .segments
        .iter()
        .filter(|(id, known)| {
            let kind = files.get(id).is_some_and(|segment| known.is(segment.kind));
            !kind || !there(**id, known.length)
        })
        .map(|(id, _)| *id)
        .collect();
    let ends = |slot: &Slot| u64::from(slot.offset) + u64::from(slot.length);
    let mut slots = snapshot.entries.iter().flat_map(|(_, slots)| slots);
    let sound = missing.is_empty()
        && (snapshot.boundary.offset == 0
            || there(snapshot.boundary.segment, u64::from(snapshot.boundary.offset)))
        && slots.all(|slot| snapshot.segments.contains_key(&slot.segment) && there(slot.segment, ends(slot)));
    if !sound {
        tracing::error!(?missing, "index snapshot names segments that are not there, reading all segments");
        corrupt.extend(missing.into_iter().map(|id| (id, 0)));
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

type Read = (Partitions<PartitionIndex>, Reading, u32);

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
        segment.markers.store(known.markers, Ordering::Relaxed);
        segment.origin_max.store(known.origin_max, Ordering::Relaxed);
        if !snapshot.is_tail(segment) {
            segment.synced.store(segment.written.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
    let lengths = snapshot.segments.iter().map(|(id, known)| (*id, known.length)).collect();
    let (target, reading) =
        read_twice(&tail, Synced { marks: Vec::new(), lengths }, || Replay::new(snapshot, files))?;
    Ok((target.into_index(), reading, snapshot.boundary.segment))
}

fn rebuild(files: &Files) -> Result<Read, StorageError> {
    let all: Vec<(Arc<Segment>, u64)> =
        files.values().map(|segment| (segment.clone(), SEGMENT_HEADER_BYTES as u64)).collect();
    let (target, reading) = read_twice(&all, Synced::default(), || Rebuild::new(files))?;
    let from = files.keys().next().copied().unwrap_or(0);
    Ok((target.into_index(), reading, from))
}

/// Reads the segments; once more if there was damage, because only marks that come later tell its kind.
fn read_twice<T: Target>(
    segments: &[(Arc<Segment>, u64)],
    mut synced: Synced,
    target: impl Fn() -> T,
) -> Result<(T, Reading), StorageError> {
    let markers: Vec<(u64, u32)> = segments
        .iter()
        .map(|(s, _)| (s.markers.load(Ordering::Relaxed), s.origin_max.load(Ordering::Relaxed)))
        .collect();
    let mut first = target();
    let reading = read(segments, &synced, &mut first)?;
    if !reading.doubtful {
        return Ok((first, reading));
    }
    drop(first);
    for ((segment, _), (bytes, origin)) in segments.iter().zip(markers) {
        segment.markers.store(bytes, Ordering::Relaxed);
        segment.origin_max.store(origin, Ordering::Relaxed);
    }
    synced.marks = reading.marks;
    let mut second = target();
    let reading = read(segments, &synced, &mut second)?;
    Ok((second, reading))
}

fn read<T: Target>(
    segments: &[(Arc<Segment>, u64)],
    synced: &Synced,
    target: &mut T,
) -> Result<Reading, StorageError> {
    let mut reading = Reading::default();
    for (segment, from) in segments {
        let Some(file) = segment.file() else { continue };
        let end = segment.written.load(Ordering::Relaxed);
        let mut reader = SegmentReader::new(file.clone(), segment.salt, *from, end);
        let mut good_end = (*from).min(end);
        while let Some((offset, item)) = reader.next()? {
            good_end = reading.take(segment, offset, &item, good_end, synced, target)?;
        }
        reading.bytes += reader.bytes_read();
        if good_end < end && !synced.covers(segment, good_end + 1) {
            reading.torn.push((segment.clone(), good_end));
        }
    }
    Ok(reading)
}

impl Reading {
    /// Takes one item, and says where good records end now.
    fn take<T: Target>(
        &mut self,
        segment: &Segment,
        offset: u64,
        item: &Item<'_>,
        good_end: u64,
        synced: &Synced,
        target: &mut T,
    ) -> Result<u64, StorageError> {
        let Item::Record(record) = item else {
            let promised = synced.covers(segment, offset + 1);
            if promised || !matches!(item, Item::Gap { to_end: true }) {
                self.corrupt.insert((segment.id, offset as u32));
            }
            self.doubtful = true;
            return Ok(good_end);
        };
        let header = &record.header;
        let slot = Slot {
            token: header.token,
            fingerprint: crate::hash::fingerprint(record.key),
            segment: segment.id,
            offset: offset as u32,
            length: header.length() as u32,
        };
        let end = offset + slot.space();
        if !record.sound {
            self.doubtful = true;
            if !synced.covers(segment, offset + header.length() as u64) {
                return Ok(good_end);
            }
            self.unsound.insert((segment.id, slot.offset));
        }
        self.sequence_max = self.sequence_max.max(header.sequence);
        match header.kind {
            Kind::Mark => {
                let point = Point { segment: (header.token.0 >> 32) as u32, offset: header.token.0 as u32 };
                self.marks.push((header.origin, point));
            }
            Kind::Put => target.apply(slot, record)?,
            Kind::Remove | Kind::Drop => {
                segment.add_marker(slot.space(), header.origin);
                target.apply(slot, record)?;
            }
        }
        Ok(end)
    }
}

fn cut_torn_ends(disk: &dyn Disk, segments: &Segments, reading: &Reading) -> Result<(), StorageError> {
    for (segment, good_end) in &reading.torn {
        tracing::info!(path = %segment.path, good_end, "cutting a torn end");
        if *good_end <= SEGMENT_HEADER_BYTES as u64 {
            segments.remove(segment.id);
            disk.remove(&segment.path)?;
        } else if let Some(file) = segment.file() {
            file.truncate(*good_end)?;
            segment.written.store(*good_end, Ordering::Relaxed);
        }
    }
    Ok(())
}

/// Those of these records that the finished index points at.
fn still_held(index: &Partitions<PartitionIndex>, records: &BTreeSet<(u32, u32)>) -> Vec<(u32, u32)> {
    let mut held = Vec::new();
    if records.is_empty() {
        return held;
    }
    for (_, partition) in index.iter() {
        for stripe in &partition.stripes {
            stripe.for_each(|slot| held.extend(records.get(&(slot.segment, slot.offset))));
        }
    }
    held
}

/// Live bytes of segments and sums of partitions, from the finished index.
fn count_live(index: &Partitions<PartitionIndex>, segments: &Segments) {
    let all: BTreeMap<u32, Arc<Segment>> =
        segments.all().into_iter().map(|segment| (segment.id, segment)).collect();
    for (_, partition) in index.iter() {
        let (mut records, mut bytes) = (0, 0);
        for stripe in &partition.stripes {
            stripe.for_each(|slot| {
                records += 1;
                bytes += u64::from(slot.length) - RECORD_HEADER_BYTES as u64;
                if let Some(segment) = all.get(&slot.segment) {
                    segment.live.fetch_add(slot.space(), Ordering::Relaxed);
                }
            });
        }
        partition.records.store(records, Ordering::Relaxed);
        partition.bytes.store(bytes, Ordering::Relaxed);
    }
}

/// True when the record at a slot is of this key. One whose header is damaged counts as such: token and fingerprint
/// agree already.
pub(super) fn same_key(
    files: &BTreeMap<u32, Arc<Segment>>,
    slot: &Slot,
    key: &[u8],
) -> Result<bool, DiskError> {
    let Some(segment) = files.get(&slot.segment) else { return Ok(true) };
    let Some(file) = segment.file() else { return Ok(true) };
    let mut bytes = vec![0; RECORD_HEADER_BYTES + key.len()];
    let count = file.read_at(u64::from(slot.offset), &mut bytes)?;
    bytes.truncate(count);
    Ok(match peek(&bytes) {
        // Another length of key means another key, if the header can be believed at all.
        Some(header) if usize::from(header.key_bytes) != key.len() => {
            let mut whole = vec![0; RECORD_HEADER_BYTES + usize::from(header.key_bytes)];
            let count = file.read_at(u64::from(slot.offset), &mut whole)?;
            !header_holds(&whole[..count], segment.salt, u64::from(slot.offset), &header)
        }
        Some(header) if header_holds(&bytes, segment.salt, u64::from(slot.offset), &header) => {
            bytes[RECORD_HEADER_BYTES..] == *key
        }
        _ => true,
    })
}
