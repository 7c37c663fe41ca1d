//! Requests whose quorum this node drives, for clients that ask one node for all of it.

use bytes::Bytes;
use model::{Key, Value};
use wire::error::ErrorCode;
use wire::messages::{Delete, DeleteEntry, Failure, MultiGot, MultiWritten, Put, Request, Response};

use crate::front::{Front, StampEntry};
use crate::stores::WriteOrder;

/// Carries out a request whose quorum this node drives.
pub(super) async fn coordinate(
    front: &Front,
    request: Request,
    entry: StampEntry,
) -> Result<Response, Failure> {
    match request {
        Request::Get(get) => {
            check_key(&get.key)?;
            Ok(Response::Got(front.get(&get.store, get.key, &get.options).await?))
        }
        Request::Put(put) => {
            check_key(&put.key)?;
            let Put { store, generation, options, key, context, expires, condition, value } = put;
            let order = WriteOrder { context, condition, expires, value: Value::Present(value) };
            let entry = (entry, generation);
            Ok(Response::Written(front.write_if(&store, key, order, &options, entry).await?))
        }
        Request::Delete(delete) => {
            check_key(&delete.key)?;
            let Delete { store, generation, options, key, context, condition } = delete;
            let order = WriteOrder { context, condition, expires: None, value: Value::Tombstone };
            let entry = (entry, generation);
            Ok(Response::Written(front.write_if(&store, key, order, &options, entry).await?))
        }
        Request::MultiGet(get) => {
            get.keys.iter().try_for_each(check_key)?;
            let results = front.multi_get(&get.store, get.keys, &get.options).await?;
            let results = results.into_iter().map(|result| result.map(|got| got.set)).collect();
            Ok(Response::MultiGot(MultiGot { results }))
        }
        Request::MultiPut(put) => {
            put.entries.iter().try_for_each(|entry| check_key(&entry.key))?;
            let orders = put.entries.into_iter().map(|entry| {
                let (context, condition, expires) = (entry.context, entry.condition, entry.expires);
                (entry.key, WriteOrder { context, condition, expires, value: Value::Present(entry.value) })
            });
            let results = front.multi_write_if(&put.store, orders.collect(), &put.options, entry).await?;
            Ok(Response::MultiWritten(MultiWritten { results }))
        }
        Request::MultiDelete(delete) => {
            delete.entries.iter().try_for_each(|entry| check_key(&entry.key))?;
            let orders = delete.entries.into_iter().map(|DeleteEntry { key, context, condition }| {
                (key, WriteOrder { context, condition, expires: None, value: Value::Tombstone })
            });
            let results =
                front.multi_write_if(&delete.store, orders.collect(), &delete.options, entry).await?;
            Ok(Response::MultiWritten(MultiWritten { results }))
        }
        other => Err(Failure::new(ErrorCode::UnknownRequest, format!("{} is not coordinated", other.name()))),
    }
}

fn check_key(key: &Bytes) -> Result<(), Failure> {
    Key::check(key).map_err(|error| {
        let code = if key.is_empty() { ErrorCode::KeyEmpty } else { ErrorCode::KeyTooLong };
        Failure::new(code, error.to_string())
    })
}
