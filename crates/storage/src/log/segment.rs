//! One segment: a file of records, and what is known of it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::RwLock;
use runtime::{Disk, DiskError, File};

use super::format::{SEGMENT_HEADER_BYTES, SegmentKind, salt};

/// A segment. Its file comes with its first bytes.
pub(super) struct Segment {
    pub(super) id: u32,
    pub(super) kind: SegmentKind,
    pub(super) salt: u64,
    pub(super) path: String,
    file: OnceLock<Arc<dyn File>>,
    /// Bytes that can be read from the file. Whole records only.
    pub(super) written: AtomicU64,
    /// Of these, bytes known to survive a power cut.
    pub(super) synced: AtomicU64,
    /// Bytes of records that the index points to.
    pub(super) live: AtomicU64,
    /// Bytes of removal and drop markers, and the highest origin among them.
    pub(super) markers: AtomicU64,
    pub(super) origin_max: AtomicU32,
    /// Holds records that cannot be copied; not compacted before they are overwritten.
    pub(super) damaged: AtomicBool,
    /// Nothing in it is needed any more; goes with the next snapshot.
    pub(super) obsolete: AtomicBool,
}

impl Segment {
    pub(super) fn new(directory: &str, engine: u64, id: u32, kind: SegmentKind) -> Segment {
        Segment {
            id,
            kind,
            salt: salt(engine, id),
            path: path(directory, id, kind),
            file: OnceLock::new(),
            written: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            live: AtomicU64::new(0),
            markers: AtomicU64::new(0),
            origin_max: AtomicU32::new(0),
            damaged: AtomicBool::new(false),
            obsolete: AtomicBool::new(false),
        }
    }

    /// A segment whose file is there already.
    pub(super) fn existing(
        directory: &str,
        engine: u64,
        id: u32,
        kind: SegmentKind,
        file: Arc<dyn File>,
    ) -> Segment {
        let segment = Segment::new(directory, engine, id, kind);
        segment.written.store(file.length(), Ordering::Relaxed);
        segment.attach(file);
        segment
    }

    pub(super) fn attach(&self, file: Arc<dyn File>) {
        assert!(self.file.set(file).is_ok(), "a segment gets its file once");
    }

    pub(super) fn file(&self) -> Option<&Arc<dyn File>> {
        self.file.get()
    }

    /// Appends whole records; on an error none of them is there. Called by one thread at a time.
    pub(super) fn append(&self, disk: &dyn Disk, bytes: &[u8]) -> Result<(), DiskError> {
        let file = match self.file.get() {
            Some(file) => file,
            None => {
                self.attach(disk.create(&self.path)?);
                self.file.get().expect("just attached")
            }
        };
        let start = self.written.load(Ordering::Relaxed);
        match file.append(bytes) {
            Ok(offset) if offset == start => {
                self.written.store(start + bytes.len() as u64, Ordering::Release);
                Ok(())
            }
            Ok(offset) => Err(DiskError::Failed {
                path: self.path.clone(),
                reason: format!("appended at {offset} instead of {start}: another process writes to it"),
            }),
            Err(error) => {
                // What arrived is cut off again, so that the next try goes on at a record's end.
                file.truncate(start)?;
                Err(error)
            }
        }
    }

    /// Bytes that nothing needs: dead records, and markers when `markers_needed` is false.
    pub(super) fn dead(&self, markers_needed: bool) -> u64 {
        let needed = if markers_needed { self.markers.load(Ordering::Relaxed) } else { 0 };
        let kept = self.live.load(Ordering::Relaxed) + needed + SEGMENT_HEADER_BYTES as u64;
        self.written.load(Ordering::Relaxed).saturating_sub(kept)
    }

    pub(super) fn add_marker(&self, space: u64, origin: u32) {
        self.markers.fetch_add(space, Ordering::Relaxed);
        self.origin_max.fetch_max(origin, Ordering::Relaxed);
    }
}

/// The name of a segment's file.
pub(super) fn path(directory: &str, id: u32, kind: SegmentKind) -> String {
    match kind {
        SegmentKind::Log => format!("{directory}/{id:010}.log"),
        SegmentKind::Compacted => format!("{directory}/{id:010}.compacted"),
    }
}

/// What the name of a file in an engine's directory stands for.
pub(super) fn parse_name(name: &str) -> Option<(u32, SegmentKind)> {
    let (digits, extension) = name.split_once('.')?;
    let kind = match extension {
        "log" => SegmentKind::Log,
        "compacted" => SegmentKind::Compacted,
        _ => return None,
    };
    (digits.len() == 10).then(|| digits.parse().ok()).flatten().map(|id| (id, kind))
}

/// All segments by id.
#[derive(Default)]
pub(super) struct Segments {
    by_id: RwLock<BTreeMap<u32, Arc<Segment>>>,
}

impl Segments {
    pub(super) fn get(&self, id: u32) -> Option<Arc<Segment>> {
        self.by_id.read().get(&id).cloned()
    }

    pub(super) fn insert(&self, segment: Arc<Segment>) {
        self.by_id.write().insert(segment.id, segment);
    }

    pub(super) fn remove(&self, id: u32) {
        self.by_id.write().remove(&id);
    }

    /// All, by id.
    pub(super) fn all(&self) -> Vec<Arc<Segment>> {
        self.by_id.read().values().cloned().collect()
    }

    /// Looks at all, by id.
    pub(super) fn each(&self, mut look: impl FnMut(&Segment)) {
        self.by_id.read().values().for_each(|segment| look(segment));
    }

    /// Those of the log from one id to another, both included.
    pub(super) fn logs_between(&self, from: u32, to: u32) -> Vec<Arc<Segment>> {
        let by_id = self.by_id.read();
        let between = by_id.range(from.min(to)..=to).map(|(_, segment)| segment);
        between.filter(|segment| segment.kind == SegmentKind::Log).cloned().collect()
    }

    /// The two lowest ids.
    pub(super) fn lowest(&self) -> (Option<u32>, Option<u32>) {
        let by_id = self.by_id.read();
        let mut ids = by_id.keys().copied();
        (ids.next(), ids.next())
    }

    /// True when a marker of this origin in segment `holder` may go: no other file is as old.
    pub(super) fn outlived(&self, origin: u32, holder: u32) -> bool {
        let oldest_other = match self.lowest() {
            (Some(first), second) if first == holder => second,
            (first, _) => first,
        };
        oldest_other.is_none_or(|oldest| oldest > origin)
    }

    /// Bytes that a record took in a segment are dead now.
    pub(super) fn died(&self, segment: u32, space: u64) {
        if let Some(segment) = self.by_id.read().get(&segment) {
            segment.live.fetch_sub(space, Ordering::Relaxed);
        }
    }
}
