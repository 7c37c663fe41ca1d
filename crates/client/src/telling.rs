//! What nodes tell about themselves and each other: beliefs, events, numbers.

use std::time::Duration;

use bytes::Bytes;
use model::{ArtifactNumber, Generation, ManifestDigest, NodeId, StoreName};
use protocol::push::Report;
use serde_json::Value as Json;
use wire::messages::{EventsGet, MetricsGet, NodesGet, Request, Response};

use crate::connect::Client;
use crate::error::ClientError;

/// How much longer than the node is told to wait for an event its answer may take.
const EVENTS_GRACE: Duration = Duration::from_secs(5);

impl Client {
    /// What a node believes about all nodes, as JSON.
    pub async fn nodes_seen_by(&self, node: NodeId) -> Result<Bytes, ClientError> {
        match self.inner.call(node, Request::NodesGet(NodesGet {})).await? {
            Response::NodesDocument(document) => Ok(document.json),
            other => Err(unexpected(&other)),
        }
    }

    /// A node's numbers as Prometheus text.
    pub async fn metrics(&self, node: NodeId) -> Result<Bytes, ClientError> {
        match self.inner.call(node, Request::MetricsGet(MetricsGet {})).await? {
            Response::MetricsText(metrics) => Ok(metrics.text),
            other => Err(unexpected(&other)),
        }
    }

    /// A page of a node's events as JSON. With `wait_ms` the node waits for one when there is none yet.
    pub async fn events(&self, node: NodeId, get: EventsGet) -> Result<Bytes, ClientError> {
        let patience = Duration::from_millis(u64::from(get.wait_ms)) + EVENTS_GRACE;
        let call = self.inner.peers.call(node, Request::EventsGet(get));
        let answer = call.within(&self.inner.ports.clock, patience).await;
        match answer? {
            Response::EventsDocument(document) => Ok(document.json),
            other => Err(unexpected(&other)),
        }
    }
}

/// Which artifacts a node holds all that it needs of, by what it has told of itself as JSON.
pub fn artifacts_staged(node: NodeId, told: &[u8]) -> Vec<(StoreName, Report)> {
    let mut told: Json = serde_json::from_slice(told).unwrap_or_default();
    let report = |told: &mut Json| {
        let staged = told["state"] == "staged";
        let store: StoreName = serde_json::from_value(told["store"].take()).ok()?;
        let number: ArtifactNumber = serde_json::from_value(told["number"].take()).ok()?;
        let manifest: ManifestDigest = serde_json::from_value(told["manifest"].take()).ok()?;
        let generation: Generation = serde_json::from_value(told["whole_under"].take()).ok()?;
        staged.then_some((store, Report { node, generation, number, manifest }))
    };
    let artifacts = told["artifacts"].as_array_mut();
    artifacts.map(|artifacts| artifacts.iter_mut().filter_map(report).collect()).unwrap_or_default()
}

fn unexpected(answer: &Response) -> ClientError {
    ClientError::Indeterminate { detail: format!("unexpected answer {}", answer.name()) }
}
