//! Connections that break in the middle of something.

use bytes::Bytes;
use coordination::zookeeper::ZooKeeperSession;
use coordination::{CoordinationError, CoordinationService, CreateMode, EventKind, Expected};

use super::proxy::{Proxy, Rule};
use super::{create, one, open, options, path, read};

/// A write of each kind, and whether it has happened.
const WRITES: [&str; 6] = ["create", "ephemeral", "numbered", "ephemeral-numbered", "set", "delete"];

async fn write(session: &ZooKeeperSession, kind: &str) -> Result<(), CoordinationError> {
    let target = path(&format!("/{kind}"));
    let new = Bytes::from_static(b"new");
    let mode = match kind {
        "create" => CreateMode::Persistent,
        "ephemeral" => CreateMode::Ephemeral,
        "numbered" => CreateMode::PersistentSequential,
        "ephemeral-numbered" => CreateMode::EphemeralSequential,
        "set" => return session.set(&target, new, Expected::Any).await.map(drop),
        "delete" => return session.delete(&target, Expected::Any).await,
        other => panic!("there is no write {other}"),
    };
    session.create(&target, new, mode).await.map(drop)
}

/// Whether a write of this kind has happened.
async fn has_happened(session: &ZooKeeperSession, kind: &str) -> bool {
    match kind {
        "delete" => read(session, "/delete").await.is_none(),
        "set" => read(session, "/set").await.unwrap() == "new",
        kind => {
            read(session, "/").await;
            let names = session.children(&path("/")).await.unwrap();
            let number = |name: &String| {
                name.strip_prefix(kind)
                    .is_some_and(|number| number.chars().all(|digit| digit.is_ascii_digit()))
            };
            names.iter().any(number)
        }
    }
}

async fn prepared(chroot: &str) -> (ZooKeeperSession, Proxy, ZooKeeperSession) {
    let proxy = Proxy::start(one().servers[0].address());
    let observer = open(options(&one().address(chroot))).await;
    create(&observer, "/set", "old", CreateMode::Persistent).await;
    create(&observer, "/delete", "old", CreateMode::Persistent).await;
    let session = open(options(&proxy.address(chroot))).await;
    (session, proxy, observer)
}

/// Makes the rule, writes, and lets the session have its connection again.
async fn write_under(session: &ZooKeeperSession, proxy: &Proxy, rule: Rule, kind: &str) {
    // The last connection is there again.
    read(session, "/").await;
    proxy.set(rule);
    let answer = write(session, kind).await;
    assert!(matches!(answer, Err(CoordinationError::Indeterminate { .. })), "{kind}: {answer:?}");
    proxy.set(Rule::Forward);
}

#[tokio::test]
async fn a_write_whose_answer_is_lost_is_indeterminate_and_has_happened_once() {
    let (session, proxy, observer) = prepared("/no-answer").await;
    for kind in WRITES {
        write_under(&session, &proxy, Rule::CutBeforeAnswer, kind).await;
        assert!(has_happened(&session, kind).await, "{kind} was carried out");
    }
    let names = observer.children(&path("/")).await.unwrap();
    assert_eq!(names.len(), 5, "nothing was done twice: {names:?}");
}

#[tokio::test]
async fn a_write_that_is_lost_on_its_way_is_indeterminate_and_not_repeated() {
    let (session, proxy, observer) = prepared("/no-request").await;
    for kind in WRITES {
        write_under(&session, &proxy, Rule::CutBeforeRequest, kind).await;
        assert!(!has_happened(&session, kind).await, "{kind} was not carried out");
    }
    let names = observer.children(&path("/")).await.unwrap();
    assert_eq!(names, ["delete", "set"], "nothing was repeated");
}

#[tokio::test]
async fn a_write_without_connection_is_unavailable_and_does_not_happen() {
    let (session, proxy, observer) = prepared("/no-connection").await;
    proxy.set(Rule::Refuse);
    // The session notices within a moment.
    while session.get(&path("/")).await.is_ok() {}
    for kind in WRITES {
        let answer = write(&session, kind).await;
        assert!(matches!(answer, Err(CoordinationError::Unavailable { .. })), "{kind}: {answer:?}");
    }
    proxy.set(Rule::Forward);
    read(&session, "/").await;
    assert_eq!(observer.children(&path("/")).await.unwrap(), ["delete", "set"]);
    assert_eq!(write(&session, "set").await, Ok(()), "the session is the same");
}

