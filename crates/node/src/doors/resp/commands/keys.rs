//! DEL, UNLINK, EXISTS and TOUCH.

use std::collections::BTreeSet;

use bytes::Bytes;
use model::limits::MULTI_KEYS_MAX;
use wire::error::ErrorCode;
use wire::messages::{Failure, Got, RequestOptions};

use super::super::reply::Reply;
use super::Call;
use super::strings::{all_known, least_certain, shown, tombstone};
use crate::front::{Entry, Front, lost_a_race};
use crate::stores::WriteOrder;

/// What was found of some keys.
struct Found {
    /// How many exist.
    live: usize,
    /// Keys of which nothing is known yet, because the values of those before them filled the answer.
    unread: Vec<Bytes>,
}

/// Counts the keys that exist; one named twice counts twice, as in Redis.
pub(super) async fn exists(call: &Call<'_>) -> Result<Reply, Reply> {
    let mut keys = call.rest(1);
    let mut count = 0;
    while !keys.is_empty() {
        let found = find(call, keys).await?;
        count += found.live as i64;
        if !found.unread.is_empty() && call.front.is_read_only(call.store) {
            // The rest could be of another artifact.
            return Err(Reply::Error(format!(
                "ERR the values of the keys fill the limit of an answer with {} keys left; name fewer keys",
                found.unread.len()
            )));
        }
        keys = found.unread;
    }
    Ok(Reply::Integer(count))
}

/// Deletes keys and counts those that existed, one named twice once. A key that R replicas say is absent is not written.
pub(super) async fn del(call: &Call<'_>) -> Result<Reply, Reply> {
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
            return Err(Reply::failure(&failure));
        }
    }
    Ok(Reply::Integer(deleted))
}

/// Deletes keys, and hands to `deliver` whether each of them existed, with its position, as soon as it is known; each key
/// is delivered once.
///
/// This is as available as a put: a key whose absence R replicas have not established gets a tombstone and counts as one
/// that existed.
///
/// # Errors
/// As a whole only when the store is not known; what was not delivered by then is not deleted.
pub(in super::super) async fn delete_each(
    front: &Front,
    store: &str,
    keys: &[Bytes],
    deliver: &mut (dyn FnMut(usize, Result<bool, Failure>) + Send),
) -> Result<(), Failure> {
    if let [key] = keys {
        let read = front.get(store, key.clone(), &front.glancing()).await;
        match deletion(front, read) {
            None => deliver(0, Ok(false)),
            Some(order) => delete_found(front, store, keys, vec![(0, order)], deliver).await?,
        }
        return Ok(());
    }
    let mut unread: Vec<usize> = (0..keys.len()).collect();
    while !unread.is_empty() {
        let asked = std::mem::take(&mut unread);
        let names = asked.iter().map(|&position| keys[position].clone()).collect();
        let mut orders = Vec::new();
        let read = &mut |index: usize, answer: Result<Got, Failure>| {
            let position = asked[index];
            match answer {
                Err(failure) if failure.code == ErrorCode::FrameTooLong => unread.push(position),
                answer => match deletion(front, answer) {
                    None => deliver(position, Ok(false)),
                    Some(order) => orders.push((position, order)),
                },
            }
        };
        front.multi_get_each(store, names, &front.glancing(), read).await?;
        if unread.len() == asked.len() {
            // What no answer can hold is there.
            orders.extend(unread.drain(..).map(|position| (position, tombstone())));
        }
        delete_found(front, store, keys, orders, deliver).await?;
    }
    Ok(())
}

/// How a key is deleted of which this was read; `None` for one that R replicas say is absent. What was read goes; of a
/// key that could not be read, what its stamper knows.
fn deletion(front: &Front, read: Result<Got, Failure>) -> Option<WriteOrder> {
    match read {
        Ok(got) => {
            shown(&got, front.now())?;
            Some(WriteOrder { context: Some(got.set.context()), ..tombstone() })
        }
        Err(_) => Some(tombstone()),
    }
}

/// Writes tombstones. Where the stamper knows of something newer than was read, the key is deleted with that.
async fn delete_found(
    front: &Front,
    store: &str,
    keys: &[Bytes],
    mut orders: Vec<(usize, WriteOrder)>,
    deliver: &mut (dyn FnMut(usize, Result<bool, Failure>) + Send),
) -> Result<(), Failure> {
    while !orders.is_empty() {
        let written: Vec<(usize, bool)> =
            orders.iter().map(|(position, order)| (*position, order.context.is_some())).collect();
        let entries = orders.drain(..).map(|(position, order)| (keys[position].clone(), order)).collect();
        let options = RequestOptions::default();
        let results = front.multi_write(store, entries, &options, Entry::Client).await?;
        for ((position, had_read), result) in written.into_iter().zip(results) {
            match result {
                Err(failure) if had_read && lost_a_race(&failure) => orders.push((position, tombstone())),
                result => deliver(position, result.map(|_| true)),
            }
        }
    }
    Ok(())
}

/// Reads keys, as many of them as fill one answer.
async fn find(call: &Call<'_>, keys: Vec<Bytes>) -> Result<Found, Reply> {
    let results = call.front.multi_get(call.store, keys.clone(), &RequestOptions::default()).await;
    let now = call.front.now();
    let is_too_long = |result: &Result<Got, Failure>| matches!(result, Err(failure) if failure.code == ErrorCode::FrameTooLong);
    let (too_long, read): (Vec<_>, Vec<_>) =
        keys.into_iter().zip(results.map_err(refused)?).partition(|(_, result)| is_too_long(result));
    // What no answer can hold cannot be read by asking again.
    if let ([(_, Err(failure)), ..], true) = (&too_long[..], read.is_empty()) {
        return Err(Reply::failure(failure));
    }
    let found = all_known(read.into_iter().map(|(_, result)| result).collect())?;
    let live = found.iter().filter(|got| shown(got, now).is_some()).count();
    Ok(Found { live, unread: too_long.into_iter().map(|(key, _)| key).collect() })
}

fn refused(failure: Failure) -> Reply {
    Reply::failure(&failure)
}
