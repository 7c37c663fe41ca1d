//! DEL, UNLINK, EXISTS and TOUCH.

use std::collections::BTreeSet;

use bytes::Bytes;
use model::limits::MULTI_KEYS_MAX;
use wire::error::ErrorCode;
use wire::messages::{Condition, Failure, Got, RequestOptions};

use super::super::reply::Reply;
use super::Call;
use super::strings::{
    ATTEMPTS_MAX, contended, least_certain, lost_a_race, options_of, read_then_write, shown, tombstone,
};
use crate::front::Entry;
use crate::stores::WriteOrder;

/// What was found of some keys.
struct Found {
    /// The keys that exist, each with what was read of it.
    live: Vec<(Bytes, Got)>,
    /// Keys of which nothing is known yet, because the values of those before them filled the answer.
    unread: Vec<Bytes>,
}

/// Counts the keys that exist; one named twice counts twice, as in Redis.
pub(super) async fn exists(call: &Call<'_>) -> Result<Reply, Reply> {
    let mut keys = call.rest(1);
    let mut count = 0;
    while !keys.is_empty() {
        let found = find(call, keys, &RequestOptions::default()).await?;
        count += found.live.len() as i64;
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

/// Deletes keys and counts those that existed, one named twice once. A key that does not exist is not written.
pub(super) async fn del(call: &Call<'_>) -> Result<Reply, Reply> {
    let mut keys = call.rest(1);
    if let [key] = &keys[..] {
        return delete_one(call, key.clone()).await;
    }
    let mut named = BTreeSet::new();
    keys.retain(|key| named.insert(key.clone()));
    let mut deleted = 0;
    for keys in keys.chunks(MULTI_KEYS_MAX) {
        deleted += delete_many(call, keys.to_vec()).await?;
    }
    Ok(Reply::Integer(deleted))
}

async fn delete_one(call: &Call<'_>, key: Bytes) -> Result<Reply, Reply> {
    let reply = read_then_write(call, key, |old| match old {
        None => Err(Reply::Integer(0)),
        Some(_) => Ok((tombstone(), Reply::Integer(1))),
    });
    match reply.await {
        Ok(reply) | Err(reply @ Reply::Integer(_)) => Ok(reply),
        Err(refusal) => Err(refusal),
    }
}

/// Reads all keys at once and deletes at once those that exist; those that somebody has changed in between again.
async fn delete_many(call: &Call<'_>, mut keys: Vec<Bytes>) -> Result<i64, Reply> {
    let (mut deleted, mut races) = (0, 0);
    while !keys.is_empty() {
        let options = options_of(call, races).await;
        let Found { live, unread } = find(call, keys, &options).await?;
        let order = |got: &Got| WriteOrder {
            context: Some(got.set.context()),
            condition: Condition::IfCurrent,
            ..tombstone()
        };
        let entries = live.iter().map(|(key, got)| (key.clone(), order(got))).collect();
        let options = RequestOptions::default();
        let results = call.front.multi_write(call.store, entries, &options, Entry::Exclusive).await;
        let (mut raced, mut failures) = (Vec::new(), Vec::new());
        for ((key, _), result) in live.into_iter().zip(results.map_err(refused)?) {
            match result {
                Ok(_) => deleted += 1,
                Err(failure) if lost_a_race(&failure) => raced.push(key),
                Err(failure) => failures.push(failure),
            }
        }
        if let Some(failure) = least_certain(failures.into_iter()) {
            return Err(Reply::failure(&failure));
        }
        races += usize::from(!raced.is_empty());
        if races == ATTEMPTS_MAX {
            return Err(contended());
        }
        keys = unread;
        keys.extend(raced);
    }
    Ok(deleted)
}

/// Reads keys, as many of them as fill one answer.
async fn find(call: &Call<'_>, keys: Vec<Bytes>, options: &RequestOptions) -> Result<Found, Reply> {
    let results = call.front.multi_get(call.store, keys.clone(), options).await;
    let now = call.front.now();
    let (mut found, mut read, mut too_long) = (Found { live: Vec::new(), unread: Vec::new() }, 0, None);
    for (key, result) in keys.into_iter().zip(results.map_err(refused)?) {
        match result {
            Ok(got) => {
                read += 1;
                if shown(&got, now).is_some() {
                    found.live.push((key, got));
                }
            }
            Err(failure) if failure.code == ErrorCode::FrameTooLong => {
                found.unread.push(key);
                too_long = Some(failure);
            }
            Err(failure) => return Err(refused(failure)),
        }
    }
    match too_long {
        // What no answer can hold cannot be read by asking again.
        Some(failure) if read == 0 => Err(refused(failure)),
        _ => Ok(found),
    }
}

fn refused(failure: Failure) -> Reply {
    Reply::failure(&failure)
}
