//! What repair and handoff tell of themselves: counted to the last record, byte and hint.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use model::{Generation, NodeId, PartitionId, StoreName, Timestamp, Token, Value, VersionSet};
use parking_lot::Mutex;
use protocol::antientropy::merkle::Span;
use protocol::report::{HintsHeld, HintsState, Parts, ScrubRun, StoreRefill};
use wire::error::ErrorCode;
use wire::messages::{KeyDigests, Merged, RecordsGet, ReplicaMerged, Request, Response};

use super::healing::left;
use super::home::{damage_at, store};
use super::{Answer, Event, Home, KEY, Node, failing, get, merge, old, record, set};

/// Most bytes of one answer, as `respond` says.
const ANSWER_BYTES: usize = 1 << 20;

pub(super) fn content(bytes: usize) -> VersionSet {
    set(&VersionSet::default(), 8, Timestamp(20), Value::Present(vec![7; bytes].into()))
}

fn bytes_of(set: &VersionSet) -> usize {
    wire::versions::record_bytes(None, set)
}

/// So many keys of a partition.
pub(super) fn keys_of(partition: u64, count: usize) -> Vec<Bytes> {
    let all = (0..).map(|number| Bytes::from(format!("key {number:04}")));
    all.filter(|key| Token::of(key).0 >> 63 == partition).take(count).collect()
}

/// All that the node tells from now on of these kinds.
pub(super) fn events(node: &Node, kinds: &[&str]) -> Vec<Event> {
    let all = node.events().after(0, 1000).into_iter().map(|recorded| recorded.event);
    all.filter(|event| kinds.contains(&event.kind())).collect()
}

pub(super) fn metric(node: &Node, name: &str) -> u64 {
    let text = node.metrics().text();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{name} is missing in\n{text}")).parse().unwrap()
}

/// What the first write of a key says; no other value is like it.
pub(super) fn first(key: &Bytes) -> VersionSet {
    let value = format!("the value of {} and of nothing else", String::from_utf8_lossy(key));
    set(&VersionSet::default(), 9, Timestamp(1), Value::Present(value.into()))
}

/// Flips a bit of the first write of a key on the disk.
pub(super) fn damage(home: &Home, key: &Bytes) {
    damage_at(&home.disk, key, 0);
}

/// Two real nodes that hold the same keys, three in each partition.
pub(super) fn equal() -> (Home, Arc<Node>, Home, Arc<Node>, Vec<Bytes>) {
    let home = Home::new().syncing();
    let second = home.beside(2);
    let (node, peer) = (home.start(), second.start());
    home.serve(&peer, |_| None);
    let keys = [keys_of(0, 3), keys_of(1, 3)].concat();
    for key in &keys {
        home.call(&node, merge(key, &first(key), 0, None)).unwrap();
        second.call(&peer, merge(key, &first(key), 0, None)).unwrap();
    }
    home.stage.pass(Duration::from_secs(2));
    (home, node, second, peer, keys)
}

