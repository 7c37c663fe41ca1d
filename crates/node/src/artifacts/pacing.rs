//! How fast this node fetches and gives artifacts, and what it counts of that.
//!
//! A task that moves bytes waits for its turn at a [`Paced`]. While something is fetched, one look whether requests are
//! late counts for fetching and merging; giving looks by itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use model::Moment;
use protocol::pace::PaceLimits;
use runtime::Clock;
use wire::error::ErrorCode;
use wire::messages::Failure;

use super::Artifacts;
use crate::metrics::{Counter, Metrics};
use crate::pulse::{Looks, Paced, Pulse};

/// How often it is looked whether requests are late, while bytes move.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// How much time the rate that is shown is of.
const RATE_TIME: Duration = Duration::from_secs(1);
/// Bytes a second of records that a node merges at most: about what a disk writes.
const MERGE_CEILING: u64 = 256 << 20;
/// A node that would have to wait for longer until it may give is refused: others may have what it wants.
const GIVING_WAIT_MAX: Duration = Duration::from_secs(2);

/// The budgets of a node, over all stores.
pub(super) struct Budgets {
    fetching: Paced,
    /// Of what is made of deltas. Its ceiling is not that of fetching, which a slow network may set.
    merging: Paced,
    /// Of what other nodes are given.
    giving: Paced,
    /// How long fetches had to wait for their turn.
    held_ns: AtomicU64,
    /// Bytes that came within the last second or so.
    rate: AtomicU64,
}

impl Budgets {
    /// Fetching and giving both go below the same ceiling.
    pub(super) fn new(clock: &Arc<dyn Clock>, pulse: &Arc<Pulse>, ceiling: u64) -> Budgets {
        let looks = Looks { interval: LOOK_INTERVAL, bytes: 0 };
        let paced =
            |ceiling| Paced::new(clock.clone(), pulse.clone(), PaceLimits::for_artifacts(ceiling), looks);
        Budgets {
            fetching: paced(ceiling),
            merging: paced(MERGE_CEILING),
            giving: paced(ceiling),
            held_ns: AtomicU64::new(0),
            rate: AtomicU64::new(0),
        }
    }

    /// How long fetches had to wait for their turn.
    pub(super) fn held(&self) -> Duration {
        Duration::from_nanos(self.held_ns.load(Ordering::Relaxed))
    }

    /// Bytes a second that the node may fetch now, and at most.
    pub(super) fn fetching(&self) -> (u64, u64) {
        let pace = self.fetching.pace();
        (pace.rate(), pace.most())
    }

    /// Bytes that came within the last second or so.
    pub(super) fn rate(&self) -> u64 {
        self.rate.load(Ordering::Relaxed)
    }
}

/// What had been fetched at some moment.
pub(super) struct FetchedAt {
    fetched: u64,
    at: Moment,
}

/// What is counted.
pub(super) struct ArtifactCounters {
    /// Bytes that came from sources.
    pub(super) from_source: Counter,
    /// Bytes that came from replicas.
    pub(super) from_replicas: Counter,
    /// Bytes that other nodes were given.
    pub(super) given: Counter,
    /// Bytes of these that are deltas.
    pub(super) as_deltas: Counter,
    /// Bytes of chunks that were made of deltas.
    pub(super) merged: Counter,
    /// Deltas whose chunks were fetched whole instead.
    pub(super) useless_deltas: Counter,
    /// Chunks that a source gave wrong.
    pub(super) corrupt_at_source: Counter,
    /// Chunks that a replica gave wrong.
    pub(super) corrupt_at_replicas: Counter,
    /// Chunks that gets and the scrub have found damaged here.
    pub(super) corrupt_here: Counter,
    /// Bytes that the scrub has read.
    pub(super) scrubbed: Counter,
    /// Files that the scrub found damaged.
    pub(super) scrub_damaged: Counter,
    /// Passes of the scrub over all files.
    pub(super) scrub_passes: Counter,
}

