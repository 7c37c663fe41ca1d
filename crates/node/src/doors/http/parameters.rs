//! What follows the `?`.

use bytes::Bytes;
use model::WallMillis;
use runtime::http::path::query;
use wire::messages::RequestOptions;

use super::HttpCall;
use super::answer::HttpAnswer;
use super::refused::malformed;

/// Longest time of a request in milliseconds: as long as a connection may be silent at most proxies.
const TIMEOUT_MS_MAX: u64 = 60_000;

/// Longest wait for something new in milliseconds, as by the native protocol.
const WAIT_MS_MAX: u64 = 30_000;

/// Greatest number of a place, an order or a plan: what every client can carry, JavaScript's numbers included.
pub(super) const NUMBER_MAX: u64 = (1 << 53) - 1;

/// Most entries of a list.
const LIMIT_MAX: u64 = 10_000;

/// The units of a span of time, with their milliseconds.
const UNITS: [(&str, u64); 5] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// A parameter, for those who read what can be asked.
pub(super) struct Parameter {
    pub(super) name: &'static str,
    /// Which values it takes: a JSON schema.
    pub(super) schema: &'static str,
    pub(super) meaning: &'static str,
}

macro_rules! parameters {
    ($($name:literal $schema:literal $meaning:literal;)*) => {
        /// All of them.
        pub(super) const PARAMETERS: &[Parameter] =
            &[$(Parameter { name: $name, schema: $schema, meaning: $meaning },)*];
    };
}

parameters! {
    "r" r#"{"type":"integer","minimum":1,"maximum":255}"#
        "How many replicas must have answered a get, in place of the store's R.";
    "w" r#"{"type":"integer","minimum":1,"maximum":255}"#
        "How many must have acknowledged a write, in place of the store's W.";
    "timeout" r#"{"type":"string","pattern":"^([1-9][0-9]{0,3}ms|[1-5]?[1-9]s|[1-6]0s|[1-5]?[1-9]|[1-6]0)$"}"#
        "How long the node tries: 1ms to 60s.";
    "ttl" r#"{"type":"string","pattern":"^[1-9][0-9]{0,8}(ms|s|m|h|d)?$"}"#
        "How long the value lives.";
    "after" r#"{"type":"integer","minimum":0,"maximum":9007199254740991}"#
        "Behind which place a list goes on: what the page before it said.";
    "prefix" r#"{"type":"string","maxLength":4096}"#
        "With which bytes listed keys begin, percent-encoded.";
    "limit" r#"{"type":"integer","minimum":1,"maximum":10000}"#
        "How many are listed at most.";
    "values" r#"{"type":"boolean"}"#
        "Whether values are listed with their keys.";
    "wait" r#"{"type":"string","pattern":"^([0-9]{1,4}ms|[12]?[0-9]s|30s|[12]?[0-9]|30)$"}"#
        "How long to wait for something new: 0 to 30s.";
    "run" r#"{"type":"integer","minimum":0,"maximum":18446744073709551615}"#
        "Of which start of the node the events behind after are.";
    "since" r#"{"type":"integer","minimum":0,"maximum":9007199254740991}"#
        "Which version of a plan's state is known: a wait ends with another one.";
    "store" r#"{"type":"string","maxLength":64}"#
        "Only of this store.";
    "partition" r#"{"type":"integer","minimum":0,"maximum":4294967295}"#
        "Only of this partition.";
}

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
    /// Behind which place a list goes on.
    pub(super) after: Option<u64>,
    /// With which bytes listed keys begin.
    pub(super) prefix: Bytes,
    /// Most entries of a list.
    pub(super) limit: Option<u32>,
    /// Whether values are listed with their keys.
    pub(super) values: bool,
    /// How long to wait for something new, in milliseconds.
    pub(super) wait_ms: Option<u32>,
    /// Of which start of the node `after` is.
    pub(super) run: Option<u64>,
    /// Which state is known.
    pub(super) since: u64,
    /// Only of this store.
    pub(super) store: Option<String>,
    /// Only of this partition.
    pub(super) partition: Option<u32>,
}

impl Parameters {
    /// Those of a request to a store with this many replicas. A name that its route does not take is refused: a slip of
    /// the pen would otherwise write for ever what should expire.
    pub(super) fn of(call: &HttpCall<'_>, replicas: u8) -> Result<Parameters, HttpAnswer> {
        let text = call.head.uri.query().unwrap_or_default();
        Parameters::parse(text, call.found.route.parameters, replicas).map_err(malformed)
    }

    /// Those of a request about no store.
    pub(super) fn of_none(call: &HttpCall<'_>) -> Result<Parameters, HttpAnswer> {
        Parameters::of(call, 0)
    }

