//! Making room: what is still needed of old segments is copied to a new one, in small steps.
//!
//! A record is needed when the index points at it, a marker while any file is left that may hold what it removes.
//! Copies keep their sequence. The index is pointed at a copy under the key's gate once the copy can be read; the
//! old files stay until a snapshot of the index that does without them is durable (`snapshot`), so a crash at any
//! moment finds either the old files or their copies whole.
//!
//! The active segment takes part only when room is short and it is mostly dead: then it is closed early, and rewritten
//! as any other.
//!
//! Bound: a closed segment with [`DEAD_PERCENT_MAX`] of dead bytes is rewritten, so segments take at most twice the
//! live bytes, and what waits for a snapshot to be deleted.

use std::sync::Arc;
use std::time::Duration;

use model::PartitionId;
use runtime::{DiskError, File, Moment};

use super::core::Core;
use super::format::{Kind, RecordHeader, SEGMENT_HEADER_BYTES, SegmentKind, encode, segment_header};
use super::index::Slot;
use super::reader::{Item, LogRecord, SegmentReader};
use super::segment::Segment;
use crate::error::StorageError;
use crate::hash::fingerprint;

/// A closed segment is rewritten when this much of it is dead.
pub(super) const DEAD_PERCENT_MAX: u64 = 50;

/// Markers that are still needed may take this share of the live bytes (and two segments); then the oldest segments
/// are rewritten, dead or not, until the markers have outlived what they remove.
const MARKER_PERCENT_MAX: u64 = 25;

/// Bytes copied in one step, after which requests get their turn.
const STEP_BYTES: usize = 256 << 10;

/// Bytes read in one step even when nothing in them is needed.
const STEP_READ_BYTES: u64 = 4 << 20;

/// Copies are synced this often, so that the device never gets a segment's worth at once while requests wait for
/// their own sync.
const SYNC_BYTES: u64 = 8 << 20;

/// A step is followed by a rest this many times as long, unless room is short.
const REST_FACTOR: u32 = 3;

/// When room is short, an active segment of which the greater part is dead is closed once the dead bytes are this part
/// of a full segment: few enough that a small disk gets its room back, too many for a segment with every write.
const SEAL_FRACTION: u64 = 64;

/// Segments rewritten together at most.
const SOURCES_MAX: usize = 16;

/// What maintenance should do next.
pub(super) enum Work {
    Snapshot,
    /// Close the active segment before it is full.
    Seal,
    Compact(Vec<Arc<Segment>>),
}

/// The segment that copies go to.
struct Output {
    segment: Arc<Segment>,
    temporary: String,
    buffer: Vec<u8>,
    /// Copies in the buffer: where the index points, and where it shall.
    moves: Vec<(PartitionId, Slot, Slot)>,
    unsynced: u64,
}

/// How a source was left.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    Emptied,
    Damaged,
    Interrupted,
}

