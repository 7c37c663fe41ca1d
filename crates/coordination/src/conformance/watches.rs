//! Watches: they fire once, for what they watch, and never before the change can be read.

use bytes::Bytes;

use super::{Service, close, create, read, read_until, set};
use crate::{CreateMode, Event, EventKind, Expected};

pub(super) async fn documents_are_watched(service: Service<'_>) {
    let (writer, observer) = (service.session().await, service.session().await);
    let path = service.path("document");
    let event = |kind| Ok(Event { path: path.clone(), kind });

    let (found, watch) = observer.get_and_watch(&path).await.expect("what is absent can be watched");
    assert_eq!(found, None);
    create(&writer, &path, CreateMode::Persistent).await;
    assert_eq!(watch.fired().await, event(EventKind::Created));
    assert!(read(&observer, &path).await.is_some(), "the creation can be read once its watch fired");

    let (found, watch) = observer.get_and_watch(&path).await.expect("it is there");
    assert_eq!(found.map(|document| document.data), Some(Bytes::new()));
    set(&writer, &path, "new").await;
    assert_eq!(watch.fired().await, event(EventKind::Changed));
    let document = read(&observer, &path).await.expect("it was set");
    assert_eq!(document.data, "new", "the change can be read once its watch fired");

    // Two watches of the same document are two watches; of several changes each sees the first.
    let (_, watch) = observer.get_and_watch(&path).await.expect("it is there");
    let (_, other) = observer.get_and_watch(&path).await.expect("it is there");
    set(&writer, &path, "newer").await;
    writer.delete(&path, Expected::Any).await.expect("it is there");
    assert_eq!(watch.fired().await, event(EventKind::Changed));
    assert_eq!(other.fired().await, event(EventKind::Changed));
    read_until(&observer, &path, |found| found.is_none()).await;

    create(&writer, &path, CreateMode::Persistent).await;
    read_until(&observer, &path, |found| found.is_some()).await;
    let (_, watch) = observer.get_and_watch(&path).await.expect("it is there");
    writer.delete(&path, Expected::Any).await.expect("it is there");
    assert_eq!(watch.fired().await, event(EventKind::Deleted));
    assert_eq!(read(&observer, &path).await, None, "the deletion can be read once its watch fired");

    // A session sees its own changes as well.
    let (_, watch) = writer.get_and_watch(&path).await.expect("what is absent can be watched");
    create(&writer, &path, CreateMode::Persistent).await;
    assert_eq!(watch.fired().await, event(EventKind::Created));
    close([writer, observer]).await;
}

pub(super) async fn lists_are_watched(service: Service<'_>) {
    let (writer, observer) = (service.session().await, service.session().await);
    let (parent, child) = (service.path("parent"), service.path("parent/child"));
    create(&writer, &parent, CreateMode::Persistent).await;
    read_until(&observer, &parent, |found| found.is_some()).await;
    let event = |kind| Ok(Event { path: parent.clone(), kind });
    let names = |names: &[&str]| Ok(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());

    let (found, watch) = observer.children_and_watch(&parent).await.expect("it is there");
    assert_eq!(found, Vec::<String>::new());
    create(&writer, &child, CreateMode::Persistent).await;
    assert_eq!(watch.fired().await, event(EventKind::ChildrenChanged));
    assert_eq!(observer.children(&parent).await, names(&["child"]));

    let (found, watch) = observer.children_and_watch(&parent).await.expect("it is there");
    assert_eq!(found, ["child"]);
    writer.delete(&child, Expected::Any).await.expect("it is there");
    assert_eq!(watch.fired().await, event(EventKind::ChildrenChanged));
    assert_eq!(observer.children(&parent).await, names(&[]));

    let (_, watch) = observer.children_and_watch(&parent).await.expect("it is there");
    writer.delete(&parent, Expected::Any).await.expect("it is there");
    assert_eq!(watch.fired().await, event(EventKind::Deleted));
    assert_eq!(read(&observer, &parent).await, None);
    close([writer, observer]).await;
}

pub(super) async fn watches_stay_quiet_about_other_things(service: Service<'_>) {
    let (writer, observer) = (service.session().await, service.session().await);
    let (watched, child) = (service.path("watched"), service.path("watched/child"));
    let (sibling, last) = (service.path("watched-too"), service.path("last"));
    create(&writer, &watched, CreateMode::Persistent).await;
    create(&writer, &child, CreateMode::Persistent).await;
    read_until(&observer, &child, |found| found.is_some()).await;
    let (_, document) = observer.get_and_watch(&watched).await.expect("it is there");
    let (_, list) = observer.children_and_watch(&watched).await.expect("it is there");

    set(&writer, &child, "changed").await;
    create(&writer, &sibling, CreateMode::Persistent).await;
    set(&writer, &sibling, "changed").await;
    writer.delete(&sibling, Expected::Any).await.expect("it is there");
    create(&writer, &service.path("watched/child/grandchild"), CreateMode::Persistent).await;
    create(&writer, &last, CreateMode::Persistent).await;
    // Events come in the order of the changes: whoever sees the last one has seen all events before it.
    read_until(&observer, &last, |found| found.is_some()).await;
    assert!(!document.has_fired(), "a document's watch is quiet about its children and neighbours");
    assert!(
        !list.has_fired(),
        "a list's watch is quiet about the content of children and about grandchildren"
    );

    set(&writer, &watched, "changed").await;
    assert_eq!(document.fired().await.expect("the observer lives").kind, EventKind::Changed);
    read_until(&observer, &watched, |found| found.is_some_and(|found| found.data == "changed")).await;
    assert!(!list.has_fired(), "a list's watch is quiet about the content of its parent");
    create(&writer, &service.path("watched/second"), CreateMode::Persistent).await;
    assert_eq!(list.fired().await.expect("the observer lives").kind, EventKind::ChildrenChanged);
    close([writer, observer]).await;
}

/// Sets of the followed document.
const STEPS: u32 = 60;

pub(super) async fn a_follower_sees_the_last_state(service: Service<'_>) {
    let (writer, follower) = (service.session().await, service.session().await);
    let path = service.path("document");
    let writing = async {
        create(&writer, &path, CreateMode::Persistent).await;
        for step in 1..=STEPS {
            set(&writer, &path, step.to_string()).await;
        }
    };
    let following = async {
        let mut seen = None;
        loop {
            let (document, watch) = follower.get_and_watch(&path).await.expect("it can be read");
            let version = document.map(|document| document.stat.version.0);
            assert!(version >= seen, "a follower never goes backwards");
            if version == Some(STEPS) {
                return;
            }
            seen = version;
            watch.fired().await.expect("the follower lives");
        }
    };
    futures_util::future::join(writing, following).await;
    close([writer, follower]).await;
}
