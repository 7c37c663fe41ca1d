//! `tontine artifact check` and `show`: what an artifact is, and whether it is sound.

use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use runtime::{Disk, DiskError};
use serde_json::json;
use storage::artifacts::{ChunkEntry, Layout, Manifest, OpenError, prove, prove_delta};

use super::arguments::{CheckArguments, ShowArguments, jobs};
use super::opened;
use super::place::Scratch;
use crate::context::CliContext;
use crate::failure::CliError;
use crate::output::print;
use crate::progress::Progress;
use crate::text::{count, size, table};

/// Chunks that are shown to people at most.
const CHUNKS_SHOWN_MAX: usize = 20;

/// Verifies all chunks.
pub(super) fn check(shared: &CliContext, arguments: &CheckArguments) -> Result<ExitCode, CliError> {
    let (disk, manifest) = opened(&arguments.url)?;
    let scratch = Scratch::of(&arguments.url, "check")?;
    let next = AtomicUsize::new(0);
    let (damages, unread) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let shown = Mutex::new((Progress::new(Some(manifest.file_bytes()), 0), 0, 0));
    std::thread::scope(|scope| {
        for _ in 0..jobs(arguments.jobs) {
            scope.spawn(|| {
                loop {
                    let place = next.fetch_add(1, Ordering::Relaxed);
                    let Some(chunk) = manifest.chunks.get(place) else { break };
                    if let Err(error) = check_chunk(&*disk, scratch.as_ref(), &manifest, (place, chunk)) {
                        let of_its_kind = if is_unread(&error) { &unread } else { &damages };
                        of_its_kind.lock().push(format!("chunk {}: {error}", chunk.digest));
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
    let (mut damages, mut unread) = (damages.into_inner(), unread.into_inner());
    damages.sort();
    unread.sort();
    let is_sound = damages.is_empty() && unread.is_empty();
    let document = json!({
        "store": manifest.store.as_str(),
        "number": manifest.number,
        "manifest": manifest.digest().to_string(),
        "chunks": manifest.chunks.len(),
        "records": manifest.records(),
        "deltas": manifest.deltas().len(),
        "sound": is_sound,
        "damages": damages,
        "unread": unread,
    });
    print(shared.format(), &document, || {
        let what = format!(
            "artifact {} of store {}, {} in {}",
            manifest.number,
            manifest.store,
            count(manifest.records(), "record"),
            count(manifest.chunks.len() as u64, "chunk")
        );
        match is_sound {
            true => format!("{what}: sound"),
            false => what + &faults(&damages, &unread),
        }
    });
    Ok(if is_sound { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// Whether this says only that a file, which is there, was not read.
fn is_unread(error: &OpenError) -> bool {
    matches!(error, OpenError::Disk { error, .. } if !matches!(error, DiskError::NotFound { .. }))
}

/// What is wrong with an artifact, and what helps.
fn faults(damages: &[String], unread: &[String]) -> String {
    let listed = |faults: &[String], what: &str, next: &str| match faults {
        [] => String::new(),
        faults => format!(
            "\n{} {what}\n  {}\nnext: {next}",
            count(faults.len() as u64, "chunk"),
            faults.join("\n  ")
        ),
    };
    listed(damages, "damaged", "copy the damaged chunks from another place, or build the artifact again")
        + &listed(
            unread,
            "not read, and not judged",
            "give this user the right to read them, or mend the disk; then check again",
        )
}

/// Verifies a chunk, and the delta that makes it of the parent's.
fn check_chunk(
    disk: &dyn Disk,
    scratch: Option<&Scratch>,
    manifest: &Manifest,
    (place, chunk): (usize, &ChunkEntry),
) -> Result<(), OpenError> {
    let delta = manifest.lineage.as_ref().and_then(|lineage| lineage.delta(place));
    let prove_both = |disk: &dyn Disk| {
        prove(disk, "", manifest, chunk)?;
        delta.map_or(Ok(()), |delta| prove_delta(disk, manifest, delta))
    };
    let Some(scratch) = scratch else { return prove_both(disk) };
    let copied = scratch
        .copy(disk, chunk.file())
        .and_then(|()| delta.map_or(Ok(()), |delta| scratch.copy(disk, delta.file())));
    let proved = copied.and_then(|()| prove_both(scratch.disk()));
    scratch.forget(chunk.digest);
    delta.into_iter().for_each(|delta| scratch.forget(delta.digest));
    proved
}

/// Shows what the manifest says.
pub(super) fn show(shared: &CliContext, arguments: &ShowArguments) -> Result<ExitCode, CliError> {
    let (_, manifest) = opened(&arguments.url)?;
    let chunks: Vec<_> = manifest
        .chunks
        .iter()
        .enumerate()
        .map(|(place, chunk)| {
            let delta = manifest.lineage.as_ref().and_then(|lineage| lineage.delta(place));
            json!({
                "delta": delta.map(|delta| json!({
                    "digest": delta.digest.to_string(),
                    "parent_chunk": delta.parent.to_string(),
                    "puts": delta.puts,
                    "deletes": delta.deletes,
                    "file_bytes": delta.file_bytes,
                })),
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
        "parent": manifest.lineage.as_ref().map(|lineage| {
            json!({ "number": lineage.number, "manifest": lineage.manifest.to_string() })
        }),
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
    let upon = manifest.lineage.as_ref().map_or_else(String::new, |lineage| {
        let bytes = lineage.deltas.iter().map(|delta| delta.file_bytes).sum();
        let deltas = count(lineage.deltas.len() as u64, "delta");
        format!(
            "built upon artifact {} (manifest {}), with {deltas} of {}\n",
            lineage.number,
            lineage.manifest,
            size(bytes)
        )
    });
    let mut text = format!(
        "artifact {} of store {}\n{}, {} of keys and values, {} on disk\n{upon}compression {}\nmanifest {}\n{} in pages, {} in \
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
