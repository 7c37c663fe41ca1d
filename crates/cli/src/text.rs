//! How answers look: numbers, sizes, moments and tables for people, JSON for programs.
//!
//! What is said when a command fails needs these as much as what is printed when it succeeds, so they lie below both.
//!
//! **Architecture Invariant:** a text is made here, and never printed.

use clap::ValueEnum;
use serde_json::{Value, json};

/// How answers are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Plain text, for people.
    #[default]
    Text,
    /// JSON, for programs.
    Json,
}

/// Bytes as JSON: text when they are UTF-8, otherwise base 16 under another name.
pub(crate) fn bytes_json(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => json!(text),
        Err(_) => json!({ "hex": hex(bytes) }),
    }
}

/// Bytes for people: text when it can be shown, otherwise escaped.
pub(crate) fn shown(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(|c| c.is_control() && c != '\n' && c != '\t') => text.to_owned(),
        _ => bytes.escape_ascii().to_string(),
    }
}

/// Base 16.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of a base-16 text.
pub(crate) fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.is_ascii() {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}

/// An aligned table; the first row is the heading.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells: Vec<String> = row
            .iter()
            .zip(&widths)
            .map(|(cell, &width)| format!("{cell}{}", " ".repeat(width - cell.chars().count())))
            .collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// Bytes for people.
pub(crate) fn size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", units[unit]) }
}

/// This many of something: `1 node`, `2 nodes`. For words whose plural takes an s.
pub(crate) fn count(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// A moment for people, from milliseconds since 1970: UTC, to the millisecond.
pub(crate) fn moment(millis: u64) -> String {
    crate::dates::utc(millis).replace('T', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_read_by_people() {
        assert_eq!(moment(951_782_399_999), "2000-02-28 23:59:59.999Z");
    }

    #[test]
    fn hex_goes_there_and_back_and_refuses_the_rest() {
        assert_eq!(unhex(&hex(&[0, 255, 16])), Some(vec![0, 255, 16]));
        assert_eq!(unhex("0"), None);
        assert_eq!(unhex("zz"), None);
        assert_eq!(unhex("äö"), None);
    }

    #[test]
    fn tables_align_their_columns() {
        let rows = [["a", "bb"], ["ccc", "d"]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(table(&rows), "a    bb\nccc  d\n");
    }

    #[test]
    fn one_thing_is_not_many() {
        let shown = [0, 1, 2].map(|number| count(number, "node"));
        assert_eq!(shown, ["0 nodes", "1 node", "2 nodes"]);
    }

    #[test]
    fn sizes_are_short() {
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(1536), "1.5 KiB");
    }
}
