//! The rules about files: how long they may be, how they open, and where tests live.

use super::tree::crate_of;
use super::{Offence, Tree};

/// A file is at most [`LINES_MAX`] lines long.
pub(crate) const SIZE: &str = "file-size";
/// A Rust file opens by saying what it is.
pub(crate) const OPENING: &str = "module-docs";
/// Examples in documentation are run, or marked as text.
pub(crate) const DOCTEST: &str = "doctests";
/// A crate has one integration-test binary.
pub(crate) const SUITE: &str = "one-suite";

/// Past this a file holds two rooms. There is no list of exceptions.
const LINES_MAX: usize = 600;

/// Words that an opening must have at least, so that "see there" does not count.
const OPENING_WORDS_MIN: usize = 4;

/// The crate whose examples are compiled and run.
const DOCTEST_CRATE: &str = "client";

/// See [`SIZE`].
pub(crate) fn check_size(tree: &Tree) -> Vec<Offence> {
    let code = tree.files().filter(|(path, _)| path.ends_with(".rs") || path.ends_with(".py"));
    let long = code.map(|(path, text)| (path, text.lines().count())).filter(|(_, lines)| *lines > LINES_MAX);
    long.map(|(path, lines)| Offence {
        path: path.to_owned(),
        line: LINES_MAX + 1,
        rule: SIZE,
        what: format!("{lines} lines are over the limit of {LINES_MAX}"),
        why: "a file is one room, read in one sitting; past that it is two rooms with no door",
        mend: "split it along its nouns: a folder of the same name, one file each".into(),
    })
    .collect()
}

/// See [`OPENING`].
pub(crate) fn check_opening(tree: &Tree) -> Vec<Offence> {
    let opening = |text: &str| -> String {
        let first = text.lines().skip_while(|line| line.starts_with("#!") || line.trim().is_empty());
        first.map_while(|line| line.trim().strip_prefix("//!")).collect::<Vec<_>>().join(" ")
    };
    let silent = tree.rust().filter(|(_, source)| {
        let opening = opening(source.text());
        opening.split_whitespace().count() < OPENING_WORDS_MIN || opening.trim().starts_with("(see")
    });
    silent
        .map(|(path, _)| Offence {
            path: path.to_owned(),
            line: 1,
            rule: OPENING,
            what: "the file does not open by saying what it is".into(),
            why: "a reader who opens a file learns first what it is, why it is so, and what it must never do",
            mend: "open with `//!` and a sentence or more".into(),
        })
        .collect()
}

/// See [`DOCTEST`].
pub(crate) fn check_doctests(tree: &Tree) -> Vec<Offence> {
    let mut offences = Vec::new();
    for (path, source) in tree.rust().filter(|(path, _)| crate_of(path) != Some(DOCTEST_CRATE)) {
        let mut inside = false;
        for (index, line) in source.text().lines().enumerate() {
            let doc = line.trim().strip_prefix("///").or(line.trim().strip_prefix("//!"));
            let Some(language) = doc.and_then(|doc| doc.trim().strip_prefix("```")) else {
                inside &= doc.is_some();
                continue;
            };
            if !inside
                && (language.is_empty() || language.starts_with("rust") || language.starts_with("no_run"))
            {
                offences.push(Offence {
                    path: path.to_owned(),
                    line: index + 1,
                    rule: DOCTEST,
                    what: "an example that no check runs".into(),
                    why: "./check runs examples in `client` only; elsewhere they cost a build each and rot unseen",
                    mend: "make it a unit test, or mark the fence as text".into(),
                });
            }
            inside = !inside;
        }
    }
    offences
}

/// See [`SUITE`].
pub(crate) fn check_suites(tree: &Tree) -> Vec<Offence> {
    let own_binary = |path: &str| {
        let rest = path.strip_prefix("crates/").and_then(|rest| rest.split_once("/tests/"));
        rest.is_some_and(|(name, file)| {
            let main = file.strip_suffix("main.rs").is_some_and(|folder| folder.matches('/').count() == 1);
            !name.contains('/') && file != "suite/main.rs" && (!file.contains('/') || main)
        })
    };
    let extra = tree.rust().filter(|(path, _)| own_binary(path));
    extra
        .map(|(path, _)| Offence {
            path: path.to_owned(),
            line: 1,
            rule: SUITE,
            what: "a second integration-test binary".into(),
            why: "every test binary links the whole crate again; one per crate keeps the check fast",
            mend: "make it a module of tests/suite/main.rs".into(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::brief;
    use super::*;

    #[test]
    fn a_file_over_the_limit_is_an_offence_and_one_at_the_limit_is_not() {
        let (long, full) = ("x\n".repeat(LINES_MAX + 1), "x\n".repeat(LINES_MAX));
        let tree = Tree::planted(&[("a.rs", &long), ("b.rs", &full), ("c.py", &long), ("d.md", &long)]);
        assert_eq!(
            brief(&check_size(&tree)),
            "a.rs:601 601 lines are over the limit of 600\nc.py:601 601 lines are over the limit of 600\n"
        );
    }

    #[test]
    fn a_file_that_does_not_say_what_it_is_is_an_offence() {
        let tree = Tree::planted(&[
            ("good.rs", "//! What this file is about.\n"),
            ("none.rs", "use x;\n//! What this file is about.\n"),
            ("short.rs", "//! A file.\n"),
            ("elsewhere.rs", "//! (see ARCHITECTURE.md for all of that)\n"),
        ]);
        let paths: Vec<String> = check_opening(&tree).into_iter().map(|offence| offence.path).collect();
        assert_eq!(paths, ["elsewhere.rs", "none.rs", "short.rs"]);
    }

    #[test]
    fn an_example_outside_of_client_is_an_offence() {
        let example = "/// ```\n/// f();\n/// ```\nfn f() {}\n/// ```text\n/// a\n/// ```\nfn g() {}\n";
        let tree = Tree::planted(&[("crates/model/src/a.rs", example), ("crates/client/src/a.rs", example)]);
        assert_eq!(brief(&check_doctests(&tree)), "crates/model/src/a.rs:1 an example that no check runs\n");
    }

    #[test]
    fn a_second_test_binary_is_an_offence() {
        let tree = Tree::planted(&[
            ("crates/a/tests/suite/main.rs", ""),
            ("crates/a/tests/suite/puts.rs", ""),
            ("crates/a/tests/puts.rs", ""),
            ("crates/a/tests/other/main.rs", ""),
        ]);
        let paths: Vec<String> = check_suites(&tree).into_iter().map(|offence| offence.path).collect();
        assert_eq!(paths, ["crates/a/tests/other/main.rs", "crates/a/tests/puts.rs"]);
    }
}
