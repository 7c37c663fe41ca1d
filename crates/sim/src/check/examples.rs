//! Histories told by hand, for the judges' own tests. Time goes on by one microsecond with each line.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use model::{
    Actor, Cluster, Consistency, Context, Dot, Generation, Moment, Node, NodeId, Partition, PartitionId,
    Ring, Store, StoreName, Timestamp, Value, Vector, Version, VersionSet, Zone,
};

use wire::messages::Condition;

use super::Rules;
use crate::circumstances::Circumstances;
use crate::history::{Action, Basis, Deletion, History, Operation, OperationId, Outcome, Remains};

/// N=3, R=2, W=2, no losses.
pub(crate) fn rules() -> Rules {
    Rules {
        replicas: 3,
        reads_required: 2,
        writes_required: 2,
        copies_kept: true,
        refilled: false,
        hints_lost: false,
        reads_monotonic: false,
        numbers_change: false,
        reaped_after: Duration::ZERO,
    }
}

/// The key of all stories.
const KEY: &str = "k";

/// One client, one key.
pub(crate) struct Story {
    pub(crate) history: History,
    /// The store of all that is told.
    pub(crate) store: &'static str,
    pub(crate) now: Moment,
}

impl Default for Story {
    fn default() -> Story {
        Story { history: History::default(), store: super::siblings::STORE, now: Moment::default() }
    }
}

impl Story {
    /// A story of a cluster of these nodes, which are the key's replicas, and node 4.
    pub(crate) fn with_replicas(nodes: &[u32]) -> Story {
        let zone = Zone("z".to_owned());
        let members: Vec<Node> = (1..=4).map(|id| Node::new(NodeId(id), zone.clone(), "h:1", None)).collect();
        let partition = Partition {
            id: PartitionId(0),
            start: 0,
            nodes: nodes.iter().copied().chain([4]).map(NodeId).collect(),
            owner: None,
            coming: None,
            unknown: Default::default(),
            since: Generation::default(),
        };
        let consistency = Consistency { replicas: 3, reads_required: 2, writes_required: 2 };
        let name = StoreName::new(super::siblings::STORE).expect("well formed");
        let store = Store::new(name, consistency).expect("they fit");
        let ring = Ring::new(vec![partition]).expect("one is enough");
        let cluster = Cluster::new("told", members, ring, vec![store]);
        let mut story = Story::default();
        story.history.circumstances = Circumstances::calm(vec![(Moment::default(), Arc::new(cluster))]);
        story
    }

    pub(crate) fn dot(node: u32, count: u64) -> Dot {
        Dot { actor: Actor { node: NodeId(node), incarnation: 1, birth: 1 }, count }
    }

    pub(crate) fn put_blind(&mut self, value: &'static str) -> OperationId {
        self.put(value, Basis::Blind)
    }

    pub(crate) fn put(&mut self, value: &'static str, basis: Basis) -> OperationId {
        self.begin(Action::Put(Bytes::from(value)), basis)
    }

    pub(crate) fn delete(&mut self, basis: Basis) -> OperationId {
        self.begin(Action::Delete, basis)
    }

    pub(crate) fn touch(&mut self, ends: bool) -> OperationId {
        self.begin(Action::Touch { ends }, Basis::Overwrite)
    }

    pub(crate) fn get(&mut self) -> OperationId {
        self.begin(Action::Get, Basis::Blind)
    }

    pub(crate) fn written(&mut self, id: OperationId, node: u32, count: u64) -> (Dot, OperationId) {
        let dot = Story::dot(node, count);
        let context = Context::default();
        self.end(id, Outcome::Written { dot, context, acks: 2, sloppy: false });
        (dot, id)
    }

    pub(crate) fn written_over(&mut self, id: OperationId, node: u32, count: u64, covered: &[Dot]) -> Dot {
        let dot = Story::dot(node, count);
        let all = covered.iter().chain([&dot]);
        let context = Context {
            vector: Vector::from_entries(all.map(|dot| (dot.actor, dot.count))),
            ..Context::default()
        };
        self.end(id, Outcome::Written { dot, context, acks: 2, sloppy: false });
        dot
    }

