//! The scrub of artifacts: each file that is here is read once in a scrub period, also if nobody else ever reads it.
//!
//! ```text
//!   rest ─▶ the next file by name ─▶ block by block, with rests: compared with the digest that names the file
//!    ▲                                  │ sound                │ damaged
//!    └──────────────────────────────────┴──────────────────────┴─▶ noted as by a get, and so fetched again
//! ```
//!
//! Rests are as long as it takes to read all in one period, and never shorter than the pace of the other scrub allows, or
//! than requests leave room for. What is read does not stay in memory, unless it was there.
//! An operator may order all to be read now, which still goes no faster than that pace.
//!
//! Must never: take a file for damaged whose name another file has got meanwhile, or hold a worker while the disk is read.

use std::sync::{Arc, Weak};
use std::time::Duration;

use model::{ListedArtifact, ManifestDigest, Moment, StoreName};
use protocol::report::ArtifactScrub;
use runtime::DiskError;
use storage::artifacts::{BLOCK_BYTES, Digest, FileEntry, Verify};

use super::bring::read_whole;
use super::{Artifacts, NotYet, files};
use crate::antientropy::{AntiEntropyOptions, ScrubOrder, ScrubOrders};
use crate::chores::{Chore, Rest, RoundTold};
use crate::events::Event;
use crate::stores::{FileIdentity, Open, ReadOnly};

/// Longest rest before it is looked again whether the node still runs, and how much there is to read.
const REST_MAX: Duration = Duration::from_secs(60);
/// Shortest rest, however little there is to read.
const REST_MIN: Duration = Duration::from_millis(1);
/// Rest after something that could not be done at all.
const REST_REFUSED: Duration = Duration::from_secs(1);
/// What a manifest counts for beside chunks.
const MANIFEST_BYTES: u64 = 4096;

/// A file that is here: of a store, and the digest that names it.
type Place = (StoreName, Digest);

/// What a file is.
enum FileKind {
    Chunk(FileEntry),
    Manifest(ListedArtifact, Arc<Open>),
}

/// A file that is to be read.
struct Next {
    place: Place,
    store: Arc<ReadOnly>,
    kind: FileKind,
}

impl Next {
    /// Bytes with which it begins.
    fn bytes(&self) -> u64 {
        match &self.kind {
            FileKind::Chunk(entry) => entry.bytes.min(BLOCK_BYTES as u64),
            FileKind::Manifest(..) => MANIFEST_BYTES,
        }
    }
}

/// How far the scrub is.
#[derive(Default)]
pub(super) struct Scrub {
    /// Passes over all files that came to their end.
    passes: u64,
    /// When the last one ended.
    ended: Option<Moment>,
    pass: Pass,
    /// The scrub's own pass, while an ordered one of some files goes on.
    set_aside: Option<Pass>,
    /// When something was read or looked for last, and how long the scrub rests after it at least.
    read: (Moment, Duration),
    /// The file that is being read.
    begun: Option<Place>,
}

impl Scrub {
    /// Nothing was read, and the first rest begins.
    pub(super) fn from(now: Moment) -> Scrub {
        Scrub { read: (now, Duration::ZERO), ..Scrub::default() }
    }
}

/// One pass over all files.
#[derive(Clone, Default)]
struct Pass {
    /// What an operator has ordered, if it is not the scrub's own.
    order: Option<ScrubOrder>,
    /// The last file that was read.
    after: Option<Place>,
    files: u64,
    bytes: u64,
    damaged: u64,
}

impl Pass {
    fn has(&self, store: &StoreName) -> bool {
        let only = self.order.as_ref().and_then(|order| order.store.as_deref());
        only.is_none_or(|only| only == store.as_str())
    }
}

/// A chunk that is being read.
struct ScrubReading {
    place: Place,
    store: Arc<ReadOnly>,
    file: FileIdentity,
    verify: Verify,
}

/// What the scrub follows.
pub(crate) struct ScrubOptions {
    /// Within this time every file is read.
    period: Duration,
    /// Bytes that it reads in a second at most; 0 is no limit.
    bytes_per_second: u64,
    orders: Arc<ScrubOrders>,
}

impl ScrubOptions {
    /// The pace of the other scrub, and what operators order.
    pub(crate) fn new(options: &AntiEntropyOptions, orders: Arc<ScrubOrders>) -> ScrubOptions {
        ScrubOptions { period: options.scrub_period, bytes_per_second: options.bytes_per_second, orders }
    }
}

