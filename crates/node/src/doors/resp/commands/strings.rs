//! GET, SET and their kin.

use std::collections::BTreeMap;

use bytes::Bytes;
use model::{Generation, Value, Version, WallMillis};
use wire::error::ErrorCode;
use wire::error::Outcome;
use wire::messages::Failure;
use wire::messages::{Condition, Got, RequestOptions};
use wire::resp::Command;

use super::super::arguments::{Expiry, SetOptions, When, integer};
use super::super::reply::DoorReply;
use super::{CommandCall, Kind};
use crate::front::{ATTEMPTS_MAX, StampEntry, contended, lost_a_race};
use crate::stores::WriteOrder;

/// Reads a key's quorum.
pub(super) async fn read(call: &CommandCall<'_>, key: Bytes) -> Result<Got, DoorReply> {
    read_with(call, key, &RequestOptions::default()).await
}

async fn read_with(call: &CommandCall<'_>, key: Bytes, options: &RequestOptions) -> Result<Got, DoorReply> {
    call.front.get(call.store, key, options).await.map_err(|failure| DoorReply::failure(&failure))
}

/// The version that a plain client sees, if it sees any.
///
/// # Errors
/// When it sees none, and too few replicas have answered to say so: what was found has expired meanwhile, or lies
/// beside a later deletion.
pub(in super::super) fn shown(got: &Got, now: WallMillis) -> Result<Option<(&Version, &Bytes)>, Failure> {
    let live = got.set.winner().and_then(|winner| Some((winner, winner.live(now)?)));
    if live.is_none() && got.sloppy {
        let detail = "too few replicas can answer, and what was found is no value any more";
        return Err(Failure::new(ErrorCode::InsufficientReplicas, detail));
    }
    Ok(live)
}

/// The same for a command that answers with it.
pub(super) fn seen(got: &Got, now: WallMillis) -> Result<Option<(&Version, &Bytes)>, DoorReply> {
    shown(got, now).map_err(|failure| DoorReply::failure(&failure))
}

/// What GET answers.
pub(in super::super) fn value_shown(answer: &Result<Got, Failure>, now: WallMillis) -> DoorReply {
    match answer {
        Ok(got) => match shown(got, now) {
            Ok(found) => found.map_or(DoorReply::Null, |(_, value)| DoorReply::Bulk(value.clone())),
            Err(failure) => DoorReply::failure(&failure),
        },
        Err(failure) => DoorReply::failure(failure),
    }
}

pub(super) async fn get(call: &CommandCall<'_>) -> Result<DoorReply, DoorReply> {
    let got = read(call, call.bytes(1)).await?;
    Ok(value_shown(&Ok(got), call.front.now()))
}

pub(super) async fn strlen(call: &CommandCall<'_>) -> Result<DoorReply, DoorReply> {
    let got = read(call, call.bytes(1)).await?;
    Ok(DoorReply::Integer(seen(&got, call.front.now())?.map_or(0, |(_, value)| value.len() as i64)))
}

/// A put that replaces what its coordinator knows.
pub(super) fn overwrite(value: Bytes, expires: Option<WallMillis>) -> WriteOrder {
    WriteOrder { context: None, condition: Condition::None, expires, value: Value::Present(value) }
}

/// A deletion of what its coordinator knows.
pub(in super::super) fn tombstone() -> WriteOrder {
    WriteOrder { context: None, condition: Condition::None, expires: None, value: Value::Tombstone }
}

