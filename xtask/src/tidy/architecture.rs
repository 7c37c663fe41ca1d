//! The rule that crates depend on each other as the table in `ARCHITECTURE.md` allows, and on nothing else.

use std::collections::{BTreeMap, BTreeSet};

use super::manifest::{dependencies, manifests};
use super::markdown::{code_spans, table};
use super::{Offence, Tree};

/// Crates and the table of `ARCHITECTURE.md` agree.
pub(crate) const RULE: &str = "architecture";

/// It feeds the decoders of all crates, and none uses it.
const FUZZ: &str = "fuzz/Cargo.toml";
const DOCUMENT: &str = "ARCHITECTURE.md";
const HEADER: &[&str] = &["crate", "is", "may use"];
const WHY: &str =
    "a crate says what kind of code lives there; a dependency against the table brings the wrong kind in";

/// See [`RULE`].
pub(crate) fn check(tree: &Tree) -> Vec<Offence> {
    let mut offences = Vec::new();
    let mut offence = |path: &str, line: usize, what: String, mend: String| {
        offences.push(Offence { path: path.to_owned(), line, rule: RULE, what, why: WHY, mend });
    };
    let Some(rows) = tree.text(DOCUMENT).and_then(|text| table(text, HEADER)) else {
        let mend = format!("restore the table with the columns {}", HEADER.join(", "));
        offence(DOCUMENT, 1, "the table of crates is missing".into(), mend);
        return offences;
    };
    let manifests: Vec<_> = manifests(tree).collect();
    let folder = |path: &str| Some(path.strip_prefix("crates/")?.strip_suffix("/Cargo.toml")?.to_owned());
    let crates: BTreeSet<String> = manifests.iter().filter_map(|(path, _, _)| folder(path)).collect();

    let all: BTreeSet<&str> = crates.iter().map(String::as_str).collect();
    let mut allowed: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for row in &rows {
        let Some(name) = code_spans(row.cells[0]).next() else {
            let mend = "name the crate in the first cell, in backquotes".to_owned();
            offence(DOCUMENT, row.line, "a row names no crate".into(), mend);
            continue;
        };
        let uses: BTreeSet<&str> = row.cells.get(2).into_iter().flat_map(|cell| code_spans(cell)).collect();
        for missing in std::iter::once(&name).chain(&uses).filter(|name| !crates.contains(**name)) {
            let mend = format!("create crates/{missing} or take it out of the table");
            offence(DOCUMENT, row.line, format!("there is no crate `{missing}`"), mend);
        }
        if allowed.insert(name, uses).is_some() {
            offence(DOCUMENT, row.line, format!("`{name}` has two rows"), "keep one of them".into());
        }
    }
    for (path, text, manifest) in &manifests {
        let name = folder(path);
        let uses = match &name {
            Some(name) => allowed.get(name.as_str()),
            None if *path == FUZZ => Some(&all),
            None => Some(const { &BTreeSet::new() }),
        };
        let Some(uses) = uses else {
            let mend = format!("add its row to {DOCUMENT}: what it is, and which crates it may use");
            offence(path, 1, "the crate has no row in the table".into(), mend);
            continue;
        };
        let inner =
            dependencies(text, manifest).into_iter().filter(|dependency| crates.contains(&dependency.name));
        for dependency in inner.filter(|dependency| !uses.contains(dependency.name.as_str())) {
            let here = name.as_deref().unwrap_or("a crate outside of crates/");
            let mend =
                format!("move the code to the floor where it belongs, or argue for a change of {DOCUMENT}");
            offence(path, dependency.line, format!("{here} may not use `{}`", dependency.name), mend);
        }
    }
    offences
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn dependencies_against_the_table_and_rows_without_crates_are_offences() {
        let tree = Tree::planted(&[
            (
                "ARCHITECTURE.md",
                "| crate | is | may use |\n|---|---|---|\n| `model` | values | nothing |\n\
                 | [`node`](x) | runs | `model` |\n| `ghost` | | |\n| model | | |\n",
            ),
            (
                "crates/model/Cargo.toml",
                "[package]\nname = \"model\"\n[dev-dependencies]\nnode.workspace = true\n",
            ),
            ("crates/node/Cargo.toml", "[package]\n[dependencies]\nmodel.workspace = true\nserde = \"1\"\n"),
            ("crates/extra/Cargo.toml", "[package]\n"),
            ("xtask/Cargo.toml", "[package]\n[dependencies]\nmodel.workspace = true\n"),
        ]);
        expect![[r#"
            ARCHITECTURE.md:5 there is no crate `ghost`
            ARCHITECTURE.md:6 a row names no crate
            crates/extra/Cargo.toml:1 the crate has no row in the table
            crates/model/Cargo.toml:4 model may not use `node`
            xtask/Cargo.toml:3 a crate outside of crates/ may not use `model`
        "#]]
        .assert_eq(&super::super::brief(&check(&tree)));
    }

    #[test]
    fn without_a_table_nothing_is_allowed_silently() {
        assert_eq!(check(&Tree::planted(&[("ARCHITECTURE.md", "# none\n")])).len(), 1);
    }
}