impl Core {
    /// Rewrites `sources`, which are closed.
    pub(super) async fn compact(&self, sources: &[Arc<Segment>]) -> Result<(), StorageError> {
        let mut output = None;
        let mut emptied = Vec::new();
        let mut outcome = Ok(());
        for source in sources {
            match self.copy_needed(source, &mut output).await {
                Ok(Left::Emptied) => emptied.push(source),
                Ok(Left::Damaged) => {}
                Ok(Left::Interrupted) => break,
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        if let Some(output) = output {
            self.finish(output).await?;
        }
        for source in emptied {
            source.set_obsolete();
        }
        outcome
    }

    /// Copies what is needed of one source.
    async fn copy_needed(
        &self,
        source: &Arc<Segment>,
        output: &mut Option<Output>,
    ) -> Result<Left, StorageError> {
        if let Some(file) = source.file().cloned() {
            let end = source.written();
            let mut reader = SegmentReader::new(file, source.salt, SEGMENT_HEADER_BYTES as u64, end);
            let (mut began, mut read) = (self.site.clock.now(), 0);
            while let Some((offset, item)) = reader.next()? {
                if let Item::Record(record) = item {
                    self.copy_record(source, offset, &record, output)?;
                }
                let full_step = output.as_ref().is_some_and(|output| output.buffer.len() >= STEP_BYTES);
                if full_step || reader.bytes_read() - read > STEP_READ_BYTES {
                    self.move_on(output).await?;
                    self.rest(began).await;
                    if self.life.is_refusing() {
                        return Ok(Left::Interrupted);
                    }
                    (began, read) = (self.site.clock.now(), reader.bytes_read());
                }
            }
        }
        self.move_on(output).await?;
        if source.live() == 0 {
            return Ok(Left::Emptied);
        }
        // The index still points into it at something unreadable. It stays until those keys are discarded or replaced.
        source.set_damaged();
        Ok(Left::Damaged)
    }

    fn copy_record(
        &self,
        source: &Segment,
        offset: u64,
        record: &LogRecord<'_>,
        output: &mut Option<Output>,
    ) -> Result<(), StorageError> {
        let header = record.header;
        let slot = Slot {
            token: header.token,
            fingerprint: fingerprint(record.key),
            segment: source.id,
            offset: offset as u32,
            length: header.length() as u32,
        };
        let needed = match header.kind {
            Kind::Put => self.points_at(header.partition, &slot),
            Kind::Remove | Kind::Drop => !self.segments.outlived(header.origin, source.id),
            Kind::Mark => false,
        };
        if !needed {
            return Ok(());
        }
        if !record.sound {
            self.count_corrupt(source.id, offset as u32, header.partition);
            return Ok(());
        }
        let output = match output {
            Some(output) => output,
            None => output.insert(self.begin_output()?),
        };
        output.copy(header.partition, slot, &header, record);
        Ok(())
    }

    /// True when the index points at this record, or is about to.
    fn points_at(&self, partition: PartitionId, slot: &Slot) -> bool {
        let Some(index) = self.index.get(partition) else { return false };
        // Whoever appended it holds the gate until the index points at it.
        index.gate(slot.token, slot.fingerprint).holds(slot)
    }

    fn begin_output(&self) -> Result<Output, StorageError> {
        let id = self.segments.take_id();
        let segment =
            Arc::new(Segment::new(&self.site.directory, self.site.engine, id, SegmentKind::Compacted));
        let temporary = format!("{}/{id:010}.tmp", self.site.directory);
        segment.attach(self.site.disk.create(&temporary)?);
        let buffer = segment_header(self.site.engine, id, SegmentKind::Compacted).to_vec();
        Ok(Output { segment, temporary, buffer, moves: Vec::new(), unsynced: 0 })
    }

    /// Writes the buffered copies to their file and points the index at them.
    async fn move_on(&self, output: &mut Option<Output>) -> Result<(), StorageError> {
        let Some(output) = output else { return Ok(()) };
        if output.buffer.is_empty() {
            return Ok(());
        }
        let bytes = output.buffer.len() as u64;
        let written = output.segment.append(&*self.site.disk, &output.buffer);
        output.buffer.clear();
        let moves = std::mem::take(&mut output.moves);
        match written {
            Ok(()) => {}
            Err(DiskError::Full) => return Err(StorageError::Full),
            Err(error) => return Err(self.fail(&error)),
        }
        self.maintenance.count_compacted(bytes);
        self.segments.insert(output.segment.clone());
        for (partition, from, to) in moves {
            self.repoint(&output.segment, partition, &from, to);
        }
        output.unsynced += bytes;
        if output.unsynced >= SYNC_BYTES {
            output.unsynced = 0;
            self.sync_output(output).await?;
        }
        Ok(())
    }

    fn repoint(&self, output: &Segment, partition: PartitionId, from: &Slot, to: Slot) {
        let index = self.index.get_or_create(partition);
        let gate = index.gate(from.token, from.fingerprint);
        debug_assert!(to.end() <= output.written(), "a copy is read where it was written: {to:?}");
        output.add_live(to.space());
        if gate.replace(from, to) {
            self.segments.died(from.segment, from.space());
        } else {
            // Overwritten since it was copied.
            output.died(to.space());
        }
    }

    async fn sync_output(&self, output: &Output) -> Result<(), StorageError> {
        let file: &Arc<dyn File> = output.segment.file().expect("an output has its file from the start");
        let written = output.segment.written();
        file.sync().await.map_err(|error| self.fail(&error))?;
        self.appending.count_sync();
        output.segment.note_synced(written);
        Ok(())
    }

    /// Makes the copies durable under their own name.
    async fn finish(&self, output: Output) -> Result<(), StorageError> {
        if output.segment.written() == 0 {
            // Not even its header fitted.
            return Ok(self.site.disk.remove(&output.temporary)?);
        }
        self.sync_output(&output).await?;
        let renamed = self.site.disk.rename(&output.temporary, &output.segment.path);
        renamed.map_err(|error| self.fail(&error))?;
        let synced = self.site.disk.sync_directory(&self.site.directory).await;
        synced.map_err(|error| self.fail(&error))
    }

    /// Lets requests have their turn after a step that began at `began`.
    async fn rest(&self, began: Moment) {
        let step = self.site.clock.now().since(began);
        let urgent = self.space.is_short() || self.over_bound();
        let rest = if urgent { Duration::ZERO } else { step * REST_FACTOR };
        self.site.clock.sleep(rest.max(Duration::from_micros(100))).await;
    }

    /// True when dead bytes exceed their share of the whole log: compaction is behind.
    fn over_bound(&self) -> bool {
        let (mut dead, mut all) = (0, 0);
        self.segments.each(|segment| {
            dead += segment.dead(true);
            all += segment.written();
        });
        dead * 100 > all * (DEAD_PERCENT_MAX + 10)
    }

    /// What maintenance should do next, if anything.
    pub(super) fn next_work(&self) -> Option<Work> {
        let all = self.segments.all();
        let active = self.appending.tail().end().point.segment;
        if self.snapshot_due(&all) {
            return Some(Work::Snapshot);
        }
        let closed = || all.iter().filter(|s| s.id < active || s.kind == SegmentKind::Compacted);
        let mut candidates: Vec<(u64, &Arc<Segment>)> = closed()
            .filter(|segment| !segment.is_obsolete())
            .filter(|s| !s.is_damaged() || s.live() == 0)
            .map(|segment| (self.dead_percent(segment), segment))
            .filter(|&(percent, _)| percent >= DEAD_PERCENT_MAX)
            .collect();
        if candidates.is_empty() {
            return if self.seal_due(active) { Some(Work::Seal) } else { self.marker_work(&all, active) };
        }
        candidates.sort_by_key(|&(percent, segment)| (std::cmp::Reverse(percent), segment.id));
        let mut sources = Vec::new();
        let mut bytes = 0;
        for (_, segment) in candidates.into_iter().take(SOURCES_MAX) {
            bytes += segment.written() - segment.dead(true);
            if !sources.is_empty() && bytes > self.site.options.segment_bytes {
                break;
            }
            sources.push(segment.clone());
        }
        Some(Work::Compact(sources))
    }

    /// True when room is short and the greater part of the active segment is dead.
    fn seal_due(&self, active: u32) -> bool {
        let Some(active) = self.segments.get(active).filter(|_| self.space.is_short()) else { return false };
        let needed = !self.segments.outlived(active.origin_max(), active.id);
        active.dead(needed) >= self.site.options.segment_bytes / SEAL_FRACTION
            && self.dead_percent(&active) >= DEAD_PERCENT_MAX
    }

    /// Closes the active segment, however short it is, so that it can be rewritten.
    pub(super) async fn seal(&self) -> Result<(), StorageError> {
        let _no_commit_meanwhile = self.appending.begin_commit().await;
        let before = self.appending.tail().end().point.segment;
        match self.appending.tail().rotate(&*self.site.disk, &self.segments, 1) {
            Ok(_) => {
                let active = self.appending.tail().end().point.segment;
                tracing::info!(segment = before, active, "closed a segment early, for its room");
                Ok(())
            }
            Err(error) => Err(self.refused(error).unwrap_or(StorageError::Full)),
        }
    }

    fn dead_percent(&self, segment: &Segment) -> u64 {
        let needed = !self.segments.outlived(segment.origin_max(), segment.id);
        let written = segment.written();
        segment.dead(needed) * 100 / written.max(1)
    }

    /// When too many markers wait for old files to go: the oldest file goes.
    fn marker_work(&self, all: &[Arc<Segment>], active: u32) -> Option<Work> {
        let waiting = |segment: &&Arc<Segment>| !self.segments.outlived(segment.origin_max(), segment.id);
        let markers: u64 = all.iter().filter(waiting).map(|s| s.markers()).sum();
        let live: u64 = all.iter().map(|segment| segment.live()).sum();
        if markers <= live * MARKER_PERCENT_MAX / 100 + 2 * self.site.options.segment_bytes {
            return None;
        }
        let oldest = all.first()?;
        if oldest.is_obsolete() {
            return Some(Work::Snapshot);
        }
        let fit = oldest.id < active && !oldest.is_damaged();
        fit.then(|| Work::Compact(vec![oldest.clone()]))
    }
}

impl Output {
    fn copy(&mut self, partition: PartitionId, from: Slot, header: &RecordHeader, record: &LogRecord<'_>) {
        let offset = self.segment.written() + self.buffer.len() as u64;
        encode(&mut self.buffer, self.segment.salt, offset, header, record.key, record.value);
        let offset = u32::try_from(offset).expect("what is needed of the sources fits one segment");
        match header.kind {
            Kind::Put => {
                let to = Slot { segment: self.segment.id, offset, ..from };
                self.moves.push((partition, from, to));
            }
            _ => self.segment.add_marker(from.space(), header.origin),
        }
    }
}
