//! A cluster of processes with one store, a client of it, and what the nodes say they did.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use client::report::Parts;
use client::{Client, ClientError, ClientOptions, StoreHandle};
use futures_util::future::join_all;
use model::{Cluster, NodeId};
use runtime::Ports;
use tokio::runtime::Runtime;
use wire::messages::RequestOptions;

use crate::processes::threads_ran;

use super::super::balance::cluster::{Capped, Shape};
use super::super::balance::interrupt::Interrupt;
use super::super::script::system;
use super::super::{ScenarioError, TontineArgs};
use super::{Line, QuorumNumbers};

/// The store of every line.
const STORE: &str = "feeds";
/// Partitions of a ring.
const PARTITIONS: usize = 256;
/// Longer than any queue that an experiment makes.
const DEADLINE: Duration = Duration::from_secs(60);
/// Keys of a message that loads.
const LOADED_AT_ONCE: u64 = 1_000;
/// Bytes of a message that loads.
const LOADED_BYTES: u64 = 1 << 20;
/// Messages under way while records are loaded.
const LOADS_UNDER_WAY: u64 = 8;

/// The cluster, its store, and a client. Dropped, its processes end.
pub(super) struct Site {
    /// The runtime in which the client lives: one thread, as one client has it.
    pub(super) runtime: Runtime,
    client: Client,
    /// The store.
    pub(super) store: StoreHandle,
    /// Last, so that the client goes first.
    capped: Capped,
    pids: Vec<u32>,
    /// Messages that nodes have in a second when no client asks.
    idle_per_second: f64,
}

/// How long it is watched what nodes say to each other.
const IDLE_WATCHED: Duration = Duration::from_secs(1);

/// What all nodes have done so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Done {
    /// Operations of each node as a replica.
    pub(super) operations: BTreeMap<NodeId, u64>,
    /// Writes that each stamped.
    pub(super) stamped: BTreeMap<NodeId, u64>,
}

impl Site {
    /// Starts nodes, and makes the store of a line.
    ///
    /// # Errors
    /// When they cannot be started.
    pub(super) fn start(
        tontine: &TontineArgs,
        interrupt: &Interrupt,
        (nodes, numbers): (usize, QuorumNumbers),
        line: Line,
    ) -> Result<Site, ScenarioError> {
        let shape =
            Shape { nodes, partitions: PARTITIONS, consistency: numbers.consistency, headmaster: true };
        let capped = Capped::start(tontine, shape, interrupt)?;
        let pids = capped.pids()?;
        // Nothing moves while it is measured.
        capped.operator.run(&["balance", "off"])?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(system)?;
        match line.theta {
            None => capped.operator.run(&["store", "create", STORE])?,
            Some(theta) => {
                let (theta, key) = (format!("--theta={theta}"), "--key=feed:{group}:{sequence}");
                capped.operator.run(&["store", "create", STORE, "--placement=windows", &theta, key])?
            }
        };
        let options = ClientOptions {
            name: "tontine-bench".to_owned(),
            deadline: DEADLINE,
            ..ClientOptions::default()
        };
        let (ports, addresses) = (Ports::os().map_err(system)?, &capped.addresses);
        let client = runtime.block_on(Client::connect(addresses, ports, options)).map_err(not_asked)?;
        let store = client.store(STORE).map_err(not_asked)?;
        let mut site = Site { runtime, client, store, capped, pids, idle_per_second: 0.0 };
        site.idle_per_second = site.runtime.block_on(async {
            let before = site.messages().await;
            tokio::time::sleep(IDLE_WATCHED).await;
            // The last question is one itself.
            let grew = site.messages().await - before - site.pids.len() as f64;
            grew.max(0.0) / IDLE_WATCHED.as_secs_f64()
        });
        Ok(site)
    }

    /// Bounds each node to this many processors; not at all with 0.
    ///
    /// # Errors
    /// When the system refuses it.
    pub(super) fn bound(&self, cap: f64) -> Result<(), ScenarioError> {
        if cap <= 0.0 { Ok(()) } else { self.capped.bound(&vec![cap; self.pids.len()]) }
    }

