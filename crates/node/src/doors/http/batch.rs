//! Many keys of one store in one request. Each has its own outcome, as if it had been asked for alone.
//!
//! What makes no sense as a whole is refused before anything is done. From then on the batch is answered 200, and each
//! key says what became of it. Gets and writes go side by side: no two of them are about one key.
//!
//! Must never: answer as a whole that a batch failed of which something was written.

use bytes::Bytes;
use futures_util::future::join;
use model::Value;
use model::access::Right;
use model::limits::FRAME_BYTES_MAX;
use runtime::http::{Arriving, StatusCode};
use wire::error::ErrorCode;
use wire::messages::Failure;

use super::HttpCall;
use super::account::HeldRoom;
use super::answer::HttpAnswer;
use super::batch_form::{BatchOperation, KeyTask, parse};
use super::outcomes::{KeyOutcome, Telling};
use super::parameters::{Parameters, expiry};
use super::preconditions::Preconditions;
use super::reading;
use super::refused::{LimitOf, body as unread, full};
use super::store_facts::{StoreFacts, check_key};
use crate::doors::counters;
use crate::front::StampEntry;
use crate::stores::WriteOrder;

/// Longest body in bytes: with what it stands for, which is no longer, it is one frame of the native protocol.
pub(super) const BATCH_BYTES_MAX: usize = FRAME_BYTES_MAX / 2;

/// A batch on its way.
struct Batch {
    keys: Vec<Bytes>,
    /// What became of each key; `None` of those that are not yet known.
    outcomes: Vec<Option<KeyOutcome>>,
    /// Keys to read, by their place.
    gets: Vec<(usize, Bytes)>,
    /// Writes, by the place of their key.
    writes: Vec<(usize, (Bytes, WriteOrder))>,
    /// That of what was read.
    room: Vec<HeldRoom>,
}

/// Carries out a batch.
pub(super) async fn batch(call: &HttpCall<'_>, body: Arriving) -> Result<HttpAnswer, HttpAnswer> {
    let store = call.store()?;
    let answer = answered(call, &store, body).await;
    answer.map(|answer| answer.about(&store)).map_err(|refused| refused.about(&store))
}

async fn answered(call: &HttpCall<'_>, store: &str, body: Arriving) -> Result<HttpAnswer, HttpAnswer> {
    call.known()?;
    let facts = StoreFacts::of(call.door, store)?;
    let parameters = Parameters::of(call, facts.replicas)?;
    call.json_only()?;
    let body =
        body.read(BATCH_BYTES_MAX).await.map_err(|why| unread(why, BATCH_BYTES_MAX, LimitOf::Request))?;
    let permit = call.admitted.admit(call.head_bytes + 2 * body.len()).map_err(|refused| full(&refused))?;
    // Its body may have been long on its way.
    call.known()?;
    let operations = parse(&body).map_err(|failure| HttpAnswer::failure(&failure))?;
    drop(body);
    let mut batch = Batch::new(call, store, operations);
    batch.carry_out(call, store, facts, &parameters).await;
    drop(permit);
    batch.told(call)
}

impl Batch {
    /// Sorts out what is refused, key by key.
    fn new(call: &HttpCall<'_>, store: &str, operations: Vec<BatchOperation>) -> Batch {
        let (now, count) = (call.door.front.now(), operations.len());
        let mut batch = Batch {
            keys: Vec::with_capacity(count),
            outcomes: Vec::new(),
            gets: Vec::new(),
            writes: Vec::new(),
            room: Vec::new(),
        };
        for (at, BatchOperation { key, task }) in operations.into_iter().enumerate() {
            batch.keys.push(key.clone());
            let right = match task {
                KeyTask::Get => Right::Read,
                KeyTask::Put { .. } | KeyTask::Delete { .. } => Right::Write,
            };
            let judged =
                check_key(&key).and_then(|()| call.who.judge(call.door.view(), right, store, Some(&key)));
            let order = judged.and_then(|()| order(task, now));
            match order {
                Ok(Some(order)) => batch.writes.push((at, (key, order))),
                Ok(None) => batch.gets.push((at, key)),
                Err(failure) => {
                    call.door.counters.refused(failure.code);
                    let (audit, name) = (call.door.counters.audit(), call.found.route.name);
                    audit.refused(call.asker(), call.door.view(), name, &failure);
                    batch.outcomes.resize_with(at, || None);
                    batch.outcomes.push(Some(KeyOutcome::Refused(failure)));
                }
            }
        }
        batch.outcomes.resize_with(count, || None);
        batch
    }

