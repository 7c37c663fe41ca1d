//! SCAN, KEYS, DBSIZE and RANDOMKEY: commands about the keys that there are.
//!
//! A cursor is a position in the token space and nothing else. So any node takes a cursor of any other, none is ever
//! forgotten, and an abandoned walk costs nothing.

use std::time::Duration;

use bytes::Bytes;

use super::super::arguments::integer;
use super::super::glob;
use super::super::reply::DoorReply;
use super::CommandCall;
use crate::front::{MULTI_ANSWER_BYTES_MAX, Position, StretchLimit};

/// Keys that a SCAN looks at without COUNT, as in Redis.
const COUNT_DEFAULT: i64 = 10;
/// Keys that one SCAN looks at, whatever COUNT says.
const COUNT_MAX: i64 = 10_000;
/// Partitions that one SCAN reads at most, so that it ends soon where there is little to find.
const SCAN_PARTITIONS_MAX: usize = 64;
/// Keys that KEYS looks at before it refuses.
const KEYS_LOOKED_AT_MAX: usize = 100_000;
/// How long KEYS may take before it refuses.
const KEYS_TIME_MAX: Duration = Duration::from_secs(5);
/// Keys that KEYS reads at once.
const KEYS_AT_ONCE: usize = 5_000;
/// Keys of which RANDOMKEY takes one.
const RANDOM_KEYS: usize = 16;

/// The options of SCAN.
struct ScanOptions {
    pattern: Option<Bytes>,
    count: i64,
    /// Whether strings are meant.
    strings: bool,
}

impl ScanOptions {
    fn parse(arguments: &[Bytes]) -> Result<ScanOptions, DoorReply> {
        let mut options = ScanOptions { pattern: None, count: COUNT_DEFAULT, strings: true };
        for pair in arguments.chunks(2) {
            let [name, value] = pair else { return Err(DoorReply::syntax()) };
            match name.to_ascii_uppercase().as_slice() {
                b"MATCH" => options.pattern = Some(value.clone()),
                b"COUNT" => options.count = integer(value)?,
                b"TYPE" => options.strings = value.eq_ignore_ascii_case(b"string"),
                _ => return Err(DoorReply::syntax()),
            }
        }
        if options.count < 1 {
            return Err(DoorReply::syntax());
        }
        Ok(options)
    }

    fn takes(&self, key: &[u8]) -> bool {
        self.strings && self.pattern.as_ref().is_none_or(|pattern| glob::matches(pattern, key))
    }
}

pub(super) async fn scan(call: &CommandCall<'_>) -> Result<DoorReply, DoorReply> {
    let from = cursor(&call.bytes(1)).ok_or_else(|| DoorReply::err("invalid cursor"))?;
    let options = ScanOptions::parse(&call.rest(2))?;
    let keys_min = options.count.min(COUNT_MAX) as usize;
    let limit = StretchLimit { keys_min, partitions_max: SCAN_PARTITIONS_MAX };
    let stretch = call.front.stretch(call.store, from, limit).await;
    let stretch = stretch.map_err(|failure| DoorReply::failure(&failure))?;
    let keys = stretch.keys.into_iter().filter(|met| met.is_live && options.takes(&met.key));
    let next = stretch.next.unwrap_or(Position::START);
    Ok(DoorReply::Array(vec![
        DoorReply::text(next.number().to_string()),
        DoorReply::Array(keys.map(|met| DoorReply::Bulk(met.key)).collect()),
    ]))
}

fn cursor(argument: &[u8]) -> Option<Position> {
    std::str::from_utf8(argument).ok()?.parse().ok().and_then(Position::new)
}

