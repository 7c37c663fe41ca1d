//! `tontine artifact diff`: which records two artifacts differ in.
//!
//! A chunk that both have, for the same slice, holds the same records. It is passed over in both, and its file is not
//! even opened: of an artifact and its child, only what changed is read.
//!
//! Must never: take two chunks for equal whose values are read by different dictionaries.

use std::cmp::Ordering;
use std::collections::{BTreeSet, VecDeque};
use std::process::ExitCode;
use std::sync::Arc;

use bytes::Bytes;
use model::Token;
use runtime::Disk;
use serde_json::json;
use storage::artifacts::{Artifact, ChunkEntry, Digest, Manifest, Slice, WalkCursor, WalkLimit, chunk_path};

use super::arguments::DiffArguments;
use super::place::Scratch;
use super::{opened, unopened};
use crate::context::CliContext;
use crate::failure::CliError;
use crate::output::print;
use crate::progress::Progress;
use crate::text::{bytes_json, count, shown};

/// Keys that are named.
const KEYS_SHOWN_MAX: usize = 10;
/// Records that are read at once.
const LIMIT: WalkLimit = WalkLimit { records_max: 1000, bytes_max: 4 << 20 };

/// What differs, and how often.
#[derive(Default)]
struct Difference {
    added: u64,
    removed: u64,
    changed: u64,
    equal: u64,
    first: Vec<(&'static str, Bytes)>,
}

impl Difference {
    fn note(&mut self, what: &'static str, key: &Bytes) {
        match what {
            "added" => self.added += 1,
            "removed" => self.removed += 1,
            _ => self.changed += 1,
        }
        if self.first.len() < KEYS_SHOWN_MAX {
            self.first.push((what, key.clone()));
        }
    }
}

/// The chunks that two artifacts share, by the first token of their slice. None when a key has another token in the
/// other artifact, or a value another dictionary.
fn shared_chunks(before: &Manifest, after: &Manifest) -> BTreeSet<u64> {
    if before.hash != after.hash || before.dictionary != after.dictionary {
        return BTreeSet::new();
    }
    let named = |chunk: &ChunkEntry| (chunk.slice.first.0, chunk.slice.last.0, chunk.digest.0);
    let of_before: BTreeSet<_> = before.chunks.iter().map(named).collect();
    let both = after.chunks.iter().map(named).filter(|chunk| of_before.contains(chunk));
    both.map(|(first, ..)| first).collect()
}

/// Carries out the comparison.
pub(super) fn run(shared: &CliContext, arguments: &DiffArguments) -> Result<ExitCode, CliError> {
    let (old, new) = (opened(&arguments.before)?, opened(&arguments.after)?);
    let alike = shared_chunks(&old.1, &new.1);
    let passed: Vec<&ChunkEntry> =
        new.1.chunks.iter().filter(|chunk| alike.contains(&chunk.slice.first.0)).collect();
    let passed_bytes: u64 = passed.iter().map(|chunk| chunk.file_bytes).sum();
    let mut found =
        Difference { equal: passed.iter().map(|chunk| chunk.records).sum(), ..Difference::default() };
    let total = old.1.records() + new.1.records() - 2 * found.equal;
    let mut before = ChunkWalk::begin((&arguments.before, "before"), old, &alike)?;
    let mut after = ChunkWalk::begin((&arguments.after, "after"), new, &alike)?;
    let mut progress = Progress::new(Some(total), 0);
    let mut seen = 0_u64;
    loop {
        let order = match (before.peek()?, after.peek()?) {
            (None, None) => break,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some((token, key, _)), Some((other_token, other_key, _))) => {
                (token, key).cmp(&(other_token, other_key))
            }
        };
        let old = if order.is_le() { before.records.pop_front() } else { None };
        let new = if order.is_ge() { after.records.pop_front() } else { None };
        seen += u64::from(old.is_some()) + u64::from(new.is_some());
        match (old, new) {
            (Some((_, key, _)), None) => found.note("removed", &key),
            (None, Some((_, key, _))) => found.note("added", &key),
            (Some((_, key, value)), Some((_, _, new))) if value != new => found.note("changed", &key),
            _ => found.equal += 1,
        }
        if seen.is_multiple_of(4096) {
            progress.show(seen, seen);
        }
    }
    progress.end();
    let differ = found.added + found.removed + found.changed > 0;
    let keys = found.first.iter().map(|(what, key)| json!({ "key": bytes_json(key), "change": what }));
    let document = json!({
        "added": found.added,
        "removed": found.removed,
        "changed": found.changed,
        "equal": found.equal,
        "chunks_passed_over": alike.len(),
        "bytes_passed_over": passed_bytes,
        "first": keys.collect::<Vec<_>>(),
    });
    print(shared.format(), &document, || {
        let mut text = format!(
            "{} added, {} removed, {} changed, {} equal",
            count(found.added, "record"),
            found.removed,
            found.changed,
            found.equal
        );
        for (what, key) in &found.first {
            text += &format!("\n  {what} {}", shown(key));
        }
        text
    });
    Ok(if differ { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

/// A walk over the chunks of an artifact that the other one lacks, a page at a time.
struct ChunkWalk<'a> {
    url: &'a str,
    artifact: Artifact,
    /// The slices that are left, the last one first; the first of them is being read if there is a cursor.
    slices: Vec<Slice>,
    next: Option<WalkCursor>,
    records: VecDeque<(Token, Bytes, Bytes)>,
    /// Where it lies while it is compared.
    _scratch: Option<Scratch>,
}

impl<'a> ChunkWalk<'a> {
    /// Opens the chunks of an artifact but for those that are `alike`.
    fn begin(
        (url, name): (&'a str, &str),
        (disk, manifest): (Arc<dyn Disk>, Manifest),
        alike: &BTreeSet<u64>,
    ) -> Result<ChunkWalk<'a>, CliError> {
        let scratch = Scratch::of(url, name)?;
        let failed = |error| unopened(url, &error);
        let wanted = |chunk: &ChunkEntry| !alike.contains(&chunk.slice.first.0);
        let place = |digest: Digest| chunk_path(digest);
        let slices = manifest.chunks.iter().rev().filter(|chunk| wanted(chunk)).map(|chunk| chunk.slice);
        let slices = slices.collect();
        let from: &dyn Disk = match &scratch {
            None => &*disk,
            Some(scratch) => {
                let mut differ = manifest.chunks.iter().filter(|chunk| wanted(chunk));
                differ.try_for_each(|chunk| scratch.copy(&*disk, chunk.file())).map_err(failed)?;
                scratch.disk()
            }
        };
        let artifact = Artifact::open_chunks(from, manifest, &place, &wanted).map_err(failed)?;
        Ok(ChunkWalk { url, artifact, slices, next: None, records: VecDeque::new(), _scratch: scratch })
    }

    fn peek(&mut self) -> Result<Option<(Token, &Bytes, &Bytes)>, CliError> {
        while let (true, Some(slice)) = (self.records.is_empty(), self.slices.last()) {
            let cursor = self.next.unwrap_or_else(|| self.artifact.walk_from(slice.first));
            let page = self.artifact.walk(cursor, slice.last, LIMIT).map_err(|error| {
                CliError::Other(format!(
                    "{}: {error}. To check all of it, run `tontine artifact check`",
                    self.url
                ))
            })?;
            let hash = self.artifact.manifest().hash;
            self.records.extend(page.records.into_iter().map(|(key, value)| (hash.token(&key), key, value)));
            self.next = page.next;
            if self.next.is_none() {
                self.slices.pop();
            }
        }
        Ok(self.records.front().map(|(token, key, value)| (*token, key, value)))
    }
}
