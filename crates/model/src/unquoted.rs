//! What is wrong with text that was read, without the text itself.
//!
//! Settings, documents and answers of adapters may hold secrets, and `serde` quotes the value that it refuses. Its words
//! reach terminals, logs and documents, so they go through here first.
//!
//! Must never: hand on a value that was read, or a name of a field that this program does not know.

use serde_json::error::Category;

/// The words of a `serde` error, without what they quote.
pub fn words(error: &str) -> String {
    let begins = |with: &str| error.starts_with(with);
    // What was expected comes last, and is of the program. The value before it may have these words in it, too.
    match error.rsplit_once(", expected ") {
        Some((_, expected)) if begins("invalid ") || begins("unknown variant ") => {
            format!("a value is not as expected: {expected}")
        }
        Some((_, expected)) if begins("unknown field ") => format!("unknown field, expected {expected}"),
        None if begins("missing field ") || begins("duplicate field ") => error.to_owned(),
        _ => "a value cannot be read".to_owned(),
    }
}

/// The words of an error of JSON, without what they quote. Mistakes of its grammar quote nothing.
pub fn json(error: &serde_json::Error) -> String {
    let told = error.to_string();
    if error.classify() == Category::Data { words(&told) } else { told }
}

/// As [`json`], of a document of a cluster: what our own types say of what they refuse is told, as it is no secret.
pub fn document(error: &serde_json::Error) -> String {
    let told = error.to_string();
    let quotes = ["invalid ", "unknown "].iter().any(|begin| told.starts_with(begin));
    if quotes { words(&told) } else { told }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;

    const SECRET: &str = "s3cret, expected hunter2";

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only what cannot be read counts")]
    struct Form {
        name: String,
        #[serde(default)]
        number: u8,
        #[serde(default)]
        kind: Kind,
        #[serde(default)]
        more: BTreeMap<String, u8>,
    }

    #[derive(Debug, Default, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    enum Kind {
        #[default]
        One,
        Other,
    }

    #[test]
    fn no_value_is_told_and_what_was_expected_is() {
        let quoted = serde_json::to_string(SECRET).unwrap();
        for (text, told) in [
            (format!("{{\"name\":1,\"number\":{quoted}}}"), "a value is not as expected: a string at line 1"),
            (format!("{{\"name\":{quoted},\"number\":{quoted}}}"), "a value is not as expected: u8"),
            (format!("{{\"kind\":{quoted}}}"), "a value is not as expected: `one` or `other`"),
            (format!("{{\"more\":{{{quoted}:{quoted}}}}}"), "a value is not as expected: u8"),
            (format!("{{{quoted}:1}}"), "unknown field, expected one of `name`, `number`, `kind`, `more`"),
            (format!("{{\"number\":1,\"number\":{quoted}}}"), "duplicate field `number`"),
            (format!("{{\"more\":{{{quoted}:1}}}}"), "missing field `name`"),
            (quoted.clone(), "a value is not as expected: struct Form"),
            (format!("{{\"name\":{quoted}"), "EOF while parsing an object at line 1"),
            (format!("{{\"name\":{quoted},}}"), "trailing comma at line 1"),
        ] {
            let said = json(&serde_json::from_str::<Form>(&text).unwrap_err());
            assert!(said.contains(told), "{text}: {said}");
            let said = said + &document(&serde_json::from_str::<Form>(&text).unwrap_err());
            assert!(!said.contains("s3cret") && !said.contains("hunter2"), "{text}: {said}");
        }
    }

    #[test]
    fn words_of_our_own_types_are_told_of_documents() {
        let error = <serde_json::Error as serde::de::Error>::custom("the ring has a hole");
        assert_eq!(
            (document(&error), json(&error)),
            ("the ring has a hole".into(), "a value cannot be read".into())
        );
    }

    #[test]
    fn words_of_an_unknown_kind_are_not_handed_on() {
        for error in [SECRET, "invalid s3cret", "unknown field `s3cret`, there are no fields", ""] {
            assert_eq!(words(error), "a value cannot be read", "{error}");
        }
    }
}
