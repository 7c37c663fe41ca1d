//! Driving a round: one real node starts it, scripts are the others.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use model::{Cluster, Epoch, Generation, NodeId, Timestamp, Token, VersionSet};
use parking_lot::Mutex;
use protocol::report::{CollectionReport, Parts};
use runtime::Clock;
use wire::error::ErrorCode;
use wire::messages::{
    CollectCandidated, CollectConfirmed, CollectFenced, CollectReleased, Collected, Request, Response,
};

use super::home::cluster;
use super::pairs::metric;
use super::{Answer, Home, KEY, Node, deleted, failing, merge, record, tombstone_at};

/// What the scripts were asked, in order: who, what, and what the service said of epochs then.
type Asked = Arc<Mutex<Vec<(u32, Request, (Epoch, Epoch))>>>;

/// The other nodes answer each step as one that has nothing does, a moment later; `instead` may say otherwise.
fn others(
    home: &Home,
    instead: impl Fn(u32, &Request, usize) -> Option<Answer> + Send + Sync + 'static,
) -> Asked {
    let (asked, instead) = (Asked::default(), Arc::new(instead));
    for node in (1..=3).filter(|&node| NodeId(node) != home.config.member.id) {
        let (asked, instead) = (asked.clone(), instead.clone());
        let (stage, service) = (home.stage.clone(), home.service.clone());
        home.wires.script(NodeId(node), move |request| {
            let session = service.open();
            let epochs = coordination::documents::read_epochs(&session);
            let epochs = futures_util::FutureExt::now_or_never(epochs).unwrap().unwrap();
            let name = request.name();
            let mut asked = asked.lock();
            let before = asked.iter().filter(|(to, other, _)| *to == node && other.name() == name).count();
            asked.push((node, request.clone(), (epochs.opened, epochs.completed)));
            drop(asked);
            if let Some(answer) = instead(node, &request, before) {
                return answer;
            }
            let response: Response = match request {
                Request::CollectCandidates(_) => CollectCandidated { keys: Vec::new(), next: None }.into(),
                Request::CollectConfirm(_) => {
                    CollectConfirmed { epoch: Epoch(0), left_out: Vec::new() }.into()
                }
                Request::CollectFence(_) => CollectFenced {}.into(),
                Request::Collect(_) => Collected { records: 0 }.into(),
                Request::CollectRelease(_) => CollectReleased {}.into(),
                _ => return failing(ErrorCode::UnknownRequest),
            };
            // The later, the greater its id: a step that does not wait for the last one is seen.
            let timer = (&stage as &dyn Clock).sleep(Duration::from_millis(u64::from(node) * 20));
            Answer::Later(Box::pin(async move {
                timer.await;
                response
            }))
        });
    }
    asked
}

/// A node that starts rounds every second, and holds these tombstones.
fn initiator(home: &mut Home, keys: &[(Bytes, VersionSet)]) -> Arc<Node> {
    home.config.repair.collection.interval = Duration::from_secs(1);
    let node = home.start();
    for (key, set) in keys {
        home.call(&node, merge(key, set, 0, None)).unwrap();
    }
    node
}

fn steps(asked: &Asked) -> Vec<(&'static str, u32)> {
    let asked = asked.lock();
    let steps = asked.iter().filter(|(_, request, _)| !matches!(request, Request::CollectCandidates(_)));
    steps.map(|(node, request, _)| (request.name(), *node)).collect()
}

fn count(asked: &Asked, name: &str) -> usize {
    steps(asked).iter().filter(|(step, _)| *step == name).count()
}

/// The state of the node's part in collection.
pub(super) fn report(node: &Node) -> CollectionReport {
    node.report(Parts::STATUS).status.unwrap().collection.unwrap()
}

fn epoch(node: &Node) -> u64 {
    node.replica().epochs().tag().0
}

