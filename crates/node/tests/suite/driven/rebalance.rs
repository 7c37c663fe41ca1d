//! A partition moves between three real nodes, step by step, as their documents say.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use model::{
    ArtifactNumber, Cluster, Consistency, Generation, ManifestDigest, NodeId, PartitionId, ReadOnlyStore,
    Step, Store, StoreName, Token, VersionSet,
};
use protocol::rebalance::planner::Reshape;
use protocol::rebalance::steps;
use protocol::report::{Facts, Parts, RebalanceReport};
use storage::Change;
use wire::error::ErrorCode;
use wire::messages::{ReplicaMerge, Request};

use super::healing::{entering, left};
use super::home::{cluster, get, store};
use super::{Answer, Home, Node, merge, old, record};

/// Three nodes, and how many of them hold a key.
pub(super) struct Three {
    pub(super) homes: Vec<Home>,
    pub(super) nodes: Vec<Arc<Node>>,
    pub(super) document: Cluster,
    pub(super) keys: Vec<Bytes>,
}

impl Three {
    /// With 50 keys that the replicas of partition 0 hold.
    pub(super) fn new(replicas: u8) -> Three {
        Three::with(replicas, &[])
    }

    /// The same, with more stores, which are empty, each with this many replicas.
    fn with(replicas: u8, more: &[(&str, u8)]) -> Three {
        Three::of(replicas, more, Home::syncing)
    }

    /// The same, where nothing is synced before somebody asks for it.
    fn lazy(replicas: u8) -> Three {
        Three::of(replicas, &[], |home| home)
    }

    /// With two replicas, by another document.
    pub(super) fn over(document: Cluster) -> Three {
        Three::among(document, 2, &[], Home::syncing)
    }

    fn of(replicas: u8, more: &[(&str, u8)], synced: fn(Home) -> Home) -> Three {
        // Four for each partition: a step waits for all of them.
        Three::among(Cluster { buckets: 8, ..cluster() }, replicas, more, synced)
    }

    fn among(mut document: Cluster, replicas: u8, more: &[(&str, u8)], synced: fn(Home) -> Home) -> Three {
        let all = |replicas| Consistency { replicas, reads_required: 1, writes_required: replicas };
        document.stores[0].consistency = all(replicas);
        for &(name, replicas) in more {
            let (name, consistency) = (StoreName::new(name).unwrap(), all(replicas));
            document.stores.push(Store { name, consistency, ..document.stores[0].clone() });
        }
        let first = synced(Home::of(&document));
        let homes = vec![first.beside(2), first.beside(3)];
        let homes: Vec<Home> = [first].into_iter().chain(homes).collect();
        let nodes: Vec<Arc<Node>> = homes.iter().map(Home::start).collect();
        nodes.iter().for_each(|node| homes[0].serve(node, |_| None));
        let keys = (0..).map(|number| Bytes::from(format!("key {number}")));
        let keys = keys.filter(|key| document.ring.partition(Token::of(key)).id == PartitionId(0)).take(50);
        let three = Three { keys: keys.collect(), homes, nodes, document };
        for key in &three.keys {
            three.old_replicas().into_iter().for_each(|id| three.write(id, key));
        }
        three
    }

    pub(super) fn old_replicas(&self) -> Vec<NodeId> {
        let partition = self.document.ring.get(PartitionId(0)).unwrap();
        model::routing::replicas_before(&self.document.stores[0], partition).to_vec()
    }

    pub(super) fn node(&self, id: NodeId) -> &Arc<Node> {
        self.nodes.iter().find(|node| node.id() == id).unwrap()
    }

    /// Something that this node alone holds, and has not synced.
    fn write_unsynced(&self, id: NodeId, key: &Bytes) -> VersionSet {
        let more = super::home::set(&old(), 8, model::Timestamp(5), model::Value::Present("more".into()));
        let place = self.node(id).replica().view().get().partition_at(model::Token::of(key)).0;
        store(self.node(id)).merge(place, key, &more).unwrap();
        more
    }

    /// A node cannot read what it holds of the key any more.
    fn damage(&self, id: NodeId, key: &Bytes) {
        self.put(id, key, Bytes::from_static(b"\xff"));
    }

