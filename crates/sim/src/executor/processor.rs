//! Played processors: what the workers of a node would have run for the requests that it served.
//!
//! In simulation computing takes no time. So each operation that a node counted costs it some, more on one machine than
//! on another, and more while a neighbour runs there. A node that is asked for more than its machine has runs all the
//! time, and no longer.
//!
//! Must never: change what a request does, or when.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use model::Moment;
use node::Node;
use parking_lot::Mutex;
use protocol::rebalance::balancer::Weights;
use runtime::ProcessorTime;

use super::Executor;

/// What the processors of a machine bear.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Power {
    /// How many there are.
    pub processors: f64,
    /// Microseconds that a microsecond of weighted work takes.
    pub cost: f64,
}

/// The processors of one machine.
pub struct Processor {
    executor: Arc<Executor>,
    power: Power,
    /// How much dearer all of it is now, in permille.
    neighbours: AtomicU64,
    used: Mutex<Used>,
}

/// What the present process had of them.
#[derive(Default)]
struct Used {
    node: Weak<Node>,
    /// Weighted work that it has been charged for, in microseconds.
    weighed: f64,
    ran: Duration,
    at: Moment,
}

impl Processor {
    /// Of a machine that no neighbour uses yet.
    pub fn new(executor: Arc<Executor>, power: Power) -> Processor {
        Processor { executor, power, neighbours: AtomicU64::new(1000), used: Mutex::default() }
    }

    /// A process begins, and its node counts from nothing.
    pub fn serves(&self, node: &Arc<Node>) {
        let at = self.executor.now();
        *self.used.lock() = Used { node: Arc::downgrade(node), at, ..Used::default() };
    }

    /// Work costs so much from now on, compared with a machine of one's own, in permille.
    pub fn shared(&self, permille: u64) {
        self.time();
        self.neighbours.store(permille.max(1000), Ordering::Relaxed);
    }

    /// How many there are.
    pub fn processors(&self) -> f64 {
        self.power.processors
    }

    /// What the present process had of them so far.
    pub fn time(&self) -> ProcessorTime {
        let mut used = self.used.lock();
        if let Some(node) = used.node.upgrade() {
            let weighed = Weights::MEASURED.of(node.replica().work().total());
            let dearer = self.neighbours.load(Ordering::Relaxed) as f64 / 1000.0;
            let asked = (weighed - used.weighed) * self.power.cost * dearer;
            let now = self.executor.now();
            let most = now.since(used.at).as_secs_f64() * 1e6 * self.power.processors;
            used.ran += Duration::from_micros(asked.min(most) as u64);
            (used.weighed, used.at) = (weighed, now);
        }
        ProcessorTime { ran: used.ran, waited: Duration::ZERO }
    }
}
