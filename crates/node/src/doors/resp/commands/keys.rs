//! DEL, UNLINK and EXISTS.

use model::Value;
use wire::messages::{Condition, RequestOptions};

use super::super::reply::Reply;
use super::Call;
use super::strings::read_then_write;
use crate::stores::WriteOrder;

/// Counts the keys that exist; one named twice counts twice, as in Redis.
pub(super) async fn exists(call: &Call<'_>) -> Result<Reply, Reply> {
    let results = call.front.multi_get(call.store, call.rest(1), &RequestOptions::default()).await;
    let now = call.front.now();
    let mut found = 0;
    for result in results.map_err(|failure| Reply::failure(&failure))? {
        let set = result.map_err(|failure| Reply::failure(&failure))?;
        found += i64::from(set.winner().is_some_and(|winner| winner.live(now).is_some()));
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
