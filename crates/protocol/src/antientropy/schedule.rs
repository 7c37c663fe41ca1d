//! When to compare with whom.
//!
//! Of each pair of nodes the lower id compares; every pair has its turn once in a period, at moments spread over it,
//! one at a time. A comparison that failed is tried again after a tenth of the period at the latest.

use std::collections::BTreeMap;
use std::time::Duration;

use model::{Moment, NodeId};

/// Pause after the first failure with a peer; doubles up to a tenth of the period.
const RETRY_MIN: Duration = Duration::from_secs(1);

/// The turns of one node.
#[derive(Clone, Debug)]
pub struct Schedule {
    node: NodeId,
    period: Duration,
    turns: BTreeMap<NodeId, Turn>,
    running: Option<Comparing>,
    stopped: bool,
}

#[derive(Clone, Copy, Debug)]
struct Comparing {
    peer: NodeId,
    asked: bool,
}

#[derive(Clone, Copy, Debug)]
struct Turn {
    due: Moment,
    failures: u32,
    /// Somebody wants it now, whosever turn it is.
    asked: bool,
}

impl Schedule {
    /// For `node`, without peers; every pair once in `period`.
    pub fn new(node: NodeId, period: Duration) -> Schedule {
        Schedule { node, period, turns: BTreeMap::new(), running: None, stopped: false }
    }

    /// These are the nodes now. A new one gets a place in the period of its own.
    pub fn learn(&mut self, nodes: impl IntoIterator<Item = NodeId>, now: Moment) {
        let peers: Vec<NodeId> = nodes.into_iter().filter(|&peer| peer != self.node).collect();
        self.turns.retain(|peer, _| peers.contains(peer));
        let count = peers.len().max(1) as u32;
        for (position, &peer) in peers.iter().enumerate() {
            let due = now.after(self.period * (position as u32 + 1) / (count + 1));
            self.turns.entry(peer).or_insert(Turn { due, failures: 0, asked: false });
        }
    }

    /// Compare with all peers now.
    pub fn ask(&mut self) {
        self.stopped = false;
        for turn in self.turns.values_mut() {
            turn.asked = true;
        }
    }

    /// Compare with this peer soon: it is known to lack something, or to have something.
    pub fn ask_for(&mut self, peer: NodeId) {
        if let Some(turn) = self.turns.get_mut(&peer) {
            turn.asked = true;
        }
    }

    /// Compare with nobody until asked again.
    pub fn stop(&mut self) {
        self.stopped = true;
        for turn in self.turns.values_mut() {
            turn.asked = false;
        }
    }

    /// Whether it was stopped.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Peers with whom a comparison was asked for and has not begun.
    pub fn asked(&self) -> usize {
        self.turns.values().filter(|turn| turn.asked).count()
    }

    /// Whom to compare with now. Say [`Schedule::ended`] afterwards.
    pub fn next(&mut self, now: Moment) -> Option<NodeId> {
        if self.running.is_some() || self.stopped {
            return None;
        }
        let own = self.node;
        let due = |(peer, turn): &(&NodeId, &Turn)| turn.asked || (**peer > own && turn.due <= now);
        let (&peer, _) = self.turns.iter().filter(due).min_by_key(|(_, turn)| (!turn.asked, turn.due))?;
        let turn = self.turns.get_mut(&peer).expect("it was found there");
        let asked = std::mem::replace(&mut turn.asked, false);
        self.running = Some(Comparing { peer, asked });
        Some(peer)
    }

    /// Whether the comparison that runs was asked for, and is not the peer's turn.
    pub fn is_running_asked(&self) -> bool {
        self.running.is_some_and(|running| running.asked)
    }

    /// The comparison that runs is over; `whole` when it was about everything that both hold. One of a part is nobody's
    /// turn.
    pub fn ended(&mut self, succeeded: bool, whole: bool, now: Moment) {
        let Some(Comparing { peer, .. }) = self.running.take() else { return };
        let (period, Some(turn)) = (self.period, self.turns.get_mut(&peer)) else { return };
        if succeeded && !whole {
            return;
        }
        if succeeded {
            turn.failures = 0;
            // Its place in the period stays, also when it came late.
            while turn.due <= now {
                turn.due = turn.due.after(period.max(Duration::from_millis(1)));
            }
        } else {
            let pause = RETRY_MIN * 2u32.saturating_pow(turn.failures.min(16));
            turn.failures += 1;
            turn.due = now.after(pause.min(period / 10));
        }
    }

