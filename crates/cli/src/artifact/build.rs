//! `tontine artifact build`: sorts records, cuts them along a ring, and lets threads make the chunks.
//!
//! ```text
//! sorted records → steps (this thread) ─ a chunk at a time ─▶ makers (threads) → chunks → manifest
//! ```
//!
//! Upon a parent, the records are cut at its slices instead, and each maker compares a chunk with the parent's.
//!
//! What is written before the manifest lies below `building` and `chunks`; without a manifest it is no artifact, and the
//! next build into the directory removes what is below `building`.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use model::{NodeId, Ring, StoreName, Zone, limits::PARTITIONS_DEFAULT};
use parking_lot::Mutex;
use runtime::disk::os::OsDisk;
use runtime::outputs::BUILDING;
use runtime::{Disk, DiskError, File};
use serde_json::json;
use storage::artifacts::{
    BuildError, BuildOptions, BuildStep, Changed, ChildMaker, ChunkEntry, ChunkMaker, Cut, Cutter,
    DeltaEntry, MANIFEST_PATH, Manifest, MergeError, Merged, RecordsGiven, Settled, Slice, TokenHash,
    WriteError, child_manifest, publish, steps, steps_within,
};

use super::arguments::{BuildArguments, jobs};
use super::copy::Copied;
use super::parent::Parent;
use super::site::{Site, occupied};
use super::spill;
use crate::context::CliContext;
use crate::failure::CliError;
use crate::output::print;
use crate::progress::Progress;
use crate::text::{count, size};

/// Pieces of one chunk that wait for its maker.
const WAITING_MAX: usize = 2;

/// The store that is meant when none is named.
const DEFAULT_STORE: &str = "default";

/// Carries out the build.
pub(super) async fn run(shared: &CliContext, arguments: &BuildArguments) -> Result<ExitCode, CliError> {
    if arguments.files().count() > usize::from(u16::MAX) {
        return Err(CliError::Usage("name at most 65,535 inputs".to_owned()));
    }
    let store = StoreName::new(shared.store.clone()).map_err(|error| CliError::Usage(error.to_string()))?;
    if store.as_str() == DEFAULT_STORE {
        say!(
            "it is built for store {DEFAULT_STORE}, which mostly takes writes; `-s NAME` names a read-only store"
        );
    }
    let number = arguments.number.map_or_else(seconds_now, Ok)?;
    let mut site = Site::of(&arguments.to, store.as_str(), number)?;
    let parent =
        arguments.parent.as_ref().map(|url| Parent::open(url, store.as_str(), number)).transpose()?;
    let ring = match shared.connect_named && parent.is_none() {
        true => shared.client().await?.cluster().ring.clone(),
        false => Ring::equal_slices(PARTITIONS_DEFAULT, &[(NodeId(1), Zone("any".to_owned()))]),
    };
    let was_there = site.root().exists();
    let output = Arc::new(OsDisk::open(site.root()).map_err(failed)?);
    let lock = prepare(&*output, &arguments.to)?;
    let options = BuildOptions {
        store,
        number,
        hash: TokenHash::Xxh3,
        compression: arguments.compression.into(),
        layout: arguments.layout.map(Into::into),
        duplicates: arguments.duplicates.into(),
    };
    let began = Instant::now();
    let made = make(&options, arguments, (site.root(), &output), &ring, parent.as_ref()).await;
    if made.is_err() && !was_there {
        // Nothing in it is of use. What was there before is left as it was, but for what no build needs.
        let _ = std::fs::remove_dir_all(site.root());
    }
    leave(site.root());
    drop(lock);
    let (manifest, runs) = made?;
    let seconds = began.elapsed().as_secs_f64();
    let same = parent.map(|parent| parent.same(&manifest));
    let sent = site.send(&*output, &manifest, arguments.parent.as_deref())?;
    let mut document = report(&manifest, arguments, (seconds, runs), same);
    document["bytes_sent"] = json!(sent.as_ref().map(|sent| sent.bytes_sent));
    print(shared.format(), &document, || text(&manifest, arguments, seconds, (same, sent.as_ref())));
    Ok(ExitCode::SUCCESS)
}

