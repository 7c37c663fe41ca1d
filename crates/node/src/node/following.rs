//! What a node hears from its coordination service, and tells it: newer cluster documents, and that it is there.
//!
//! Must never: hold up the data path, or end because the service is away.

use std::future::pending;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use coordination::documents::{self, Move, ReadError};
use coordination::{CoordinationError, CoordinationService};
use futures_util::future::{Either, select};
use model::Cluster;

use super::offers::Listening;
use super::{Node, joining};

/// Pause before the coordination service is asked again after it could not be reached.
const COORDINATION_RETRY: Duration = Duration::from_secs(1);

impl Node {
    /// Waits for cluster documents newer than the one that the node goes by.
    fn watch_cluster(&self) -> documents::ClusterWatch {
        documents::watch_cluster(self.coordination.lock().clone(), Some(self.replica.view().generation()))
    }

    /// Opens another session in place of one that has ended. False when that was not possible now; the data path goes
    /// on meanwhile.
    async fn reopen(&self) -> bool {
        let ended = self.coordination.lock().clone();
        let session = match ended.reopen().await {
            Ok(session) => session,
            Err(error) => {
                tracing::warn!(%error, "coordination session not opened again");
                return false;
            }
        };
        tracing::info!(session = %session.session(), "coordination session opened again");
        *self.coordination.lock() = session.clone();
        self.end_late(session).await;
        true
    }

    /// Puts a session with another service in the place of the one so far, which ends.
    pub(super) async fn take_session(&self, session: Arc<dyn CoordinationService>) {
        let former = std::mem::replace(&mut *self.coordination.lock(), session.clone());
        // What it had registered goes at the latest when it expires.
        let _ = former.close().await;
        self.end_late(session).await;
    }

    async fn end_late(&self, session: Arc<dyn CoordinationService>) {
        if self.stopping.load(Ordering::Relaxed) {
            // It came too late for the stop to close it.
            let _ = session.close().await;
        }
    }

    /// Registers the node under its session as it is now. False when that was not possible.
    async fn register(&self) -> bool {
        let session = self.coordination.lock().clone();
        self.register_in(&*session).await
    }

    /// Registers the node under this session. False when that was not possible.
    pub(super) async fn register_in(&self, session: &dyn CoordinationService) -> bool {
        let view = self.replica.view().get();
        let Some(entry) = view.cluster().node(self.config.id) else {
            return true;
        };
        let active = self.config.registration(entry, self.stamper.incarnation());
        match documents::register(session, &active).await {
            Ok(()) => {
                tracing::info!(session = %session.session(), "node registered");
                joining::readdress(session, entry, &active.node).await.unwrap_or_else(|error| {
                    tracing::error!(%error, "new address not written to the cluster document");
                    false
                })
            }
            Err(error) => {
                // What stands in the way may be the session before, whose end takes its time.
                tracing::warn!(%error, "node not registered");
                false
            }
        }
    }
}

/// What the node waits for while it follows its cluster.
enum Heard {
    /// The coordination service has a newer document, or cannot say.
    Served(Result<Cluster, ReadError>),
    /// A peer has handed one over.
    Offered,
    /// It is time to try again what did not succeed: to register, or to go along with the documents.
    Again,
}

/// Follows the cluster document and the documents that peers hand over, as long as the node lives, registers it
/// where it is not registered yet, and goes along when the documents move.
pub(super) async fn follow(node: Weak<Node>, mut offers: Listening, mut registered: bool) {
    let mut going: Option<Move> = None;
    let Some(started) = node.upgrade() else { return };
    let mut watch = started.watch_cluster();
    let clock = started.ports.clock.clone();
    drop(started);
    loop {
        let heard = {
            let next = std::pin::pin!(watch.next());
            let offer = std::pin::pin!(offers.heard());
            let pause = std::pin::pin!(async {
                match registered && going.is_none() {
                    true => pending().await,
                    false => clock.sleep(COORDINATION_RETRY).await,
                }
            });
            match select(select(next, offer), pause).await {
                Either::Left((Either::Left((served, _)), _)) => Heard::Served(served),
                Either::Left((Either::Right((true, _)), _)) => Heard::Offered,
                Either::Left((Either::Right((false, _)), _)) => return,
                Either::Right(_) => Heard::Again,
            }
        };
        let Some(node) = node.upgrade() else { return };
        match heard {
            Heard::Served(Ok(cluster)) => {
                going = None;
                node.learn(cluster).await;
            }
            Heard::Offered => {
                if let Some(cluster) = node.offered.take() {
                    node.learn(cluster).await;
                }
            }
            _ if node.stopping.load(Ordering::Relaxed) => return,
            Heard::Served(Err(ReadError::Moved(this))) => {
                going = node.go_along(*this).await.err();
                if going.is_none() {
                    (registered, watch) = (true, node.watch_cluster());
                }
            }
            Heard::Again => match going.take() {
                Some(this) => {
                    going = node.go_along(this).await.err();
                    if going.is_none() {
                        (registered, watch) = (true, node.watch_cluster());
                    }
                }
                None => registered = node.register().await,
            },
            Heard::Served(Err(error)) => {
                tracing::warn!(%error, "cluster document not read");
                let lost = matches!(error, ReadError::Coordination(CoordinationError::SessionLost));
                if lost && node.reopen().await {
                    registered = node.register().await;
                    watch = node.watch_cluster();
                    continue;
                }
                drop(node);
                clock.sleep(COORDINATION_RETRY).await;
            }
        }
    }
}
