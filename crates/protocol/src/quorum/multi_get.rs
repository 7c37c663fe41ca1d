//! The quorums of a multi-get: one [`Get`] per key, one message per node.
//!
//! The rules of a get are not written again here. Each key has its own machine; what the machines want to send in
//! one step is grouped by node, and what a node replies is handed to the machines of the keys that it names. So a
//! late or failed node costs one more message per node that takes over some of its keys, and every key has an
//! outcome of its own.

use model::{Generation, Moment, NodeId, PreferenceList, VersionSet};

use super::get::{Get, GetAction, GetActions, GetEvent, GetOutcome};
use super::machine::machine;
use super::multi::{KeyIndex, Machines, PerNode};
use super::options::{Candidates, QuorumOptions};
use super::replica_error::ReplicaError;

/// What has happened to a multi-get.
#[derive(Clone, Debug)]
pub enum MultiGetEvent {
    /// A node has answered for some keys.
    Answered {
        /// Who.
        node: NodeId,
        /// The generation by which it went.
        generation: Generation,
        /// What it holds of each, or why it cannot say.
        answers: Vec<(KeyIndex, Result<VersionSet, ReplicaError>)>,
    },
    /// A node has failed to answer for all keys of a message.
    Failed {
        /// Who.
        node: NodeId,
        /// The keys that it was asked for.
        keys: Vec<KeyIndex>,
        /// Why.
        error: ReplicaError,
    },
    /// A node has answered what was written back to it.
    Stored {
        /// Who.
        node: NodeId,
        /// The generation by which it went.
        generation: Generation,
        /// Each key with its round in [`MultiGetAction::WriteBack`], and why the node did not take it if so.
        answers: Vec<(KeyIndex, u8, Result<(), ReplicaError>)>,
    },
    /// The moment that [`MultiGet::deadline`] named has come.
    Elapsed,
}

/// What shall be done for a multi-get. One step names each node at most once per kind of action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MultiGetAction {
    /// Ask this node what it holds of these keys, in one message.
    Fetch {
        /// Whom.
        node: NodeId,
        /// The keys, ascending.
        keys: Vec<KeyIndex>,
    },
    /// These keys have their outcomes. Each key comes once, here or in a [`MultiGetAction::Refresh`].
    Answer {
        /// The outcomes, ascending by key.
        outcomes: Vec<(KeyIndex, GetOutcome)>,
    },
    /// Merge these sets at a replica and tell with [`MultiGetEvent::Stored`]: callers wait.
    WriteBack {
        /// Where.
        node: NodeId,
        /// What, each with the round that the reply must name, ascending by key.
        sets: Vec<(KeyIndex, u8, VersionSet)>,
    },
    /// Merge these sets at a replica that lacks part of them.
    Repair {
        /// Where.
        node: NodeId,
        /// What, ascending by key.
        sets: Vec<(KeyIndex, VersionSet)>,
    },
    /// Start these keys again under a newer ring; this machine has ended for them without an answer.
    Refresh {
        /// The newest generation that a replica named.
        generation: Generation,
        /// The keys, ascending.
        keys: Vec<KeyIndex>,
    },
}

/// The quorums of one multi-get.
#[derive(Debug)]
pub struct MultiGet {
    gets: Machines<Get>,
}

/// What the machines of one step want, before it is grouped.
#[derive(Default)]
struct Wishes {
    fetches: PerNode<KeyIndex>,
    written_back: PerNode<(KeyIndex, u8, VersionSet)>,
    repairs: PerNode<(KeyIndex, VersionSet)>,
    outcomes: Vec<(KeyIndex, GetOutcome)>,
    refreshed: Vec<KeyIndex>,
    generation: Generation,
    buffer: GetActions,
}