/// Makes the artifact; also tells how many runs were sorted.
async fn make(
    options: &BuildOptions,
    arguments: &BuildArguments,
    (root, output): (&Path, &Arc<OsDisk>),
    ring: &Ring,
    parent: Option<&Parent>,
) -> Result<(Manifest, usize), CliError> {
    let disk: Arc<dyn Disk> = output.clone();
    let threads = jobs(arguments.jobs);
    let (merged, read) = spill::sorted(&disk, arguments, threads)?;
    let built = Build { disk: &disk, options, arguments, threads, parent };
    let manifest = built.chunks(merged, Cutter::along(ring), read.records)?;
    if let Some(parent) = parent {
        parent.share(&manifest, root, output).await?;
    }
    publish(&*disk, &manifest).await.map_err(failed)?;
    Ok((manifest, read.runs))
}

fn seconds_now() -> Result<u64, CliError> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map(|now| now.as_secs()).map_err(|_| {
        CliError::Other("the clock is before 1970; set it, or give a number with --number".to_owned())
    })
}

/// Takes the directory for this build alone, and removes what an earlier one left there.
fn prepare(disk: &dyn Disk, output: &str) -> Result<Box<dyn Send + Sync>, CliError> {
    if disk.stat(MANIFEST_PATH).is_ok() {
        return Err(occupied(output));
    }
    let lock = taken(disk, output)?;
    for name in disk.list(BUILDING).map_err(failed)? {
        if name != "LOCK" {
            disk.remove(&format!("{BUILDING}/{name}")).map_err(failed)?;
        }
    }
    Ok(lock)
}

/// Takes the directory for this process alone.
pub(super) fn taken(disk: &dyn Disk, output: &str) -> Result<Box<dyn Send + Sync>, CliError> {
    disk.lock(&format!("{BUILDING}/LOCK")).map_err(|error| match error {
        DiskError::Locked { .. } => CliError::Other(format!("another build writes to {output}; wait for it")),
        error => failed(error),
    })
}

/// What was needed while building; whoever builds here next would remove it as well.
fn leave(root: &Path) {
    let _ = std::fs::remove_dir_all(root.join(BUILDING));
}

fn failed(error: DiskError) -> CliError {
    CliError::Other(error.to_string())
}

/// A chunk to make: its number, its slice, and what comes of it.
struct Job {
    number: usize,
    outer: Slice,
    cuts: Receiver<Cut>,
}

/// A chunk that was made: its number, what it is, and how it is made of the parent's.
type Made = (usize, ChunkEntry, Option<DeltaEntry>);

/// What the makers share.
struct Makers<'a> {
    disk: &'a Arc<dyn Disk>,
    parent: Option<&'a Parent>,
    given: RecordsGiven,
    jobs: Mutex<Receiver<Job>>,
    settled: Mutex<Option<Settled>>,
    made: Mutex<Vec<Made>>,
    failure: Mutex<Option<String>>,
}

struct Build<'a> {
    disk: &'a Arc<dyn Disk>,
    options: &'a BuildOptions,
    arguments: &'a BuildArguments,
    threads: usize,
    parent: Option<&'a Parent>,
}

