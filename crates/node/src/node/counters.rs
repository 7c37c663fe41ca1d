//! What a node counts anyway, as metrics and as the load in its row.

use std::sync::Arc;

use parking_lot::Mutex;
use protocol::gossip::GossipLoad;
use runtime::{Moment, ProcessorTime};
use storage::EngineStats;

use super::Node;
use crate::doors::refusals::Refusals;
use crate::events::Events;
use crate::metrics::{Counter, Metrics};
use crate::stores::GetNumbers;
use crate::work::Coordinated;

/// Where a node tells what it did.
pub(super) struct Telling {
    pub(super) events: Arc<Events>,
    pub(super) metrics: Arc<Metrics>,
    /// Over all doors of all workers.
    pub(super) refusals: Arc<Refusals>,
    /// Each worker's requests, and what its clients had it drive.
    pub(super) counted: Mutex<Vec<(Counter, Arc<Coordinated>)>>,
    pub(super) started: Moment,
}

impl Telling {
    /// Of a node that starts now.
    pub(super) fn new(
        events: Arc<Events>,
        metrics: Arc<Metrics>,
        refusals: Arc<Refusals>,
        started: Moment,
    ) -> Telling {
        Telling { events, metrics, refusals, counted: Mutex::default(), started }
    }
}

impl Node {
    /// Shows what the node's parts count anyway.
    pub(super) fn watch_numbers(self: &Arc<Self>) {
        self.watch_collection();
        self.watch_room();
        self.watch_gets();
        self.watch_load();
        let watch = |name, read: fn(&Node) -> u64| {
            let weak = Arc::downgrade(self);
            self.telling
                .metrics
                .watch(name, &[], move || weak.upgrade().map_or(0.0, |node| read(&node) as f64));
        };
        watch("tontine_node_uptime_seconds", |node| {
            node.ports.clock.now().since(node.telling.started).as_secs()
        });
        watch("tontine_node_generation", |node| node.replica.view().generation().0);
        watch("tontine_node_links", |node| node.doors.links() as u64);
        watch("tontine_resp_commands_total", |node| node.doors.resp.commands());
        watch("tontine_handoff_hints_pending", |node| {
            node.replica.hints().pending().into_iter().map(|(_, count)| count).sum()
        });
        watch("tontine_handoff_hint_bytes", |node| node.replica.hints().engine().stats().live_bytes);
        watch("tontine_handoff_hints_damaged_total", |node| node.replica.hints().damaged());
        watch("tontine_handoff_hints_refused_total", |node| node.replica.hints().refused());
        watch("tontine_repair_reads_total", |node| node.chores.repairs.begun());
        watch("tontine_repair_reads_refused_total", |node| node.chores.repairs.refused());
        watch("tontine_expiry_keys_pending", |node| {
            node.replica.view().get().stores().iter().map(|store| store.expiring_known() as u64).sum()
        });
        watch("tontine_expiry_values_reaped_total", |node| {
            node.replica.view().get().stores().iter().map(|store| store.reaped().values).sum()
        });
        watch("tontine_expiry_bytes_reaped_total", |node| {
            node.replica.view().get().stores().iter().map(|store| store.reaped().bytes).sum()
        });
        watch("tontine_node_events_total", |node| node.telling.events.recorded());
        watch("tontine_node_requests_total", Node::requests);
    }

    /// What it does, and with what.
    fn watch_load(self: &Arc<Self>) {
        let watch = |name, read: fn(&Node) -> f64| {
            let weak = Arc::downgrade(self);
            self.telling.metrics.watch(name, &[], move || weak.upgrade().map_or(0.0, |node| read(&node)));
        };
        fn worker(node: &Node) -> ProcessorTime {
            node.ports.tasks.worker_time().unwrap_or_default()
        }
        watch("tontine_worker_seconds_total", |node| worker(node).ran.as_secs_f64());
        watch("tontine_worker_waiting_seconds_total", |node| worker(node).waited.as_secs_f64());
        watch("tontine_process_cpu_seconds_total", |node| {
            node.ports.tasks.process_time().unwrap_or_default().as_secs_f64()
        });
        watch("tontine_processors", |node| node.ports.tasks.processors());
        watch("tontine_replica_gets_total", |node| node.replica.work().total().gets as f64);
        watch("tontine_replica_puts_total", |node| node.replica.work().total().puts as f64);
        watch("tontine_stamped_puts_total", |node| node.replica.work().total().stamped as f64);
        watch("tontine_coordinated_gets_total", |node| node.coordinated().0 as f64);
        watch("tontine_coordinated_puts_total", |node| node.coordinated().1 as f64);
    }