    /// Puts bytes in place of a record, past everything that looks at what it says.
    fn put(&self, id: NodeId, key: &Bytes, bytes: Bytes) {
        let place = self.node(id).replica().view().get().partition_at(model::Token::of(key)).0;
        let change = &mut |_: Option<&Bytes>| Change::Put(bytes.clone());
        store(self.node(id)).engine().update(place.partition, place.token, key, change).unwrap();
    }

    /// The power of a node goes, and it starts again.
    pub(super) fn cut(&mut self, id: NodeId, seed: u64) {
        let place = self.nodes.iter().position(|node| node.id() == id).unwrap();
        let node = self.nodes.remove(place);
        self.homes[place].cut(node, seed);
        self.nodes.insert(place, self.homes[place].start());
    }

    /// The power of all nodes goes. All but one start again; that one has lost its disk, and is the last of the homes.
    fn lose(&mut self, id: NodeId) {
        for (home, node) in self.homes.iter().zip(self.nodes.drain(..)) {
            home.cut(node, 0);
        }
        let place = self.homes.iter().position(|home| home.config.member.id == id).unwrap();
        let lost = self.homes.remove(place);
        lost.disk.wipe();
        self.nodes = self.homes.iter().map(Home::start).collect();
        self.homes.push(lost);
        self.nodes.iter().for_each(|node| self.homes[0].serve(node, |_| None));
    }

    /// The one that lost its disk starts.
    fn start_last(&mut self) -> Arc<Node> {
        let node = self.homes.last().unwrap().start();
        self.homes[0].serve(&node, |_| None);
        self.nodes.push(node.clone());
        node
    }

    fn write(&self, id: NodeId, key: &Bytes) {
        let generation = self.document.generation;
        let merge = ReplicaMerge { generation, since: generation, ..merge(key, &old(), 0, None) };
        self.homes[0].call(self.node(id), merge).unwrap();
    }

    /// The last of the old replicas and the first node that is none.
    pub(super) fn ends(&self) -> (NodeId, NodeId) {
        let old = self.old_replicas();
        let to = self.nodes.iter().map(|node| node.id()).find(|id| !old.contains(id)).unwrap();
        (*old.last().unwrap(), to)
    }

    pub(super) fn begin(&mut self) {
        let (from, to) = self.ends();
        let mut list = self.document.ring.get(PartitionId(0)).unwrap().nodes.clone();
        list.retain(|id| *id != to);
        let place = list.iter().position(|id| *id == from).unwrap();
        list[place] = to;
        list.push(from);
        self.publish(steps::begin(&self.document, &[(PartitionId(0), list)]).unwrap());
    }

    /// Publishes a document, and waits until all follow it.
    pub(super) fn publish(&mut self, document: Cluster) {
        self.homes[0].publish(&document);
        let generation = document.generation;
        self.document = document;
        self.homes[0]
            .stage
            .until(|| self.nodes.iter().all(|node| node.replica().view().adopted() >= generation));
    }

    pub(super) fn told(&self, id: NodeId) -> RebalanceReport {
        self.node(id).report(Parts::MOVES).moves.unwrap()
    }

    pub(super) fn next(&self) -> Option<Cluster> {
        let facts = |node: &Arc<Node>| (node.id(), self.told(node.id()).facts(node.incarnation()));
        let facts = self.nodes.iter().map(facts).collect();
        steps::next(&self.document, &Facts { nodes: facts }).next
    }

    /// Lets the nodes do their part until the next step may follow, and publishes it.
    fn step(&mut self) -> Option<Step> {
        self.follow();
        self.document.ring.get(PartitionId(0)).unwrap().step()
    }

    /// The same, whatever takes the step.
    pub(super) fn follow(&mut self) {
        let mut next = None;
        self.homes[0].stage.until(|| {
            next = self.next();
            next.is_some()
        });
        self.publish(next.unwrap());
    }

    pub(super) fn holds_all(&self, id: NodeId) -> bool {
        self.keys.iter().all(|key| record(self.node(id), key) == old())
    }

    pub(super) fn holds_nothing(&self, id: NodeId) -> bool {
        let view = self.node(id).replica().view().get();
        let is_left = |held: PartitionId| view.owner(held).id == PartitionId(0);
        store(self.node(id)).engine().partitions().iter().all(|held| !is_left(held.partition))
    }
}

