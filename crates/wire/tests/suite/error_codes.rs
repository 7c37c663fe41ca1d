//! The references, held against the code: the table of error codes, and the kinds of messages.

use wire::ErrorCode;
use wire::error::Outcome;
use wire::messages::{Request, Response};

/// The reference's table as the code defines it: one row a code.
fn table() -> String {
    let mut text = String::from(
        "| code | name | outcome | send again | what happened | what to do |\n|---|---|---|---|---|---|\n",
    );
    for code in ErrorCode::ALL {
        let outcome = match code.outcome() {
            Outcome::Failed => "failed",
            Outcome::Indeterminate => "indeterminate",
        };
        let again = if code.is_retryable() { "yes" } else { "no" };
        text += &format!(
            "| {} | `{}` | {outcome} | {again} | {} | {} |\n",
            code.number(),
            code.name(),
            code.description(),
            code.remedy()
        );
    }
    text
}

#[test]
fn the_reference_lists_exactly_the_codes_of_the_program() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/errors.md");
    let document = std::fs::read_to_string(path).expect("docs/reference/errors.md exists");
    assert!(document.contains(&table()), "docs/reference/errors.md must hold this table:\n{}", table());
    let is_code = |line: &&str| {
        line.strip_prefix("| ").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    let rows = document.lines().filter(is_code).count();
    assert_eq!(rows, ErrorCode::ALL.len(), "and no further row");
}

#[test]
fn numbers_and_names_are_unique_and_numbers_lead_back_to_their_codes() {
    for (position, code) in ErrorCode::ALL.iter().enumerate() {
        assert_eq!(ErrorCode::from_number(code.number()), Some(*code));
        for other in &ErrorCode::ALL[position + 1..] {
            assert!(code.number() < other.number(), "the table is sorted");
            assert_ne!(code.name(), other.name());
        }
    }
    assert_eq!(ErrorCode::from_number(0), None);
    assert_eq!(ErrorCode::from_number(u16::MAX), None);
}

#[test]
fn the_reference_describes_every_kind_of_message() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/wire.md");
    let document = std::fs::read_to_string(path).expect("docs/reference/wire.md exists");
    let (_, messages) = document.split_once("## Requests").expect("the reference lists the requests");
    let described: Vec<&str> = messages.lines().filter(|line| line.starts_with("| `0x")).collect();
    let kinds = Request::KINDS.iter().chain(Response::KINDS);
    let expected: Vec<String> = kinds.map(|(kind, name)| format!("| `{kind:#04x}` | {name} |")).collect();
    assert_eq!(described.len(), expected.len(), "one row a kind: {described:?}");
    for row in expected {
        assert!(described.iter().any(|line| line.starts_with(&row)), "no row {row}");
    }
}
