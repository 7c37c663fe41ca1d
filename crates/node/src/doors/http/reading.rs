//! Reading many keys for one answer: what is read counts as soon as it is there, and what finds no room is refused.
//!
//! Must never: keep a value that is in no account.

use bytes::Bytes;
use wire::messages::{Failure, Got, RequestOptions};

use super::HttpCall;
use super::account::HeldRoom;
use crate::doors::native::not_admitted;

/// A value as it is read, and as it appears in an answer.
const TIMES_HELD: usize = 2;

/// What was read, by the place of its key, and its room.
pub(super) struct KeysRead {
    pub(super) answers: Vec<Result<Got, Failure>>,
    pub(super) room: Vec<HeldRoom>,
}

/// Reads keys of a store, each from its quorum.
pub(super) async fn many(
    call: &HttpCall<'_>,
    store: &str,
    keys: Vec<Bytes>,
    options: &RequestOptions,
) -> KeysRead {
    let (count, front) = (keys.len(), &call.door.front);
    let mut answers: Vec<Option<Result<Got, Failure>>> = (0..count).map(|_| None).collect();
    let mut room = Vec::new();
    let deliver = &mut |position: usize, answer: Result<Got, Failure>| {
        let counted = answer.and_then(|got| {
            let bytes = TIMES_HELD * wire::versions::record_bytes(None, &got.set);
            let held = call.room.hold(bytes, front.clock().now());
            room.push(held.map_err(|full| not_admitted(&full))?);
            Ok(got)
        });
        answers[position] = Some(counted);
    };
    let whole = front.multi_get_each(store, keys, options, deliver).await;
    let lacking = || {
        let detail = "the node did not say what became of this key";
        whole
            .as_ref()
            .err()
            .cloned()
            .unwrap_or_else(|| Failure::new(wire::error::ErrorCode::Internal, detail))
    };
    let answers = answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(lacking()))).collect();
    KeysRead { answers, room }
}
