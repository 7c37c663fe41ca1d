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

/// A text that stands alone: a paragraph, a heading, an item of a list, a cell of a table.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Block {
    /// Its words with their lines; a code span is one word, the target of a link none.
    pub(crate) words: Vec<(usize, String)>,
}

/// The texts of a document, outside of code fences.
pub(crate) fn blocks(text: &str) -> Vec<Block> {
    let mut blocks = vec![Block::default()];
    let mut before = 0;
    for (line, text) in prose(text) {
        let trimmed = text.trim_start();
        if trimmed.starts_with('|') {
            blocks.extend(
                cells(&text.replace("\\|", "/")).iter().map(|cell| Block { words: words(line, cell) }),
            );
            blocks.push(Block::default());
            continue;
        }
        // A fence between two lines has ended the paragraph as well.
        if trimmed.is_empty() || trimmed.starts_with('#') || is_item(trimmed) || line > before + 1 {
            blocks.push(Block::default());
        }
        blocks.last_mut().expect("there is always one").words.extend(words(line, trimmed));
        if trimmed.starts_with('#') {
            blocks.push(Block::default());
        }
        before = line;
    }
    blocks.retain(|block| !block.words.is_empty());
    blocks
}

fn is_item(line: &str) -> bool {
    let numbered = line.trim_start_matches(|c: char| c.is_ascii_digit());
    ["- ", "* ", "> "].iter().any(|mark| line.starts_with(mark))
        || (numbered.len() < line.len() && numbered.starts_with(". "))
}

/// The words of a line, without the mark of a list's item or a heading.
fn words(line: usize, text: &str) -> Vec<(usize, String)> {
    let text = if is_item(text) { text.split_once(' ').map_or("", |(_, rest)| rest) } else { text };
    let mut plain = String::new();
    for (index, part) in text.split('`').enumerate() {
        match index % 2 {
            0 => plain.push_str(part),
            // Without blanks and ends of sentences.
            _ => plain.push_str("code"),
        }
    }
    // `[words](target)` reads as its words.
    while let Some((before, rest)) = plain.split_once("](") {
        let after = rest.split_once(')').map_or("", |(_, after)| after);
        plain = format!("{before}{after}");
    }
    plain.split_whitespace().map(|word| (line, word.to_owned())).collect()
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
    fn blocks_are_paragraphs_items_headings_and_cells() {
        let text = "# One\nTwo\nthree `a b.` [four](five six.md).\n- six\n1. seven\n| eight | nine |\n```\nno\n```\nten\n";
        let shown: Vec<String> = blocks(text)
            .iter()
            .map(|block| block.words.iter().map(|(_, word)| word.as_str()).collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(shown, ["# One", "Two three code [four.", "six", "seven", "eight", "nine", "ten"]);
    }

    #[test]
    fn anchors_follow_headings() {
        assert_eq!(anchors("# One: two `three`\n## A-b\n"), ["one-two-three", "a-b"]);
    }
}
