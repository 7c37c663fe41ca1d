//! What the scrub finds behind a tree and among hints, orders amid a comparison, and hints amid a collection round.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use model::{Epoch, Generation, NodeId, PartitionId, StoreName, Timestamp, Value, VersionSet};
use parking_lot::Mutex;
use protocol::report::{PartitionTree, StoreTrees};
use storage::Change;
use wire::error::ErrorCode;
use wire::messages::{
    AntiEntropyControl, AntiEntropyOrder, Merged, ReplicaMerged, Request, Response, StaleEpoch,
};

use super::home::store;
use super::repairing::{content, damage, equal, events, first, keys_of, metric};
use super::{Answer, Event, Home, KEY, failing, merge, old, record, set};

/// A disk that gives back what was there before, and a checksum that holds: nothing but the tree knows better.
#[test]
fn a_record_that_is_older_than_its_tree_is_found_by_a_scrub_and_mended() {
    let (home, node, second, peer, keys) = equal();
    let key = &keys[1];
    let newer = set(&first(key), 8, Timestamp(30), Value::Present("newer".into()));
    let place = node.replica().view().get().partition_at(model::Token::of(key)).0;
    let mut before = None;
    let look = &mut |record: Option<&Bytes>| {
        before = record.cloned();
        Change::Keep
    };
    store(&node).engine().update(place.partition, place.token, key, look).unwrap();
    home.call(&node, merge(key, &newer, 0, None)).unwrap();
    second.call(&peer, merge(key, &newer, 0, None)).unwrap();
    let back = &mut |_: Option<&Bytes>| Change::Put(before.clone().unwrap());
    store(&node).engine().update(place.partition, place.token, key, back).unwrap();
    assert_eq!((record(&node, key), home.stage.run(node.antientropy().scrub_now())), (first(key), 6));
    let recounted = Event::LeavesRecounted { store: "s".to_owned(), partition: PartitionId(0), leaves: 1 };
    assert_eq!(events(&node, &["leaves-recounted", "corrupt-found"]), [recounted]);
    home.stage.pass(Duration::from_secs(3));
    assert_eq!(record(&node, key), newer);
}

/// What such a hint held comes to its target by comparing, if anybody has it.
#[test]
fn a_hint_that_cannot_be_read_is_found_by_a_scrub_which_asks_for_a_comparison_with_its_target() {
    let (home, node, _second, _peer, _) = equal();
    node.handoffs().stop();
    let hinted = keys_of(0, 6).split_off(3);
    for key in &hinted {
        home.call(&node, merge(key, &first(key), 0, Some(2))).unwrap();
    }
    damage(&home, &hinted[1]);
    let told = || events(&node, &["hints-corrupt"]);
    assert_eq!(
        (home.stage.run(node.antientropy().scrub_now()), told().len()),
        (9, 1),
        "six records, and three hints"
    );
    assert_eq!(told(), [Event::HintsCorrupt { target: NodeId(2), hints: 1 }]);
    assert_eq!(metric(&node, "tontine_scrub_corrupt_hints_total"), 1);
    assert_eq!(node.antientropy().report().peers, []);
    home.stage.pass(Duration::from_secs(3));
    assert_eq!(node.antientropy().report().peers[0].peer, NodeId(2));
}

#[test]
fn a_node_that_stops_reads_no_hint_any_more() {
    let home = Home::new();
    let node = home.start();
    home.call(&node, merge(&KEY, &old(), 0, Some(2))).unwrap();
    assert_eq!(home.stage.run(node.antientropy().scrub_now()), 1);
    assert_eq!(events(&node, &["hints-corrupt"]), [], "it is sound");
    node.antientropy().close();
    assert_eq!(home.stage.run(node.antientropy().scrub_now()), 0);
}

