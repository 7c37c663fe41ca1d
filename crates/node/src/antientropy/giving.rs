//! How fast this node gives pages to nodes that bring partitions in, over all of them.
//!
//! Who brings in looks after its own requests, and cannot see how busy this node is: so this one answers later.
//!
//! Must never: let a peer wait for longer than [`WAIT_MAX`], which would pass for silence.

use std::sync::Arc;
use std::time::Duration;

use protocol::pace::{PaceLimits, RECORD_BYTES};
use runtime::Clock;
use wire::messages::RecordsPaged;

use crate::pulse::{Looks, Paced, Pulse};

/// How often it is looked whether requests are late, while pages are given or brought in.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_millis(10);
/// What is given or brought in, its records counted like bytes, before it is looked again. Less is felt by none, and each
/// look is a wait for every worker of a node.
pub(super) const LOOKED_BYTES: u64 = 256 << 10;
/// Longest time by which an answer comes later: well below anybody's patience.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// The budget of what is given.
pub(super) struct Giving(Paced);

impl Giving {
    pub(super) fn new(clock: Arc<dyn Clock>, pulse: Arc<Pulse>, limits: PaceLimits) -> Arc<Giving> {
        let looks = Looks { interval: LOOK_INTERVAL, bytes: LOOKED_BYTES };
        Arc::new(Giving(Paced::new(clock, pulse, limits, looks)))
    }

    /// Waits until this page may be given.
    pub(super) async fn await_turn(&self, page: &RecordsPaged) {
        let records = page.records.iter();
        let bytes = records.map(|(key, set)| (key.len() + wire::versions::record_bytes(None, set)) as u64);
        let cost = bytes.map(|bytes| bytes + RECORD_BYTES).sum();
        self.0.await_rest(cost, WAIT_MAX).await;
    }
}