/// What a command writes that overwrites one key and reads nothing first; `None` for any other, and for one that is
/// refused.
pub(in super::super) fn plain_order(kind: Kind, command: &Command, now: WallMillis) -> Option<WriteOrder> {
    let argument = |at: usize| command.bytes(at);
    match kind {
        Kind::Set if command.len() == 3 => Some(overwrite(argument(2)?, None)),
        Kind::Set => {
            let rest: Vec<Bytes> = (3..command.len()).filter_map(argument).collect();
            let options = SetOptions::parse(&rest).ok()?;
            let plain = options.when == When::Always && !options.keep_ttl && !options.get;
            let expires = options.expiry.map(|expiry| expiry.strictly_later(now, "set")).transpose().ok()?;
            plain.then_some(overwrite(argument(2)?, expires))
        }
        Kind::Setex | Kind::Psetex => {
            let span = integer(&argument(2)?).ok()?;
            let expiry = if kind == Kind::Setex { Expiry::Seconds(span) } else { Expiry::Millis(span) };
            Some(overwrite(argument(3)?, Some(expiry.strictly_later(now, kind.name()).ok()?)))
        }
        _ => None,
    }
}

pub(super) async fn set(call: &CommandCall<'_>) -> Result<DoorReply, DoorReply> {
    let options = SetOptions::parse(&call.rest(3))?;
    let now = call.front.now();
    let expires = options.expiry.map(|expiry| expiry.strictly_later(now, "set")).transpose()?;
    let (key, value) = (call.bytes(1), call.bytes(2));
    if options.when == When::Always && !options.keep_ttl && !options.get {
        write(call, key, overwrite(value, expires), StampEntry::Client)
            .await
            .map_err(|f| DoorReply::failure(&f))?;
        return Ok(DoorReply::OK);
    }
    let answer = set_if(call, key, value, options).await?;
    Ok(match (options.get, answer) {
        (true, Set { old: Some(old), .. }) => DoorReply::Bulk(old),
        (false, Set { done: true, .. }) => DoorReply::OK,
        _ => DoorReply::Null,
    })
}

/// What a SET that reads first has come to.
struct Set {
    /// The value that a plain client saw before.
    old: Option<Bytes>,
    /// Whether the new one was written.
    done: bool,
}

/// Writes a value after looking at what is there, and starts again when somebody wrote in between.
async fn set_if(
    call: &CommandCall<'_>,
    key: Bytes,
    value: Bytes,
    options: SetOptions,
) -> Result<Set, DoorReply> {
    let now = call.front.now();
    let expires = options.expiry.map(|expiry| expiry.strictly_later(now, "set")).transpose()?;
    for attempt in 0..ATTEMPTS_MAX {
        let under = call.front.generation();
        let got = read_with(call, key.clone(), &call.front.judging(attempt).await).await?;
        let old = seen(&got, call.front.now())?;
        let expires = if options.keep_ttl { old.and_then(|(version, _)| version.expires) } else { expires };
        let old = old.map(|(_, value)| value.clone());
        let wanted = match options.when {
            When::Always => true,
            When::Absent => old.is_none(),
            When::Present => old.is_some(),
        };
        if !wanted {
            return Ok(Set { old, done: false });
        }
        let mut order = overwrite(value.clone(), expires);
        order.context = Some(got.set.context());
        order.condition = Condition::IfCurrent;
        match write_judged(call, key.clone(), order, under).await {
            Ok(()) => return Ok(Set { old, done: true }),
            Err(failure) if lost_a_race(&failure) => {}
            Err(failure) => return Err(DoorReply::failure(&failure)),
        }
    }
    Err(DoorReply::failure(&contended()))
}

pub(super) async fn setnx(call: &CommandCall<'_>) -> Result<DoorReply, DoorReply> {
    let options = SetOptions { when: When::Absent, ..SetOptions::default() };
    let set = set_if(call, call.bytes(1), call.bytes(2), options).await?;
    Ok(DoorReply::Integer(i64::from(set.done)))
}

pub(super) async fn getset(call: &CommandCall<'_>) -> Result<DoorReply, DoorReply> {
    let set = set_if(call, call.bytes(1), call.bytes(2), SetOptions::default()).await?;
    Ok(set.old.map_or(DoorReply::Null, DoorReply::Bulk))
}

pub(super) async fn getdel(call: &CommandCall<'_>) -> Result<DoorReply, DoorReply> {
    let deleted = read_then_write(call, call.bytes(1), |old| match old {
        None => Err(DoorReply::Null),
        Some((_, value)) => Ok((tombstone(), DoorReply::Bulk(value.clone()))),
    });
    deleted.await
}

