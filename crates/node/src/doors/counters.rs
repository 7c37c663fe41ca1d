//! How long a door of one worker takes to answer, by operation, for whoever scrapes the node.
//!
//! ```text
//!   arrives ─▶ Burst::began ─┬─ answered at once ─▶ Burst::answered ─┐
//!                            ├─ answered at once ─▶ Burst::answered ─┴─▶ Burst::settle: one look at the clock
//!                            └─ waits for others ─▶ DoorCounters::took: one look at the clock each
//! ```
//!
//! Asking the clock took 2% of a pipelined SET, so what is answered together is timed together: each of these requests
//! counts with the time from the first one's arrival until all of them were answered, which is when their answers leave.
//!
//! Must never: ask the clock once for each request that is answered at once.

use std::sync::Arc;

use model::Moment;
use runtime::Clock;
use wire::error::ErrorCode;
use wire::messages::Request;

use super::refusals::Refusals;
use crate::audit::DoorAudit;
use crate::metrics::{Histogram, Metrics};

/// Requests that are timed together at most, on a link that always has another one.
const TOGETHER_MAX: u32 = 64;

macro_rules! operations {
    ($($variant:ident $name:literal,)*) => {
        /// What a request does, as far as latencies tell it apart.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Operation { $(
            #[doc = $name]
            $variant,
        )* }

        impl Operation {
            const ALL: &'static [Operation] = &[$(Operation::$variant,)*];

            fn name(self) -> &'static str {
                match self { $(Operation::$variant => $name,)* }
            }
        }
    };
}

operations! {
    Get "get",
    Put "put",
    Delete "delete",
    MultiGet "multi-get",
    MultiPut "multi-put",
    MultiDelete "multi-delete",
    ReplicaGet "replica-get",
    ReplicaMerge "replica-merge",
    Scan "scan",
}

const OPERATIONS: usize = Operation::ALL.len();

impl Operation {
    /// What a request of the native protocol does; `None` for what nobody waits for with a user's request.
    pub(crate) fn of(request: &Request) -> Option<Operation> {
        match request {
            Request::Get(_) => Some(Operation::Get),
            Request::Put(_) => Some(Operation::Put),
            Request::Delete(_) => Some(Operation::Delete),
            Request::MultiGet(_) => Some(Operation::MultiGet),
            Request::MultiPut(_) => Some(Operation::MultiPut),
            Request::MultiDelete(_) => Some(Operation::MultiDelete),
            Request::ReplicaGet(_) => Some(Operation::ReplicaGet),
            Request::ReplicaMerge(_) => Some(Operation::ReplicaMerge),
            Request::Scan(_) | Request::ArtifactScan(_) => Some(Operation::Scan),
            _ => None,
        }
    }
}

/// The latencies of one door of one worker, the node's refusals, and its audit.
pub(crate) struct DoorCounters {
    durations: [Histogram; OPERATIONS],
    refusals: Arc<Refusals>,
    audit: DoorAudit,
    clock: Arc<dyn Clock>,
}

impl DoorCounters {
    /// Nothing has been answered. `door` is what the metrics call it.
    pub(crate) fn new(
        door: &'static str,
        metrics: &Metrics,
        refusals: Arc<Refusals>,
        clock: Arc<dyn Clock>,
    ) -> Arc<DoorCounters> {
        let part = |position: usize| {
            let labels = [("door", door), ("operation", Operation::ALL[position].name())];
            metrics.durations("tontine_node_request_duration_seconds", &labels)
        };
        let audit = refusals.audit().at(door);
        Arc::new(DoorCounters { durations: std::array::from_fn(part), refusals, audit, clock })
    }

    /// A request that arrived at `began` is answered.
    pub(crate) fn took(&self, operation: Operation, began: Moment) {
        self.durations[operation as usize].observe(self.clock.now().since(began));
    }