impl Build<'_> {
    /// Makes all chunks, and the manifest of them.
    fn chunks(&self, merged: Merged, cutter: Cutter, records: u64) -> Result<Manifest, CliError> {
        let (sender, jobs) = sync_channel(0);
        let makers = Makers {
            disk: self.disk,
            parent: self.parent,
            given: self.arguments.given(),
            jobs: Mutex::new(jobs),
            settled: Mutex::new(None),
            made: Mutex::new(Vec::new()),
            failure: Mutex::new(None),
        };
        let outcome = std::thread::scope(|scope| {
            for _ in 0..self.threads {
                scope.spawn(|| makers.work(self.options.hash));
            }
            let mut feeder = Feeder {
                makers: &makers,
                jobs: sender,
                cuts: None,
                number: 0,
                progress: Progress::new(Some(records), 0),
                done: 0,
            };
            let outcome = match self.parent {
                None => steps(merged, self.options, None, cutter, &mut |step| feeder.take(step)),
                Some(parent) => {
                    let (duplicates, slices) = (self.options.duplicates, parent.slices());
                    steps_within(merged, duplicates, &slices, &mut |cut| feeder.take(BuildStep::Cut(cut)))
                }
            };
            feeder.progress.end();
            outcome
        });
        // A maker that failed is why the feeder could not go on.
        if let Some(failure) = makers.failure.into_inner() {
            return Err(failure.into());
        }
        outcome.map_err(|error| self.explain(&error))?;
        let mut made = makers.made.into_inner();
        if let Some(parent) = self.parent {
            return Ok(child_manifest(&parent.manifest, self.options.number, made));
        }
        made.sort_by_key(|(number, ..)| *number);
        let settled = makers.settled.into_inner().map(|settled| settled.dictionary);
        Ok(Manifest {
            store: self.options.store.clone(),
            number: self.options.number,
            hash: self.options.hash,
            compression: self.options.compression,
            dictionary: settled.unwrap_or_default(),
            chunks: made.into_iter().map(|(_, entry, _)| entry).collect(),
            lineage: None,
        })
    }

    fn explain(&self, error: &BuildError) -> CliError {
        match error {
            BuildError::Duplicate { key, first, second } => {
                let place = |place: &storage::artifacts::Place| {
                    let input = self.arguments.files().nth(place.input()).map_or("?", String::as_str);
                    format!("{input} line {}", place.line())
                };
                CliError::Other(format!(
                    "two records have the key \"{key}\": {} and {}. Remove one of them, or take the last with \
                     --duplicates last",
                    place(first),
                    place(second)
                ))
            }
            BuildError::Empty => CliError::Other(
                "the input has no records, so nothing was built; check its path and format".to_owned(),
            ),
            error => CliError::Other(error.to_string()),
        }
    }
}

/// Hands out what the steps of a build say.
struct Feeder<'a> {
    makers: &'a Makers<'a>,
    jobs: SyncSender<Job>,
    cuts: Option<SyncSender<Cut>>,
    number: usize,
    progress: Progress,
    done: u64,
}

impl Feeder<'_> {
    fn take(&mut self, step: BuildStep) -> Result<(), BuildError> {
        let broken_off = || BuildError::Write(WriteError::BrokenOff);
        match step {
            BuildStep::Settled(settled) => *self.makers.settled.lock() = Some(settled),
            BuildStep::Cut(Cut::Begin(outer)) => {
                let (sender, cuts) = sync_channel(WAITING_MAX);
                let job = Job { number: self.number, outer, cuts };
                self.number += 1;
                self.jobs.send(job).map_err(|_| broken_off())?;
                self.cuts = Some(sender);
            }
            BuildStep::Cut(cut) => {
                if let Cut::Records(records) = &cut {
                    self.done += records.len() as u64;
                    self.progress.show(self.done, self.done);
                }
                let cuts = self.cuts.as_ref().expect("a chunk begins before its records");
                cuts.send(cut).map_err(|_| broken_off())?;
            }
        }
        if self.makers.failure.lock().is_some() {
            return Err(broken_off());
        }
        Ok(())
    }
}

impl Makers<'_> {
    /// Makes chunks until none comes.
    fn work(&self, hash: TokenHash) {
        let executor = match tokio::runtime::Builder::new_current_thread().build() {
            Ok(executor) => executor,
            Err(error) => return self.fail(format!("cannot start an event loop: {error}")),
        };
        let mut maker: Option<Maker> = None;
        loop {
            let next = self.jobs.lock().recv();
            let Ok(job) = next else { return };
            let maker = maker.get_or_insert_with(|| self.maker(hash));
            match maker.make(&job, &executor) {
                Ok(made) => self.made.lock().extend(made),
                Err(MergeError::Write(WriteError::BrokenOff)) => return,
                Err(error) => {
                    self.fail(error.to_string());
                    // The feeder may be waiting for somebody to take the next one.
                    while self.jobs.lock().recv().is_ok() {}
                    return;
                }
            }
        }
    }

    fn maker(&self, hash: TokenHash) -> Maker {
        let disk = self.disk.clone();
        if let Some(parent) = self.parent {
            let (source, parent) = (parent.disk.clone(), parent.manifest.clone());
            return Maker::Upon(ChildMaker::new(disk, source, parent, self.given));
        }
        let settled = self.settled.lock();
        let settled = settled.as_ref().expect("all is settled before the first chunk begins");
        Maker::Alone(ChunkMaker::new(disk, hash, settled))
    }

    fn fail(&self, what: String) {
        self.failure.lock().get_or_insert(what);
    }
}

