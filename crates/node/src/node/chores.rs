//! Repair and rebalancing, which go on beside requests, as a node starts them.

use std::sync::Arc;

use client::peers::Peers;
use runtime::{Disk, Ports};
use wire::messages::Peer;

use super::{BACKOFF_MAX, NodeConfig};
use crate::antientropy::{self, AntiEntropy};
use crate::events::Events;
use crate::gossip::Gossip;
use crate::metrics::Metrics;
use crate::pulse::Pulse;
use crate::rebalance::{Rebalance, RebalanceParts, Refill};
use crate::replica::Replica;

/// Compares replicas, and brings partitions in and gives them back by sessions of the same kind, over links of their own.
pub(super) fn start_repair(
    config: &NodeConfig,
    (ports, disk): (&Ports, &Arc<dyn Disk>),
    (replica, refill, incarnation): (&Arc<Replica>, Refill, u64),
    gossip: &Arc<Gossip>,
    (pulse, events, metrics): (Arc<Pulse>, Arc<Events>, Arc<Metrics>),
) -> (Arc<AntiEntropy>, Arc<Rebalance>) {
    let (me, cluster) = (Peer::Node { id: config.id, incarnation }, Some(config.cluster.clone()));
    let peers = Peers::witnessed(ports.clone(), me, cluster, gossip.clone(), BACKOFF_MAX);
    peers.learn(replica.view().get().cluster());
    let antientropy = AntiEntropy::start(antientropy::Parts {
        options: config.antientropy,
        ports: ports.clone(),
        disk: disk.clone(),
        replica: replica.clone(),
        peers,
        pulse,
        standings: gossip.clone(),
        events: events.clone(),
        metrics: metrics.clone(),
        incarnation,
    });
    let rebalance = Rebalance::start(RebalanceParts {
        antientropy: antientropy.clone(),
        disk: disk.clone(),
        events,
        metrics: &metrics,
        refill,
        incarnation,
    });
    (antientropy, rebalance)
}
