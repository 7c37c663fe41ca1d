//! A node that its cluster does not name yet: it registers, and waits until the cluster document names it.
//!
//! ```text
//!  directory          service                       whoever names nodes
//!     │── take an id ──▶│                                   │
//!     │  (kept first)   │                                   │
//!     │── register ────▶│ /active/n4                        │
//!     │                 │◀── cluster document with n4 ──────┤
//!     │◀── it changed ──┤                                   │
//! ```
//!
//! Must never: write anything but the registration, or end because the service is away for a while.

use std::sync::Arc;
use std::time::Duration;

use coordination::documents::{self, ActiveNode, ReadError, RegisterError};
use coordination::{CoordinationError, CoordinationService};
use model::Cluster;
use runtime::Ports;

use crate::node::{StartError, is_passing, register};

/// Pause before the service is asked again after it did not answer.
const RETRY: Duration = Duration::from_secs(1);

/// What a node waits for before it can serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waits {
    /// That somebody creates the cluster.
    ForCluster,
    /// That the document of this cluster names it.
    ToBeNamed {
        /// The cluster's name.
        cluster: String,
    },
    /// That the service answers.
    ForService {
        /// What it said.
        reason: String,
    },
}

/// Registers a node that waits, and returns when the cluster document names it: with the document, and the session with
/// the service as it is then. Calls `tell` each time that it waits for something else.
///
/// # Errors
/// When another process has the id, or the service refuses for good.
pub async fn until_named(
    ports: &Ports,
    mut session: Arc<dyn CoordinationService>,
    active: &ActiveNode,
    tell: &mut (dyn FnMut(&Waits) + Send),
) -> Result<(Cluster, Arc<dyn CoordinationService>), StartError> {
    let mut told = None;
    let mut say = |waits: Waits| {
        if told.as_ref() != Some(&waits) {
            tell(&waits);
            told = Some(waits);
        }
    };
    loop {
        let failure = match attempt(ports, &session, active, &mut say).await {
            Ok(cluster) => return Ok((cluster, session)),
            Err(StartError::Register(RegisterError::Coordination(error))) if is_passing(&error) => error,
            Err(error) => return Err(error),
        };
        say(Waits::ForService { reason: failure.to_string() });
        ports.clock.sleep(RETRY).await;
        if failure == CoordinationError::SessionLost
            && let Ok(opened) = session.reopen().await
        {
            session = opened;
        }
    }
}

/// Registers, and follows the cluster document under one session.
async fn attempt(
    ports: &Ports,
    session: &Arc<dyn CoordinationService>,
    active: &ActiveNode,
    say: &mut (dyn FnMut(Waits) + Send),
) -> Result<Cluster, StartError> {
    let failed = |error: CoordinationError| StartError::Register(error.into());
    if !register(ports, &**session, active, Some(active.incarnation)).await? {
        return Err(failed(CoordinationError::Unavailable {
            reason: "it did not register the node".to_owned(),
        }));
    }
    let mut watch = documents::watch_cluster(session.clone(), None);
    if let Ok(None) = documents::read_cluster(&**session).await {
        say(Waits::ForCluster);
    }
    loop {
        match watch.next().await {
            Ok(cluster) if cluster.node(active.node.id).is_some() => return Ok(cluster),
            Ok(cluster) => say(Waits::ToBeNamed { cluster: cluster.name }),
            Err(ReadError::Coordination(error)) => return Err(failed(error)),
            // Somebody has to mend it; the next one is read.
            Err(error) => {
                say(Waits::ForService { reason: error.to_string() });
            }
        }
    }
}
