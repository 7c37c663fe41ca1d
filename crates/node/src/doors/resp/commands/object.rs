//! TYPE and OBJECT: what a key holds, as far as that means something here.

use super::super::reply::DoorReply;
use super::CommandCall;
use super::strings::{read, seen};

/// Longest value that Redis keeps in one piece with its header.
const EMBEDDED_BYTES_MAX: usize = 44;

/// Every value is a string.
pub(super) async fn type_of(call: &CommandCall<'_>) -> Result<DoorReply, DoorReply> {
    let got = read(call, call.bytes(1)).await?;
    let there = seen(&got, call.front.now())?.is_some();
    Ok(DoorReply::Simple(if there { "string" } else { "none" }))
}

pub(super) async fn object(call: &CommandCall<'_>) -> Result<DoorReply, DoorReply> {
    let sub = call.bytes(1).to_ascii_lowercase();
    match (sub.as_slice(), call.command.len()) {
        (b"encoding", 3) => {
            let got = read(call, call.bytes(2)).await?;
            let value = seen(&got, call.front.now())?;
            Ok(value.map_or(DoorReply::Null, |(_, value)| DoorReply::text(encoding(value))))
        }
        (b"encoding", _) => Err(DoorReply::arity("object|encoding")),
        _ => {
            let shown = String::from_utf8_lossy(&call.bytes(1)).into_owned();
            Err(DoorReply::err(format!(
                "unknown subcommand '{shown}': values have no reference count, idle time or frequency here. Use \
                 OBJECT ENCODING."
            )))
        }
    }
}

/// The name of the form in which Redis would keep a value.
fn encoding(value: &[u8]) -> &'static str {
    let number = std::str::from_utf8(value).ok().and_then(|text| text.parse::<i64>().ok());
    match number {
        // What Redis writes back in other bytes is no number to it: `+1`, `01`, `-0`.
        Some(number) if number.to_string().as_bytes() == value => "int",
        _ if value.len() <= EMBEDDED_BYTES_MAX => "embstr",
        _ => "raw",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encoding_is_the_one_that_redis_would_choose() {
        for (value, expected) in [
            ("12", "int"),
            ("-9223372036854775808", "int"),
            ("9223372036854775808", "embstr"),
            ("+1", "embstr"),
            ("01", "embstr"),
            ("-0", "embstr"),
            ("", "embstr"),
            (&"x".repeat(44), "embstr"),
            (&"x".repeat(45), "raw"),
        ] {
            assert_eq!(encoding(value.as_bytes()), expected, "{value}");
        }
    }
}
