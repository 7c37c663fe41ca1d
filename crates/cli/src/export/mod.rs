//! `tontine export`: writes every live record of a store to a file.
//!
//! The store is walked partition by partition in token order, so two exports of the same records are equal. Of each
//! partition R replicas are read side by side and merged, so that one that missed writes hides nothing; one that has
//! lost records, and knows it, is passed over.
//!
//! **Architecture Invariant:** a record that cannot be written in the wanted format ends the export with an error; it
//! is not changed, shortened or left out. A file gets its name only when it is complete, and goes away if it never is.

mod arguments;
mod form;
mod partitions;
mod sink;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ::bytes::Bytes;
use client::{StoreHandle, WalkOptions};
use model::{Cluster, Store, WallMillis};
use runtime::Ports;
use serde_json::json;
use tokio::time::Instant;

use crate::context::{CliContext, walkable};
use crate::failure::CliError;
use crate::output::print;
use crate::progress::Progress;
use crate::text::{Format, count, size};
pub(crate) use arguments::ExportArguments;
use form::{Form, RowWriter};
pub(crate) use partitions::{WalkStep, What, walk_store};
use sink::Sink;

/// What was exported.
#[derive(Default)]
struct Counts {
    records: u64,
    bytes: u64,
    with_siblings: u64,
    expiring: u64,
    /// Left out, at most.
    damaged: u64,
}

/// Carries out the export.
pub(crate) async fn run(shared: CliContext, arguments: ExportArguments) -> Result<ExitCode, CliError> {
    let path = arguments.file.as_deref().filter(|&file| file != "-").map(PathBuf::from);
    refuse_existing(path.as_deref(), arguments.force)?;
    let form = Form::new(&arguments)?;
    let client = shared.client().await?;
    let (handle, store) = walkable(&client, &shared.store, arguments.artifact)?;
    let cluster = client.cluster();
    let began = Instant::now();
    let output = Output::new(path.as_deref());
    let mut rows = RowWriter::new(form, Sink::new(path.as_deref(), output.writer()?))?;
    let options =
        WalkOptions { patience: arguments.patience, leaves_out_damaged: arguments.leave_out_damaged };
    let counts = tokio::select! {
        biased;
        _ = tokio::signal::ctrl_c() => return Err("interrupted; nothing was kept".to_owned().into()),
        counts = export(&handle, &cluster, &store, options, &mut rows) => counts?,
    };
    rows.finish()?;
    let keeps_expiry = rows.keeps_expiry();
    drop(rows);
    output.complete()?;
    let seconds = began.elapsed().as_secs_f64();
    let report = json!({
        "records": counts.records,
        "bytes": counts.bytes,
        "records_with_siblings": counts.with_siblings,
        "records_expiring": counts.expiring,
        "records_damaged": counts.damaged,
        "seconds": seconds,
    });
    let text = || {
        let Counts { records, bytes, with_siblings, expiring, damaged } = counts;
        let mut text = format!("{} ({}) in {seconds:.1} s", count(records, "record"), size(bytes));
        if with_siblings > 0 && !arguments.with_siblings {
            text.push_str(&format!(
                "\nwrote only the latest value of {} with siblings; --with-siblings writes all values",
                count(with_siblings, "record")
            ));
        }
        if expiring > 0 && !keeps_expiry {
            text.push_str(&format!("\nleft out the expiry time of {}", count(expiring, "record")));
        }
        if damaged > 0 {
            text.push_str(&format!("\nleft out up to {}", count(damaged, "damaged record")));
        }
        text
    };
    match path {
        Some(_) => print(shared.format(), &report, text),
        // Standard output holds the records, so the report goes beside it, in the form that was asked for.
        None if shared.format() == Format::Json => say!("{report}"),
        None => say!("{}", text()),
    }
    Ok(ExitCode::SUCCESS)
}

async fn export(
    handle: &StoreHandle,
    cluster: &Cluster,
    store: &Store,
    options: WalkOptions,
    rows: &mut RowWriter,
) -> Result<Counts, CliError> {
    let clock = Ports::os().map_err(CliError::io("cannot start the background thread"))?.clock;
    let mut counts = Counts::default();
    let mut progress = Progress::new(Some(cluster.ring.partitions().len() as u64), 0);
    let take = |step: WalkStep| {
        if let What::Records(records) = step.what {
            for (key, set) in records {
                let now: WallMillis = clock.wall();
                let values: Vec<_> = set.live(now).collect();
                let Some(winner) = set.winner() else { continue };
                counts.with_siblings += u64::from(values.len() > 1);
                if rows.write(&key, winner, &values, now)? {
                    counts.records += 1;
                    counts.expiring += u64::from(values.iter().any(|version| version.expires.is_some()));
                    let value_bytes = values.iter().filter_map(|version| version.live(now)).map(Bytes::len);
                    counts.bytes += (key.len() + value_bytes.sum::<usize>()) as u64;
                }
            }
        }
        progress.show(step.done, counts.records);
        Ok(ControlFlow::Continue(()))
    };
    let damaged = walk_store(handle, cluster, store, options, take).await?;
    counts.damaged = damaged;
    progress.end();
    Ok(counts)
}

/// Refuses a file that exists, unless it shall be replaced. A pipe or a device is written to, and not replaced.
fn refuse_existing(path: Option<&Path>, force: bool) -> Result<(), CliError> {
    match path {
        Some(path) if path.is_dir() => {
            Err(CliError::Usage(format!("{} is a directory; name a file in it", path.display())))
        }
        Some(path) if !force && std::fs::metadata(path).is_ok_and(|found| found.is_file()) => {
            Err(CliError::Usage(format!(
                "{} already exists; choose another name, or add --force to replace it",
                path.display()
            )))
        }
        _ => Ok(()),
    }
}

/// Where the records go.
enum Output {
    /// A file, under a name that says that it is not complete yet until it is.
    File {
        partial: PathBuf,
        path: PathBuf,
    },
    /// A pipe or a device: it is written to and never replaced.
    Special(PathBuf),
    Stdout,
}

impl Output {
    fn new(path: Option<&Path>) -> Output {
        let Some(path) = path else { return Output::Stdout };
        if std::fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir()) {
            return Output::Special(path.to_owned());
        }
        let mut partial = path.as_os_str().to_owned();
        partial.push(".part");
        Output::File { partial: PathBuf::from(partial), path: path.to_owned() }
    }

    fn writer(&self) -> Result<Box<dyn Write>, CliError> {
        let refused = |path: &Path| CliError::io(format!("cannot write {}", path.display()));
        let file = match self {
            Output::File { partial, .. } => File::create(partial).map_err(refused(partial))?,
            Output::Special(path) => File::options().write(true).open(path).map_err(refused(path))?,
            Output::Stdout => {
                return Ok(Box::new(BufWriter::with_capacity(64 * 1024, crate::output::Stdout)));
            }
        };
        Ok(Box::new(BufWriter::with_capacity(256 * 1024, file)))
    }

    /// Makes the file durable and gives it its name.
    fn complete(self) -> Result<(), CliError> {
        let Output::File { partial, path } = &self else { return Ok(()) };
        File::open(partial)
            .and_then(|file| file.sync_all())
            .and_then(|()| std::fs::rename(partial, path))
            .map_err(CliError::io(format!("cannot complete {}", path.display())))?;
        Ok(())
    }
}

impl Drop for Output {
    /// An export that is not complete leaves nothing behind.
    fn drop(&mut self) {
        if let Output::File { partial, .. } = self {
            // There is none where it could not even be created, or where it has its name.
            let _ = std::fs::remove_file(partial);
        }
    }
}
