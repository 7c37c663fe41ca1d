//! Anti-entropy: one real node compares, another answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use model::{Epoch, Generation, NodeId, PartitionId, Token, VersionSet};
use parking_lot::Mutex;
use protocol::antientropy::merkle::Span;
use protocol::collection::RoundId;
use wire::error::ErrorCode;
use wire::messages::{
    CollectConfirm, KeyDigests, RecordsGet, RecordsGot, ReplicaMerged, Request, Response, TreeNodes, TreeSums,
};

use super::home::store;
use super::pairs::{bytes_of, content, equal, keys_of};
use super::{Home, KEY, Node, deleted, failing, merge, old, record};

/// Most bytes of one answer, as `respond` says.
const ANSWER_BYTES: usize = 1 << 20;

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
fn a_doubtful_tree_answers_no_comparison() {
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
fn a_comparison_with_a_doubtful_tree_is_incomplete_and_is_repeated() {
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
fn records_that_a_comparison_brings_under_a_guard_are_cleaned() {
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
fn records_that_a_peer_read_before_the_epoch_are_not_taken_and_it_learns_the_epoch() {
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
fn a_comparison_that_the_peer_refuses_is_repeated() {
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
fn trees_from_a_clean_stop_are_not_reused_after_a_later_power_cut() {
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

/// Leaves of too many records are read in vain for one that differs, and too many leaves take memory.
#[test]
fn the_depth_of_a_counted_tree_fits_the_records_of_its_partition() {
    let (home, node, _second, _peer, _) = equal();
    // More than 32 for each of the sixteen leaves of the least tree.
    for key in keys_of(0, 600) {
        home.call(&node, merge(&key, &content(10), 0, None)).unwrap();
    }
    for id in [PartitionId(0), PartitionId(1)] {
        store(&node).trees().writing(id).doubt();
    }
    home.stage.pass(Duration::from_secs(2));
    let tree = |id| store(&node).trees().look(PartitionId(id), |tree| (tree.records(), tree.bits())).unwrap();
    assert_eq!((tree(0), tree(1)), ((Some(600), Some(6)), (Some(3), Some(5))));
}

/// A larger answer would be none: no message may be longer.
#[test]
fn an_answer_to_a_peer_is_filled_to_its_limit_and_holds_at_least_one_record() {
    let home = Home::new();
    let node = home.start();
    let ask = |request: Request| home.stage.run(node.antientropy().clone().answer(request)).unwrap();
    let reference = store(&node).reference().clone();
    let generation = Generation(1);
    let overhead = bytes_of(&content(ANSWER_BYTES / 2)) - ANSWER_BYTES / 2;
    let half = content(ANSWER_BYTES / 2 - overhead);
    assert_eq!(bytes_of(&half), ANSWER_BYTES / 2);
    let more = content(ANSWER_BYTES / 2 - overhead + 1);
    let large = content(ANSWER_BYTES + 10);
    let all = keys_of(0, 4);
    for (key, content) in all.iter().zip([&half, &half, &more, &large]) {
        home.call(&node, merge(key, content, 0, None)).unwrap();
    }
    let got = |keys: [usize; 3]| {
        let keys = keys.map(|position| all[position].clone()).to_vec();
        match ask(RecordsGet { store: reference.clone(), generation, keys }.into()) {
            Response::RecordsGot(got) => got.sets.len(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(got([0, 1, 0]), 2, "exactly as much as it may");
    assert_eq!(got([0, 2, 0]), 1);
    assert_eq!(got([3, 0, 0]), 1, "one in any case");

    let long = |prefix: usize| -> Vec<Bytes> {
        let key = |number: usize| Bytes::from(format!("{number:0width$}", width = 4096 - 18));
        (0..)
            .map(key)
            .filter(|key| Token::of(key).0 >> 63 == 1 && Token::of(key).0 >> 62 & 1 == prefix as u64)
            .take(128)
            .collect()
    };
    for key in [long(0), long(1)].concat() {
        home.call(&node, merge(&key, &old(), 0, None)).unwrap();
    }
    let (first, second) = (Span { bits: 2, prefix: 2 }, Span { bits: 2, prefix: 3 });
    let listed = |spans: &[Span]| {
        let spans = spans.iter().map(|span| (PartitionId(1), *span)).collect();
        match ask(KeyDigests { store: reference.clone(), generation, spans }.into()) {
            Response::KeyDigested(digested) => digested.keys.iter().map(Vec::len).collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(listed(&[first, second]), [128, 128], "exactly as much as it may");
    let one_more = keys_of(1, 100).into_iter().find(|key| Token::of(key).0 >> 62 == 3).unwrap();
    home.call(&node, merge(&one_more, &old(), 0, None)).unwrap();
    assert_eq!(listed(&[first, second]), [128]);
    assert_eq!(listed(&[Span { bits: 1, prefix: 1 }, first]), [257], "one in any case");
}

/// A larger message would be refused.
#[test]
fn records_that_a_peer_lacks_travel_in_messages_of_a_mebibyte() {
    let (home, node, _second, peer, _) = equal();
    let sent = Arc::new(Mutex::new(Vec::new()));
    let kept = sent.clone();
    home.serve(&peer, move |request| {
        if let Request::ReplicaMerge(merge) = request {
            kept.lock().push(merge.entries.len());
        }
        None
    });
    let keys = keys_of(0, 13).split_off(3);
    let overhead = bytes_of(&content(ANSWER_BYTES / 2)) - ANSWER_BYTES / 2 + keys[0].len();
    let half = ANSWER_BYTES / 2 - overhead;
    let send = |keys: &[Bytes], bytes: usize| {
        for key in keys {
            home.call(&node, merge(key, &content(bytes), 0, None)).unwrap();
        }
        node.antientropy().ask_for(NodeId(2));
        home.stage.until(|| keys.iter().all(|key| record(&peer, key) == content(bytes)));
        home.stage.pass(Duration::from_secs(2));
        let outcome = node.antientropy().report().peers[0].outcome;
        assert_eq!((outcome.sets_pushed, outcome.failed), (keys.len() as u64, 0), "{outcome:?}");
        std::mem::take(&mut *sent.lock())
    };
    assert_eq!(send(&keys[..4], half), [2, 2], "exactly as much as it may");
    assert_eq!(send(&keys[4..6], half + 1), [1, 1]);
    assert_eq!(send(&keys[6..8], ANSWER_BYTES + 10), [1, 1], "one in any case");
}
