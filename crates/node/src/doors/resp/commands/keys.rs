//! DEL, UNLINK and EXISTS.

use model::Value;
use wire::error::ErrorCode;
use wire::messages::{Condition, RequestOptions};

use super::super::reply::Reply;
use super::Call;
use super::strings::read_then_write;
use crate::stores::WriteOrder;

/// Counts the keys that exist; one named twice counts twice, as in Redis.
pub(super) async fn exists(call: &Call<'_>) -> Result<Reply, Reply> {
    let mut keys = call.rest(1);
    let mut found = 0;
    while !keys.is_empty() {
        let results = call.front.multi_get(call.store, keys.clone(), &RequestOptions::default()).await;
        let now = call.front.now();
        let mut rest = Vec::new();
        for (key, result) in keys.into_iter().zip(results.map_err(|failure| Reply::failure(&failure))?) {
            match result {
                Ok(got) => {
                    found += i64::from(got.set.winner().is_some_and(|winner| winner.live(now).is_some()))
                }
                // The values, which nobody wants here, filled the answer: the rest is asked for without them.
                Err(failure) if failure.code == ErrorCode::FrameTooLong => rest.push(key),
                Err(failure) => return Err(Reply::failure(&failure)),
            }
        }
        keys = rest;
    }
    Ok(Reply::Integer(found))
}

/// Deletes keys and counts those that existed. A key that does not exist is not written.
pub(super) async fn del(call: &Call<'_>) -> Result<Reply, Reply> {
    let mut deleted = 0;
    for key in call.rest(1) {
        let reply = read_then_write(call, key, |old| match old {
            None => Err(Reply::Integer(0)),
            Some(_) => {
                let order = WriteOrder {
                    context: None,
                    condition: Condition::None,
                    expires: None,
                    value: Value::Tombstone,
                };
                Ok((order, Reply::Integer(1)))
            }
        });
        match reply.await {
            Ok(Reply::Integer(count)) | Err(Reply::Integer(count)) => deleted += count,
            Ok(other) | Err(other) => return Err(other),
        }
    }
    Ok(Reply::Integer(deleted))
}
