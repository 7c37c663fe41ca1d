//! EXPIRE, TTL, PERSIST, GETEX and their kin.

use bytes::Bytes;
use model::WallMillis;
use wire::messages::Condition;

use super::super::arguments::{Expiry, Lifetime, integer};
use super::super::reply::DoorReply;
use super::strings::{get, overwrite, read, read_then_write, seen, tombstone};
use super::{CommandCall, Kind};
use crate::stores::WriteOrder;

/// EXPIRE's and its kin's condition on the expiry that the key has.
#[derive(Clone, Copy, Debug, Default)]
struct Only {
    if_none: bool,
    if_some: bool,
    if_greater: bool,
    if_less: bool,
}

impl Only {
    fn parse(call: &CommandCall<'_>) -> Result<Only, DoorReply> {
        let mut only = Only::default();
        for argument in call.rest(3) {
            match argument.to_ascii_uppercase().as_slice() {
                b"NX" => only.if_none = true,
                b"XX" => only.if_some = true,
                b"GT" => only.if_greater = true,
                b"LT" => only.if_less = true,
                _ => {
                    let shown = String::from_utf8_lossy(&argument).into_owned();
                    return Err(DoorReply::err(format!("Unsupported option {shown}")));
                }
            }
        }
        if only.if_none && (only.if_some || only.if_greater || only.if_less) {
            return Err(DoorReply::err("NX and XX, GT or LT options at the same time are not compatible"));
        }
        if only.if_greater && only.if_less {
            return Err(DoorReply::err("GT and LT options at the same time are not compatible"));
        }
        Ok(only)
    }

    /// Whether the new expiry may replace the old; no expiry counts as infinitely late.
    fn allows(self, old: Option<WallMillis>, new: WallMillis) -> bool {
        (!self.if_none || old.is_none())
            && (!self.if_some || old.is_some())
            && (!self.if_greater || old.is_some_and(|old| new > old))
            && (!self.if_less || old.is_none_or(|old| new < old))
    }
}

/// The value that is there, with another expiry: a put that did not see it wins.
fn touch(value: Bytes, expires: Option<WallMillis>) -> WriteOrder {
    WriteOrder { condition: Condition::Touch, ..overwrite(value, expires) }
}

/// The value that is there until `at`; what is over already is deleted.
fn until(value: Bytes, at: WallMillis, now: WallMillis) -> WriteOrder {
    if at <= now { tombstone() } else { touch(value, Some(at)) }
}

pub(super) async fn expire(call: &CommandCall<'_>) -> Result<DoorReply, DoorReply> {
    let span = integer(&call.bytes(2))?;
    let expiry = match call.kind {
        Kind::Expire => Expiry::Seconds(span),
        Kind::Pexpire => Expiry::Millis(span),
        Kind::Expireat => Expiry::AtSeconds(span),
        _ => Expiry::AtMillis(span),
    };
    let only = Only::parse(call)?;
    let now = call.front.now();
    let at = expiry
        .at(now)
        .ok_or_else(|| DoorReply::err(format!("invalid expire time in '{}' command", call.kind.name())))?;
    let answer = read_then_write(call, call.bytes(1), |old| {
        let Some((version, value)) = old else { return Err(DoorReply::Integer(0)) };
        if !only.allows(version.expires, at) {
            return Err(DoorReply::Integer(0));
        }
        Ok((until(value.clone(), at, now), DoorReply::Integer(1)))
    });
    answer.await
}

pub(super) async fn persist(call: &CommandCall<'_>) -> Result<DoorReply, DoorReply> {
    let answer = read_then_write(call, call.bytes(1), |old| match old {
        Some((version, value)) if version.expires.is_some() => {
            Ok((touch(value.clone(), None), DoorReply::Integer(1)))
        }
        _ => Err(DoorReply::Integer(0)),
    });
    answer.await
}

/// Answers the value, and lets it expire at another time or never. Without an option it is a GET.
pub(super) async fn getex(call: &CommandCall<'_>) -> Result<DoorReply, DoorReply> {
    let Some(lifetime) = Lifetime::parse(&call.rest(2))? else { return get(call).await };
    let now = call.front.now();
    let at = match lifetime {
        Lifetime::For(expiry) => Some(expiry.strictly_later(now, "getex")?),
        Lifetime::Ever => None,
    };
    let answer = read_then_write(call, call.bytes(1), |old| {
        let Some((version, value)) = old else { return Err(DoorReply::Null) };
        let reply = DoorReply::Bulk(value.clone());
        match at {
            None if version.expires.is_none() => Err(reply),
            None => Ok((touch(value.clone(), None), reply)),
            Some(at) => Ok((until(value.clone(), at, now), reply)),
        }
    });
    match answer.await {
        Ok(reply) | Err(reply @ (DoorReply::Bulk(_) | DoorReply::Null)) => Ok(reply),
        Err(refusal) => Err(refusal),
    }
}

/// What is left, or when it is over: -2 when the key does not exist, -1 when it does not expire.
pub(super) async fn ttl(call: &CommandCall<'_>) -> Result<DoorReply, DoorReply> {
    let got = read(call, call.bytes(1)).await?;
    let now = call.front.now();
    let Some((version, _)) = seen(&got, now)? else { return Ok(DoorReply::Integer(-2)) };
    let Some(expires) = version.expires else { return Ok(DoorReply::Integer(-1)) };
    let millis = |millis: u64| i64::try_from(millis).unwrap_or(i64::MAX);
    let left = millis(expires.0.saturating_sub(now.0));
    let seconds = |millis: i64| millis.saturating_add(500) / 1000;
    Ok(DoorReply::Integer(match call.kind {
        Kind::Ttl => seconds(left),
        Kind::Pttl => left,
        Kind::Expiretime => seconds(millis(expires.0)),
        _ => millis(expires.0),
    }))
}
