//! What the body of a batch asks for: JSON, read operation by operation.
//!
//! Each is turned into bytes before the next one is read. So no more than the body and what it stands for is held at a
//! time, whatever its shape: what is nested deep, too long or unknown is refused where it begins.

use std::collections::BTreeSet;
use std::fmt;

use bytes::Bytes;
use model::limits::MULTI_KEYS_MAX;
use runtime::http::base64::prelude::{BASE64_STANDARD, Engine as _};
use serde::Deserialize;
use serde::de::{self, Deserializer, IgnoredAny, SeqAccess, Visitor};
use wire::error::ErrorCode;
use wire::messages::{Condition, Failure};

use super::parameters;
use super::preconditions::{self, Preconditions};

/// One operation on one key.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BatchOperation {
    pub(super) key: Bytes,
    pub(super) task: KeyTask,
}

/// What is done with the key.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum KeyTask {
    Get,
    Put { value: Bytes, preconditions: Preconditions, ttl_ms: Option<u64> },
    Delete { preconditions: Preconditions },
}

/// The body.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BatchBody {
    operations: Operations,
}

/// The operations of a body, as many as one may have.
struct Operations {
    list: Vec<BatchOperation>,
    /// How many there are.
    count: usize,
}

/// One of them, as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OperationForm {
    op: Verb,
    key: Option<String>,
    key64: Option<String>,
    value: Option<String>,
    value64: Option<String>,
    context: Option<String>,
    #[serde(rename = "if")]
    condition: Option<ConditionForm>,
    ttl: Option<String>,
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Verb {
    Get,
    Put,
    Delete,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ConditionForm {
    Absent,
    Present,
}

/// The operations of a batch, in their order. No two are about one key.
///
/// # Errors
/// What of the body makes no sense: nothing of it is carried out.
pub(super) fn parse(body: &[u8]) -> Result<Vec<BatchOperation>, Failure> {
    let malformed = |detail: String| Failure::new(ErrorCode::Malformed, detail);
    let form: BatchBody = serde_json::from_slice(body)
        .map_err(|error| malformed(format!("the body is no document with operations: {error}")))?;
    let Operations { list, count } = form.operations;
    if count > MULTI_KEYS_MAX {
        let detail = format!("{count} operations in one batch exceed the limit of {MULTI_KEYS_MAX}");
        return Err(Failure::new(ErrorCode::TooManyKeys, detail));
    }
    let mut seen = BTreeSet::new();
    match list.iter().position(|operation| !seen.insert(&operation.key)) {
        None => Ok(list),
        Some(at) => Err(malformed(format!(
            "operation {at} (counted from 0) names a key that one before it names; a batch takes one operation for each key"
        ))),
    }
}

impl<'de> Deserialize<'de> for Operations {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(EachOperation)
    }
}

struct EachOperation;

impl<'de> Visitor<'de> for EachOperation {
    type Value = Operations;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of operations")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Operations, A::Error> {
        let mut list = Vec::new();
        while list.len() < MULTI_KEYS_MAX {
            let Some(form) = sequence.next_element::<OperationForm>()? else {
                return Ok(Operations { count: list.len(), list });
            };
            let operation = operation(form);
            list.push(
                operation.map_err(|why| de::Error::custom(format!("operation {}: {why}", list.len())))?,
            );
        }
        let mut count = list.len();
        while sequence.next_element::<IgnoredAny>()?.is_some() {
            count += 1;
        }
        Ok(Operations { list, count })
    }
}

/// What one operation asks for.
fn operation(form: OperationForm) -> Result<BatchOperation, &'static str> {
    let OperationForm { op, key, key64, value, value64, context, condition, ttl } = form;
    let key = bytes(key, key64)
        .map_err(|_| "key64 is not in base 64, filled with =, or is given beside a key")?
        .ok_or("it has neither key nor key64")?;
    let value = bytes(value, value64)
        .map_err(|_| "value64 is not in base 64, filled with =, or is given beside a value")?;
    let seen = context.as_deref().map(preconditions::context).transpose()?;
    let ttl_ms = ttl.as_deref().map(|text| parameters::ttl(text.as_bytes())).transpose()?;
    let is_write = op != Verb::Get;
    if !is_write && (seen.is_some() || condition.is_some()) {
        return Err("a get takes neither context nor if");
    }
    if op != Verb::Put && (value.is_some() || ttl_ms.is_some()) {
        return Err("only a put takes a value and a ttl");
    }
    if seen.is_some() && condition.is_some() {
        return Err("give context or if, not both");
    }
    let condition = match condition {
        None => Condition::None,
        Some(ConditionForm::Absent) => Condition::IfAbsent,
        Some(ConditionForm::Present) => Condition::IfPresent,
    };
    let preconditions = Preconditions { context: seen, condition };
    let task = match op {
        Verb::Get => KeyTask::Get,
        Verb::Put => {
            KeyTask::Put { value: value.ok_or("a put has a value or a value64")?, preconditions, ttl_ms }
        }
        Verb::Delete => KeyTask::Delete { preconditions },
    };
    Ok(BatchOperation { key, task })
}

