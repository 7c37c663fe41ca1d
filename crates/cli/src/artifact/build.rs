//! `tontine artifact build`: sorts records, cuts them along a ring, and lets threads make the chunks.
//!
//! ```text
//! sorted records → steps (this thread) ─ a chunk at a time ─▶ makers (threads) → chunks → manifest
//! ```
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
use runtime::{Disk, DiskError};
use serde_json::json;
use storage::readonly::{
    BuildError, BuildOptions, ChunkEntry, ChunkMaker, Cut, Cutter, MANIFEST_PATH, Manifest, Merged, Settled,
    Slice, Step, TokenHash, WriteError, publish, steps,
};

use super::arguments::{BuildArguments, jobs};
use super::{directory, spill};
use crate::failure::CliError;
use crate::output::{count, print, size};
use crate::progress::Progress;
use crate::shared::Shared;

/// Where a build keeps what it has not finished.
pub(super) const BUILDING: &str = "building";
/// Pieces of one chunk that wait for its maker.
const WAITING_MAX: usize = 2;

/// Carries out the build.
pub(super) async fn run(shared: &Shared, arguments: &BuildArguments) -> Result<ExitCode, CliError> {
    if arguments.inputs.len() > usize::from(u16::MAX) {
        return Err(CliError::Usage("name at most 65,535 inputs".to_owned()));
    }
    let store = StoreName::new(shared.store.clone()).map_err(|error| CliError::Usage(error.to_string()))?;
    let root = directory(&arguments.to)?;
    let ring = match shared.connect_named {
        true => shared.client().await?.cluster().ring.clone(),
        false => Ring::equal_slices(PARTITIONS_DEFAULT, &[(NodeId(1), Zone("any".to_owned()))]),
    };
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::open(&root).map_err(failed)?);
    let _lock = prepare(&*disk, &arguments.to)?;
    let began = Instant::now();
    let threads = jobs(arguments.jobs);
    let options = BuildOptions {
        store,
        number: arguments.number.map_or_else(seconds_now, Ok)?,
        hash: TokenHash::Xxh3,
        compression: arguments.compression.into(),
        layout: arguments.layout.map(Into::into),
        duplicates: arguments.duplicates.into(),
    };
    let (merged, read) = spill::sorted(&disk, arguments, threads)?;
    let cutter = Cutter::along(&ring);
    let built = Build { disk: &disk, options: &options, arguments, threads };
    let manifest = built.chunks(merged, cutter, read.records)?;
    publish(&*disk, &manifest).await.map_err(failed)?;
    leave(&root);
    let seconds = began.elapsed().as_secs_f64();
    print(shared.format(), &report(&manifest, arguments, seconds, read.runs), || {
        text(&manifest, arguments, seconds)
    });
    Ok(ExitCode::SUCCESS)
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
        return Err(CliError::Other(format!(
            "{output} holds an artifact already; name another directory, or look at it with `tontine artifact show {output}`"
        )));
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

/// What the makers share.
struct Makers<'a> {
    disk: &'a Arc<dyn Disk>,
    jobs: Mutex<Receiver<Job>>,
    settled: Mutex<Option<Settled>>,
    made: Mutex<Vec<(usize, ChunkEntry)>>,
    failure: Mutex<Option<String>>,
}

struct Build<'a> {
    disk: &'a Arc<dyn Disk>,
    options: &'a BuildOptions,
    arguments: &'a BuildArguments,
    threads: usize,
}

impl Build<'_> {
    /// Makes all chunks, and the manifest of them.
    fn chunks(&self, merged: Merged, cutter: Cutter, records: u64) -> Result<Manifest, CliError> {
        let (sender, jobs) = sync_channel(0);
        let makers = Makers {
            disk: self.disk,
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
            let outcome = steps(merged, self.options, None, cutter, &mut |step| feeder.take(step));
            feeder.progress.end();
            outcome
        });
        // A maker that failed is why the feeder could not go on.
        if let Some(failure) = makers.failure.into_inner() {
            return Err(failure.into());
        }
        outcome.map_err(|error| self.explain(&error))?;
        let mut made = makers.made.into_inner();
        made.sort_by_key(|(number, _)| *number);
        let settled = makers.settled.into_inner().map(|settled| settled.dictionary);
        Ok(Manifest {
            store: self.options.store.clone(),
            number: self.options.number,
            hash: self.options.hash,
            compression: self.options.compression,
            dictionary: settled.unwrap_or_default(),
            chunks: made.into_iter().map(|(_, entry)| entry).collect(),
        })
    }

    fn explain(&self, error: &BuildError) -> CliError {
        match error {
            BuildError::Duplicate { key, first, second } => {
                let place = |place: &storage::readonly::Place| {
                    let input = self.arguments.inputs.get(place.input()).map_or("?", String::as_str);
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
    fn take(&mut self, step: Step) -> Result<(), BuildError> {
        let broken_off = || BuildError::Write(WriteError::BrokenOff);
        match step {
            Step::Settled(settled) => *self.makers.settled.lock() = Some(settled),
            Step::Cut(Cut::Begin(outer)) => {
                let (sender, cuts) = sync_channel(WAITING_MAX);
                let job = Job { number: self.number, outer, cuts };
                self.number += 1;
                self.jobs.send(job).map_err(|_| broken_off())?;
                self.cuts = Some(sender);
            }
            Step::Cut(cut) => {
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
        let mut maker: Option<ChunkMaker> = None;
        loop {
            let next = self.jobs.lock().recv();
            let Ok(job) = next else { return };
            let maker = maker.get_or_insert_with(|| {
                let settled = self.settled.lock();
                let settled = settled.as_ref().expect("all is settled before the first chunk begins");
                ChunkMaker::new(self.disk.clone(), hash, settled)
            });
            let path = format!("{BUILDING}/chunk-{:07}", job.number);
            let made = maker.make(&path, job.outer, &mut job.cuts.iter()).and_then(|finished| {
                executor.block_on(finished.file.sync())?;
                maker.keep(&finished)?;
                Ok(finished.entry)
            });
            match made {
                Ok(entry) => self.made.lock().push((job.number, entry)),
                Err(WriteError::BrokenOff) => return,
                Err(error) => {
                    self.fail(error.to_string());
                    // The feeder may be waiting for somebody to take the next one.
                    while self.jobs.lock().recv().is_ok() {}
                    return;
                }
            }
        }
    }

    fn fail(&self, what: String) {
        self.failure.lock().get_or_insert(what);
    }
}

fn report(manifest: &Manifest, arguments: &BuildArguments, seconds: f64, runs: usize) -> serde_json::Value {
    json!({
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

fn text(manifest: &Manifest, arguments: &BuildArguments, seconds: f64) -> String {
    format!(
        "built artifact {} of store {} in {:.1} s, {:.0} records/s\n{} ({}) in {} of {} together\nmanifest {}\nnext: \
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
