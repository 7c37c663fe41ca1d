//! When to compare with whom.
//!
//! Of each pair of nodes the lower id compares; every pair has its turn once in a period, at moments spread over it,
//! one at a time. A comparison that failed is tried again after a tenth of the period at the latest.
//!
//! That comparing is stopped and what was asked for are kept apart: a part that is asked for while all is stopped is
//! compared once, and the rest stays stopped. What was asked for belongs to the turn of a peer, so that a part that an
//! operator wants never narrows what somebody else wants of that peer.

use std::collections::BTreeMap;
use std::time::Duration;

use model::{Moment, NodeId};

/// Pause after the first failure with a peer; doubles up to a tenth of the period.
const RETRY_MIN: Duration = Duration::from_secs(1);

/// The turns of one node; `P` names a part of what two nodes share.
#[derive(Clone, Debug)]
pub struct Schedule<P> {
    node: NodeId,
    period: Duration,
    turns: BTreeMap<NodeId, ScheduledTurn<P>>,
    running: Option<Comparing<P>>,
    stopped: bool,
}

#[derive(Clone, Debug)]
struct Comparing<P> {
    peer: NodeId,
    /// Only these; all when there is none.
    parts: Vec<P>,
}

#[derive(Clone, Debug)]
struct ScheduledTurn<P> {
    due: Moment,
    failures: u32,
    /// Somebody wants all of it now, whosever turn it is.
    asked: bool,
    /// Somebody wants these now, also while comparing is stopped. Each once, so never more than there are parts.
    parts: Vec<P>,
}

impl<P> ScheduledTurn<P> {
    /// Whether somebody wants something of it that may begin.
    fn is_wanted(&self, stopped: bool) -> bool {
        (self.asked && !stopped) || !self.parts.is_empty()
    }
}

impl<P: Clone + PartialEq> Schedule<P> {
    /// For `node`, without peers; every pair once in `period`.
    pub fn new(node: NodeId, period: Duration) -> Schedule<P> {
        Schedule { node, period, turns: BTreeMap::new(), running: None, stopped: false }
    }

    /// These are the nodes now. A new one gets its own place in the period.
    pub fn learn(&mut self, nodes: impl IntoIterator<Item = NodeId>, now: Moment) {
        let peers: Vec<NodeId> = nodes.into_iter().filter(|&peer| peer != self.node).collect();
        self.turns.retain(|peer, _| peers.contains(peer));
        let count = peers.len().max(1) as u32;
        for (position, &peer) in peers.iter().enumerate() {
            let due = now.after(self.period * (position as u32 + 1) / (count + 1));
            let turn = || ScheduledTurn { due, failures: 0, asked: false, parts: Vec::new() };
            self.turns.entry(peer).or_insert_with(turn);
        }
        self.check();
    }

    /// Compare with all peers now, and go on by the turns.
    pub fn ask(&mut self) {
        self.stopped = false;
        for turn in self.turns.values_mut() {
            turn.asked = true;
        }
    }