/// A part of a value: both ends count, and negative ones from the end.
pub(super) async fn getrange(call: &CommandCall<'_>) -> Result<DoorReply, DoorReply> {
    let (start, end) = (integer(&call.bytes(2))?, integer(&call.bytes(3))?);
    let got = read(call, call.bytes(1)).await?;
    let value = seen(&got, call.front.now())?.map(|(_, value)| value.clone()).unwrap_or_default();
    Ok(DoorReply::Bulk(range(&value, start, end)))
}

fn range(value: &Bytes, start: i64, end: i64) -> Bytes {
    let length = i64::try_from(value.len()).expect("a value is far shorter");
    if start < 0 && end < 0 && start > end {
        return Bytes::new();
    }
    let from_front = |at: i64| if at < 0 { at.saturating_add(length).max(0) } else { at };
    let (start, end) = (from_front(start), from_front(end).min(length - 1));
    if start > end {
        return Bytes::new();
    }
    value.slice(start as usize..=end as usize)
}

pub(super) async fn setex(call: &CommandCall<'_>) -> Result<DoorReply, DoorReply> {
    let span = integer(&call.bytes(2))?;
    let expiry = if call.kind == Kind::Setex { Expiry::Seconds(span) } else { Expiry::Millis(span) };
    let expires = expiry.strictly_later(call.front.now(), call.kind.name())?;
    let order = overwrite(call.bytes(3), Some(expires));
    write(call, call.bytes(1), order, StampEntry::Client)
        .await
        .map_err(|failure| DoorReply::failure(&failure))?;
    Ok(DoorReply::OK)
}

pub(super) async fn mget(call: &CommandCall<'_>) -> Result<DoorReply, DoorReply> {
    let keys = call.rest(1);
    let results = call.front.multi_get(call.store, keys, &RequestOptions::default()).await;
    let now = call.front.now();
    let found = all_known(results.map_err(|failure| DoorReply::failure(&failure))?)?;
    let value =
        |got: &Got| Ok(seen(got, now)?.map_or(DoorReply::Null, |(_, value)| DoorReply::Bulk(value.clone())));
    Ok(DoorReply::Array(found.iter().map(value).collect::<Result<_, DoorReply>>()?))
}

/// What was read of many keys.
///
/// # Errors
/// How many are unavailable, and why the first of them is; or why the answer has no room.
pub(super) fn all_known(results: Vec<Result<Got, Failure>>) -> Result<Vec<Got>, DoorReply> {
    let of = results.len();
    let unavailable = |failure: &&Failure| failure.code != ErrorCode::FrameTooLong;
    let failures: Vec<&Failure> = results.iter().filter_map(|result| result.as_ref().err()).collect();
    let unknown = failures.iter().copied().filter(unavailable).count();
    match (failures.iter().copied().find(unavailable), failures.first()) {
        (Some(Failure { code, detail, .. }), _) if of > 1 => {
            let detail = format!("{unknown} of {of} keys are unavailable; the first: {detail}");
            Err(DoorReply::failure(&Failure::new(*code, detail)))
        }
        (Some(failure), _) | (None, Some(&failure)) => Err(DoorReply::failure(failure)),
        (None, None) => Ok(results.into_iter().flatten().collect()),
    }
}

pub(super) async fn mset(call: &CommandCall<'_>) -> Result<DoorReply, DoorReply> {
    // Of a key that is named twice the last value is meant.
    let mut values = BTreeMap::new();
    for pair in call.rest(1).chunks_exact(2) {
        values.insert(pair[0].clone(), pair[1].clone());
    }
    let entries = values.into_iter().map(|(key, value)| (key, overwrite(value, None))).collect();
    let results =
        call.front.multi_write(call.store, entries, &RequestOptions::default(), StampEntry::Client).await;
    let results = results.map_err(|failure| DoorReply::failure(&failure))?;
    match least_certain(results.into_iter().filter_map(Result::err)) {
        None => Ok(DoorReply::OK),
        Some(failure) => Err(DoorReply::failure(&failure)),
    }
}

