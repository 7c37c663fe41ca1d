//! Anti-entropy at one node: comparing with peers, counting trees, scrubbing, and reporting its state.
//!
//! ```text
//!   sessions ── protocol::antientropy::Session ── tree-sums … ──▶ respond (at the peer)
//!   keeper   ── counts doubtful trees, reads every record now and then
//! ```
//!
//! Hash trees are [`crate::trees`]; what is read of one store, be it sums, digests or pages of records, is a method of
//! [`crate::stores::LocalStore`]. `remembered` keeps trees over a clean stop.
//!
//! All of it runs on the background thread, one piece at a time, and lets requests go first: by a rate of bytes, and
//! slower while a peer's workers are late to answer a ping, or this node's own are (`crate::pulse`).
//!
//! Must never: keep the node alive. Each task holds on to it only while it does something.

mod counters;
mod drive;
mod giving;
mod keeper;
mod remembered;
mod respond;
mod scrub_orders;
mod sessions;
mod standstill;
mod status;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use client::peers::Peers;
use model::{Generation, Moment, NodeId, PartitionId};
use protocol::antientropy::{Left, Schedule, SessionOutcome};
use protocol::lateness::Lateness;
use protocol::pace::{PaceLimits, least_on};
use protocol::report::RefillReport;
use runtime::locks::Mutex;
use runtime::{Disk, Ports};
use tokio::sync::Notify;

use crate::chores::{Board, Culprits, Rest, begin};
use crate::events::Events;
use crate::gossip::Standings;
use crate::metrics::Metrics;
use crate::pulse::Pulse;
use crate::replica::Replica;

pub(crate) use drive::{Bringing, Drive, Peered};
pub(crate) use remembered::{recall, remember};
pub(crate) use scrub_orders::{ScrubOrder, ScrubOrders};

use counters::AntiEntropyCounters;
use giving::Giving;

/// How a node repairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AntiEntropyOptions {
    /// Within this time every pair of nodes has compared what it shares. Default: 10 minutes.
    pub period: Duration,
    /// Within this time every record has been read and its checksum looked at. Default: 7 days.
    pub scrub_period: Duration,
    /// Bytes of records that one comparison moves in a second at most; 0 is no limit. Default: 64 MiB.
    pub bytes_per_second: u64,
    /// Bytes of records that a node brings in within a second when it enters partitions or has lost its disk: at least,
    /// however late requests are, and at most. In between it goes as fast as requests do not feel it; the least doubles
    /// every 15 seconds, up to eight times as much. To others it gives as fast, and never less than that eightfold rate.
    /// For a process that may use less than half a processor, the least shrinks in proportion.
    /// Default: 2 MiB and 1 GiB.
    pub brought_per_second: (u64, u64),
    /// How long a peer may take to answer. Default: 10 seconds.
    pub patience: Duration,
}

impl Default for AntiEntropyOptions {
    fn default() -> Self {
        AntiEntropyOptions {
            period: Duration::from_secs(600),
            scrub_period: Duration::from_secs(7 * 24 * 3600),
            bytes_per_second: 64 << 20,
            brought_per_second: (2 << 20, 1 << 30),
            patience: Duration::from_secs(10),
        }
    }
}

/// Rests are this many times as long as the work before them, while requests are late.
const REST_SHARE: u32 = 16;
const REST_MAX: Duration = Duration::from_secs(1);

impl AntiEntropyOptions {
    /// Bytes a second that are brought in, at least and at most, by a process with these ports.
    pub(crate) fn brought_per_second_on(&self, ports: &Ports) -> (u64, u64) {
        let (least, most) = self.brought_per_second;
        (least_on(ports.tasks.processors(), least), most)
    }
}

/// Reports how far refilling is; nothing when nothing was lost.
pub(crate) type RefillTold = Box<dyn Fn() -> Option<RefillReport> + Send + Sync>;

/// What repair is made of.
pub(crate) struct RepairParts {
    pub(crate) options: AntiEntropyOptions,
    pub(crate) ports: Ports,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) replica: Arc<Replica>,
    pub(crate) peers: Arc<Peers>,
    pub(crate) pulse: Arc<Pulse>,
    /// Who is believed to be there.
    pub(crate) standings: Arc<dyn Standings>,
    pub(crate) events: Arc<Events>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) board: Arc<Board>,
    pub(crate) incarnation: u64,
}