    /// The cluster's document.
    pub(super) fn cluster(&self) -> std::sync::Arc<Cluster> {
        self.client.cluster()
    }

    /// Writes entries 0 to `count` of a group.
    ///
    /// # Errors
    /// When one cannot be written.
    pub(super) fn load(&self, group: &str, count: u64, value: &Bytes) -> Result<(), ScenarioError> {
        let each = (LOADED_BYTES / value.len().max(1) as u64).clamp(1, LOADED_AT_ONCE);
        let batches = count.div_ceil(each);
        self.runtime.block_on(async {
            for first in (0..batches).step_by(LOADS_UNDER_WAY as usize) {
                let under_way = (first..batches.min(first + LOADS_UNDER_WAY)).map(|batch| {
                    let numbers = batch * each..count.min((batch + 1) * each);
                    let entries: Vec<(Bytes, Bytes)> =
                        numbers.map(|number| (key(group, number), value.clone())).collect();
                    async move {
                        let written = self.store.multi_put(entries, &RequestOptions::default()).await;
                        written.and_then(|each| each.into_iter().collect::<Result<Vec<_>, _>>())
                    }
                });
                for written in join_all(under_way).await {
                    written.map_err(not_asked)?;
                }
            }
            Ok(())
        })
    }

    /// Processor time of all nodes so far.
    pub(super) fn ran(&self) -> Duration {
        self.pids.iter().filter_map(|pid| threads_ran(*pid)).sum()
    }

    /// Requests of clients and nodes that all nodes have had so far.
    pub(super) async fn messages(&self) -> f64 {
        let cluster = self.client.cluster();
        let asked = cluster.nodes.iter().map(|node| self.client.metrics(node.id));
        let told = join_all(asked).await.into_iter().flatten();
        told.map(|text| requests_of(&String::from_utf8_lossy(&text))).sum()
    }

    /// Messages of so many seconds that are no requests of the load: what nodes say to each other, and what all of them are
    /// asked this many times.
    pub(super) fn own_messages(&self, questions: usize, seconds: f64) -> f64 {
        self.idle_per_second * seconds + (questions * self.pids.len()) as f64
    }

    /// What all nodes have done so far; a node that does not answer in time is left out.
    pub(super) async fn done(&self) -> Done {
        let cluster = self.client.cluster();
        let asked = cluster.nodes.iter().map(|node| self.client.report(node.id, Parts::LOAD));
        let mut done = Done::default();
        for report in join_all(asked).await.into_iter().flatten() {
            let Some(load) = &report.load else { continue };
            done.operations.insert(report.node, load.work().operations());
            done.stamped.insert(report.node, load.work().stamped);
        }
        done
    }

    /// Nodes that a read of these keys asks, by the ring: the first R places of each.
    pub(super) fn nodes_asked(&self, keys: &[Bytes]) -> usize {
        let cluster = self.client.cluster();
        let Some(store) = cluster.store(STORE) else { return 0 };
        let first = usize::from(store.consistency.reads_required);
        let asked = keys.iter().flat_map(|key| {
            let list = cluster.route(store, store.token(key)).1;
            list.replicas().iter().take(first).copied().collect::<Vec<_>>()
        });
        asked.collect::<std::collections::BTreeSet<_>>().len()
    }
}

/// The key of an entry.
pub(super) fn key(group: &str, number: u64) -> Bytes {
    format!("feed:{group}:{number}").into()
}

/// Why the cluster could not be asked.
pub(super) fn not_asked(error: ClientError) -> ScenarioError {
    ScenarioError::NotAsked(error.to_string())
}

/// The counter of requests in a node's numbers.
fn requests_of(text: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix("tontine_node_requests_total "));
    line.and_then(|number| number.trim().parse().ok()).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_requests_of_a_node_are_read_from_its_numbers() {
        let text = "# TYPE tontine_node_requests_total counter\ntontine_node_requests_total 417\nother 1\n";
        assert_eq!(requests_of(text), 417.0);
        assert_eq!(requests_of(""), 0.0);
    }

    #[test]
    fn keys_are_what_the_stores_pattern_says() {
        assert_eq!(key("a", 7), "feed:a:7");
    }
}