/// The artifacts, as long as somebody else needs them, too.
fn living(weak: &Weak<Artifacts>) -> Option<Arc<Artifacts>> {
    weak.upgrade().filter(|artifacts| Arc::strong_count(artifacts) > 1)
}

/// Reads, as long as somebody looks after the artifacts.
pub(super) struct ScrubArtifacts {
    artifacts: Weak<Artifacts>,
    reading: Option<ScrubReading>,
    /// It has had no round: there may have been one before it, that panicked.
    is_new: bool,
}

impl ScrubArtifacts {
    pub(super) fn new(artifacts: Weak<Artifacts>) -> ScrubArtifacts {
        ScrubArtifacts { artifacts, reading: None, is_new: true }
    }
}

impl Chore for ScrubArtifacts {
    const NAME: &'static str = "scrub artifacts";

    async fn round(&mut self, _: bool, told: &RoundTold<'_>) -> Rest {
        let Some(artifacts) = living(&self.artifacts) else { return Rest::Ended };
        if std::mem::take(&mut self.is_new) {
            artifacts.pass_over_begun();
        }
        if artifacts.follow_order() {
            self.reading = None;
        }
        let due = artifacts.scrub_due(self.reading.as_ref().map(|reading| reading.verify.next_bytes()));
        let now = artifacts.ports.clock.now();
        if now < due {
            told.looked();
            let orders = artifacts.scrub_options.orders.came().clone();
            return Rest::UntilWoken(orders, due.since(now).min(REST_MAX));
        }
        self.reading = match self.reading.take() {
            Some(reading) => artifacts.read_on(reading).await,
            None => artifacts.begin_file(told).await,
        };
        Rest::Now
    }
}

impl Artifacts {
    /// The file at which the scrub panicked is read in the next pass again: others come behind it.
    fn pass_over_begun(&self) {
        let scrub = &mut *self.scrub.lock();
        if let Some(begun) = scrub.begun.take() {
            scrub.pass.after = Some(begun);
        }
    }

    /// Begins a new pass where an operator has ordered one.
    fn follow_order(&self) -> bool {
        let mut scrub = self.scrub.lock();
        // One that has begun comes to its end first.
        if scrub.pass.order.is_some() {
            return false;
        }
        let Some(order) = self.scrub_options.orders.take() else { return false };
        let is_whole = order.store.is_none();
        let own = std::mem::replace(&mut scrub.pass, Pass { order: Some(order), ..Pass::default() });
        // One over all files takes its place.
        scrub.set_aside = (!is_whole).then_some(own);
        scrub.begun = None;
        true
    }

    /// When this many bytes may be read next; by default those with which the next file begins. Where there is none, a
    /// pass that has begun ends at once, and no other begins.
    fn scrub_due(&self, bytes: Option<u64>) -> Moment {
        let (_, total) = self.scrubbed_files();
        let bytes = bytes.or_else(|| self.next_file().map(|next| next.bytes()));
        let scrub = self.scrub.lock();
        let (read_at, at_least) = scrub.read;
        if scrub.pass.order.is_some() {
            return read_at.after(at_least);
        }
        if total == 0 || (bytes.is_none() && scrub.pass.after.is_none()) {
            return self.ports.clock.now().after(REST_MAX);
        }
        let bytes = u128::from(bytes.unwrap_or(0).min(total));
        let share = self.scrub_options.period.as_nanos().saturating_mul(bytes) / u128::from(total);
        let share = Duration::from_nanos(u64::try_from(share).unwrap_or(u64::MAX));
        read_at.after(share.max(at_least).max(REST_MIN))
    }

    /// Files that are here, and their bytes. What two artifacts share counts twice.
    fn scrubbed_files(&self) -> (u64, u64) {
        let (mut files, mut bytes) = (0, 0);
        for store in self.view.get().read_only_stores() {
            for (_, open) in store.held().all() {
                let each = open.artifact.manifest().chunks.iter().zip(&open.files);
                for (chunk, _) in each.filter(|(_, file)| file.is_some()) {
                    (files, bytes) = (files + 1, bytes + chunk.file_bytes);
                }
                (files, bytes) = (files + 1, bytes + MANIFEST_BYTES);
            }
        }
        (files, bytes)
    }

