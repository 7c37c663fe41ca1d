//! What a client believes about nodes: it hears no rumours, so its own requests are all it has.
//!
//! A node that a request met badly is suspected at once and asked again beside the requests, after pauses that double,
//! until it answers; meanwhile requests go elsewhere. So one request at most pays for a dead node, and none pays to
//! find out that it is back.

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
    /// With the pause before the probe that is out.
    pauses: BTreeMap<NodeId, Duration>,
}

impl Suspects {
    /// Takes in what a request met with; a newly suspected node wants a probe.
    pub fn experienced(&mut self, node: NodeId, experience: Experience) -> Option<Probe> {
        match experience {
            Experience::Replied => {
                self.pauses.remove(&node);
                return None;
            }
            Experience::Heard => return None,
            Experience::Unanswered { waited } if waited < LATE_AFTER => return None,
            Experience::Unanswered { .. }
            | Experience::LinkBroke
            | Experience::Refused
            | Experience::Unreachable => {}
        }
        if self.pauses.contains_key(&node) {
            return None;
        }
        self.pauses.insert(node, PAUSE_MIN);
        Some(Probe { node, after: PAUSE_MIN })
    }

    /// A probe had no answer; another one is wanted if the node is still suspected.
    pub fn probe_failed(&mut self, node: NodeId) -> Option<Probe> {
        let pause = self.pauses.get_mut(&node)?;
        *pause = (*pause * 2).min(PAUSE_MAX);
        Some(Probe { node, after: *pause })
    }

    /// Forgets whoever is no node of the cluster any more.
    pub fn retain(&mut self, is_node: impl Fn(NodeId) -> bool) {
        self.pauses.retain(|&node, _| is_node(node));
    }

    /// Whether the node is better avoided.
    pub fn contains(&self, node: NodeId) -> bool {
        self.pauses.contains_key(&node)
    }

    /// How many are.
    pub fn count(&self) -> usize {
        self.pauses.len()
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
