//! A store gets more replicas, or has fewer in the end, on three real nodes, step by step, as their documents say.

use std::time::Duration;

use bytes::Bytes;
use client::peers::CallError;
use model::cluster::Accepted;
use model::{Consistency, Generation, NodeId, PartitionId, Step, VersionSet};
use protocol::rebalance::steps;
use wire::error::ErrorCode;
use wire::messages::{ReplicaMerge, Request, Response};

use super::home::{get, store};
use super::rebalance::Three;
use super::{Answer, merge, old};

fn numbers(replicas: u8, reads_required: u8, writes_required: u8) -> Consistency {
    Consistency { replicas, reads_required, writes_required }
}

impl Three {
    /// The store begins to change to these numbers.
    fn change(&mut self, to: Consistency) {
        self.publish(steps::begin_numbers(&self.document, "s", to, Accepted::default()).unwrap());
    }

    /// Lets the nodes do their part, and publishes the next step of the store.
    fn store_step(&mut self) -> Option<Step> {
        self.follow();
        self.document.stores[0].step()
    }

    /// The nodes that hold no keys of partition 0, and shall when it has three replicas.
    fn others(&self) -> Vec<NodeId> {
        let old = self.old_replicas();
        self.nodes.iter().map(|node| node.id()).filter(|id| !old.contains(id)).collect()
    }

    /// Something that these nodes acknowledge under an older document and no other node has.
    fn late(&self, ids: &[NodeId]) -> (Bytes, VersionSet) {
        let key = self.keys[0].clone();
        let more = super::home::set(&old(), 8, model::Timestamp(5), model::Value::Present("more".into()));
        for &id in ids {
            let place = self.node(id).replica().view().get().partition_at(model::Token::of(&key)).0;
            store(self.node(id)).merge(place, &key, &more).unwrap();
        }
        (key, more)
    }
}

#[test]
fn a_store_of_one_replica_gets_two_more_and_its_trees() {
    let mut three = Three::new(1);
    let (others, from) = (three.others(), three.old_replicas());
    three.change(numbers(3, 2, 2));
    for &to in &others {
        three.homes[0].stage.until(|| three.told(to).entered.iter().any(|entered| entered.whole));
    }
    let (key, more) = three.late(&from);
    assert_eq!(three.store_step(), Some(Step::Joint));
    assert_eq!(three.store_step(), Some(Step::ReadingNew));
    for &to in &others {
        assert_eq!(get(three.node(to), &key), Ok(more.clone()), "it has merged once more");
    }
    assert_eq!(three.store_step(), None);
    assert_eq!(three.document.stores[0].consistency, numbers(3, 2, 2));
    let sums = three.nodes.iter().map(|node| store(node).tree_sum(PartitionId(0)));
    three.homes[0].stage.until(|| sums.clone().all(|sum| sum.is_some()));
}

/// What makes a new replica dangerous: it is a replica by the document, and empty.
#[test]
fn a_new_replica_answers_nothing_before_it_is_whole_nor_after_a_crash() {
    let mut three = Three::new(2);
    let to = three.others()[0];
    // Nobody gives anything.
    for node in &three.nodes {
        three.homes[0]
            .serve(node, |request| matches!(request, Request::TreeSums(_)).then_some(Answer::Silence));
    }
    three.change(numbers(3, 1, 3));
    three.homes[0].stage.pass(Duration::from_secs(30));
    assert_eq!(get(three.node(to), &three.keys[0]), Err(ErrorCode::Refilling));
    assert!(three.told(to).entered.iter().all(|entered| !entered.whole));
    assert!(three.next().is_none(), "it is not whole");
    three.cut(to, 3);
    assert_eq!(get(three.node(to), &three.keys[0]), Err(ErrorCode::Refilling));
}

/// A request that was formed before a step goes to other replicas, or needs fewer of them.
#[test]
fn a_request_from_before_a_step_of_the_store_is_refused_with_the_newer_document() {
    let mut three = Three::new(2);
    let before = three.document.generation;
    let (id, key) = (three.old_replicas()[0], three.keys[1].clone());
    let write = |three: &Three, generation: Generation| {
        let write = ReplicaMerge { generation, since: generation, ..merge(&key, &old(), 0, None) };
        three.homes[0].call(three.node(id), write)
    };
    three.change(numbers(3, 2, 2));
    assert!(matches!(write(&three, before), Ok(Response::ReplicaMerged(_))), "copying refuses nobody");
    assert_eq!(three.store_step(), Some(Step::Joint));
    let refused = write(&three, before);
    let Err(CallError::Refused(refused)) = refused else { panic!("{refused:?}") };
    assert_eq!((refused.code, refused.cluster.is_some()), (ErrorCode::StaleGeneration, true));
    let joint = three.document.generation;
    assert!(matches!(write(&three, joint), Ok(Response::ReplicaMerged(_))));
}

#[test]
fn a_change_that_is_broken_off_leaves_records_at_the_old_replicas_only() {
    for steps_taken in 0..3 {
        let mut three = Three::new(2);
        let to = three.others()[0];
        three.change(numbers(3, 2, 2));
        for _ in 0..steps_taken {
            three.store_step();
        }
        three.publish(steps::back_with_numbers(&three.document).unwrap());
        while three.document.stores[0].step().is_some() {
            three.store_step();
        }
        assert_eq!(three.document.stores[0].consistency, numbers(2, 1, 2));
        three.homes[0].stage.until(|| three.holds_nothing(to));
        assert!(three.old_replicas().into_iter().all(|id| three.holds_all(id)));
    }
}
