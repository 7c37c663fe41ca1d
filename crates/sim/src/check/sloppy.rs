//! Invariant 7, of what answers say of themselves: an answer says that fallbacks stood in only where they may have.
//!
//! Who hears it must not rely on having met the last write. So a store that says it without a reason promises nothing,
//! and it is convicted for that: see [`super::owing`] for what a reason is.

use super::owing::{Owing, shows_nothing};
use super::{Attribution, Rules, Violation, name};
use crate::history::{History, Outcome, Remains};

/// Checks each answer that says so; and how many there were.
pub fn check(history: &History, remains: &[Remains], rules: Rules) -> (Vec<Violation>, u64) {
    let known = Attribution::new(history, remains);
    let owing = Owing::new(history, &known, rules);
    let (mut violations, mut told) = (Vec::new(), 0);
    for (id, operation) in history.all() {
        let answered = matches!(operation.outcome, Outcome::Got(_) | Outcome::Written { .. });
        if !answered || operation.says_sloppy() != Some(true) {
            continue;
        }
        told += 1;
        let why = match () {
            () if operation.strict => "asked replicas alone",
            // That is for `absent` to say.
            () if shows_nothing(operation) || owing.has_reason(id) => continue,
            () => "met no trouble and did not take long",
        };
        let place = name(&(operation.store, operation.key.clone()));
        let detail = format!("{place}: {id:?} was told that a fallback stood in, though it {why}");
        violations.push(Violation { invariant: 7, about: None, detail });
    }
    (violations, told)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::super::examples::{Story, rules};
    use super::*;

    #[test]
    fn an_answer_that_says_sloppy_needs_a_reason() {
        for (strict, slow, fine) in [(false, true, true), (false, false, false), (true, true, false)] {
            let mut story = Story::with_replicas(&[1, 2, 3]);
            let get = story.get();
            story.now.nanos += if slow { 600_000_000 } else { 0 };
            story.got(get, &[(Story::dot(1, 1), "a")]);
            let operation = &mut story.history.operations[get.0];
            (operation.strict, operation.sloppy) = (strict, Some(true));
            operation.shown = vec![Bytes::from("a")];
            let (wrong, told) = check(&story.history, &[], rules());
            assert_eq!((wrong.is_empty(), told), (fine, 1), "strict: {strict}, slow: {slow}");
        }
    }
}
