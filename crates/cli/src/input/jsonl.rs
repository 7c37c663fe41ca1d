//! JSON lines: one object a line, which is the value itself or has a field that is.
//!
//! A string stands for its UTF-8 bytes, `{"hex": "00ff"}` for bytes that are not text, as `tontine export` writes
//! them; anything else stands for its own JSON text.

use std::fmt;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::lines::{LineRead, Lines, too_long};
use super::record::{BadRecord, Found, Input, InputRecord, Position, ReadError, RecordReader, moment};
use super::settings::Fields as Wanted;
use crate::text::unhex;

/// Reads objects.
pub(super) struct JsonlReader {
    lines: Lines,
    fields: Wanted,
    /// Whether a record was met. An array begins the file.
    begun: bool,
}

impl JsonlReader {
    pub(super) fn new(input: Input, position: Position, fields: Wanted) -> Self {
        JsonlReader { lines: Lines::new(input, position), fields, begun: position != Position::default() }
    }
}

impl RecordReader for JsonlReader {
    fn next(&mut self) -> Result<Option<Found>, ReadError> {
        loop {
            let found = match self.lines.read()? {
                LineRead::End => return Ok(None),
                LineRead::TooLong => Err(too_long()),
                LineRead::Whole if self.lines.trimmed().trim_ascii().is_empty() => continue,
                LineRead::Whole
                    if !self.begun && self.lines.trimmed().trim_ascii_start().starts_with(b"[") =>
                {
                    return Err(ReadError::JsonArray);
                }
                LineRead::Whole => record(self.lines.trimmed(), &self.fields),
            };
            self.begun = true;
            return Ok(Some(found.map_err(|reason| BadRecord { line: self.line(), reason })));
        }
    }

    fn position(&self) -> Position {
        self.lines.position()
    }

    fn line(&self) -> u64 {
        self.lines.position().line
    }
}

fn record(line: &[u8], wanted: &Wanted) -> Result<InputRecord, String> {
    let text = std::str::from_utf8(line)
        .map_err(|error| format!("not UTF-8 at byte {} of the line", error.valid_up_to() + 1))?;
    let fields: Fields<'_> = serde_json::from_str(text).map_err(|error| {
        let what = error.to_string();
        let what = what.split(" at line ").next().unwrap_or_default();
        format!("not a JSON object: {what} at column {}", error.column())
    })?;
    let field = |name: &str| match fields.find(name)? {
        None => Err(format!("the object has no field {name:?}")),
        Some("null") => Err(format!("field {name:?} is null")),
        Some(raw) => Ok(raw),
    };
    let key = &wanted.key;
    let raw = field(key)?;
    let key = match (bytes(raw)?, raw.as_bytes()[0]) {
        (Some(bytes), _) => bytes,
        (None, b'-' | b'0'..=b'9') => raw.to_owned().into(),
        (None, _) => return Err(format!("field {key:?} is neither text nor a number")),
    };
    let value = match &wanted.value {
        Some(name) => {
            let raw = field(name)?;
            bytes(raw)?.unwrap_or_else(|| raw.to_owned().into())
        }
        None => Bytes::copy_from_slice(line),
    };
    let expires = wanted.expires.part().map(|name| fields.find(name)).transpose()?.flatten();
    let expires = expires.filter(|&raw| raw != "null").map(moment).transpose()?;
    Ok(InputRecord { key, value, expires })
}

/// The names and texts of an object's fields, each as often as it comes.
struct Fields<'a>(Vec<(String, &'a RawValue)>);

impl<'a> Fields<'a> {
    /// The text of a field. One that comes twice does not say which is meant.
    fn find(&self, name: &str) -> Result<Option<&'a str>, String> {
        let mut texts = self.0.iter().filter(|(known, _)| known == name).map(|(_, raw)| raw.get());
        let found = texts.next();
        match texts.next() {
            None => Ok(found),
            Some(_) => Err(format!("the object has field {name:?} more than once")),
        }
    }
}

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<Map: MapAccess<'de>>(self, mut map: Map) -> Result<Self::Value, Map::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

