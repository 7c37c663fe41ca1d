//! The initiator of one round.

use std::collections::BTreeSet;
use std::time::Duration;

use model::{Epoch, Generation, Moment, NodeId};

use super::participant::GUARD_TIME;

/// How long a round may take before its initiator gives it up: well below [`GUARD_TIME`], far above what a healthy
/// cluster needs.
pub const ROUND_TIME: Duration = Duration::from_secs(30);

const _: () = assert!(ROUND_TIME.as_nanos() < GUARD_TIME.as_nanos());

/// How far a round is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RoundStage {
    /// Every node makes sure that the keys are clean.
    Confirming,
    /// A new epoch is taken from the coordination service.
    Opening,
    /// Every node turns to the new epoch.
    Fencing,
    /// The epoch becomes the completed one.
    Completing,
    /// Every node is asked whether it is still the process that fenced.
    Checking,
    /// Tombstones are removed.
    Collecting,
    /// It is over.
    Ended,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoundEvent {
    /// A node confirmed.
    Confirmed {
        /// Which.
        node: NodeId,
        /// Its epoch when it began to guard the keys.
        epoch: Epoch,
        /// Positions of keys that it could not make clean: the round goes on without them.
        left_out: Vec<u32>,
    },
    /// The service has given out this epoch.
    Opened(Epoch),
    /// A node fenced, or had fenced.
    Fenced(NodeId),
    /// The epoch is the completed one; after that was written, the cluster document had had the same nodes since this
    /// generation.
    Completed(Generation),
    /// A node removed this many records.
    Collected(NodeId, u64),
    /// A node refused, or nobody knows what it did.
    Failed(NodeId),
    /// The coordination service could not be reached.
    ServiceFailed,
    /// The deadline has passed.
    Elapsed,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RoundAction {
    /// Send the keys.
    Confirm(NodeId),
    /// Take a new epoch, greater than this and than all before, from the service.
    Open(Epoch),
    /// Have a node fence.
    Fence(NodeId, Epoch),
    /// Write down that the epoch is completed, unless a greater one is; *then* read the cluster document.
    Complete(Epoch),
    /// Have a node remove what equals the tombstones.
    Collect(NodeId),
    /// Tell a node that the round is over without its fence, so that it need not guard the keys any longer. Whether it
    /// learns of it does not matter.
    Release(NodeId),
    /// The round is over.
    End(RoundEnd),
}

/// How a round ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RoundEnd {
    /// What could be collected is; so many records of all nodes, and so many nodes that did not answer in the end:
    /// they keep their tombstones until a later round.
    Done {
        /// Records removed.
        records: u64,
        /// Nodes that did not say so.
        missing: u32,
        /// The first node that could not make some of the keys clean: they wait for a later round.
        left_out: Option<NodeId>,
    },
    /// Nothing was removed; at which stage, and because of whom, if it was one node.
    Broken {
        /// The stage that did not come to its end.
        stage: RoundStage,
        /// The node that did not take part.
        node: Option<NodeId>,
    },
}

/// One round.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Round {
    generation: Generation,
    nodes: BTreeSet<NodeId>,
    /// How many keys it began with.
    keys: u32,
    /// Positions of those that it goes on without.
    left_out: BTreeSet<u32>,
    left_out_by: Option<NodeId>,
    stage: RoundStage,
    waiting: BTreeSet<NodeId>,
    above: Epoch,
    epoch: Epoch,
    records: u64,
    missing: u32,
    until: u64,
}

impl Round {
    /// Begins a round for this many keys among all nodes of the cluster document, which has had the same
    /// ones since this generation.
    pub fn start(
        nodes: impl IntoIterator<Item = NodeId>,
        keys: u32,
        generation: Generation,
        now: Moment,
        actions: &mut Vec<RoundAction>,
    ) -> Self {
        let nodes: BTreeSet<NodeId> = nodes.into_iter().collect();
        let mut round = Round {
            generation,
            waiting: BTreeSet::new(),
            nodes,
            keys,
            left_out: BTreeSet::new(),
            left_out_by: None,
            stage: RoundStage::Confirming,
            above: Epoch(0),
            epoch: Epoch(0),
            records: 0,
            missing: 0,
            until: now.after(ROUND_TIME).nanos,
        };
        round.ask_all(RoundStage::Confirming, actions);
        round
    }

    /// Takes in what happened.
    pub fn step(&mut self, event: RoundEvent, actions: &mut Vec<RoundAction>) {
        match event {
            RoundEvent::Confirmed { node, epoch, left_out } if self.stage == RoundStage::Confirming => {
                self.above = self.above.max(epoch);
                self.leave_out(node, left_out);
                self.answered(node, actions);
            }
            RoundEvent::Opened(epoch) if self.stage == RoundStage::Opening => {
                self.epoch = epoch;
                self.ask_all(RoundStage::Fencing, actions);
            }
            RoundEvent::Fenced(node) if matches!(self.stage, RoundStage::Fencing | RoundStage::Checking) => {
                self.answered(node, actions);
            }
            RoundEvent::Completed(generation) if self.stage == RoundStage::Completing => {
                if generation != self.generation {
                    return self.end(None, actions);
                }
                self.ask_all(RoundStage::Checking, actions);
            }
            RoundEvent::Collected(node, records) if self.stage == RoundStage::Collecting => {
                if self.waiting.contains(&node) {
                    self.records += records;
                }
                self.answered(node, actions);
            }
            RoundEvent::Failed(node) => self.failed(node, actions),
            RoundEvent::ServiceFailed
                if matches!(self.stage, RoundStage::Opening | RoundStage::Completing) =>
            {
                self.end(None, actions);
            }
            RoundEvent::Elapsed if self.stage == RoundStage::Collecting => {
                self.missing += self.waiting.len() as u32;
                self.waiting.clear();
                self.advance(actions);
            }
            RoundEvent::Elapsed => self.end(self.waiting.first().copied(), actions),
            _ => {}
        }
        self.check();
    }