    /// A request that arrived at `began` was answered by `now`.
    pub(crate) fn took_until(&self, operation: Operation, began: Moment, now: Moment) {
        self.durations[operation as usize].observe(now.since(began));
    }

    /// Where orders are written down, and who was refused.
    pub(crate) fn audit(&self) -> &DoorAudit {
        &self.audit
    }

    /// A request is answered with an error.
    pub(crate) fn refused(&self, code: ErrorCode) {
        self.refusals.count(code);
    }

    /// A Redis client's command was wrong by itself: unknown, with other arguments than it takes, or not allowed.
    pub(crate) fn rejected(&self) {
        self.refusals.count_rejected();
    }
}

/// Requests of one connection that arrived together.
pub(crate) struct Burst {
    counters: Arc<DoorCounters>,
    began: Option<Moment>,
    counts: [u32; OPERATIONS],
    total: u32,
}

impl Burst {
    /// Nothing has arrived.
    pub(crate) fn new(counters: Arc<DoorCounters>) -> Burst {
        Burst { counters, began: None, counts: [0; OPERATIONS], total: 0 }
    }

    /// The numbers that it counts in.
    pub(crate) fn counters(&self) -> &Arc<DoorCounters> {
        &self.counters
    }

    /// When the first of them arrived: now, if none has before.
    pub(crate) fn began(&mut self) -> Moment {
        *self.began.get_or_insert_with(|| self.counters.clock.now())
    }

    /// One of them is answered, and its answer waits to be sent. [`Burst::began`] comes before.
    pub(crate) fn answered(&mut self, operation: Operation) {
        debug_assert!(self.began.is_some(), "what is answered has arrived");
        self.counts[operation as usize] += 1;
        self.total += 1;
        if self.total >= TOGETHER_MAX {
            self.settle();
        }
    }

    /// The answers leave: what comes now is another burst.
    pub(crate) fn settle(&mut self) {
        let Some(began) = self.began.take() else { return };
        if self.total == 0 {
            return;
        }
        let took = self.counters.clock.now().since(began);
        for (count, durations) in self.counts.iter_mut().zip(&self.counters.durations) {
            if *count > 0 {
                durations.observe_many(took, u64::from(std::mem::take(count)));
            }
        }
        self.total = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::Audit;
    use model::NodeId;

    fn burst() -> (Arc<Metrics>, Burst) {
        let metrics = Metrics::new();
        let clock = Arc::new(runtime::clock::os::OsClock::new());
        let refusals = Refusals::new(NodeId(1), &metrics, Audit::new(NodeId(1), clock.clone(), None));
        let counters = DoorCounters::new("redis", &metrics, refusals, clock);
        (metrics, Burst::new(counters))
    }

    #[test]
    fn requests_answered_together_are_counted_singly_and_timed_together() {
        let (metrics, mut burst) = burst();
        let first = burst.began();
        burst.answered(Operation::Get);
        assert_eq!(burst.began(), first, "the first arrival counts");
        burst.answered(Operation::Get);
        burst.answered(Operation::Put);
        let count = |operation: &str| {
            let name = "tontine_node_request_duration_seconds_count";
            let start = format!("{name}{{door=\"redis\",operation=\"{operation}\"}} ");
            metrics.text().lines().find_map(|line| line.strip_prefix(&start)?.parse::<u64>().ok())
        };
        assert_eq!(count("get"), Some(0), "they are not sent yet");
        burst.settle();
        assert_eq!((count("get"), count("put"), count("delete")), (Some(2), Some(1), Some(0)));
        burst.settle();
        assert_eq!(count("get"), Some(2), "nothing came since");
    }

    #[test]
    fn a_link_that_is_never_idle_is_timed_too() {
        let (_, mut burst) = burst();
        for _ in 0..TOGETHER_MAX {
            burst.began();
            burst.answered(Operation::ReplicaGet);
        }
        assert_eq!(burst.counters.durations[Operation::ReplicaGet as usize].count(), u64::from(TOGETHER_MAX));
    }
}
