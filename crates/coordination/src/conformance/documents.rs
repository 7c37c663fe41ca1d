//! Documents on their own: what is written is read, what is wrong is refused.

use bytes::Bytes;
use futures_util::future::join_all;

use super::{Service, close, create, read, set};
use crate::{CoordinationError, CreateMode, DOCUMENT_BYTES_MAX, DocumentVersion, Expected};

pub(super) async fn are_read_as_they_were_written(service: Service<'_>) {
    let session = service.session().await;
    let (first, second) = (service.path("first"), service.path("second"));
    for path in [&first, &second] {
        let made = session.create(path, Bytes::from_static(b"one"), CreateMode::Persistent).await;
        assert_eq!(made.as_ref(), Ok(path), "a document gets the path that was asked for");
    }
    let document = read(&session, &first).await.expect("it was created");
    assert_eq!(document.data, "one");
    assert_eq!(document.stat.version, DocumentVersion(0), "versions count from 0");
    assert_eq!(document.stat.owner, None, "a persistent document has no owner");
    let later = read(&session, &second).await.expect("it was created").stat.created;
    assert!(document.stat.created < later, "creation order numbers grow");

    for version in 1..=3 {
        let expected = Expected::Version(DocumentVersion(version - 1));
        let stat =
            session.set(&first, Bytes::from(version.to_string()), expected).await.expect("right version");
        assert_eq!(stat.version, DocumentVersion(version), "every set counts one");
        assert_eq!(stat.created, document.stat.created, "a set keeps the creation order number");
    }
    assert_eq!(read(&session, &first).await.expect("it was set").data, "3");
    assert_eq!(read(&session, &second).await.expect("it was created").data, "one");

    let expected = Expected::Version(DocumentVersion(3));
    session.delete(&first, expected).await.expect("the version is right");
    session.delete(&second, Expected::Any).await.expect("any version is right");
    assert_eq!((read(&session, &first).await, read(&session, &second).await), (None, None));
    close([session]).await;
}

pub(super) async fn wrong_orders_are_refused_by_name(service: Service<'_>) {
    let session = service.session().await;
    let (there, absent, below) =
        (service.path("there"), service.path("absent"), service.path("absent/below"));
    let (fleeting, under) = (service.path("fleeting"), service.path("fleeting/under"));
    create(&session, &there, CreateMode::Persistent).await;
    create(&session, &fleeting, CreateMode::Ephemeral).await;
    let (data, any) = (Bytes::new, Expected::Any);
    let wrong = Expected::Version(DocumentVersion(7));

    let no_node = CoordinationError::NoNode { path: absent.clone() };
    assert_eq!(session.get(&absent).await, Err(no_node.clone()));
    assert_eq!(session.set(&absent, data(), any).await, Err(no_node.clone()));
    assert_eq!(session.delete(&absent, any).await, Err(no_node.clone()));
    assert_eq!(session.children(&absent).await, Err(no_node.clone()));
    assert_eq!(session.children_and_watch(&absent).await.err(), Some(no_node));

    for mode in [CreateMode::Persistent, CreateMode::Ephemeral] {
        let exists = CoordinationError::NodeExists { path: there.clone() };
        assert_eq!(session.create(&there, data(), mode).await, Err(exists));
        let no_parent = CoordinationError::NoParent { path: below.clone() };
        assert_eq!(session.create(&below, data(), mode).await, Err(no_parent));
        let ephemeral = CoordinationError::NoChildrenForEphemerals { path: under.clone() };
        assert_eq!(session.create(&under, data(), mode).await, Err(ephemeral));
    }

    let bad_version = CoordinationError::BadVersion { path: there.clone() };
    assert_eq!(session.set(&there, data(), wrong).await, Err(bad_version.clone()));
    assert_eq!(session.delete(&there, wrong).await, Err(bad_version));
    create(&session, &service.path("there/child"), CreateMode::Persistent).await;
    let not_empty = CoordinationError::NotEmpty { path: there.clone() };
    assert_eq!(session.delete(&there, any).await, Err(not_empty));
    let untouched = read(&session, &there).await.expect("nothing deleted it").stat;
    assert_eq!(untouched.version, DocumentVersion(0), "what is refused leaves no trace");
    close([session]).await;
}

