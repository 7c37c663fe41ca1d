//! The end of the log: records wait here until they are in the file.
//!
//! Appending copies a record behind those that wait and returns; it makes no system call. Whoever needs the bytes in
//! the file flushes: one write takes everything that waits, so that many writers share it. Readers find bytes that
//! are not in the file yet here.
//!
//! Two locks: `writer` is held over a write to the file, `state` never is (except for the last bytes at a
//! rotation). `writer` is taken first.
//!
//! Must never: lose what waits. When the disk refuses a write, its bytes stay, readable, for the next try.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use model::{PartitionId, Token};
use parking_lot::{Mutex, MutexGuard};
use runtime::{Disk, DiskError};

use super::format::{Kind, RECORD_HEADER_BYTES, RecordHeader, SegmentKind, encode, padded, segment_header};
use super::index::Slot;
use super::segment::{Segment, Segments};

/// A buffer that grew beyond this for a large record is given back.
const BUFFER_BYTES_KEPT: usize = 1 << 20;

/// What a writer appends.
pub(super) struct Entry<'a> {
    pub(super) kind: Kind,
    pub(super) partition: PartitionId,
    pub(super) token: Token,
    pub(super) fingerprint: u32,
    pub(super) key: &'a [u8],
    pub(super) value: &'a [u8],
    pub(super) value_check: u64,
}

/// Where it went.
pub(super) struct Appended {
    pub(super) slot: Slot,
    pub(super) segment: Arc<Segment>,
    /// Position of the log after it, in bytes.
    pub(super) position: u64,
    /// The highest segment id given out by then.
    pub(super) origin: u32,
    /// Bytes that wait for the file now.
    pub(super) waiting: usize,
    /// Bytes by which the log grew: the record, and what had to stand before it.
    pub(super) grown: u64,
}

/// Why nothing was appended.
pub(super) enum AppendError {
    Closed,
    /// The segment is far too long: rotate first.
    Overlong,
}

/// A point of the log on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Point {
    pub(super) segment: u32,
    pub(super) offset: u32,
}

/// The end of the log.
pub(super) struct Tail {
    state: Mutex<TailState>,
    writer: Mutex<()>,
    /// Positions up to which everything is in the file, and synced. Neither goes back, and the second never passes the
    /// first.
    written: AtomicU64,
    synced: AtomicU64,
    engine: u64,
    directory: String,
    /// First segment of this life of the engine: marks speak of what came since.
    first: u32,
    /// No segment grows beyond this.
    overlong_bytes: u64,
}

/// Where a life of the engine begins.
pub(super) struct Start {
    /// Counts what recovery read, too: it is as much a reason for a snapshot as what is appended.
    pub(super) position: u64,
    pub(super) sequence_next: u64,
}

struct TailState {
    active: Arc<Segment>,
    /// Where in the active segment the first byte that waits will lie.
    start: u64,
    /// Being written now.
    in_flight: Option<Arc<Vec<u8>>>,
    /// Waits behind it.
    pending: Vec<u8>,
    spare: Vec<u8>,
    position: u64,
    sequence_next: u64,
    /// A sync reached this point and no mark says so yet.
    mark_due: Option<Point>,
    closed: bool,
}

impl TailState {
    fn end(&self) -> u64 {
        self.start + (self.in_flight.as_ref().map_or(0, |bytes| bytes.len()) + self.pending.len()) as u64
    }

    fn waiting(&self) -> usize {
        self.in_flight.as_ref().map_or(0, |bytes| bytes.len()) + self.pending.len()
    }

    /// Appends one record and says where it starts.
    fn push(&mut self, header: &mut RecordHeader, key: &[u8], value: &[u8]) -> u64 {
        header.sequence = self.sequence_next;
        self.sequence_next += 1;
        let offset = self.end();
        encode(&mut self.pending, self.active.salt, offset, header, key, value);
        self.position += padded(header.length()) as u64;
        offset
    }
}

