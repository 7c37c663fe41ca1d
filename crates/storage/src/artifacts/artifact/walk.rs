//! Walks over an artifact, page by page in the order of token and key.
//!
//! A walk goes on at a cursor, in the artifact that made it; or behind a record, in any copy of the artifact.

use std::ops::{ControlFlow, RangeInclusive};

use bytes::Bytes;
use model::Token;

use super::super::chunk::Visited;
use super::super::error::ReadError;
use super::{Artifact, VALUE_BYTES_MAX};

/// Where a walk goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WalkCursor {
    chunk: usize,
    place: u64,
}

/// How much of a walk is wanted at once.
#[derive(Clone, Copy, Debug)]
pub struct WalkLimit {
    /// Records at most; at least one is handed out.
    pub records_max: usize,
    /// Bytes of keys and values after which the page ends.
    pub bytes_max: usize,
}

/// Some records of a walk, in the order of token and key.
#[derive(Debug, Default)]
pub struct WalkPage {
    /// Keys and values.
    pub records: Vec<(Bytes, Bytes)>,
    /// Where the next page begins; `None` at the end.
    pub next: Option<WalkCursor>,
}

impl Artifact {
    /// Where a walk over the slice that begins at `token` begins: at the chunk that holds it.
    pub fn walk_from(&self, token: Token) -> WalkCursor {
        WalkCursor { chunk: self.position(token), place: 0 }
    }

    /// The next records in the order of token and key, up to and with the token `last`.
    ///
    /// # Errors
    /// As [`Artifact::get`].
    pub fn walk(&self, from: WalkCursor, last: Token, limit: WalkLimit) -> Result<WalkPage, ReadError> {
        self.walk_past(from, &|_, _| false, last, limit)
    }

    /// The next records of these tokens that lie behind a record, whether that is there or not. It is looked up in one
    /// step where the chunk is of pages, in one look over the chunk's table where it is of slots.
    ///
    /// # Errors
    /// As [`Artifact::get`].
    pub fn walk_behind(
        &self,
        tokens: RangeInclusive<Token>,
        after: Option<(Token, &[u8])>,
        limit: WalkLimit,
    ) -> Result<WalkPage, ReadError> {
        let begin = after.map_or(*tokens.start(), |(token, _)| token.max(*tokens.start()));
        let position = self.position(begin);
        let chunk = self.chunk(begin)?;
        let place = chunk.seek(begin, &|key| self.manifest.hash.token(key));
        let place = place.map_err(|refused| chunk.error(refused))?;
        let skip =
            |token: Token, key: &[u8]| token < begin || after.is_some_and(|after| (token, key) <= after);
        self.walk_past(WalkCursor { chunk: position, place }, &skip, *tokens.end(), limit)
    }

    fn walk_past(
        &self,
        from: WalkCursor,
        skip: &dyn Fn(Token, &[u8]) -> bool,
        last: Token,
        limit: WalkLimit,
    ) -> Result<WalkPage, ReadError> {
        let mut page = WalkPage::default();
        let mut bytes = 0;
        let WalkCursor { mut chunk, mut place } = from;
        while chunk < self.firsts.len() && self.firsts[chunk] <= last.0 {
            let open = self.chunks[chunk]
                .as_ref()
                .ok_or_else(|| ReadError::NotHere { chunk: self.manifest.chunks[chunk].digest })?;
            let mut damaged = false;
            let mut visit = |visited: Visited<'_>| {
                let token = self.manifest.hash.token(visited.key);
                if token > last {
                    chunk = self.firsts.len();
                    return ControlFlow::Break(());
                }
                if skip(token, visited.key) {
                    return ControlFlow::Continue(());
                }
                let Some(value) = self.opener.open(visited.coding, visited.stored, VALUE_BYTES_MAX) else {
                    damaged = true;
                    return ControlFlow::Break(());
                };
                bytes += visited.key.len() + value.len();
                page.records.push((Bytes::copy_from_slice(visited.key), value.into()));
                match page.records.len() >= limit.records_max || bytes >= limit.bytes_max {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            };
            let stopped = open.walk(place, &mut visit).map_err(|refused| open.error(refused))?;
            if damaged {
                return Err(ReadError::Corrupt { chunk: open.entry().digest });
            }
            match stopped {
                Some(_) if chunk == self.firsts.len() => return Ok(page),
                Some(next) => {
                    let next = WalkCursor { chunk, place: next };
                    assert!(
                        from < next,
                        "a walk goes on in front of where it was: {next:?} follows {from:?}"
                    );
                    page.next = Some(next);
                    return Ok(page);
                }
                None => (chunk, place) = (chunk + 1, 0),
            }
        }
        Ok(page)
    }
}
