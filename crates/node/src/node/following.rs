//! What a node hears from its coordination service, and tells it: newer cluster documents, and that it is there.
//!
//! Must never: hold up the data path, or end because the service is away.

use std::cmp::Reverse;
use std::future::pending;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use coordination::documents::{self, ReadError, RegisterError, ServiceMove};
use coordination::{CoordinationError, CoordinationService};
use futures_util::future::{Either, select};
use model::Cluster;
use parking_lot::Mutex;
use protocol::gossip::NodeLiveness;
use runtime::Moment;
use wire::messages::{ClusterGet, Response};

use super::offers::{Listening, Offers};
use super::{Node, joining};
use crate::local_copy;

/// Pause before the coordination service is asked again after it could not be reached.
const COORDINATION_RETRY: Duration = Duration::from_secs(1);
/// How long after it was ordered an address is ordered again that the document still does not say.
const ADDRESS_ORDERED_AGAIN: Duration = Duration::from_secs(30);
/// How many nodes are asked for a document that a request has named, and how long each may take.
const CATCH_UP_NODES_MAX: usize = 3;
const CATCH_UP_PATIENCE: Duration = Duration::from_millis(200);
/// Pause after nobody had it.
const CATCH_UP_PAUSE: Duration = Duration::from_millis(100);

/// Where a node has its cluster documents from.
pub(super) struct Following {
    /// The session now; when it ends, [`follow`] puts another in its place.
    pub(super) session: Mutex<Arc<dyn CoordinationService>>,
    /// Where the documents have gone since the node started.
    pub(super) address: Mutex<Option<String>>,
    /// When it ordered last that the cluster document says where it is.
    pub(super) address_ordered: Mutex<Option<Moment>>,
    /// Documents handed over by peers that need stores opened first.
    pub(super) offers: Offers,
}

impl Following {
    pub(super) fn new(session: Arc<dyn CoordinationService>, offers: Offers) -> Following {
        let (address, address_ordered) = (Mutex::default(), Mutex::default());
        Following { session: Mutex::new(session), address, address_ordered, offers }
    }
}

impl Node {
    /// Waits for cluster documents newer than the one that the node follows.
    fn watch_cluster(&self) -> documents::ClusterWatch {
        documents::watch_cluster(
            self.following.session.lock().clone(),
            Some(self.replica.view().generation()),
        )
    }

    /// Opens another session in place of one that has ended. False when that was not possible now; the data path goes
    /// on meanwhile.
    async fn reopen(&self) -> bool {
        let ended = self.following.session.lock().clone();
        let session = match ended.reopen().await {
            Ok(session) => session,
            Err(error) => {
                tracing::warn!(%error, "coordination session not opened again");
                return false;
            }
        };
        tracing::info!(session = %session.session(), "coordination session opened again");
        *self.following.session.lock() = session.clone();
        self.end_late(session).await;
        true
    }

    /// Puts a session with another service in the place of the one so far, which ends.
    pub(super) async fn take_session(&self, session: Arc<dyn CoordinationService>) {
        let former = std::mem::replace(&mut *self.following.session.lock(), session.clone());
        // What it had registered goes at the latest when it expires.
        let _ = former.close().await;
        self.end_late(session).await;
    }

    async fn end_late(&self, session: Arc<dyn CoordinationService>) {
        if self.liveness.stopping.load(Ordering::Relaxed) {
            // It came too late for the stop to close it.
            let _ = session.close().await;
        }
    }

    /// Adopts a document; one that cannot be made durable here is offered again after a pause.
    async fn learn_for_sure(&self, cluster: Cluster) {
        if !self.learn(cluster.clone()).await {
            self.ports.clock.sleep(COORDINATION_RETRY).await;
            self.following.offers.offer(cluster);
        }
    }

    /// Writes the copy of the document by which this node has begun, if it could not be written then. False when it
    /// cannot be written now either: until it is, nobody collects a tombstone, and no move ends.
    async fn learn_own(&self) -> bool {
        let view = self.replica.view().get();
        let generation = view.cluster().generation;
        if self.replica.view().adopted() >= generation {
            return true;
        }
        match local_copy::write(self.disk.clone(), view.cluster()).await {
            Ok(()) => self.adopted(generation),
            Err(error) => {
                tracing::debug!(%error, "local copy of the cluster document not written");
                return false;
            }
        }
        true
    }

    /// Gets the document of a generation that a request has named: from the service, or from nodes that follow it.
    async fn catch_up(&self) {
        let view = self.replica.view();
        let wanted = *view.wanted().borrow();
        if view.generation() >= wanted {
            return;
        }
        let session = self.following.session.lock().clone();
        if let Ok(Some(cluster)) = documents::read_cluster(&*session).await {
            self.learn_for_sure(cluster).await;
        }
        let mut seen: Vec<_> = self
            .liveness
            .gossip
            .seen()
            .into_iter()
            .filter(|seen| seen.state == NodeLiveness::Alive)
            .collect();
        seen.sort_by_key(|seen| Reverse(seen.row.map(|row| row.generation)));
        for seen in seen.into_iter().take(CATCH_UP_NODES_MAX) {
            if view.generation() >= wanted {
                return;
            }
            let asked = self.chores.antientropy.peers().call(seen.node, ClusterGet {}.into());
            let answer = asked.within(&self.ports.clock, CATCH_UP_PATIENCE).await;
            if let Ok(Response::ClusterDocument(document)) = answer
                && let Ok(cluster) = serde_json::from_slice::<Cluster>(&document.json)
            {
                self.learn_for_sure(cluster).await;
            }
        }
        if view.generation() < wanted {
            // Whoever named it knows more than everybody who was asked.
            self.ports.clock.sleep(CATCH_UP_PAUSE).await;
        }
    }