/// Who had answered was not asked for the next store before the next round, after a pause that doubled.
#[test]
fn all_stores_of_a_partition_are_merged_once_more_in_one_round() {
    let mut three = Three::with(2, &["a", "b", "c", "d"].map(|name| (name, 2)));
    three.begin();
    assert_eq!(three.step(), Some(Step::Joint));
    three.homes[0].stage.pass(Duration::from_millis(150));
    assert!(three.next().is_some(), "each store was compared");
}

/// One store moves whole, one beside a replica that stays, and one not at all.
#[test]
fn stores_with_one_two_and_three_replicas_move_on_one_ring() {
    let stores = [("s", 1), ("two", 2), ("x", 3)];
    let mut three = Three::with(1, &stores[1..]);
    let before = three.document.ring.get(PartitionId(0)).unwrap().nodes.clone();
    let (after, key) = (before.iter().rev().copied().collect::<Vec<_>>(), three.keys[0].clone());
    let holds = |three: &Three, id, name: &str| {
        let view = three.node(id).replica().view().get();
        view.store(name).unwrap().content(view.partition_at(model::Token::of(&key)).0, &key).unwrap() == old()
    };
    for (name, replicas) in stores {
        for id in &before[..replicas.into()] {
            let view = three.node(*id).replica().view().get();
            view.store(name)
                .unwrap()
                .merge(view.partition_at(model::Token::of(&key)).0, &key, &old())
                .unwrap();
        }
    }
    three.publish(steps::begin(&three.document, &[(PartitionId(0), after.clone())]).unwrap());
    for step in [Some(Step::Joint), Some(Step::ReadingNew), None] {
        assert_eq!(three.step(), step);
    }
    for (name, replicas) in stores {
        for (place, id) in after.iter().enumerate() {
            three.homes[0].stage.until(|| holds(&three, *id, name) == (place < replicas.into()));
        }
    }
}

/// Whose place it takes was asked again in each round, and nobody else.
#[test]
fn a_node_that_enters_merges_with_other_replicas_while_its_donor_is_silent() {
    let mut three = Three::new(2);
    let (from, _) = three.ends();
    three.begin();
    three.homes[0].stage.until(|| three.next().is_some());
    three.homes[0].serve(&three.node(from).clone(), |_| Some(Answer::Silence));
    assert_eq!(three.step(), Some(Step::Joint));
    assert_eq!(three.step(), Some(Step::ReadingNew));
}

/// An empty node once answered *not found* for what a document had just made its own.
#[test]
fn a_new_partition_answers_no_gets_before_its_records_are_here_nor_after_a_crash() {
    let mut three = Three::new(2);
    let (_, to) = three.ends();
    // Nobody gives anything.
    for node in &three.nodes {
        three.homes[0]
            .serve(node, |request| matches!(request, Request::TreeSums(_)).then_some(Answer::Silence));
    }
    three.begin();
    three.homes[0].stage.pass(Duration::from_secs(30));
    assert_eq!(get(three.node(to), &three.keys[0]), Err(ErrorCode::Refilling));
    assert!(entering(three.node(to)) > 0);
    assert_eq!(three.node(to).antientropy().report().refill, None, "no disk was lost");
    let told = three.told(to);
    assert_eq!((told.entered.len(), told.entered[0].whole), (1, false));
    assert!(three.next().is_none(), "it is not whole");
    three.cut(to, 3);
    assert_eq!(get(three.node(to), &three.keys[0]), Err(ErrorCode::Refilling));
}

/// Once it was whole without the slices of artifacts, and gets of them were refused.
#[test]
fn a_node_that_enters_is_not_whole_before_it_holds_all_served_artifacts() {
    let mut three = Three::new(2);
    let number = ArtifactNumber(1);
    let words = ReadOnlyStore::new(StoreName::new("words").unwrap(), 2);
    let words = words.stage(number, ManifestDigest([1; 16]), "file:///words").unwrap();
    let with = |document: &Cluster, store: &ReadOnlyStore| Cluster {
        generation: Generation(document.generation.0 + 1),
        read_only: vec![store.clone()],
        ..document.clone()
    };
    three.publish(with(&three.document, &words.swap(number).unwrap()));
    let (_, to) = three.ends();
    three.begin();
    // These nodes have no sources, so the artifact stays away.
    three.homes[0].stage.pass(Duration::from_secs(30));
    assert!(three.holds_all(to) && !three.told(to).entered[0].whole);
    assert!(three.next().is_none(), "gets of the artifact would be refused there");
    // What was never served is not waited for: its swap waits for the node.
    three.publish(with(&three.document, &words));
    assert_eq!(three.step(), Some(Step::Joint));
}