/// What to tell of several failures: one whose write may have happened, if there is one, because a failure that
/// certainly changed nothing would deny it.
pub(super) fn least_certain(failures: impl Iterator<Item = Failure>) -> Option<Failure> {
    failures.reduce(|told, next| {
        let in_doubt = |failure: &Failure| failure.code.outcome() == Outcome::Indeterminate;
        if in_doubt(&next) && !in_doubt(&told) { next } else { told }
    })
}

/// Writes a key.
pub(super) async fn write(
    call: &CommandCall<'_>,
    key: Bytes,
    order: WriteOrder,
    entry: StampEntry,
) -> Result<(), Failure> {
    call.front.write(call.store, key, order, &RequestOptions::default(), entry).await.map(|_| ())
}

/// Writes a key whose condition was judged by what was read under a document of this generation, or a later one.
async fn write_judged(
    call: &CommandCall<'_>,
    key: Bytes,
    order: WriteOrder,
    under: Generation,
) -> Result<(), Failure> {
    let entry = (StampEntry::Exclusive, Some(under));
    call.front.write_judged(call.store, (key, order), &RequestOptions::default(), entry).await.map(|_| ())
}

/// Reads a key, lets `decide` see what a plain client sees, and writes what it returns with the context of the read;
/// `Err` is an answer without a write.
pub(super) async fn read_then_write(
    call: &CommandCall<'_>,
    key: Bytes,
    decide: impl Fn(Option<(&Version, &Bytes)>) -> Result<(WriteOrder, DoorReply), DoorReply>,
) -> Result<DoorReply, DoorReply> {
    for attempt in 0..ATTEMPTS_MAX {
        let under = call.front.generation();
        let got = read_with(call, key.clone(), &call.front.judging(attempt).await).await?;
        let (mut order, reply) = decide(seen(&got, call.front.now())?)?;
        order.context = Some(got.set.context());
        if order.condition == Condition::None {
            order.condition = Condition::IfCurrent;
        }
        match write_judged(call, key.clone(), order, under).await {
            Ok(()) => return Ok(reply),
            Err(failure) if lost_a_race(&failure) => {}
            Err(failure) => return Err(DoorReply::failure(&failure)),
        }
    }
    Err(DoorReply::failure(&contended()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_includes_both_ends_and_negative_ones_count_from_the_end() {
        let cut =
            |start, end| String::from_utf8(range(&Bytes::from("0123456789"), start, end).to_vec()).unwrap();
        for (start, end, expected) in [
            (0, 3, "0123"),
            (-3, -1, "789"),
            (0, -1, "0123456789"),
            (8, 100, "89"),
            (5, 4, ""),
            (-1, -3, ""),
            (-100, 1, "01"),
            (-100, -100, "0"),
            (10, 20, ""),
            (i64::MIN, i64::MAX, "0123456789"),
            (i64::MAX, i64::MIN, ""),
        ] {
            assert_eq!(cut(start, end), expected, "{start} {end}");
        }
        assert_eq!(range(&Bytes::new(), 0, -1), Bytes::new());
    }

    #[test]
    fn a_failure_in_doubt_is_reported_before_one_that_certainly_changed_nothing() {
        let told = |codes: &[ErrorCode]| {
            let failures = codes.iter().enumerate().map(|(n, &code)| Failure::new(code, n.to_string()));
            least_certain(failures).map(|failure| failure.detail)
        };
        use ErrorCode::{DiskFull, Indeterminate, InsufficientReplicas, StorageFailed};
        assert_eq!(told(&[]), None);
        assert_eq!(told(&[InsufficientReplicas, DiskFull]).as_deref(), Some("0"));
        assert_eq!(
            told(&[InsufficientReplicas, Indeterminate, DiskFull, StorageFailed]).as_deref(),
            Some("1")
        );
    }
}
