//! `tontine artifact copy`: an artifact is put into another place, file by file, and its manifest last.
//!
//! ```text
//! which files are not there? ─▶ each: source ─ block, verified ─▶ target, under its name when it is whole ─▶ manifest
//! ```
//!
//! Must never: put a manifest before all files that it names, or in place of another one.

use std::collections::HashSet;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use runtime::{Disk, DiskError, Output};
use serde_json::json;
use storage::artifacts::{FetchError, FileEntry, MANIFEST_PATH, Manifest, VerifiedFile, chunk_path};

use super::arguments::CopyArguments;
use super::opened;
use super::place::{files, manifest_in, output, url_of};
use crate::context::CliContext;
use crate::failure::CliError;
use crate::holder::shell;
use crate::output::print;
use crate::progress::Progress;
use crate::text::{count, size};

/// Copies an artifact.
pub(super) fn run(shared: &CliContext, arguments: &CopyArguments) -> Result<ExitCode, CliError> {
    let CopyArguments { from, to, parent, jobs } = arguments;
    let (source, manifest) = opened(from)?;
    let target = Target::open(to)?;
    let copied = target.fill((from, &*source), &manifest, parent.as_deref(), usize::from(*jobs))?;
    let document = json!({
        "store": manifest.store.as_str(),
        "number": manifest.number,
        "manifest": manifest.digest().to_string(),
        "source": from,
        "output": to,
        "files": copied.files,
        "files_sent": copied.files_sent,
        "files_taken": copied.files_taken,
        "bytes": manifest.file_bytes() + manifest.deltas().iter().map(|delta| delta.file_bytes).sum::<u64>(),
        "bytes_sent": copied.bytes_sent,
        "seconds": copied.seconds,
        "bytes_per_second": copied.rate(),
    });
    print(shared.format(), &document, || {
        format!(
            "copied artifact {} of store {} to {to}: {}\nmanifest {}\nnext: tontine artifact push {}",
            manifest.number,
            manifest.store,
            copied.text(),
            manifest.digest(),
            shell(std::slice::from_ref(to)),
        )
    });
    Ok(ExitCode::SUCCESS)
}

/// What was sent of an artifact.
pub(super) struct Copied {
    files: usize,
    files_sent: usize,
    /// Those that the place has taken over of the parent.
    files_taken: usize,
    /// Bytes of chunks and deltas that were sent.
    pub(super) bytes_sent: u64,
    seconds: f64,
}

impl Copied {
    fn rate(&self) -> f64 {
        self.bytes_sent as f64 / self.seconds.max(1e-3)
    }

    /// The same for people.
    pub(super) fn text(&self) -> String {
        let of = |files: usize, what: &str| match files {
            0 => String::new(),
            1 => format!("; 1 was {what}"),
            files => format!("; {files} were {what}"),
        };
        let there = self.files - self.files_sent - self.files_taken;
        format!(
            "sent {} ({}) in {:.1} s, {}/s{}{}",
            count(self.files_sent as u64, "file"),
            size(self.bytes_sent),
            self.seconds,
            size(self.rate() as u64),
            of(self.files_taken, "taken over of the parent there"),
            of(there, "there already"),
        )
    }
}

/// A place that an artifact is put in.
pub(super) struct Target {
    url: String,
    output: Arc<dyn Output>,
    files: Arc<dyn Disk>,
}

impl Target {
    /// Opens a place; whether it can be written shows when something is put.
    pub(super) fn open(url: &str) -> Result<Target, CliError> {
        Ok(Target { url: url.to_owned(), output: output(url)?, files: files(url)? })
    }

    /// The manifest that is there.
    pub(super) fn manifest(&self) -> Result<Option<Manifest>, CliError> {
        manifest_in(&self.url, &*self.files)
    }

    /// Whether this very artifact is there.
    ///
    /// # Errors
    /// When it is another one.
    fn is_there(&self, manifest: &Manifest) -> Result<bool, CliError> {
        match self.manifest()? {
            None => Ok(false),
            Some(there) if there == *manifest => Ok(true),
            Some(there) => Err(CliError::Other(format!(
                "{0} holds artifact {1} of store {2} already, and nodes may be reading it; name another place, or look at \
                 it with `tontine artifact show {0}`",
                self.url, there.number, there.store
            ))),
        }
    }