    /// When the next turn is due; `None` while one runs, or when there is none.
    pub fn deadline(&self) -> Option<Moment> {
        if self.running.is_some() || self.stopped {
            return None;
        }
        if self.turns.values().any(|turn| turn.asked) {
            return Some(Moment::default());
        }
        self.turns.iter().filter(|(peer, _)| **peer > self.node).map(|(_, turn)| turn.due).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::default().after(Duration::from_secs(seconds))
    }

    #[test]
    fn every_pair_has_its_turn_once_in_a_period_at_moments_of_its_own() {
        let mut turns = Vec::new();
        for node in 1..=5 {
            let mut schedule = Schedule::new(NodeId(node), Duration::from_secs(600));
            schedule.learn((1..=5).map(NodeId), at(0));
            while let Some(due) = schedule.deadline().filter(|due| *due < at(1200)) {
                let peer = schedule.next(due).unwrap();
                assert_eq!(schedule.next(due), None, "one at a time");
                schedule.ended(true, true, due.after(Duration::from_millis(50)));
                turns.push((node, peer.0, due));
            }
        }
        for a in 1..=5 {
            for b in a + 1..=5 {
                let of_pair: Vec<_> = turns.iter().filter(|turn| (turn.0, turn.1) == (a, b)).collect();
                assert_eq!(of_pair.len(), 2, "{a} {b}");
                assert_eq!(of_pair[1].2.since(of_pair[0].2), Duration::from_secs(600));
            }
        }
        assert_eq!(turns.len(), 20);
    }

    #[test]
    fn a_failed_turn_comes_again_soon_and_less_often() {
        let mut schedule = Schedule::new(NodeId(1), Duration::from_secs(100));
        schedule.learn([NodeId(1), NodeId(2)], at(0));
        let mut pauses = Vec::new();
        for _ in 0..6 {
            let due = schedule.deadline().unwrap();
            assert_eq!(schedule.next(due), Some(NodeId(2)));
            schedule.ended(false, true, due);
            pauses.push(schedule.deadline().unwrap().since(due).as_secs());
        }
        assert_eq!(pauses, [1, 2, 4, 8, 10, 10]);
    }

    #[test]
    fn whoever_asks_is_served_at_once_in_both_directions_and_a_stop_ends_it() {
        let mut schedule = Schedule::new(NodeId(2), Duration::from_secs(100));
        schedule.learn((1..=3).map(NodeId), at(0));
        assert_eq!(schedule.next(at(0)), None);
        schedule.ask();
        assert_eq!(schedule.next(at(0)), Some(NodeId(1)));
        schedule.ended(true, true, at(1));
        assert_eq!(schedule.next(at(1)), Some(NodeId(3)));
        schedule.ended(true, true, at(2));
        assert_eq!(schedule.next(at(2)), None);
        schedule.ask_for(NodeId(1));
        schedule.stop();
        assert_eq!((schedule.next(at(500)), schedule.deadline()), (None, None));
        schedule.ask();
        assert_eq!(schedule.next(at(500)), Some(NodeId(1)));
    }

    #[test]
    fn a_comparison_of_a_part_is_not_the_turn_that_was_due() {
        let mut schedule = Schedule::new(NodeId(1), Duration::from_secs(100));
        schedule.learn([NodeId(1), NodeId(2)], at(0));
        schedule.ask();
        let late = schedule.next(at(60)).unwrap();
        assert!(schedule.is_running_asked());
        schedule.ended(true, false, at(61));
        assert_eq!(schedule.next(at(61)), Some(late), "its turn was due before, and is still");
        assert!(!schedule.is_running_asked());
        schedule.ended(true, true, at(62));
        assert_eq!(schedule.next(at(62)), None);
    }
}
