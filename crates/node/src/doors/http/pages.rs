//! The keys of a store, page by page, as lines of JSON.
//!
//! ```text
//!   {"key":"a"}
//!   {"key":"b"}
//!   {"after":"17592186044416"}      or, where nothing comes behind it: {"end":true}
//! ```
//!
//! Nothing of a walk stays here between two pages: `after` is a place among the tokens, which every node understands.
//! What R replicas cannot tell of is never passed over: the page ends in front of it, and the next one is refused.
//!
//! Must never: end a page without its last line, which alone says whether more comes.

use bytes::Bytes;
use runtime::http::StatusCode;
use serde_json::{Map, Value as Json, json};
use wire::error::ErrorCode;
use wire::messages::Failure;

use super::HttpCall;
use super::account::HeldRoom;
use super::answer::HttpAnswer;
use super::outcomes::{KeyOutcome, Telling, put_bytes};
use super::parameters::Parameters;
use super::reading;
use super::refused::{full, malformed};
use super::store_facts::StoreFacts;
use crate::doors::counters::Operation;
use crate::front::{Met, Position, StretchLimit};

/// Keys of a page, where its reader does not say how many.
const KEYS_DEFAULT: usize = 1_000;
/// Keys that are met for one page at most, whether they are listed or not: some hundred milliseconds.
const KEYS_MET_MAX: usize = 10_000;
/// Bytes of a page after which it ends.
const PAGE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Keys and partitions of one stretch. Some stretches make a page.
const STRETCH_KEYS: usize = 250;
const STRETCH_PARTITIONS: usize = 128;
/// Most stretches of a page: an empty store of usual size is walked over at once.
const STRETCHES_MAX: usize = 64;
/// Keys whose values are read at a time.
const VALUES_TOGETHER: usize = 16;

/// A page that is being filled.
struct PageFilled<'a> {
    call: &'a HttpCall<'a>,
    store: &'a str,
    facts: StoreFacts,
    parameters: Parameters,
    /// Where it begins.
    from: Position,
    lines: Vec<u8>,
    listed: usize,
    met: usize,
    /// That of the values.
    room: Vec<HeldRoom>,
}

/// Answers a page.
pub(super) async fn page(call: &HttpCall<'_>) -> Result<HttpAnswer, HttpAnswer> {
    let store = call.store()?;
    call.judge(&store, None)?;
    let facts = StoreFacts::of(call.door, &store)?;
    let answer = answered(call, &store, facts).await;
    answer.map(|answer| answer.about(&store)).map_err(|refused| refused.about(&store))
}

async fn answered(call: &HttpCall<'_>, store: &str, facts: StoreFacts) -> Result<HttpAnswer, HttpAnswer> {
    let parameters = Parameters::of(call, facts.replicas)?;
    let from = Position::new(parameters.after.unwrap_or_default());
    let from = from.ok_or_else(|| malformed("after takes what the page before it said"))?;
    let permit = call.admitted.admit(call.head_bytes).map_err(|refused| full(&refused))?;
    let mut page = PageFilled {
        call,
        store,
        facts,
        parameters,
        from,
        lines: Vec::new(),
        listed: 0,
        met: 0,
        room: Vec::new(),
    };
    let began = call.door.front.clock().now();
    let next = page.fill().await;
    call.door.counters.took(Operation::Scan, began);
    let last = match next.map_err(|failure| HttpAnswer::failure(&failure))? {
        Some(next) => json!({ "after": next.number().to_string() }),
        None => json!({ "end": true }),
    };
    page.add(&last);
    drop((permit, page.room));
    call.counted(HttpAnswer::json_lines(StatusCode::OK, page.lines))
}