#[tokio::test]
async fn a_read_whose_answer_is_lost_is_unavailable() {
    let (session, proxy, _observer) = prepared("/reads").await;
    for turn in 0..4 {
        read(&session, "/").await;
        proxy.set(Rule::CutBeforeAnswer);
        let answer = match turn {
            0 => session.get(&path("/set")).await.err(),
            1 => session.children(&path("/")).await.err(),
            2 => session.get_and_watch(&path("/absent")).await.err(),
            _ => session.children_and_watch(&path("/")).await.err(),
        };
        assert!(matches!(answer, Some(CoordinationError::Unavailable { .. })), "read {turn}: {answer:?}");
        proxy.set(Rule::Forward);
    }
}

#[tokio::test]
async fn a_session_whose_end_is_not_confirmed_says_so_in_bounded_time() {
    let (session, proxy, observer) = prepared("/end").await;
    create(&session, "/fleeting", "", CreateMode::Ephemeral).await;
    proxy.set(Rule::Silent);
    let closed = session.close().await;
    assert!(matches!(closed, Err(CoordinationError::Indeterminate { .. })), "{closed:?}");
    session.lost().await;
    let (found, watch) = observer.get_and_watch(&path("/fleeting")).await.unwrap();
    if found.is_some() {
        assert_eq!(watch.fired().await.unwrap().kind, EventKind::Deleted, "it goes when the session expires");
    }
}

#[tokio::test]
async fn watches_outlive_a_connection_and_tell_what_happened_meanwhile() {
    let (session, proxy, observer) = prepared("/watches").await;
    let (_, changed) = session.get_and_watch(&path("/set")).await.unwrap();
    let (_, deleted) = session.get_and_watch(&path("/delete")).await.unwrap();
    let (_, created) = session.get_and_watch(&path("/created")).await.unwrap();
    let (_, list) = session.children_and_watch(&path("/")).await.unwrap();
    let (_, quiet) = session.children_and_watch(&path("/set")).await.unwrap();
    let (_, later) = session.get_and_watch(&path("/later")).await.unwrap();
    proxy.set(Rule::Refuse);
    while session.get(&path("/")).await.is_ok() {}
    observer.set(&path("/set"), Bytes::new(), Expected::Any).await.unwrap();
    observer.delete(&path("/delete"), Expected::Any).await.unwrap();
    create(&observer, "/created", "", CreateMode::Persistent).await;
    proxy.set(Rule::Forward);
    assert_eq!(changed.fired().await.unwrap().kind, EventKind::Changed);
    assert_eq!(deleted.fired().await.unwrap().kind, EventKind::Deleted);
    assert_eq!(created.fired().await.unwrap().kind, EventKind::Created);
    assert_eq!(list.fired().await.unwrap().kind, EventKind::ChildrenChanged);
    assert!(read(&session, "/created").await.is_some());
    assert!(!quiet.has_fired() && !later.has_fired(), "a new connection is no news");
    create(&observer, "/later", "", CreateMode::Persistent).await;
    assert_eq!(later.fired().await.unwrap().kind, EventKind::Created, "watches are set again");
}

#[tokio::test]
async fn watches_that_nobody_waits_for_are_taken_back() {
    let server = &one().servers[0];
    let session = open(options(&one().address("/dropped"))).await;
    create(&session, "/document", "", CreateMode::Persistent).await;
    let watched = || {
        let answer = server.ask("wchc");
        answer.lines().filter(|line| line.trim().starts_with("/dropped")).count()
    };
    let (_, kept) = session.get_and_watch(&path("/document")).await.unwrap();
    for number in 0..50 {
        session.get_and_watch(&path("/document")).await.unwrap();
        session.get_and_watch(&path(&format!("/absent-{number}"))).await.unwrap();
        session.children_and_watch(&path("/document")).await.unwrap();
    }
    super::servers::wait_until("only what is waited for is watched", || watched() == 1);
    session.set(&path("/document"), Bytes::new(), Expected::Any).await.unwrap();
    assert_eq!(kept.fired().await.unwrap().kind, EventKind::Changed);
}