/// Repair at one node.
pub struct AntiEntropy {
    options: AntiEntropyOptions,
    incarnation: u64,
    ports: Ports,
    disk: Arc<dyn Disk>,
    replica: Arc<Replica>,
    peers: Arc<Peers>,
    pulse: Arc<Pulse>,
    standings: Arc<dyn Standings>,
    events: Arc<Events>,
    counters: AntiEntropyCounters,
    /// How far refilling is, which is reported with the rest.
    refilling: OnceLock<RefillTold>,
    giving: Arc<Giving>,
    state: Mutex<RepairState>,
    wake: Arc<Notify>,
    stopping: AtomicBool,
    /// One order is written down at a time, so that the last one holds.
    remembering: tokio::sync::Mutex<()>,
    /// For the scrub of artifacts.
    scrub_orders: Arc<ScrubOrders>,
    culprits: RepairCulprits,
}

/// At what each chore panicked.
#[derive(Default)]
struct RepairCulprits {
    compare: Culprits,
    count: Culprits,
    scrub: Culprits,
}

struct RepairState {
    schedule: Schedule<Only>,
    running: Option<Running>,
    /// Breaks off the comparison that runs.
    abort: bool,
    ended: BTreeMap<NodeId, Ended>,
    /// The peers with which all of a store has been compared since the start, under one generation.
    whole: BTreeMap<String, (Generation, BTreeSet<NodeId>)>,
    /// What each peer's workers usually take for a ping.
    usual: BTreeMap<NodeId, Lateness>,
    /// What an operator has stopped while the rest goes on.
    stopped: Vec<Only>,
    scrub: Scrub,
    /// The scrub that was asked for.
    scrubbing: Option<Scrubbing>,
    /// What came of the last one that was asked for, and when it ended.
    scrubbed: Option<(Moment, Scrubbing)>,
}

/// A part of what there is, or all of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Only {
    store: Option<String>,
    partition: Option<PartitionId>,
}

impl Only {
    fn is_all(&self) -> bool {
        *self == Only::default()
    }

    fn has_store(&self, store: &str) -> bool {
        self.store.as_deref().is_none_or(|name| name == store)
    }

    fn has(&self, store: &str, partition: PartitionId) -> bool {
        self.has_store(store) && self.partition.is_none_or(|only| only == partition)
    }

    /// Whether something is part of both.
    fn meets(&self, other: &Only) -> bool {
        let partitions = self.partition.zip(other.partition).is_none_or(|(a, b)| a == b);
        self.store.as_deref().is_none_or(|store| other.has_store(store)) && partitions
    }
}

struct Running {
    peer: NodeId,
    store: String,
    since: Moment,
    /// Partitions of all stores that both hold, and of those up to this store.
    partitions: usize,
    partitions_through: usize,
    progress: SessionOutcome,
    left: Left,
}

/// How far a scrub is that was asked for.
#[derive(Clone, Debug, Default)]
struct Scrubbing {
    since: Moment,
    store: String,
    partitions: usize,
    done: usize,
    read: ScrubRead,
}

/// What scrubbing read, and what it found.
#[derive(Clone, Copy, Debug, Default)]
struct ScrubRead {
    records: u64,
    bytes: u64,
    corrupt: u64,
    wrong_leaves: u64,
}

#[derive(Clone, Copy)]
struct Ended {
    at: Moment,
    took: Duration,
    outcome: SessionOutcome,
}

/// How far the scrub is.
#[derive(Clone, Copy, Debug, Default)]
struct Scrub {
    /// Passes over all records.
    passes: u64,
    /// Partitions of this pass, and how many of them are done.
    partitions: usize,
    done: usize,
}

impl AntiEntropy {
    /// Begins. Tasks end when the result is dropped or closed.
    pub(crate) fn start(parts: RepairParts) -> Arc<AntiEntropy> {
        let RepairParts { options, ports, disk, replica, peers, pulse, standings, events, metrics, .. } =
            parts;
        let (board, incarnation) = (parts.board, parts.incarnation);
        let mut schedule = Schedule::new(replica.node(), options.period);
        if standstill::is_remembered(&*disk) {
            tracing::warn!("comparing replicas is stopped since before this start");
            schedule.stop();
        }
        let state = RepairState {
            schedule,
            running: None,
            abort: false,
            ended: BTreeMap::new(),
            whole: BTreeMap::new(),
            usual: BTreeMap::new(),
            stopped: standstill::parts(&*disk),
            scrub: Scrub::default(),
            scrubbing: None,
            scrubbed: None,
        };
        let (least, most) = options.brought_per_second_on(&ports);
        let antientropy = Arc::new(AntiEntropy {
            giving: Giving::new(ports.clock.clone(), pulse.clone(), PaceLimits::for_giving(least, most)),
            counters: AntiEntropyCounters::new(&metrics),
            options,
            incarnation,
            disk,
            replica,
            peers,
            pulse,
            standings,
            events,
            refilling: OnceLock::new(),
            state: Mutex::new(state),
            wake: Arc::default(),
            stopping: AtomicBool::new(false),
            remembering: tokio::sync::Mutex::default(),
            scrub_orders: Arc::default(),
            culprits: RepairCulprits::default(),
            ports,
        });
        counters::watch(&antientropy, &metrics);
        let ports = &antientropy.ports;
        let weak = || Arc::downgrade(&antientropy);
        let (compare, count, scrub) = (weak(), weak(), weak());
        begin(ports, &board, Rest::Now, move || sessions::Compare(compare.clone()));
        begin(ports, &board, Rest::Now, move || keeper::Count(count.clone()));
        begin(ports, &board, Rest::Now, move || keeper::ScrubRecords(scrub.clone()));
        antientropy
    }

