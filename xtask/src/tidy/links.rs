//! The rule that links between our documents, and paths that they name, lead somewhere.

use super::markdown::{anchors, links, paths};
use super::{Offence, Tree};

/// Relative links in Markdown resolve, and so do paths in backquotes, seen from the root or from the page.
pub(crate) const RULE: &str = "links";

const WHY: &str = "a reader who follows a dead link stops trusting the page";

/// See [`RULE`].
pub(crate) fn check(tree: &Tree) -> Vec<Offence> {
    let mut offences = Vec::new();
    for (path, text) in tree.ending(".md") {
        let linked = links(text).into_iter().map(|link| (fault(tree, path, link.target), link.line));
        let named = paths(text).into_iter().map(|named| {
            let target = named.target.trim_end_matches('/');
            let beside = resolve(path, target).is_some_and(|beside| tree.holds(&beside));
            let there = tree.holds(target) || beside;
            ((!there).then(|| format!("`{target}` is not there")), named.line)
        });
        for (fault, line) in linked.chain(named) {
            let Some(fault) = fault else { continue };
            offences.push(Offence {
                path: path.to_owned(),
                line,
                rule: RULE,
                what: fault,
                why: WHY,
                mend: "point it at what is there, relative to this file, or take it out".into(),
            });
        }
    }
    offences
}

fn fault(tree: &Tree, page: &str, target: &str) -> Option<String> {
    let elsewhere = target.contains("://") || target.starts_with("mailto:") || target.starts_with('<');
    if elsewhere {
        return None;
    }
    let (file, anchor) = target.split_once('#').map_or((target, None), |(file, anchor)| (file, Some(anchor)));
    let resolved = if file.is_empty() { Some(page.to_owned()) } else { resolve(page, file) };
    let Some(resolved) = resolved.filter(|path| path.is_empty() || tree.holds(path)) else {
        return Some(format!("`{file}` is not there"));
    };
    let page = tree.text(&resolved).filter(|_| resolved.ends_with(".md"))?;
    let anchor = anchor?;
    (!anchors(page).iter().any(|known| known == anchor))
        .then(|| format!("{resolved} has no heading `#{anchor}`"))
}

/// `target` as seen from the folder of `page`; `None` when it leaves the checkout.
fn resolve(page: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => _ = parts.pop()?,
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::super::brief;
    use super::*;

    #[test]
    fn links_to_nowhere_are_offences() {
        let tree = Tree::planted(&[
            ("README.md", "[a](docs/a.md) [b](docs/b.md) [c](docs) [d](docs/a.md#there) [e](#gone)\n"),
            ("python/docs/d.md", ""),
            ("python/README.md", "see `docs/a.md`, `docs/d.md`, `docs/c.md`, `docs/*.md` and `docs/`\n"),
            ("docs/a.md", "# There\n[up](../README.md) [out](../../x.md) [web](https://example.com/x)\n"),
        ]);
        expect![[r#"
            README.md:1 `docs/b.md` is not there
            README.md:1 README.md has no heading `#gone`
            docs/a.md:2 `../../x.md` is not there
            python/README.md:1 `docs/c.md` is not there
        "#]]
        .assert_eq(&brief(&check(&tree)));
    }
}
