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
use super::super::reply::DoorReply;
use super::CommandCall;
use super::strings::read;
use crate::front::StampEntry;
use crate::stores::WriteOrder;

/// A context as clients carry it.
fn token(context: &Context) -> DoorReply {
    let mut bytes = BytesMut::new();
    encode_context(context, &mut bytes);
    DoorReply::Bulk(bytes.freeze())
}

/// A context as a client hands it back: the bytes as they came, or the same in hexadecimal, as the command line shows
/// them and people paste them.
fn parse_context(argument: &Bytes) -> Result<Context, DoorReply> {
    if argument.is_empty() {
        return Ok(Context::default());
    }
    let pasted = unhex(argument).and_then(|bytes| decode_context(&bytes).ok());
    pasted.or_else(|| decode_context(argument).ok()).ok_or_else(|| {
        DoorReply::err(
            "the context is invalid: pass one from TONTINE.GET or TONTINE.PUT unchanged, as bytes or in hexadecimal",
        )
    })
}

/// The bytes that hexadecimal digits stand for.
fn unhex(digits: &[u8]) -> Option<Bytes> {
    let digit = |digit: &u8| char::from(*digit).to_digit(16);
    let pairs = digits.chunks(2).map(|pair| match pair {
        [high, low] => Some((digit(high)? << 4 | digit(low)?) as u8),
        _ => None,
    });
    pairs.collect()
}

pub(super) async fn get(call: &CommandCall<'_>) -> Result<DoorReply, DoorReply> {
    let got = read(call, call.bytes(1)).await?;
    let now = call.front.now();
    let mut answer = vec![token(&got.set.context())];
    answer.extend(got.set.live(now).filter_map(|version| version.live(now).cloned()).map(DoorReply::Bulk));
    Ok(DoorReply::Array(answer))
}

pub(super) async fn siblings(call: &CommandCall<'_>) -> Result<DoorReply, DoorReply> {
    let got = read(call, call.bytes(1)).await?;
    let now = call.front.now();
    let versions = got.set.versions().iter().map(|version| {
        let value = version.live(now).map_or(DoorReply::Null, |bytes| DoorReply::Bulk(bytes.clone()));
        let expires = version.expires.map_or(DoorReply::Null, |at| DoorReply::Integer(at.0 as i64));
        DoorReply::Map(vec![
            (DoorReply::text("dot"), DoorReply::text(version.dot.to_string())),
            (DoorReply::text("written_ms"), DoorReply::Integer(version.timestamp.wall().0 as i64)),
            (DoorReply::text("expires_ms"), expires),
            (DoorReply::text("value"), value),
        ])
    });
    Ok(DoorReply::Array(versions.collect()))
}

pub(super) async fn put(call: &CommandCall<'_>) -> Result<DoorReply, DoorReply> {
    let options = SetOptions::parse(&call.rest(4))?;
    let plain = SetOptions { expiry: options.expiry, ..SetOptions::default() };
    if options != plain {
        return Err(DoorReply::syntax());
    }
    let now = call.front.now();
    let expires = options.expiry.map(|expiry| expiry.strictly_later(now, "tontine.put")).transpose()?;
    write(call, Value::Present(call.bytes(3)), expires).await
}

pub(super) async fn delete(call: &CommandCall<'_>) -> Result<DoorReply, DoorReply> {
    write(call, Value::Tombstone, None).await
}

async fn write(
    call: &CommandCall<'_>,
    value: Value,
    expires: Option<model::WallMillis>,
) -> Result<DoorReply, DoorReply> {
    let context = parse_context(&call.bytes(2))?;
    let order = WriteOrder { context: Some(context), condition: Condition::None, expires, value };
    let options = RequestOptions::default();
    match call.front.write(call.store, call.bytes(1), order, &options, StampEntry::Client).await {
        Ok(written) => Ok(token(&written.context)),
        Err(failure) => Err(DoorReply::failure(&failure)),
    }
}

#[cfg(test)]
mod tests {
    use model::{Actor, Dot, NodeId, Vector};

    use super::*;

    #[test]
    fn a_context_is_taken_as_bytes_and_in_hexadecimal() {
        let actor = Actor { node: NodeId(3), incarnation: 48, birth: 97 };
        let mut vector = Vector::default();
        vector.see(Dot { actor, count: 0x3030 });
        let context = Context { vector, ..Context::default() };
        let DoorReply::Bulk(bytes) = token(&context) else { panic!("a context is a value") };
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        for form in [bytes.clone(), hex.clone().into(), hex.to_uppercase().into()] {
            assert_eq!(parse_context(&form), Ok(context.clone()), "{form:?}");
        }
        for wrong in ["zz", "0", &hex[1..], "nonsense"] {
            assert!(parse_context(&Bytes::copy_from_slice(wrong.as_bytes())).is_err(), "{wrong}");
        }
    }
}