    /// The first file behind the last one that was read.
    fn next_file(&self) -> Option<Next> {
        let pass = self.scrub.lock().pass.clone();
        let view = self.view.get();
        let mut next: Option<Next> = None;
        let mut offer = |place: Place, store: &Arc<ReadOnly>, kind: &dyn Fn() -> FileKind| {
            let is_behind = pass.after.as_ref().is_none_or(|after| *after < place);
            if is_behind && next.as_ref().is_none_or(|next| place < next.place) {
                next = Some(Next { place, store: store.clone(), kind: kind() });
            }
        };
        for store in view.read_only_stores().iter().filter(|store| pass.has(&store.listed().name)) {
            let name = &store.listed().name;
            for (number, open) in store.held().all() {
                let each = open.artifact.manifest().chunks.iter().zip(&open.files);
                for (chunk, _) in each.filter(|(_, file)| file.is_some()) {
                    offer((name.clone(), chunk.digest), store, &|| FileKind::Chunk(chunk.file()));
                }
                let listed =
                    store.listed().artifact(number).filter(|listed| listed.manifest == open.manifest);
                if let Some(listed) = listed {
                    let ManifestDigest(digest) = listed.manifest;
                    let kind = || FileKind::Manifest(listed.clone(), open.clone());
                    offer((name.clone(), Digest(digest)), store, &kind);
                }
            }
        }
        next
    }

    /// Begins the next file, or ends the pass.
    async fn begin_file(&self, told: &RoundTold<'_>) -> Option<ScrubReading> {
        let Some(Next { place, store, kind }) = self.next_file() else {
            told.looked();
            self.end_pass();
            return None;
        };
        self.scrub.lock().begun = Some(place.clone());
        match kind {
            FileKind::Manifest(listed, open) => {
                self.verify_manifest(&store, &listed, &open).await;
                self.has_verified(place);
                None
            }
            FileKind::Chunk(entry) => self.begin_chunk(place, store, entry, told).await,
        }
    }

    async fn begin_chunk(
        &self,
        place: Place,
        store: Arc<ReadOnly>,
        entry: FileEntry,
        told: &RoundTold<'_>,
    ) -> Option<ScrubReading> {
        let (disk, path) = (self.disk.clone(), files::chunk(&place.0, place.1));
        let begin = move || {
            // Should another file get the name in between, the comparison in the end shows it.
            let file = disk.stat(&path)?.identity;
            Ok((file, Verify::begin(disk.open(&path)?, entry)))
        };
        let Ok(begun): Result<Result<_, DiskError>, _> = self.wait(begin).await else {
            self.rest_at_least(REST_REFUSED);
            return None;
        };
        let (file, verify) = match begun {
            Ok((file, Ok(Some(verify)))) => (file, verify),
            Ok((file, refused)) => {
                let what = refused
                    .map_or_else(|error| error.to_string(), |_| "its list of blocks is another".into());
                self.found_damaged(&place, &store, file, what).await;
                self.has_verified(place);
                return None;
            }
            Err(error) => {
                tracing::warn!(store = %place.0, chunk = %place.1, %error, "chunk of an artifact not scrubbed");
                told.failed(format_args!("a chunk of store {} was not scrubbed: {error}", place.0));
                // Where it is gone, the next look for files brings it.
                self.has_verified(place);
                return None;
            }
        };
        self.read_on(ScrubReading { place, store, file, verify }).await
    }

    /// Reads one block; nothing when the file is done.
    async fn read_on(&self, mut reading: ScrubReading) -> Option<ScrubReading> {
        let bytes = reading.verify.next_bytes();
        let step = move || {
            let stepped = reading.verify.step();
            (reading, stepped)
        };
        let Ok((reading, stepped)) = self.wait(step).await else {
            self.rest_at_least(REST_REFUSED);
            return None;
        };
        self.has_read(bytes).await;
        let what = match stepped {
            Ok(true) if reading.verify.next_bytes() > 0 => return Some(reading),
            Ok(true) => None,
            Ok(false) => Some("a block of it has another digest".to_owned()),
            Err(error) => Some(error.to_string()),
        };
        if let Some(what) = what {
            self.found_damaged(&reading.place, &reading.store, reading.file, what).await;
        }
        self.has_verified(reading.place);
        None
    }