/// What the one that leaves took alone came by comparing, and nobody had synced it when the next step counted it.
#[test]
fn records_of_the_second_merge_survive_a_power_cut() {
    for seed in 0..6 {
        let mut three = Three::lazy(2);
        let (from, to) = three.ends();
        three.begin();
        three.homes[0].stage.until(|| three.told(to).entered.iter().any(|entered| entered.whole));
        let late = three.keys[0].clone();
        let more = three.write_unsynced(from, &late);
        assert_eq!(three.step(), Some(Step::Joint));
        three.homes[0].stage.until(|| three.next().is_some());
        three.cut(to, seed);
        assert_eq!(record(three.node(to), &late), more, "{seed}");
    }
}

/// A replica that only seemed to hold everything was enough for the one that left to drop it.
#[test]
fn dropped_records_survive_a_power_cut_at_their_new_replica() {
    for seed in 0..6 {
        let mut three = Three::lazy(2);
        let (from, to) = three.ends();
        three.begin();
        assert_eq!(three.step(), Some(Step::Joint));
        assert_eq!(three.step(), Some(Step::ReadingNew));
        let only = three.keys[7].clone();
        let more = three.write_unsynced(from, &only);
        three.write_unsynced(to, &only);
        assert_eq!(three.step(), None);
        three.homes[0].stage.until(|| three.holds_nothing(from));
        three.cut(to, seed);
        assert_eq!(record(three.node(to), &only), more, "{seed}");
    }
}

/// What below the view followed the ring's partitions once found nothing after a split, and its trees were counted
/// anew.
#[test]
fn a_split_or_merge_touches_no_record_and_no_tree() {
    let mut three = Three::new(2);
    let holder = three.ends().0;
    let before = three.document.clone();
    let kept = |three: &Three| {
        let store = store(three.node(holder));
        let trees = three.node(holder).antientropy().report().trees;
        let sums: Vec<_> = (0..8).map(|bucket| store.tree_sum(PartitionId(bucket))).collect();
        (store.engine().partitions(), trees, sums)
    };
    let held = kept(&three);
    let split = Reshape::split(&before, PartitionId(0), None).unwrap();
    three.publish(split.apply(&before, usize::MAX).unwrap());
    assert_eq!(kept(&three), held);
    assert!(three.keys.iter().all(|key| get(three.node(holder), key) == Ok(old())));
    let after = three.document.clone();
    let merge = Reshape::merge(&after, PartitionId(2), PartitionId(0)).unwrap();
    three.publish(merge.apply(&after, usize::MAX).unwrap());
    assert_eq!(kept(&three), held);
}

/// What it had from the node that entered, before that one had compared, once made a partition whole after the move.
#[test]
fn a_lost_disk_is_not_made_whole_by_what_an_entering_node_gave_at_an_earlier_step() {
    let mut three = Three::new(2);
    let (from, to) = three.ends();
    let stays = three.old_replicas().into_iter().find(|id| *id != from).unwrap();
    three.begin();
    three.homes[0].stage.until(|| three.told(to).entered.iter().any(|entered| entered.whole));
    three.lose(stays);
    // The two old replicas had acknowledged this, when the one that enters had copied it past.
    let late = three.keys[0].clone();
    let more = three.write_unsynced(from, &late);
    three.homes[0].serve(&three.node(from).clone(), |_| Some(super::failing(ErrorCode::Overloaded)));
    assert_eq!(three.step(), Some(Step::Joint));
    let lost = three.start_last();
    // It has what the one that enters has so far, and takes nothing that it does not ask for.
    three.homes[0].stage.until(|| record(&lost, &late) == old());
    three.homes[0].stage.pass(Duration::from_secs(5));
    three.homes[0].serve(&lost, |request| {
        matches!(request, Request::ReplicaMerge(_)).then(|| super::failing(ErrorCode::Overloaded))
    });
    assert!(left(&lost) > 0 && entering(&lost) == 0);
    assert_eq!(get(&lost, &late), Err(ErrorCode::Refilling));
    // The one that leaves talks to the one that enters, and gives nothing to the other.
    three.homes[0].serve(&three.node(from).clone(), |request| {
        matches!(request, Request::RecordsPage(_)).then(|| super::failing(ErrorCode::Overloaded))
    });
    assert_eq!(three.step(), Some(Step::ReadingNew));
    assert_eq!(three.step(), None);
    three.homes[0].stage.until(|| {
        let found = get(&lost, &late);
        assert!(found == Err(ErrorCode::Refilling) || found == Ok(more.clone()), "{found:?}");
        found.is_ok()
    });
}