#[test]
fn a_scrub_that_is_asked_for_tells_what_it_read_and_found_and_has_it_mended() {
    const KINDS: [&str; 2] = ["corrupt-found", "leaves-recounted"];
    let (home, node, _second, _peer, keys) = equal();
    let bytes =
        |keys: &[Bytes]| keys.iter().map(|key| key.len() + bytes_of(&first(key))).sum::<usize>() as u64;
    let told = |node: &Node| node.antientropy().report().scrub;
    let asked = |node: &Node| told(node).last_asked.unwrap().run;
    assert_eq!(told(&node).last_asked, None);
    assert_eq!(home.stage.run(node.antientropy().scrub_now()), 6);
    let last = asked(&node);
    let read = |run: &ScrubRun| (run.partitions, run.partitions_done, run.records);
    assert_eq!(read(&last), (2, 2, 6));
    assert_eq!((&last.store[..], last.corrupt_records, last.wrong_leaves), ("s", 0, 0));
    assert_eq!((events(&node, &KINDS), metric(&node, "tontine_scrub_records_total")), (vec![], 6));
    let whole = last.bytes;
    assert_eq!(whole, bytes(&keys));
    assert_eq!(metric(&node, "tontine_scrub_bytes_total"), whole);
    // Two of the first partition; each of its leaves is wrong now.
    damage(&home, &keys[0]);
    damage(&home, &keys[1]);
    assert_eq!(home.stage.run(node.antientropy().scrub_now()), 6);
    let damaged = told(&node);
    let last = asked(&node);
    assert_eq!((read(&last), last.bytes), ((2, 2, 6), bytes(&keys[2..])));
    assert_eq!((last.corrupt_records, damaged.corrupt_records_total), (2, 2));
    let leaves = last.wrong_leaves;
    assert!((1..=2).contains(&leaves) && damaged.wrong_leaves_total == leaves, "{damaged:?}");
    let (store_name, partition) = (|| "s".to_owned(), PartitionId(0));
    let found = Event::CorruptFound { store: store_name(), partition, records: 2 };
    let recounted = Event::LeavesRecounted { store: store_name(), partition, leaves };
    assert_eq!(events(&node, &KINDS), [found, recounted]);
    let numbers = ["records", "bytes", "corrupt_records", "wrong_leaves"];
    let counted = numbers.map(|name| metric(&node, &format!("tontine_scrub_{name}_total")));
    assert_eq!(counted, [12, whole + last.bytes, 2, leaves]);
    // Nobody asked for a comparison: the scrub has.
    home.stage.pass(Duration::from_secs(3));
    for key in &keys {
        assert_eq!(record(&node, key), first(key));
    }
    assert_eq!(metric(&node, "tontine_antientropy_repaired_records_total"), 2);
    let again = home.stage.run(node.antientropy().scrub_now());
    assert_eq!((again, events(&node, &KINDS).len()), (6, 2), "there is no more to be found");
}

#[test]
fn a_comparison_tells_what_differed_and_what_travelled() {
    let (home, node, second, peer, keys) = equal();
    let [pulled, pushed, both] = ["only there", "only here", "other here"].map(Bytes::from);
    let (there, here) = (content(100), content(1000));
    second.call(&peer, merge(&pulled, &there, 0, None)).unwrap();
    home.call(&node, merge(&pushed, &here, 0, None)).unwrap();
    second.call(&peer, merge(&both, &there, 0, None)).unwrap();
    let newer = set(&there, 7, Timestamp(30), Value::Present("newer".into()));
    home.call(&node, merge(&both, &newer, 0, None)).unwrap();
    assert!(events(&node, &["repair-ended"]).is_empty());
    assert_eq!(node.antientropy().report().trees[0].trees, 2);
    // What the peer has said of sums and keys.
    let listed = Arc::new(AtomicUsize::new(0));
    let (counted, held) = (listed.clone(), [&keys[..], &[pulled.clone(), both.clone()]].concat());
    home.serve(&peer, move |request| {
        let bytes = match request {
            Request::TreeSums(sums) => 18 * sums.sums.len(),
            Request::TreeNodes(nodes) => {
                nodes.spans.iter().map(|(_, (span, bits))| 16 << (bits - span.bits)).sum()
            }
            Request::KeyDigests(digests) => {
                let of = |span: &Span| -> usize {
                    let inside = held.iter().filter(|key| span.tokens().contains(&Token::of(key)));
                    inside.map(|key| key.len() + 18).sum()
                };
                digests.spans.iter().map(|(_, span)| of(span)).sum()
            }
            _ => 0,
        };
        counted.fetch_add(bytes, Ordering::Relaxed);
        None
    });
    node.antientropy().ask_for(NodeId(2));
    home.stage.pass(Duration::from_secs(2));
    for key in [&pulled, &pushed, &both] {
        assert_eq!(record(&node, key), record(&peer, key), "{key:?}");
    }
    let told = node.antientropy().report();
    assert_eq!((told.peers[0].peer, told.running.is_none()), (NodeId(2), true));
    let outcome = told.peers[0].outcome;
    assert_eq!((outcome.partitions, outcome.partitions_unready, outcome.failed), (2, 0, 0), "{outcome:?}");
    let travelled = (outcome.keys_differing, outcome.sets_pulled, outcome.sets_pushed);
    assert_eq!(travelled, (3, 2, 2), "{outcome:?}");
    let pushes = [(&pushed, &here), (&both, &newer)].map(|(key, set)| key.len() + bytes_of(set));
    let sets = 2 * bytes_of(&there) + pushes.iter().sum::<usize>();
    let bytes = outcome.bytes;
    assert_eq!(bytes as usize, sets + listed.load(Ordering::Relaxed), "{outcome:?}");
    let ways = ["pulled", "pushed"].map(|way| format!("tontine_antientropy_sets_total{{way=\"{way}\"}}"));
    assert_eq!(ways.map(|name| metric(&node, &name)), [2, 2]);
    let in_all = || metric(&node, "tontine_antientropy_bytes_total");
    assert_eq!(in_all(), bytes);
    assert_eq!(metric(&node, "tontine_antientropy_keys_differing_total"), 3);
    assert_eq!(metric(&node, "tontine_antientropy_sessions_total{outcome=\"complete\"}"), 1);
    let events = events(&node, &["repair-ended"]);
    let Event::ComparisonEnded { peer: of, keys, pulled, pushed, complete, took_ms: _ } = &events[0] else {
        panic!("{events:?}")
    };
    assert_eq!((events.len(), *of, *keys, *pulled, *pushed, *complete), (1, NodeId(2), 3, 2, 2, true));
    // Equal by now: it says nothing more.
    node.antientropy().ask_for(NodeId(2));
    home.stage.pass(Duration::from_secs(2));
    assert_eq!(metric(&node, "tontine_antientropy_sessions_total{outcome=\"complete\"}"), 2);
    assert_eq!(node.antientropy().report().peers[0].outcome.bytes, 36, "two sums");
    assert_eq!(in_all(), bytes + 36);
    assert_eq!(self::events(&node, &["repair-ended"]).len(), 1);
}

