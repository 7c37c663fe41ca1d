//! What a client believes about nodes: it hears no rumours, so its own requests are all it has.
//!
//! A node that a request met badly is suspected at once and asked again beside the requests, after pauses that double,
//! until it answers; meanwhile requests go elsewhere. So one request at most pays for a dead node, and none pays to
//! find out that it is back.
//!
//! A node that stops still answers, until its links close: what it has not read by then is in doubt. So whoever said
//! that it stops is avoided until a new link to it is up, whatever it answers over the old one. Should it go on
//! answering for so long that it cannot be stopping (somebody else's refusal was passed on), it is believed again.

use std::collections::BTreeMap;
use std::time::Duration;

use model::NodeId;

use super::member::{Experience, LATE_AFTER};

/// First pause before a suspected node is asked.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// Longest pause: a thousand clients ask a dead node's machine five hundred times a second.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Ask a node after a pause whether it answers; tell [`Suspects::probe_failed`] when it does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Whom.
    pub node: NodeId,
    /// How much later.
    pub after: Duration,
    /// Which doubt about the node it is to settle.
    doubt: u64,
}

/// The nodes that are better avoided.
#[derive(Clone, Debug, Default)]
pub struct Suspects {
    doubts: BTreeMap<NodeId, Doubt>,
    /// Doubts so far.
    count: u64,
}

#[derive(Clone, Copy, Debug)]
struct Doubt {
    /// Its number: a probe that was sent for an earlier doubt about the node settles nothing, and is the last of its own,
    /// so there is one at a time however often the node comes and goes.
    number: u64,
    /// Before the probe that is out.
    pause: Duration,
    /// It said that it stops: an answer alone changes nothing.
    stopping: bool,
}

impl Suspects {
    /// Takes in what a request met with; a newly suspected node wants a probe.
    pub fn experienced(&mut self, node: NodeId, experience: Experience) -> Option<Probe> {
        let stopping = experience == Experience::Stopping;
        match experience {
            Experience::Replied => {
                if self.doubts.get(&node).is_some_and(|doubt| !doubt.stopping) {
                    self.doubts.remove(&node);
                }
                return None;
            }
            Experience::Greeted => {
                self.doubts.remove(&node);
                return None;
            }
            Experience::Heard => return None,
            Experience::Unanswered { waited } if waited < LATE_AFTER => return None,
            Experience::Stopping
            | Experience::Unanswered { .. }
            | Experience::LinkBroke
            | Experience::Refused
            | Experience::Unreachable => {}
        }
        if let Some(doubt) = self.doubts.get_mut(&node) {
            doubt.stopping |= stopping;
            return None;
        }
        self.count += 1;
        self.doubts.insert(node, Doubt { number: self.count, pause: PAUSE_MIN, stopping });
        self.check(node);
        Some(Probe { node, after: PAUSE_MIN, doubt: self.count })
    }

    /// Whether the answer to a probe would still settle something.
    pub fn wants(&self, probe: &Probe) -> bool {
        self.doubts.get(&probe.node).is_some_and(|doubt| doubt.number == probe.doubt)
    }

    /// A probe had no answer; another one is wanted if the node is still suspected for the same reason.
    pub fn probe_failed(&mut self, probe: Probe) -> Option<Probe> {
        if !self.wants(&probe) {
            return None;
        }
        let doubt = self.doubts.get_mut(&probe.node)?;
        doubt.pause = (doubt.pause * 2).min(PAUSE_MAX);
        let next = Probe { after: doubt.pause, ..probe };
        self.check(probe.node);
        Some(next)
    }

    /// A probe had an answer. Another one is wanted while a node that said that it stops may be about to.
    pub fn probe_answered(&mut self, probe: Probe) -> Option<Probe> {
        let doubt = self.doubts.get(&probe.node).filter(|_| self.wants(&probe))?;
        if doubt.stopping && doubt.pause < PAUSE_MAX {
            return self.probe_failed(probe);
        }
        self.doubts.remove(&probe.node);
        None
    }

    /// What holds of a node that is doubted.
    fn check(&self, node: NodeId) {
        let Some(doubt) = self.doubts.get(&node) else { return };
        assert!((1..=self.count).contains(&doubt.number), "a doubt has a number that was given out");
        assert!(
            (PAUSE_MIN..=PAUSE_MAX).contains(&doubt.pause),
            "a suspect is asked again, and not all the time"
        );
    }