    /// How gets ended that it drove, by store.
    fn watch_gets(self: &Arc<Self>) {
        let each = |name, read: fn(&GetNumbers) -> u64| {
            let weak = Arc::downgrade(self);
            self.telling.metrics.watch_each(name, move || {
                let Some(node) = weak.upgrade() else { return Vec::new() };
                let view = node.replica.view().get();
                let counted = view
                    .stores()
                    .iter()
                    .map(|store| (store.definition().name.to_string(), read(store.gets()) as f64));
                counted.collect()
            });
        };
        each("tontine_store_gets_sloppy_total", GetNumbers::sloppy);
        each("tontine_store_gets_unavailable_total", GetNumbers::unavailable);
    }

    /// What its stores and its disk hold, and what the disk can still take.
    fn watch_room(self: &Arc<Self>) {
        let each = |name, read: fn(EngineStats) -> u64| {
            let weak = Arc::downgrade(self);
            self.telling.metrics.watch_each(name, move || {
                let Some(node) = weak.upgrade() else { return Vec::new() };
                let view = node.replica.view().get();
                let stores = view.stores().iter();
                stores
                    .map(|store| (store.definition().name.to_string(), read(store.engine().stats()) as f64))
                    .collect()
            });
        };
        each("tontine_store_records", |stats| stats.records);
        each("tontine_store_live_bytes", |stats| stats.live_bytes);
        each("tontine_store_disk_bytes", |stats| stats.disk_bytes);
        each("tontine_store_memory_bytes", |stats| stats.memory_bytes);
        let watch = |name, read: fn(&Node) -> u64| {
            let weak = Arc::downgrade(self);
            self.telling
                .metrics
                .watch(name, &[], move || weak.upgrade().map_or(0.0, |node| read(&node) as f64));
        };
        watch("tontine_resp_connections", |node| node.doors.resp.connections() as u64);
        watch("tontine_http_connections", |node| node.doors.http.connections() as u64);
        watch("tontine_http_event_readers", |node| node.doors.http.event_readers() as u64);
        watch("tontine_disk_available_bytes", |node| node.disk.available_bytes());
        // Where nobody knows how much room there is, as in memory, what the system says is free is the best guess.
        watch("tontine_disk_room_bytes", |node| node.room().0.unwrap_or_else(|| node.disk.available_bytes()));
        watch("tontine_disk_failed", |node| u64::from(node.room().1.is_some()));
    }

    /// The state of collection.
    fn watch_collection(self: &Arc<Self>) {
        let watch = |name, read: fn(&Node) -> u64| {
            let weak = Arc::downgrade(self);
            self.telling
                .metrics
                .watch(name, &[], move || weak.upgrade().map_or(0.0, |node| read(&node) as f64));
        };
        watch("tontine_collection_tombstones_pending", |node| {
            node.replica.view().get().stores().iter().map(|store| store.tombstones_known() as u64).sum()
        });
        watch("tontine_tls_certificate_expires_seconds", |node| {
            let status = node.config.doors.certificate.as_ref().map(|certificate| certificate.status());
            status.and_then(|status| status.certificate_expires_ms).map_or(0, |at| at.0 / 1000)
        });
        watch("tontine_collection_epoch", |node| node.replica.epochs().tag().0);
        watch("tontine_collection_rounds_waiting", |node| {
            node.chores.collection.get().map_or(0, |collection| u64::from(collection.is_waiting()))
        });
    }

    /// Requests of the native protocol so far, over all workers.
    fn requests(&self) -> u64 {
        self.telling.counted.lock().iter().map(|(requests, _)| requests.get()).sum()
    }

    /// What is written into this node's row: its load since it was measured last.
    pub(super) fn measure(self: &Arc<Self>) -> impl Fn() -> GossipLoad + Send + Sync + 'static {
        let weak = Arc::downgrade(self);
        let before = Mutex::new((self.telling.started, 0_u64));
        move || {
            let Some(node) = weak.upgrade() else { return GossipLoad::default() };
            node.telling.refusals.tell(node.ports.clock.now(), false);
            let (now, operations) = (node.ports.clock.now(), node.requests() + node.doors.resp.commands());
            let (since, counted) = std::mem::replace(&mut *before.lock(), (now, operations));
            let millis = now.since(since).as_millis().max(1) as u64;
            let view = node.replica.view().get();
            let operations_per_second = operations.saturating_sub(counted) * 1000 / millis;
            node.chores.antientropy.pulse().counted(operations_per_second);
            GossipLoad {
                operations_per_second,
                data_bytes: view.stores().iter().map(|store| store.engine().stats().live_bytes).sum(),
                links: u32::try_from(node.doors.links()).unwrap_or(u32::MAX),
            }
        }
    }
}