    /// Acknowledged with this timestamp, knowing nothing but itself.
    pub(crate) fn stamped(&mut self, id: OperationId, node: u32, timestamp: u64) -> Dot {
        let dot = Story::dot(node, 1);
        let vector = Vector::from_entries([(dot.actor, dot.count)]);
        let context = Context { vector, timestamp: Timestamp(timestamp) };
        self.end(id, Outcome::Written { dot, context, acks: 2, sloppy: false });
        dot
    }

    /// A whole collection round, in which a node removes its record of the key.
    pub(crate) fn collected(&mut self) {
        for _ in 0..2 {
            let written = self.tick();
            self.history.epochs.push(written);
        }
        let removed = self.tick();
        let place = (self.store.to_owned(), Bytes::from(KEY));
        self.history.witnessed.removals.entry(place).or_default().push(removed);
    }

    /// Nodes store this many deletions of the key.
    pub(crate) fn deletions(&mut self, count: u32) {
        for number in 0..count {
            let at = self.tick();
            self.history.witnessed.deletions.push(Deletion {
                store: self.store.to_owned(),
                key: Bytes::from(KEY),
                dot: Story::dot(2, u64::from(number) + 1),
                timestamp: Timestamp(100 + u64::from(number)),
                at,
            });
        }
    }

    /// A fault takes copies from a node.
    pub(crate) fn struck(&mut self) {
        let now = self.tick();
        self.history.strikes.push(now);
    }

    pub(crate) fn acknowledged(&mut self, id: OperationId) {
        self.end(id, Outcome::Acknowledged);
    }

    pub(crate) fn shown(&mut self, id: OperationId, value: Option<&'static str>) {
        self.end(id, Outcome::Shown(value.map(Bytes::from)));
    }

    pub(crate) fn got(&mut self, id: OperationId, versions: &[(Dot, &'static str)]) {
        self.got_covering(id, versions, &[]);
    }

    pub(crate) fn got_covering(
        &mut self,
        id: OperationId,
        versions: &[(Dot, &'static str)],
        covered: &[Dot],
    ) {
        self.end(id, Outcome::Got(Story::set(versions, covered)));
    }

    pub(crate) fn failed(&mut self, id: OperationId) {
        self.end(id, Outcome::Failed("no".to_owned()));
    }

    pub(crate) fn indeterminate(&mut self, id: OperationId) {
        self.end(id, Outcome::Indeterminate("who knows".to_owned()));
    }

    pub(crate) fn set(versions: &[(Dot, &'static str)], covered: &[Dot]) -> VersionSet {
        let dots = versions.iter().map(|(dot, _)| dot).chain(covered);
        let vector = Vector::from_entries(dots.map(|dot| (dot.actor, dot.count)));
        let version = |&(dot, value): &(Dot, &'static str)| Version {
            dot,
            timestamp: Timestamp(dot.count),
            expires: None,
            value: Value::Present(Bytes::from(value)),
        };
        VersionSet::from_parts(vector, versions.iter().map(version).collect()).expect("sorted and covered")
    }

    pub(crate) fn remains(replicas: &[(u32, VersionSet)]) -> Remains {
        Remains {
            store: super::siblings::STORE,
            key: Bytes::from(KEY),
            replicas: replicas.iter().map(|(node, set)| (NodeId(*node), set.clone())).collect(),
            former: Vec::new(),
            hints: Vec::new(),
        }
    }

    pub(crate) fn tick(&mut self) -> Moment {
        self.now.nanos += 1000;
        self.now
    }

    fn begin(&mut self, action: Action, basis: Basis) -> OperationId {
        let invoked = self.tick();
        self.history.operations.push(Operation {
            client: 1,
            store: self.store,
            key: Bytes::from(KEY),
            action,
            basis,
            condition: Condition::None,
            required: 2,
            strict: true,
            sloppy: None,
            driver: None,
            walked: false,
            expires: None,
            shown_until: None,
            shown: Vec::new(),
            invoked,
            returned: None,
            outcome: Outcome::Pending,
        });
        OperationId(self.history.operations.len() - 1)
    }

    fn end(&mut self, id: OperationId, outcome: Outcome) {
        let returned = self.tick();
        let operation = &mut self.history.operations[id.0];
        operation.returned = Some(returned);
        operation.outcome = outcome;
    }
}
