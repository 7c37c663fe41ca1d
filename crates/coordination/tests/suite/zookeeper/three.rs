//! Ensembles of three servers, of which one goes away.

use std::sync::Arc;

use bytes::Bytes;
use coordination::zookeeper::ZooKeeperSession;
use coordination::{CoordinationError, CoordinationService, CreateMode, DocumentPath, Expected, conformance};

use super::servers::Ensemble;
use super::{create, open, options, path, read, three};

#[tokio::test]
async fn three_servers_keep_the_traits_promises() {
    let ensemble = three().await;
    let address = ensemble.address("/conformance");
    conformance::run(&DocumentPath::root(), || async {
        Arc::new(open(options(&address)).await) as Arc<dyn CoordinationService>
    })
    .await;
}

/// How often a counter was certainly raised, and how often perhaps.
#[derive(Default)]
struct Raised {
    surely: u64,
    perhaps: u64,
}

impl Raised {
    /// Raises the counter once, whatever comes of it; says whether it was confirmed.
    async fn raise(&mut self, session: &ZooKeeperSession) -> bool {
        let counter = path("/counter");
        let Ok(document) = session.get(&counter).await else { return false };
        let count: u64 = std::str::from_utf8(&document.data).unwrap().parse().unwrap();
        let data = Bytes::from((count + 1).to_string());
        match session.set(&counter, data, Expected::Version(document.stat.version)).await {
            Ok(_) => self.surely += 1,
            Err(CoordinationError::Indeterminate { .. }) => self.perhaps += 1,
            // The session was behind what it could not know to have happened.
            Err(CoordinationError::BadVersion { .. } | CoordinationError::Unavailable { .. }) => {
                return false;
            }
            Err(error) => panic!("{error}"),
        }
        true
    }
}

/// A session with an ephemeral document, which raises a counter while `fault` takes a server away and brings it back.
async fn survives(ensemble: &mut Ensemble, session: ZooKeeperSession, fault: impl Fn(&mut Ensemble, bool)) {
    create(&session, "/counter", "0", CreateMode::Persistent).await;
    create(&session, "/fleeting", "", CreateMode::Ephemeral).await;
    let mut raised = Raised::default();
    for gone in [true, false] {
        fault(ensemble, gone);
        let confirmed = raised.surely;
        while raised.surely < confirmed + 20 {
            if !raised.raise(&session).await {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        }
    }
    let count: u64 =
        std::str::from_utf8(&read(&session, "/counter").await.unwrap()).unwrap().parse().unwrap();
    assert!(
        (raised.surely..=raised.surely + raised.perhaps).contains(&count),
        "{count} of {} confirmed and {} unconfirmed",
        raised.surely,
        raised.perhaps
    );
    let owner = session.get(&path("/fleeting")).await.unwrap().stat.owner;
    assert_eq!(owner, Some(session.session()), "the session is the same");
    assert_eq!(session.close().await, Ok(()));
    ensemble.wait_serving();
}

#[tokio::test]
async fn the_death_of_the_leader_loses_nothing_that_was_confirmed() {
    let mut ensemble = three().await;
    let session = open(options(&ensemble.address("/leader"))).await;
    let (leader, _) = ensemble.leader_and_follower();
    survives(&mut ensemble, session, |ensemble, gone| match gone {
        true => ensemble.servers[leader].kill(),
        false => ensemble.servers[leader].start(),
    })
    .await;
}

#[tokio::test]
async fn a_session_leaves_a_server_that_is_stopped() {
    let mut ensemble = three().await;
    let (_, follower) = ensemble.leader_and_follower();
    let address = ensemble.address("/paused");
    // The client takes servers in its own order.
    let session = loop {
        let session = open(options(&address)).await;
        let id = format!("sid=0x{:x}", session.session().0);
        if ensemble.servers[follower].ask("cons").contains(&id) {
            break session;
        }
    };
    survives(&mut ensemble, session, |ensemble, gone| match gone {
        true => ensemble.servers[follower].pause(),
        false => ensemble.servers[follower].resume(),
    })
    .await;
}
