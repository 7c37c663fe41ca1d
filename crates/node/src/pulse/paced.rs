//! A budget of bytes of this node: a pace, and when it looks whether requests are late.
//!
//! Each look is a wait for every worker of the node. So a budget looks while bytes move, and not with each of them.

use std::sync::Arc;
use std::time::Duration;

use model::Moment;
use protocol::pace::{Pace, PaceLimits};
use runtime::Clock;
use runtime::locks::Mutex;

use super::Pulse;

/// How seldom a budget looks: both must have passed since the last time.
#[derive(Clone, Copy)]
pub(crate) struct Looks {
    pub(crate) interval: Duration,
    /// Bytes that have moved.
    pub(crate) bytes: u64,
}

/// A budget over all that share it.
pub(crate) struct Paced {
    clock: Arc<dyn Clock>,
    pulse: Arc<Pulse>,
    looks: Looks,
    state: Mutex<PacedState>,
}

struct PacedState {
    pace: Pace,
    looked_at: Moment,
    /// Bytes that have moved since then.
    moved: u64,
}

impl Paced {
    pub(crate) fn new(clock: Arc<dyn Clock>, pulse: Arc<Pulse>, limits: PaceLimits, looks: Looks) -> Paced {
        let state = PacedState { pace: Pace::new(limits), looked_at: Moment::default(), moved: 0 };
        Paced { clock, pulse, looks, state: Mutex::new(state) }
    }

    /// This many bytes are about to be moved: looks whether requests are late, if it is time.
    pub(crate) async fn look(&self, bytes: u64) {
        if self.is_time_to_look(bytes) {
            let times = self.pulse.times().await;
            self.observe(times);
        }
    }

    fn is_time_to_look(&self, bytes: u64) -> bool {
        let (now, state) = (self.clock.now(), &mut *self.state.lock());
        state.pace.begin(now);
        state.moved += bytes;
        let due = state.moved >= self.looks.bytes && now.since(state.looked_at) >= self.looks.interval;
        if due {
            (state.looked_at, state.moved) = (now, 0);
        }
        due
    }

    /// Somebody has looked: requests take this many times as long as is ordinary.
    pub(crate) fn observe(&self, times: u32) {
        self.state.lock().pace.observe(self.clock.now(), times);
    }

    /// Its pace as it is now.
    pub(crate) fn pace(&self) -> Pace {
        self.state.lock().pace
    }

    /// Reserves this many bytes and waits until they may be moved; says for how long it waited.
    pub(crate) async fn await_turn(&self, bytes: u64) -> Duration {
        let now = self.clock.now();
        let begin = self.state.lock().pace.reserve(now, bytes);
        if begin > now {
            self.clock.sleep_until(begin).await;
        }
        begin.since(now)
    }

    /// This many bytes are ready: looks whether requests are late, if it is time, and waits until they are
    /// paid for. What the look takes counts for both the rest and `wait_max`, the longest rest.
    pub(crate) async fn await_rest(&self, bytes: u64, wait_max: Duration) {
        let began = self.clock.now();
        self.look(bytes).await;
        let until = self.state.lock().pace.rest(began, bytes).min(began.after(wait_max));
        if until > self.clock.now() {
            self.clock.sleep_until(until).await;
        }
    }
}
