//! The mutants that `cargo mutants` names.

use std::path::Path;
use std::process::Command;

use serde::Deserialize;

use super::MutantsError;

/// What kind of change a mutant is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
pub(super) enum Genre {
    /// The body of a function answers at once.
    FnValue,
    /// Another operator.
    BinaryOperator,
    /// No operator.
    UnaryOperator,
    /// An arm of a `match` is gone.
    MatchArm,
    /// The guard of an arm is `true` or `false`.
    MatchArmGuard,
    /// A field of a literal is gone.
    StructField,
}

/// A place in a file: both count from 1, columns in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
pub(super) struct Place {
    pub(super) line: usize,
    pub(super) column: usize,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct Span {
    pub(super) start: Place,
}

/// One change of one expression.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Mutant {
    /// Its file, from the root of the checkout.
    pub(super) file: String,
    pub(super) genre: Genre,
    /// File, place and change, for people.
    pub(super) name: String,
    /// The text that takes the place of what stands there.
    pub(super) replacement: String,
    pub(super) span: Span,
}

/// Asks `cargo mutants` for those of some files of a crate.
pub(super) fn list(root: &Path, package: &str, files: &[String]) -> Result<Vec<Mutant>, MutantsError> {
    let mut command = Command::new("cargo");
    command.current_dir(root).args(["mutants", "--list", "--json", "--package", package]);
    for file in files {
        command.args(["--file", file]);
    }
    let failed = |reason: String| MutantsError::Program {
        command: "cargo mutants --list".into(),
        reason: format!("{reason}\nInstall it with: cargo install --locked cargo-mutants"),
    };
    let output = command.output().map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    let mutants: Vec<Mutant> =
        serde_json::from_slice(&output.stdout).map_err(|error| MutantsError::Unreadable {
            what: "what `cargo mutants --list --json` printed".into(),
            reason: error.to_string(),
        })?;
    if mutants.is_empty() {
        return Err(MutantsError::Nothing { package: package.to_owned(), files: files.to_vec() });
    }
    Ok(mutants)
}
