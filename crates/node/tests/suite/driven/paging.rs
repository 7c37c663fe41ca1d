//! Refills whose peers give a page that is too old, goes nowhere, cannot be merged, or is long in coming; and what pages
//! of a partition that moves count for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use model::{Epoch, Generation, NodeId, PartitionId, Timestamp, Token, Value};
use parking_lot::Mutex;
use runtime::disk::simulated::{DiskOperation, Fault};
use wire::error::ErrorCode;
use wire::messages::{RecordsPage, RecordsPaged, Request};

use super::healing::{Others, later, left, lost_from};
use super::home::cluster;
use super::pairs::first;
use super::rebalance::Three;
use super::{Answer, Home, Node, get, merge, old, record, set};

fn lost() -> (Home, Others, Vec<Bytes>) {
    lost_from(Home::new())
}

/// Whether it is the first page of its partition.
fn is_first(page: &RecordsPage) -> bool {
    page.from == Token(u64::from(page.partition.0) << 63)
}

fn page(records: &[Bytes], next: u64) -> Answer {
    let records = records.iter().map(|key| (key.clone(), first(key))).collect();
    RecordsPaged { epoch: Epoch(0), records, next: Some(Token(next)) }.into()
}

fn holds_all(node: &Node, keys: &[Bytes]) -> bool {
    keys.iter().all(|key| get(node, key) == Ok(first(key)))
}

fn hear(node: &Node) {
    node.replica().epochs().hear(Epoch(3), Generation(1), Some(Generation(1)));
}

/// The next page is asked for while one is merged; a peer reads each from its disk.
#[test]
fn pages_follow_one_another_and_each_is_asked_for_once() {
    let (home, others, keys) = lost();
    let asked = Arc::new(Mutex::new(Vec::new()));
    for (_, peer) in &others {
        let asked = asked.clone();
        home.serve(peer, move |request| {
            let Request::RecordsPage(wanted) = request else { return None };
            asked.lock().push((wanted.partition.0, wanted.from.0));
            is_first(wanted).then(|| page(&[], wanted.from.0 + 1))
        });
    }
    let node = home.start();
    home.stage.until(|| left(&node) == 0);
    assert!(holds_all(&node, &keys));
    assert_eq!(*asked.lock(), [(0, 0), (0, 1), (1, 1 << 63), (1, (1 << 63) + 1)]);
}

/// Such a peer would be asked without end.
#[test]
fn a_page_that_does_not_advance_counts_as_a_failure() {
    let (home, others, keys) = lost();
    let asked = Arc::new(Mutex::new(Vec::new()));
    for (other, peer) in &others {
        let (asked, id) = (asked.clone(), other.config.member.id);
        home.serve(peer, move |request| {
            let Request::RecordsPage(wanted) = request else { return None };
            asked.lock().push(id);
            assert!(asked.lock().len() < 20, "the same page again and again");
            Some(page(&[], wanted.from.0))
        });
    }
    let node = home.start();
    home.stage.until(|| asked.lock().len() >= 8);
    // Four attempts with each.
    let expected = [2, 3].map(|id| [NodeId(id); 4]).concat();
    assert_eq!(asked.lock()[..8], expected);
    others.iter().for_each(|(_, peer)| home.serve(peer, |_| None));
    home.stage.until(|| left(&node) == 0);
    assert!(holds_all(&node, &keys));
}

/// The page may hold what was forgotten since. A peer that knows the epoch reads it again.
#[test]
fn a_page_from_before_the_epoch_is_not_taken_and_its_peer_learns_the_epoch() {
    let (home, others, keys) = lost();
    let node = home.start();
    hear(&node);
    others.iter().for_each(|(_, peer)| home.serve(peer, |_| None));
    home.stage.until(|| left(&node) == 0);
    assert!(holds_all(&node, &keys));
    assert_eq!(others[0].1.replica().epochs().tag(), Epoch(3));
}

#[test]
fn a_page_of_a_later_epoch_is_taken_together_with_the_epoch() {
    let (home, others, keys) = lost();
    others.iter().for_each(|(_, peer)| hear(peer));
    others.iter().for_each(|(_, peer)| home.serve(peer, |_| None));
    let node = home.start();
    home.stage.until(|| left(&node) == 0);
    assert!(holds_all(&node, &keys));
    assert_eq!(node.replica().epochs().tag(), Epoch(3));
}

