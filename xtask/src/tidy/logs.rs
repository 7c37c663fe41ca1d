//! The rule about log messages: constant, lowercase, no full stop, facts as fields.

use super::source::{Source, split_top_level};
use super::tree::crate_of;
use super::{Offence, Tree};

/// Log messages are constant, lowercase and without a full stop.
pub(crate) const RULE: &str = "log-messages";

const MACROS: &[&str] = &[
    "trace",
    "debug",
    "info",
    "warn",
    "error",
    "event",
    "trace_span",
    "debug_span",
    "info_span",
    "warn_span",
];

/// See [`RULE`].
pub(crate) fn check(tree: &Tree) -> Vec<Offence> {
    let mut offences = Vec::new();
    for (path, source) in tree.rust().filter(|(path, _)| crate_of(path).is_some()) {
        for (at, inside) in source.invocations(MACROS) {
            let Some(message) = message(source, inside) else { continue };
            let Some(fault) = fault(message) else { continue };
            offences.push(Offence {
                path: path.to_owned(),
                line: source.line(at),
                rule: RULE,
                what: format!("the message \"{message}\" {fault}"),
                why: "a constant lowercase message can be searched and counted; facts are fields beside it",
                mend: "write it as: warn!(%node, attempts, \"hint delivery failed\")".into(),
            });
        }
    }
    offences
}

/// The first argument that is a string by itself: fields before it have a name or a sigil.
fn message(source: &Source, inside: std::ops::Range<usize>) -> Option<&str> {
    let mut at = inside.start;
    for argument in split_top_level(&source.code()[inside]) {
        let range = at..at + argument.len();
        at = range.end + 1;
        let opens = ["\"", "r\"", "r#"].iter().any(|opening| argument.trim_start().starts_with(opening));
        if opens && argument.trim_end().ends_with(['"', '#']) {
            return source.first_string(range);
        }
    }
    None
}

fn fault(message: &str) -> Option<&'static str> {
    let first = message.split_whitespace().next().unwrap_or_default();
    let acronym = first.len() > 1 && first.chars().all(|c| !c.is_lowercase());
    if first.starts_with(char::is_uppercase) && !acronym {
        Some("begins with a capital")
    } else if message.ends_with('.') {
        Some("ends with a full stop")
    } else if message.contains('{') {
        Some("is not constant")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::super::brief;
    use super::*;

    #[test]
    fn messages_that_are_not_constant_lowercase_and_open_are_offences() {
        let text = "fn f() {\n    warn!(%node, attempts = 3, reason = \"Full.\", \"hint delivery failed\");\n    \
            tracing::info!(\"Started\");\n    error!(target: \"a\", %x, \"it broke.\");\n    \
            debug!(\n        \"took {took}\"\n    );\n    info!(\"TCP link lost\");\n    info!(r\"Raw\");\n}\n";
        let tree = Tree::planted(&[("crates/node/src/serve.rs", text)]);
        expect![[r#"
            crates/node/src/serve.rs:3 the message "Started" begins with a capital
            crates/node/src/serve.rs:4 the message "it broke." ends with a full stop
            crates/node/src/serve.rs:5 the message "took {took}" is not constant
            crates/node/src/serve.rs:9 the message "Raw" begins with a capital
        "#]]
        .assert_eq(&brief(&check(&tree)));
    }
}