/// A larger answer would be none: no message may be longer.
#[test]
fn an_answer_to_a_peer_holds_as_much_as_it_may_and_at_least_one() {
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

fn all_merged(count: usize) -> Answer {
    let outcomes = vec![Ok(Merged::Changed); count];
    ReplicaMerged { generation: Generation(1), outcomes: outcomes.into_iter().collect() }.into()
}

fn park(home: &Home, node: &Node, keys: &[&'static str]) {
    for key in keys {
        home.call(node, merge(&Bytes::from_static(key.as_bytes()), &old(), 0, Some(2))).unwrap();
    }
}

/// What operators see of hints for node 2, but for the rate.
fn handoff(node: &Node) -> Vec<HintsHeld> {
    let mut told = node.report(Parts::STATUS).status.unwrap().hints;
    for held in &mut told {
        assert_eq!(held.target, NodeId(2));
        (held.rate_bytes_per_second, held.hints_per_second) = (0, 0);
    }
    told.retain(|held| held.hints != 0);
    told
}

#[test]
fn the_status_of_hints_tells_what_became_of_them() {
    const KINDS: [&str; 4] = ["hints-parked", "hints-drained", "hints-expired", "hints-refused"];
    let home = Home::new();
    let stage = home.stage.clone();
    let count = AtomicUsize::new(0);
    home.wires.script(NodeId(2), move |request| {
        let Request::ReplicaMerge(batch) = request else { return failing(ErrorCode::UnknownRequest) };
        match count.fetch_add(1, Ordering::Relaxed) {
            0 => {
                let timer = (&stage as &dyn runtime::Clock).sleep(Duration::from_secs(3));
                let outcomes = batch.entries.iter().map(|(key, _)| match &key[..] {
                    b"a" | b"b" => Ok(Merged::Changed),
                    _ => Err(ErrorCode::ValueTooLarge),
                });
                let outcomes = outcomes.collect();
                Answer::Later(Box::pin(async move {
                    timer.await;
                    ReplicaMerged { generation: Generation(1), outcomes }.into()
                }))
            }
            1 | 2 => failing(ErrorCode::Overloaded),
            _ => all_merged(batch.entries.len()),
        }
    });
    let node = home.start();
    assert_eq!(handoff(&node), []);
    park(&home, &node, &["a", "b", "c", "d", "e"]);
    let entry = |hints: u64, state: HintsState, failures: u64, delivered_total: u64| {
        vec![HintsHeld {
            target: NodeId(2),
            hints,
            state,
            hints_per_second: 0,
            rate_bytes_per_second: 0,
            failures,
            delivered_total,
            readdressed_total: 0,
            expired_total: 0,
        }]
    };
    assert_eq!(handoff(&node), entry(5, HintsState::Holding, 0, 0), "nobody has looked so far");
    home.stage.pass(Duration::from_millis(2_500));
    assert_eq!(handoff(&node), entry(5, HintsState::Delivering, 0, 0));
    home.stage.until(|| node.replica().hints().count(NodeId(2)) == 3);
    // A pause of 200 ms, and the next one is longer.
    home.stage.until(|| handoff(&node)[0].failures == 2);
    assert_eq!(handoff(&node), entry(3, HintsState::Pausing, 2, 2));
    assert_eq!(metric(&node, "tontine_handoff_batches_failed_total"), 3, "one for its hints, two as a whole");
    home.stage.until(|| node.replica().hints().count(NodeId(2)) == 0);
    home.stage.pass(Duration::from_secs(2));
    assert_eq!(metric(&node, "tontine_handoff_hints_delivered_total"), 5);
    assert_eq!(metric(&node, "tontine_handoff_batches_failed_total"), 3);
    let events = events(&node, &KINDS);
    let parked = Event::HintsParked { target: NodeId(2), hints: 5 };
    assert_eq!((events.len(), &events[0]), (2, &parked));
    let Event::HintsDrained { target: NodeId(2), hints: 5, seconds } = events[1] else {
        panic!("{events:?}")
    };
    assert!((3..=6).contains(&seconds), "{seconds}");
    // A later one gets a courier of its own, and what was delivered before is no part of its story.
    park(&home, &node, &["f"]);
    home.stage.pass(Duration::from_secs(3));
    let events = self::events(&node, &KINDS);
    assert_eq!(events[2], Event::HintsParked { target: NodeId(2), hints: 1 });
    assert!(matches!(events[3], Event::HintsDrained { target: NodeId(2), hints: 1, .. }), "{events:?}");
}

#[test]
fn refused_hints_are_told_of_at_once_and_then_every_ten_seconds() {
    let mut home = Home::new();
    home.config.hint_bytes_max = 0;
    let node = home.start();
    let refuse = |count: usize| {
        for _ in 0..count {
            let refused = home.call(&node, merge(&KEY, &old(), 0, Some(2)));
            let Ok(Response::ReplicaMerged(merged)) = refused else { panic!("{refused:?}") };
            assert_eq!(merged.outcomes[..], [Err(ErrorCode::Overloaded)]);
        }
    };
    let told = || events(&node, &["hints-refused"]);
    let event = |hints| Event::HintsRefused { hints, bytes_max: 0 };
    home.stage.pass(Duration::from_secs(20));
    assert_eq!(told(), []);
    refuse(2);
    home.stage.pass(Duration::from_secs(2));
    assert_eq!(told(), [event(2)]);
    refuse(3);
    home.stage.pass(Duration::from_secs(5));
    refuse(1);
    assert_eq!(told(), [event(2)]);
    home.stage.pass(Duration::from_secs(30));
    assert_eq!(told(), [event(2), event(4)], "only those of which nobody has heard");
}

/// The peer says that it compared, and hands out nothing.
#[test]
fn a_comparison_that_was_stopped_tells_so_and_all_of_it_begins_again() {
    use wire::messages::{AntiEntropyControl, AntiEntropyOrder};
    let (home, node, _second, peer, _) = equal();
    let order = |order, store: Option<&str>, partition: Option<u32>| {
        let (store, partition) = (store.map(str::to_owned), partition.map(PartitionId));
        let control = AntiEntropyControl { order, store, partition };
        home.stage
            .run(node.antientropy().clone().answer(control.into()))
            .map(|_| ())
            .map_err(|failure| failure.code)
    };
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
fn damage_that_requests_met_is_told_of_once_with_its_places_and_mended() {
    let (home, node, _second, _peer, keys) = equal();
    damage(&home, &keys[3]);
    damage(&home, &keys[5]);
    for key in [&keys[3], &keys[5], &keys[3]] {
        assert_eq!(get(&node, key), Err(ErrorCode::Corrupt));
    }
    assert_eq!(metric(&node, "tontine_node_corrupt_reads_total"), 3);
    home.stage.pass(Duration::from_secs(3));
    let met = Event::CorruptMet { store: "s".to_owned(), partition: PartitionId(1), records: 2 };
    assert_eq!(events(&node, &["corrupt-met", "corrupt-found"]), [met]);
    for key in &keys {
        assert_eq!(get(&node, key), Ok(first(key)));
    }
    assert_eq!(metric(&node, "tontine_antientropy_repaired_records_total"), 2);
}

#[test]
fn trees_that_were_counted_anew_are_told_of_with_their_records() {
    let (home, node, _second, _peer, _) = equal();
    let told = || events(&node, &["trees-counted"]);
    let doubt = |node: &Node| {
        [0, 1].iter().for_each(|id| store(node).trees().writing(PartitionId(*id)).doubt());
    };
    let before = (told().len(), metric(&node, "tontine_antientropy_counted_records_total"));
    doubt(&node);
    assert_eq!(node.antientropy().report().trees[0].doubtful, 2);
    assert_eq!(metric(&node, "tontine_antientropy_doubtful_trees"), 2);
    home.stage.pass(Duration::from_secs(2));
    let counted = Event::TreesCounted { store: "s".to_owned(), trees: 2, records: 6 };
    assert_eq!(told()[before.0..], [counted]);
    assert_eq!(metric(&node, "tontine_antientropy_counted_records_total") - before.1, 6);
    assert_eq!(metric(&node, "tontine_antientropy_doubtful_trees"), 0);
    // Nobody wants to hear of trees of nothing.
    let third = home.beside(3);
    let empty = third.start();
    doubt(&empty);
    home.stage.pass(Duration::from_secs(2));
    assert_eq!(
        (events(&empty, &["trees-counted"]), empty.antientropy().report().trees[0].doubtful),
        (vec![], 0)
    );
}

/// A larger message would be refused.
#[test]
fn what_a_peer_lacks_travels_in_messages_of_a_mebibyte() {
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

#[test]
fn a_node_that_closes_compares_nothing_more_and_a_handoff_that_stops_sends_nothing_more() {
    let (home, node, second, peer, _) = equal();
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = sent.clone();
    home.serve(&peer, move |request| {
        counted.fetch_add(usize::from(matches!(request, Request::ReplicaMerge(_))), Ordering::Relaxed);
        None
    });
    node.handoffs().stop();
    park(&home, &node, &["a", "b"]);
    home.stage.pass(Duration::from_secs(5));
    assert_eq!((sent.load(Ordering::Relaxed), node.replica().hints().count(NodeId(2))), (0, 2));
    second.call(&peer, merge(&KEY, &old(), 0, None)).unwrap();
    node.antientropy().close();
    assert!(node.antientropy().is_closing());
    node.antientropy().ask_for(NodeId(2));
    home.stage.pass(Duration::from_secs(5));
    assert!(record(&node, &KEY).is_empty());
}

/// Two others must hold what two acknowledged: this node, and the third.
#[test]
fn hints_that_are_too_old_are_given_up_when_enough_others_hold_them_and_that_is_told() {
    let mut home = Home::new();
    (home.config.handoff.age_max, home.config.handoff.sweep_every) =
        (Duration::from_secs(10), Duration::from_secs(1));
    home.wires.script(NodeId(2), |_| failing(ErrorCode::Overloaded));
    let (refuses, sent) = (Arc::new(Mutex::new(true)), Arc::new(AtomicUsize::new(0)));
    let (is_refused, counted) = (refuses.clone(), sent.clone());
    home.wires.script(NodeId(3), move |request| match request {
        Request::ReplicaMerge(_) if *is_refused.lock() => failing(ErrorCode::StorageFailed),
        Request::ReplicaMerge(batch) => {
            counted.fetch_add(batch.entries.len(), Ordering::Relaxed);
            all_merged(batch.entries.len())
        }
        _ => failing(ErrorCode::UnknownRequest),
    });
    let node = home.start();
    park(&home, &node, &["a", "b", "c"]);
    let told = || events(&node, &["hints-expired", "hints-drained"]);
    home.stage.pass(Duration::from_secs(40));
    assert_eq!((node.replica().hints().count(NodeId(2)), told()), (3, vec![]));
    assert_eq!(handoff(&node)[0].expired_total, 0);
    *refuses.lock() = false;
    home.stage.until(|| node.replica().hints().count(NodeId(2)) == 0);
    home.stage.pass(Duration::from_secs(2));
    for key in ["a", "b", "c"] {
        assert_eq!(record(&node, &Bytes::from_static(key.as_bytes())), old());
    }
    assert_eq!(sent.load(Ordering::Relaxed), 3);
    assert_eq!(told(), [Event::HintsExpired { target: NodeId(2), hints: 3 }]);
    let counted =
        ["expired", "delivered"].map(|way| metric(&node, &format!("tontine_handoff_hints_{way}_total")));
    assert_eq!(counted, [3, 0]);
    park(&home, &node, &["d"]);
    assert_eq!(handoff(&node)[0].expired_total, 3, "since the start");
}

#[test]
fn a_lost_disk_tells_what_is_left_and_what_came() {
    let home = Home::new();
    let node = home.start();
    home.cut(node, 0);
    home.disk.wipe();
    let keys = [keys_of(0, 3), keys_of(1, 3)].concat();
    let opened = Arc::new(Mutex::new(false));
    let others = [2, 3].map(|id| home.beside(id));
    let peers = others.each_ref().map(Home::start);
    for (other, peer) in others.iter().zip(&peers) {
        keys.iter().for_each(|key| drop(other.call(peer, merge(key, &first(key), 0, None)).unwrap()));
        let is_open = opened.clone();
        home.serve(peer, move |_| (!*is_open.lock()).then(|| failing(ErrorCode::StorageFailed)));
    }
    let node = home.start();
    home.stage.pass(Duration::from_secs(5));
    let before = node.antientropy().report().refill.unwrap();
    assert_eq!((before.partitions, before.partitions_left, before.records, before.bytes), (2, 2, 0, 0));
    assert_eq!((before.records_per_second, before.seconds_left), (Some(0), None));
    let store = StoreName::new("s").unwrap();
    assert_eq!(before.stores, [StoreRefill { store, partitions: 2, partitions_left: 2 }]);
    assert!((4.0..=5.0).contains(&before.seconds), "{before:?}");
    let watched = ["incomplete", "lost", "entering"];
    let watched = || watched.map(|name| metric(&node, &format!("tontine_refill_{name}_partitions")));
    assert_eq!(watched(), [2, 2, 0]);
    *opened.lock() = true;
    home.stage.until(|| left(&node) == 0);
    home.stage.pass(Duration::from_secs(5));
    let after = node.antientropy().report().refill.unwrap();
    assert_eq!((after.partitions, after.partitions_left, after.records), (2, 0, 6));
    let (bytes, seconds) = (after.bytes, after.seconds);
    let least: usize = keys.iter().map(|key| key.len() + bytes_of(&first(key))).sum();
    // Each peer may have been asked for all of it, and for four sums.
    let most = 2 * (least + 4 * 18);
    assert!((least..=most).contains(&(bytes as usize)), "{bytes} bytes, not {least} to {most}");
    let rates = [6, bytes].map(|count| Some((count as f64 / seconds) as u64));
    assert_eq!([after.records_per_second, after.bytes_per_second], rates);
    assert_eq!((after.seconds_left, watched()[0]), (Some(0), 0));
    assert_eq!(metric(&node, "tontine_refill_records_total"), 6);
    assert_eq!(metric(&node, "tontine_refill_bytes_total"), bytes);
    let told = events(&node, &["refill-started", "refill-ended"]);
    let started = Event::RefillStarted { partitions: 2 };
    let ended = Event::RefillEnded { partitions: 2, records: 6, bytes, seconds: seconds as u64 };
    assert_eq!(told, [started, ended]);
    keys.iter().for_each(|key| assert_eq!(get(&node, key), Ok(first(key))));
}