/// Where each write is acknowledged by all, one peer is enough, so its page must have been merged to the last record.
#[test]
fn one_record_of_a_page_that_could_not_be_merged_leaves_its_partition_incomplete() {
    let mut document = cluster();
    document.stores[0].consistency.writes_required = 3;
    let (home, others, keys) = lost_from(Home::of(&document).syncing());
    let newer = set(&first(&keys[0]), 8, Timestamp(30), Value::Present("newer".into()));
    others.iter().for_each(|(other, peer)| {
        other.call(peer, merge(&keys[0], &newer, 0, None)).unwrap();
    });
    let node = home.start();
    home.call(&node, merge(&keys[0], &first(&keys[0]), 0, None)).unwrap();
    let (disk, failed) = (home.disk.clone(), Arc::new(AtomicBool::new(false)));
    let fails = failed.clone();
    home.serve(&others[0].1, move |request| {
        if let Request::RecordsPage(wanted) = request
            && wanted.partition == PartitionId(0)
            && !fails.swap(true, Ordering::Relaxed)
        {
            disk.inject(Fault::next(DiskOperation::Read, 2));
        }
        None
    });
    home.stage.until(|| failed.load(Ordering::Relaxed));
    home.stage.pass(Duration::from_secs(1));
    assert_eq!((left(&node), record(&node, &keys[0])), (1, first(&keys[0])));
    assert_eq!(get(&node, &keys[0]), Err(ErrorCode::Refilling));
    assert!(holds_all(&node, &keys[3..]));
    home.stage.until(|| left(&node) == 0);
    assert_eq!(get(&node, &keys[0]), Ok(newer));
}

/// A session may take hours.
#[test]
fn a_refill_shows_what_has_arrived_while_its_session_runs() {
    let (home, others, keys) = lost();
    let early = keys[..3].iter().min_by_key(|key| Token::of(key)).unwrap().clone();
    for (_, peer) in &others {
        let (its, stage, early) = (Arc::downgrade(peer), home.stage.clone(), early.clone());
        home.serve(peer, move |request| match request {
            Request::RecordsPage(wanted) if wanted.from == Token(0) => {
                Some(page(std::slice::from_ref(&early), Token::of(&early).0 + 1))
            }
            Request::RecordsPage(_) => Some(later(&stage, &its, request, 3)),
            _ => None,
        });
    }
    let node = home.start();
    home.stage.until(|| record(&node, &early) == first(&early));
    home.stage.pass(Duration::from_secs(1));
    let told = node.antientropy().report().refill.unwrap();
    assert_eq!((told.records, told.partitions_left), (1, 2), "{told:?}");
    let bytes = early.len() + wire::versions::record_bytes(None, &first(&early));
    assert_eq!(told.bytes, 2 * 18 + bytes as u64, "two sums and one record");
    home.stage.until(|| left(&node) == 0);
    assert_eq!(node.antientropy().report().refill.unwrap().records, 6, "each once");
}

/// Bytes of a plan were two or three times those of its records: where no trees are kept, because keys have one replica,
/// each step that compares takes whole pages again.
#[test]
fn records_that_travel_again_at_a_later_step_of_a_move_are_counted_once() {
    for replicas in [1, 2] {
        let mut three = Three::new(replicas);
        let (_, to) = three.ends();
        let came = |three: &Three| {
            let told = three.told(to);
            let of = told.entered.iter().find(|entered| entered.partition == PartitionId(0)).unwrap();
            (of.records, of.bytes)
        };
        let size = |key: &Bytes| (key.len() + wire::versions::record_bytes(None, &old())) as u64;
        let all = (50, three.keys.iter().map(size).sum::<u64>());
        three.begin();
        three.homes[0].stage.until(|| three.next().is_some());
        assert_eq!(came(&three), all, "{replicas}");
        three.follow();
        three.homes[0].stage.until(|| three.next().is_some());
        assert_eq!(came(&three), all, "{replicas}: it was merged once more");
    }
}
