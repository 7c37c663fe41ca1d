//! A node's part in artifacts of read-only stores: it looks after its own, and tells what it has of them.
//!
//! Which artifacts are listed and served is the headmaster's to say, by an order.

use std::sync::{Arc, Weak};

use runtime::{Disk, Ports};
use wire::error::ErrorCode;
use wire::messages::{Failure, Request, Response};

use super::{Node, NodeConfig};
use crate::antientropy::AntiEntropy;
use crate::artifacts::{Artifacts, ArtifactsParts, ScrubOptions};
use crate::chores::Board;
use crate::events::Events;
use crate::metrics::Metrics;
use crate::pulse::Pulse;
use crate::view::CurrentView;

/// Looks after a node's artifacts from then on.
pub(super) async fn start(
    config: &NodeConfig,
    (ports, disk): (&Ports, &Arc<dyn Disk>),
    view: &Arc<CurrentView>,
    antientropy: &AntiEntropy,
    (pulse, events, metrics, board): (Arc<Pulse>, Arc<Events>, Arc<Metrics>, Arc<Board>),
) -> Arc<Artifacts> {
    let parts = ArtifactsParts {
        node: config.member.id,
        view: view.clone(),
        ports: ports.clone(),
        disk: disk.clone(),
        sources: config.artifacts.sources.clone(),
        peers: antientropy.peers().clone(),
        pulse,
        events,
        metrics,
        board,
        fetch_ceiling: config.artifacts.fetch_ceiling,
        bytes_max: config.artifacts.bytes_max,
        scrub: ScrubOptions::new(&config.repair.antientropy, antientropy.scrub_orders().clone()),
    };
    Artifacts::start(parts).await
}

/// Answers what is asked about artifacts.
pub(super) async fn answer(node: Weak<Node>, request: Request) -> Result<Response, Failure> {
    let ended = || Failure::new(ErrorCode::ShuttingDown, "the node is stopping");
    let artifacts = node.upgrade().ok_or_else(ended)?.chores.artifacts.clone();
    match request {
        Request::ArtifactRead(read) => artifacts.give(read).await,
        other => {
            let detail = format!("{} is not about artifacts", other.name());
            Err(Failure::new(ErrorCode::UnknownRequest, detail))
        }
    }
}
