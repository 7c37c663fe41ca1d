//! Addresses, chroots and credentials that are wrong.

use std::time::Duration;

use bytes::Bytes;
use coordination::zookeeper::{Credentials, ZooKeeperOptions, ZooKeeperSession};
use coordination::{
    CoordinationError, CoordinationService, CreateMode, DocumentVersion, Expected, SessionId,
};

use super::{create, one, open, options, path, read};

/// Opening returns before anybody has answered.
#[tokio::test]
async fn without_an_ensemble_calls_are_unavailable_and_closing_is_quick() {
    // Nobody listens on the first address, and the second one is a server that never says anything.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    for address in ["127.0.0.1:1".to_owned(), silent.local_addr().unwrap().to_string()] {
        let session = ZooKeeperSession::open(options(&format!("zookeeper://{address}/x"))).unwrap();
        assert_eq!(session.session(), SessionId(0));
        let answer = session.get(&path("/document")).await;
        let Err(CoordinationError::Unavailable { reason }) = answer else { panic!("{answer:?}") };
        assert!(reason.contains(&address), "{reason}");
        let answer = session.set(&path("/document"), Bytes::new(), Expected::Any).await;
        assert!(matches!(answer, Err(CoordinationError::Unavailable { .. })), "{answer:?}");
        let answer = session.connected(Duration::from_millis(300)).await;
        assert!(matches!(answer, Err(CoordinationError::Unavailable { .. })), "{answer:?}");
        assert_eq!(session.close().await, Ok(()), "a session that never was is closed at once");
        assert_eq!(session.get(&path("/document")).await.err(), Some(CoordinationError::SessionLost));
    }
}

#[tokio::test]
async fn a_chroot_that_does_not_exist_is_named_and_found_once_it_does() {
    let address = one().address("/absent/chroot");
    let never_creating = ZooKeeperOptions { create_chroot: false, ..options(&address) };
    let session = ZooKeeperSession::open(never_creating).unwrap();
    let reason = loop {
        match session.get(&path("/document")).await {
            Err(CoordinationError::Unavailable { reason }) if reason.contains("does not exist") => {
                break reason;
            }
            Err(CoordinationError::Unavailable { .. }) => tokio::time::sleep(Duration::from_millis(20)).await,
            other => panic!("{other:?}"),
        }
    };
    assert!(reason.contains("/absent/chroot") && reason.contains("or create a new one"), "{reason}");
    create(&open(options(&address)).await, "/document", "found", CreateMode::Persistent).await;
    assert_eq!(read(&session, "/document").await.unwrap(), "found");
    let root = open(options(&one().address(""))).await;
    let names = root.children(&path("/")).await.unwrap();
    assert!(names.contains(&"absent".to_owned()) && !names.contains(&"zookeeper".to_owned()), "{names:?}");
}

#[tokio::test]
async fn documents_of_a_user_are_changed_by_this_user_only_and_read_by_all() {
    let address = one().address("/users");
    let with =
        |credentials| ZooKeeperOptions { credentials: Credentials::new(credentials), ..options(&address) };
    let owner = open(with("shop:secret")).await;
    create(&owner, "/document", "one", CreateMode::Persistent).await;
    let denied = |at| CoordinationError::PermissionDenied { path: path(at) };
    for stranger in [open(options(&address)).await, open(with("shop:guessed")).await] {
        assert_eq!(read(&stranger, "/document").await.unwrap(), "one");
        let answer = stranger.set(&path("/document"), Bytes::new(), Expected::Any).await;
        assert_eq!(answer, Err(denied("/document")));
        assert_eq!(stranger.delete(&path("/document"), Expected::Any).await, Err(denied("/document")));
        for mode in [CreateMode::Persistent, CreateMode::EphemeralSequential] {
            assert_eq!(stranger.create(&path("/more"), Bytes::new(), mode).await, Err(denied("/more")));
        }
    }
    let same_user = open(with("shop:secret")).await;
    let changed = same_user.set(&path("/document"), Bytes::from_static(b"two"), Expected::Any).await;
    assert_eq!(changed.unwrap().version, DocumentVersion(1));
}

#[tokio::test]
async fn the_number_that_zookeeper_takes_for_any_version_matches_none() {
    let session = open(options(&one().address("/numbers"))).await;
    create(&session, "/document", "kept", CreateMode::Persistent).await;
    let none = Expected::Version(DocumentVersion(u32::MAX));
    let refused = CoordinationError::BadVersion { path: path("/document") };
    assert_eq!(session.set(&path("/document"), Bytes::new(), none).await, Err(refused.clone()));
    assert_eq!(session.delete(&path("/document"), none).await, Err(refused));
    assert_eq!(read(&session, "/document").await.unwrap(), "kept");
}
