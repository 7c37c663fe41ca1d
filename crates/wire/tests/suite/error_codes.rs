//! The table of error codes, in code and in the reference.

use wire::ErrorCode;
use wire::error::Outcome;

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
    let rows = document.lines().filter(|line| line.starts_with("| ") && line.contains('`')).count();
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