    /// Ends all tasks at their next step.
    pub fn close(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.state.lock().abort = true;
        self.wake.notify_waiters();
        self.peers.close();
    }

    /// Its links, for whoever tells them of newer documents.
    pub fn peers(&self) -> &Arc<Peers> {
        &self.peers
    }

    /// What operators order of the scrub of artifacts.
    pub(crate) fn scrub_orders(&self) -> &Arc<ScrubOrders> {
        &self.scrub_orders
    }

    /// Who is believed to be there.
    pub(crate) fn standings(&self) -> &dyn Standings {
        &*self.standings
    }

    pub(crate) fn replica(&self) -> &Arc<Replica> {
        &self.replica
    }

    pub(crate) fn options(&self) -> &AntiEntropyOptions {
        &self.options
    }

    pub(crate) fn ports(&self) -> &Ports {
        &self.ports
    }

    /// Rests after work on the background thread that began then, if requests are late: so that it has a small share of
    /// the processor.
    pub(crate) async fn rest_after(&self, began: Moment) {
        let took = self.ports.clock.now().since(began);
        if self.pulse.times().await > 1 {
            self.ports.clock.sleep((took * REST_SHARE).min(REST_MAX)).await;
        }
    }

    /// How long this node's workers take.
    pub(crate) fn pulse(&self) -> &Pulse {
        &self.pulse
    }

    /// Reports from now on how far refilling is, too.
    pub(crate) fn tell_refilling(&self, told: RefillTold) {
        assert!(self.refilling.set(told).is_ok(), "a node refills by one list");
    }

    /// Compares with this peer soon.
    pub fn ask_for(&self, peer: NodeId) {
        self.state.lock().schedule.ask_for(peer);
        self.wake.notify_one();
    }

    /// Whether the node stops.
    pub fn is_closing(&self) -> bool {
        self.is_stopping()
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }
}

/// Holds on to the node for one step.
fn living(weak: &Weak<AntiEntropy>) -> Option<Arc<AntiEntropy>> {
    weak.upgrade().filter(|antientropy| !antientropy.is_stopping())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(store: Option<&str>, partition: Option<u32>) -> Only {
        Only { store: store.map(str::to_owned), partition: partition.map(PartitionId) }
    }

    #[test]
    fn a_part_has_its_own_store_and_partition_and_nothing_else() {
        let parts = [part(None, None), part(Some("a"), None), part(None, Some(1)), part(Some("a"), Some(1))];
        let places = [("a", 1), ("a", 2), ("b", 1), ("b", 2)];
        let has = parts.each_ref().map(|part| places.map(|(store, id)| part.has(store, PartitionId(id))));
        assert_eq!(has[0], [true, true, true, true]);
        assert_eq!(has[1], [true, true, false, false]);
        assert_eq!(has[2], [true, false, true, false]);
        assert_eq!(has[3], [true, false, false, false]);
        assert_eq!(parts.each_ref().map(Only::is_all), [true, false, false, false]);
        assert_eq!(parts.each_ref().map(|part| part.has_store("b")), [true, false, true, false]);
    }

    /// An order to start lifts each stop that it meets.
    #[test]
    fn two_parts_overlap_where_both_have_a_place() {
        let names = [None, Some("a"), Some("b")];
        let numbers = [None, Some(1), Some(2)];
        let all = || names.iter().flat_map(|name| numbers.iter().map(|number| part(*name, *number)));
        let places = [("a", 1), ("a", 2), ("b", 1), ("b", 2)];
        for (one, other) in all().flat_map(|one| all().map(move |other| (one.clone(), other))) {
            let shared = |&(store, id): &(&str, u32)| {
                one.has(store, PartitionId(id)) && other.has(store, PartitionId(id))
            };
            assert_eq!(one.meets(&other), places.iter().any(shared), "{one:?} and {other:?}");
        }
    }
}
