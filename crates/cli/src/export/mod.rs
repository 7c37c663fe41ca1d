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
mod walk;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use ::bytes::Bytes;
use client::StoreHandle;
use futures_util::StreamExt;
use futures_util::stream;
use model::{Cluster, Store, WallMillis};
use runtime::Ports;
use serde_json::json;
use tokio::time::Instant;

use crate::failure::CliError;
use crate::output::{Format, print, size};
use crate::progress::Progress;
use crate::shared::Shared;
pub(crate) use arguments::ExportArguments;
use form::{Form, RowWriter};
use walk::{Walk, WalkOptions};

/// Partitions whose beginning is fetched before their turn.
const PARTITIONS_AHEAD: usize = 8;

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
pub(crate) async fn run(shared: Shared, arguments: ExportArguments) -> Result<ExitCode, CliError> {
    let form = Form::new(&arguments)?;
    let client = shared.client().await?;
    let handle = client.store(&shared.store)?;
    let cluster = client.cluster();
    let store = cluster.store(&shared.store).expect("the store was found above");
    let began = Instant::now();
    let path = arguments.file.as_deref().filter(|&file| file != "-").map(PathBuf::from);
    let output = Output::create(path.as_deref())?;
    let mut rows = RowWriter::new(form, output.writer()?)?;
    let options = WalkOptions {
        patience: Duration::from_secs(arguments.patience),
        leaves_out_damaged: arguments.leave_out_damaged,
    };
    let counts = tokio::select! {
        biased;
        _ = tokio::signal::ctrl_c() => return Err("interrupted; nothing was kept".to_owned().into()),
        counts = export(&handle, &cluster, store, options, &mut rows) => counts?,
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
        let mut text = format!("{records} records ({}) in {seconds:.1} s", size(bytes));
        if with_siblings > 0 && !arguments.with_siblings {
            text.push_str(&format!(
                "\n{with_siblings} of them have siblings, of which the latest was written; \
                 --with-siblings writes all"
            ));
        }
        if expiring > 0 && !keeps_expiry {
            text.push_str(&format!("\n{expiring} of them expire, which was not written"));
        }
        if damaged > 0 {
            text.push_str(&format!("\nup to {damaged} more are damaged, and were left out"));
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
    let partitions = cluster.ring.partitions();
    let mut progress = Progress::new(Some(partitions.len() as u64), 0);
    let mut walks = stream::iter(partitions)
        .map(|partition| async move {
            let mut walk = Walk::new(handle.clone(), store, partition, options);
            let first = walk.next().await;
            (walk, first)
        })
        .buffered(PARTITIONS_AHEAD);
    let mut done = 0;
    while let Some((mut walk, mut chunk)) = walks.next().await {
        while let Some(records) = chunk? {
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
            progress.show(done, counts.records);
            chunk = walk.next().await;
        }
        counts.damaged += walk.damaged();
        done += 1;
        progress.show(done, counts.records);
    }
    progress.end();
    Ok(counts)
}

/// The file under a name that says that it is not complete yet, or standard output.
struct Output {
    names: Option<(PathBuf, PathBuf)>,
}

impl Output {
    fn create(path: Option<&Path>) -> Result<Output, CliError> {
        let names = path.map(|path| {
            let mut partial = path.as_os_str().to_owned();
            partial.push(".part");
            (PathBuf::from(partial), path.to_owned())
        });
        Ok(Output { names })
    }

    fn writer(&self) -> Result<Box<dyn Write>, CliError> {
        match &self.names {
            Some((partial, _)) => {
                let file = File::create(partial)
                    .map_err(CliError::io(format!("cannot write {}", partial.display())))?;
                Ok(Box::new(BufWriter::with_capacity(256 * 1024, file)))
            }
            None => Ok(Box::new(BufWriter::with_capacity(64 * 1024, std::io::stdout()))),
        }
    }

    /// Makes the file durable and gives it its name.
    fn complete(mut self) -> Result<(), CliError> {
        let Some((partial, path)) = &self.names else { return Ok(()) };
        File::open(partial)
            .and_then(|file| file.sync_all())
            .and_then(|()| std::fs::rename(partial, path))
            .map_err(CliError::io(format!("cannot complete {}", path.display())))?;
        self.names = None;
        Ok(())
    }
}

impl Drop for Output {
    /// An export that is not complete leaves nothing behind.
    fn drop(&mut self) {
        if let Some((partial, _)) = &self.names {
            // There is none where it could not even be created.
            let _ = std::fs::remove_file(partial);
        }
    }
}
