//! The quorums of a multi-put (or multi-delete): one [`Write`] per key, one message per node.
//!
//! As with [`MultiGet`](super::MultiGet), the rules stay with the single write; this machine groups by node.
//! The coordinator has stamped every key. A message to a node carries the writes to merge there and the hints to
//! hold there together.

use model::{Generation, Moment, NodeId, PreferenceList};

use super::machine::machine;
use super::multi::{KeyIndex, Machines, PerNode};
use super::options::{Candidates, QuorumOptions};
use super::replica_error::ReplicaError;
use super::write::{Origin, Write, WriteAction, WriteActions, WriteEvent, WriteOutcome};

/// What has happened to a multi-put.
#[derive(Clone, Debug)]
pub enum MultiWriteEvent {
    /// A node has acknowledged or refused some keys, as replica or as holder of a hint.
    Acknowledged {
        /// Who.
        node: NodeId,
        /// The generation by which it went.
        generation: Generation,
        /// For each key whether the write was already superseded there, or why the node did not take it.
        answers: Vec<(KeyIndex, Result<bool, ReplicaError>)>,
    },
    /// A node has failed for all keys of a message.
    Failed {
        /// Who.
        node: NodeId,
        /// The keys that it was sent.
        keys: Vec<KeyIndex>,
        /// Why.
        error: ReplicaError,
    },
    /// The moment that [`MultiWrite::deadline`] named has come.
    Elapsed,
}

/// What shall be done for a multi-put. One step names each node at most once per kind of action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MultiWriteAction {
    /// Merge the writes of `merges` at this node and let it hold the `hints`, in one message.
    Send {
        /// Where.
        node: NodeId,
        /// Keys of which it is a replica, ascending.
        merges: Vec<KeyIndex>,
        /// Keys that it stands in for, each with the replica that the hint is for, ascending.
        hints: Vec<(KeyIndex, NodeId)>,
    },
    /// Hold these hints at the coordinator itself. The outcome is not reported back.
    ParkHints {
        /// Each key with the replica that the hint is for, ascending.
        hints: Vec<(KeyIndex, NodeId)>,
    },
    /// These keys have their outcomes. Each key comes once, here or in a [`MultiWriteAction::Refresh`].
    Answer {
        /// The outcomes, ascending by key.
        outcomes: Vec<(KeyIndex, WriteOutcome)>,
    },
    /// Start these keys again, with the same dots, under a newer ring; this machine has ended for them.
    Refresh {
        /// The newest generation that a replica named.
        generation: Generation,
        /// Each key with what [`Origin::possible`] must say for its new attempt, ascending.
        keys: Vec<(KeyIndex, bool)>,
    },
}

/// The quorums of one multi-put.
#[derive(Debug)]
pub struct MultiWrite {
    writes: Machines<Write>,
}

/// What the machines of one step want, before it is grouped.
#[derive(Default)]
struct Wishes {
    sends: PerNode<Parcel>,
    parked: Vec<(KeyIndex, NodeId)>,
    outcomes: Vec<(KeyIndex, WriteOutcome)>,
    refreshed: Vec<(KeyIndex, bool)>,
    generation: Generation,
    buffer: WriteActions,
}

/// One key's part of a message.
enum Parcel {
    Merge(KeyIndex),
    Hint(KeyIndex, NodeId),
}

impl MultiWrite {
    /// Starts a write of each key; the keys are numbered in the order of their preference lists and origins.
    ///
    /// Answers may be among the first actions, as in a single write; without keys there is nothing to do or to
    /// answer.
    pub fn start<'a>(
        keys: impl IntoIterator<Item = (&'a PreferenceList, Origin)>,
        suspected: &[NodeId],
        options: QuorumOptions,
        now: Moment,
        actions: &mut Vec<MultiWriteAction>,
    ) -> Self {
        let mut multi = MultiWrite { writes: Machines::new() };
        let mut wishes = Wishes::default();
        for (preference, origin) in keys {
            let candidates = Candidates { preference, suspected, lagging: &[] };
            let write = Write::start(candidates, origin, options, now, &mut wishes.buffer);
            wishes.take_in(multi.writes.push(write));
        }
        multi.check(&wishes);
        wishes.act(actions);
        multi
    }