    /// Registers the node under its session as it is now. False when that was not possible.
    async fn register(&self) -> bool {
        let session = self.following.session.lock().clone();
        self.register_in(&*session).await
    }

    /// Whether so much time has passed since its address was ordered that it may be again: a headmaster sees to it.
    fn may_order_address(&self) -> bool {
        let now = self.ports.clock.now();
        let mut ordered = self.following.address_ordered.lock();
        let may = ordered.is_none_or(|at| now.since(at) >= ADDRESS_ORDERED_AGAIN);
        if may {
            *ordered = Some(now);
        }
        may
    }

    /// Registers the node under this session. False when that was not possible.
    pub(super) async fn register_in(&self, session: &dyn CoordinationService) -> bool {
        let view = self.replica.view().get();
        let Some(entry) = view.cluster().node(self.config.member.id) else {
            return true;
        };
        let active = self.config.registration(entry, self.stamper.incarnation());
        match documents::register(session, &active).await {
            Ok(()) => {
                tracing::info!(session = %session.session(), "node registered");
                let incarnation = self.stamper.incarnation();
                if let Err(error) = joining::remember_late(session, self.config.member.id, incarnation).await
                {
                    tracing::warn!(%error, "coordination service not told of this start");
                    return false;
                }
                if *entry == active.node {
                    return true;
                }
                if joining::may_readdress(session, view.cluster()).await && self.may_order_address() {
                    joining::readdress(session, &active.node, self.ports.clock.wall().0).await;
                }
                // Until the document says so.
                false
            }
            // Its own session before, after an outage; or, where a directory was copied, the copy.
            Err(RegisterError::AlreadyActive { other: Some(other), .. })
                if other.incarnation == active.incarnation =>
            {
                tracing::warn!(node = %active.node.id, "node not registered, its earlier session has not ended yet");
                false
            }
            Err(error) => {
                tracing::warn!(%error, "node not registered");
                false
            }
        }
    }
}

/// What the node waits for while it follows its cluster.
enum ClusterHeard {
    /// The coordination service has a newer document, or cannot say.
    Served(Result<Box<Cluster>, ReadError>),
    /// A peer has handed one over.
    Offered,
    /// A request has named a generation that this node does not know.
    Wanted,
    /// It is time to try again what did not succeed: to register, to write the copy of the document, or to go along with
    /// the documents.
    Again,
}

/// Why the cluster document was last not read: it is read again each second, perhaps for hours.
#[derive(Default)]
struct ReadFailure(String);

impl ReadFailure {
    fn not_read(&mut self, error: &ReadError) {
        let text = error.to_string();
        if self.0 != text {
            tracing::warn!(%error, "cluster document not read");
            self.0 = text;
        }
    }
}

/// Follows the cluster document and the documents that peers hand over, as long as the node lives, registers it
/// where it is not registered yet, and goes along when the documents move.
pub(super) async fn follow(node: Weak<Node>, mut offers: Listening, mut registered: bool) {
    let (mut going, mut said, mut copied) = (None::<ServiceMove>, ReadFailure::default(), false);
    let Some(started) = node.upgrade() else { return };
    let mut watch = started.watch_cluster();
    let clock = started.ports.clock.clone();
    let mut wanted = started.replica.view().wanted();
    drop(started);
    loop {
        let heard = {
            let next = std::pin::pin!(watch.next());
            let offer = std::pin::pin!(offers.heard());
            let want = std::pin::pin!(wanted.changed());
            let pause = std::pin::pin!(async {
                match registered && copied && going.is_none() {
                    true => pending().await,
                    false => clock.sleep(COORDINATION_RETRY).await,
                }
            });
            match select(select(next, offer), select(want, pause)).await {
                Either::Left((Either::Left((served, _)), _)) => ClusterHeard::Served(served.map(Box::new)),
                Either::Left((Either::Right((true, _)), _)) => ClusterHeard::Offered,
                Either::Left((Either::Right((false, _)), _)) => return,
                Either::Right((Either::Left((Ok(()), _)), _)) => ClusterHeard::Wanted,
                Either::Right((Either::Left((Err(_), _)), _)) => return,
                Either::Right((Either::Right(_), _)) => ClusterHeard::Again,
            }
        };
        let Some(node) = node.upgrade() else { return };
        copied = node.learn_own().await;
        match heard {
            ClusterHeard::Served(Ok(cluster)) => {
                (going, said) = (None, ReadFailure::default());
                node.learn_for_sure(*cluster).await;
            }
            ClusterHeard::Offered => {
                if let Some(cluster) = node.following.offers.take() {
                    node.learn_for_sure(cluster).await;
                }
            }
            ClusterHeard::Wanted => node.catch_up().await,
            _ if node.liveness.stopping.load(Ordering::Relaxed) => return,
            ClusterHeard::Served(Err(ReadError::Moved(this))) => {
                going = node.go_along(*this).await.err();
                if going.is_none() {
                    (registered, watch) = (true, node.watch_cluster());
                }
            }
            ClusterHeard::Again => match going.take() {
                Some(this) => {
                    going = node.go_along(this).await.err();
                    if going.is_none() {
                        (registered, watch) = (true, node.watch_cluster());
                    }
                }
                None => registered = registered || node.register().await,
            },
            ClusterHeard::Served(Err(error)) => {
                said.not_read(&error);
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