    /// Compares a manifest with its digest. One that is damaged is written again: it is in memory.
    async fn verify_manifest(&self, store: &ReadOnly, listed: &ListedArtifact, open: &Open) {
        let name = &store.listed().name;
        let (disk, path) = (self.disk.clone(), files::manifest(name, listed));
        let read = self.wait(move || read_whole(&*disk, &path)).await;
        let (what, is_another) = match read {
            Ok(Ok(bytes)) => {
                self.has_read(bytes.len() as u64).await;
                if Digest::of(&bytes).0 == listed.manifest.0 {
                    return;
                }
                ("the manifest has another digest".to_owned(), true)
            }
            // The next look for files brings one that is gone.
            Ok(Err(DiskError::NotFound { .. })) => return,
            Ok(Err(error)) => (error.to_string(), false),
            Err(_) => return self.rest_at_least(REST_REFUSED),
        };
        self.tell_found(name, Digest(listed.manifest.0), what);
        let bytes = open.artifact.manifest().encode();
        let written = match Digest::of(&bytes).0 == listed.manifest.0 {
            true => self.keep_manifest(name, listed, bytes).await,
            false => Err(NotYet::Changed),
        };
        // What the system did not give may be sound, so it stays.
        if written.is_err() && is_another {
            // A look for files brings it from its source, or from a replica.
            let _ = self.disk.remove(&files::manifest(name, listed));
            self.fetched.notify_one();
        }
    }

    /// Notes that a file is damaged, unless another one has its name by now, or a get was faster.
    async fn found_damaged(&self, place: &Place, store: &ReadOnly, file: FileIdentity, what: String) {
        let (name, chunk) = place;
        let (disk, path) = (self.disk.clone(), files::chunk(name, *chunk));
        let now = self.wait(move || disk.stat(&path).ok().map(|stat| stat.identity)).await;
        if !matches!(now, Ok(Some(now)) if now == file) {
            return;
        }
        {
            let mut told = self.damage_told.lock();
            if !told.insert((name.clone(), *chunk)) {
                return;
            }
            store.held().note_damage(*chunk, file);
        }
        self.counters.corrupt_here.increment();
        self.tell_found(name, *chunk, what);
        // Asks for a look, which has it fetched.
        self.fetched.notify_one();
    }

    fn tell_found(&self, store: &StoreName, file: Digest, what: String) {
        self.counters.scrub_damaged.increment();
        self.scrub.lock().pass.damaged += 1;
        let (store, file) = (store.to_string(), file.to_string());
        self.events.record(Event::ArtifactScrubFound { store, file, what });
    }

    /// This many bytes were read: the scrub rests for as long as its pace, or requests that are late, ask for.
    async fn has_read(&self, bytes: u64) {
        self.counters.scrubbed.add(bytes);
        let times = u64::from(self.pulse.times().await);
        let micros = bytes.saturating_mul(1_000_000).checked_div(self.scrub_options.bytes_per_second);
        let rest = Duration::from_micros(micros.unwrap_or(0).saturating_mul(times));
        self.scrub.lock().pass.bytes += bytes;
        self.rest_at_least(rest);
    }

    /// Reads nothing for at least this long.
    fn rest_at_least(&self, at_least: Duration) {
        self.scrub.lock().read = (self.ports.clock.now(), at_least);
    }

    fn has_verified(&self, place: Place) {
        {
            let scrub = &mut *self.scrub.lock();
            scrub.begun = None;
            let pass = &mut scrub.pass;
            (pass.after, pass.files) = (Some(place), pass.files + 1);
            // Also of a file of which nothing could be read, so that files that are gone make nobody busy.
            scrub.read.0 = self.ports.clock.now();
        }
        if self.next_file().is_none() {
            self.end_pass();
        }
    }

    /// Ends a pass. One over the files of one store does not count as one over all.
    fn end_pass(&self) {
        let Pass { order, files, bytes, damaged, .. } = {
            let mut scrub = self.scrub.lock();
            let own = scrub.set_aside.take();
            if own.is_none() {
                (scrub.passes, scrub.ended) = (scrub.passes + 1, Some(self.ports.clock.now()));
                self.counters.scrub_passes.increment();
            }
            std::mem::replace(&mut scrub.pass, own.unwrap_or_default())
        };
        // Whoever ordered it waits for the end, also where nothing is to be read.
        if files > 0 || order.is_some() {
            self.events.record(Event::ArtifactsScrubbed { files, bytes, damaged });
        }
    }

    /// How far the scrub is.
    pub(super) fn scrub_report(&self) -> ArtifactScrub {
        let (files, _) = self.scrubbed_files();
        let scrub = self.scrub.lock();
        let now = self.ports.clock.now();
        ArtifactScrub {
            passes: scrub.passes,
            seconds_ago: scrub.ended.map(|ended| now.since(ended).as_secs()),
            files,
            files_done: scrub.pass.files,
            bytes: self.counters.scrubbed.get(),
            damaged: self.counters.scrub_damaged.get(),
            ordered: scrub.pass.order.is_some(),
        }
    }
}