    /// Puts an artifact there: files first, manifest last.
    pub(super) fn fill(
        &self,
        (from, source): (&str, &dyn Disk),
        manifest: &Manifest,
        parent: Option<&str>,
        jobs: usize,
    ) -> Result<Copied, CliError> {
        let began = Instant::now();
        self.is_there(manifest)?;
        let all: Vec<FileEntry> = manifest.files().collect();
        let without = self.missing(&all, from, jobs)?;
        let missing = match parent {
            Some(parent) => self.take_over(without.clone(), parent, from, jobs)?,
            None => without.clone(),
        };
        let bytes_sent = missing.iter().map(|file| file.bytes).sum();
        let sending = Sending {
            target: self,
            from,
            source,
            shown: Mutex::new((Progress::new(Some(bytes_sent), 0), 0)),
            failure: Mutex::new(None),
        };
        each(jobs, &missing, &sending.failure, |file| sending.send(*file));
        sending.shown.lock().0.end();
        sending.failure.into_inner().map_or(Ok(()), Err)?;
        // Somebody else may have been as quick.
        if !self.is_there(manifest)? {
            let mut bytes = Some(manifest.encode());
            let put = self.output.put(MANIFEST_PATH, &mut || Ok(bytes.take()));
            put.map_err(|error| self.refused(from, &error))?;
        }
        if let Err(error) = self.output.finish() {
            say!("the artifact is whole; {} keeps files that it does not need: {error}", self.url);
        }
        Ok(Copied {
            files: all.len(),
            files_sent: missing.len(),
            files_taken: without.len() - missing.len(),
            bytes_sent,
            seconds: began.elapsed().as_secs_f64(),
        })
    }

    /// The files that are not there, or have another length.
    fn missing(&self, all: &[FileEntry], from: &str, jobs: usize) -> Result<Vec<FileEntry>, CliError> {
        let (missing, failure) = (Mutex::new(Vec::new()), Mutex::new(None));
        each(jobs, all, &failure, |file| {
            match self.files.stat(&chunk_path(file.digest)) {
                Ok(there) if there.length == file.bytes => {}
                Ok(_) | Err(DiskError::NotFound { .. }) => missing.lock().push(*file),
                Err(error) => return Err(self.refused(from, &error)),
            }
            Ok(())
        });
        failure.into_inner().map_or_else(|| Ok(missing.into_inner()), Err)
    }

    /// Takes over what the parent has, where the place can; returns what is missing then.
    fn take_over(
        &self,
        missing: Vec<FileEntry>,
        parent: &str,
        from: &str,
        jobs: usize,
    ) -> Result<Vec<FileEntry>, CliError> {
        let its: HashSet<FileEntry> = opened(parent)?.1.files().collect();
        let (near, mut others): (Vec<FileEntry>, _) =
            missing.into_iter().partition(|file| its.contains(file));
        let (url, never) = (url_of(parent)?, Mutex::new(None));
        each(jobs, &near, &never, |file| {
            self.output.take(&url, &chunk_path(file.digest));
            Ok(())
        });
        // What was taken may have another length there.
        others.extend(self.missing(&near, from, jobs)?);
        Ok(others)
    }

    fn refused(&self, from: &str, error: &DiskError) -> CliError {
        let again = shell(&["tontine", "artifact", "copy", from, &self.url].map(str::to_owned));
        CliError::Other(format!(
            "{}: {error}. What is there already is not sent again; to go on, run `{again}`",
            self.url
        ))
    }
}

/// Does something with each element on this many threads, until one fails.
fn each<T: Sync>(
    jobs: usize,
    elements: &[T],
    failure: &Mutex<Option<CliError>>,
    work: impl Fn(&T) -> Result<(), CliError> + Sync,
) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..jobs.min(elements.len()) {
            scope.spawn(|| {
                while failure.lock().is_none() {
                    let Some(element) = elements.get(next.fetch_add(1, Ordering::Relaxed)) else { return };
                    if let Err(error) = work(element) {
                        failure.lock().get_or_insert(error);
                    }
                }
            });
        }
    });
}

/// Files on their way.
struct Sending<'a> {
    target: &'a Target,
    from: &'a str,
    source: &'a dyn Disk,
    /// Progress, and the bytes that were read.
    shown: Mutex<(Progress, u64)>,
    failure: Mutex<Option<CliError>>,
}

impl Sending<'_> {
    fn send(&self, file: FileEntry) -> Result<(), CliError> {
        let from = self.from;
        let damaged = |error: FetchError| {
            CliError::Other(format!(
                "{from}: {error}. To check all of it, run `tontine artifact check {from}`"
            ))
        };
        let mut reading = VerifiedFile::open(self.source, file).map_err(damaged)?;
        let mut refusal = None;
        let put = self.target.output.put(&chunk_path(file.digest), &mut || {
            let read = match self.failure.lock().is_some() {
                true => Err(broken_off("another file failed")),
                false => reading.read().map_err(|error| {
                    let broken = broken_off("the source failed");
                    refusal = Some(error);
                    broken
                }),
            }?;
            let (progress, done) = &mut *self.shown.lock();
            *done += read.as_ref().map_or(0, |part| part.len() as u64);
            progress.show_bytes(*done);
            Ok(read)
        });
        match refusal {
            Some(refusal) => Err(damaged(refusal)),
            None => put.map_err(|error| self.target.refused(from, &error)),
        }
    }
}

fn broken_off(why: &str) -> DiskError {
    DiskError::Failed { path: String::new(), reason: why.to_owned() }
}
