//! The rule that the glossary explains every word the project agreed on, and the words it bans.

use std::collections::BTreeMap;

use super::markdown::{Row, code_spans, table};
use super::{Offence, Tree};

/// The glossary explains every agreed word.
pub(crate) const RULE: &str = "glossary";

pub(crate) const DOCUMENT: &str = "docs/glossary.md";
const HEADER: &[&str] = &["word", "means", "not"];
const WHY: &str =
    "one word per thing and one thing per word: who meets a word in the code finds its meaning there";

/// The words agreed on when the project began; the glossary may hold more.
const AGREED: &[&str] = &[
    "node",
    "zone",
    "ring",
    "partition",
    "replica",
    "fallback",
    "preference list",
    "coordinator",
    "required",
    "preferred",
    "version",
    "dot",
    "sibling",
    "context",
    "hint",
    "target",
    "holder",
    "read repair",
    "anti-entropy",
    "donor",
    "plan",
    "batch",
    "generation",
    "coordination service",
    "artifact",
    "fetch",
    "swap",
    "rollback",
    "provider",
    "engine adapter",
];

/// Words that may not name anything, each with the word to use instead, from the third column of the glossary:
/// those in backquotes are checked, the others are left to the reader because they also mean other things.
pub(crate) fn banned(tree: &Tree) -> BTreeMap<&str, &str> {
    let mut banned = BTreeMap::new();
    for row in rows(tree) {
        for word in row.cells.get(2).into_iter().flat_map(|cell| code_spans(cell)) {
            banned.insert(word, row.cells[0]);
        }
    }
    banned
}

fn rows(tree: &Tree) -> Vec<Row<'_>> {
    tree.text(DOCUMENT).and_then(|text| table(text, HEADER)).unwrap_or_default()
}

/// See [`RULE`].
pub(crate) fn check(tree: &Tree) -> Vec<Offence> {
    let mut offences = Vec::new();
    let mut offence = |line: usize, what: String, mend: &str| {
        offences.push(Offence {
            path: DOCUMENT.into(),
            line,
            rule: RULE,
            what,
            why: WHY,
            mend: mend.to_owned(),
        });
    };
    let mut explained: BTreeMap<&str, usize> = BTreeMap::new();
    for row in rows(tree) {
        if explained.insert(row.cells[0], row.line).is_some() {
            offence(row.line, format!("\"{}\" is listed twice", row.cells[0]), "merge the two lines");
        }
        let meaning = row.cells.get(1).copied().unwrap_or_default();
        if meaning.split_whitespace().count() < 5 || !meaning.ends_with('.') {
            offence(
                row.line,
                format!("\"{}\" is not explained in a sentence", row.cells[0]),
                "write a full sentence",
            );
        }
    }
    for word in AGREED.iter().filter(|word| !explained.contains_key(**word)) {
        offence(
            1,
            format!("\"{word}\" is missing"),
            "add its row: the word, a precise sentence, what not to say",
        );
    }
    offences
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_repeated_and_unexplained_words_are_offences() {
        let rows: String = AGREED
            .iter()
            .skip(1)
            .map(|word| format!("| {word} | A sentence that says it all. | |\n"))
            .collect();
        let text = format!("| word | means | not |\n|---|---|---|\n{rows}| ring | round thing | |\n");
        let offences = check(&Tree::planted(&[(DOCUMENT, &text)]));
        let what: Vec<&str> = offences.iter().map(|offence| offence.what.as_str()).collect();
        assert_eq!(
            what,
            ["\"ring\" is listed twice", "\"ring\" is not explained in a sentence", "\"node\" is missing"]
        );
    }

    #[test]
    fn only_words_in_backquotes_are_banned() {
        let text = "| word | means | not |\n|---|---|---|\n| partition | x | `shard`, `vnode`, range |\n";
        let tree = Tree::planted(&[(DOCUMENT, text)]);
        assert_eq!(banned(&tree), BTreeMap::from([("shard", "partition"), ("vnode", "partition")]));
    }
}
