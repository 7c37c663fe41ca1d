//! Reading Markdown as far as the rules need: tables, links, headings; never inside code fences.

/// A row of a table.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Row<'a> {
    pub(crate) line: usize,
    pub(crate) cells: Vec<&'a str>,
}

/// A link or image with its target as written.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Link<'a> {
    pub(crate) line: usize,
    pub(crate) target: &'a str,
}

/// Rows of the first table whose header has these cells (ignoring case), without the header.
pub(crate) fn table<'a>(text: &'a str, header: &[&str]) -> Option<Vec<Row<'a>>> {
    let mut lines = prose(text);
    lines.find(|(_, line)| {
        let cells = cells(line);
        cells.len() == header.len()
            && cells.iter().zip(header).all(|(cell, name)| cell.eq_ignore_ascii_case(name))
    })?;
    let rows = lines.take_while(|(_, line)| line.trim_start().starts_with('|'));
    Some(rows.skip(1).map(|(line, text)| Row { line, cells: cells(text) }).collect())
}

/// The insides of `` `code spans` ``.
pub(crate) fn code_spans(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Inline links, images and reference definitions.
pub(crate) fn links(text: &str) -> Vec<Link<'_>> {
    let mut found = Vec::new();
    for (line, text) in prose(text) {
        if let Some((label, target)) = text.strip_prefix('[').and_then(|rest| rest.split_once("]: ")) {
            if !label.contains(']') {
                found.push(Link { line, target: first_word(target) });
            }
            continue;
        }
        let outside_code = text.split('`').step_by(2);
        for part in outside_code {
            let targets = part.match_indices("](").filter_map(|(at, _)| part[at + 2..].split_once(')'));
            found.extend(targets.map(|(target, _)| Link { line, target: first_word(target) }));
        }
        // A link whose label is a code span is cut in two by the split above.
        let labelled = text.match_indices("`](").filter_map(|(at, _)| text[at + 3..].split_once(')'));
        for (target, _) in labelled {
            let link = Link { line, target: first_word(target) };
            if !found.contains(&link) {
                found.push(link);
            }
        }
    }
    found
}

/// Code spans in prose that are a path of the checkout, seen from its root.
pub(crate) fn paths(text: &str) -> Vec<Link<'_>> {
    const ROOTS: &[&str] = &["crates/", "docs/", "fuzz/", "python/", "tests-redis/", "xtask/"];
    let placeholder = |span: &str| span.contains(|c: char| c.is_whitespace() || "<>*{}$:".contains(c));
    let spans =
        prose(text).flat_map(|(line, text)| code_spans(text).map(move |target| Link { line, target }));
    spans
        .filter(|span| ROOTS.iter().any(|root| span.target.starts_with(root)) && !placeholder(span.target))
        .collect()
}

/// The anchors that headings make, as the usual renderers derive them.
pub(crate) fn anchors(text: &str) -> Vec<String> {
    let headings = prose(text).filter(|(_, line)| line.starts_with('#'));
    headings
        .map(|(_, line)| {
            let heading = line.trim_start_matches('#').trim().to_lowercase();
            let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        })
        .collect()
}

/// Lines outside of code fences, numbered from 1.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        (!fenced && !fence).then_some((index + 1, line))
    })
}

fn cells(line: &str) -> Vec<&str> {
    let Some(inner) = line.trim().strip_prefix('|') else { return Vec::new() };
    inner.strip_suffix('|').unwrap_or(inner).split('|').map(str::trim).collect()
}

fn first_word(target: &str) -> &str {
    target.split_whitespace().next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_found_by_their_header_and_end_with_their_last_row() {
        let text = "| a | b |\n|---|---|\n| 1 | 2 |\n\n| Crate | Is |\n|---|---|\n| `x` | y |\n| z | |\nend\n| no | no |\n";
        let rows = table(text, &["crate", "is"]).unwrap();
        assert_eq!(rows.iter().map(|row| row.cells.clone()).collect::<Vec<_>>(), [["`x`", "y"], ["z", ""]]);
        assert_eq!(rows[0].line, 7);
        assert_eq!(table(text, &["crate", "may use"]), None);
    }

    #[test]
    fn links_are_found_outside_of_code_only() {
        let text = "[a](b.md#c) and ![d](e.png \"title\") `[f](g)`\n```\n[h](i)\n```\n[`j`](k)\n[l]: m\n";
        let targets: Vec<&str> = links(text).iter().map(|link| link.target).collect();
        assert_eq!(targets, ["b.md#c", "e.png", "k", "m"]);
    }

    #[test]
    fn anchors_follow_headings() {
        assert_eq!(anchors("# One: two `three`\n## A-b\n"), ["one-two-three", "a-b"]);
    }
}
