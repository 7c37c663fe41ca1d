//! Which replicas are better read last: those that lately lacked what others held.
//!
//! A node that was away comes back without what was written meanwhile, and gets it within minutes, from hints and by
//! comparing. Until then a get that asks it finds it behind and has to bring it the value itself, often before it can
//! answer, which is probably most of what a returning node costs (`docs/benchmarks/handoff.md`).
//! Other replicas of the key answer the same with less, as long as there are enough of them.
//!
//! It is found from what gets experience, so it does not matter why a node is behind, and clients find it as nodes do.
//! A node is avoided for a moment only, then tried again: that is cheap, and nothing has to say that it has caught up.
//!
//! **Architecture Invariant:** it changes the order in which replicas are asked, and nothing else. Writes go to whoever
//! lags, too, and a quorum that needs it asks it.

use std::time::Duration;

use model::{Moment, NodeId};
use smallvec::SmallVec;

/// Gets over which it is counted how often a node was behind.
const WINDOW_GETS: u64 = 128;
/// So many of them make it lag. What gets meet that overtake a write of their key is not counted.
const TIMES: u64 = 2;
/// What a get of a single key weighs. The keys of a multi-get that fills more than a window weigh as much as a window
/// together, because its answers come all at once: as parts of this.
const WHOLE: u64 = 1 << 20;
/// How long it is read last then.
const AVOIDED_FOR: Duration = Duration::from_millis(500);

/// How many keys of one get a node was behind in.
#[derive(Clone, Copy, Debug)]
pub struct Behind {
    /// This many.
    pub keys: usize,
    /// Of so many that the get has: 1, but for a multi-get.
    pub of: usize,
}

impl Behind {
    fn weight(self) -> u64 {
        (self.keys as u64).saturating_mul(WHOLE * WINDOW_GETS) / WINDOW_GETS.max(self.of as u64)
    }
}

/// What the gets of one coordinator have found.
#[derive(Clone, Debug, Default)]
pub struct Lagging {
    /// Nodes that were found behind, a few.
    found: SmallVec<[LaggardFound; 4]>,
}

#[derive(Clone, Copy, Debug)]
struct LaggardFound {
    node: NodeId,
    /// The window of gets in which it is counted.
    window: u64,
    /// In how many of them it was behind, in parts of [`WHOLE`].
    weight: u64,
    /// When it may be read like the others again.
    until: Moment,
}

impl Lagging {
    /// Takes in that a get found a node behind, the coordinator having begun gets of this many keys altogether. Returns
    /// whether the node lags from now on.
    pub fn found_behind(&mut self, node: NodeId, behind: Behind, gets: u64, now: Moment) -> bool {
        let window = gets / WINDOW_GETS;
        let position = self.found.iter().position(|found| found.node == node).unwrap_or_else(|| {
            self.found.retain(|found| found.window == window || found.until > now);
            self.found.push(LaggardFound { node, window, weight: 0, until: Moment::default() });
            self.found.len() - 1
        });
        let found = &mut self.found[position];
        if found.window != window {
            (found.window, found.weight) = (window, 0);
        }
        found.weight += behind.weight();
        if found.weight < TIMES * WHOLE {
            return false;
        }
        (found.weight, found.until) = (0, now.after(AVOIDED_FOR));
        true
    }

    /// The nodes that lag at `now`.
    pub fn nodes(&self, now: Moment) -> impl Iterator<Item = NodeId> {
        self.found.iter().filter(move |found| found.until > now).map(|found| found.node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STALE: NodeId = NodeId(2);
    const ONE: Behind = Behind { keys: 1, of: 1 };

    fn lags(lagging: &Lagging, now: Moment) -> bool {
        lagging.nodes(now).any(|node| node == STALE)
    }

    #[test]
    fn a_node_behind_twice_in_a_window_is_avoided_for_a_moment() {
        let (mut lagging, now) = (Lagging::default(), Moment::default());
        let found: Vec<bool> =
            (0..WINDOW_GETS).step_by(64).map(|gets| lagging.found_behind(STALE, ONE, gets, now)).collect();
        assert_eq!(found.iter().filter(|&&found| found).count(), 1, "{found:?}");
        assert!(found[TIMES as usize - 1] && lags(&lagging, now));
        assert!(!lagging.nodes(now).any(|node| node != STALE));
        assert!(!lags(&lagging, now.after(AVOIDED_FOR)), "tried again");
    }

    #[test]
    fn a_node_behind_now_and_then_is_read_like_the_others() {
        let (mut lagging, now) = (Lagging::default(), Moment::default());
        assert!((0..100_000).step_by(128).all(|gets| !lagging.found_behind(STALE, ONE, gets, now)));
        assert!(!lags(&lagging, now));
    }

    /// A multi-get tells all that it found at once: a few of 10,000 keys once made a node lag.
    #[test]
    fn the_keys_of_a_large_multi_get_count_as_parts_of_it() {
        let now = Moment::default();
        for (keys, of, expected) in
            [(2, 10_000, false), (156, 10_000, false), (157, 10_000, true), (2, 100, true)]
        {
            let mut lagging = Lagging::default();
            assert_eq!(
                lagging.found_behind(STALE, Behind { keys, of }, of as u64, now),
                expected,
                "{keys} of {of}"
            );
            // In several messages it is as much.
            let mut lagging = Lagging::default();
            let found =
                (0..keys).any(|_| lagging.found_behind(STALE, Behind { keys: 1, of }, of as u64, now));
            assert_eq!((found, lags(&lagging, now)), (expected, expected), "{keys} of {of}, one by one");
        }
    }

    #[test]
    fn what_was_found_of_many_nodes_is_forgotten_with_its_window() {
        let (mut lagging, now) = (Lagging::default(), Moment::default());
        for gets in 0..10 * WINDOW_GETS {
            lagging.found_behind(NodeId(u32::try_from(gets).unwrap() + 10), ONE, gets, now);
        }
        assert!(lagging.found.len() as u64 <= WINDOW_GETS);
    }

    #[test]
    fn a_node_stays_known_while_it_is_counted_or_avoided_whoever_else_is_found() {
        let (mut lagging, now) = (Lagging::default(), Moment::default());
        assert!(!lagging.found_behind(STALE, ONE, 0, now));
        assert!(!lagging.found_behind(NodeId(3), ONE, 1, now));
        assert!(lagging.found_behind(STALE, ONE, 2, now), "counted in this window");
        assert!(!lagging.found_behind(NodeId(4), ONE, WINDOW_GETS, now));
        assert!(lags(&lagging, now), "avoided beyond the window");
        let until = now.after(AVOIDED_FOR);
        assert!(!lagging.found_behind(NodeId(5), ONE, 2 * WINDOW_GETS, until));
        assert_eq!(lagging.found.len(), 1, "of an earlier window, and not avoided any more");
    }
}