impl MultiGet {
    /// Starts a get of each key; the keys are numbered in the order of their preference lists.
    ///
    /// Answers may be among the first actions, as in a single get; without keys there is nothing to do or to answer.
    pub fn start<'a>(
        preferences: impl IntoIterator<Item = &'a PreferenceList>,
        suspected: &[NodeId],
        lagging: &[NodeId],
        own: Option<NodeId>,
        options: QuorumOptions,
        now: Moment,
        actions: &mut Vec<MultiGetAction>,
    ) -> Self {
        let mut multi = MultiGet { gets: Machines::new() };
        let mut wishes = Wishes::default();
        for preference in preferences {
            let candidates = Candidates { preference, suspected, lagging };
            let get = Get::start(candidates, own, options, now, &mut wishes.buffer);
            wishes.take_in(multi.gets.push(get));
        }
        multi.check(&wishes);
        wishes.act(actions);
        multi
    }

    /// Takes in what has happened by `now`, and says what to do.
    pub fn step(&mut self, event: MultiGetEvent, now: Moment, actions: &mut Vec<MultiGetAction>) {
        let mut wishes = Wishes::default();
        match event {
            MultiGetEvent::Answered { node, generation, answers } => {
                for (key, answer) in answers {
                    let event = match answer {
                        Ok(set) => GetEvent::Answered { node, generation, set },
                        Err(error) => GetEvent::Failed { node, error },
                    };
                    self.step_key(key, event, now, &mut wishes);
                }
            }
            MultiGetEvent::Failed { node, keys, error } => {
                for key in keys {
                    self.step_key(key, GetEvent::Failed { node, error }, now, &mut wishes);
                }
            }
            MultiGetEvent::Stored { node, generation, answers } => {
                for (key, round, answer) in answers {
                    let event = match answer {
                        Ok(()) => GetEvent::Stored { node, generation, round },
                        Err(error) => GetEvent::NotStored { node, round, error },
                    };
                    self.step_key(key, event, now, &mut wishes);
                }
            }
            MultiGetEvent::Elapsed => {
                for key in self.gets.wake() {
                    self.step_key(key, GetEvent::Elapsed, now, &mut wishes);
                }
            }
        }
        self.check(&wishes);
        wishes.act(actions);
    }

    /// Each key waits for its caller or was answered, once.
    fn check(&self, wishes: &Wishes) {
        if cfg!(debug_assertions) {
            self.gets.check();
            let answered = wishes.outcomes.iter().map(|(key, _)| *key);
            let mut ended: Vec<KeyIndex> = answered.chain(wishes.refreshed.iter().copied()).collect();
            ended.sort_unstable();
            assert!(ended.windows(2).all(|pair| pair[0] < pair[1]), "a key has one outcome");
        }
    }

    /// When the machine must be told that time has passed, at the latest; `None` when it has nothing left to do.
    pub fn deadline(&self) -> Option<Moment> {
        self.gets.deadline()
    }

    /// How many keys have neither an answer nor a refresh.
    pub fn unanswered(&self) -> usize {
        self.gets.unanswered()
    }

    /// Whether keys have neither an answer nor a refresh.
    pub fn is_unanswered(&self) -> bool {
        self.unanswered() > 0
    }

    fn step_key(&mut self, key: KeyIndex, event: GetEvent, now: Moment, wishes: &mut Wishes) {
        if self.gets.step(key, event, now, &mut wishes.buffer) {
            wishes.take_in(key);
        }
    }
}

machine!(MultiGet, MultiGetEvent, Vec<MultiGetAction>);

impl Wishes {
    /// Files what one key's machine has put into the buffer.
    fn take_in(&mut self, key: KeyIndex) {
        for action in self.buffer.drain(..) {
            match action {
                GetAction::Fetch { node } => self.fetches.push(node, key),
                GetAction::WriteBack { node, round, set } => self.written_back.push(node, (key, round, set)),
                GetAction::Repair { node, set } => self.repairs.push(node, (key, set)),
                GetAction::Answer(outcome) => self.outcomes.push((key, outcome)),
                GetAction::Refresh { generation } => {
                    self.refreshed.push(key);
                    self.generation = self.generation.max(generation);
                }
            }
        }
    }

    /// What all of it is as actions, grouped by node.
    fn act(self, actions: &mut Vec<MultiGetAction>) {
        let Wishes { fetches, written_back, repairs, mut outcomes, mut refreshed, generation, .. } = self;
        actions.extend(fetches.into_groups().map(|(node, mut keys)| {
            keys.sort_unstable();
            MultiGetAction::Fetch { node, keys }
        }));
        actions.extend(written_back.into_groups().map(|(node, mut sets)| {
            sets.sort_by_key(|(key, ..)| *key);
            MultiGetAction::WriteBack { node, sets }
        }));
        if !outcomes.is_empty() {
            outcomes.sort_by_key(|(key, _)| *key);
            actions.push(MultiGetAction::Answer { outcomes });
        }
        if !refreshed.is_empty() {
            refreshed.sort();
            actions.push(MultiGetAction::Refresh { generation, keys: refreshed });
        }
        actions.extend(repairs.into_groups().map(|(node, mut sets)| {
            sets.sort_by_key(|(key, _)| *key);
            MultiGetAction::Repair { node, sets }
        }));
    }
}