    fn parse(text: &str, taken: &[&'static str], replicas: u8) -> Result<Parameters, String> {
        let (mut parameters, mut seen) = (Parameters::default(), Vec::new());
        for (name, value) in query(text).map_err(|error| error.to_string())? {
            let shown = name.escape_ascii();
            if seen.contains(&name) {
                return Err(format!("the parameter {shown} is given twice"));
            }
            match taken.iter().find(|taken| taken.as_bytes() == name) {
                Some(known) => parameters.set(known, &value, replicas)?,
                None if taken.is_empty() => return Err("this path takes no parameters".to_owned()),
                None => {
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

    fn set(&mut self, name: &str, value: &Bytes, replicas: u8) -> Result<(), String> {
        match name {
            "r" => self.reads_required = Some(count(value, replicas)?),
            "w" => self.writes_required = Some(count(value, replicas)?),
            "timeout" => {
                let millis = span(value).filter(|millis| (1..=TIMEOUT_MS_MAX).contains(millis));
                let millis = millis.ok_or("timeout takes 1ms to 60s, such as 500ms")?;
                self.timeout_ms = u32::try_from(millis).unwrap_or(u32::MAX);
            }
            "wait" => {
                let millis = span(value).filter(|&millis| millis <= WAIT_MS_MAX);
                let millis = millis.ok_or("wait takes 0 to 30s, such as 500ms")?;
                self.wait_ms = Some(u32::try_from(millis).unwrap_or(u32::MAX));
            }
            "ttl" => self.ttl_ms = Some(ttl(value)?),
            "after" => self.after = Some(place(value).ok_or("after takes what the page before it said")?),
            "run" => self.run = Some(number(value).ok_or("run takes what the page before it said")?),
            "since" => self.since = place(value).ok_or("since takes the version of an earlier answer")?,
            "prefix" => self.prefix = value.clone(),
            "limit" => {
                let limit = number(value).filter(|limit| (1..=LIMIT_MAX).contains(limit));
                let limit = limit.ok_or_else(|| format!("limit takes 1 to {LIMIT_MAX}"))?;
                self.limit = Some(u32::try_from(limit).unwrap_or(u32::MAX));
            }
            "values" => {
                self.values = match &value[..] {
                    b"true" => true,
                    b"false" => false,
                    _ => return Err("values takes true or false".to_owned()),
                };
            }
            "store" => self.store = Some(String::from_utf8_lossy(value).into_owned()),
            "partition" => {
                let partition = number(value).and_then(|number| u32::try_from(number).ok());
                self.partition = Some(partition.ok_or("partition takes the number of a partition")?);
            }
            name => unreachable!("no route takes a parameter {name}"),
        }
        Ok(())
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
    pub(super) fn expires(&self, now: WallMillis) -> Result<Option<WallMillis>, HttpAnswer> {
        self.ttl_ms.map(|ttl| expiry(ttl, now)).transpose().map_err(malformed)
    }
}

/// When a value expires that lives this many milliseconds.
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
    let count = number(value).and_then(|count| u8::try_from(count).ok());
    count
        .filter(|count| (1..=replicas).contains(count))
        .ok_or_else(|| format!("r and w take 1 to {replicas}, the replicas of the store"))
}

/// A number in digits.
fn number(value: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(value).ok()?;
    text.parse().ok().filter(|_| text.bytes().all(|digit| digit.is_ascii_digit()))
}

/// A number that counts something, and says where to go on.
pub(super) fn place(value: &[u8]) -> Option<u64> {
    number(value).filter(|&number| number <= NUMBER_MAX)
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
    use crate::doors::http::routes::TABLE;

    #[test]
    fn routes_take_exactly_the_parameters_that_are_described() {
        let taken: std::collections::BTreeSet<&str> =
            TABLE.iter().flat_map(|route| route.parameters.iter().copied()).collect();
        let described: std::collections::BTreeSet<&str> =
            PARAMETERS.iter().map(|parameter| parameter.name).collect();
        assert_eq!(taken, described);
        for parameter in PARAMETERS {
            assert!(
                serde_json::from_str::<serde_json::Value>(parameter.schema).is_ok(),
                "{}",
                parameter.name
            );
        }
    }

    #[test]
    fn a_list_takes_a_position_a_length_and_a_wait() {
        let taken = ["after", "prefix", "limit", "values", "wait", "run", "since", "store", "partition"];
        let listed = |text: &str| Parameters::parse(text, &taken, 0);
        let all =
            listed("after=7&prefix=a%ff&limit=10000&values=true&wait=30s&run=8&since=9&store=s&partition=4");
        let expected = Parameters {
            after: Some(7),
            prefix: Bytes::from_static(b"a\xff"),
            limit: Some(10_000),
            values: true,
            wait_ms: Some(30_000),
            run: Some(8),
            since: 9,
            store: Some("s".to_owned()),
            partition: Some(4),
            ..Parameters::default()
        };
        assert_eq!(all, Ok(expected));
        for wrong in [
            "after=",
            "after=a",
            "after=-1",
            "after=9007199254740992",
            "since=9007199254740992",
            "limit=0",
            "limit=10001",
            "values=",
            "values=1",
            "wait=31s",
            "wait=-1s",
            "since=x",
            "partition=4294967296",
            "r=1",
        ] {
            assert!(listed(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn each_parameter_is_accepted_once_and_only_on_its_routes() {
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
