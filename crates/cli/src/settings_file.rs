//! Settings in TOML: what is wrong with them, and where.
//!
//! `toml` shows the line that it cannot read, and settings may hold keys and passwords. What is told here is the line's
//! number, the column and the field.
//!
//! Must never: show a value, or any text of a file whose form is wrong: it may be a value that lacks its quotes.

use std::ops::Range;

use model::unquoted;
use serde::de::DeserializeOwned;
use toml::de::{DeTable, DeValue, Error};

/// Reads settings; otherwise where they are wrong and how.
pub(crate) fn parse<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    toml::from_str(text).map_err(|error| wrong(text, &error))
}

fn wrong(text: &str, error: &Error) -> String {
    match DeTable::parse(text) {
        // The words about a wrong form are fixed, and quote nothing.
        Err(error) => told(text, error.span(), error.message()),
        Ok(table) => {
            let field = error.span().and_then(|span| field(table.get_ref(), &span));
            let field = field.map(|field| format!("{field}: ")).unwrap_or_default();
            told(text, error.span(), &format!("{field}{}", unquoted::words(error.message())))
        }
    }
}

fn told(text: &str, span: Option<Range<usize>>, why: &str) -> String {
    let Some(before) = span.and_then(|span| text.get(..span.start)) else { return why.to_owned() };
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
    format!("line {line}, column {column}: {why}")
}

/// The path of the field whose name or value is at a place.
fn field(table: &DeTable<'_>, place: &Range<usize>) -> Option<String> {
    table.iter().find_map(|(name, value)| {
        let is_here = name.span() == *place || value.span() == *place;
        let within = within(value.get_ref(), place).or_else(|| is_here.then(String::new))?;
        Some(format!("{}{within}", name.get_ref()))
    })
}

fn within(value: &DeValue<'_>, place: &Range<usize>) -> Option<String> {
    match value {
        DeValue::Table(table) => field(table, place).map(|rest| format!(".{rest}")),
        DeValue::Array(items) => items.iter().enumerate().find_map(|(number, item)| {
            let is_here = item.span() == *place;
            let rest = within(item.get_ref(), place).or_else(|| is_here.then(String::new))?;
            Some(format!("[{number}]{rest}"))
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use control::elasticity::adapters::AdaptersFile;
    use model::elasticity::Policy;

    use super::*;

    const SECRET: &str = "hunter2";

    /// What is said of text in which `?` stands for the secret.
    fn said<T: DeserializeOwned + std::fmt::Debug>(text: &str) -> String {
        let said = parse::<T>(&text.replace('?', SECRET)).unwrap_err();
        assert!(!said.contains(SECRET), "{text}: {said}");
        said
    }

    #[test]
    fn adapters_that_cannot_be_read_are_told_by_line_and_field_without_their_secrets() {
        let adapter = "[engines.x]\ncommand = [\"a\"]\n";
        let of = |line: &str| said::<AdaptersFile>(&format!("{adapter}{line}\n"));
        assert_eq!(
            of("env = { AWS_SECRET_ACCESS_KEY = \"?\" }"),
            "line 3, column 1: engines.x.env: unknown field, expected one of `command`, `environment`, `deadline`"
        );
        assert_eq!(
            of("environment = { KEY = [\"?\"] }"),
            "line 3, column 23: engines.x.environment.KEY: a value is not as expected: a string"
        );
        assert_eq!(
            of("deadline = \"?\""),
            "line 3, column 12: engines.x.deadline: a value is not as expected: u64"
        );
        assert_eq!(
            said::<AdaptersFile>("[providers.p]\ncommand = \"run --password ?\"\n"),
            "line 2, column 11: providers.p.command: a value is not as expected: a sequence"
        );
        let lacking = said::<AdaptersFile>("[engines.x]\nenvironment = { KEY = \"?\" }\n");
        assert!(lacking.contains("engines.x: missing field `command`"), "{lacking}");
        for form in [
            "environment = { KEY = \"? }",
            "environment = { KEY = ? }",
            "environment = { \"?\" }",
            "environment = { KEY = \"?\", KEY = \"?\" }",
            "environment = { KEY = \"\\?\" }",
            "?",
            "KEY = '''?",
            "KEY = 0?",
        ] {
            let said = of(form);
            assert!(said.starts_with("line "), "{form}: {said}");
        }
    }

    #[test]
    fn a_policy_that_cannot_be_read_is_told_by_its_field() {
        let policy = "engine = \"e\"\nprovider = \"p\"\nmachine-type = \"t\"\nmin = 1\nmax = 2\n";
        let of = |line: &str| said::<Policy>(&format!("{policy}{line}\n"));
        assert_eq!(
            of("sources = [{ kind = \"prometheus\", at = \"a\" }, { kind = \"?\", at = \"b\" }]"),
            "line 6, column 56: sources[1].kind: a value is not as expected: `ganglia` or `prometheus`"
        );
        assert_eq!(
            of("sources = [{ kind = \"prometheus\", at = \"http://x/?\", every = 1 }]"),
            "line 6, column 60: sources[0].every: unknown field, expected `kind` or `at`"
        );
        assert_eq!(said::<Policy>("engine = \"?\"\n"), "line 1, column 1: missing field `provider`");
    }
}
