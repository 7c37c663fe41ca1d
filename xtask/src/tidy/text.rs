//! The rules about lines of any file: no path of somebody's machine, no promise without an issue.

use super::{Offence, Tree};

/// No absolute path of a home or scratch folder.
pub(crate) const PATHS: &str = "machine-paths";
/// No note to do or mend something without the issue that will.
pub(crate) const PROMISES: &str = "promises";

/// Split so that this file does not break its own rule.
const FOLDERS: &[&str] = &[
    concat!("/ho", "me/"),
    concat!("/ro", "ot/"),
    concat!("/Use", "rs/"),
    concat!("/t", "mp/"),
    concat!("/wo", "rk/"),
];
const NOTES: &[&str] = &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("HA", "CK")];

/// See [`PATHS`].
pub(crate) fn check_paths(tree: &Tree) -> Vec<Offence> {
    lines(tree, |line| {
        let found = FOLDERS.iter().find(|folder| {
            line.match_indices(**folder).any(|(at, _)| {
                let before = line[..at].chars().next_back();
                !before.is_some_and(|c| {
                    c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '}' | ')' | '/' | '*')
                })
            })
        })?;
        Some(Fault {
            rule: PATHS,
            what: format!("a path under `{found}`"),
            why: "it is there on one machine only, and tells the world about that machine",
            mend: "take it relative to the checkout, from a setting, or from a temporary folder made by the program",
        })
    })
}

/// See [`PROMISES`].
pub(crate) fn check_promises(tree: &Tree) -> Vec<Offence> {
    lines(tree, |line| {
        let found = NOTES.iter().find(|note| {
            line.match_indices(**note).any(|(at, _)| {
                let whole = |c: Option<char>| !c.is_some_and(|c| c.is_alphanumeric() || c == '_');
                let after = &line[at + note.len()..];
                let issue = after.trim_start_matches(['(', ' ', ':']).strip_prefix('#');
                let named = issue.is_some_and(|issue| issue.starts_with(|c: char| c.is_ascii_digit()));
                whole(line[..at].chars().next_back()) && whole(after.chars().next()) && !named
            })
        })?;
        Some(Fault {
            rule: PROMISES,
            what: format!("a {found} without an issue"),
            why: "a note in the code is read by nobody who could plan it",
            mend: "do it now, or write the issue's number behind it, as in (#12)",
        })
    })
}

struct Fault {
    rule: &'static str,
    what: String,
    why: &'static str,
    mend: &'static str,
}

fn lines(tree: &Tree, fault: impl Fn(&str) -> Option<Fault>) -> Vec<Offence> {
    let mut offences = Vec::new();
    for (path, text) in tree.files().filter(|(path, _)| !path.ends_with(".lock")) {
        for (index, line) in text.lines().enumerate() {
            let Some(Fault { rule, what, why, mend }) = fault(line) else { continue };
            offences.push(Offence {
                path: path.to_owned(),
                line: index + 1,
                rule,
                what,
                why,
                mend: mend.to_owned(),
            });
        }
    }
    offences
}

#[cfg(test)]
mod tests {
    use super::super::brief;
    use super::*;

    #[test]
    fn a_path_of_somebodys_machine_is_an_offence() {
        let text = format!("see {}x\nsee $ROOT{}x and target{}x\n", FOLDERS[0], FOLDERS[3], FOLDERS[3]);
        let tree = Tree::planted(&[("docs/a.md", &text)]);
        assert!(brief(&check_paths(&tree)).starts_with("docs/a.md:1 a path under"));
        assert_eq!(check_paths(&tree).len(), 1);
    }

    #[test]
    fn a_promise_without_an_issue_is_an_offence() {
        let text = format!("{0}: later\n{0}(#12): later\n{0}_LIST\n{1} #3\n", NOTES[0], NOTES[1]);
        let tree = Tree::planted(&[("a.rs", &text)]);
        assert_eq!(brief(&check_promises(&tree)), format!("a.rs:1 a {} without an issue\n", NOTES[0]));
    }
}
