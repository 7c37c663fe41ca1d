//! What goes on beside requests.

use std::sync::{Arc, OnceLock};

use client::coordinator::Repairs;
use client::peers::Peers;
use runtime::{Disk, Ports};
use wire::messages::Peer;

use super::{BACKOFF_MAX, NodeConfig, pushing};
use crate::antientropy::{self, AntiEntropy};
use crate::artifacts::Artifacts;
use crate::chores::Board;
use crate::collection::Collection;
use crate::events::Events;
use crate::gossip::Gossip;
use crate::handoff::Handoffs;
use crate::metrics::Metrics;
use crate::pulse::Pulse;
use crate::rebalance::{Rebalance, RebalanceParts, Refill};
use crate::replica::Replica;

/// The node's work in the background.
pub(super) struct Chores {
    /// The state of each chore.
    pub(super) board: Arc<Board>,
    /// Comparing and scrubbing.
    pub(super) antientropy: Arc<AntiEntropy>,
    /// Bringing partitions in, and giving them back.
    pub(super) rebalance: Arc<Rebalance>,
    pub(super) artifacts: Arc<Artifacts>,
    /// Read repairs of all workers.
    pub(super) repairs: Arc<Repairs>,
    /// Set once, when the node starts.
    pub(super) handoffs: OnceLock<Arc<Handoffs>>,
    /// Set once, when the node starts.
    pub(super) collection: OnceLock<Arc<Collection>>,
}

impl Chores {
    /// Begins what needs no node.
    pub(super) async fn start(
        config: &NodeConfig,
        (ports, disk): (&Ports, &Arc<dyn Disk>),
        (replica, refill, incarnation): (&Arc<Replica>, Refill, u64),
        gossip: &Arc<Gossip>,
        (pulse, events, metrics): (Arc<Pulse>, Arc<Events>, Arc<Metrics>),
    ) -> Chores {
        let (me, cluster) =
            (Peer::Node { id: config.member.id, incarnation }, Some(config.member.cluster.clone()));
        let peers = Peers::witnessed(ports.clone(), me, cluster, gossip.clone(), BACKOFF_MAX);
        peers.learn(replica.view().get().cluster());
        let board = Board::new(ports.clock.clone(), events.clone(), &metrics);
        let antientropy = AntiEntropy::start(antientropy::RepairParts {
            options: config.repair.antientropy,
            ports: ports.clone(),
            disk: disk.clone(),
            replica: replica.clone(),
            peers,
            pulse: pulse.clone(),
            standings: gossip.clone(),
            events: events.clone(),
            metrics: metrics.clone(),
            board: board.clone(),
            incarnation,
        });
        let rebalance = Rebalance::start(RebalanceParts {
            antientropy: antientropy.clone(),
            disk: disk.clone(),
            events: events.clone(),
            metrics: &metrics,
            board: &board,
            refill,
            incarnation,
        });
        let counted = (pulse, events, metrics, board.clone());
        let artifacts = pushing::start(config, (ports, disk), replica.view(), &antientropy, counted).await;
        Chores {
            board,
            antientropy,
            rebalance,
            artifacts,
            repairs: Arc::default(),
            handoffs: OnceLock::new(),
            collection: OnceLock::new(),
        }
    }
}