#[test]
fn each_step_of_a_round_waits_until_all_nodes_have_done_the_one_before() {
    let mut home = Home::new();
    // Node 3 is ahead of what the service has opened.
    let asked = others(&home, |node, request, _| match request {
        Request::CollectConfirm(_) if node == 3 => {
            Some(CollectConfirmed { epoch: Epoch(6), left_out: Vec::new() }.into())
        }
        _ => None,
    });
    let node = initiator(&mut home, &[(KEY, deleted())]);
    home.stage.until(|| count(&asked, "collect") == 2);
    home.stage.pass(Duration::from_millis(200));
    let names: Vec<&str> = steps(&asked).into_iter().map(|(name, _)| name).collect();
    let expected = ["collect-confirm", "collect-fence", "collect-fence", "collect"];
    let expected: Vec<&str> = expected.iter().flat_map(|&name| [name; 2]).collect();
    assert_eq!(names[..8], expected, "each goes to both others, and the fence twice");
    let opened = Epoch(7);
    let seen: Vec<(Epoch, Epoch)> = asked
        .lock()
        .iter()
        .filter(|(_, request, _)| !matches!(request, Request::CollectCandidates(_)))
        .map(|(_, _, epochs)| *epochs)
        .collect();
    assert_eq!(seen[..2], [(Epoch(0), Epoch(0)); 2], "no epoch is opened before everybody has confirmed");
    assert_eq!(
        seen[2..4],
        [(opened, Epoch(0)); 2],
        "above everybody's, and not completed before they fenced"
    );
    assert_eq!(seen[4..8], [(opened, opened); 4], "completed before everybody is asked again");
    for (_, request, _) in asked.lock().iter() {
        if let Request::CollectFence(fence) = request {
            assert_eq!((fence.epoch, fence.floor), (opened, deleted().timestamp_max()));
        }
    }
    assert!(record(&node, &KEY).is_empty(), "and collected here");
    assert_eq!(epoch(&node), 7);
}

#[test]
fn a_round_ends_at_the_step_that_one_node_does_not_take() {
    for (step, time, silent) in [
        ("collect-confirm", 0, false),
        ("collect-confirm", 0, true),
        ("collect-fence", 0, false),
        ("collect-fence", 0, true),
        ("collect-fence", 1, false),
        ("collect-fence", 1, true),
    ] {
        let mut home = Home::new();
        let asked = others(&home, move |node, request, before| {
            let refuses = node == 3 && request.name() == step && before >= time;
            let answer = || if silent { Answer::Silence } else { failing(ErrorCode::ConditionFailed) };
            // Every further round ends at once.
            let again = matches!(request, Request::CollectConfirm(_)) && before > 0;
            (refuses || again).then(answer)
        });
        let node = initiator(&mut home, &[(KEY, deleted())]);
        home.stage.pass(Duration::from_secs(150));
        let case = format!("{step} {time}, silent: {silent}");
        assert_eq!(count(&asked, "collect"), 0, "{case}");
        assert_eq!(record(&node, &KEY), deleted(), "{case}: nothing is forgotten");
        let fences = count(&asked, "collect-fence");
        match (step, time) {
            ("collect-confirm", _) => {
                assert_eq!((fences, home.epochs()), (0, (Epoch(0), Epoch(0))), "{case}");
            }
            (_, 0) => assert_eq!((fences, home.epochs().1), (2, Epoch(0)), "{case}: not completed"),
            _ => assert_eq!(fences, 4, "{case}"),
        }
        assert!(count(&asked, "collect-release") >= 2, "{case}: nobody guards for nothing");
    }
}

#[test]
fn a_key_that_one_node_left_out_is_dropped_from_the_round() {
    let mut home = Home::new();
    let later = Bytes::from_static(b"later");
    let tombstones = [(KEY, deleted()), (later.clone(), tombstone_at(Timestamp(99)))];
    // Keys travel in the order of their tokens.
    let position = u32::from(Token::of(&later) > Token::of(&KEY));
    let asked = others(&home, move |node, request, _| match request {
        Request::CollectConfirm(_) if node == 3 => {
            Some(CollectConfirmed { epoch: Epoch(0), left_out: vec![position] }.into())
        }
        _ => None,
    });
    let node = initiator(&mut home, &tombstones);
    home.stage.until(|| count(&asked, "collect") >= 2);
    home.stage.pass(Duration::from_millis(200));
    let confirmed = asked.lock().iter().any(
        |(_, request, _)| matches!(request, Request::CollectConfirm(confirm) if confirm.keys.len() == 2),
    );
    assert!(confirmed, "both were asked for");
    for (_, request, _) in asked.lock().iter() {
        match request {
            Request::Collect(collect) => {
                let keys: Vec<&Bytes> = collect.keys.iter().map(|(_, (key, _))| key).collect();
                assert_eq!(keys, [&KEY]);
            }
            // What stays must not raise the floor.
            Request::CollectFence(fence) => assert_eq!(fence.floor, deleted().timestamp_max()),
            _ => {}
        }
    }
    assert!(record(&node, &KEY).is_empty());
    assert_eq!(record(&node, &later), tombstones[1].1, "it stays here as well");
}

