//! The rule that only `protocol::quorum` compares a number with R or W.

use super::source::Source;
use super::tree::crate_of;
use super::{Offence, Tree};

/// Numbers of answers and of replicas are compared with R and W in `protocol::quorum` only.
pub(crate) const RULE: &str = "quorum-counts";

/// Where they are compared.
const ROOM: &str = "crates/protocol/src/quorum/";

/// Crates that the rule leaves alone: `model` says which R and W a store may have at all, and the checkers of `sim` judge
/// the machines, so they must not share what these count with.
const OUTSIDE: &[&str] = &["model", "sim"];

/// What holds R, W, or what a request asks for instead.
const NAMES: &[&str] = &["reads_required", "writes_required", "required", "read_holders"];

const OPERATORS: &[&str] = &["<=", ">=", "==", "!=", "<", ">"];

/// Methods that compare what they are called on with what they are handed.
const METHODS: &[&str] = &[
    "min",
    "max",
    "clamp",
    "cmp",
    "take",
    "contains",
    "saturating_sub",
    "checked_sub",
    "abs_diff",
    "is_multiple_of",
];

/// See [`RULE`].
pub(crate) fn check(tree: &Tree) -> Vec<Offence> {
    let mut offences = Vec::new();
    let bound =
        |path: &str| crate_of(path).is_some_and(|name| !OUTSIDE.contains(&name)) && !path.starts_with(ROOM);
    for (path, source) in tree.rust().filter(|(path, _)| bound(path) && !tree.is_test(path)) {
        for (at, name) in named(source) {
            if source.in_tests(at) || !is_compared(source.code(), at, name) {
                continue;
            }
            offences.push(Offence {
                path: path.to_owned(),
                line: source.line(at),
                rule: RULE,
                what: format!("`{name}` is compared here"),
                why: "a count of answers that is written twice is once wrong; the machines are explored",
                mend: "ask `protocol::quorum`, and write there what it cannot answer yet".into(),
            });
        }
    }
    offences
}

/// Where the file speaks of R or W.
fn named(source: &Source) -> impl Iterator<Item = (usize, &'static str)> + '_ {
    let code = source.code();
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    NAMES.iter().flat_map(move |name| {
        code.match_indices(name).map(|(at, _)| (at, *name)).filter(move |&(at, name)| {
            !code[..at].ends_with(is_word) && !code[at + name.len()..].starts_with(is_word)
        })
    })
}

/// Whether the operand that the name belongs to stands beside an operator or in a method that compares.
fn is_compared(code: &str, at: usize, name: &str) -> bool {
    // Behind it: the brackets that close its operand, and its own call.
    let behind = code[at + name.len()..].trim_start_matches(['(', ')']).trim_start();
    let operator = OPERATORS.iter().find_map(|operator| behind.strip_prefix(operator));
    if operator.is_some_and(|rest| rest.starts_with(char::is_whitespace)) {
        return true;
    }
    if behind.strip_prefix('.').is_some_and(|rest| METHODS.iter().any(|method| calls(rest, method))) {
        return true;
    }
    // Before it: the path, the casts and the brackets that open its operand.
    let mut before = &code[..at];
    loop {
        let shorter = before.trim_end_matches(|c: char| c.is_alphanumeric() || "_.:*&".contains(c));
        if let Some(outer) = shorter.strip_suffix('(') {
            let callee =
                outer.rsplit(|c: char| !(c.is_alphanumeric() || c == '_')).next().unwrap_or_default();
            if METHODS.contains(&callee) && outer[..outer.len() - callee.len()].ends_with('.') {
                return true;
            }
            before = outer;
            continue;
        }
        // rustfmt sets operators apart with spaces, and generic arguments not.
        let Some(left) = shorter.strip_suffix(' ') else { return false };
        return OPERATORS.iter().any(|operator| left.ends_with(&format!(" {operator}")));
    }
}

fn calls(code: &str, method: &str) -> bool {
    code.strip_prefix(method).is_some_and(|rest| rest.starts_with('('))
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::super::brief;
    use super::*;

    const COUNTING: &str = "fn f(required: Option<u8>) -> usize {\n    if acks >= required {}\n    \
        if required > replicas {}\n    let w = usize::from(store.consistency.writes_required).min(n);\n    \
        nodes.iter().take(self.required);\n    if n < usize::from(self.definition.consistency.reads_required) {}\n    \
        (nodes.len() == *required).then_some(1);\n    let held = definition.read_holders().max(1);\n}\n";

    const HARMLESS: &str = "fn f(required: u8, other: Vec<u8>) -> usize {\n    let required = options.required;\n    \
        tell(required, n < m);\n    match n { 1 => required, _ => g::<u8>(required) }\n    \
        // acks >= required\n    Reach { own, required, sloppy };\n    \"acks >= required\";\n    is_required >= n;\n}\n\
        #[cfg(test)]\nmod tests { fn g() { assert!(acks >= required); } }\n";

    #[test]
    fn comparing_with_r_or_w_outside_of_its_room_is_an_offence() {
        let tree = Tree::planted(&[
            ("crates/node/src/handoff/delivery.rs", COUNTING),
            ("crates/protocol/src/quorum/get/mod.rs", COUNTING),
            (
                "crates/protocol/src/antientropy/ledger.rs",
                "fn f() { n > r.saturating_sub(writes_required); }\n",
            ),
            ("crates/model/src/store.rs", COUNTING),
            ("crates/sim/src/check/lost.rs", COUNTING),
            ("crates/node/tests/suite/main.rs", COUNTING),
        ]);
        expect![[r#"
            crates/node/src/handoff/delivery.rs:6 `reads_required` is compared here
            crates/node/src/handoff/delivery.rs:4 `writes_required` is compared here
            crates/node/src/handoff/delivery.rs:2 `required` is compared here
            crates/node/src/handoff/delivery.rs:3 `required` is compared here
            crates/node/src/handoff/delivery.rs:5 `required` is compared here
            crates/node/src/handoff/delivery.rs:7 `required` is compared here
            crates/node/src/handoff/delivery.rs:8 `read_holders` is compared here
            crates/protocol/src/antientropy/ledger.rs:1 `writes_required` is compared here
        "#]]
        .assert_eq(&brief(&check(&tree)));
    }

    #[test]
    fn carrying_telling_and_testing_them_is_none() {
        let tree = Tree::planted(&[("crates/client/src/coordinator/mod.rs", HARMLESS)]);
        assert_eq!(brief(&check(&tree)), "");
    }
}