    /// What holds after every step.
    fn check(&self) {
        use RoundStage::{Collecting, Completing, Confirming, Ended, Opening};
        assert!(self.waiting.is_subset(&self.nodes), "only nodes of the round are waited for");
        assert!(
            !matches!(self.stage, Opening | Completing) || self.waiting.is_empty(),
            "the service is asked when every node has answered"
        );
        assert!(
            matches!(self.stage, Confirming | Opening | Ended) || self.epoch != Epoch(0),
            "nodes turn to an epoch that the service has given out"
        );
        assert!(
            self.left_out.last().is_none_or(|&position| position < self.keys && self.left_out_by.is_some()),
            "what is left out is a key of the round, and somebody left it out"
        );
        assert!(
            matches!(self.stage, Collecting | Ended) || (self.records == 0 && self.missing == 0),
            "nothing is removed before every node was asked again"
        );
        assert!(self.missing as usize <= self.nodes.len(), "each node is missing once");
        assert!(
            self.stage != Confirming || !self.waiting.is_empty(),
            "a round that waits for nobody goes on"
        );
    }

    /// When to wake it; `None` when it is over.
    pub fn deadline(&self) -> Option<Moment> {
        (self.stage != RoundStage::Ended).then_some(Moment { nanos: self.until })
    }

    /// Whether the round goes on without the key at this position: not everybody could make it clean. It changes no more
    /// once everybody has confirmed.
    pub fn is_left_out(&self, position: u32) -> bool {
        self.left_out.contains(&position)
    }

    /// How far it is.
    pub fn stage(&self) -> RoundStage {
        self.stage
    }

    fn leave_out(&mut self, node: NodeId, positions: Vec<u32>) {
        if !positions.is_empty() {
            self.left_out_by.get_or_insert(node);
        }
        self.left_out.extend(positions.into_iter().filter(|&position| position < self.keys));
    }

    fn ask_all(&mut self, stage: RoundStage, actions: &mut Vec<RoundAction>) {
        self.stage = stage;
        self.waiting = self.nodes.clone();
        let ask = |&node: &NodeId| match stage {
            RoundStage::Confirming => RoundAction::Confirm(node),
            RoundStage::Collecting => RoundAction::Collect(node),
            _ => RoundAction::Fence(node, self.epoch),
        };
        actions.extend(self.nodes.iter().map(ask));
    }

    fn answered(&mut self, node: NodeId, actions: &mut Vec<RoundAction>) {
        if !self.waiting.remove(&node) {
            return;
        }
        if self.waiting.is_empty() {
            self.advance(actions);
        }
    }

    /// A node that does not take part ends the round, unless only removing is left, which a later round can do.
    fn failed(&mut self, node: NodeId, actions: &mut Vec<RoundAction>) {
        if !self.waiting.contains(&node) {
            return;
        }
        if self.stage == RoundStage::Collecting {
            self.missing += 1;
            return self.answered(node, actions);
        }
        self.end(Some(node), actions);
    }

    fn advance(&mut self, actions: &mut Vec<RoundAction>) {
        match self.stage {
            RoundStage::Confirming if self.left_out.len() as u32 >= self.keys => {
                self.end(self.left_out_by, actions);
            }
            RoundStage::Confirming => {
                self.stage = RoundStage::Opening;
                actions.push(RoundAction::Open(self.above));
            }
            RoundStage::Fencing => {
                self.stage = RoundStage::Completing;
                actions.push(RoundAction::Complete(self.epoch));
            }
            RoundStage::Checking => self.ask_all(RoundStage::Collecting, actions),
            RoundStage::Collecting => {
                self.stage = RoundStage::Ended;
                let (records, missing, left_out) = (self.records, self.missing, self.left_out_by);
                actions.push(RoundAction::End(RoundEnd::Done { records, missing, left_out }));
            }
            RoundStage::Opening | RoundStage::Completing | RoundStage::Ended => {}
        }
    }

    fn end(&mut self, node: Option<NodeId>, actions: &mut Vec<RoundAction>) {
        if self.stage == RoundStage::Ended {
            return;
        }
        let stage = std::mem::replace(&mut self.stage, RoundStage::Ended);
        actions.extend(self.nodes.iter().map(|&node| RoundAction::Release(node)));
        actions.push(RoundAction::End(RoundEnd::Broken { stage, node }));
    }
}
