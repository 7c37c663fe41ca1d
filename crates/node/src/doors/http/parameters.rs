//! What stands behind the `?`.

use bytes::Bytes;
use model::WallMillis;
use runtime::http::path::query;
use wire::messages::RequestOptions;

use super::Call;
use super::answer::Answer;
use super::refused::malformed;

/// Longest time of a request in milliseconds: as long as a connection may be silent at most proxies.
const TIMEOUT_MS_MAX: u64 = 60_000;

/// The units of a span of time, with their milliseconds.
const UNITS: [(&str, u64); 5] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// The parameters of one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Parameters {
    /// Replicas that must answer a get, in place of the store's number.
    reads_required: Option<u8>,
    /// Replicas that must acknowledge a write, in place of the store's number.
    writes_required: Option<u8>,
    /// How long the caller waits, in milliseconds; 0 leaves it to the node.
    timeout_ms: u32,
    /// How long the value lives, in milliseconds.
    ttl_ms: Option<u64>,
}

impl Parameters {
    /// Those of a request to a store with so many replicas. A name that its route does not take is refused: a slip of the
    /// pen would otherwise write for ever what should expire.
    pub(super) fn of(call: &Call<'_>, replicas: u8) -> Result<Parameters, Answer> {
        let text = call.head.uri.query().unwrap_or_default();
        Parameters::parse(text, call.found.route.parameters, replicas).map_err(malformed)
    }

    fn parse(text: &str, taken: &[&str], replicas: u8) -> Result<Parameters, String> {
        let (mut parameters, mut seen) = (Parameters::default(), Vec::new());
        for (name, value) in query(text).map_err(|error| error.to_string())? {
            let shown = name.escape_ascii();
            if seen.contains(&name) {
                return Err(format!("the parameter {shown} stands there twice"));
            }
            match taken.iter().find(|taken| taken.as_bytes() == name) {
                Some(&"r") => parameters.reads_required = Some(count(&value, replicas)?),
                Some(&"w") => parameters.writes_required = Some(count(&value, replicas)?),
                Some(&"timeout") => {
                    let millis = span(&value).filter(|millis| (1..=TIMEOUT_MS_MAX).contains(millis));
                    let millis = millis.ok_or("timeout takes 1ms to 60s, such as 500ms")?;
                    parameters.timeout_ms = u32::try_from(millis).unwrap_or(u32::MAX);
                }
                Some(&"ttl") => parameters.ttl_ms = Some(ttl(&value)?),
                _ if taken.is_empty() => return Err("this path takes no parameters".to_owned()),
                _ => {
                    return Err(format!(
                        "there is no parameter {shown} here; there are {}",
                        taken.join(", ")
                    ));
                }
            }
            seen.push(name);
        }
        Ok(parameters)
    }

    /// How gets are driven.
    pub(super) fn to_read(&self) -> RequestOptions {
        self.options(self.reads_required)
    }

    /// How writes are driven.
    pub(super) fn to_write(&self) -> RequestOptions {
        self.options(self.writes_required)
    }

    fn options(&self, required: Option<u8>) -> RequestOptions {
        RequestOptions { required, deadline_ms: self.timeout_ms, ..RequestOptions::default() }
    }

    /// When the value expires.
    pub(super) fn expires(&self, now: WallMillis) -> Result<Option<WallMillis>, Answer> {
        self.ttl_ms.map(|ttl| expiry(ttl, now)).transpose().map_err(malformed)
    }
}

/// When a value expires that lives so many milliseconds.
pub(super) fn expiry(ttl_ms: u64, now: WallMillis) -> Result<WallMillis, &'static str> {
    let at = now.0.checked_add(ttl_ms).filter(|&at| i64::try_from(at).is_ok());
    at.map(WallMillis).ok_or("ttl is too long")
}

/// How long a value lives, in milliseconds.
pub(super) fn ttl(text: &[u8]) -> Result<u64, &'static str> {
    span(text).filter(|&millis| millis > 0).ok_or("ttl takes a time above 0, such as 30s, 10m or 7d")
}

/// A number of replicas.
fn count(value: &Bytes, replicas: u8) -> Result<u8, String> {
    let digits =
        std::str::from_utf8(value).ok().filter(|text| text.bytes().all(|digit| digit.is_ascii_digit()));
    let count = digits.and_then(|digits| digits.parse().ok());
    count
        .filter(|count| (1..=replicas).contains(count))
        .ok_or_else(|| format!("r and w take 1 to {replicas}, the replicas of the store"))
}

/// A span of time in milliseconds; a number without a unit counts seconds.
fn span(value: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(value).ok()?;
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let millis = match unit {
        "" => 1_000,
        unit => UNITS.iter().find(|(name, _)| *name == unit)?.1,
    };
    number.parse::<u64>().ok()?.checked_mul(millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_parameter_is_read_once_and_only_where_it_is_taken() {
        let parse = |text: &str| Parameters::parse(text, &["w", "timeout", "ttl"], 3);
        assert_eq!(parse(""), Ok(Parameters::default()));
        assert_eq!(
            parse("w=2&timeout=250ms&ttl=90"),
            Ok(Parameters {
                writes_required: Some(2),
                timeout_ms: 250,
                ttl_ms: Some(90_000),
                ..Parameters::default()
            })
        );
        assert_eq!(parse("ttl=%31d").unwrap().ttl_ms, Some(86_400_000));
        for wrong in [
            "r=1",
            "W=1",
            "w=0",
            "w=4",
            "w=",
            "w=+1",
            "w=1&w=1",
            "timeout=0",
            "timeout=61s",
            "timeout=-1",
            "timeout=1.5s",
            "ttl=0",
            "ttl=1w",
            "ttl=s",
            "ttl=",
            "ttl=99999999999999999999",
            "ttl=18446744073709551615d",
            "w=%",
            "x",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert!(Parameters::parse("r=1", &[], 3).is_err() && Parameters::parse("", &[], 3).is_ok());
    }
}
