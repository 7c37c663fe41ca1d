//! Reading segments into a target, over damage, and telling which damage matters.
//!
//! `recovery` says which segments are read and into what; a target (`replay`, `rebuild`) makes an index of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use runtime::DiskError;

use super::format::{Kind, RECORD_HEADER_BYTES, SegmentKind, header_holds, peek};
use super::index::Slot;
use super::reader::{Item, LogRecord, SegmentReader};
use super::segment::Segment;
use super::tail::Point;
use crate::error::StorageError;
use crate::hash::fingerprint;

/// The segments of a directory by id.
pub(super) type Files = BTreeMap<u32, Arc<Segment>>;

/// Takes the records of segments, in the order of the log.
pub(super) trait Target {
    /// `slot` is where the record lies; its value may be damaged.
    fn apply(&mut self, slot: Slot, record: &LogRecord<'_>) -> Result<(), DiskError>;
}

/// What is known to have been synced, whatever the bytes look like now.
#[derive(Clone, Default)]
pub(super) struct Synced {
    /// From the first segment to a point.
    marks: Vec<(u32, Point)>,
    /// Bytes of a segment.
    lengths: BTreeMap<u32, u64>,
}

impl Synced {
    /// What a snapshot says: this many bytes of each segment.
    pub(super) fn of_lengths(lengths: BTreeMap<u32, u64>) -> Synced {
        Synced { marks: Vec::new(), lengths }
    }

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
pub(super) struct Reading {
    marks: Vec<(u32, Point)>,
    /// Damage was met whose kind depends on marks further on.
    undecided: bool,
    /// Where the last record of each segment ends, marks aside.
    ends: Vec<(Arc<Segment>, u64)>,
    /// Segments with records that nothing says were synced.
    pub(super) doubtful: Vec<u32>,
    /// Where the last good record of a segment ends, if garbage follows that nothing promised.
    pub(super) torn: Vec<(Arc<Segment>, u64)>,
    /// Damage that hides what was there.
    pub(super) corrupt: BTreeSet<(u32, u32)>,
    /// Records that are damaged, but for their keys: what came later may have replaced them.
    pub(super) unsound: BTreeSet<(u32, u32)>,
    pub(super) sequence_max: u64,
    pub(super) bytes: u64,
}

/// Reads the segments; once more if there was damage, because only marks that come later tell its kind.
pub(super) fn read_twice<T: Target>(
    segments: &[(Arc<Segment>, u64)],
    mut synced: Synced,
    target: impl Fn() -> T,
) -> Result<(T, Reading), StorageError> {
    let markers: Vec<(u64, u32)> = segments.iter().map(|(s, _)| (s.markers(), s.origin_max())).collect();
    let mut first = target();
    let mut reading = read(segments, &synced, &mut first)?;
    if !reading.undecided {
        reading.doubt(&synced);
        return Ok((first, reading));
    }
    drop(first);
    for ((segment, _), (bytes, origin)) in segments.iter().zip(markers) {
        segment.set_markers(bytes, origin);
    }
    synced.marks = reading.marks;
    let mut second = target();
    let mut reading = read(segments, &synced, &mut second)?;
    reading.doubt(&synced);
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
        let end = segment.written();
        let mut reader = SegmentReader::new(file.clone(), segment.salt, *from, end);
        let mut good_end = (*from).min(end);
        reading.ends.push((segment.clone(), 0));
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
            self.undecided = true;
            return Ok(good_end);
        };
        let header = &record.header;
        let slot = Slot {
            token: header.token,
            fingerprint: fingerprint(record.key),
            segment: segment.id,
            offset: offset as u32,
            length: header.length() as u32,
        };
        let end = offset + slot.space();
        if !record.sound {
            self.undecided = true;
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
                return Ok(end);
            }
            Kind::Put => target.apply(slot, record)?,
            Kind::Remove | Kind::Drop => {
                segment.add_marker(slot.space(), header.origin);
                target.apply(slot, record)?;
            }
        }
        if let Some((_, last)) = self.ends.last_mut() {
            *last = end;
        }
        Ok(end)
    }

    /// Finds the segments with records that neither a mark nor `synced` covers.
    fn doubt(&mut self, synced: &Synced) {
        let synced = Synced { marks: self.marks.clone(), lengths: synced.lengths.clone() };
        let ends = self.ends.iter().filter(|(segment, end)| *end > 0 && !synced.covers(segment, *end));
        self.doubtful = ends.map(|(segment, _)| segment.id).collect();
    }
}

/// True when the record at a slot is of this key. One whose header is damaged counts as such: token and fingerprint
/// agree already.
pub(super) fn same_key(files: &Files, slot: &Slot, key: &[u8]) -> Result<bool, DiskError> {
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