pub(super) async fn sizes_up_to_the_limit_are_kept(service: Service<'_>) {
    let session = service.session().await;
    let path = service.path("big");
    create(&session, &path, CreateMode::Persistent).await;
    for bytes in [1, 100_000, DOCUMENT_BYTES_MAX, 0] {
        let data: Bytes = (0..bytes).map(|position| (position % 251) as u8).collect();
        set(&session, &path, data.clone()).await;
        assert!(read(&session, &path).await.expect("it was set").data == data, "{bytes} bytes are kept");
    }
    let data = Bytes::from(vec![0; DOCUMENT_BYTES_MAX + 1]);
    let too_large = |path| CoordinationError::TooLarge { path, bytes: DOCUMENT_BYTES_MAX + 1 };
    let refused = session.set(&path, data.clone(), Expected::Any).await;
    assert_eq!(refused, Err(too_large(path.clone())));
    let other = service.path("bigger");
    let refused = session.create(&other, data, CreateMode::Persistent).await;
    assert_eq!(refused, Err(too_large(other)));
    assert_eq!(read(&session, &path).await.expect("it was set").data.len(), 0);
    close([session]).await;
}

pub(super) async fn a_thousand_children_are_listed_in_order(service: Service<'_>) {
    let session = service.session().await;
    let names: Vec<String> = (0..1000).map(|number| format!("child-{number:04}")).collect();
    // In another order than theirs, and many at the same time.
    let backwards: Vec<_> = names.iter().rev().map(|name| service.path(name)).collect();
    for some in backwards.chunks(100) {
        join_all(some.iter().map(|path| create(&session, path, CreateMode::Persistent))).await;
    }
    assert_eq!(session.children(&service.base).await, Ok(names));
    let grandchildren = session.children(&service.path("child-0500")).await;
    assert_eq!(grandchildren, Ok(Vec::new()), "children are not listed below each other");
    close([session]).await;
}

pub(super) async fn one_sessions_writes_take_effect_in_order(service: Service<'_>) {
    let session = service.session().await;
    let path = service.path("document");
    create(&session, &path, CreateMode::Persistent).await;
    let sets = (1..=50).map(|turn| session.set(&path, Bytes::from(turn.to_string()), Expected::Any));
    for (turn, stat) in (1..).zip(join_all(sets).await) {
        assert_eq!(stat.expect("it can be set").version, DocumentVersion(turn), "started as number {turn}");
    }
    assert_eq!(read(&session, &path).await.expect("it was set").data, "50", "the last one started wins");

    // A reading that is started after a write sees it, though the write was not awaited.
    let writing = session.set(&path, Bytes::from_static(b"new"), Expected::Any);
    let reading = session.get(&path);
    let (written, read) = futures_util::future::join(writing, reading).await;
    written.expect("it can be set");
    assert_eq!(read.expect("it is there").data, "new");
    close([session]).await;
}

pub(super) async fn a_recreated_document_is_another(service: Service<'_>) {
    let session = service.session().await;
    let path = service.path("document");
    create(&session, &path, CreateMode::Persistent).await;
    set(&session, &path, "old").await;
    let before = read(&session, &path).await.expect("it was created").stat;
    session.delete(&path, Expected::Any).await.expect("it is there");
    create(&session, &path, CreateMode::Persistent).await;
    let after = read(&session, &path).await.expect("it was created again").stat;
    assert_eq!(after.version, DocumentVersion(0), "versions begin anew");
    assert!(after.created > before.created, "so the creation order tells the two apart");
    close([session]).await;
}
