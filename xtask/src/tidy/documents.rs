//! The rule that the reference page of coordination documents names those that the code keeps, with their fields.

use std::collections::{BTreeMap, BTreeSet};

use super::markdown::{Row, code_spans, table};
use super::{Offence, Tree};

/// Every document of the coordination service stands on the reference page with the fields of its type, and no other.
pub(crate) const RULE: &str = "coordination-documents";

const PAGE: &str = "docs/reference/documents.md";
const CODE: &str = "crates/coordination/src/documents";
/// Where the types of documents are.
const TYPES: &[&str] = &["crates/coordination/src/documents", "crates/model/src/", "crates/control/src/"];
const HEADER: &[&str] = &["path", "type", "fields", "written by", "read by", "bytes"];
/// The field with what a later version adds.
const LATER: &str = "unknown";
const PLACE: &str = "known(\"/";
const WHY: &str =
    "an operator who looks into the service and the author of the next version rely on the page";

/// See [`RULE`].
pub(crate) fn check(tree: &Tree) -> Vec<Offence> {
    let offence = |path: &str, line, what| Offence {
        path: path.to_owned(),
        line,
        rule: RULE,
        what,
        why: WHY,
        mend: format!("make {PAGE} say what the code keeps"),
    };
    let places = places(tree);
    if places.is_empty() {
        return Vec::new();
    }
    let rows = tree.text(PAGE).and_then(|text| table(text, HEADER)).unwrap_or_default();
    if rows.is_empty() {
        return vec![offence(PAGE, 1, "it lists no document".to_owned())];
    }
    let mut offences = Vec::new();
    for (place, (path, line)) in &places {
        if !rows.iter().any(|row| belongs(row, place)) {
            offences.push(offence(path, *line, format!("{place} is not in {PAGE}")));
        }
    }
    for row in &rows {
        let cell = row.cells[0];
        if !places.keys().any(|place| belongs(row, place)) {
            offences.push(offence(PAGE, row.line, format!("the code keeps no {cell}")));
        }
        let listed: BTreeSet<&str> = code_spans(row.cells[2]).collect();
        let Some(name) = code_spans(row.cells[1]).next() else { continue };
        match fields(tree, name) {
            None => offences.push(offence(PAGE, row.line, format!("the code has no type {name}"))),
            Some(known) if known != listed => {
                let known: Vec<_> = known.into_iter().map(|field| format!("`{field}`")).collect();
                offences.push(offence(PAGE, row.line, format!("{name} has the fields {}", known.join(", "))));
            }
            Some(_) => {}
        }
    }
    offences
}

/// Whether a row is about a place or what lies below it.
fn belongs(row: &Row<'_>, place: &str) -> bool {
    code_spans(row.cells[0])
        .any(|path| path.strip_prefix(place).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
}

/// The places that the code names, each with where it does.
fn places(tree: &Tree) -> BTreeMap<String, (String, usize)> {
    let mut found = BTreeMap::new();
    for (path, text) in rust_below(tree, &[CODE]) {
        for (number, line) in text.lines().enumerate() {
            if let Some((_, rest)) = line.split_once(PLACE)
                && let Some((place, _)) = rest.split_once('"')
            {
                found.insert(format!("/{place}"), (path.to_owned(), number + 1));
            }
        }
    }
    found
}

/// The public fields of a type, but those that hold what a later version adds.
fn fields<'a>(tree: &'a Tree, name: &str) -> Option<BTreeSet<&'a str>> {
    let opening = format!("pub struct {name} {{");
    let body = rust_below(tree, TYPES).find_map(|(_, text)| Some(text.split_once(&opening)?.1))?;
    let body = body.split_once("\n}")?.0;
    let public = |line: &'a str| Some(line.trim().strip_prefix("pub ")?.split_once(':')?.0);
    Some(body.lines().filter_map(public).filter(|field| *field != LATER).collect())
}

/// Rust files of these folders, and of the files beside them that have their names.
fn rust_below<'a>(tree: &'a Tree, places: &'a [&str]) -> impl Iterator<Item = (&'a str, &'a str)> {
    tree.ending(".rs").filter(|(path, _)| places.iter().any(|place| path.starts_with(place)))
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::super::brief;
    use super::*;

    #[test]
    fn a_page_that_lists_other_documents_or_fields_than_the_code_is_an_offence() {
        let code = "//! T.\n\nfn a() { known(\"/active\") }\nfn b() { known(\"/config/ids\") }\n\n\
            pub struct Ids {\n    /// A.\n    pub last: u32,\n    pub unknown: Map,\n}\n";
        let code_path = "crates/coordination/src/documents.rs";
        let page = |rows: &str| {
            format!(
                "| path | type | fields | written by | read by | bytes |\n|---|---|---|---|---|---|\n{rows}"
            )
        };
        let other = page(
            "| `/active/nN` | `Active` | `node` | n | n | 1 |\n| `/config/idsx` | `Ids` | `first` | n | n | 1 |\n",
        );
        let tree = Tree::planted(&[(code_path, code), (PAGE, &other)]);
        expect![[r#"
            crates/coordination/src/documents.rs:4 /config/ids is not in docs/reference/documents.md
            docs/reference/documents.md:3 the code has no type Active
            docs/reference/documents.md:4 the code keeps no `/config/idsx`
            docs/reference/documents.md:4 Ids has the fields `last`
        "#]]
        .assert_eq(&brief(&check(&tree)));
        let same =
            page("| `/active/nN` | - | - | n | n | 1 |\n| `/config/ids` | `Ids` | `last` | n | n | 1 |\n");
        assert_eq!(check(&Tree::planted(&[(code_path, code), (PAGE, &same)])), []);
        assert_eq!(check(&Tree::planted(&[(code_path, code)])).len(), 1, "a page that is not there");
    }
}
