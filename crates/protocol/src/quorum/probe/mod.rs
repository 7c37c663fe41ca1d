//! Whom to ask before a write is refused because its node reaches too few others.
//!
//! A node that clients reach and no other node hears would drive each of their writes into doubt, so it begins only
//! what it can bring to its quorum, as far as it knows ([`can_be_driven`]). What it knows of others is suspicion, which
//! is cheap and often wrong. So nothing is refused before the suspected nodes that would make the difference were
//! asked whether they are there: all at once, once for all keys of a request.
//!
//! ```text
//!   start ─────────────── part of the time ──────────── deadline of the request
//!     │ Ask every suspected  │ Answer: whoever is         left for trying elsewhere
//!     │ node that could help │ silent is not there
//!     └─ Answer as soon as no answer can change it any more
//! ```
//!
//! **Architecture Invariant:** a key is refused only when so many of the nodes that were asked have failed, or were
//! silent for their part of the time, that those that are there are fewer than must acknowledge.

#[cfg(test)]
mod explore;

use std::collections::BTreeMap;

use model::{Moment, NodeId, PreferenceList, Sets};

use super::counts::Spared;
use super::machine::machine;
use super::multi::KeyIndex;

/// Nodes have one part in this many of the request's time to answer: what is left is for trying elsewhere.
const PATIENCE_PART: u64 = 2;

/// Who drives a write, and what it must have. The same for every key of a multi-request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    /// The node that stamps the write, or passes it on.
    pub own: NodeId,
    /// Acknowledgements that the write must have: W.
    pub required: u8,
    /// What each set of replicas is spared of that, while the store changes its numbers.
    pub spared: Spared,
    /// Whether fallbacks count in place of replicas.
    pub sloppy: bool,
}

/// Whether a write can have as many acknowledgements as it must, as far as its node knows whom it reaches. One that
/// cannot is better not begun: it would end in doubt, and somebody else may reach more. [`Probe`] finds out.
pub fn can_be_driven(
    reach: &Reach,
    preference: &PreferenceList,
    is_suspected: impl Fn(NodeId) -> bool,
) -> bool {
    sets(preference).iter().all(|&set| reach.missing(preference, set, &is_suspected) == 0)
}

/// One of the sets of replicas that writes need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Set {
    Old,
    New,
}

impl Set {
    fn counts(self, sets: Sets) -> bool {
        match self {
            Set::Old => sets.has_old(),
            Set::New => sets.has_new(),
        }
    }
}

/// The sets of replicas that writes need: two while the partition moves.
fn sets(preference: &PreferenceList) -> &'static [Set] {
    if preference.is_joint() { &[Set::Old, Set::New] } else { &[Set::Old] }
}

impl Reach {
    /// The nodes whose acknowledgements count in one set of replicas.
    fn takers(
        self,
        preference: &PreferenceList,
        counts: impl Fn(Sets) -> bool,
    ) -> impl Iterator<Item = NodeId> {
        let fallbacks = if self.sloppy { preference.fallbacks() } else { &[] };
        let replicas = preference.sets().filter(move |(_, sets)| counts(*sets)).map(|(node, _)| node);
        replicas.chain(fallbacks.iter().copied())
    }

    /// The takers that are not there, as far as the write's node knows.
    pub fn unheard(self, preference: &PreferenceList, is_suspected: impl Fn(NodeId) -> bool) -> Vec<NodeId> {
        self.takers(preference, |_| true).filter(|&node| node != self.own && is_suspected(node)).collect()
    }

    /// How many takers are missing in one set when those are not there that are suspected.
    fn missing(self, preference: &PreferenceList, set: Set, is_suspected: impl Fn(NodeId) -> bool) -> usize {
        let required = self.spared.needed(self.required, set == Set::Old);
        let takers = self.takers(preference, move |sets| set.counts(sets));
        let there = takers.filter(|&node| node == self.own || !is_suspected(node));
        required - there.take(required).count()
    }
}

/// What has happened to the question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeEvent {
    /// A node has said anything, be it a refusal: it is there.
    Answered {
        /// Who.
        node: NodeId,
    },
    /// A node cannot be reached, or the link to it broke before it answered.
    Failed {
        /// Who.
        node: NodeId,
    },
    /// The moment that [`Probe::deadline`] named has come.
    Elapsed,
}

/// What shall be done for the question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeAction {
    /// Ask this node for a sign of life, whatever is suspected of it. Each node comes once.
    Ask {
        /// Whom.
        node: NodeId,
    },
    /// The question is settled; comes once.
    Answer {
        /// The keys whose writes must be refused, ascending; the others can be driven.
        refused: Vec<KeyIndex>,
    },
}

/// One question for all keys of a write.
#[derive(Clone, Debug)]
pub struct Probe {
    /// The keys that lack takers, ascending; one that lacks them in two sets comes twice.
    short: Vec<Short>,
    asked: BTreeMap<NodeId, ProbedNode>,
    /// Until when answers are waited for; `None` once the question is settled.
    deadline: Option<Moment>,
}

