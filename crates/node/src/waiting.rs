//! A node that its cluster does not name yet: it registers, and waits until the cluster document names it.
//!
//! ```text
//!  directory          service                       whoever names nodes
//!     │── take an id ──▶│                                   │
//!     │  (kept first)   │                                   │
//!     │── register ────▶│ /active/n4                        │
//!     │   (an address that another one registered before: taken back, and again with another port)
//!     │                 │◀── cluster document with n4 ──────┤
//!     │◀── it changed ──┤                                   │
//! ```
//!
//! When the documents move meanwhile, the node goes along, and waits there.
//!
//! Must never: write anything but the registration, or end because the service is away for a while.

use std::sync::Arc;
use std::time::Duration;

use coordination::address::Places;
use coordination::documents::{self, ActiveNode, ReadError, RegisterError, ServiceMove};
use coordination::{CoordinationError, CoordinationService, Expected};
use model::Cluster;
use runtime::Ports;

use crate::identity::given::Directory;
use crate::node::{StartError, is_passing, register};

/// Pause before the service is asked again after it did not answer.
const RETRY: Duration = Duration::from_secs(1);

/// How many members are named, for an operator to ask.
const MEMBERS_TOLD: usize = 3;

/// What a node waits for before it can serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waits {
    /// That somebody creates the cluster.
    ForCluster,
    /// That the document of this cluster names it.
    ToBeNamed {
        /// The cluster's name.
        cluster: String,
        /// Where its first members can be reached.
        members: Vec<String>,
    },
    /// That it is named in another service, to which the documents have moved.
    Moved {
        /// The address of that one.
        to: String,
    },
    /// That the service answers.
    ForService {
        /// What it said.
        reason: String,
    },
}

/// A node that waits.
pub struct Applicant<'a> {
    /// Its clock.
    pub ports: &'a Ports,
    /// How it registers.
    pub active: &'a ActiveNode,
    /// Its data directory, which remembers where the documents go.
    pub directory: &'a Directory,
    /// How it goes along with them.
    pub places: &'a dyn Places,
}

/// What a node that waits hears from the service.
enum ServiceHeard {
    /// The cluster document, which names it.
    Named(Cluster),
    /// The documents are in another service.
    Moved(ServiceMove),
}

impl Applicant<'_> {
    /// Registers the node, and returns when the cluster document names it: with the document. `session` is then the one
    /// by which it is registered, perhaps with another service. Calls `tell` each time that it waits for something else.
    ///
    /// # Errors
    /// When another process has the id, or the service refuses for good. [`StartError::AddressTaken`] when another node
    /// has registered with an address of this one before: then this one is not registered.
    pub async fn until_named(
        &self,
        session: &mut Arc<dyn CoordinationService>,
        tell: &mut (dyn FnMut(&Waits) + Send),
    ) -> Result<Cluster, StartError> {
        let mut told = None;
        let mut say = |waits: Waits| {
            if told.as_ref() != Some(&waits) {
                tell(&waits);
                told = Some(waits);
            }
        };
        loop {
            let failure = match self.attempt(session, &mut say).await {
                Ok(ServiceHeard::Named(cluster)) => return Ok(cluster),
                Ok(ServiceHeard::Moved(this)) => match self.go_along(session, &this).await {
                    Ok(()) => {
                        say(Waits::Moved { to: this.to });
                        continue;
                    }
                    Err(reason) => CoordinationError::Unavailable { reason },
                },
                Err(StartError::Register(RegisterError::Coordination(error))) if is_passing(&error) => error,
                Err(error) => return Err(error),
            };
            say(Waits::ForService { reason: failure.to_string() });
            self.ports.clock.sleep(RETRY).await;
            if failure == CoordinationError::SessionLost
                && let Ok(opened) = session.reopen().await
            {
                *session = opened;
            }
        }
    }

    /// Registers, and follows the cluster document under one session.
    async fn attempt(
        &self,
        session: &Arc<dyn CoordinationService>,
        say: &mut (dyn FnMut(Waits) + Send),
    ) -> Result<ServiceHeard, StartError> {
        let active = self.active;
        if !register(self.ports, &**session, active, &[active.incarnation]).await? {
            return Err(failed(CoordinationError::Unavailable {
                reason: "it did not register the node".to_owned(),
            }));
        }
        self.give_way(&**session).await?;
        let mut watch = documents::watch_cluster(session.clone(), None);
        if let Ok(None) = documents::read_cluster(&**session).await {
            say(Waits::ForCluster);
        }
        loop {
            match watch.next().await {
                Ok(cluster) if cluster.node(active.node.id).is_some() => {
                    return Ok(ServiceHeard::Named(cluster));
                }
                Ok(cluster) => {
                    let members = cluster.nodes.iter().map(|node| node.native.clone());
                    let members = members.take(MEMBERS_TOLD).collect();
                    say(Waits::ToBeNamed { cluster: cluster.name, members });
                }
                Err(ReadError::Moved(this)) => return Ok(ServiceHeard::Moved(*this)),
                Err(ReadError::Coordination(error)) => return Err(failed(error)),
                // Somebody has to mend it; the next one is read.
                Err(error) => {
                    say(Waits::ForService { reason: error.to_string() });
                }
            }
        }
    }

    /// Takes the registration back when another node has registered with an address of this one before: several that are
    /// started at once find the same port free, for none listens yet.
    async fn give_way(&self, session: &dyn CoordinationService) -> Result<(), StartError> {
        let me = &self.active.node;
        let earlier = documents::registered_before(session, me.id).await.map_err(failed)?;
        let Err(taken) = documents::check_addresses(me, &earlier) else { return Ok(()) };
        match session.delete(&documents::active_node_path(me.id), Expected::Any).await {
            Ok(()) | Err(CoordinationError::NoNode { .. }) => Err(taken.into()),
            Err(error) => Err(failed(error)),
        }
    }

    /// Goes along with the documents. Failing, says why.
    async fn go_along(
        &self,
        session: &mut Arc<dyn CoordinationService>,
        this: &ServiceMove,
    ) -> Result<(), String> {
        let there = self.places.open_at(&this.to).await?;
        match documents::arrive(&*there, this).await {
            // It goes along with the next one from there.
            Ok(()) | Err(ReadError::Moved(_)) => {}
            Err(error) => return Err(error.to_string()),
        }
        if let Err(error) = self.directory.remember_move(this, &self.places.address()).await {
            // The old place says it as well, as long as it lives.
            tracing::warn!(%error, "new place of the documents not remembered");
        }
        tracing::info!(from = this.from, to = this.to, "documents have moved, and this node with them");
        // What it had registered goes at the latest when it expires.
        let _ = std::mem::replace(session, there).close().await;
        Ok(())
    }
}

fn failed(error: CoordinationError) -> StartError {
    StartError::Register(error.into())
}
