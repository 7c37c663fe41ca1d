//! One search under all explorations: every world that can come about, and how each one does.
//!
//! A machine is explored in a *world*: the machine, and a model of all that may happen to it. Its room says what a
//! world is, what may happen in it, and what must hold; this goes through all of them, one after the other.
//!
//! ```text
//!   a room: first world ─▶ explore ─▶ happenings ─▶ step ─▶ the next worlds, each once by its name
//!                             └─ judge each, and those in which nothing more happens
//! ```
//!
//! It is one search for all, so that each violation is told with all that led to it, and no room counts, sorts or stops
//! in its own way.
//!
//! **Architecture Invariant:** worlds are taken in one order, whoever explores; nothing here rolls a die, so a violation
//! that was found is found again.

use std::collections::BTreeSet;
use std::fmt::Debug;

/// A machine and what may happen to it.
pub(crate) trait World: Clone + Debug {
    /// What may happen.
    type Happening: Clone + Debug;
    /// What tells worlds apart: worlds of one name have the same future.
    type Name: Ord;

    /// Its name.
    fn name(&self) -> Self::Name;

    /// All that may happen next.
    fn happenings(&self) -> Vec<Self::Happening>;

    /// The world after that; none if nothing is left to be seen there.
    ///
    /// # Errors
    /// With the promise that was broken by it.
    fn step(&self, happening: &Self::Happening) -> Result<Option<Self>, String>;

    /// What must hold in every world.
    ///
    /// # Errors
    /// With what does not.
    fn judge(&self) -> Result<(), String> {
        Ok(())
    }

    /// What must hold where no happening leads on.
    ///
    /// # Errors
    /// With what does not.
    fn at_rest(&self) -> Result<(), String> {
        Ok(())
    }
}

/// Worlds of one exploration; far more than any here has. A name that grows without end is refused at this number.
pub(crate) const WORLDS_MAX: usize = 3_000_000;

/// How a world came about: from which one, by its number, and by what; `None` for the first.
type Origin<H> = Option<(usize, H)>;

/// Visits every world that can come about, and tells how many there are, the first among them.
///
/// # Errors
/// With the first promise that is broken, and all that happened before; and when there are more than `worlds_max`
/// worlds.
pub(crate) fn explore<W: World>(first: W, worlds_max: usize) -> Result<usize, String> {
    let mut visited = BTreeSet::new();
    let mut origins: Vec<Origin<W::Happening>> = Vec::new();
    let mut pending = vec![(first, None)];
    while let Some((world, origin)) = pending.pop() {
        if !visited.insert(world.name()) {
            continue;
        }
        let number = origins.len();
        origins.push(origin);
        let violated = |wrong: String, last| violation(&wrong, &origins, number, last, &world);
        if visited.len() > worlds_max {
            return Err(violated(format!("there are more than {worlds_max} worlds"), None));
        }
        world.judge().map_err(|wrong| violated(wrong, None))?;
        let mut rests = true;
        for happening in world.happenings() {
            let next = world.step(&happening).map_err(|wrong| violated(wrong, Some(happening.clone())))?;
            if let Some(next) = next {
                rests = false;
                pending.push((next, Some((number, happening))));
            }
        }
        if rests {
            world.at_rest().map_err(|wrong| violated(wrong, None))?;
        }
    }
    Ok(visited.len())
}

/// What was violated, and all that happened until then.
fn violation<W: World>(
    wrong: &str,
    origins: &[Origin<W::Happening>],
    number: usize,
    last: Option<W::Happening>,
    world: &W,
) -> String {
    let mut story: Vec<&W::Happening> = last.iter().collect();
    let mut at = number;
    while let Some((before, happening)) = &origins[at] {
        story.push(happening);
        at = *before;
    }
    let story: String = story.iter().rev().map(|happening| format!("\n  {happening:?}")).collect();
    format!("{wrong}, after:{story}\nin: {world:?}")
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    /// Two counters up to 3, of which the second follows the first.
    #[derive(Clone, Copy, Debug)]
    struct Counters {
        counts: [u8; 2],
        /// What must never be, never be stepped to, and where alone it may rest.
        never: [u8; 2],
        unreachable: [u8; 2],
        rest: [u8; 2],
    }

    /// One more of the first, or of the second.
    #[derive(Clone, Copy, Debug)]
    struct More(usize);

    impl World for Counters {
        type Happening = More;
        type Name = [u8; 2];

        fn name(&self) -> [u8; 2] {
            self.counts
        }

        fn happenings(&self) -> Vec<More> {
            vec![More(0), More(1)]
        }

        fn step(&self, more: &More) -> Result<Option<Counters>, String> {
            let mut next = *self;
            next.counts[more.0] += 1;
            if next.counts == self.unreachable {
                return Err("stepped to".to_owned());
            }
            Ok((next.counts[0] <= 3 && next.counts[1] <= next.counts[0]).then_some(next))
        }

        fn judge(&self) -> Result<(), String> {
            if self.counts == self.never { Err("never to be".to_owned()) } else { Ok(()) }
        }

        fn at_rest(&self) -> Result<(), String> {
            if self.counts == self.rest { Ok(()) } else { Err("no rest".to_owned()) }
        }
    }

    const RIGHT: Counters = Counters { counts: [0, 0], never: [9, 9], unreachable: [9, 9], rest: [3, 3] };

    #[test]
    fn every_world_is_visited_once_and_no_more_than_are_allowed() {
        assert_eq!(explore(RIGHT, 10), Ok(10), "no second count is above the first");
        assert!(explore(RIGHT, 9).unwrap_err().starts_with("there are more than 9 worlds, after:"));
    }

    #[test]
    fn what_is_broken_is_told_with_all_that_led_to_it() {
        let told = |world: Counters| {
            let told = explore(world, 10).unwrap_err();
            told.split(", never").next().unwrap().to_owned()
        };
        expect![[r#"
            never to be, after:
              More(0)
            in: Counters { counts: [1, 0]"#]]
        .assert_eq(&told(Counters { never: [1, 0], ..RIGHT }));
        expect![[r#"
            stepped to, after:
              More(0)
              More(1)
            in: Counters { counts: [1, 0]"#]]
        .assert_eq(&told(Counters { unreachable: [1, 1], ..RIGHT }));
        assert!(told(Counters { rest: [3, 2], ..RIGHT }).starts_with("no rest, after:"));
    }
}
