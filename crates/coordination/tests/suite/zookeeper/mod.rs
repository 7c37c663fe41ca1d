//! The service of a real ensemble: the promises of every service, and what only an ensemble can do.

mod behind;
mod expiry;
mod full;
mod interrupted;
mod proxy;
mod refused;
mod servers;
mod three;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use coordination::zookeeper::{ZooKeeperOptions, ZooKeeperSession};
use coordination::{CoordinationError, CoordinationService, CreateMode, DocumentPath, conformance};
use tokio::sync::{Mutex, MutexGuard};

use self::servers::{Ensemble, PATIENCE};

/// One server, for tests that leave it alone.
fn one() -> &'static Ensemble {
    static ONE: OnceLock<Ensemble> = OnceLock::new();
    ONE.get_or_init(|| Ensemble::start(1))
}

/// Three servers, for one test at a time.
async fn three() -> MutexGuard<'static, Ensemble> {
    static THREE: OnceLock<Mutex<Ensemble>> = OnceLock::new();
    THREE.get_or_init(|| Mutex::new(Ensemble::start(3))).lock().await
}

fn path(path: &str) -> DocumentPath {
    DocumentPath::new(path).unwrap()
}

/// How a test opens a session: its chroot is its own.
fn options(address: &str) -> ZooKeeperOptions {
    ZooKeeperOptions { create_chroot: true, ..ZooKeeperOptions::new(address.parse().unwrap()) }
}

/// An open session.
async fn open(options: ZooKeeperOptions) -> ZooKeeperSession {
    let session = ZooKeeperSession::open(options).unwrap();
    session.connected(PATIENCE).await.unwrap();
    session
}

/// An open session with a short life: what it loses, it loses within seconds.
async fn open_brief(address: &str) -> ZooKeeperSession {
    open(ZooKeeperOptions { session_timeout: Duration::from_secs(2), ..options(address) }).await
}

/// Creates a document.
async fn create(session: &ZooKeeperSession, at: &str, data: &'static str, mode: CreateMode) {
    session.create(&path(at), Bytes::from_static(data.as_bytes()), mode).await.unwrap();
}

/// Reads a document once contact is there.
async fn read(session: &dyn CoordinationService, at: &str) -> Option<Bytes> {
    loop {
        match session.get(&path(at)).await {
            Ok(document) => return Some(document.data),
            Err(CoordinationError::NoNode { .. }) => return None,
            Err(CoordinationError::Unavailable { .. }) => tokio::time::sleep(Duration::from_millis(20)).await,
            Err(error) => panic!("{at}: {error}"),
        }
    }
}

#[tokio::test]
async fn one_server_keeps_the_traits_promises() {
    let address = one().address("/conformance");
    conformance::run(&DocumentPath::root(), || async {
        Arc::new(open(options(&address)).await) as Arc<dyn CoordinationService>
    })
    .await;
}
