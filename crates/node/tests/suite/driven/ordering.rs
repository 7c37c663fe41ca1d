//! What operators order of repair, and a node that stops.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use model::{NodeId, PartitionId, Ring, VersionSet};
use parking_lot::Mutex;
use protocol::report::{Parts, RepairPart};
use runtime::disk::simulated::{DiskOperation, Fault};
use wire::error::ErrorCode;
use wire::messages::{AntiEntropyControl, AntiEntropyOrder, Request};

use super::home::cluster;
use super::keeper::{Keeper, empty};
use super::pairs::{content, equal, events, keys_of};
use super::parting::{TARGET, park};
use super::{Home, KEY, Node, merge, old, record};

fn order(
    home: &Home,
    node: &Node,
    order: AntiEntropyOrder,
    store: Option<&str>,
    partition: Option<u32>,
) -> Result<(), ErrorCode> {
    let control =
        AntiEntropyControl { order, store: store.map(str::to_owned), partition: partition.map(PartitionId) };
    home.stage
        .run(node.antientropy().clone().answer(control.into()))
        .map(|_| ())
        .map_err(|failure| failure.code)
}

#[test]
fn a_scrub_of_the_whole_store_is_the_only_repair_order_for_a_read_only_store() {
    use AntiEntropyOrder::{Look, Scrub, Start, Stop};
    let keeper = Keeper::configured(vec![empty("words")], &[], |_| {});
    let (home, node) = (&keeper.home, &keeper.node);
    let scrubbed = || node.antientropy().report().scrub.last_asked.map(|last| last.run.partitions_done);
    for what in [Look, Scrub, Start, Stop] {
        assert_eq!(order(home, node, what, Some("words"), Some(0)), Err(ErrorCode::ReadOnly), "{what:?}");
        let all = if what == Scrub { Ok(()) } else { Err(ErrorCode::ReadOnly) };
        assert_eq!(order(home, node, what, Some("words"), None), all, "{what:?}");
        assert_eq!(order(home, node, what, Some("none"), None), Err(ErrorCode::UnknownStore), "{what:?}");
    }
    home.stage.pass(Duration::from_secs(1));
    assert_eq!(scrubbed(), None, "it has no records");
    home.call(node, merge(&keys_of(1, 1)[0], &old(), 0, None)).unwrap();
    for what in [Look, Stop, Start, Scrub] {
        assert_eq!(order(home, node, what, Some("s"), Some(1)), Ok(()), "{what:?}");
    }
    home.stage.pass(Duration::from_secs(1));
    assert_eq!(scrubbed(), Some(1));
}

#[test]
fn up_to_256_parts_can_be_stopped_and_another_only_once_one_is_started() {
    use AntiEntropyOrder::{Start, Stop};
    let mut document = cluster();
    let zones: Vec<_> = document.nodes.iter().map(|node| (node.id, node.zone.clone())).collect();
    (document.ring, document.buckets) = (Ring::equal_slices(300, &zones), 512);
    let home = Home::of(&document);
    let node = home.start();
    let ids: Vec<u32> = document.ring.partitions().iter().map(|partition| partition.id.0).collect();
    for id in &ids[..256] {
        assert_eq!(order(&home, &node, Stop, None, Some(*id)), Ok(()));
    }
    let parts = || -> Vec<Option<PartitionId>> {
        node.antientropy().report().stopped_parts.iter().map(|part| part.partition).collect()
    };
    assert_eq!(order(&home, &node, Stop, None, Some(ids[256])), Err(ErrorCode::Malformed));
    assert_eq!(parts().len(), 256);
    assert_eq!(order(&home, &node, Start, None, Some(ids[7])), Ok(()));
    assert_eq!((parts().len(), parts().contains(&Some(PartitionId(ids[7])))), (255, false));
    assert_eq!(order(&home, &node, Stop, None, Some(ids[256])), Ok(()));
    assert_eq!(parts().last(), Some(&Some(PartitionId(ids[256]))));
}

#[test]
fn an_order_that_a_restart_may_forget_says_so_and_holds_until_then() {
    let home = Home::new();
    let node = home.start();
    let fault = Fault::next(DiskOperation::Create, 1);
    home.disk.inject(Fault { path_part: "repair-stopped".to_owned(), ..fault });
    let control = AntiEntropyControl { order: AntiEntropyOrder::Stop, store: None, partition: None };
    let failure = home.stage.run(node.antientropy().clone().answer(control.into())).unwrap_err();
    assert_eq!(failure.code, ErrorCode::StorageFailed);
    assert!(failure.detail.contains("is stopped, but a restart may forget it"), "{}", failure.detail);
    assert!(node.antientropy().report().stopped);
}

