//! The rule that a test which a page names is there.

use std::collections::BTreeSet;

use super::markdown::code_spans;
use super::{Offence, Tree};

/// The long names with underscores in tables of pages stand somewhere in code.
pub(crate) const RULE: &str = "named-tests";

const WHY: &str = "the command that replays a fault finds no test otherwise, and passes";
/// Files whose words count as code.
const CODE: &[&str] = &[".rs", ".py", ".java", ".scala", ".sh"];
/// As many underscores has the name of a test at least.
const UNDERSCORES_MIN: usize = 4;

/// See [`RULE`].
pub(crate) fn check(tree: &Tree) -> Vec<Offence> {
    let words: BTreeSet<&str> = CODE
        .iter()
        .flat_map(|ending| tree.ending(ending))
        .flat_map(|(_, text)| text.split(|c: char| !is_of_name(c)))
        .filter(|word| is_test_name(word))
        .collect();
    let mut offences = Vec::new();
    for (path, text) in tree.ending(".md") {
        for (at, line) in text.lines().enumerate().filter(|(_, line)| line.starts_with('|')) {
            let named = code_spans(line).flat_map(|span| span.split(|c: char| !is_of_name(c)));
            for name in named.filter(|name| is_test_name(name)) {
                // A filter may be a part of several names.
                if !words.contains(name) && !words.iter().any(|word| word.contains(name)) {
                    offences.push(Offence {
                        path: path.to_owned(),
                        line: at + 1,
                        rule: RULE,
                        what: format!("no test is called {name}"),
                        why: WHY,
                        mend: "name the test as it is called now, or delete the row".to_owned(),
                    });
                }
            }
        }
    }
    offences
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Names of metrics look alike, but for their first word.
fn is_test_name(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_lowercase())
        && word.matches('_').count() >= UNDERSCORES_MIN
        && !word.contains(|c: char| c.is_ascii_uppercase())
        && !word.starts_with("tontine_")
}

#[cfg(test)]
mod tests {
    use super::super::brief;
    use super::*;

    #[test]
    fn a_test_that_a_table_names_and_nobody_wrote_is_an_offence() {
        let page = "| what | replay |\n|---|---|\n| a | `-p cli --test suite the_lamp_is_on_again` |\n\
            | b | `the_lamp_is_off_again`, `short_name` |\n\nProse names `what_it_does_not_find` as it likes.\n";
        let code = "#[test]\nfn and_the_lamp_is_on_again_at_night() {}\n";
        let tree = Tree::planted(&[("docs/bugs.md", page), ("crates/cli/tests/suite/lamp.rs", code)]);
        assert_eq!(brief(&check(&tree)), "docs/bugs.md:4 no test is called the_lamp_is_off_again\n");
    }
}
