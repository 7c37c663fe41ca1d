//! Our own commands: versions, contexts and siblings.
//!
//! - `TONTINE.GET key` answers `[context, value...]`: an opaque context and every concurrent value.
//! - `TONTINE.PUT key context value [EX s | PX ms]` replaces exactly what the context covers; an empty context
//!   replaces nothing, so the value becomes a sibling of whatever is there. Answers the new context.
//! - `TONTINE.DELETE key context` deletes exactly what the context covers. Answers the new context.
//! - `TONTINE.SIBLINGS key` answers for each concurrent version its dot, timestamp, expiry and value.

use bytes::{Bytes, BytesMut};
use model::{Context, Value};
use wire::messages::{Condition, RequestOptions};
use wire::versions::{decode_context, encode_context};

use super::super::arguments::SetOptions;
use super::super::reply::Reply;
use super::Call;
use super::strings::read;
use crate::front::Entry;
use crate::stores::WriteOrder;

/// A context as clients carry it.
fn token(context: &Context) -> Reply {
    let mut bytes = BytesMut::new();
    encode_context(context, &mut bytes);
    Reply::Bulk(bytes.freeze())
}

fn parse_context(argument: &Bytes) -> Result<Context, Reply> {
    if argument.is_empty() {
        return Ok(Context::default());
    }
    decode_context(argument)
        .map_err(|_| Reply::err("the context is not one that TONTINE.GET or TONTINE.PUT answered"))
}

pub(super) async fn get(call: &Call<'_>) -> Result<Reply, Reply> {
    let got = read(call, call.bytes(1)).await?;
    let now = call.front.now();
    let mut answer = vec![token(&got.set.context())];
    answer.extend(got.set.live(now).filter_map(|version| version.live(now).cloned()).map(Reply::Bulk));
    Ok(Reply::Array(answer))
}

pub(super) async fn siblings(call: &Call<'_>) -> Result<Reply, Reply> {
    let got = read(call, call.bytes(1)).await?;
    let now = call.front.now();
    let versions = got.set.versions().iter().map(|version| {
        let value = version.live(now).map_or(Reply::Null, |bytes| Reply::Bulk(bytes.clone()));
        let expires = version.expires.map_or(Reply::Null, |at| Reply::Integer(at.0 as i64));
        Reply::Map(vec![
            (Reply::text("dot"), Reply::text(version.dot.to_string())),
            (Reply::text("written_ms"), Reply::Integer(version.timestamp.wall().0 as i64)),
            (Reply::text("expires_ms"), expires),
            (Reply::text("value"), value),
        ])
    });
    Ok(Reply::Array(versions.collect()))
}

pub(super) async fn put(call: &Call<'_>) -> Result<Reply, Reply> {
    let options = SetOptions::parse(&call.rest(4))?;
    let plain = SetOptions { expiry: options.expiry, ..SetOptions::default() };
    if options != plain {
        return Err(Reply::syntax());
    }
    let now = call.front.now();
    let expires = options.expiry.map(|expiry| expiry.strictly_later(now, "tontine.put")).transpose()?;
    write(call, Value::Present(call.bytes(3)), expires).await
}

pub(super) async fn delete(call: &Call<'_>) -> Result<Reply, Reply> {
    write(call, Value::Tombstone, None).await
}

async fn write(call: &Call<'_>, value: Value, expires: Option<model::WallMillis>) -> Result<Reply, Reply> {
    let context = parse_context(&call.bytes(2))?;
    let order = WriteOrder { context: Some(context), condition: Condition::None, expires, value };
    let options = RequestOptions::default();
    match call.front.write(call.store, call.bytes(1), order, &options, Entry::Client).await {
        Ok(written) => Ok(token(&written.context)),
        Err(failure) => Err(Reply::failure(&failure)),
    }
}
