//! Asks nodes over the wire, as any client does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use client::artifacts_staged;
use client::peers::Peers;
use futures_util::future::join_all;
use model::{Cluster, NodeId, StoreName};
use protocol::push;
use runtime::{BoxFuture, Clock, NetworkError, Ports};
use serde_json::Value as Json;
use wire::messages::{ArtifactsGet, MovesGet, MovesGot, NodesGet, Peer, Request, Response, StatusGet};

use super::reports::{Report, Reported, Reports, Signs, Silence};
use crate::plans::Size;

/// How long a node may take to answer: the others are not kept waiting for longer.
const PATIENCE: Duration = Duration::from_secs(2);

/// A client that asks nodes.
pub struct Asking {
    peers: Arc<Peers>,
    clock: Arc<dyn Clock>,
}

impl Asking {
    /// With links of its own.
    pub fn new(ports: Ports) -> Asking {
        let clock = ports.clock.clone();
        Asking { peers: Peers::new(ports, Peer::Client { name: "headmaster".to_owned() }, None), clock }
    }

    async fn ask(&self, node: NodeId, request: Request) -> Result<Response, String> {
        let answer = self.peers.call(node, request).within(&self.clock, PATIENCE).await;
        answer.map_err(|error| error.to_string())
    }

    async fn moves_of(&self, node: NodeId) -> Result<Report, String> {
        match self.ask(node, Request::MovesGet(MovesGet {})).await? {
            Response::MovesGot(told) => Ok(report(&told)),
            other => Err(format!("unexpected answer {}", other.name())),
        }
    }

    async fn artifacts_of(&self, node: NodeId) -> Vec<(StoreName, push::Report)> {
        match self.ask(node, Request::ArtifactsGet(ArtifactsGet {})).await {
            Ok(Response::ArtifactsDocument(document)) => artifacts_staged(node, &document.json),
            _ => Vec::new(),
        }
    }

    async fn size_of(&self, node: NodeId) -> Option<Size> {
        let Ok(Response::StatusDocument(document)) = self.ask(node, Request::StatusGet(StatusGet {})).await
        else {
            return None;
        };
        let status: Json = serde_json::from_slice(&document.json).ok()?;
        let sum = |field: &str| {
            let stores = status["stores"].as_array()?.iter();
            Some(stores.filter_map(|store| store[field].as_u64()).sum())
        };
        Some(Size { records: sum("records")?, bytes: sum("live_bytes")? })
    }

    /// Whether a process listens at an address. One that is stopped is connected to, and does not greet.
    async fn listens(&self, address: &str) -> bool {
        match self.peers.ports().network.connect(address).await {
            Ok(link) => {
                link.sender.close();
                true
            }
            Err(error) => !matches!(error, NetworkError::Refused { .. } | NetworkError::Unreachable { .. }),
        }
    }

    /// For how long `witness` has heard nothing of a node.
    async fn silence(&self, witness: NodeId, node: NodeId) -> Result<Silence, String> {
        let Response::NodesDocument(document) = self.ask(witness, Request::NodesGet(NodesGet {})).await?
        else {
            return Err("unexpected answer".to_owned());
        };
        let view: Json = serde_json::from_slice(&document.json).map_err(|error| error.to_string())?;
        let mut seen = view["nodes"].as_array().into_iter().flatten();
        let seen = seen.find(|seen| seen["node"].as_u64() == Some(u64::from(node.0)));
        let seen = seen.ok_or_else(|| format!("it does not know {node}"))?;
        let lasts = match (seen["state"].as_str(), seen["heard_ms_ago"].as_u64()) {
            (Some("down" | "left"), Some(millis)) => Duration::from_millis(millis),
            _ => Duration::ZERO,
        };
        Ok(Silence { lasts, heard_before: seen["heard"].as_bool().unwrap_or(false) })
    }
}

fn report(told: &MovesGot) -> Report {
    let copied = told
        .entered
        .iter()
        .map(|entered| (entered.partition, Size { records: entered.records, bytes: entered.bytes }));
    Report {
        facts: told.facts(),
        copied: copied.collect(),
        leftovers: told.leftovers.iter().map(|leftover| leftover.records.max(1)).sum(),
        hints: told.hints,
    }
}

impl Reports for Asking {
    fn moves<'a>(&'a self, cluster: &'a Cluster, nodes: &'a [NodeId]) -> BoxFuture<'a, Reported> {
        self.peers.learn(cluster);
        let asks = nodes.iter().map(move |&node| async move { (node, self.moves_of(node).await) });
        Box::pin(join_all(asks))
    }

    fn sizes<'a>(
        &'a self,
        cluster: &'a Cluster,
        nodes: &'a [NodeId],
    ) -> BoxFuture<'a, BTreeMap<NodeId, Size>> {
        self.peers.learn(cluster);
        let asks = nodes.iter().map(move |&node| async move { Some((node, self.size_of(node).await?)) });
        Box::pin(async move { join_all(asks).await.into_iter().flatten().collect() })
    }

    fn artifacts<'a>(
        &'a self,
        cluster: &'a Cluster,
    ) -> BoxFuture<'a, BTreeMap<StoreName, Vec<push::Report>>> {
        self.peers.learn(cluster);
        let asks = cluster.nodes.iter().map(|node| self.artifacts_of(node.id));
        Box::pin(async move {
            let mut reports: BTreeMap<_, Vec<_>> = BTreeMap::new();
            for (store, report) in join_all(asks).await.into_iter().flatten() {
                reports.entry(store).or_default().push(report);
            }
            reports
        })
    }

    fn signs<'a>(
        &'a self,
        cluster: &'a Cluster,
        node: NodeId,
        witnesses: &'a [NodeId],
    ) -> BoxFuture<'a, Signs> {
        self.peers.learn(cluster);
        Box::pin(async move {
            let listens = match cluster.node(node) {
                Some(entry) => self.listens(&entry.native).await,
                None => false,
            };
            let asked =
                witnesses.iter().filter(|&&witness| witness != node && cluster.node(witness).is_some());
            let asks = asked.map(|&witness| async move { (witness, self.silence(witness, node).await) });
            Signs { listens, silent_for: join_all(asks).await }
        })
    }
}