/// Bytes that are given as text, or in base 64.
fn bytes(text: Option<String>, base64: Option<String>) -> Result<Option<Bytes>, ()> {
    match (text, base64) {
        (text, None) => Ok(text.map(Bytes::from)),
        (None, Some(letters)) => {
            BASE64_STANDARD.decode(letters).map(|bytes| Some(bytes.into())).map_err(|_| ())
        }
        (Some(_), Some(_)) => Err(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(operation: &str) -> Result<Vec<BatchOperation>, Failure> {
        parse(format!("{{\"operations\":[{operation}]}}").as_bytes())
    }

    #[test]
    fn keys_and_values_are_text_or_base_64() {
        let put = |key: &'static [u8], value: &'static [u8]| BatchOperation {
            key: key.into(),
            task: KeyTask::Put { value: value.into(), preconditions: Preconditions::default(), ttl_ms: None },
        };
        let get = |key: &'static [u8]| BatchOperation { key: key.into(), task: KeyTask::Get };
        assert_eq!(one(r#"{"op":"get","key":"\u00e4"}"#).unwrap(), [get(b"\xc3\xa4")]);
        assert_eq!(one(r#"{"op":"get","key64":"/wA="}"#).unwrap(), [get(b"\xff\0")]);
        assert_eq!(one(r#"{"op":"put","key":"a","value":""}"#).unwrap(), [put(b"a", b"")]);
        assert_eq!(one(r#"{"value64":"/w==","op":"put","key64":"YQ=="}"#).unwrap(), [put(b"a", b"\xff")]);
        assert_eq!(parse(br#"{"operations":[]}"#).unwrap(), []);
    }

    #[test]
    fn a_write_may_have_a_condition_or_a_context_and_a_put_a_time_to_live() {
        let task = |operation: &str| one(operation).unwrap().remove(0).task;
        let absent = Preconditions { condition: Condition::IfAbsent, context: None };
        assert_eq!(
            task(r#"{"op":"put","key":"a","value":"v","if":"absent","ttl":"2m"}"#),
            KeyTask::Put { value: "v".into(), preconditions: absent, ttl_ms: Some(120_000) }
        );
        let present = Preconditions { condition: Condition::IfPresent, context: None };
        assert_eq!(
            task(r#"{"op":"delete","key":"a","if":"present"}"#),
            KeyTask::Delete { preconditions: present }
        );
    }

    #[test]
    fn a_malformed_operation_is_refused_with_its_position() {
        for wrong in [
            r#"{"op":"get"}"#,
            r#"{"op":"get","key":"a","key64":"YQ=="}"#,
            r#"{"op":"get","key64":"YQ"}"#,
            r#"{"op":"get","key64":"?"}"#,
            r#"{"op":"get","key":7}"#,
            r#"{"op":"get","key":["a"]}"#,
            r#"{"op":"get","key":"\ud800"}"#,
            r#"{"op":"get","key":"a","value":"v"}"#,
            r#"{"op":"get","key":"a","if":"absent"}"#,
            r#"{"op":"get","key":"a","ttl":"1s"}"#,
            r#"{"op":"get","key":"a","key":"b"}"#,
            r#"{"op":"put","key":"a"}"#,
            r#"{"op":"put","key":"a","value":"v","value64":"dg=="}"#,
            r#"{"op":"put","key":"a","value":"v","ttl":"0"}"#,
            r#"{"op":"put","key":"a","value":"v","ttl":30}"#,
            r#"{"op":"put","key":"a","value":"v","context":"?"}"#,
            r#"{"op":"put","key":"a","value":"v","if":"maybe"}"#,
            r#"{"op":"put","key":"a","value":"v","tll":"1s"}"#,
            r#"{"op":"delete","key":"a","value":"v"}"#,
            r#"{"op":"patch","key":"a"}"#,
            r#"{"key":"a"}"#,
            r#""get""#,
        ] {
            let refused = one(wrong).unwrap_err();
            assert_eq!(refused.code, ErrorCode::Malformed, "{wrong}: {refused}");
        }
        let second = parse(br#"{"operations":[{"op":"get","key":"a"},{"op":"put","key":"b"}]}"#).unwrap_err();
        assert!(second.detail.contains("operation 1: a put has a value"), "{second}");
        for body in [
            "",
            "[]",
            "{}",
            "null",
            r#"{"operations":{}}"#,
            r#"{"operations":[],"more":1}"#,
            "{\"operations\":[]}x",
        ] {
            assert_eq!(parse(body.as_bytes()).unwrap_err().code, ErrorCode::Malformed, "{body}");
        }
    }

    #[test]
    fn repeated_keys_and_too_many_keys_are_refused() {
        let twice = one(r#"{"op":"get","key":"a"},{"op":"delete","key64":"YQ=="}"#).unwrap_err();
        assert!(twice.detail.starts_with("operation 1 "), "{twice}");
        let many = |count: usize| {
            let operations: Vec<String> =
                (0..count).map(|at| format!(r#"{{"op":"get","key":"{at}"}}"#)).collect();
            one(&operations.join(","))
        };
        assert_eq!(many(MULTI_KEYS_MAX).unwrap().len(), MULTI_KEYS_MAX);
        assert_eq!(many(MULTI_KEYS_MAX + 1).unwrap_err().code, ErrorCode::TooManyKeys);
    }

    #[test]
    fn deep_nesting_is_refused_in_every_position() {
        for depth in [1_000, 1_000_000] {
            let deep = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
            let objects = format!("{}1{}", "{\"a\":".repeat(depth), "}".repeat(depth));
            for body in [
                deep.clone(),
                objects,
                format!("{{\"operations\":{deep}}}"),
                format!("{{\"operations\":[{deep}]}}"),
                format!("{{\"more\":{deep}}}"),
            ] {
                assert_eq!(parse(body.as_bytes()).unwrap_err().code, ErrorCode::Malformed);
            }
            let keys: Vec<String> =
                (0..MULTI_KEYS_MAX).map(|at| format!(r#"{{"op":"get","key":"{at}"}}"#)).collect();
            let behind = one(&format!("{},{deep}", keys.join(","))).unwrap_err();
            assert_eq!(behind.code, ErrorCode::TooManyKeys, "it is passed over, and counted");
        }
    }
}