/// It once asked the other new replicas alone. Of a store with one replica these are none, so all was *not found* at once.
#[test]
fn a_disk_lost_at_reading_new_is_refilled_by_the_old_replicas() {
    for replicas in [1, 2] {
        let mut three = Three::new(replicas);
        let ((_, to), key) = (three.ends(), three.keys[7].clone());
        three.begin();
        assert_eq!(three.step(), Some(Step::Joint));
        assert_eq!(three.step(), Some(Step::ReadingNew));
        three.lose(to);
        let lost = three.start_last();
        three.homes[0].stage.until(|| {
            let found = get(&lost, &key);
            assert!(found == Err(ErrorCode::Refilling) || found == Ok(old()), "{found:?}");
            found.is_ok()
        });
        assert!(three.holds_all(to));
    }
}

/// The donor once counted as whole, the key became *not found*, and the last trace of it was dropped.
#[test]
fn the_only_replica_is_not_released_while_it_cannot_read_a_record() {
    let mut three = Three::new(1);
    let ((from, to), key) = (three.ends(), three.keys[7].clone());
    three.damage(from, &key);
    three.begin();
    three.homes[0].stage.pass(Duration::from_secs(60));
    assert!(!three.told(to).entered[0].whole && three.next().is_none());
    assert_eq!(get(three.node(from), &key), Err(ErrorCode::Corrupt), "an answer that is true");
    // It can be read again, and the move goes on.
    let place = three.node(from).replica().view().get().partition_at(model::Token::of(&three.keys[6])).0;
    let intact = store(three.node(from)).engine().get(place.partition, place.token, &three.keys[6]).unwrap();
    three.put(from, &key, intact.unwrap());
    assert_eq!(three.step(), Some(Step::Joint));
    assert_eq!(three.step(), Some(Step::ReadingNew));
    assert_eq!(three.step(), None);
    three.homes[0].stage.until(|| three.holds_nothing(from));
    assert!(three.holds_all(to));
}

#[test]
fn another_replica_gives_a_record_that_the_donor_cannot_read_and_the_donor_leaves() {
    let mut three = Three::new(2);
    let ((from, to), key) = (three.ends(), three.keys[7].clone());
    three.damage(from, &key);
    three.begin();
    assert_eq!(three.step(), Some(Step::Joint));
    assert!(three.holds_all(to));
    assert_eq!(three.step(), Some(Step::ReadingNew));
    // In case that comparing has mended it.
    three.damage(from, &key);
    assert_eq!(three.step(), None);
    three.homes[0].stage.until(|| three.holds_nothing(from));
    assert!(three.holds_all(to));
}

#[test]
fn a_node_that_leaves_keeps_an_unreadable_record_that_nobody_else_has() {
    let mut three = Three::new(2);
    let (from, to) = three.ends();
    three.begin();
    assert_eq!(three.step(), Some(Step::Joint));
    assert_eq!(three.step(), Some(Step::ReadingNew));
    let is_of = |key: &Bytes| three.document.ring.partition(Token::of(key)).id == PartitionId(0);
    let only = (0..).map(|number| Bytes::from(format!("only {number}"))).find(is_of).unwrap();
    three.damage(from, &only);
    let place = three.node(from).replica().view().get().partition_at(model::Token::of(&only)).0;
    store(three.node(from)).trees().writing(place.partition).doubt();
    three.homes[0].stage.until(|| !store(three.node(from)).with_unreadable().is_empty());
    assert_eq!(three.step(), None);
    three.homes[0].stage.pass(Duration::from_secs(60));
    assert_eq!(three.told(from).leftovers.len(), 1, "it is told of");
    assert!(!three.holds_nothing(from));
    three.write(to, &only);
    let others: Vec<NodeId> = three.nodes.iter().map(|node| node.id()).filter(|id| *id != from).collect();
    others.into_iter().for_each(|id| three.write(id, &only));
    three.homes[0].stage.until(|| three.holds_nothing(from));
}
