//! How fast this node gives pages to nodes that bring partitions in, over all of them.
//!
//! Who brings in looks after its own requests, and cannot see how busy this node is: so this one answers later.
//!
//! Must never: let a peer wait for longer than [`WAIT_MAX`], which would pass for silence.

use std::sync::Arc;
use std::time::Duration;

use model::Moment;
use parking_lot::Mutex;
use protocol::pace::{Pace, PaceLimits, RECORD_BYTES};
use runtime::Clock;
use wire::messages::RecordsPaged;

use crate::pulse::Pulse;

/// How often it is looked whether requests are late, while pages are given or brought in.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_millis(10);
/// What is given or brought in, its records counted like bytes, before it is looked again. Less is felt by none, and each
/// look is a wait for every worker of a node.
pub(super) const LOOKED_BYTES: u64 = 256 << 10;
/// Longest time by which an answer comes later: well below anybody's patience.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// The budget of what is given.
pub(super) struct Giving {
    clock: Arc<dyn Clock>,
    pulse: Arc<Pulse>,
    /// And when it was looked last whether requests are late, and what was given since then.
    pace: Mutex<(Pace, Moment, u64)>,
}

impl Giving {
    pub(super) fn new(clock: Arc<dyn Clock>, pulse: Arc<Pulse>, limits: PaceLimits) -> Arc<Giving> {
        Arc::new(Giving { clock, pulse, pace: Mutex::new((Pace::new(limits), Moment::default(), 0)) })
    }

    /// Waits until this page may be given.
    pub(super) async fn await_turn(&self, page: &RecordsPaged) {
        let records = page.records.iter();
        let bytes = records.map(|(key, set)| (key.len() + wire::versions::record_bytes(None, set)) as u64);
        let cost = bytes.map(|bytes| bytes + RECORD_BYTES).sum();
        let now = self.clock.now();
        if self.is_time_to_look(now, cost) {
            let times = self.pulse.times().await;
            self.pace.lock().0.observe(self.clock.now(), times);
        }
        let until = self.pace.lock().0.rest(now, cost);
        if until > now {
            self.clock.sleep_until(until.min(now.after(WAIT_MAX))).await;
        }
    }

    fn is_time_to_look(&self, now: Moment, cost: u64) -> bool {
        let (pace, looked_at, given) = &mut *self.pace.lock();
        pace.begin(now);
        *given += cost;
        let due = *given >= LOOKED_BYTES && now.since(*looked_at) >= LOOK_INTERVAL;
        if due {
            (*looked_at, *given) = (now, 0);
        }
        due
    }
}
