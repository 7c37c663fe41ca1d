//! `tontine artifact check` and `show`: what an artifact is, and whether it is sound.

use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use serde_json::json;
use storage::readonly::{Layout, Manifest, prove};

use super::arguments::{CheckArguments, ShowArguments, jobs};
use super::opened;
use super::place::Scratch;
use crate::failure::CliError;
use crate::output::{count, print, size, table};
use crate::progress::Progress;
use crate::shared::Shared;

/// Chunks that are shown to people at most.
const CHUNKS_SHOWN_MAX: usize = 20;

/// Verifies all chunks.
pub(super) fn check(shared: &Shared, arguments: &CheckArguments) -> Result<ExitCode, CliError> {
    let (disk, manifest) = opened(&arguments.url)?;
    let scratch = Scratch::of(&arguments.url, "check")?;
    let next = AtomicUsize::new(0);
    let damages = Mutex::new(Vec::new());
    let shown = Mutex::new((Progress::new(Some(manifest.file_bytes()), 0), 0, 0));
    std::thread::scope(|scope| {
        for _ in 0..jobs(arguments.jobs) {
            scope.spawn(|| {
                while let Some(chunk) = manifest.chunks.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let proved = match &scratch {
                        None => prove(&*disk, "", &manifest, chunk),
                        Some(scratch) => {
                            let proved = scratch
                                .copy(&*disk, chunk)
                                .and_then(|()| prove(scratch.disk(), "", &manifest, chunk));
                            scratch.forget(chunk);
                            proved
                        }
                    };
                    if let Err(error) = proved {
                        damages.lock().push(error.to_string());
                    }
                    let (progress, bytes, records) = &mut *shown.lock();
                    *bytes += chunk.file_bytes;
                    *records += chunk.records;
                    progress.show(*bytes, *records);
                }
            });
        }
    });
    shown.into_inner().0.end();
    let mut damages = damages.into_inner();
    damages.sort();
    let document = json!({
        "store": manifest.store.as_str(),
        "number": manifest.number,
        "manifest": manifest.digest().to_string(),
        "chunks": manifest.chunks.len(),
        "records": manifest.records(),
        "sound": damages.is_empty(),
        "damages": damages,
    });
    print(shared.format(), &document, || {
        let what = format!(
            "artifact {} of store {}, {} in {}",
            manifest.number,
            manifest.store,
            count(manifest.records(), "record"),
            count(manifest.chunks.len() as u64, "chunk")
        );
        match damages.is_empty() {
            true => format!("{what}: sound"),
            false => format!(
                "{what}: {} damaged\n  {}\nnext: copy the damaged chunks from another place, or build the artifact again",
                count(damages.len() as u64, "chunk"),
                damages.join("\n  ")
            ),
        }
    });
    Ok(if damages.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// Shows what the manifest says.
pub(super) fn show(shared: &Shared, arguments: &ShowArguments) -> Result<ExitCode, CliError> {
    let (_, manifest) = opened(&arguments.url)?;
    let chunks: Vec<_> = manifest
        .chunks
        .iter()
        .map(|chunk| {
            json!({
                "digest": chunk.digest.to_string(),
                "first_token": format!("{:016x}", chunk.slice.first.0),
                "last_token": format!("{:016x}", chunk.slice.last.0),
                "layout": chunk.layout.name(),
                "records": chunk.records,
                "bytes": chunk.payload_bytes,
                "file_bytes": chunk.file_bytes,
            })
        })
        .collect();
    let document = json!({
        "store": manifest.store.as_str(),
        "number": manifest.number,
        "manifest": manifest.digest().to_string(),
        "compression": manifest.compression.name(),
        "dictionary_bytes": manifest.dictionary.len(),
        "records": manifest.records(),
        "bytes": manifest.payload_bytes(),
        "file_bytes": manifest.file_bytes(),
        "chunks": chunks,
    });
    print(shared.format(), &document, || text(&manifest));
    Ok(ExitCode::SUCCESS)
}

fn text(manifest: &Manifest) -> String {
    let slots = manifest.chunks.iter().filter(|chunk| chunk.layout == Layout::Slots).count();
    let mut text = format!(
        "artifact {} of store {}\n{}, {} of keys and values, {} on disk\ncompression {}\nmanifest {}\n{} in pages, {} in \
         slots\n\n",
        manifest.number,
        manifest.store,
        count(manifest.records(), "record"),
        size(manifest.payload_bytes()),
        size(manifest.file_bytes()),
        manifest.compression.name(),
        manifest.digest(),
        count((manifest.chunks.len() - slots) as u64, "chunk"),
        slots,
    );
    let mut rows =
        vec![["chunk", "first token", "last token", "layout", "records", "size"].map(str::to_owned).to_vec()];
    for chunk in manifest.chunks.iter().take(CHUNKS_SHOWN_MAX) {
        rows.push(vec![
            chunk.digest.to_string(),
            format!("{:016x}", chunk.slice.first.0),
            format!("{:016x}", chunk.slice.last.0),
            chunk.layout.name().to_owned(),
            chunk.records.to_string(),
            size(chunk.file_bytes),
        ]);
    }
    text += &table(&rows);
    let more = manifest.chunks.len().saturating_sub(CHUNKS_SHOWN_MAX);
    if more > 0 {
        text += &format!("and {} more; -o json shows all", count(more as u64, "chunk"));
    }
    text
}
