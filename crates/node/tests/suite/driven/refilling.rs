//! A node whose disk was lost brings its records back. Nodes 2 and 3 are real; what they say may be held up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use model::{Generation, PartitionId, VersionSet};
use wire::error::ErrorCode;
use wire::messages::{AnswererState, Request, TreeSummed};

use super::healing::left;
use super::home::cluster;
use super::{Answer, Home, Node, failing, get, merge, old};

/// As many keys as take two pages of each of both partitions.
pub(super) fn keys() -> Vec<Bytes> {
    let all = || (0..100).map(|number| Bytes::from(format!("key {number}")));
    let half = |upper: bool| all().filter(move |key| (model::Token::of(key).0 >> 63 == 1) == upper).take(4);
    half(false).chain(half(true)).collect()
}

/// So large that a page holds two.
fn content() -> VersionSet {
    let value = model::Value::Present(vec![7; 600_000].into());
    super::set(&old(), 8, model::Timestamp(20), value)
}

/// Three homes: the first was lost, and is not started again yet; the others hold every key.
pub(super) struct Lost {
    pub(super) home: Home,
    pub(super) others: Vec<(Home, Arc<Node>)>,
}

pub(super) fn lost() -> Lost {
    lost_from(Home::new())
}

fn lost_from(home: Home) -> Lost {
    let node = home.start();
    home.cut(node, 0);
    home.disk.wipe();
    let others: Vec<(Home, Arc<Node>)> = [2, 3]
        .map(|id| {
            let other = home.beside(id);
            let node = other.start();
            (other, node)
        })
        .into();
    for (other, node) in &others {
        for key in keys() {
            other.call(node, merge(&key, &content(), 0, None)).unwrap();
        }
    }
    Lost { home, others }
}

impl Lost {
    /// The others answer, but where `instead` has another answer.
    pub(super) fn serve(&self, instead: impl Fn(&Request) -> Option<Answer> + Clone + Send + Sync + 'static) {
        self.others.iter().for_each(|(_, node)| self.home.serve(node, instead.clone()));
    }
}

/// What gets of all keys answer: everything, or that this node does not know yet.
pub(super) fn shown(node: &Node) -> Result<(), String> {
    for key in keys() {
        match get(node, &key) {
            Err(ErrorCode::Refilling) => {}
            Ok(found) if found.includes(&content()) => {}
            other => return Err(format!("{key:?} is {other:?}")),
        }
    }
    Ok(())
}

#[test]
fn a_page_that_fails_in_mid_refill_leaves_its_partition_incomplete() {
    let lost = lost();
    let broken = Arc::new(AtomicBool::new(true));
    let fails = broken.clone();
    // The first page of each partition comes, and nothing behind it.
    lost.serve(move |request| match request {
        Request::RecordsPage(page) if fails.load(Ordering::Relaxed) => {
            let is_first = page.from.0 == 0 || page.from.0 == 1 << 63;
            (!is_first).then(|| failing(ErrorCode::StorageFailed))
        }
        _ => None,
    });
    let node = lost.home.start();
    for _ in 0..20 {
        lost.home.stage.pass(Duration::from_secs(1));
        shown(&node).unwrap();
    }
    assert_eq!(left(&node), 2);
    assert!(node.antientropy().report().refill.unwrap().records > 0, "something has come");
    broken.store(false, Ordering::Relaxed);
    lost.home.stage.until(|| left(&node) == 0);
    for key in keys() {
        assert!(get(&node, &key).unwrap().includes(&content()));
    }
}

/// A record that could not be merged here is missing, however the page ended.
#[test]
fn a_record_that_cannot_be_merged_here_leaves_its_partition_incomplete() {
    let lost = lost();
    lost.serve(|_| None);
    // No room for anything.
    let node = lost.home.start();
    lost.home.disk.set_capacity(Some(lost.home.disk.used_bytes()));
    for _ in 0..10 {
        lost.home.stage.pass(Duration::from_secs(1));
        shown(&node).unwrap();
    }
    assert_eq!(left(&node), 2);
}