impl Tail {
    pub(super) fn new(
        directory: &str,
        engine: u64,
        active: Arc<Segment>,
        start: Start,
        segment_bytes: u64,
    ) -> Tail {
        let first = active.id;
        let state = TailState {
            active,
            start: 0,
            in_flight: None,
            pending: Vec::new(),
            spare: Vec::new(),
            position: start.position,
            sequence_next: start.sequence_next,
            mark_due: None,
            closed: false,
        };
        Tail {
            state: Mutex::new(state),
            writer: Mutex::new(()),
            written: AtomicU64::new(start.position),
            // What recovery read may not be synced; whoever finds it and wants to acknowledge it waits for that.
            synced: AtomicU64::new(0),
            engine,
            directory: directory.to_owned(),
            first,
            overlong_bytes: segment_bytes * 2,
        }
    }

    /// Appends a record behind those that wait.
    pub(super) fn append(&self, entry: &Entry<'_>, segments: &Segments) -> Result<Appended, AppendError> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(AppendError::Closed);
        }
        let length = RECORD_HEADER_BYTES + entry.key.len() + entry.value.len();
        if state.end() > self.overlong_bytes {
            return Err(AppendError::Overlong);
        }
        let before = state.position;
        self.begin_batch(&mut state);
        let origin = segments.id_last();
        debug_assert!(origin >= state.active.id, "the active segment has an id that was given out");
        let mut header = RecordHeader {
            kind: entry.kind,
            partition: entry.partition,
            token: entry.token,
            sequence: 0,
            origin,
            key_bytes: entry.key.len() as u16,
            value_bytes: entry.value.len() as u32,
            value_check: entry.value_check,
        };
        let offset = state.push(&mut header, entry.key, entry.value);
        let slot = Slot {
            token: entry.token,
            fingerprint: entry.fingerprint,
            segment: state.active.id,
            offset: u32::try_from(offset).expect("a segment is at most twice its limit plus one record long"),
            length: length as u32,
        };
        Ok(Appended {
            slot,
            segment: state.active.clone(),
            position: state.position,
            origin,
            waiting: state.waiting(),
            grown: state.position - before,
        })
    }

    /// The segment's header before its first record, and the mark of the last sync before the first record after it.
    fn begin_batch(&self, state: &mut TailState) {
        if state.end() == 0 {
            let header = segment_header(self.engine, state.active.id, SegmentKind::Log);
            state.pending.extend_from_slice(&header);
            state.position += header.len() as u64;
        }
        if let Some(point) = state.mark_due.take() {
            let mut header = RecordHeader {
                kind: Kind::Mark,
                partition: PartitionId(0),
                token: Token((u64::from(point.segment) << 32) | u64::from(point.offset)),
                sequence: 0,
                origin: self.first,
                key_bytes: 0,
                value_bytes: 0,
                value_check: xxhash_rust::xxh3::xxh3_64(&[]),
            };
            state.push(&mut header, &[], &[]);
        }
    }

    /// Writes everything that waits to the file.
    pub(super) fn flush(&self, disk: &dyn Disk) -> Result<(), DiskError> {
        let writer = self.writer.lock();
        self.flush_once(disk, &writer)
    }

    /// Like [`Tail::flush`], but does nothing when all up to `position` is in the file.
    pub(super) fn flush_to(&self, disk: &dyn Disk, position: u64) -> Result<(), DiskError> {
        if self.written() >= position {
            return Ok(());
        }
        let writer = self.writer.lock();
        if self.written() >= position {
            return Ok(());
        }
        self.flush_once(disk, &writer)
    }

    fn flush_once(&self, disk: &dyn Disk, _writer: &MutexGuard<'_, ()>) -> Result<(), DiskError> {
        let (segment, bytes, position) = {
            let mut state = self.state.lock();
            if state.pending.is_empty() {
                return Ok(());
            }
            let spare = std::mem::take(&mut state.spare);
            let bytes = Arc::new(std::mem::replace(&mut state.pending, spare));
            state.in_flight = Some(bytes.clone());
            (state.active.clone(), bytes, state.position)
        };
        let outcome = segment.append(disk, &bytes);
        let mut state = self.state.lock();
        assert!(state.active.id == segment.id, "nobody rotates while a write is under way");
        state.in_flight = None;
        let mut bytes = Arc::try_unwrap(bytes).unwrap_or_default();
        match outcome {
            Ok(()) => {
                state.start = segment.written();
                self.set_written(position);
                if bytes.capacity() <= BUFFER_BYTES_KEPT {
                    bytes.clear();
                    state.spare = bytes;
                }
            }
            Err(_) => {
                bytes.append(&mut state.pending);
                state.pending = bytes;
            }
        }
        outcome
    }

    /// Closes the active segment and begins another, unless it is shorter than `bytes_min`.
    pub(super) fn rotate(
        &self,
        disk: &dyn Disk,
        segments: &Segments,
        bytes_min: u64,
    ) -> Result<bool, DiskError> {
        let writer = self.writer.lock();
        self.flush_once(disk, &writer)?;
        let mut state = self.state.lock();
        if state.end() < bytes_min.max(1) {
            return Ok(false);
        }
        if !state.pending.is_empty() {
            let pending = std::mem::take(&mut state.pending);
            if let Err(error) = state.active.append(disk, &pending) {
                state.pending = pending;
                return Err(error);
            }
            state.start = state.active.written();
            self.set_written(state.position);
        }
        assert!(
            self.written() == state.position && state.end() == state.active.written(),
            "a segment is closed when all of it is in the file"
        );
        let id = segments.take_id();
        let active = Arc::new(Segment::new(&self.directory, self.engine, id, SegmentKind::Log));
        assert!(id > state.active.id, "the log goes on in a higher segment");
        segments.insert(active.clone());
        state.active = active;
        state.start = 0;
        Ok(true)
    }

    /// Bytes of the log that are not in the file yet: those of the record at `slot`, if it is among them.
    pub(super) fn read_waiting(&self, slot: &Slot) -> Option<Vec<u8>> {
        let state = self.state.lock();
        if state.active.id != slot.segment {
            return None;
        }
        let from = u64::from(slot.offset).checked_sub(state.start)? as usize;
        let in_flight: &[u8] = state.in_flight.as_ref().map_or(&[], |bytes| bytes);
        let bytes = match from.checked_sub(in_flight.len()) {
            Some(from) => state.pending.get(from..from + slot.length as usize),
            None => in_flight.get(from..from + slot.length as usize),
        };
        bytes.map(<[u8]>::to_vec)
    }

    /// Id of the active segment, the log's end as a point and as a position, and the next sequence.
    pub(super) fn end(&self) -> TailEnd {
        let state = self.state.lock();
        TailEnd {
            point: Point { segment: state.active.id, offset: state.end() as u32 },
            position: state.position,
            waiting: state.waiting(),
            sequence_next: state.sequence_next,
        }
    }

    /// What is in the file now: its end as a point and as a position.
    pub(super) fn written_end(&self) -> (Point, u64) {
        let state = self.state.lock();
        let point = Point { segment: state.active.id, offset: state.start as u32 };
        (point, self.written())
    }

    /// Position up to which everything is in the file.
    pub(super) fn written(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    /// Position up to which everything is synced.
    pub(super) fn synced(&self) -> u64 {
        self.synced.load(Ordering::Acquire)
    }

    /// Everything up to here is in the file. Under the lock of `state`.
    fn set_written(&self, position: u64) {
        let before = self.written.swap(position, Ordering::AcqRel);
        assert!(before <= position, "what is in the file stays there: {before}, then {position}");
    }

    /// Everything up to here survives a power cut; the next record is preceded by a mark that says so.
    pub(super) fn synced_to(&self, point: Point, position: u64) {
        let written = self.written();
        assert!(position <= written, "only what is written is synced: {position} of {written}");
        let before = self.synced.fetch_max(position, Ordering::AcqRel);
        let news = point > Point { segment: self.first, offset: 0 };
        if before < position && news {
            self.state.lock().mark_due = Some(point);
        }
    }

    /// Appends the mark that is due; true when there was one.
    pub(super) fn mark(&self) -> bool {
        let mut state = self.state.lock();
        let due = state.mark_due.is_some();
        if due {
            self.begin_batch(&mut state);
        }
        due
    }

    /// Refuses all further records.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
    }
}

/// The end of the log, at one moment.
pub(super) struct TailEnd {
    pub(super) point: Point,
    pub(super) position: u64,
    pub(super) waiting: usize,
    pub(super) sequence_next: u64,
}