/// Publishes this document between the first confirm and the first fence of a round; how often members collected, and
/// what is left of the key.
fn changed_in_a_round(newer: Cluster) -> (usize, VersionSet) {
    let mut home = Home::new();
    let service = home.service.clone();
    let asked = others(&home, move |node, request, before| {
        let first = matches!(request, Request::CollectFence(_)) && node == 2 && before == 0;
        if first {
            let session = service.open();
            let published = coordination::documents::publish_cluster(&session, &newer);
            futures_util::FutureExt::now_or_never(published).unwrap().unwrap();
        }
        // Under other nodes nobody takes part, so what is collected was of the round before.
        let newer =
            matches!(request, Request::CollectConfirm(confirm) if confirm.generation == Generation(2));
        newer.then(|| failing(ErrorCode::ConditionFailed))
    });
    let node = initiator(&mut home, &[(KEY, deleted())]);
    home.stage.until(|| count(&asked, "collect-release") >= 2 || count(&asked, "collect") >= 2);
    home.stage.pass(Duration::from_secs(5));
    (count(&asked, "collect"), record(&node, &KEY))
}

#[test]
fn nothing_is_collected_when_the_cluster_document_has_changed_since_the_round_began() {
    let nodes_changed = Generation(2);
    let newer = Cluster { generation: Generation(2), nodes_changed, ..cluster() };
    assert_eq!(changed_in_a_round(newer), (0, deleted()), "a node that joined may hold what it covers");
}

/// Rounds once stood still for as long as partitions moved.
#[test]
fn a_round_goes_on_when_the_same_nodes_hold_other_partitions() {
    let newer = Cluster { generation: Generation(2), ..cluster() };
    assert_eq!(changed_in_a_round(newer), (2, VersionSet::default()));
}

/// Whoever cannot be reached takes no part, so no round is begun without it.
#[test]
fn no_round_is_begun_while_a_member_is_suspected() {
    let mut home = Home::new();
    let asked = others(&home, |node, request, _| {
        (node == 3 && matches!(request, Request::CollectCandidates(_))).then_some(Answer::Silence)
    });
    let node = initiator(&mut home, &[(KEY, deleted())]);
    client::peers::Witness::experienced(
        &**node.gossip(),
        NodeId(3),
        protocol::gossip::Experience::Unreachable,
    );
    home.stage.pass(Duration::from_secs(20));
    assert_eq!(count(&asked, "collect-confirm"), 0);
    assert!(asked.lock().iter().all(|(to, ..)| *to != 3), "it would only be waited for");
    assert_eq!(record(&node, &KEY), deleted());
}

/// Two nodes know different deletions of a key: what all are asked to confirm is both.
#[test]
fn a_round_covers_all_tombstones_of_a_key_that_any_node_knows() {
    let mut home = Home::new();
    let wide = super::set(&deleted(), 8, Timestamp(30), model::Value::Tombstone);
    let offered = wide.clone();
    let store = wire::messages::StoreRef::from(&model::StoreName::new("s").unwrap());
    let asked = others(&home, move |node, request, _| match request {
        Request::CollectCandidates(ask) if node == 2 && ask.after.is_none() => {
            let keys = vec![(store.clone(), (KEY, offered.clone()))];
            Some(CollectCandidated { keys, next: None }.into())
        }
        _ => None,
    });
    let node = initiator(&mut home, &[(KEY, deleted())]);
    home.stage.until(|| count(&asked, "collect") >= 2);
    let mut confirmed = BTreeMap::new();
    for (to, request, _) in asked.lock().iter() {
        if let Request::CollectConfirm(confirm) = request {
            confirmed.entry(*to).or_insert_with(|| confirm.keys[0].1.1.clone());
        }
    }
    assert_eq!(confirmed, [(2, wide.clone()), (3, wide)].into());
    assert!(record(&node, &KEY).is_empty());
}

