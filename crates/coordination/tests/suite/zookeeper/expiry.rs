//! Sessions that the ensemble ends, and an ensemble that forgets.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use coordination::documents::{self, publish_cluster, read_cluster, watch_cluster};
use coordination::{CoordinationError, CoordinationService, CreateMode, EventKind};
use model::{Cluster, Generation};

use super::proxy::{Proxy, Rule};
use super::servers::Ensemble;
use super::{create, one, open, open_brief, options, path, read};

#[tokio::test]
async fn a_session_that_is_not_heard_for_too_long_is_lost_and_another_one_follows() {
    let proxy = Proxy::start(one().servers[0].address());
    let observer = open(options(&one().address("/expiry"))).await;
    let session = open_brief(&proxy.address("/expiry")).await;
    create(&session, "/fleeting", "", CreateMode::Ephemeral).await;
    create(&session, "/lasting", "", CreateMode::Persistent).await;
    let (_, never) = session.get_and_watch(&path("/never")).await.unwrap();
    let (found, gone) = observer.get_and_watch(&path("/fleeting")).await.unwrap();
    assert_eq!(found.unwrap().stat.owner, Some(session.session()));

    proxy.set(Rule::Silent);
    assert_eq!(gone.fired().await.unwrap().kind, EventKind::Deleted, "the ensemble ends the session");
    assert!(read(&observer, "/lasting").await.is_some());
    // The session learns it when it is heard again, or by its own clock.
    proxy.set(Rule::Forward);
    session.lost().await;
    assert_eq!(never.fired().await.err(), Some(CoordinationError::SessionLost), "watchers learn of the end");
    let lost = CoordinationError::SessionLost;
    assert_eq!(session.get(&path("/lasting")).await.err(), Some(lost.clone()));
    let refused = session.create(&path("/more"), Bytes::new(), CreateMode::Ephemeral).await;
    assert_eq!(refused, Err(lost.clone()));
    assert_eq!(session.close().await, Err(lost));

    let next = session.reopen().await.unwrap();
    assert_ne!(next.session(), session.session());
    assert_eq!(next.session_timeout(), session.session_timeout());
    next.create(&path("/fleeting"), Bytes::new(), CreateMode::Ephemeral).await.unwrap();
}

fn cluster(generation: u64) -> Cluster {
    let (node, zone) = (model::NodeId(1), model::Zone("a".to_owned()));
    let nodes = vec![model::Node::new(node, zone.clone(), "127.0.0.1:7001", None)];
    let cluster = Cluster::new("shop", nodes, model::Ring::equal_slices(1, &[(node, zone)]), Vec::new());
    Cluster { generation: Generation(generation), ..cluster }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &target),
            false => drop(fs::copy(entry.path(), target).unwrap()),
        }
    }
}

/// An operator restores the ensemble from an older copy: its documents go backwards, and those who know more keep it.
#[tokio::test]
async fn a_follower_keeps_the_newer_document_when_the_ensemble_is_restored_from_an_older_copy() {
    let mut ensemble = Ensemble::start(1);
    let address = ensemble.address("/restored");
    let session = open_brief(&address).await;
    publish_cluster(&session, &cluster(1)).await.unwrap();
    let backup = tempfile::tempdir().unwrap();
    copy(&ensemble.servers[0].data(), backup.path());
    for generation in 2..=3 {
        publish_cluster(&session, &cluster(generation)).await.unwrap();
    }
    let mut watch = watch_cluster(Arc::new(open_brief(&address).await), None);
    assert_eq!(watch.next().await.unwrap().generation, Generation(3));

    ensemble.servers[0].kill();
    fs::remove_dir_all(ensemble.servers[0].data()).unwrap();
    copy(backup.path(), &ensemble.servers[0].data());
    ensemble.servers[0].start();
    ensemble.wait_serving();

    // A session that has seen more than the ensemble knows is refused until it is lost.
    session.lost().await;
    let next: Arc<dyn CoordinationService> = session.reopen().await.unwrap();
    assert_eq!(read_cluster(&*next).await.unwrap().unwrap().generation, Generation(1), "it went backwards");
    let mut watch = watch_cluster(next.clone(), Some(Generation(3)));
    let publishing = async {
        publish_cluster(&*next, &cluster(2)).await.unwrap();
        publish_cluster(&*next, &cluster(4)).await.unwrap();
    };
    let (followed, ()) = futures_util::future::join(watch.next(), publishing).await;
    assert_eq!(followed.unwrap().generation, Generation(4), "what is older is never handed out");
    let stat = next.get(&documents::cluster_path()).await.unwrap().stat;
    assert_eq!(stat.version.0, 2, "versions began anew with the copy");
}
