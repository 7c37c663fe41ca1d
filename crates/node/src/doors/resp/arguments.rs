//! Reading a command's arguments.

use bytes::Bytes;
use model::WallMillis;

use super::reply::DoorReply;

/// A whole number in the one form that Redis takes (neither `010` nor `+10` nor `-0`), in its own error form.
pub(super) fn integer(argument: &Bytes) -> Result<i64, DoorReply> {
    wire::resp::integer(argument).ok_or_else(|| DoorReply::err("value is not an integer or out of range"))
}

/// When a key expires, as a command says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expiry {
    /// Seconds from now.
    Seconds(i64),
    /// Milliseconds from now.
    Millis(i64),
    /// Seconds since the epoch.
    AtSeconds(i64),
    /// Milliseconds since the epoch.
    AtMillis(i64),
}

impl Expiry {
    /// The point in time; `None` when it is out of range. It may lie in the past.
    pub(super) fn at(self, now: WallMillis) -> Option<WallMillis> {
        let now = i64::try_from(now.0).ok()?;
        let at = match self {
            Expiry::Seconds(seconds) => seconds.checked_mul(1000)?.checked_add(now)?,
            Expiry::Millis(millis) => millis.checked_add(now)?,
            Expiry::AtSeconds(seconds) => seconds.checked_mul(1000)?,
            Expiry::AtMillis(millis) => millis,
        };
        Some(WallMillis(u64::try_from(at.max(0)).expect("not negative")))
    }

    /// The point in time for a command that refuses zero and negative spans.
    pub(super) fn strictly_later(self, now: WallMillis, command: &str) -> Result<WallMillis, DoorReply> {
        let (Expiry::Seconds(span) | Expiry::Millis(span) | Expiry::AtSeconds(span) | Expiry::AtMillis(span)) =
            self;
        match self.at(now) {
            Some(at) if span > 0 => Ok(at),
            _ => Err(DoorReply::err(format!("invalid expire time in '{command}' command"))),
        }
    }
}

/// When a SET shall happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum When {
    /// Always.
    #[default]
    Always,
    /// NX.
    Absent,
    /// XX.
    Present,
}

/// The options of SET.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SetOptions {
    pub(super) when: When,
    pub(super) expiry: Option<Expiry>,
    pub(super) keep_ttl: bool,
    pub(super) get: bool,
}

impl SetOptions {
    /// Parses what follows the value.
    pub(super) fn parse(arguments: &[Bytes]) -> Result<SetOptions, DoorReply> {
        let mut options = SetOptions::default();
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            let mut expiry = |rest: &mut std::slice::Iter<'_, Bytes>, make: fn(i64) -> Expiry| {
                if options.expiry.is_some() || options.keep_ttl {
                    return Err(DoorReply::syntax());
                }
                let span = integer(rest.next().ok_or_else(DoorReply::syntax)?)?;
                options.expiry = Some(make(span));
                Ok(())
            };
            match argument.to_ascii_uppercase().as_slice() {
                b"EX" => expiry(&mut rest, Expiry::Seconds)?,
                b"PX" => expiry(&mut rest, Expiry::Millis)?,
                b"EXAT" => expiry(&mut rest, Expiry::AtSeconds)?,
                b"PXAT" => expiry(&mut rest, Expiry::AtMillis)?,
                b"KEEPTTL" if options.expiry.is_none() => options.keep_ttl = true,
                b"GET" => options.get = true,
                b"NX" if options.when != When::Present => options.when = When::Absent,
                b"XX" if options.when != When::Absent => options.when = When::Present,
                _ => return Err(DoorReply::syntax()),
            }
        }
        Ok(options)
    }
}

/// The option of GETEX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lifetime {
    /// EX, PX, EXAT or PXAT.
    For(Expiry),
    /// PERSIST.
    Ever,
}

impl Lifetime {
    /// Parses what follows the key; `None` without an option.
    pub(super) fn parse(arguments: &[Bytes]) -> Result<Option<Lifetime>, DoorReply> {
        match arguments {
            [] => Ok(None),
            [persist] if persist.eq_ignore_ascii_case(b"PERSIST") => Ok(Some(Lifetime::Ever)),
            [unit, span] => {
                let make = match unit.to_ascii_uppercase().as_slice() {
                    b"EX" => Expiry::Seconds,
                    b"PX" => Expiry::Millis,
                    b"EXAT" => Expiry::AtSeconds,
                    b"PXAT" => Expiry::AtMillis,
                    _ => return Err(DoorReply::syntax()),
                };
                Ok(Some(Lifetime::For(make(integer(span)?))))
            }
            _ => Err(DoorReply::syntax()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<SetOptions, DoorReply> {
        let arguments: Vec<Bytes> =
            text.split_whitespace().map(|word| Bytes::copy_from_slice(word.as_bytes())).collect();
        SetOptions::parse(&arguments)
    }

    #[test]
    fn options_of_set_combine_as_in_redis() {
        let options = parse("nx px 1500 get").unwrap();
        assert_eq!(options.expiry, Some(Expiry::Millis(1500)));
        assert!(options.get && options.when == When::Absent && !options.keep_ttl);
        for refused in ["NX XX", "EX 1 PX 2", "KEEPTTL EX 5", "EX 5 KEEPTTL", "EX", "BOGUS"] {
            assert_eq!(parse(refused), Err(DoorReply::syntax()), "{refused}");
        }
        assert_eq!(parse("EX ten"), Err(DoorReply::err("value is not an integer or out of range")));
    }

    #[test]
    fn getex_takes_one_option() {
        let parse = |text: &str| {
            let words = text.split_whitespace().map(|word| Bytes::copy_from_slice(word.as_bytes()));
            Lifetime::parse(&words.collect::<Vec<_>>())
        };
        assert_eq!(parse(""), Ok(None));
        assert_eq!(parse("persist"), Ok(Some(Lifetime::Ever)));
        assert_eq!(parse("pxat 5"), Ok(Some(Lifetime::For(Expiry::AtMillis(5)))));
        for refused in ["EX", "PERSIST EX", "EX 5 PERSIST", "NX", "KEEPTTL", "EX 5 PX 5"] {
            assert_eq!(parse(refused), Err(DoorReply::syntax()), "{refused}");
        }
    }

    #[test]
    fn numbers_have_one_form() {
        for (text, number) in [("10", 10), ("0", 0), ("-1", -1)] {
            assert_eq!(integer(&Bytes::from(text)), Ok(number));
        }
        for text in ["010", "+10", "-0", " 10", "10 ", "", "1e3", "9223372036854775808"] {
            assert!(integer(&Bytes::from(text)).is_err(), "{text}");
        }
    }

    #[test]
    fn an_expiry_that_overflows_is_rejected() {
        assert_eq!(Expiry::Seconds(i64::MAX).at(WallMillis(1)), None);
        assert_eq!(Expiry::Seconds(2).at(WallMillis(1_000)), Some(WallMillis(3_000)));
        assert!(Expiry::Seconds(0).strictly_later(WallMillis(5), "set").is_err());
    }
}