impl PageFilled<'_> {
    /// Lists keys; where to go on, if not at the end of the store.
    async fn fill(&mut self) -> Result<Option<Position>, Failure> {
        let front = &self.call.door.front;
        let mut at = self.from;
        for _ in 0..STRETCHES_MAX {
            let keys_min = self.limit().saturating_sub(self.listed).clamp(1, STRETCH_KEYS);
            let limit = StretchLimit { keys_min, partitions_max: STRETCH_PARTITIONS };
            let stretch = match front.stretch(self.store, at, limit).await {
                // The next page begins there, and says why.
                Err(_) if at > self.from => return Ok(Some(at)),
                stretch => stretch?,
            };
            self.met += stretch.keys.len();
            if let Some(cut) = self.list(stretch.keys).await {
                return Ok(Some(cut));
            }
            match stretch.next {
                None => return Ok(None),
                Some(next) => at = next,
            }
            if self.is_full() || self.met >= KEYS_MET_MAX {
                break;
            }
        }
        Ok(Some(at))
    }

    /// Lists those of these keys that are wanted; where the page ends, if it ends among them.
    async fn list(&mut self, mut keys: Vec<Met>) -> Option<Position> {
        let (prefix, shows_siblings) = (&self.parameters.prefix, self.facts.shows_siblings);
        let is_there = |met: &Met| if shows_siblings { met.has_sibling } else { met.is_live };
        keys.retain(|met| is_there(met) && met.key.starts_with(prefix));
        let mut left = &keys[..];
        while let Some(first) = left.first() {
            let begins = Position::of(first.token);
            if self.is_full() && begins > self.from {
                return Some(begins);
            }
            // A group of tokens stays together.
            let together = if self.parameters.values { VALUES_TOGETHER } else { 1 };
            let together = together.min(self.limit().saturating_sub(self.listed)).clamp(1, left.len());
            let last = Position::of(left[together - 1].token);
            let count = left.partition_point(|met| Position::of(met.token) <= last);
            let (now, rest) = left.split_at(count);
            match self.parameters.values {
                true => {
                    if let Some(cut) = self.add_values(now).await {
                        return Some(cut);
                    }
                }
                false => now.iter().for_each(|met| self.add_key(&met.key)),
            }
            left = rest;
        }
        None
    }

    /// Lists these keys with their values; where the page ends, if their values are too long together.
    async fn add_values(&mut self, keys: &[Met]) -> Option<Position> {
        let (front, options) = (&self.call.door.front, self.parameters.to_read());
        let names = keys.iter().map(|met| met.key.clone()).collect();
        let reading::KeysRead { answers: mut got, room } =
            reading::many(self.call, self.store, names, &options).await;
        self.room.extend(room);
        let is_long =
            |got: &Result<_, Failure>| matches!(got, Err(failure) if failure.code == ErrorCode::FrameTooLong);
        let mut end = None;
        if let Some(long) = got.iter().position(is_long) {
            // Alone it may be read.
            let listed = if long > 0 { long } else { 1 };
            let cut = keys.get(listed).map(|met| Position::of(met.token));
            if long == 0 {
                got[0] = front.get(self.store, keys[0].key.clone(), &options).await;
            }
            if cut.is_none_or(|cut| cut > Position::of(keys[0].token)) {
                got.truncate(listed);
                end = cut;
            }
        }
        let now = front.now();
        for (met, got) in keys.iter().zip(got) {
            let shown = got.and_then(|got| Ok((self.facts.shown(&got, now)?, got.sloppy)));
            let outcome = match shown {
                // It was deleted meanwhile.
                Ok((shown, _)) if shown.values.is_empty() => continue,
                Ok((shown, sloppy)) => KeyOutcome::Read { shown, sloppy },
                Err(failure) => KeyOutcome::Refused(failure),
            };
            self.add(&outcome.told(&met.key, Telling::Whole));
            self.listed += 1;
        }
        end
    }

    fn add_key(&mut self, key: &Bytes) {
        let mut line = Map::new();
        put_bytes(&mut line, "key", key);
        self.add(&Json::Object(line));
        self.listed += 1;
    }

    fn add(&mut self, line: &Json) {
        // Into memory: it cannot fail.
        let _ = serde_json::to_writer(&mut self.lines, line);
        self.lines.push(b'\n');
    }

    fn limit(&self) -> usize {
        self.parameters.limit.map_or(KEYS_DEFAULT, |limit| limit as usize)
    }

    fn is_full(&self) -> bool {
        self.listed >= self.limit() || self.lines.len() >= PAGE_BYTES_MAX
    }
}
