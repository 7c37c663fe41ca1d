//! Handoff: hints leave their holder only for whoever has what they hold.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use client::peers::CallError;
use model::{Epoch, Generation, NodeId, Value, VersionSet};
use parking_lot::Mutex;
use wire::error::ErrorCode;
use wire::messages::{Merged, ReplicaMerge, ReplicaMerged, Request, Response, StaleEpoch};

use super::{Answer, Home, KEY, Node, amid, failing, merge, old, record, set};

/// What the target was sent, in order.
type Sent = Arc<Mutex<Vec<ReplicaMerge>>>;

/// Node 2 answers batches of hints like this; the number counts them.
fn target(home: &Home, answer: impl Fn(&ReplicaMerge, usize) -> Answer + Send + Sync + 'static) -> Sent {
    let sent = Sent::default();
    let kept = sent.clone();
    home.wires.script(NodeId(2), move |request| {
        let Request::ReplicaMerge(batch) = request else { return failing(ErrorCode::UnknownRequest) };
        let number = kept.lock().len();
        kept.lock().push(batch.clone());
        answer(&batch, number)
    });
    sent
}

fn merged(outcomes: &[Result<Merged, ErrorCode>]) -> Answer {
    ReplicaMerged { generation: Generation(1), outcomes: outcomes.iter().copied().collect() }.into()
}

fn all_merged(batch: &ReplicaMerge) -> Answer {
    merged(&vec![Ok(Merged::Changed); batch.entries.len()])
}

fn park(home: &Home, node: &Node, key: &Bytes, content: &VersionSet) {
    let answer = home.call(node, merge(key, content, node.replica().epochs().tag().0, Some(2)));
    assert!(matches!(answer, Ok(Response::ReplicaMerged(_))), "{answer:?}");
}

fn hints(node: &Node) -> u64 {
    node.replica().hints().count(NodeId(2))
}

#[test]
fn a_hint_stays_until_its_target_has_answered_that_it_is_merged() {
    let home = Home::new();
    let stage = home.stage.clone();
    let sent = target(&home, move |batch, _| {
        let (Answer::Now(response), timer) =
            (all_merged(batch), (&stage as &dyn runtime::Clock).sleep(Duration::from_secs(3)))
        else {
            unreachable!("it answers at once")
        };
        Answer::Later(Box::pin(async move {
            timer.await;
            response
        }))
    });
    let node = home.start();
    park(&home, &node, &KEY, &old());
    home.stage.until(|| !sent.lock().is_empty());
    home.stage.pass(Duration::from_millis(2_900));
    assert_eq!(hints(&node), 1, "its target may not have it");
    home.stage.until(|| hints(&node) == 0);
    assert_eq!(sent.lock()[0].entries[0], (KEY, old()));
}

#[test]
fn hints_wait_while_their_target_is_overloaded_fails_or_is_silent() {
    let home = Home::new();
    let sent = target(&home, |batch, number| match number {
        0 => failing(ErrorCode::Overloaded),
        1 => merged(&[Err(ErrorCode::Overloaded)]),
        2 => failing(ErrorCode::StorageFailed),
        // As many answers as there were hints, or nobody knows whose they are.
        3 => merged(&[]),
        4 => wire::messages::Pong {}.into(),
        5 => Answer::Silence,
        _ => all_merged(batch),
    });
    let node = home.start();
    park(&home, &node, &KEY, &old());
    for number in 1..=6 {
        home.stage.until(|| sent.lock().len() == number);
        home.stage.pass(Duration::from_millis(5));
        assert_eq!(hints(&node), 1, "after answer {number}");
    }
    home.stage.until(|| hints(&node) == 0);
    assert_eq!(sent.lock().len(), 7);
}

#[test]
fn only_the_merged_hints_of_a_batch_are_removed() {
    let home = Home::new();
    let sent = target(&home, |batch, number| match number {
        0 => {
            let refused = |(key, _): &(Bytes, VersionSet)| match &key[..] {
                b"a" | b"c" => Ok(Merged::Changed),
                _ => Err(ErrorCode::ValueTooLarge),
            };
            merged(&batch.entries.iter().map(refused).collect::<Vec<_>>())
        }
        _ => Answer::Silence,
    });
    let node = home.start();
    for key in ["a", "b", "c", "d"] {
        park(&home, &node, &Bytes::from_static(key.as_bytes()), &old());
    }
    home.stage.until(|| hints(&node) < 4);
    assert_eq!(sent.lock()[0].entries.len(), 4, "they travel together");
    home.stage.until(|| sent.lock().len() > 1);
    assert_eq!(hints(&node), 2);
    let mut left: Vec<Bytes> = sent.lock()[1].entries.iter().map(|(key, _)| key.clone()).collect();
    left.sort();
    assert_eq!(left, ["b", "d"]);
}

#[test]
fn a_hint_that_changed_since_it_was_read_is_sent_again() {
    let home = Home::new();
    let newer = set(&old(), 8, amid(5), Value::Present(Bytes::from_static(b"newer")));
    let holder = Arc::new(Mutex::new(std::sync::Weak::<Node>::new()));
    let (its, content) = (holder.clone(), newer.clone());
    let sent = target(&home, move |batch, number| {
        if number == 0 {
            // A write arrives while the batch is on its way.
            let node = its.lock().upgrade().unwrap();
            let parked = node.replica().call(Request::ReplicaMerge(merge(&KEY, &content, 0, Some(2))));
            assert!(matches!(parked, client::peers::Call::Ready(Ok(_))));
        }
        all_merged(batch)
    });
    let node = home.start();
    *holder.lock() = Arc::downgrade(&node);
    park(&home, &node, &KEY, &old());
    home.stage.until(|| hints(&node) == 0);
    let sent = sent.lock();
    assert_eq!((sent.len(), &sent[1].entries[0].1), (2, &newer));
}

