//! The rule that the reference page of errors lists every code of a refusal or reason, as the code describes it.

use super::markdown::table;
use super::{Offence, Tree};

/// Every code of refusals and reasons stands on the reference page with what the code says of it, and no other does.
pub(crate) const RULE: &str = "refusals";

const DOCUMENT: &str = "docs/reference/errors.md";
const HEADER: &[&str] = &["of", "code", "meaning"];
const WHY: &str = "programs rely on the codes, and people look them up";

/// File, enumeration, and what its codes are of.
const ENUMERATIONS: &[(&str, &str, &str)] = &[
    ("crates/model/src/order/answer.rs", "Done", "an order that was carried out"),
    ("crates/model/src/order/refusal.rs", "OrderRefusal", "an order that was refused"),
    ("crates/model/src/plan/refusal.rs", "PlanRefusal", "a wish that cannot be fulfilled"),
    ("crates/model/src/cluster/numbers.rs", "NumbersError", "other numbers of a store"),
    ("crates/model/src/cluster/stores.rs", "CreateStoreError", "a store that cannot be created"),
    ("crates/model/src/store.rs", "StoreError", "a definition of a store"),
    ("crates/model/src/cluster/stores.rs", "ArtifactsError", "artifacts of a cluster"),
    ("crates/model/src/artifacts.rs", "ArtifactError", "an artifact"),
    ("crates/model/src/access/change.rs", "UserError", "users of a cluster"),
    ("crates/model/src/order/refusal.rs", "Stale", "a plan that is stale"),
    ("crates/model/src/order/refusal.rs", "Holds", "what a node holds"),
    ("crates/model/src/node.rs", "LifeSign", "a sign of life"),
    ("crates/model/src/plan/state.rs", "Reason", "a plan that failed"),
    ("crates/model/src/plan/state.rs", "PlanHeld", "what holds a plan up"),
    ("crates/model/src/plan/waiting.rs", "Waiting", "whom a step waits for"),
];

/// See [`RULE`].
pub(crate) fn check(tree: &Tree) -> Vec<Offence> {
    let offence = |path: &str, line, what| Offence {
        path: path.to_owned(),
        line,
        rule: RULE,
        what,
        why: WHY,
        mend: format!("make the table of {DOCUMENT} say what the code says"),
    };
    let rows = tree.text(DOCUMENT).and_then(|text| table(text, HEADER)).unwrap_or_default();
    let (mut offences, mut listed) = (Vec::new(), Vec::new());
    for (path, name, of) in ENUMERATIONS {
        let Some(code) = tree.text(path) else { continue };
        let described = described(code, name);
        if described.is_empty() {
            offences.push(offence(path, 1, format!("it has no enumeration {name} with codes")));
        }
        for (line, code, meaning) in described {
            let cells = [(*of).to_owned(), format!("`{code}`"), meaning];
            if !rows.iter().any(|row| row.cells == cells) {
                let [of, code, meaning] = &cells;
                let what = format!("the page has no row | {of} | {code} | {meaning} |");
                offences.push(offence(path, line, what));
            }
            listed.push(cells);
        }
    }
    if listed.is_empty() {
        return Vec::new();
    }
    for row in &rows {
        if !listed.iter().any(|cells| row.cells == *cells) {
            offences.push(offence(DOCUMENT, row.line, format!("the code has no {}", row.cells.join(" | "))));
        }
    }
    offences
}

/// The variants of an enumeration: line, code, and the first sentences of the description.
fn described(code: &str, name: &str) -> Vec<(usize, String, String)> {
    let opening = format!("pub enum {name} {{");
    let lines: Vec<&str> = code.lines().collect();
    let Some(start) = lines.iter().position(|line| *line == opening) else { return Vec::new() };
    let (mut found, mut meaning) = (Vec::new(), String::new());
    for (at, line) in lines.iter().enumerate().skip(start + 1).take_while(|(_, line)| **line != "}") {
        if let Some(text) = line.strip_prefix("    /// ") {
            if !meaning.is_empty() {
                meaning.push(' ');
            }
            meaning.push_str(text);
        } else if let Some(variant) = line.strip_prefix("    ").filter(|text| starts_upper(text)) {
            let end = variant.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(variant.len());
            found.push((at + 1, kebab(&variant[..end]), std::mem::take(&mut meaning)));
        } else if line.starts_with("    }") {
            meaning.clear();
        }
    }
    found
}

fn starts_upper(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_uppercase())
}

/// `NodeUnknown` as `node-unknown`.
fn kebab(name: &str) -> String {
    let mut kebab = String::new();
    for c in name.chars() {
        if c.is_ascii_uppercase() && !kebab.is_empty() {
            kebab.push('-');
        }
        kebab.push(c.to_ascii_lowercase());
    }
    kebab
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::super::brief;
    use super::*;

    #[test]
    fn a_page_that_lists_other_codes_than_the_code_is_an_offence() {
        let code = "/// T.\n#[serde(tag = \"code\")]\npub enum Waiting {\n    /// A copy\n    /// is due.\n    Copy {\n        \
            /// The node.\n        node: u8,\n    },\n    /// Another.\n    ToAdopt(u8),\n}\n";
        let path = "crates/model/src/plan/waiting.rs";
        let head = "| of | code | meaning |\n|---|---|---|\n";
        let of = "whom a step waits for";
        let page = format!("{head}| {of} | `copy` | A copy is due. |\n| {of} | `gone` | Gone. |\n");
        let tree = Tree::planted(&[(path, code), (DOCUMENT, &page)]);
        expect![[r#"
            crates/model/src/plan/waiting.rs:11 the page has no row | whom a step waits for | `to-adopt` | Another. |
            docs/reference/errors.md:4 the code has no whom a step waits for | `gone` | Gone.
        "#]]
        .assert_eq(&brief(&check(&tree)));
        let page = format!("{head}| {of} | `copy` | A copy is due. |\n| {of} | `to-adopt` | Another. |\n");
        assert_eq!(check(&Tree::planted(&[(path, code), (DOCUMENT, &page)])), []);
    }
}
