//! `tontine artifact diff`: which records two artifacts differ in.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::process::ExitCode;

use bytes::Bytes;
use model::Token;
use serde_json::json;
use storage::readonly::{Artifact, WalkCursor, WalkLimit, chunk_path};

use super::arguments::DiffArguments;
use super::place::Scratch;
use super::{opened, unopened};
use crate::failure::CliError;
use crate::output::{bytes_json, count, print, shown};
use crate::progress::Progress;
use crate::shared::Shared;

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

/// Carries out the comparison.
pub(super) fn run(shared: &Shared, arguments: &DiffArguments) -> Result<ExitCode, CliError> {
    let (mut before, mut after) =
        (Walk::begin(&arguments.before, "before")?, Walk::begin(&arguments.after, "after")?);
    let total = before.artifact.manifest().records() + after.artifact.manifest().records();
    let mut progress = Progress::new(Some(total), 0);
    let mut found = Difference::default();
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

/// A walk over an artifact, a page at a time.
struct Walk<'a> {
    url: &'a str,
    artifact: Artifact,
    next: Option<WalkCursor>,
    records: VecDeque<(Token, Bytes, Bytes)>,
    /// Where it lies while it is compared.
    _scratch: Option<Scratch>,
}

impl<'a> Walk<'a> {
    fn begin(url: &'a str, name: &str) -> Result<Walk<'a>, CliError> {
        let (disk, manifest) = opened(url)?;
        let scratch = Scratch::of(url, name)?;
        let failed = |error| unopened(url, &error);
        let artifact = match &scratch {
            None => Artifact::open(&*disk, "", &|_| true).map_err(failed)?,
            Some(scratch) => {
                manifest
                    .chunks
                    .iter()
                    .try_for_each(|chunk| scratch.copy(&*disk, chunk.file()))
                    .map_err(failed)?;
                let place = |digest| chunk_path(digest);
                Artifact::open_chunks(scratch.disk(), manifest, &place, &|_| true).map_err(failed)?
            }
        };
        let next = Some(artifact.walk_from(Token(0)));
        Ok(Walk { url, artifact, next, records: VecDeque::new(), _scratch: scratch })
    }

    fn peek(&mut self) -> Result<Option<(Token, &Bytes, &Bytes)>, CliError> {
        while let (true, Some(cursor)) = (self.records.is_empty(), self.next) {
            let page = self.artifact.walk(cursor, Token(u64::MAX), LIMIT).map_err(|error| {
                CliError::Other(format!(
                    "{}: {error}. To check all of it, run `tontine artifact check`",
                    self.url
                ))
            })?;
            let hash = self.artifact.manifest().hash;
            self.records.extend(page.records.into_iter().map(|(key, value)| (hash.token(&key), key, value)));
            self.next = page.next;
        }
        Ok(self.records.front().map(|(token, key, value)| (*token, key, value)))
    }
}