pub(super) async fn keys(call: &CommandCall<'_>) -> Result<DoorReply, DoorReply> {
    let (pattern, began) = (call.bytes(1), call.front.clock().now());
    let limit = StretchLimit { keys_min: KEYS_AT_ONCE, partitions_max: usize::MAX };
    let (mut found, mut looked_at, mut bytes) = (Vec::new(), 0, 0);
    let mut next = Some(Position::START);
    while let Some(from) = next {
        let stretch = call.front.stretch(call.store, from, limit).await;
        let stretch = stretch.map_err(|failure| DoorReply::failure(&failure))?;
        looked_at += stretch.keys.len();
        for met in stretch.keys {
            if met.is_live && glob::matches(&pattern, &met.key) {
                bytes += met.key.len();
                found.push(DoorReply::Bulk(met.key));
            }
        }
        let too_long = call.front.clock().now().since(began) > KEYS_TIME_MAX;
        let too_many = looked_at > KEYS_LOOKED_AT_MAX || bytes > MULTI_ANSWER_BYTES_MAX;
        next = stretch.next;
        if too_many || (too_long && next.is_some()) {
            return Err(too_much_for_keys());
        }
    }
    Ok(DoorReply::Array(found))
}

fn too_much_for_keys() -> DoorReply {
    let (seconds, mib) = (KEYS_TIME_MAX.as_secs(), MULTI_ANSWER_BYTES_MAX >> 20);
    DoorReply::err(format!(
        "too-many-keys: KEYS looks at {KEYS_LOOKED_AT_MAX} keys, takes {seconds} s and answers {mib} MiB at most, and \
         this store has more. Use SCAN with MATCH, which hands the keys out page by page"
    ))
}

/// The keys of the whole cluster: what is known of them, or the keys that this node holds, scaled up when it holds a part.
pub(super) async fn dbsize(call: &CommandCall<'_>) -> Result<DoorReply, DoorReply> {
    let census = call.front.census(call.store).await.map_err(|failure| DoorReply::failure(&failure))?;
    if census.share <= 0.0 {
        return Err(DoorReply::err("this node holds no part of the store; ask another node for DBSIZE"));
    }
    let scaled = (census.keys as f64 / census.share).round() as u64;
    Ok(DoorReply::Integer(census.keys_everywhere.unwrap_or(scaled) as i64))
}

/// One of the keys behind a random position: not each with exactly the same probability, but each with some.
pub(super) async fn randomkey(call: &CommandCall<'_>) -> Result<DoorReply, DoorReply> {
    let limit = StretchLimit { keys_min: RANDOM_KEYS, partitions_max: SCAN_PARTITIONS_MAX };
    let mut from = Position::at_random(call.front.random());
    let mut came_round = false;
    loop {
        let stretch = call.front.stretch(call.store, from, limit).await;
        let stretch = stretch.map_err(|failure| DoorReply::failure(&failure))?;
        let live: Vec<Bytes> =
            stretch.keys.into_iter().filter(|met| met.is_live).map(|met| met.key).collect();
        if !live.is_empty() {
            let chosen = call.front.random() % live.len() as u64;
            return Ok(DoorReply::Bulk(live[chosen as usize].clone()));
        }
        from = match stretch.next {
            Some(next) => next,
            // Everything has been looked at.
            None if came_round => return Ok(DoorReply::Null),
            None => {
                came_round = true;
                Position::START
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<ScanOptions, DoorReply> {
        let words = text.split_whitespace().map(|word| Bytes::copy_from_slice(word.as_bytes()));
        ScanOptions::parse(&words.collect::<Vec<_>>())
    }

    #[test]
    fn options_of_scan_are_those_of_redis() {
        let options = parse("match a* count 5 type STRING").unwrap();
        assert!(options.takes(b"ab") && !options.takes(b"ba") && options.count == 5);
        assert!(!parse("TYPE list").unwrap().takes(b"ab"));
        for refused in ["MATCH", "COUNT 0", "COUNT -1", "COUNT", "BOGUS 1"] {
            assert_eq!(parse(refused).err(), Some(DoorReply::syntax()), "{refused}");
        }
        assert!(parse("COUNT ten").is_err());
    }

    #[test]
    fn a_cursor_is_a_decimal_number_that_a_node_has_handed_out() {
        assert_eq!(cursor(b"0"), Some(Position::START));
        assert_eq!(cursor(b"9007199254740991").map(Position::number), Some((1 << 53) - 1));
        for wrong in ["9007199254740992", "18446744073709551616", "-1", "", "abc", "0x1"] {
            assert_eq!(cursor(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
