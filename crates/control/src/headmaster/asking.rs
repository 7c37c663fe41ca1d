//! Asks nodes over the wire, as any client does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use client::peers::Peers;
use futures_util::future::join_all;
use model::plan::Size;
use model::{Cluster, NodeId};
use protocol::gossip::NodeLiveness;
use protocol::headmaster::{Ask, Said, Silence};
use protocol::report::{NodeSeen, Parts, Report};
use runtime::{BoxFuture, Clock, NetworkError, Ports};
use wire::messages::{Peer, ReportGet, Response};

use super::reports::{Reported, Reports};

/// How long a node may take to answer: the others are not kept waiting for longer.
const PATIENCE: Duration = Duration::from_secs(2);

/// A client that asks nodes.
pub struct Asking {
    peers: Arc<Peers>,
    clock: Arc<dyn Clock>,
}

impl Asking {
    /// With its own links.
    pub fn new(ports: Ports) -> Asking {
        let clock = ports.clock.clone();
        Asking { peers: Peers::new(ports, Peer::Client { name: "headmaster".to_owned() }, None), clock }
    }

    async fn said_by(&self, node: NodeId, ask: &Ask) -> Result<Said, String> {
        let asked = self.peers.call(node, ReportGet { parts: parts(ask) }.into());
        match asked.within(&self.clock, PATIENCE).await.map_err(|error| error.to_string())? {
            Response::ReportGot(got) => said(&got.report().map_err(|error| error.to_string())?, ask),
            other => Err(format!("unexpected answer {}", other.name())),
        }
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
}

/// The parts of a report that answer.
fn parts(ask: &Ask) -> Parts {
    let wanted = [
        (ask.sizes, Parts::STATUS),
        (ask.artifacts, Parts::ARTIFACTS),
        (ask.signs_of.is_some(), Parts::NODES),
        (ask.loads, Parts::LOAD),
    ];
    let wanted = wanted.into_iter().filter(|(is_wanted, _)| *is_wanted);
    wanted.fold(Parts::MOVES, |parts, (_, part)| parts | part)
}

fn said(told: &Report, ask: &Ask) -> Result<Said, String> {
    let (Some(moves), Some(facts)) = (&told.moves, told.facts()) else {
        return Err("it does not say how far it is with moves".to_owned());
    };
    let copied = moves.entered.iter();
    let copied =
        copied.map(|entered| (entered.partition, Size { records: entered.records, bytes: entered.bytes }));
    let status = told.status.as_ref();
    let heard_of = told.nodes.iter().flatten().filter(|_| ask.signs_of.is_some());
    let silent_for = heard_of.map(|seen| (seen.node, silence(seen)));
    Ok(Said {
        facts,
        copied: copied.collect(),
        leftovers: moves.leftovers.iter().map(|leftover| leftover.records.max(1)).sum(),
        hints: moves.hints,
        size: status.map(|status| Size { records: status.records(), bytes: status.live_bytes() }),
        artifacts: told.staged(),
        silent_for: silent_for.collect(),
        incarnation: told.incarnation,
        load: told.load.clone(),
    })
}

/// For how long a node has heard nothing of another one.
fn silence(seen: &NodeSeen) -> Silence {
    let lasts = match seen.state {
        NodeLiveness::Down | NodeLiveness::Left => Duration::from_millis(seen.heard_ms_ago),
        NodeLiveness::Alive | NodeLiveness::Suspected => Duration::ZERO,
    };
    Silence { lasts, heard_before: seen.heard }
}

impl Reports for Asking {
    fn ask<'a>(&'a self, cluster: &'a Cluster, ask: &'a Ask) -> BoxFuture<'a, Reported> {
        self.peers.learn(cluster);
        let asks = ask.nodes.iter().map(move |&node| async move { (node, self.said_by(node, ask).await) });
        Box::pin(async move {
            let listens = match ask.signs_of.and_then(|node| cluster.node(node)) {
                Some(entry) => self.listens(&entry.native).await,
                None => false,
            };
            let said: BTreeMap<_, _> = join_all(asks).await.into_iter().collect();
            Reported { said, listens }
        })
    }
}