    /// Forgets whoever is no node of the cluster any more.
    pub fn retain(&mut self, is_node: impl Fn(NodeId) -> bool) {
        self.doubts.retain(|&node, _| is_node(node));
    }

    /// Whether the node is better avoided.
    pub fn contains(&self, node: NodeId) -> bool {
        self.doubts.contains_key(&node)
    }

    /// How many are.
    pub fn count(&self) -> usize {
        self.doubts.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId(3);

    #[test]
    fn a_suspect_is_probed_by_one_after_pauses_that_double_until_it_answers() {
        let mut suspects = Suspects::default();
        let first = suspects.experienced(NODE, Experience::LinkBroke).unwrap();
        assert_eq!(suspects.experienced(NODE, Experience::Refused), None, "one probe is out");
        assert_eq!(suspects.count(), 1);
        let (mut pauses, mut probe) = (vec![first.after], first);
        for _ in 0..6 {
            probe = suspects.probe_failed(probe).unwrap();
            pauses.push(probe.after);
        }
        assert!(pauses.windows(2).all(|pair| pair[1] == (pair[0] * 2).min(PAUSE_MAX)), "{pauses:?}");
        suspects.experienced(NODE, Experience::Replied);
        assert_eq!((suspects.contains(NODE), suspects.count()), (false, 0));
        assert_eq!(suspects.probe_failed(probe), None, "nobody asks about it any more");
    }

    /// Each probe of a node that takes a link and breaks it was followed by two, and these by four.
    #[test]
    fn a_node_that_greets_and_breaks_its_link_each_time_is_probed_by_one() {
        let mut suspects = Suspects::default();
        let mut out = vec![suspects.experienced(NODE, Experience::LinkBroke).unwrap()];
        for _ in 0..20 {
            for probe in std::mem::take(&mut out) {
                suspects.experienced(NODE, Experience::Greeted);
                out.extend(suspects.experienced(NODE, Experience::LinkBroke));
                out.extend(suspects.probe_failed(probe));
            }
            assert_eq!(out.iter().filter(|probe| suspects.wants(probe)).count(), 1);
            assert_eq!(out.len(), 1);
        }
        let late = Probe { doubt: 1, ..out[0] };
        assert_eq!(suspects.probe_answered(late), None);
        assert!(suspects.contains(NODE), "an answer from before its link broke");
        suspects.probe_answered(out[0]);
        assert!(!suspects.contains(NODE));
    }

    /// A node that was told to stop left one write or two in doubt: whoever went on asking it wrote to a link that was
    /// about to close.
    #[test]
    fn a_node_that_stops_is_avoided_until_a_new_link_to_it_is_up() {
        let mut suspects = Suspects::default();
        let probe = suspects.experienced(NODE, Experience::Stopping).unwrap();
        suspects.experienced(NODE, Experience::Replied);
        assert!(
            suspects.probe_answered(probe).is_some() && suspects.contains(NODE),
            "it still answers pings"
        );
        assert_eq!(suspects.experienced(NODE, Experience::LinkBroke), None);
        suspects.experienced(NODE, Experience::Replied);
        assert!(suspects.contains(NODE), "an answer that was on its way");
        suspects.experienced(NODE, Experience::Greeted);
        assert!(!suspects.contains(NODE));
    }

    #[test]
    fn a_node_that_does_not_stop_after_all_is_believed_again() {
        let mut suspects = Suspects::default();
        let mut probe = suspects.experienced(NODE, Experience::Stopping);
        let mut waited = Duration::ZERO;
        while let Some(out) = probe {
            waited += out.after;
            probe = suspects.probe_answered(out);
        }
        assert!(!suspects.contains(NODE));
        assert!((4..=10).contains(&waited.as_secs()), "longer than any node takes to stop: {waited:?}");
        let probe = suspects.experienced(NODE, Experience::LinkBroke).unwrap();
        assert_eq!(suspects.probe_answered(probe), None);
        assert!(!suspects.contains(NODE), "any answer ends another doubt");
    }

    #[test]
    fn an_impatient_request_suspects_nobody() {
        let mut suspects = Suspects::default();
        let waited = LATE_AFTER - Duration::from_millis(1);
        assert_eq!(suspects.experienced(NODE, Experience::Unanswered { waited }), None);
        assert!(suspects.experienced(NODE, Experience::Unanswered { waited: LATE_AFTER }).is_some());
        suspects.retain(|_| false);
        assert!(!suspects.contains(NODE));
    }
}