    /// Compare this part with all peers now, once. Whether all the rest is stopped stays as it is.
    pub fn ask_part(&mut self, part: &P) {
        for turn in self.turns.values_mut() {
            if !turn.parts.contains(part) {
                turn.parts.push(part.clone());
            }
        }
        self.check();
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
            turn.parts.clear();
        }
    }

    /// Whether it was stopped.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Peers with whom a comparison was asked for and has not begun.
    pub fn asked(&self) -> usize {
        self.turns.values().filter(|turn| turn.is_wanted(false)).count()
    }

    /// Whom to compare with now. Say [`Schedule::ended`] afterwards.
    pub fn next(&mut self, now: Moment) -> Option<NodeId> {
        if self.running.is_some() {
            return None;
        }
        let (own, stopped) = (self.node, self.stopped);
        let due = |(peer, turn): &(&NodeId, &mut ScheduledTurn<P>)| {
            turn.is_wanted(stopped) || (!stopped && **peer > own && turn.due <= now)
        };
        let turns = self.turns.iter_mut().filter(due);
        let (&peer, turn) = turns.min_by_key(|(_, turn)| (!turn.is_wanted(stopped), turn.due))?;
        let mut parts = std::mem::take(&mut turn.parts);
        if turn.asked && !stopped {
            turn.asked = false;
            // They are parts of all.
            parts.clear();
        }
        self.running = Some(Comparing { peer, parts });
        self.check();
        Some(peer)
    }

    /// What holds between two calls.
    fn check(&self) {
        assert!(!self.turns.contains_key(&self.node), "a node does not compare with itself");
        assert!(
            self.running.as_ref().is_none_or(|running| running.peer != self.node),
            "a comparison has a peer"
        );
        debug_assert!(
            self.turns.values().all(|turn| {
                turn.parts.iter().enumerate().all(|(at, part)| !turn.parts[..at].contains(part))
            }),
            "a part is wanted once"
        );
    }

    /// To what the comparison that runs is limited: everything that both hold when there is none.
    pub fn running_parts(&self) -> &[P] {
        self.running.as_ref().map_or(&[], |running| &running.parts)
    }

    /// The comparison that runs is over. One of parts is nobody's turn.
    pub fn ended(&mut self, succeeded: bool, now: Moment) {
        let Some(Comparing { peer, parts }) = self.running.take() else { return };
        let (period, Some(turn)) = (self.period, self.turns.get_mut(&peer)) else { return };
        if succeeded && !parts.is_empty() {
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
        if self.running.is_some() {
            return None;
        }
        if self.turns.values().any(|turn| turn.is_wanted(self.stopped)) {
            return Some(Moment::default());
        }
        if self.stopped {
            return None;
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
    fn every_pair_has_its_own_turn_once_in_a_period() {
        let mut turns = Vec::new();
        for node in 1..=5 {
            let mut schedule = Schedule::<u8>::new(NodeId(node), Duration::from_secs(600));
            schedule.learn((1..=5).map(NodeId), at(0));
            while let Some(due) = schedule.deadline().filter(|due| *due < at(1200)) {
                let peer = schedule.next(due).unwrap();
                assert_eq!(schedule.next(due), None, "one at a time");
                schedule.ended(true, due.after(Duration::from_millis(50)));
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
        let mut schedule = Schedule::<u8>::new(NodeId(1), Duration::from_secs(100));
        schedule.learn([NodeId(1), NodeId(2)], at(0));
        let mut pauses = Vec::new();
        for _ in 0..6 {
            let due = schedule.deadline().unwrap();
            assert_eq!(schedule.next(due), Some(NodeId(2)));
            schedule.ended(false, due);
            pauses.push(schedule.deadline().unwrap().since(due).as_secs());
        }
        assert_eq!(pauses, [1, 2, 4, 8, 10, 10]);
    }

    #[test]
    fn a_request_is_served_at_once_in_both_directions_and_a_stop_ends_it() {
        let mut schedule = Schedule::<u8>::new(NodeId(2), Duration::from_secs(100));
        schedule.learn((1..=3).map(NodeId), at(0));
        assert_eq!(schedule.next(at(0)), None);
        schedule.ask();
        assert_eq!(schedule.next(at(0)), Some(NodeId(1)));
        schedule.ended(true, at(1));
        assert_eq!(schedule.next(at(1)), Some(NodeId(3)));
        schedule.ended(true, at(2));
        assert_eq!(schedule.next(at(2)), None);
        schedule.ask_for(NodeId(1));
        schedule.stop();
        assert_eq!((schedule.next(at(500)), schedule.deadline()), (None, None));
        schedule.ask();
        assert_eq!(schedule.next(at(500)), Some(NodeId(1)));
    }

    #[test]
    fn a_comparison_of_a_part_is_not_the_turn_that_was_due() {
        let mut schedule = Schedule::<u8>::new(NodeId(1), Duration::from_secs(100));
        schedule.learn([NodeId(1), NodeId(2)], at(0));
        schedule.ask_part(&7);
        let late = schedule.next(at(60)).unwrap();
        assert_eq!(schedule.running_parts(), [7]);
        schedule.ended(true, at(61));
        assert_eq!(schedule.next(at(61)), Some(late), "its turn was due before, and is still");
        assert!(schedule.running_parts().is_empty());
        schedule.ended(true, at(62));
        assert_eq!(schedule.next(at(62)), None);
    }

    #[test]
    fn a_part_that_is_asked_for_while_all_is_stopped_is_compared_once_and_the_rest_stays_stopped() {
        let mut schedule = Schedule::new(NodeId(1), Duration::from_secs(100));
        schedule.learn((1..=2).map(NodeId), at(0));
        schedule.stop();
        schedule.ask_for(NodeId(2));
        assert_eq!((schedule.next(at(500)), schedule.deadline()), (None, None));
        schedule.ask_part(&7);
        schedule.ask_part(&8);
        schedule.ask_part(&7);
        assert_eq!(schedule.deadline(), Some(at(0)));
        assert_eq!(schedule.next(at(500)), Some(NodeId(2)));
        assert_eq!(schedule.running_parts(), [7, 8]);
        schedule.ended(true, at(501));
        assert!(schedule.is_stopped());
        assert_eq!((schedule.next(at(900)), schedule.deadline()), (None, None));
    }

    #[test]
    fn a_part_that_is_asked_for_narrows_nothing_that_was_asked_for_before() {
        let mut schedule = Schedule::new(NodeId(3), Duration::from_secs(100));
        schedule.learn((1..=3).map(NodeId), at(0));
        schedule.ask_for(NodeId(2));
        schedule.ask_part(&7);
        let mut compared = BTreeMap::new();
        while let Some(peer) = schedule.next(at(1)) {
            let again = compared.insert(peer, schedule.running_parts().to_vec());
            assert_eq!(again, None, "once");
            schedule.ended(true, at(1));
        }
        assert_eq!(compared, BTreeMap::from([(NodeId(1), vec![7]), (NodeId(2), vec![])]));
    }

    #[test]
    fn a_requested_peer_comes_before_a_due_one_and_is_counted_until_then() {
        let mut schedule = Schedule::<u8>::new(NodeId(1), Duration::from_secs(100));
        schedule.learn((1..=4).map(NodeId), at(0));
        assert!(!schedule.is_stopped());
        assert_eq!(schedule.asked(), 0);
        schedule.ask_for(NodeId(4));
        schedule.ask_for(NodeId(3));
        assert_eq!(schedule.asked(), 2);
        let mut order = Vec::new();
        while let Some(peer) = schedule.next(at(90)) {
            order.push((peer.0, schedule.asked()));
            schedule.ended(true, at(90));
        }
        assert_eq!(order, [(3, 1), (4, 0), (2, 0)]);
    }
}
