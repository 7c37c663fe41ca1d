//! Whether a node can answer for its partitions.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use wire::error::ErrorCode;
use wire::messages::Failure;

use super::Node;
use crate::doors::http::Ready;

impl Node {
    /// What the HTTP door asks. A node that stops, or fetches what it has lost, is alive and not ready; one that brings in
    /// partitions for a move is, because the others answer for these until it has them.
    pub(super) fn ready(self: &Arc<Self>) -> Ready {
        let weak = Arc::downgrade(self);
        Arc::new(move || match weak.upgrade() {
            Some(node) if !node.liveness.stopping.load(Ordering::Relaxed) => node.check_whole(),
            _ => Err(Failure::new(ErrorCode::ShuttingDown, "the node is stopping")),
        })
    }

    fn check_whole(&self) -> Result<(), Failure> {
        if let (_, Some(reason)) = self.room() {
            let detail = format!("the node's storage has stopped: {reason}");
            return Err(Failure::new(ErrorCode::StorageFailed, detail));
        }
        match self.chores.rebalance.lost() {
            (0, _) => Ok(()),
            (incomplete, all) => {
                let detail = format!(
                    "{incomplete} of {all} partitions that were lost here are not fetched from other replicas yet"
                );
                Err(Failure::new(ErrorCode::Refilling, detail))
            }
        }
    }
}