/// A key that is short of takers in one set of replicas.
#[derive(Clone, Copy, Debug)]
struct Short {
    key: KeyIndex,
    /// Takers that it still lacks.
    missing: usize,
    /// Takers of it that have been asked and have neither answered nor failed.
    awaited: usize,
}

/// A node that was asked.
#[derive(Clone, Debug)]
struct ProbedNode {
    reply: ProbeReply,
    /// Positions among the short keys that it can take writes of.
    short: Vec<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProbeReply {
    Awaited,
    Failed,
    Answered,
}

impl Short {
    /// Whether what is awaited can still decide about it.
    fn is_open(&self) -> bool {
        self.missing > 0 && self.missing <= self.awaited
    }
}

impl Probe {
    /// Asks for the keys with these preference lists, numbered in their order. `deadline` is that of the request.
    ///
    /// The answer may be among the first actions: when no key lacks a taker, or no question can help.
    pub fn start<'a>(
        reach: Reach,
        preferences: impl IntoIterator<Item = &'a PreferenceList>,
        is_suspected: impl Fn(NodeId) -> bool,
        now: Moment,
        deadline: Moment,
        actions: &mut Vec<ProbeAction>,
    ) -> Self {
        let mut probe = Probe { short: Vec::new(), asked: BTreeMap::new(), deadline: None };
        for (position, preference) in preferences.into_iter().enumerate() {
            for &set in sets(preference) {
                let missing = reach.missing(preference, set, &is_suspected);
                if missing > 0 {
                    let absent = |node: &NodeId| *node != reach.own && is_suspected(*node);
                    let absent = reach.takers(preference, |sets| set.counts(sets)).filter(absent).collect();
                    probe.add(KeyIndex::at(position), missing, absent);
                }
            }
        }
        let patience = deadline.nanos.saturating_sub(now.nanos) / PATIENCE_PART;
        probe.deadline = Some(Moment { nanos: now.nanos + patience });
        actions.extend(probe.asked.keys().map(|&node| ProbeAction::Ask { node }));
        probe.settle(now, actions);
        probe.check();
        probe
    }

    /// Takes in what has happened by `now`, and says what to do.
    pub fn step(&mut self, event: ProbeEvent, now: Moment, actions: &mut Vec<ProbeAction>) {
        if self.deadline.is_none() {
            return;
        }
        match event {
            ProbeEvent::Answered { node } => self.replied(node, ProbeReply::Answered),
            ProbeEvent::Failed { node } => self.replied(node, ProbeReply::Failed),
            ProbeEvent::Elapsed => {}
        }
        self.settle(now, actions);
        self.check();
    }

    /// What must be true of the question after each step.
    fn check(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        let keys = self.short.iter().map(|short| short.key);
        assert!(keys.is_sorted(), "keys come in their order");
        for (position, short) in self.short.iter().enumerate() {
            let awaits =
                |asked: &&ProbedNode| asked.reply == ProbeReply::Awaited && asked.short.contains(&position);
            assert_eq!(short.awaited, self.asked.values().filter(awaits).count(), "takers that are awaited");
        }
    }

    /// When the machine must be told that time has passed, at the latest; `None` once it has answered.
    pub fn deadline(&self) -> Option<Moment> {
        self.deadline
    }

    /// Whether its caller still waits.
    pub fn is_unanswered(&self) -> bool {
        self.deadline.is_some()
    }

    /// Adds a key that lacks takers, and asks those that are suspected unless even all of them were too few.
    fn add(&mut self, key: KeyIndex, missing: usize, absent: Vec<NodeId>) {
        let asks = missing <= absent.len();
        let awaited = if asks { absent.len() } else { 0 };
        for node in absent.into_iter().take(awaited) {
            let asked = self.asked.entry(node);
            asked
                .or_insert(ProbedNode { reply: ProbeReply::Awaited, short: Vec::new() })
                .short
                .push(self.short.len());
        }
        self.short.push(Short { key, missing, awaited });
    }

    /// Counts a node's reply. Positive evidence wins: who has answered is there, also after a failure.
    fn replied(&mut self, node: NodeId, reply: ProbeReply) {
        let Some(asked) = self.asked.get_mut(&node) else { return };
        let before = asked.reply;
        if before == ProbeReply::Answered || before == reply {
            return;
        }
        asked.reply = reply;
        for &position in &asked.short {
            let short = &mut self.short[position];
            short.awaited -= usize::from(before == ProbeReply::Awaited);
            if reply == ProbeReply::Answered {
                short.missing = short.missing.saturating_sub(1);
            }
        }
    }

    /// Answers when nothing that is awaited can change the answer any more, or nobody is waited for any longer.
    fn settle(&mut self, now: Moment, actions: &mut Vec<ProbeAction>) {
        let Some(deadline) = self.deadline else { return };
        if self.short.iter().any(Short::is_open) && now < deadline {
            return;
        }
        self.deadline = None;
        let short = self.short.iter().filter(|short| short.missing > 0);
        let mut refused: Vec<KeyIndex> = short.map(|short| short.key).collect();
        refused.dedup();
        actions.push(ProbeAction::Answer { refused });
    }
}

machine!(Probe, ProbeEvent, Vec<ProbeAction>);
