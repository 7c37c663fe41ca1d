//! The rules that no compiler checks, each a pure function from the tree to its offences.
//!
//! The documents are the source: the table in `ARCHITECTURE.md` says who may depend on whom, `docs/glossary.md` says
//! which words name things, `docs/design/dependencies.md` says why each library is here. Tidy reads those tables and
//! holds the code against them, so that neither can drift from the other.
//!
//! Rules scan text; they do not parse Rust in full. A rule that would raise false alarms is left out rather than
//! given a list of exceptions, because a list of exceptions is where a rule dies.
//!
//! **Architecture Invariant:** a rule sees only the [`Tree`]; it runs no program, reads no file and knows no clock,
//! so that its test can hand it a planted tree.

mod architecture;
mod calls;
mod dependencies;
mod docs;
mod documents;
mod glossary;
pub mod lines;
mod links;
mod logs;
mod manifest;
mod markdown;
mod metrics;
mod names;
mod quorums;
mod refusals;
mod replays;
mod rooms;
mod sentences;
mod source;
mod text;
mod tree;

use std::fmt;
use std::path::PathBuf;

pub use tree::{Tree, TreeError};

/// One place where the tree breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Offence {
    /// File, relative to the root, with `/`.
    pub path: String,
    /// Line, from 1.
    pub line: usize,
    /// Name of the rule.
    pub rule: &'static str,
    /// What is wrong here.
    pub what: String,
    /// Why the rule exists.
    pub why: &'static str,
    /// What to do about it.
    pub mend: String,
}

impl fmt::Display for Offence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Offence { path, line, rule, what, why, mend } = self;
        write!(f, "{path}:{line}: {what} [{rule}]\n    why:  {why}\n    mend: {mend}")
    }
}

/// A rule: its name, as offences carry it, and its check.
pub type Rule = (&'static str, fn(&Tree) -> Vec<Offence>);

/// Every rule, in the order of the reading: the house first, then the words, then the lines.
pub const RULES: &[Rule] = &[
    (architecture::RULE, architecture::check),
    (dependencies::RULE, dependencies::check),
    (manifest::RULE, manifest::check),
    (glossary::RULE, glossary::check),
    (names::RULE, names::check),
    (docs::SIZE, docs::check_size),
    (docs::OPENING, docs::check_opening),
    (docs::DOCTEST, docs::check_doctests),
    (docs::SUITE, docs::check_suites),
    (calls::EFFECT, calls::check_effects),
    (calls::ORDER, calls::check_order),
    (calls::SELECT, calls::check_select),
    (quorums::RULE, quorums::check),
    (refusals::RULE, refusals::check),
    (replays::RULE, replays::check),
    (rooms::RULE, rooms::check),
    (logs::RULE, logs::check),
    (links::RULE, links::check),
    (sentences::RULE, sentences::check),
    (metrics::RULE, metrics::check),
    (documents::RULE, documents::check),
    (text::PATHS, text::check_paths),
    (text::PROMISES, text::check_promises),
];

/// All offences of the tree, sorted by place.
pub fn check(tree: &Tree) -> Vec<Offence> {
    let mut offences: Vec<Offence> = RULES.iter().flat_map(|(_, rule)| rule(tree)).collect();
    offences.sort();
    offences.dedup();
    offences
}

/// The checkout that this crate was built from.
pub fn workspace_root() -> PathBuf {
    let xtask = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().expect("xtask lies in the workspace root").to_path_buf()
}

/// Renders offences as `path:line what` lines, for the tests of the rules.
#[cfg(test)]
fn brief(offences: &[Offence]) -> String {
    offences.iter().map(|offence| format!("{}:{} {}\n", offence.path, offence.line, offence.what)).collect()
}