/// The bytes that a string or `{"hex": …}` stands for.
fn bytes(raw: &str) -> Result<Option<Bytes>, String> {
    if raw.starts_with('"') {
        let text: String = serde_json::from_str(raw).map_err(|error| error.to_string())?;
        return Ok(Some(text.into()));
    }
    let Ok(object) = serde_json::from_str::<Fields<'_>>(raw) else { return Ok(None) };
    let Some(hex) = object.find("hex")?.filter(|_| object.0.len() == 1) else { return Ok(None) };
    let Ok(hex) = serde_json::from_str::<String>(hex) else { return Ok(None) };
    match unhex(&hex) {
        Some(bytes) => Ok(Some(bytes.into())),
        None => Err("\"hex\" holds something that is not base 16".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use model::WallMillis;

    use super::*;
    use crate::input::settings::Expires;

    fn one(line: &'static [u8], value: Option<&str>) -> Found {
        let expires = Expires::IfThere("expires_ms".to_owned());
        let fields = Wanted { key: "id".to_owned(), value: value.map(str::to_owned), expires };
        JsonlReader::new(Box::new(line), Position::default(), fields).next().unwrap().unwrap()
    }

    fn reason(line: &'static [u8], value: Option<&str>) -> String {
        one(line, value).unwrap_err().reason
    }

    #[test]
    fn the_whole_line_or_one_field_is_the_value() {
        let line = b"{\"id\": \"a\\u00e4\", \"v\": [1,  2]}\r\n";
        let whole = Bytes::from_static(line).slice(..line.len() - 2);
        assert_eq!(one(line, None), Ok(InputRecord { key: "aä".into(), value: whole, expires: None }));
        assert_eq!(one(line, Some("v")).unwrap().value, "[1,  2]");
    }

    #[test]
    fn a_mark_of_utf_8_is_no_part_of_the_first_record() {
        let record = one(b"\xef\xbb\xbf{\"id\": \"a\"}\n", None).unwrap();
        assert_eq!((record.key, record.value), ("a".into(), "{\"id\": \"a\"}".into()));
    }

    #[test]
    fn an_array_is_refused_as_what_it_is_also_over_several_lines() {
        for array in [&b"[{\"id\": 1}, {\"id\": 2}]"[..], b"\xef\xbb\xbf\n [\n{\"id\": 1}\n]"] {
            let expires = Expires::Never;
            let fields = Wanted { key: "id".to_owned(), value: None, expires };
            let error = JsonlReader::new(Box::new(array), Position::default(), fields).next().unwrap_err();
            assert!(error.to_string().contains("jq -c '.[]'"), "{error}");
        }
    }

    #[test]
    fn keys_and_values_that_are_no_text_come_in_base_16() {
        let line = b"{\"id\": {\"hex\": \"00ff\"}, \"v\": {\"hex\": \"80\"}}";
        assert_eq!(
            one(line, Some("v")),
            Ok(InputRecord {
                key: Bytes::from_static(&[0, 255]),
                value: Bytes::from_static(&[0x80]),
                expires: None
            })
        );
        assert!(reason(b"{\"id\": 1, \"v\": {\"hex\": \"8\"}}", Some("v")).contains("base 16"));
        let other = one(b"{\"id\": 1, \"v\": {\"hex\": \"80\", \"x\": \"\"}}", Some("v")).unwrap();
        assert_eq!(other.value, "{\"hex\": \"80\", \"x\": \"\"}");
    }

    #[test]
    fn a_time_of_expiry_is_a_number_of_milliseconds_or_nothing() {
        let expires = |line| one(line, None).unwrap().expires;
        assert_eq!(
            expires(b"{\"id\": 1, \"expires_ms\": 1764321000000}"),
            Some(WallMillis(1_764_321_000_000))
        );
        assert_eq!(expires(b"{\"id\": 1, \"expires_ms\": null}"), None);
        for line in [&b"{\"id\": 1, \"expires_ms\": \"x\"}"[..], b"{\"id\": 1, \"expires_ms\": -1}"] {
            assert!(reason(line, None).contains("milliseconds since 1970"));
        }
        for line in [&b"{\"id\": 1, \"expires_ms\": 1764321000}"[..], b"{\"id\": 1, \"expires_ms\": 3600}"] {
            assert!(reason(line, None).contains("looks like seconds"));
        }
    }

    #[test]
    fn a_wanted_field_that_comes_twice_is_refused() {
        for line in [
            &b"{\"id\": \"first\", \"v\": 1, \"id\": \"second\"}"[..],
            b"{\"id\": \"first\", \"v\": 1, \"\\u0069d\": \"second\"}",
            b"{\"id\": \"k\", \"v\": 1, \"v\": 2}",
            b"{\"id\": \"k\", \"v\": 1, \"expires_ms\": null, \"expires_ms\": 1}",
            b"{\"id\": {\"hex\": \"00\", \"hex\": \"01\"}, \"v\": 1}",
        ] {
            assert!(reason(line, Some("v")).contains("more than once"), "{line:?}");
        }
        assert_eq!(one(b"{\"id\": \"k\", \"v\": 1, \"x\": 2, \"x\": 3}", Some("v")).unwrap().value, "1");
    }

    #[test]
    fn what_is_wrong_with_a_line_is_said() {
        assert!(reason(b"{\"id\": \"\xff\"}", None).contains("UTF-8 at byte 9"));
        assert!(reason(b"{\"id\": \"a\"", None).contains("EOF while parsing an object at column"));
        assert!(reason(b"1", None).contains("not a JSON object"));
        assert!(reason(b"{\"name\": 1}", None).contains("no field \"id\""));
        assert!(reason(b"{\"id\": null}", None).contains("null"));
        for key in ["{\"a\": 1}", "[1]", "false", "true"] {
            let line = format!("{{\"id\": {key}}}").leak().as_bytes();
            assert!(reason(line, None).contains("neither text nor a number"));
        }
    }
}