#[test]
fn hints_refused_as_too_old_are_read_again_under_the_epoch_of_their_target() {
    let home = Home::new();
    let sent = target(&home, |batch, _| match batch.epoch < Epoch(3) {
        true => StaleEpoch { epoch: Epoch(3) }.into(),
        false => all_merged(batch),
    });
    let node = home.start();
    park(&home, &node, &KEY, &old());
    home.stage.until(|| sent.lock().len() == 1);
    home.stage.pass(Duration::from_millis(5));
    assert_eq!(hints(&node), 1, "it was not stored");
    home.stage.until(|| hints(&node) == 0);
    let epochs: Vec<u64> = sent.lock().iter().map(|batch| batch.epoch.0).collect();
    assert_eq!(epochs, [0, 3]);
    assert_eq!(node.replica().epochs().tag(), Epoch(3));
}

/// A holder removes its hint when its target has answered. Content that the target holds already may not be durable
/// there: whoever brought it first may still wait for the sync.
#[test]
fn a_merge_that_changes_nothing_is_answered_once_the_known_content_is_durable() {
    for hint_for in [None, Some(2)] {
        let home = Home::new().syncing();
        let node = home.start();
        let stage = home.stage.clone();
        home.disk.set_sync_duration(Arc::new(stage), Duration::from_secs(1));
        let began = runtime::Clock::now(&home.stage);
        let call = || node.replica().call(Request::ReplicaMerge(merge(&KEY, &old(), 0, hint_for)));
        let (first, second) = (call(), call());
        drop(first);
        let client::peers::Call::Pending(answer) = second else { panic!("it is not durable yet") };
        let Ok(Response::ReplicaMerged(merged)) = home.stage.run(answer) else { panic!() };
        assert_eq!(merged.outcomes[..], [Ok(Merged::Known)]);
        assert!(runtime::Clock::now(&home.stage).since(began) >= Duration::from_secs(1));
        home.cut(node, 0);
        let node = home.start();
        match hint_for {
            None => assert_eq!(record(&node, &KEY), old()),
            Some(_) => assert_eq!(hints(&node), 1),
        }
    }
}

/// Node 1 is a replica of the key itself: what it parked for a node that left goes into its record, durably, first.
#[test]
fn a_hint_for_a_node_that_left_is_removed_once_a_replica_holds_it_durably() {
    let home = Home::new().syncing();
    let node = home.start();
    park(&home, &node, &KEY, &old());
    let mut smaller = model::Cluster { generation: model::Generation(2), ..super::home::cluster() };
    smaller.nodes_changed = smaller.generation;
    smaller.nodes.remove(1);
    let zones: Vec<_> = smaller.nodes.iter().map(|node| (node.id, node.zone.clone())).collect();
    smaller.ring = model::Ring::equal_slices(2, &zones);
    // Hints, and their removal, are durable at once; records take their time.
    let stage = home.stage.clone();
    home.disk.set_sync_delay(Some(Arc::new(move |path: &str| {
        let seconds = if path.contains("stores/") { 40 } else { 0 };
        (&stage as &dyn runtime::Clock).sleep(Duration::from_secs(seconds))
    })));
    node.offer(smaller);
    home.stage.until(|| record(&node, &KEY) == old());
    home.stage.pass(Duration::from_secs(20));
    assert_eq!(hints(&node), 1, "a power cut would cost the only copy");
    home.stage.until(|| hints(&node) == 0);
    home.cut(node, 0);
    let node = home.start();
    assert_eq!(record(&node, &KEY), old());
}

/// A node that had left once held hints for others, which their writers counted, and its operator was told to stop it.
#[test]
fn a_node_that_has_left_or_is_leaving_takes_no_hints() {
    for (is_member, is_listed) in [(true, true), (true, false), (false, false)] {
        let home = Home::new();
        let node = home.start();
        let mut next = model::Cluster { generation: model::Generation(2), ..super::home::cluster() };
        next.nodes_changed = next.generation;
        next.nodes[0].role = model::Role::Leaving;
        let zones = next.nodes.iter().skip(usize::from(!is_listed)).map(|node| (node.id, node.zone.clone()));
        next.ring = model::Ring::equal_slices(2, &zones.collect::<Vec<_>>());
        next.nodes.retain(|node| is_member || node.id != NodeId(1));
        home.adopt(&node, next);
        let answer = home.call(&node, merge(&KEY, &old(), 0, Some(2)));
        match answer {
            Ok(_) => assert!(is_listed, "{is_member}"),
            Err(CallError::Refused(failure)) => {
                assert_eq!((failure.code, is_listed), (ErrorCode::StaleGeneration, false));
                assert!(failure.cluster.is_some(), "with the newer document");
            }
            Err(other) => panic!("{other:?}"),
        }
        assert_eq!(hints(&node), usize::from(is_listed) as u64);
    }
}
