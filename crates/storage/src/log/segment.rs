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
    written: AtomicU64,
    /// Of these, bytes known to survive a power cut.
    synced: AtomicU64,
    /// Bytes of records that the index points to. Of a segment that is closed they only become fewer.
    live: AtomicU64,
    /// Bytes of removal and drop markers, and the highest origin among them.
    markers: AtomicU64,
    origin_max: AtomicU32,
    /// Holds records that cannot be copied; not compacted before they are overwritten.
    damaged: AtomicBool,
    /// Nothing in it is needed any more; goes with the next snapshot.
    obsolete: AtomicBool,
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

    /// The same segment in another file with the same bytes. For opening, before anything is written to it.
    pub(super) fn renewed(&self, file: Arc<dyn File>) -> Segment {
        let count = |number: &AtomicU64| AtomicU64::new(number.load(Ordering::Relaxed));
        Segment {
            id: self.id,
            kind: self.kind,
            salt: self.salt,
            path: self.path.clone(),
            file: OnceLock::from(file),
            written: count(&self.written),
            synced: AtomicU64::new(0),
            live: count(&self.live),
            markers: count(&self.markers),
            origin_max: AtomicU32::new(self.origin_max()),
            damaged: AtomicBool::new(self.is_damaged()),
            obsolete: AtomicBool::new(self.is_obsolete()),
        }
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

    /// Bytes that can be read from the file.
    pub(super) fn written(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    /// Cuts off what follows the last record that holds. For opening, before anything points at it.
    pub(super) fn cut(&self, end: u64) -> Result<(), DiskError> {
        let written = self.written();
        assert!(end <= written, "a cut takes away: {} from {written} to {end}", self.path);
        if let Some(file) = self.file() {
            file.truncate(end)?;
            self.written.store(end, Ordering::Release);
        }
        Ok(())
    }

    /// Of what is written, bytes that survive a power cut.
    pub(super) fn synced(&self) -> u64 {
        self.synced.load(Ordering::Acquire)
    }

    /// So much survives a power cut.
    pub(super) fn note_synced(&self, bytes: u64) {
        let written = self.written();
        assert!(bytes <= written, "only what is written is synced: {} has {written}, not {bytes}", self.path);
        self.synced.fetch_max(bytes, Ordering::AcqRel);
    }

    /// Bytes of records that the index points to.
    pub(super) fn live(&self) -> u64 {
        self.live.load(Ordering::Acquire)
    }

    /// The index is about to point at a record here.
    pub(super) fn add_live(&self, space: u64) {
        debug_assert!(!self.is_obsolete(), "nothing points at a segment that may be deleted: {}", self.path);
        self.live.fetch_add(space, Ordering::AcqRel);
    }

    /// The index points at a record no more.
    pub(super) fn died(&self, space: u64) {
        let before = self.live.fetch_sub(space, Ordering::AcqRel);
        assert!(before >= space, "what dies has lived: {space} of {before} bytes in {}", self.path);
    }

    /// Bytes that nothing needs: dead records, and markers when `markers_needed` is false.
    pub(super) fn dead(&self, markers_needed: bool) -> u64 {
        let needed = if markers_needed { self.markers() } else { 0 };
        let kept = self.live.load(Ordering::Relaxed) + needed + SEGMENT_HEADER_BYTES as u64;
        self.written.load(Ordering::Relaxed).saturating_sub(kept)
    }

    /// Bytes of removal and drop markers.
    pub(super) fn markers(&self) -> u64 {
        self.markers.load(Ordering::Relaxed)
    }

    /// The highest origin among the markers.
    pub(super) fn origin_max(&self) -> u32 {
        self.origin_max.load(Ordering::Relaxed)
    }

    pub(super) fn add_marker(&self, space: u64, origin: u32) {
        self.markers.fetch_add(space, Ordering::Relaxed);
        self.origin_max.fetch_max(origin, Ordering::Relaxed);
    }

    /// Takes what is known of the markers from elsewhere. For opening.
    pub(super) fn set_markers(&self, bytes: u64, origin_max: u32) {
        self.markers.store(bytes, Ordering::Relaxed);
        self.origin_max.store(origin_max, Ordering::Relaxed);
    }

    pub(super) fn is_damaged(&self) -> bool {
        self.damaged.load(Ordering::Acquire)
    }

    pub(super) fn set_damaged(&self) {
        self.damaged.store(true, Ordering::Release);
    }

    pub(super) fn is_obsolete(&self) -> bool {
        self.obsolete.load(Ordering::Acquire)
    }

    /// Nothing in it is needed any more.
    pub(super) fn set_obsolete(&self) {
        let live = self.live();
        assert!(live == 0, "a segment goes when nothing points at it: {live} bytes live in {}", self.path);
        self.obsolete.store(true, Ordering::Release);
    }
}

/// The name of a segment's file.
pub(super) fn path(directory: &str, id: u32, kind: SegmentKind) -> String {
    match kind {
        SegmentKind::Log => format!("{directory}/{id:010}.log"),
        SegmentKind::Compacted => format!("{directory}/{id:010}.compacted"),
    }
}

/// What the name of a file in an engine's directory means.
pub(super) fn parse_name(name: &str) -> Option<(u32, SegmentKind)> {
    let (digits, extension) = name.split_once('.')?;
    let kind = match extension {
        "log" => SegmentKind::Log,
        "compacted" => SegmentKind::Compacted,
        _ => return None,
    };
    (digits.len() == 10).then(|| digits.parse().ok()).flatten().map(|id| (id, kind))
}

/// All segments by id, and the ids that were given out. An id is given out once, over both kinds.
pub(super) struct Segments {
    by_id: RwLock<BTreeMap<u32, Arc<Segment>>>,
    /// Above every id in `by_id`.
    id_next: AtomicU32,
}

impl Segments {
    /// None yet; the first that begins gets this id.
    pub(super) fn from_id(id_next: u32) -> Segments {
        assert!(id_next > 0, "no segment has the id 0");
        Segments { by_id: RwLock::default(), id_next: AtomicU32::new(id_next) }
    }

    /// The id that the next segment gets.
    pub(super) fn id_next(&self) -> u32 {
        self.id_next.load(Ordering::SeqCst)
    }

    /// The highest id given out.
    pub(super) fn id_last(&self) -> u32 {
        self.id_next() - 1
    }

    /// Gives out an id.
    pub(super) fn take_id(&self) -> u32 {
        let id = self.id_next.fetch_add(1, Ordering::SeqCst);
        assert!(id < u32::MAX, "an engine does not live to use the last segment id");
        id
    }

    pub(super) fn get(&self, id: u32) -> Option<Arc<Segment>> {
        self.by_id.read().get(&id).cloned()
    }

    /// From now on it is found. What compaction writes is entered with each step.
    pub(super) fn insert(&self, segment: Arc<Segment>) {
        assert!(segment.id < self.id_next(), "ids are given out before they are used: {}", segment.path);
        let before = self.by_id.write().insert(segment.id, segment.clone());
        assert!(
            before.is_none_or(|before| Arc::ptr_eq(&before, &segment)),
            "an id is given out once: {}",
            segment.path
        );
    }

    /// The segment with this id is this one from now on. For opening, before anybody else has it.
    pub(super) fn replace(&self, segment: Segment) {
        let before = self.by_id.write().insert(segment.id, Arc::new(segment));
        assert!(before.is_some(), "only a segment that is there gets another file");
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
            segment.died(space);
        }
    }
}
