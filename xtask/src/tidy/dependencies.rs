//! The rule that every library has its reason, and every reason its library.

use std::collections::{BTreeMap, BTreeSet};

use toml::Table;

use super::manifest::{dependencies, line_of, manifests};
use super::markdown::{code_spans, table};
use super::{Offence, Tree};

/// Libraries and the table of `docs/design/dependencies.md` agree.
pub(crate) const RULE: &str = "dependencies";

const DOCUMENT: &str = "docs/design/dependencies.md";
const HEADER: &[&str] = &["crate", "for", "why this one"];
const WHY: &str = "a library is a debt that somebody must be able to weigh; its reason is written down once";

/// See [`RULE`].
pub(crate) fn check(tree: &Tree) -> Vec<Offence> {
    let mut offences = Vec::new();
    let mut offence = |path: &str, line: usize, what: String, mend: &str| {
        offences.push(Offence {
            path: path.to_owned(),
            line,
            rule: RULE,
            what,
            why: WHY,
            mend: mend.to_owned(),
        });
    };
    let root_text = tree.text("Cargo.toml").unwrap_or_default();
    let root: Table = root_text.parse().unwrap_or_default();
    let declared = root.get("workspace").and_then(|w| w.get("dependencies")).and_then(|d| d.as_table());
    let libraries: BTreeSet<&str> = declared
        .into_iter()
        .flatten()
        .filter(|(_, value)| value.get("path").is_none())
        .map(|(key, value)| value.get("package").and_then(|package| package.as_str()).unwrap_or(key))
        .collect();

    let rows = tree.text(DOCUMENT).and_then(|text| table(text, HEADER)).unwrap_or_default();
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    for row in &rows {
        let name = code_spans(row.cells[0]).next().unwrap_or(row.cells[0]);
        if reasons.insert(name, row.line).is_some() {
            offence(DOCUMENT, row.line, format!("`{name}` is listed twice"), "keep one line");
        }
        if row.cells.len() < 3 || row.cells[1..].iter().any(|cell| cell.is_empty()) {
            offence(
                DOCUMENT,
                row.line,
                format!("`{name}` has an empty cell"),
                "say what for, and why this one",
            );
        }
        if !libraries.contains(name) {
            offence(
                DOCUMENT,
                row.line,
                format!("`{name}` is no dependency of the workspace"),
                "take the line out",
            );
        }
    }
    let manifests: Vec<_> = manifests(tree).collect();
    let used: BTreeSet<String> = manifests
        .iter()
        .flat_map(|(_, text, manifest)| dependencies(text, manifest))
        .map(|dependency| dependency.name)
        .collect();
    for name in libraries {
        let line = line_of(root_text, name);
        if !reasons.contains_key(name) {
            offence(
                "Cargo.toml",
                line,
                format!("`{name}` has no reason"),
                "add its line to docs/design/dependencies.md",
            );
        }
        if !used.contains(name) {
            offence(
                "Cargo.toml",
                line,
                format!("no crate uses `{name}`"),
                "take it out, here and in its line",
            );
        }
    }
    offences
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn libraries_without_reason_or_use_and_reasons_without_library_are_offences() {
        let tree = Tree::planted(&[
            (
                "Cargo.toml",
                "[workspace.dependencies]\nmodel = { path = \"crates/model\" }\nbytes = \"1\"\nserde = \"1\"\nidle = \"1\"\n",
            ),
            (
                "crates/model/Cargo.toml",
                "[package]\n[dependencies]\nbytes.workspace = true\nserde.workspace = true\n",
            ),
            (
                DOCUMENT,
                "| crate | for | why this one |\n|---|---|---|\n| `bytes` | buffers | shared |\n| `gone` | x | y |\n\
                 | `idle` | z | |\n| `bytes` | again | and again |\n",
            ),
        ]);
        expect![[r#"
            docs/design/dependencies.md:4 `gone` is no dependency of the workspace
            docs/design/dependencies.md:5 `idle` has an empty cell
            docs/design/dependencies.md:6 `bytes` is listed twice
            Cargo.toml:5 no crate uses `idle`
            Cargo.toml:4 `serde` has no reason
        "#]]
        .assert_eq(&super::super::brief(&check(&tree)));
    }
}