/// If each node started rounds for the same tombstones, they would use up what others reserve for one.
#[test]
fn the_first_reachable_node_starts_rounds_and_the_next_one_names_whom_they_wait_for() {
    let mut home = Home::new().beside(2);
    let is_away = Arc::new(AtomicBool::new(false));
    let seen = is_away.clone();
    let asked = others(&home, move |node, _, _| {
        (node == 1 && seen.load(Ordering::Relaxed)).then_some(Answer::Silence)
    });
    let node = initiator(&mut home, &[(KEY, deleted())]);
    home.stage.pass(Duration::from_secs(20));
    assert_eq!(count(&asked, "collect-confirm"), 0, "node 1 would do it");
    let told = report(&node);
    assert_eq!((told.waits_for, told.tombstones), (None, 1));
    assert_eq!(metric(&node, "tontine_collection_rounds_waiting"), 0);

    is_away.store(true, Ordering::Relaxed);
    client::peers::Witness::experienced(
        &**node.gossip(),
        NodeId(1),
        protocol::gossip::Experience::Unreachable,
    );
    home.stage.until(|| report(&node).waits_for == Some(NodeId(1)));
    assert_eq!(metric(&node, "tontine_collection_rounds_waiting"), 1);
    assert_eq!(count(&asked, "collect-confirm"), 0, "a round needs everybody");
}

/// Where the others asked each page of candidates to begin.
fn pages_asked(asked: &Asked) -> Vec<bool> {
    let asked = asked.lock();
    let to_one = asked.iter().filter(|(to, ..)| *to == 2);
    let begins = to_one.filter_map(|(_, request, _)| match request {
        Request::CollectCandidates(ask) => Some(ask.after.is_some()),
        _ => None,
    });
    begins.collect()
}

#[test]
fn a_node_without_tombstones_looks_for_them_once_an_interval() {
    let mut home = Home::new();
    let asked = others(&home, |_, _, _| None);
    let _node = initiator(&mut home, &[]);
    home.stage.pass(Duration::from_secs(10));
    assert!((8..=11).contains(&pages_asked(&asked).len()), "{:?}", pages_asked(&asked));
}

#[test]
fn many_tombstones_are_collected_page_by_page_and_the_next_pass_begins_at_once() {
    const MANY: usize = 1500;
    let mut home = Home::new();
    let asked = others(&home, |_, _, _| None);
    home.config.repair.collection.interval = Duration::from_secs(20);
    let node = home.start();
    for number in 0..MANY {
        let key = Bytes::from(format!("k{number}"));
        home.call(&node, merge(&key, &deleted(), 0, None)).unwrap();
    }
    home.stage.until(|| count(&asked, "collect") == 2);
    assert_eq!(pages_asked(&asked), [false], "the first page is full");
    home.stage.until(|| count(&asked, "collect") == 4);
    assert_eq!(pages_asked(&asked), [false, true], "the next one begins behind it");
    home.stage.pass(Duration::from_secs(1));
    assert_eq!(pages_asked(&asked)[2..3], [false], "a thousand were collected, so more may have come");
    assert_eq!(report(&node).records_collected_total, MANY as u64);
}

/// A node that offers uses its own clock.
#[test]
fn a_tombstone_that_another_node_offers_too_early_is_left_out_of_the_round() {
    let mut home = Home::new();
    let named = |name: &str, set: VersionSet| {
        let store = wire::messages::StoreRef::from(&model::StoreName::new("s").unwrap());
        (store, (Bytes::from(name.to_owned()), set))
    };
    let offered = vec![
        named("ahead", tombstone_at(super::amid(3_600_000))),
        named("good", deleted()),
        named("living", super::old()),
    ];
    let asked = others(&home, move |node, request, _| match request {
        Request::CollectCandidates(ask) if node == 2 && ask.after.is_none() => {
            Some(CollectCandidated { keys: offered.clone(), next: None }.into())
        }
        _ => None,
    });
    let _node = initiator(&mut home, &[]);
    home.stage.until(|| count(&asked, "collect-confirm") >= 2);
    for (_, request, _) in asked.lock().iter() {
        if let Request::CollectConfirm(confirm) = request {
            let keys: Vec<&[u8]> = confirm.keys.iter().map(|(_, (key, _))| &key[..]).collect();
            assert_eq!(keys, [b"good"]);
        }
    }
}

/// Nobody takes a note of them but a walk.
#[test]
fn tombstones_from_before_a_start_are_found_and_collected() {
    let mut home = Home::new().syncing();
    let asked = others(&home, |_, _, _| None);
    home.config.repair.collection.interval = Duration::from_secs(1);
    let node = home.start();
    home.call(&node, merge(&KEY, &deleted(), 0, None)).unwrap();
    home.cut(node, 1);
    let node = home.start();
    assert_eq!(record(&node, &KEY), deleted());
    home.stage.until(|| count(&asked, "collect") >= 2);
    assert!(record(&node, &KEY).is_empty());
}
