//! Which replicas are better read last: those that lately lacked what others held.
//!
//! A node that was away comes back without what was written meanwhile, and gets it within minutes, from hints and by
//! comparing. Until then a get that asks it finds it behind and has to bring it the value itself, often before it can
//! answer: of the throughput that a returning node cost, this was the larger part (`docs/benchmarks/handoff.md`).
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
/// So many of them make it lag: several times what gets meet that overtake a write of their key.
const TIMES: u32 = 8;
/// How long it is read last then.
const AVOIDED_FOR: Duration = Duration::from_millis(500);

/// What the gets of one coordinator have found.
#[derive(Clone, Debug, Default)]
pub struct Lagging {
    /// Nodes that were found behind, a few.
    found: SmallVec<[Found; 4]>,
}

#[derive(Clone, Copy, Debug)]
struct Found {
    node: NodeId,
    /// The window of gets in which it is counted.
    window: u64,
    times: u32,
    /// When it may be read like the others again.
    until: Moment,
}

impl Lagging {
    /// Takes in that a get found a node behind, the coordinator having begun so many gets altogether. Returns whether
    /// the node lags from now on.
    pub fn found_behind(&mut self, node: NodeId, gets: u64, now: Moment) -> bool {
        let window = gets / WINDOW_GETS;
        let position = self.found.iter().position(|found| found.node == node).unwrap_or_else(|| {
            self.found.retain(|found| found.window == window || found.until > now);
            self.found.push(Found { node, window, times: 0, until: Moment::default() });
            self.found.len() - 1
        });
        let found = &mut self.found[position];
        if found.window != window {
            (found.window, found.times) = (window, 0);
        }
        found.times += 1;
        if found.times < TIMES {
            return false;
        }
        (found.times, found.until) = (0, now.after(AVOIDED_FOR));
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

    fn lags(lagging: &Lagging, now: Moment) -> bool {
        lagging.nodes(now).any(|node| node == STALE)
    }

    #[test]
    fn who_is_behind_in_one_get_of_sixteen_is_avoided_for_a_moment() {
        let (mut lagging, now) = (Lagging::default(), Moment::default());
        let found: Vec<bool> =
            (0..WINDOW_GETS).step_by(16).map(|gets| lagging.found_behind(STALE, gets, now)).collect();
        assert_eq!(found.iter().filter(|&&found| found).count(), 1, "{found:?}");
        assert!(found[TIMES as usize - 1] && lags(&lagging, now));
        assert!(!lagging.nodes(now).any(|node| node != STALE));
        assert!(!lags(&lagging, now.after(AVOIDED_FOR)), "tried again");
    }

    #[test]
    fn who_is_behind_now_and_then_is_read_like_the_others() {
        let (mut lagging, now) = (Lagging::default(), Moment::default());
        assert!((0..100_000).step_by(19).all(|gets| !lagging.found_behind(STALE, gets, now)));
        assert!(!lags(&lagging, now));
    }

    #[test]
    fn what_was_found_of_many_nodes_is_forgotten_with_its_window() {
        let (mut lagging, now) = (Lagging::default(), Moment::default());
        for gets in 0..10 * WINDOW_GETS {
            lagging.found_behind(NodeId(u32::try_from(gets).unwrap() + 10), gets, now);
        }
        assert!(lagging.found.len() as u64 <= WINDOW_GETS);
    }
}
