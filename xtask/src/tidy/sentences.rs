//! The rule about sentences in documents: a reader in a hurry takes in so many words at once, and no more.
//!
//! Code spans count as one word, because a command reads as one name. A cell of a table is a text by itself.

use super::markdown::{self, Block};
use super::{Offence, Tree};

/// No sentence of a document is longer than [`WORDS_MAX`] words.
pub(crate) const RULE: &str = "long-sentences";

/// Past this a sentence holds two. `STYLE` asks for less; this is where the rule begins to refuse.
const WORDS_MAX: usize = 30;

/// Documents that are older than the rule. Whoever rewrites one deletes its line; nobody adds one.
const OLDER: &[&str] = &[
    "python/parkazoo/README.md",
    "python/parkazoo/docs/design.md",
    "python/parkazoo/docs/guarantees.md",
    "python/parkazoo/docs/migrating-from-kazoo.md",
    "python/parkazoo/docs/operating.md",
    "tests-redis/README.md",
];

/// See [`RULE`].
pub(crate) fn check(tree: &Tree) -> Vec<Offence> {
    check_but(tree, OLDER)
}

fn check_but(tree: &Tree, older: &[&str]) -> Vec<Offence> {
    let mut offences = Vec::new();
    for (path, text) in tree.files().filter(|(path, _)| path.ends_with(".md")) {
        let long: Vec<Offence> = markdown::blocks(text)
            .iter()
            .flat_map(long_sentences)
            .map(|found| offence(path, found))
            .collect();
        match (older.contains(&path), long.is_empty()) {
            (true, true) => offences.push(Offence {
                path: path.to_owned(),
                line: 1,
                rule: RULE,
                what: "the list of older documents still names this one, which keeps the rule".into(),
                why: "an entry that stays lets long sentences come back",
                mend: "delete its line in `OLDER`, xtask/src/tidy/sentences.rs".into(),
            }),
            (true, false) => {}
            (false, _) => offences.extend(long),
        }
    }
    offences
}

/// A sentence that is too long.
#[derive(Debug, PartialEq, Eq)]
struct Long {
    line: usize,
    words: usize,
    /// How it begins.
    start: String,
}

fn offence(path: &str, found: Long) -> Offence {
    let Long { line, words, start } = found;
    Offence {
        path: path.to_owned(),
        line,
        rule: RULE,
        what: format!("a sentence of {words} words: \"{start} …\""),
        why: "people read documents while something is on fire, and lose the subject of a long sentence",
        mend: format!("make two of it; at most {WORDS_MAX} words each, better 25"),
    }
}

fn long_sentences(block: &Block) -> Vec<Long> {
    let mut found = Vec::new();
    let mut sentence: Vec<&(usize, String)> = Vec::new();
    for word in &block.words {
        sentence.push(word);
        if ends_sentence(&word.1) {
            found.extend(long(&sentence));
            sentence.clear();
        }
    }
    found.extend(long(&sentence));
    found
}

fn long(sentence: &[&(usize, String)]) -> Option<Long> {
    // Dashes and arrows that stand alone are no words.
    let is_word = |word: &&&(usize, String)| word.1.chars().any(char::is_alphanumeric);
    let words = sentence.iter().filter(is_word).count();
    let start = sentence.iter().take(6).map(|word| word.1.as_str()).collect::<Vec<_>>().join(" ");
    (words > WORDS_MAX).then(|| Long { line: sentence[0].0, words, start })
}

fn ends_sentence(word: &str) -> bool {
    word.trim_end_matches(['"', '\'', ')', '*', '_', '”', '’']).ends_with(['.', '!', '?'])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::brief;

    fn words(count: usize) -> String {
        vec!["word"; count].join(" ")
    }

    fn check_one(text: &str, older: &[&str]) -> String {
        brief(&check_but(&Tree::planted(&[("docs/a.md", text)]), older))
    }

    #[test]
    fn a_sentence_of_thirty_words_is_kept_and_one_of_thirty_one_refused() {
        assert_eq!(check_one(&format!("# A\n\n{}. {}.\n", words(30), words(30)), &[]), "");
        let refused = check_one(&format!("# A\n\nShort.\n{}.\n", words(31)), &[]);
        assert_eq!(refused, "docs/a.md:4 a sentence of 31 words: \"word word word word word word …\"\n");
    }

    #[test]
    fn a_sentence_goes_on_over_lines_and_ends_with_its_paragraph_item_or_cell() {
        assert_ne!(check_one(&format!("{}\n{}.\n", words(20), words(20)), &[]), "");
        assert_eq!(check_one(&format!("{}\n\n{}.\n", words(20), words(20)), &[]), "");
        assert_eq!(check_one(&format!("- {}\n- {}\n", words(20), words(20)), &[]), "");
        assert_eq!(check_one(&format!("| {} | {} |\n", words(20), words(20)), &[]), "");
        assert_ne!(check_one(&format!("| a | {} |\n", words(31)), &[]), "");
    }

    #[test]
    fn commands_count_as_one_word_and_fences_not_at_all() {
        assert_eq!(check_one(&format!("`{}` {}.\n", words(40), words(29)), &[]), "");
        assert_eq!(check_one(&format!("[`{}`](b.md) {}.\n", words(40), words(29)), &[]), "");
        assert_eq!(check_one(&format!("```text\n{}\n```\n", words(40)), &[]), "");
    }

    #[test]
    fn an_older_document_is_let_alone_until_it_keeps_the_rule() {
        assert_eq!(check_one(&format!("{}.\n", words(31)), &["docs/a.md"]), "");
        assert!(check_one("Short.\n", &["docs/a.md"]).contains("still names this one"));
    }
}
