//! Sessions, and what ends with them.

use bytes::Bytes;

use super::{Service, close, create, read, read_until};
use crate::{CoordinationError, CreateMode, EventKind, Expected};

pub(super) async fn ephemerals_end_with_their_session(service: Service<'_>) {
    let (owner, observer) = (service.session().await, service.session().await);
    assert_ne!(owner.session(), observer.session(), "every session has its own id");
    let (fleeting, lasting) = (service.path("fleeting"), service.path("lasting"));
    create(&owner, &fleeting, CreateMode::Ephemeral).await;
    create(&owner, &lasting, CreateMode::Persistent).await;
    let numbered = create(&owner, &service.path("n-"), CreateMode::EphemeralSequential).await;
    read_until(&observer, &numbered, |found| found.is_some()).await;
    let stat = read(&observer, &fleeting).await.expect("it was created").stat;
    assert_eq!(stat.owner, Some(owner.session()), "an ephemeral document names its owner");

    let (_, document_watch) = observer.get_and_watch(&fleeting).await.expect("it can be read");
    let (_, list_watch) = observer.children_and_watch(&service.base).await.expect("it can be read");
    owner.close().await.expect("an open session can be closed");
    assert_eq!(document_watch.fired().await.expect("the observer lives").kind, EventKind::Deleted);
    assert_eq!(list_watch.fired().await.expect("the observer lives").kind, EventKind::ChildrenChanged);
    read_until(&observer, &numbered, |found| found.is_none()).await;
    assert_eq!(read(&observer, &fleeting).await, None);
    let remaining = observer.children(&service.base).await;
    assert_eq!(remaining, Ok(vec!["lasting".to_owned()]), "only what is persistent stays");
    // The name is free for the next owner.
    create(&observer, &fleeting, CreateMode::Ephemeral).await;
    close([observer]).await;
}

pub(super) async fn ephemerals_of_other_sessions_stay(service: Service<'_>) {
    let (first, second) = (service.session().await, service.session().await);
    let (mine, yours) = (service.path("mine"), service.path("yours"));
    create(&first, &mine, CreateMode::Ephemeral).await;
    create(&second, &yours, CreateMode::Ephemeral).await;
    // Whoever may delete a document may delete an ephemeral one that is not theirs, before its time.
    read_until(&first, &yours, |found| found.is_some()).await;
    read_until(&second, &mine, |found| found.is_some()).await;
    second.delete(&mine, Expected::Any).await.expect("it is there");
    create(&second, &mine, CreateMode::Ephemeral).await;
    first.close().await.expect("an open session can be closed");
    let observer = service.session().await;
    for path in [&mine, &yours] {
        read_until(&observer, path, |found| found.is_some()).await;
        let stat = read(&observer, path).await.expect("its owner lives").stat;
        assert_eq!(stat.owner, Some(second.session()));
    }
    close([second, observer]).await;
}

pub(super) async fn a_closed_session_does_nothing(service: Service<'_>) {
    let session = service.session().await;
    let path = service.path("document");
    let (_, watch) = session.get_and_watch(&path).await.expect("it can be watched before it is there");
    session.close().await.expect("an open session can be closed");
    session.lost().await;
    assert_eq!(watch.fired().await, Err(CoordinationError::SessionLost), "watchers learn of the end");
    let lost = CoordinationError::SessionLost;
    assert_eq!(session.create(&path, Bytes::new(), CreateMode::Persistent).await, Err(lost.clone()));
    assert_eq!(session.get(&service.base).await, Err(lost.clone()));
    assert_eq!(session.set(&service.base, Bytes::new(), Expected::Any).await, Err(lost.clone()));
    assert_eq!(session.delete(&service.base, Expected::Any).await, Err(lost.clone()));
    assert_eq!(session.children(&service.base).await, Err(lost.clone()));
    assert_eq!(session.get_and_watch(&path).await.err(), Some(lost.clone()));
    assert_eq!(session.children_and_watch(&service.base).await.err(), Some(lost));
    session.close().await.expect("closing twice is harmless");
    let observer = service.session().await;
    assert_eq!(read(&observer, &path).await, None);
    close([observer]).await;
}

pub(super) async fn a_session_that_ended_opens_another_one(service: Service<'_>) {
    let session = service.session().await;
    let path = service.path("document");
    create(&session, &path, CreateMode::Ephemeral).await;
    session.close().await.expect("an open session can be closed");
    session.lost().await;
    let next = session.reopen().await.expect("the service is there");
    assert_ne!(next.session(), session.session());
    read_until(&next, &path, |found| found.is_none()).await;
    create(&next, &path, CreateMode::Ephemeral).await;
    assert_eq!(read(&next, &path).await.expect("just created").stat.owner, Some(next.session()));
    close([next]).await;
}
