//! Changes of the cluster document that an operator asks of a node.
//!
//! Any node may be asked: it publishes the new document under compare-and-set, and answers with it. It takes the
//! document in as all others do: one document after another, since two that open one store at once exclude each other.
//! That is soon after the answer.

use std::sync::{Arc, Weak};
use std::time::Duration;

use coordination::CoordinationError;
use coordination::documents::{self, NoStoreError, PublishError, ReadError};
use model::{Cluster, Store};
use runtime::Clock;
use wire::error::ErrorCode;
use wire::messages::{ClusterDocument, Failure, Response, StoreCreate};

use super::Node;

/// How often the service is asked, and how long after each time, before it passes for restored from an older copy.
pub(super) const OLDER_ASKED: usize = 5;
pub(super) const OLDER_PAUSE: Duration = Duration::from_millis(500);

/// What the node goes by, and its clock.
pub(super) fn known(node: &Node) -> (Arc<Cluster>, Arc<dyn Clock>) {
    (node.replica.view().get().cluster().clone(), node.ports.clock.clone())
}

/// Creates a store for an operator.
pub(super) async fn create_store(node: Weak<Node>, order: StoreCreate) -> Result<Response, Failure> {
    let store: Store = serde_json::from_slice(&order.json).map_err(|error| {
        Failure::new(ErrorCode::StoreRefused, format!("its definition cannot be read: {error}"))
    })?;
    let ended = || Failure::new(ErrorCode::ShuttingDown, "the node is stopping");
    let session = node.upgrade().ok_or_else(ended)?.coordination.lock().clone();
    let mut asked = 1;
    let cluster = loop {
        let (known, clock) = known(&*node.upgrade().ok_or_else(ended)?);
        match documents::create_store(&*session, &store, Some(&known)).await {
            // Mostly one of its servers lags behind.
            Err(NoStoreError::Publish(PublishError::Older { .. })) if asked < OLDER_ASKED => {
                asked += 1;
                clock.sleep(OLDER_PAUSE).await;
            }
            created => break created.map_err(|error| refusal(&error))?,
        }
    };
    let node = node.upgrade().ok_or_else(ended)?;
    tracing::info!(store = %store.name, generation = cluster.generation.0, "store created");
    let json = serde_json::to_vec(&cluster).expect("a cluster is plain data").into();
    node.offer(cluster);
    Ok(Response::ClusterDocument(ClusterDocument { json }))
}

fn refusal(error: &NoStoreError) -> Failure {
    let code = match error {
        NoStoreError::Refused(_) => ErrorCode::StoreRefused,
        NoStoreError::Publish(PublishError::Read(ReadError::Coordination(
            CoordinationError::Indeterminate { .. },
        ))) => ErrorCode::CoordinationUnconfirmed,
        _ => ErrorCode::CoordinationUnavailable,
    };
    Failure::new(code, error.to_string())
}
