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
}

/// The nodes that are better avoided.
#[derive(Clone, Debug, Default)]
pub struct Suspects {
    doubts: BTreeMap<NodeId, Doubt>,
}

#[derive(Clone, Copy, Debug)]
struct Doubt {
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
        self.doubts.insert(node, Doubt { pause: PAUSE_MIN, stopping });
        Some(Probe { node, after: PAUSE_MIN })
    }

    /// A probe had no answer; another one is wanted if the node is still suspected.
    pub fn probe_failed(&mut self, node: NodeId) -> Option<Probe> {
        let doubt = self.doubts.get_mut(&node)?;
        doubt.pause = (doubt.pause * 2).min(PAUSE_MAX);
        Some(Probe { node, after: doubt.pause })
    }

    /// A probe had an answer. Another one is wanted while a node that said that it stops may be about to.
    pub fn probe_answered(&mut self, node: NodeId) -> Option<Probe> {
        let doubt = self.doubts.get(&node)?;
        if doubt.stopping && doubt.pause < PAUSE_MAX {
            return self.probe_failed(node);
        }
        self.doubts.remove(&node);
        None
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
        let mut pauses = vec![first.after];
        for _ in 0..6 {
            pauses.push(suspects.probe_failed(NODE).unwrap().after);
        }
        assert!(pauses.windows(2).all(|pair| pair[1] == (pair[0] * 2).min(PAUSE_MAX)), "{pauses:?}");
        suspects.experienced(NODE, Experience::Replied);
        assert_eq!((suspects.contains(NODE), suspects.count()), (false, 0));
        assert_eq!(suspects.probe_failed(NODE), None, "nobody asks about it any more");
    }

    /// A node that was told to stop left one write or two in doubt: whoever went on asking it wrote to a link that was
    /// about to close.
    #[test]
    fn a_node_that_stops_is_avoided_until_a_new_link_to_it_is_up() {
        let mut suspects = Suspects::default();
        suspects.experienced(NODE, Experience::Stopping).unwrap();
        suspects.experienced(NODE, Experience::Replied);
        assert!(suspects.probe_answered(NODE).is_some() && suspects.contains(NODE), "it still answers pings");
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
        while let Some(Probe { after, .. }) = probe {
            waited += after;
            probe = suspects.probe_answered(NODE);
        }
        assert!(!suspects.contains(NODE));
        assert!((4..=10).contains(&waited.as_secs()), "longer than any node takes to stop: {waited:?}");
        suspects.experienced(NODE, Experience::LinkBroke).unwrap();
        assert_eq!(suspects.probe_answered(NODE), None);
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
