//! Changes of the cluster document that an operator asks of a node.
//!
//! Any node may be asked: it publishes the new document under compare-and-set, and answers with it. It takes the
//! document in as all others do: one document after another, since two that open one store at once exclude each other.
//! That is soon after the answer.

use std::sync::Weak;

use coordination::CoordinationError;
use coordination::documents::{self, NoStoreError, PublishError, ReadError};
use model::Store;
use wire::error::ErrorCode;
use wire::messages::{ClusterDocument, Failure, Response, StoreCreate};

use super::Node;

/// Creates a store for an operator.
pub(super) async fn create_store(node: Weak<Node>, order: StoreCreate) -> Result<Response, Failure> {
    let store: Store = serde_json::from_slice(&order.json).map_err(|error| {
        Failure::new(ErrorCode::StoreRefused, format!("its definition cannot be read: {error}"))
    })?;
    let ended = || Failure::new(ErrorCode::ShuttingDown, "the node is stopping");
    let session = node.upgrade().ok_or_else(ended)?.coordination.lock().clone();
    let cluster = documents::create_store(&*session, &store).await.map_err(|error| refusal(&error))?;
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
