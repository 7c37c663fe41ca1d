//! Anti-entropy: one real node compares, another answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use model::{Epoch, Generation, NodeId, PartitionId, VersionSet};
use parking_lot::Mutex;
use protocol::antientropy::merkle::Span;
use protocol::collection::RoundId;
use wire::error::ErrorCode;
use wire::messages::{CollectConfirm, RecordsGot, ReplicaMerged, Request, Response, TreeNodes, TreeSums};

use super::home::store;
use super::{Home, KEY, Node, deleted, failing, merge, old, record};

/// Two real nodes that differ in one key: the second has it.
fn differing() -> (Home, Arc<Node>, Home, Arc<Node>) {
    let home = Home::new();
    let second = home.beside(2);
    let (node, peer) = (home.start(), second.start());
    second.call(&peer, merge(&KEY, &old(), 0, None)).unwrap();
    (home, node, second, peer)
}

/// Asks for a comparison with node 2, once the turns are known.
fn ask_for(home: &Home, node: &Node) {
    home.stage.pass(Duration::from_secs(2));
    node.antientropy().ask_for(NodeId(2));
}

/// The same, and waits for its end.
fn compare(home: &Home, node: &Node) {
    ask_for(home, node);
    home.stage.pass(Duration::from_secs(2));
}

fn doubt(node: &Node) {
    for partition in [PartitionId(0), PartitionId(1)] {
        store(node).trees().writing(partition).doubt();
    }
}

fn whole(partition: u32) -> (PartitionId, Span) {
    let spans = [Span { bits: 1, prefix: 0 }, Span { bits: 1, prefix: 1 }];
    (PartitionId(partition), spans[partition as usize])
}

#[test]
fn a_tree_that_is_doubtful_answers_no_comparison() {
    let (home, node, _second, _peer) = differing();
    home.call(&node, merge(&KEY, &old(), 0, None)).unwrap();
    let reference = store(&node).reference().clone();
    let sums = |theirs: &Node| {
        let own = |id| store(theirs).trees().look(id, |tree| tree.sum().zip(tree.bits())).flatten();
        let sums = [PartitionId(0), PartitionId(1)].map(|id| (id, own(id))).to_vec();
        TreeSums { store: reference.clone(), generation: Generation(1), sums }
    };
    let ask = |request: Request| home.stage.run(node.antientropy().clone().answer(request));
    let told = sums(&node);
    assert!(told.sums.iter().all(|(_, sum)| sum.is_some()));
    let Ok(Response::TreeSummed(summed)) = ask(told.clone().into()) else { panic!() };
    assert_eq!((summed.differing, summed.unready), (vec![], vec![]), "equal to itself");
    doubt(&node);
    assert!(sums(&node).sums.iter().all(|(_, sum)| sum.is_none()));
    let Ok(Response::TreeSummed(summed)) = ask(told.into()) else { panic!() };
    assert_eq!((summed.differing, summed.unready), (vec![], vec![PartitionId(0), PartitionId(1)]));
    let spans = [0, 1].map(|id| (whole(id).0, (whole(id).1, 3))).to_vec();
    let nodes = TreeNodes { store: reference, generation: Generation(1), spans };
    let Ok(Response::TreeNoded(noded)) = ask(nodes.into()) else { panic!() };
    assert_eq!(noded.sums, [None, None]);
}

/// The own tree says nothing; what the peer says of it must not pass for equality.
#[test]
fn a_comparison_with_a_doubtful_tree_is_not_complete_and_comes_again() {
    let (home, node, _second, peer) = differing();
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    let its = Arc::downgrade(&node);
    home.serve(&peer, move |request| {
        if let Request::TreeSums(sums) = request {
            counted.fetch_add(1, Ordering::Relaxed);
            assert!(sums.sums.iter().all(|(_, sum)| sum.is_none()), "a doubtful tree has no sum");
            // Counted only when the test says so.
            its.upgrade().inspect(|node| doubt(node));
        }
        None
    });
    // Before anything is counted anew.
    home.stage.pass(Duration::from_secs(2));
    doubt(&node);
    node.antientropy().ask_for(NodeId(2));
    home.stage.until(|| asked.load(Ordering::Relaxed) > 0);
    assert!(record(&node, &KEY).is_empty(), "nothing was compared");
    home.serve(&peer, |_| None);
    home.stage.until(|| record(&node, &KEY) == old());
}

