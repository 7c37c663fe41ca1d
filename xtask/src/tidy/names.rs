//! The rule that declared names use the glossary's words and say what the thing is.

use super::glossary::{DOCUMENT, banned};
use super::source::Declared;
use super::{Offence, Tree};

/// Declared names use the glossary's words.
pub(crate) const RULE: &str = "names";

const WHY: &str =
    "a second word for a known thing, or a word for anything at all, hides the thing from who searches it";

/// Words at the end of a type's or file's name that say nothing about it.
const EMPTY: &[&str] =
    &["manager", "helper", "helpers", "util", "utils", "info", "data", "common", "misc", "stuff", "impl"];

/// See [`RULE`].
pub(crate) fn check(tree: &Tree) -> Vec<Offence> {
    let banned = banned(tree);
    let mut offences = Vec::new();
    let mut offence = |path: &str, line: usize, what: String, mend: String| {
        offences.push(Offence { path: path.to_owned(), line, rule: RULE, what, why: WHY, mend });
    };
    let empty_mend = || "name what it holds or does: the noun that a reader would search for".to_owned();
    for (path, source) in tree.rust() {
        let stem = path.rsplit('/').next().unwrap_or(path).trim_end_matches(".rs");
        if EMPTY.contains(&stem) {
            offence(path, 1, format!("the file name `{stem}` says nothing"), empty_mend());
        }
        for declared in source.declared() {
            let words = words(declared.name);
            let line = source.line(declared.at);
            if is_given(source.text(), &declared) {
                continue;
            }
            let is_type = matches!(declared.kind, "struct" | "enum" | "union" | "trait" | "type" | "mod");
            if is_type && words.last().is_some_and(|word| EMPTY.contains(&word.as_str())) {
                offence(path, line, format!("the name `{}` says nothing", declared.name), empty_mend());
            }
            for word in &words {
                let singular = word.strip_suffix('s').unwrap_or(word);
                let instead = banned.get(word.as_str()).or_else(|| banned.get(singular));
                if let Some(instead) = instead {
                    let mend = format!("say \"{instead}\", as {DOCUMENT} does");
                    offence(path, line, format!("`{}` uses the word \"{word}\"", declared.name), mend);
                }
            }
        }
    }
    offences
}

/// Whether it is a type in an `impl`, which bears the name that its trait gave it.
fn is_given(text: &str, declared: &Declared<'_>) -> bool {
    let before = text[..declared.at].rsplit('\n').next().unwrap_or_default();
    let behind = text[declared.at + declared.name.len()..].trim_start();
    declared.kind == "type" && before.starts_with(' ') && before.trim() == "type" && behind.starts_with('=')
}

/// The words of `snake_case`, `SCREAMING_CASE` or `CamelCase`, in lower case.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut after_lower = false;
    for letter in name.chars() {
        if letter == '_' || (letter.is_uppercase() && after_lower) {
            words.push(String::new());
        }
        after_lower = letter.is_lowercase() || letter.is_numeric();
        if letter != '_' {
            words.last_mut().expect("there is always one").extend(letter.to_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn names_in_other_words_or_without_meaning_are_offences() {
        let tree = Tree::planted(&[
            (DOCUMENT, "| word | means | not |\n|---|---|---|\n| partition | x | `shard`, range |\n"),
            (
                "crates/a/src/ring.rs",
                "struct RingManager;\nenum ShardState { Data }\nfn shards() {}\nconst SHARD_COUNT: u8 = 1;\n\
                 struct Database;\nfn data() {}\n// struct Shard\nfn range(x: &'static Info) {}\n\
                 impl Body for Ring {\n    type Data = u8;\n}\npub type RingData = u8;\n",
            ),
            ("crates/a/src/utils.rs", "//! x\n"),
        ]);
        expect![[r#"
            crates/a/src/ring.rs:1 the name `RingManager` says nothing
            crates/a/src/ring.rs:2 `ShardState` uses the word "shard"
            crates/a/src/ring.rs:3 `shards` uses the word "shards"
            crates/a/src/ring.rs:4 `SHARD_COUNT` uses the word "shard"
            crates/a/src/ring.rs:12 the name `RingData` says nothing
            crates/a/src/utils.rs:1 the file name `utils` says nothing
        "#]]
        .assert_eq(&super::super::brief(&check(&tree)));
    }

    #[test]
    fn names_fall_into_words() {
        assert_eq!(words("RESPValue2Max"), ["respvalue2", "max"]);
        assert_eq!(words("hint_bytes_MAX"), ["hint", "bytes", "max"]);
    }
}
