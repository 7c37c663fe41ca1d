//! Invariant 7, of what answers say of themselves: an answer says that fallbacks stood in only where they may have.
//!
//! Who hears it must not rely on having met the last write. So a store that says it without a reason promises nothing,
//! and it is convicted for that: see [`super::owing`] for what a reason is.

use super::owing::{Owing, shows_nothing};
use super::{Attribution, Rules, Violation, name};
use crate::history::{History, Outcome, Remains};

/// How many gets of a run may say it for a reason that the simulator does not know: in stories that
/// fault nodes by themselves it knows few. They are counted and printed. A node that always says it is beyond that.
const UNEXPLAINED_MAX: u64 = 10;

/// How many answers said that a fallback stood in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SloppyTold {
    /// All of them.
    pub all: u64,
    /// Those without a reason that the simulator knows.
    pub unexplained: u64,
}

impl std::ops::AddAssign for SloppyTold {
    fn add_assign(&mut self, other: SloppyTold) {
        self.all += other.all;
        self.unexplained += other.unexplained;
    }
}

/// Checks each answer that says so; and how many there were.
pub fn check(history: &History, remains: &[Remains], rules: Rules) -> (Vec<Violation>, SloppyTold) {
    let known = Attribution::new(history, remains);
    let owing = Owing::new(history, &known, rules);
    let (mut violations, mut unexplained) = (Vec::new(), Vec::new());
    let mut told = SloppyTold::default();
    for (id, operation) in history.all() {
        if !matches!(operation.outcome, Outcome::Got(_) | Outcome::Written { .. }) {
            continue;
        }
        let is_get = matches!(operation.outcome, Outcome::Got(_));
        if operation.says_sloppy() != Some(true) {
            continue;
        }
        told.all += 1;
        let why = match () {
            () if operation.strict => "asked replicas alone",
            // That is for `absent` to say.
            () if shows_nothing(operation) || owing.has_reason(id) => continue,
            () => "met no trouble and did not take long",
        };
        let place = name(&(operation.store, operation.key.clone()));
        let detail = format!("{place}: {id:?} was told that a fallback stood in, though it {why}");
        let violation = Violation { invariant: 7, about: None, detail };
        told.unexplained += u64::from(!operation.strict);
        match (operation.strict, is_get) {
            (true, _) => violations.push(violation),
            (false, true) => unexplained.push(violation),
            // A write says it as soon as one replica has failed, in stories also by what the simulator does not know.
            (false, false) => {}
        }
    }
    if unexplained.len() as u64 > UNEXPLAINED_MAX {
        violations.extend(unexplained);
    }
    (violations, told)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::super::examples::{Story, rules};
    use super::*;

    #[test]
    fn a_sloppy_answer_needs_a_reason() {
        for (strict, slow, fine) in [(false, true, true), (false, false, false), (true, true, false)] {
            let mut story = Story::with_replicas(&[1, 2, 3]);
            for number in 1..=110 {
                let get = story.get();
                story.now.nanos += if slow { 600_000_000 } else { 0 };
                story.got(get, &[(Story::dot(1, 1), "a")]);
                let operation = &mut story.history.operations[get.0];
                (operation.strict, operation.sloppy) = (strict, Some(true));
                operation.shown = vec![Bytes::from("a")];
                let (wrong, told) = check(&story.history, &[], rules());
                let within = number <= UNEXPLAINED_MAX && !strict;
                let expected = (fine || within, number);
                assert_eq!((wrong.is_empty(), told.all), expected, "strict: {strict}, slow: {slow}");
            }
        }
    }
}
