//! What became of one key among many, as JSON: what a request about that key alone would be answered.
//!
//! ```text
//!   { "key": "a", "status": 200, "value": "hello", "context": "AQGF…" }
//! ```
//!
//! Must never: say of a write that it failed which may have happened.

use model::Context;
use runtime::http::StatusCode;
use runtime::http::base64::prelude::{BASE64_STANDARD, Engine as _};
use serde_json::{Map, Value as Json, json};
use wire::error::ErrorCode;
use wire::messages::Failure;

use super::answer::{error, not_found, status};
use super::preconditions::letters;
use super::store_facts::Shown;

/// What became of a key.
pub(super) enum KeyOutcome {
    /// It was read. It may be absent.
    Read { shown: Shown, sloppy: bool },
    /// It was written.
    Written { context: Context, sloppy: bool },
    /// Neither; or it is not known whether it was written.
    Refused(Failure),
}

/// How much is told.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Telling {
    /// All.
    Whole,
    /// As little as says what happened: there is no room for values and contexts.
    Brief,
}

impl KeyOutcome {
    /// The outcome of a key, for the other end.
    pub(super) fn told(&self, key: &[u8], telling: Telling) -> Json {
        let mut line = Map::new();
        put_bytes(&mut line, "key", key);
        match (self, telling) {
            (KeyOutcome::Read { .. }, Telling::Brief) => {
                let detail = "this node has no room for the answer now; ask for fewer keys, or later";
                tell_refusal(&mut line, &Failure::new(ErrorCode::Overloaded, detail), Telling::Whole);
            }
            (KeyOutcome::Read { shown, sloppy }, Telling::Whole) => tell_read(&mut line, shown, *sloppy),
            (KeyOutcome::Written { context, sloppy }, _) => {
                line.insert("status".to_owned(), StatusCode::NO_CONTENT.as_u16().into());
                if telling == Telling::Whole {
                    tell_context(&mut line, context);
                }
                tell_sloppy(&mut line, *sloppy);
            }
            (KeyOutcome::Refused(failure), _) => tell_refusal(&mut line, failure, telling),
        }
        Json::Object(line)
    }
}

fn tell_read(line: &mut Map<String, Json>, shown: &Shown, sloppy: bool) {
    let status = match shown.values.len() {
        0 => StatusCode::NOT_FOUND,
        1 => StatusCode::OK,
        _ => StatusCode::MULTIPLE_CHOICES,
    };
    line.insert("status".to_owned(), status.as_u16().into());
    match &shown.values[..] {
        [] => {
            line.insert("error".to_owned(), not_found());
        }
        [value] => put_bytes(line, "value", value),
        values => {
            let values: Vec<String> = values.iter().map(|value| BASE64_STANDARD.encode(value)).collect();
            line.insert("values64".to_owned(), json!(values));
        }
    }
    tell_context(line, &shown.context);
    tell_sloppy(line, sloppy);
}

fn tell_context(line: &mut Map<String, Json>, context: &Context) {
    if *context != Context::default() {
        line.insert("context".to_owned(), letters(context).into());
    }
}

fn tell_sloppy(line: &mut Map<String, Json>, sloppy: bool) {
    if sloppy {
        line.insert("sloppy".to_owned(), true.into());
    }
}

fn tell_refusal(line: &mut Map<String, Json>, failure: &Failure, telling: Telling) {
    let status = status(failure.code);
    let mut told = error(status, failure);
    if telling == Telling::Brief {
        told["message"] = failure.code.description().into();
    }
    line.insert("status".to_owned(), status.as_u16().into());
    line.insert("error".to_owned(), told);
}

/// Bytes under a name: as they are where they are text, and else in base 64 under the name with 64 behind it.
pub(super) fn put_bytes(line: &mut Map<String, Json>, name: &str, bytes: &[u8]) {
    // A control character is six letters in JSON, so a value of zeros would grow by six.
    let is_shown =
        |text: &&str| !text.chars().any(|letter| letter.is_control() && !"\t\n\r".contains(letter));
    match std::str::from_utf8(bytes).ok().filter(is_shown) {
        Some(text) => line.insert(name.to_owned(), text.into()),
        None => line.insert(format!("{name}64"), BASE64_STANDARD.encode(bytes).into()),
    };
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn read(values: &[&'static [u8]]) -> KeyOutcome {
        let values = values.iter().map(|value| Bytes::from_static(value)).collect();
        KeyOutcome::Read { shown: Shown { values, context: Context::default() }, sloppy: false }
    }

    fn told(outcome: &KeyOutcome) -> String {
        outcome.told(b"k", Telling::Whole).to_string()
    }

    #[test]
    fn a_value_is_text_or_base_64_and_siblings_are_a_list() {
        assert_eq!(told(&read(&[b"a\n\xc3\xa4"])), "{\"key\":\"k\",\"status\":200,\"value\":\"a\\n\u{e4}\"}");
        assert_eq!(told(&read(&[b"\0"])), r#"{"key":"k","status":200,"value64":"AA=="}"#);
        assert_eq!(told(&read(&[b"\xff"])), r#"{"key":"k","status":200,"value64":"/w=="}"#);
        assert_eq!(told(&read(&[b"a", b"b"])), r#"{"key":"k","status":300,"values64":["YQ==","Yg=="]}"#);
        let absent = read(&[]).told(b"\xff", Telling::Whole);
        assert_eq!((&absent["status"], &absent["error"]["kind"]), (&404.into(), &"not-found".into()));
        assert_eq!(absent["key64"], "/w==");
    }

    #[test]
    fn an_unknown_outcome_is_called_unknown_even_in_a_brief_answer() {
        let sloppy = KeyOutcome::Written { context: Context::default(), sloppy: true };
        assert_eq!(told(&sloppy), r#"{"key":"k","sloppy":true,"status":204}"#);
        for &code in ErrorCode::ALL {
            for telling in [Telling::Whole, Telling::Brief] {
                let told = KeyOutcome::Refused(Failure::new(code, "x".repeat(10_000))).told(b"k", telling);
                let unknown = code.outcome() == wire::error::Outcome::Indeterminate;
                assert_eq!(told["status"] == 504, unknown, "{told}");
                assert_eq!(told["error"]["outcome"] == "unknown", unknown, "{told}");
                assert!(telling == Telling::Whole || told.to_string().len() < 512, "{told}");
            }
        }
        let brief = read(&[b"value"]).told(b"k", Telling::Brief);
        assert_eq!((&brief["status"], &brief["error"]["kind"]), (&503.into(), &"overloaded".into()));
    }
}