    /// Reads and writes what is left.
    async fn carry_out(
        &mut self,
        call: &HttpCall<'_>,
        store: &str,
        facts: StoreFacts,
        parameters: &Parameters,
    ) {
        let (front, counters) = (&call.door.front, &call.door.counters);
        let (got_places, keys): (Vec<usize>, Vec<Bytes>) = std::mem::take(&mut self.gets).into_iter().unzip();
        let (written_places, orders): (Vec<usize>, Vec<_>) =
            std::mem::take(&mut self.writes).into_iter().unzip();
        let (began, gets, writes) = (front.clock().now(), keys.len(), orders.len());
        let (to_read, to_write) = (parameters.to_read(), parameters.to_write());
        let reading = Box::pin(async {
            if gets == 0 {
                return (Vec::new(), Vec::new());
            }
            let reading::KeysRead { answers, room } = reading::many(call, store, keys, &to_read).await;
            counters.took(counters::Operation::MultiGet, began);
            (answers, room)
        });
        let writing = Box::pin(async {
            if writes == 0 {
                return Vec::new();
            }
            let written = front.multi_write_if(store, orders, &to_write, StampEntry::Client).await;
            counters.took(counters::Operation::MultiPut, began);
            written.unwrap_or_else(|failure| vec![Err(failure); writes])
        });
        let ((got, room), written) = join(reading, writing).await;
        self.room = room;
        let now = front.now();
        let refused = |failure: Failure| {
            counters.refused(failure.code);
            KeyOutcome::Refused(failure)
        };
        for (at, got) in got_places.into_iter().zip(got) {
            let shown = got.and_then(|got| Ok((facts.shown(&got, now)?, got.sloppy)));
            let read = shown.map(|(shown, sloppy)| KeyOutcome::Read { shown, sloppy });
            self.outcomes[at] = Some(read.unwrap_or_else(refused));
        }
        for (at, written) in written_places.into_iter().zip(written) {
            let written = written
                .map(|written| KeyOutcome::Written { context: written.context, sloppy: written.sloppy });
            self.outcomes[at] = Some(written.unwrap_or_else(refused));
        }
    }

    /// The answer: all of it, or what there is room for.
    fn told(&mut self, call: &HttpCall<'_>) -> Result<HttpAnswer, HttpAnswer> {
        let whole = self.json(Telling::Whole);
        // From here on the answer counts in its place.
        self.room.clear();
        let whole = call.counted(HttpAnswer::json(StatusCode::OK, whole));
        let Err(refused) = whole else { return whole };
        let brief = call.counted(HttpAnswer::json(StatusCode::OK, self.json(Telling::Brief)));
        brief.map_err(|_| match self.may_have_written() {
            true => {
                let detail =
                    "this node has no room to say what became of each key; some may have been written";
                HttpAnswer::failure(&Failure::new(ErrorCode::Indeterminate, detail))
            }
            false => refused,
        })
    }

    fn may_have_written(&self) -> bool {
        let is_failed = |code: ErrorCode| code.outcome() == wire::error::Outcome::Failed;
        self.outcomes.iter().flatten().any(|outcome| match outcome {
            KeyOutcome::Read { .. } => false,
            KeyOutcome::Written { .. } => true,
            KeyOutcome::Refused(failure) => !is_failed(failure.code),
        })
    }

    fn json(&self, telling: Telling) -> Vec<u8> {
        let mut json = b"{\"results\":[".to_vec();
        for (at, (key, outcome)) in self.keys.iter().zip(&self.outcomes).enumerate() {
            if at > 0 {
                json.push(b',');
            }
            let told = outcome.as_ref().map(|outcome| outcome.told(key, telling));
            debug_assert!(told.is_some(), "each key has an outcome");
            // Into memory: it cannot fail.
            let _ = serde_json::to_writer(&mut json, &told);
        }
        json.extend_from_slice(b"]}\n");
        json
    }
}

/// What an operation writes; `None` where it reads.
fn order(task: KeyTask, now: model::WallMillis) -> Result<Option<WriteOrder>, Failure> {
    let (value, Preconditions { context, condition }, ttl_ms) = match task {
        KeyTask::Get => return Ok(None),
        KeyTask::Put { value, preconditions, ttl_ms } => (Value::Present(value), preconditions, ttl_ms),
        KeyTask::Delete { preconditions } => (Value::Tombstone, preconditions, None),
    };
    let expires = ttl_ms.map(|ttl_ms| expiry(ttl_ms, now)).transpose();
    let expires = expires.map_err(|detail| Failure::new(ErrorCode::Malformed, detail))?;
    Ok(Some(WriteOrder { context, condition, expires, value }))
}