/// Leaves of too many records are read in vain for one that differs, and too many leaves take memory.
#[test]
fn a_tree_that_is_counted_is_as_deep_as_its_own_partition_has_records() {
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

#[test]
fn a_comparison_that_runs_shows_how_far_it_is_and_an_order_to_stop_breaks_it_off() {
    let (home, node, second, peer, _) = equal();
    second.call(&peer, merge(&KEY, &old(), 0, None)).unwrap();
    let (shown, asked) = (Arc::new(Mutex::new(None)), Arc::new(Mutex::new(Vec::new())));
    let (its, seen, heard) = (Arc::downgrade(&node), shown.clone(), asked.clone());
    home.serve(&peer, move |request| {
        heard.lock().push(request.name());
        if let Request::KeyDigests(_) = request {
            let antientropy = its.upgrade().unwrap().antientropy().clone();
            *seen.lock() = antientropy.report().running;
            let control = AntiEntropyControl { order: AntiEntropyOrder::Stop, store: None, partition: None };
            // The order is in force before it is remembered.
            let _ = antientropy.answer(control.into()).now_or_never();
        }
        None
    });
    node.antientropy().ask_for(NodeId(2));
    home.stage.pass(Duration::from_secs(5));
    let running = shown.lock().take().unwrap();
    assert_eq!((running.peer, &running.store[..]), (NodeId(2), "s"), "{running:?}");
    assert_eq!((running.partitions, running.partitions_done), (2, 1), "{running:?}");
    assert_eq!(running.progress.partitions_differing, 1, "{running:?}");
    let asked = asked.lock();
    assert_eq!(asked.len(), 3, "sums, nodes and keys, and no record: {asked:?}");
    assert!(record(&node, &KEY).is_empty());
    assert_eq!(node.antientropy().report().running, None);
    assert!(!node.antientropy().report().peers[0].outcome.complete);
}

/// A page lasts for many batches, and its target refuses what was read before the round.
#[test]
fn hints_that_were_read_before_a_round_and_are_the_same_are_sent_as_of_now() {
    let home = Home::new();
    let sent = Arc::new(Mutex::new(Vec::new()));
    let (kept, stage) = (sent.clone(), home.stage.clone());
    home.wires.script(NodeId(2), move |request| {
        let Request::ReplicaMerge(batch) = request else { return failing(ErrorCode::UnknownRequest) };
        kept.lock().push(batch.epoch);
        if batch.epoch < Epoch(3) && kept.lock().len() > 2 {
            return StaleEpoch { epoch: Epoch(3) }.into();
        }
        let timer = (&stage as &dyn runtime::Clock).sleep(Duration::from_secs(1));
        let outcomes = vec![Ok(Merged::Changed); batch.entries.len()].into_iter().collect();
        Answer::Later(Box::pin(async move {
            timer.await;
            ReplicaMerged { generation: Generation(1), outcomes }.into()
        }))
    });
    let node = home.start();
    for key in keys_of(0, 250) {
        home.call(&node, merge(&key, &content(10), 0, Some(2))).unwrap();
    }
    home.stage.until(|| !sent.lock().is_empty());
    node.replica().epochs().hear(Epoch(3), Generation(1), Some(Generation(1)));
    home.stage.until(|| node.replica().hints().count(NodeId(2)) == 0);
    let sent = sent.lock();
    assert!(sent.len() == 4 && sent[2..] == [Epoch(3), Epoch(3)], "{sent:?}");
    assert_eq!(metric(&node, "tontine_handoff_hints_delivered_total"), 250);
    assert_eq!(record(&node, &keys_of(0, 1)[0]), VersionSet::default());
}

#[test]
fn a_look_at_one_partition_tells_of_its_tree_and_of_no_other() {
    let (home, node, _second, _peer, keys) = equal();
    home.call(&node, merge(&keys_of(1, 4)[3], &content(10), 0, None)).unwrap();
    let look = |partition: Option<u32>| -> Vec<StoreTrees> {
        let partition = partition.map(PartitionId);
        let control = AntiEntropyControl { order: AntiEntropyOrder::Look, store: None, partition };
        match home.stage.run(node.antientropy().clone().answer(control.into())) {
            Ok(Response::ReportGot(got)) => got.report().unwrap().repair.unwrap().trees,
            other => panic!("{other:?}"),
        }
    };
    let tree = |partition: u32, doubtful: u64, records: Option<u64>| {
        let bytes = store(&node).trees().look(PartitionId(partition), |tree| tree.bytes()).unwrap();
        let (partition, compared_with) = (PartitionId(partition), Some(vec![NodeId(2), NodeId(3)]));
        vec![StoreTrees {
            store: StoreName::new("s").unwrap(),
            trees: 1,
            doubtful,
            tree_bytes: bytes as u64,
            repaired_records_total: 0,
            only: Some(PartitionTree { partition, records, incomplete: false, compared_with }),
        }]
    };
    assert_eq!(keys.len(), 6);
    assert_eq!((look(Some(0)), look(Some(1))), (tree(0, 0, Some(3)), tree(1, 0, Some(4))));
    store(&node).trees().writing(PartitionId(1)).doubt();
    assert_eq!((look(Some(0)), look(Some(1))), (tree(0, 0, Some(3)), tree(1, 1, None)));
    let all = look(None);
    assert_eq!((all[0].trees, all[0].doubtful), (2, 1));
    assert!(home.disk.contents("repair-stopped").is_none(), "nothing was ordered");
}