    /// Takes in what has happened by `now`, and says what to do.
    pub fn step(&mut self, event: MultiWriteEvent, now: Moment, actions: &mut Vec<MultiWriteAction>) {
        let mut wishes = Wishes::default();
        match event {
            MultiWriteEvent::Acknowledged { node, generation, answers } => {
                for (key, answer) in answers {
                    let event = match answer {
                        Ok(superseded) => WriteEvent::Acknowledged { node, generation, superseded },
                        Err(error) => WriteEvent::Failed { node, error },
                    };
                    self.step_key(key, event, now, &mut wishes);
                }
            }
            MultiWriteEvent::Failed { node, keys, error } => {
                for key in keys {
                    self.step_key(key, WriteEvent::Failed { node, error }, now, &mut wishes);
                }
            }
            MultiWriteEvent::Elapsed => {
                for key in self.writes.wake() {
                    self.step_key(key, WriteEvent::Elapsed, now, &mut wishes);
                }
            }
        }
        self.check(&wishes);
        wishes.act(actions);
    }

    /// Each key waits for its caller or was answered, once.
    fn check(&self, wishes: &Wishes) {
        if cfg!(debug_assertions) {
            self.writes.check();
            let answered = wishes.outcomes.iter().map(|(key, _)| *key);
            let mut ended: Vec<KeyIndex> =
                answered.chain(wishes.refreshed.iter().map(|(key, _)| *key)).collect();
            ended.sort_unstable();
            assert!(ended.windows(2).all(|pair| pair[0] < pair[1]), "a key has one outcome");
        }
    }

    /// When the machine must be told that time has passed, at the latest; `None` when it has nothing left to do.
    pub fn deadline(&self) -> Option<Moment> {
        self.writes.deadline()
    }

    /// How many keys have neither an answer nor a refresh.
    pub fn unanswered(&self) -> usize {
        self.writes.unanswered()
    }

    /// Whether keys have neither an answer nor a refresh.
    pub fn is_unanswered(&self) -> bool {
        self.unanswered() > 0
    }

    fn step_key(&mut self, key: KeyIndex, event: WriteEvent, now: Moment, wishes: &mut Wishes) {
        if self.writes.step(key, event, now, &mut wishes.buffer) {
            wishes.take_in(key);
        }
    }
}

machine!(MultiWrite, MultiWriteEvent, Vec<MultiWriteAction>);

impl Wishes {
    /// Files what one key's machine has put into the buffer.
    fn take_in(&mut self, key: KeyIndex) {
        for action in self.buffer.drain(..) {
            match action {
                WriteAction::Merge { node } => self.sends.push(node, Parcel::Merge(key)),
                WriteAction::SendHint { holder, target } => {
                    self.sends.push(holder, Parcel::Hint(key, target));
                }
                WriteAction::ParkHint { target } => self.parked.push((key, target)),
                WriteAction::Answer(outcome) => self.outcomes.push((key, outcome)),
                WriteAction::Refresh { generation, possible } => {
                    self.refreshed.push((key, possible));
                    self.generation = self.generation.max(generation);
                }
            }
        }
    }

    /// What all of it is as actions, grouped by node.
    fn act(self, actions: &mut Vec<MultiWriteAction>) {
        let Wishes { sends, mut parked, mut outcomes, mut refreshed, generation, .. } = self;
        actions.extend(sends.into_groups().map(|(node, parcels)| message(node, parcels)));
        if !outcomes.is_empty() {
            outcomes.sort_by_key(|(key, _)| *key);
            actions.push(MultiWriteAction::Answer { outcomes });
        }
        if !refreshed.is_empty() {
            refreshed.sort();
            actions.push(MultiWriteAction::Refresh { generation, keys: refreshed });
        }
        if !parked.is_empty() {
            parked.sort();
            actions.push(MultiWriteAction::ParkHints { hints: parked });
        }
    }
}

/// One node's part of a step.
fn message(node: NodeId, parcels: Vec<Parcel>) -> MultiWriteAction {
    let (mut merges, mut hints) = (Vec::new(), Vec::new());
    for parcel in parcels {
        match parcel {
            Parcel::Merge(key) => merges.push(key),
            Parcel::Hint(key, target) => hints.push((key, target)),
        }
    }
    merges.sort_unstable();
    hints.sort_unstable();
    MultiWriteAction::Send { node, merges, hints }
}