#[test]
fn what_a_comparison_brings_while_a_guard_stands_is_cleaned() {
    let (home, node, _second, peer) = differing();
    home.serve(&peer, |_| None);
    let keys = vec![(store(&node).reference().clone(), (KEY, deleted()))];
    let confirm = CollectConfirm { round: RoundId(7), generation: Generation(1), keys };
    home.ask(&node, confirm).unwrap();
    compare(&home, &node);
    assert!(record(&node, &KEY).includes(&deleted()), "it came between confirm and fence");
}

/// The peer has read before a deletion was forgotten that this node has fenced.
#[test]
fn what_a_peer_read_before_the_epoch_is_not_taken_and_the_peer_is_told() {
    let (home, node, _second, peer) = differing();
    let told = Arc::new(Mutex::new(Vec::new()));
    let heard = told.clone();
    home.serve(&peer, move |request| match request {
        Request::RecordsGet(get) => {
            let sets = get.keys.iter().map(|_| Ok::<VersionSet, ErrorCode>(old())).collect();
            Some(RecordsGot { epoch: Epoch(2), sets }.into())
        }
        Request::ReplicaMerge(merge) => {
            heard.lock().push((merge.epoch, merge.entries.len()));
            Some(ReplicaMerged { generation: Generation(1), outcomes: Default::default() }.into())
        }
        _ => None,
    });
    node.replica().epochs().hear(Epoch(3), Generation(1), Some(Generation(1)));
    compare(&home, &node);
    assert!(record(&node, &KEY).is_empty());
    assert!(told.lock().contains(&(Epoch(3), 0)), "{:?}", told.lock());
}

#[test]
fn a_push_that_the_peer_refused_is_not_counted_as_equal() {
    let home = Home::new();
    let second = home.beside(2);
    let (node, peer) = (home.start(), second.start());
    home.call(&node, merge(&KEY, &old(), 0, None)).unwrap();
    let pushed = Arc::new(AtomicUsize::new(0));
    let counted = pushed.clone();
    home.serve(&peer, move |request| match request {
        Request::ReplicaMerge(merge) if !merge.entries.is_empty() => {
            match counted.fetch_add(1, Ordering::Relaxed) {
                0 => {
                    let outcomes = [Err(ErrorCode::StorageFailed)].into_iter().collect();
                    Some(ReplicaMerged { generation: Generation(1), outcomes }.into())
                }
                _ => None,
            }
        }
        _ => None,
    });
    ask_for(&home, &node);
    // Its turn comes again soon, not after the period.
    home.stage.until(|| record(&peer, &KEY) == old());
    assert_eq!(pushed.load(Ordering::Relaxed), 2);
}

/// A refusal of everything, too.
#[test]
fn a_comparison_that_the_peer_refuses_comes_again() {
    let (home, node, _second, peer) = differing();
    let refused = Arc::new(AtomicUsize::new(0));
    let counted = refused.clone();
    home.serve(&peer, move |request| match request {
        Request::KeyDigests(_) if counted.fetch_add(1, Ordering::Relaxed) < 6 => {
            Some(failing(ErrorCode::StorageFailed))
        }
        _ => None,
    });
    ask_for(&home, &node);
    home.stage.until(|| record(&node, &KEY) == old());
}

/// The trees of a clean stop belong to the records of that stop, and to no later ones.
#[test]
fn trees_of_a_clean_stop_are_not_found_again_after_a_power_cut() {
    let home = Home::new().syncing();
    let node = home.start();
    home.call(&node, merge(&KEY, &old(), 0, None)).unwrap();
    home.stage.run(node.stop()).unwrap();
    drop(node);
    home.stage.end_tasks();
    home.disk.kill();
    assert!(home.disk.contents("trees").is_some(), "a clean stop remembers them");
    for seed in 0..4 {
        let node = home.start();
        // The number of records stays as it was: nothing but the file's absence says that the tree is wrong.
        home.call(&node, merge(&KEY, &deleted(), 0, None)).unwrap();
        home.cut(node, seed);
        assert!(home.disk.contents("trees").is_none(), "seed {seed}");
    }
}