/// Makes chunks by themselves, or upon those of a parent.
enum Maker {
    Alone(ChunkMaker),
    Upon(ChildMaker),
}

impl Maker {
    /// Makes a chunk durable under its name; none when it is the parent's.
    fn make(&mut self, job: &Job, executor: &tokio::runtime::Runtime) -> Result<Option<Made>, MergeError> {
        let path = format!("{BUILDING}/chunk-{:07}", job.number);
        let cuts = &mut job.cuts.iter();
        let sync = |file: &dyn File| executor.block_on(file.sync()).map_err(WriteError::from);
        match self {
            Maker::Alone(maker) => {
                let finished = maker.make(&path, job.outer, cuts)?;
                sync(&*finished.file)?;
                maker.keep(&finished).map_err(WriteError::from)?;
                Ok(Some((job.number, finished.entry, None)))
            }
            Maker::Upon(maker) => {
                let Some(Changed { chunk, delta }) = maker.make(&path, job.number, cuts)? else {
                    return Ok(None);
                };
                sync(&*chunk.file)?;
                delta.iter().try_for_each(|delta| sync(&*delta.file))?;
                maker.keep(&chunk, delta.as_ref()).map_err(WriteError::from)?;
                Ok(Some((job.number, chunk.entry, delta.map(|delta| delta.entry))))
            }
        }
    }
}

fn delta_bytes(manifest: &Manifest) -> u64 {
    manifest.deltas().iter().map(|delta| delta.file_bytes).sum()
}

fn report(
    manifest: &Manifest,
    arguments: &BuildArguments,
    (seconds, runs): (f64, usize),
    same: Option<usize>,
) -> serde_json::Value {
    json!({
        "parent": manifest.lineage.as_ref().map(|lineage| lineage.number),
        "chunks_same": same,
        "deltas": manifest.deltas().len(),
        "delta_bytes": delta_bytes(manifest),
        "store": manifest.store.as_str(),
        "number": manifest.number,
        "manifest": manifest.digest().to_string(),
        "output": arguments.to,
        "records": manifest.records(),
        "bytes": manifest.payload_bytes(),
        "file_bytes": manifest.file_bytes(),
        "chunks": manifest.chunks.len(),
        "runs": runs,
        "seconds": seconds,
        "records_per_second": manifest.records() as f64 / seconds.max(1e-3),
    })
}

fn text(
    manifest: &Manifest,
    arguments: &BuildArguments,
    seconds: f64,
    (same, sent): (Option<usize>, Option<&Copied>),
) -> String {
    let sent = sent.map_or_else(String::new, |sent| format!("\n{}", sent.text()));
    let upon = same.map_or_else(String::new, |same| {
        format!(
            "\n{same} of its chunks are the parent's, {} made of it by {} of deltas",
            match manifest.deltas().len() {
                1 => "1 is".to_owned(),
                count => format!("{count} are"),
            },
            size(delta_bytes(manifest))
        )
    });
    format!(
        "built artifact {} of store {} in {:.1} s, {:.0} records/s\n{} ({}) in {} of {} together{upon}{sent}\nmanifest {}\nnext: \
         tontine artifact check {}",
        manifest.number,
        manifest.store,
        seconds,
        manifest.records() as f64 / seconds.max(1e-3),
        count(manifest.records(), "record"),
        size(manifest.payload_bytes()),
        count(manifest.chunks.len() as u64, "chunk"),
        size(manifest.file_bytes()),
        manifest.digest(),
        crate::holder::shell(std::slice::from_ref(&arguments.to)),
    )
}