/// The power goes when a partition has become whole: what it says of itself after that must be true.
#[test]
fn a_partition_that_is_remembered_as_whole_has_its_records_after_a_power_cut() {
    for after in [0, 1, 20] {
        for seed in 0..2 {
            let lost = lost();
            lost.serve(|_| None);
            let node = lost.home.start();
            lost.home.stage.until(|| left(&node) < 2);
            lost.home.stage.pass(Duration::from_millis(after));
            lost.home.stage.until(|| left(&node) == 0);
            lost.home.cut(node, seed);
            // The others are away.
            for (other, _) in &lost.others {
                lost.home.wires.script(other.config.member.id, |_| Answer::Silence);
            }
            let node = lost.home.start();
            shown(&node).unwrap_or_else(|error| panic!("{after}, {seed}: {error}"));
        }
    }
}

/// Sums that are equal make a partition whole as well; what they are equal by may have come by other ways.
#[test]
fn a_partition_that_was_equal_at_once_has_its_records_after_a_power_cut() {
    for seed in 0..3 {
        let lost = lost();
        let open = Arc::new(AtomicBool::new(false));
        let opened = open.clone();
        lost.serve(move |_| (!opened.load(Ordering::Relaxed)).then_some(Answer::Silence));
        let node = lost.home.start();
        for key in keys() {
            lost.home.call(&node, merge(&key, &content(), 0, None)).unwrap();
        }
        shown(&node).unwrap();
        open.store(true, Ordering::Relaxed);
        lost.home.stage.until(|| left(&node) == 0);
        lost.home.stage.pass(Duration::from_millis(5));
        lost.home.cut(node, seed);
        lost.home.wires.script(model::NodeId(2), |_| Answer::Silence);
        lost.home.wires.script(model::NodeId(3), |_| Answer::Silence);
        let node = lost.home.start();
        shown(&node).unwrap_or_else(|error| panic!("{seed}: {error}"));
    }
}

/// Whenever the power goes while a node with a lost disk joins: it never passes for whole.
#[test]
fn a_lost_disk_stays_known_as_lost_wherever_the_start_is_cut_off() {
    for operations in 0..60 {
        let lost = lost();
        lost.serve(|_| Some(Answer::Silence));
        lost.home.disk.power_off_after(Some(operations));
        let first = lost.home.try_start();
        let ended = first.is_err();
        drop(first);
        lost.home.stage.end_tasks();
        lost.home.disk.crash(operations);
        let node = lost.home.start();
        assert_eq!(left(&node), 2, "{operations}");
        shown(&node).unwrap();
        if !ended {
            return;
        }
    }
    panic!("a start takes fewer operations than these");
}

/// Each write is acknowledged by all three, so one other replica that is whole has them all. One that has lost its
/// records as well has nothing to say.
#[test]
fn a_peer_that_has_lost_its_own_records_makes_no_partition_whole() {
    let mut all = cluster();
    all.stores[0].consistency.writes_required = 3;
    let lost = lost_from(Home::of(&all));
    let [second, third] = [0, 1].map(|position| lost.others[position].1.clone());
    lost.home.wires.script(third.id(), |_| Answer::Silence);
    // Node 2 says of itself that it is refilling, and has no records.
    lost.home.serve(&second, |request| match request {
        Request::TreeSums(sums) => {
            let incomplete: Vec<PartitionId> = sums.sums.iter().map(|(id, _)| *id).collect();
            let (differing, unready) = (Vec::new(), Vec::new());
            let standing = AnswererState { incarnation: 0, adopted: Generation(1) };
            Some(TreeSummed { standing, differing, unready, incomplete }.into())
        }
        _ => None,
    });
    let node = lost.home.start();
    lost.home.stage.pass(Duration::from_secs(30));
    assert_eq!(left(&node), 2, "what was acknowledged is with the third");
    shown(&node).unwrap();
    lost.home.serve(&third, |_| None);
    lost.home.stage.until(|| left(&node) == 0);
    shown(&node).unwrap();
}
