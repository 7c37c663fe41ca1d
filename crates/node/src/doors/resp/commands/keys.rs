//! DEL, UNLINK, EXISTS and TOUCH.

use std::collections::BTreeSet;

use bytes::Bytes;
use model::limits::MULTI_KEYS_MAX;
use wire::error::{ErrorCode, Outcome};
use wire::messages::{Condition, Failure, Got, RequestOptions, Written};

use super::super::reply::DoorReply;
use super::CommandCall;
use super::strings::{all_known, least_certain, seen, shown, tombstone};
use crate::front::{ATTEMPTS_MAX, Front, StampEntry, lost_a_race};
use crate::stores::WriteOrder;

/// What was found of some keys.
struct KeysFound {
    /// How many exist.
    live: usize,
    /// Keys of which nothing is known yet, because the values of those before them filled the answer.
    unread: Vec<Bytes>,
}

/// Counts the keys that exist; one named twice counts twice, as in Redis.
pub(super) async fn exists(call: &CommandCall<'_>) -> Result<DoorReply, DoorReply> {
    let mut keys = call.rest(1);
    let mut count = 0;
    while !keys.is_empty() {
        let found = find(call, keys).await?;
        count += found.live as i64;
        if !found.unread.is_empty() && call.front.is_read_only(call.store) {
            // The rest could be of another artifact.
            return Err(DoorReply::Error(format!(
                "ERR the values of the keys fill the limit of an answer with {} keys left; name fewer keys",
                found.unread.len()
            )));
        }
        keys = found.unread;
    }
    Ok(DoorReply::Integer(count))
}

/// Deletes keys and counts those that existed, one named twice once. A key that R replicas say is absent is not written.
pub(super) async fn del(call: &CommandCall<'_>) -> Result<DoorReply, DoorReply> {
    let mut keys = call.rest(1);
    let mut named = BTreeSet::new();
    keys.retain(|key| named.insert(key.clone()));
    let (mut deleted, mut failures) = (0, Vec::new());
    for keys in keys.chunks(MULTI_KEYS_MAX) {
        let deliver = &mut |_, answer| match answer {
            Ok(existed) => deleted += i64::from(existed),
            Err(failure) => failures.push(failure),
        };
        delete_each(call.front, call.store, keys, deliver).await.map_err(refused)?;
        if let Some(failure) = least_certain(failures.drain(..)) {
            return Err(DoorReply::failure(&failure));
        }
    }
    Ok(DoorReply::Integer(deleted))
}

/// Deletes keys, and hands to `deliver` whether each of them existed, with its position, as soon as it is known; each key
/// is delivered once.
///
/// Of two clients that delete a key one has deleted it, as long as its replicas answer: each deletes what it has read, and
/// reads again where another writer came in between. And this is as available as a put: a key whose absence R replicas
/// have not established, or that no replica can judge, gets a tombstone all the same, and counts as one that existed.
///
/// # Errors
/// As a whole only when the store is not known; what was not delivered by then is not deleted.
pub(in super::super) async fn delete_each(
    front: &Front,
    store: &str,
    keys: &[Bytes],
    deliver: &mut (dyn FnMut(usize, Result<bool, Failure>) + Send),
) -> Result<(), Failure> {
    let mut left: Vec<usize> = (0..keys.len()).collect();
    let mut races = 0;
    while !left.is_empty() {
        let judging = front.judging(races).await;
        let options = RequestOptions { preferred: judging.preferred, ..front.glancing() };
        let Looked { found, mut unseen, unread } =
            look(front, store, keys, std::mem::take(&mut left), &options, deliver).await?;
        let (seen, contended): (Vec<_>, Vec<_>) = found.into_iter().partition(|_| races < ATTEMPTS_MAX);
        unseen.extend(contended.into_iter().map(|(position, _)| position));
        left = unread;
        if !seen.is_empty() {
            let (positions, orders): (Vec<usize>, Vec<_>) = seen.into_iter().unzip();
            let results = write_each(front, store, keys, &positions, orders, StampEntry::Exclusive).await?;
            let before = left.len();
            for (position, result) in positions.into_iter().zip(results) {
                match result {
                    Err(failure) if lost_a_race(&failure) => left.push(position),
                    // No replica stamps it, so nothing is left to judge.
                    Err(failure) if failure.code.outcome() == Outcome::Failed => unseen.push(position),
                    result => deliver(position, result.map(|_| true)),
                }
            }
            races += usize::from(left.len() > before);
        }
        if !unseen.is_empty() {
            let orders = unseen.iter().map(|_| tombstone()).collect();
            let results = write_each(front, store, keys, &unseen, orders, StampEntry::Client).await?;
            unseen.into_iter().zip(results).for_each(|(at, result)| deliver(at, result.map(|_| true)));
        }
    }
    Ok(())
}

