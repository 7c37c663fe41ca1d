//! The rule that the reference page of metrics says of each what the code says.

use std::collections::BTreeMap;

use super::markdown::{Row, table};
use super::{Offence, Tree};

/// Every metric of the code stands on the reference page as the code describes it, and no other does.
pub(crate) const RULE: &str = "metrics";

const DOCUMENT: &str = "docs/reference/metrics.md";
const CODE: &str = "crates/node/src/metrics/table.rs";
const HEADER: &[&str] = &["name", "type", "labels", "unit", "meaning"];
const OPENING: &str = "\nmetrics! {\n";
const WHY: &str = "an operator builds dashboards and alerts from the page, and a scraper sees the code";

/// See [`RULE`].
pub(crate) fn check(tree: &Tree) -> Vec<Offence> {
    let Some(code) = tree.text(CODE) else { return Vec::new() };
    let offence = |path: &str, line, what| Offence {
        path: path.to_owned(),
        line,
        rule: RULE,
        what,
        why: WHY,
        mend: format!("make the row of {DOCUMENT} say what {CODE} says"),
    };
    let described = described(code);
    let rows = tree.text(DOCUMENT).and_then(|text| table(text, HEADER)).unwrap_or_default();
    let mut offences = Vec::new();
    if described.is_empty() || rows.is_empty() {
        offences.push(offence(
            if rows.is_empty() { DOCUMENT } else { CODE },
            1,
            "it lists no metric".to_owned(),
        ));
        return offences;
    }
    for (name, (line, cells)) in &described {
        match rows.iter().find(|row| row.cells.first().copied() == cells.first().map(String::as_str)) {
            None => offences.push(offence(CODE, *line, format!("{name} is not in {DOCUMENT}"))),
            Some(row) => {
                offences.extend(differing(row, cells).map(|what| {
                    offence(DOCUMENT, row.line, format!("{name} has another {what} in the code"))
                }))
            }
        }
    }
    for row in &rows {
        let name = row.cells.first().copied().unwrap_or_default().trim_matches('`');
        if !described.contains_key(name) {
            offences.push(offence(DOCUMENT, row.line, format!("the code has no {name}")));
        }
    }
    offences
}

/// The columns in which a row differs from what the code says.
fn differing<'a>(row: &'a Row<'_>, cells: &'a [String]) -> impl Iterator<Item = &'static str> + 'a {
    let pairs = cells.iter().enumerate().zip(HEADER);
    pairs.filter(|((at, cell), _)| row.cells.get(*at) != Some(&cell.as_str())).map(|(_, column)| *column)
}

/// The metrics that the code describes: by name, the line and the cells that the page shall have.
fn described(code: &str) -> BTreeMap<String, (usize, Vec<String>)> {
    let Some(start) = code.find(OPENING).map(|at| at + OPENING.len()) else { return BTreeMap::new() };
    let first_line = code[..start].matches('\n').count() + 1;
    let mut found = BTreeMap::new();
    let (mut line, mut entry, mut began) = (first_line, String::new(), first_line);
    for text in code[start..].lines().take_while(|text| *text != "}") {
        if entry.is_empty() {
            began = line;
        }
        entry.push_str(text.trim());
        entry.push(' ');
        if text.ends_with(';') {
            if let Some(cells) = cells(&entry) {
                found.insert(cells[0].trim_matches('`').to_owned(), (began, cells));
            }
            entry.clear();
        }
        line += 1;
    }
    found
}

/// The cells of `kind "name" ["label"] "unit" "meaning";`.
fn cells(entry: &str) -> Option<Vec<String>> {
    let (kind, rest) = entry.trim().split_once(' ')?;
    let (name, rest) = rest.split_once('[')?;
    let (labels, rest) = rest.split_once(']')?;
    let strings =
        |text: &str| -> Vec<String> { text.split('"').skip(1).step_by(2).map(str::to_owned).collect() };
    let labels: Vec<String> = strings(labels).into_iter().map(|label| format!("`{label}`")).collect();
    let labels = if labels.is_empty() { "-".to_owned() } else { labels.join(", ") };
    let [unit, meaning] = <[String; 2]>::try_from(strings(rest)).ok()?;
    let name = format!("`{}`", strings(name).pop()?);
    Some(vec![name, kind.to_owned(), labels, unit, meaning])
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::super::brief;
    use super::*;

    #[test]
    fn a_page_that_says_something_else_than_the_code_is_an_offence() {
        let code = "//! T.\n\nmetrics! {\n    counter \"a_total\" [\"way\"] \"keys\"\n        \"Keys.\";\n    \
            gauge \"b\" [] \"1\"\n        \"Bees.\";\n    gauge \"c\" [] \"bytes\"\n        \"Sea.\";\n}\n";
        let page = "| name | type | labels | unit | meaning |\n|---|---|---|---|---|\n\
            | `a_total` | counter | `way` | keys | Keys. |\n| `b` | counter | - | 1 | Bees! |\n\
            | `d` | gauge | - | 1 | Gone. |\n";
        let tree = Tree::planted(&[(CODE, code), (DOCUMENT, page)]);
        expect![[r#"
            docs/reference/metrics.md:4 b has another type in the code
            docs/reference/metrics.md:4 b has another meaning in the code
            crates/node/src/metrics/table.rs:8 c is not in docs/reference/metrics.md
            docs/reference/metrics.md:5 the code has no d
        "#]]
        .assert_eq(&brief(&check(&tree)));
        let whole = "| name | type | labels | unit | meaning |\n|---|---|---|---|---|\n\
            | `a_total` | counter | `way` | keys | Keys. |\n| `b` | gauge | - | 1 | Bees. |\n\
            | `c` | gauge | - | bytes | Sea. |\n";
        assert_eq!(check(&Tree::planted(&[(CODE, code), (DOCUMENT, whole)])), []);
        assert_eq!(check(&Tree::planted(&[(CODE, code)])).len(), 1, "a page that is not there");
    }
}