/// The order comes while the peer is asked for keys.
#[test]
fn an_order_to_stop_a_store_breaks_off_its_running_comparison() {
    let (home, node, second, peer, _) = equal();
    second.call(&peer, merge(&KEY, &old(), 0, None)).unwrap();
    let its = Mutex::new(Some(node.antientropy().clone()));
    home.serve(&peer, move |request| {
        if let Request::KeyDigests(_) = request
            && let Some(antientropy) = its.lock().take()
        {
            let store = Some("s".to_owned());
            let control = AntiEntropyControl { order: AntiEntropyOrder::Stop, store, partition: None };
            // The order is in force before it is remembered.
            let _ = antientropy.answer(control.into()).now_or_never();
        }
        None
    });
    node.antientropy().ask_for(TARGET);
    home.stage.pass(Duration::from_secs(5));
    let stopped = RepairPart { store: Some("s".to_owned()), partition: None };
    assert_eq!(node.antientropy().report().stopped_parts, [stopped]);
    assert!(record(&node, &KEY).is_empty());
    assert_eq!(order(&home, &node, AntiEntropyOrder::Start, Some("s"), None), Ok(()));
    home.stage.until(|| record(&node, &KEY) == old());
}

/// The peer says that it compared, and hands out nothing.
#[test]
fn a_stopped_comparison_says_so_and_begins_again_in_full() {
    let (home, node, _second, peer, _) = equal();
    let order = |what, store, partition| order(&home, &node, what, store, partition);
    let told = || {
        let repair = node.antientropy().report();
        let parts: Vec<String> = repair.stopped_parts.iter().map(ToString::to_string).collect();
        (repair.stopped, parts)
    };
    assert_eq!(order(AntiEntropyOrder::Stop, Some("t"), None), Err(ErrorCode::UnknownStore));
    assert_eq!(order(AntiEntropyOrder::Stop, None, Some(2)), Err(ErrorCode::Malformed));
    let one = || vec!["partition p1 of store s".to_owned()];
    assert_eq!(told(), (false, Vec::new()));
    assert_eq!(order(AntiEntropyOrder::Stop, Some("s"), Some(1)), Ok(()));
    assert_eq!(order(AntiEntropyOrder::Stop, Some("s"), Some(1)), Ok(()));
    assert_eq!(told(), (false, one()));
    // Of both partitions one is compared.
    let [here, there] = [0, 1].map(|partition| keys_of(partition, 4).remove(3));
    for key in [&here, &there] {
        home.call(&node, merge(key, &content(10), 0, None)).unwrap();
    }
    node.antientropy().ask_for(NodeId(2));
    home.stage.pass(Duration::from_secs(2));
    assert_eq!((record(&peer, &here), record(&peer, &there)), (content(10), VersionSet::default()));
    assert_eq!(node.antientropy().report().peers[0].outcome.partitions, 1);
    assert_eq!(order(AntiEntropyOrder::Stop, None, None), Ok(()));
    assert_eq!((told().0, home.disk.contents("repair-stopped").is_some()), (true, true));
    node.antientropy().ask_for(NodeId(2));
    home.stage.pass(Duration::from_secs(30));
    assert!(record(&peer, &there).is_empty());
    // A start of another part lifts nothing of this one; one of the store does.
    assert_eq!(order(AntiEntropyOrder::Start, None, Some(0)), Ok(()));
    assert_eq!(told().1, one());
    assert_eq!(order(AntiEntropyOrder::Start, None, None), Ok(()));
    assert_eq!(told(), (false, Vec::new()));
    assert!(home.disk.contents("repair-stopped").is_none());
    home.stage.until(|| record(&peer, &there) == content(10));
}

#[test]
fn a_closed_node_compares_nothing_more_and_a_stopped_handoff_sends_nothing_more() {
    let (home, node, second, peer, _) = equal();
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = sent.clone();
    home.serve(&peer, move |request| {
        counted.fetch_add(usize::from(matches!(request, Request::ReplicaMerge(_))), Ordering::Relaxed);
        None
    });
    node.handoffs().stop();
    ["a", "b"].iter().for_each(|key| park(&home, &node, key, "s"));
    home.stage.pass(Duration::from_secs(5));
    assert_eq!((sent.load(Ordering::Relaxed), node.replica().hints().count(NodeId(2))), (0, 2));
    second.call(&peer, merge(&KEY, &old(), 0, None)).unwrap();
    node.antientropy().close();
    assert!(node.antientropy().is_closing());
    node.antientropy().ask_for(NodeId(2));
    home.stage.pass(Duration::from_secs(5));
    assert!(record(&node, &KEY).is_empty());
}

#[test]
fn a_node_that_stops_reads_no_more_hints() {
    let home = Home::new();
    let node = home.start();
    home.call(&node, merge(&KEY, &old(), 0, Some(2))).unwrap();
    assert_eq!(home.stage.run(node.antientropy().scrub_now()), 1);
    assert_eq!(events(&node, &["hints-corrupt"]), [], "it is sound");
    node.antientropy().close();
    assert_eq!(home.stage.run(node.antientropy().scrub_now()), 0);
}

/// Whoever asks must know whether the node has been restarted since.
#[test]
fn a_node_reports_its_moves_under_its_incarnation() {
    let home = Home::new();
    let told = |node: &Node| node.report(Parts::MOVES).facts().unwrap().incarnation.unwrap();
    let node = home.start();
    let first = told(&node);
    home.cut(node, 0);
    let second = told(&home.start());
    assert!(0 < first && first < second, "{first}, then {second}");
}