/// What became of looking at keys that shall be deleted; those that R replicas call absent were delivered.
#[derive(Default)]
struct Looked {
    /// The positions of keys that exist, each with how it is deleted.
    found: Vec<(usize, WriteOrder)>,
    /// Of keys that exist or may.
    unseen: Vec<usize>,
    /// Of keys for which the answer had no room.
    unread: Vec<usize>,
}

async fn look(
    front: &Front,
    store: &str,
    keys: &[Bytes],
    positions: Vec<usize>,
    options: &RequestOptions,
    deliver: &mut (dyn FnMut(usize, Result<bool, Failure>) + Send),
) -> Result<Looked, Failure> {
    let mut looked = Looked::default();
    let mut take = |position: usize, answer: Result<Got, Failure>| match answer {
        Ok(got) => match shown(&got, front.now()) {
            Ok(None) => deliver(position, Ok(false)),
            _ => {
                let (context, condition) = (Some(got.set.context()), Condition::IfCurrent);
                looked.found.push((position, WriteOrder { context, condition, ..tombstone() }));
            }
        },
        Err(failure) if failure.code == ErrorCode::FrameTooLong => looked.unread.push(position),
        Err(_) => looked.unseen.push(position),
    };
    if let [position] = positions[..] {
        take(position, front.get(store, keys[position].clone(), options).await);
    } else {
        let names = positions.iter().map(|&position| keys[position].clone()).collect();
        let each = &mut |index: usize, answer| take(positions[index], answer);
        front.multi_get_each(store, names, options, each).await?;
    }
    if looked.unread.len() == positions.len() {
        // What no answer can hold is there.
        looked.unseen = std::mem::take(&mut looked.unread);
    }
    Ok(looked)
}

/// Writes the keys at these positions.
async fn write_each(
    front: &Front,
    store: &str,
    keys: &[Bytes],
    positions: &[usize],
    mut orders: Vec<WriteOrder>,
    entry: StampEntry,
) -> Result<Vec<Result<Written, Failure>>, Failure> {
    let options = RequestOptions::default();
    if let ([position], Some(order)) = (positions, orders.pop_if(|_| positions.len() == 1)) {
        return Ok(vec![front.write(store, keys[*position].clone(), order, &options, entry).await]);
    }
    let entries = positions.iter().map(|&position| keys[position].clone()).zip(orders).collect();
    front.multi_write(store, entries, &options, entry).await
}

/// Reads keys, as many of them as fill one answer.
async fn find(call: &CommandCall<'_>, keys: Vec<Bytes>) -> Result<KeysFound, DoorReply> {
    let results = call.front.multi_get(call.store, keys.clone(), &RequestOptions::default()).await;
    let now = call.front.now();
    let is_too_long = |result: &Result<Got, Failure>| matches!(result, Err(failure) if failure.code == ErrorCode::FrameTooLong);
    let (too_long, read): (Vec<_>, Vec<_>) =
        keys.into_iter().zip(results.map_err(refused)?).partition(|(_, result)| is_too_long(result));
    // What no answer can hold cannot be read by asking again.
    if let ([(_, Err(failure)), ..], true) = (&too_long[..], read.is_empty()) {
        return Err(DoorReply::failure(failure));
    }
    let found = all_known(read.into_iter().map(|(_, result)| result).collect())?;
    let mut live = 0;
    for got in &found {
        live += usize::from(seen(got, now)?.is_some());
    }
    Ok(KeysFound { live, unread: too_long.into_iter().map(|(key, _)| key).collect() })
}

fn refused(failure: Failure) -> DoorReply {
    DoorReply::failure(&failure)
}