impl ArtifactCounters {
    pub(super) fn new(metrics: &Metrics) -> ArtifactCounters {
        let fetched =
            |origin| metrics.counter("tontine_artifacts_fetched_bytes_total", &[("origin", origin)]);
        let corrupt = |place| metrics.counter("tontine_artifacts_corrupt_chunks_total", &[("place", place)]);
        ArtifactCounters {
            from_source: fetched("source"),
            from_replicas: fetched("replica"),
            given: metrics.counter("tontine_artifacts_given_bytes_total", &[]),
            as_deltas: metrics.counter("tontine_artifacts_delta_bytes_total", &[]),
            merged: metrics.counter("tontine_artifacts_merged_bytes_total", &[]),
            useless_deltas: metrics.counter("tontine_artifacts_unused_deltas_total", &[]),
            corrupt_at_source: corrupt("source"),
            corrupt_at_replicas: corrupt("replica"),
            corrupt_here: corrupt("here"),
            scrubbed: metrics.counter("tontine_artifacts_scrub_bytes_total", &[]),
            scrub_damaged: metrics.counter("tontine_artifacts_scrub_damaged_files_total", &[]),
            scrub_passes: metrics.counter("tontine_artifacts_scrub_passes_total", &[]),
        }
    }

    /// Bytes that came, from wherever.
    pub(super) fn fetched(&self) -> u64 {
        self.from_source.get() + self.from_replicas.get()
    }
}

impl Artifacts {
    /// Shows what is counted here anyway.
    pub(super) fn watch(self: &Arc<Self>, metrics: &Metrics) {
        let watch = |name, read: fn(&Artifacts) -> f64| {
            let weak = Arc::downgrade(self);
            metrics.watch(name, &[], move || weak.upgrade().map_or(0.0, |artifacts| read(&artifacts)));
        };
        watch("tontine_artifacts_held_seconds_total", |artifacts| artifacts.budgets.held().as_secs_f64());
        watch("tontine_artifacts_pace_bytes_per_second", |artifacts| artifacts.budgets.fetching().0 as f64);
        watch("tontine_artifacts_rate_bytes_per_second", |artifacts| artifacts.budgets.rate() as f64);
    }

    /// Waits until this many bytes may be fetched.
    pub(super) async fn await_turn(&self, bytes: u64) {
        let held = self.budgets.fetching.await_turn(bytes).await;
        let held = u64::try_from(held.as_nanos()).unwrap_or(u64::MAX);
        self.budgets.held_ns.fetch_add(held, Ordering::Relaxed);
    }

    /// Waits until this many bytes may be merged.
    pub(super) async fn await_merging(&self, bytes: u64) {
        self.budgets.merging.await_turn(bytes).await;
    }

    /// From where on the rate counts.
    pub(super) fn rate_from_now(&self) -> FetchedAt {
        FetchedAt { fetched: self.counters.fetched(), at: self.ports.clock.now() }
    }

    /// Looks once whether requests are late, and how much has come.
    pub(super) async fn observe(&self, seen: &mut FetchedAt) {
        let times = self.pulse.times().await;
        self.budgets.fetching.observe(times);
        self.budgets.merging.observe(times);
        let now = self.rate_from_now();
        let passed = now.at.since(seen.at);
        if passed >= RATE_TIME {
            let millis = u64::try_from(passed.as_millis()).unwrap_or(u64::MAX).max(1);
            let rate = now.fetched.saturating_sub(seen.fetched) * 1000 / millis;
            self.budgets.rate.store(rate, Ordering::Relaxed);
            *seen = now;
        }
    }

    /// Nothing is fetched any more.
    pub(super) fn rest(&self) {
        self.budgets.rate.store(0, Ordering::Relaxed);
    }

    /// Waits until this many bytes may be given to another node.
    ///
    /// # Errors
    /// `Overloaded` when that would take too long.
    pub(super) async fn await_giving(&self, bytes: u64) -> Result<(), Failure> {
        let giving = &self.budgets.giving;
        giving.look(bytes).await;
        if giving.pace().backlog(self.ports.clock.now()) > GIVING_WAIT_MAX {
            let detail = "this node gives other nodes as much of its artifacts as requests leave room for";
            return Err(Failure::new(ErrorCode::Overloaded, detail));
        }
        giving.await_turn(bytes).await;
        Ok(())
    }
}
