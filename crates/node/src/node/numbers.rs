//! What a node counts anyway, as metrics and as the load in its row.

use std::sync::Arc;

use parking_lot::Mutex;
use protocol::gossip::Load;

use super::Node;
use crate::metrics::{Counter, Kind};

impl Node {
    /// Shows what the node's parts count anyway.
    pub(super) fn watch_numbers(self: &Arc<Self>) {
        self.watch_collection();
        let watch = |kind, name, help, read: fn(&Node) -> u64| {
            let weak = Arc::downgrade(self);
            self.metrics
                .watch(kind, name, help, &[], move || weak.upgrade().map_or(0.0, |node| read(&node) as f64));
        };
        watch(Kind::Gauge, "tontine_node_uptime_seconds", "Since the node started.", |node| {
            node.ports.clock.now().since(node.started).as_secs()
        });
        watch(Kind::Gauge, "tontine_node_generation", "Of the cluster document it goes by.", |node| {
            node.replica.view().generation().0
        });
        watch(Kind::Gauge, "tontine_node_links", "Links of the native protocol now.", |node| {
            node.links() as u64
        });
        watch(Kind::Counter, "tontine_resp_commands_total", "Commands of Redis clients.", |node| {
            node.resp.commands()
        });
        watch(Kind::Gauge, "tontine_handoff_hints_pending", "Hints held for other nodes.", |node| {
            node.replica.hints().pending().into_iter().map(|(_, count)| count).sum()
        });
        watch(Kind::Gauge, "tontine_handoff_hint_bytes", "Bytes of hints held for other nodes.", |node| {
            node.replica.hints().engine().stats().live_bytes
        });
        watch(Kind::Counter, "tontine_handoff_hints_damaged_total", "Damaged hints forgotten.", |node| {
            node.replica.hints().damaged()
        });
        watch(Kind::Counter, "tontine_handoff_hints_refused_total", "Hints refused at the limit.", |node| {
            node.replica.hints().refused()
        });
        watch(Kind::Counter, "tontine_repair_reads_total", "Stale replicas repaired by gets.", |node| {
            node.repairs.begun()
        });
        watch(Kind::Counter, "tontine_repair_reads_refused_total", "Read repairs over the limit.", |node| {
            node.repairs.refused()
        });
        watch(
            Kind::Gauge,
            "tontine_expiry_keys_pending",
            "Keys that wait for their time to be over.",
            |node| node.replica.view().get().stores().iter().map(|store| store.expiring_known() as u64).sum(),
        );
        watch(Kind::Counter, "tontine_expiry_values_reaped_total", "Expired values reaped.", |node| {
            node.replica.view().get().stores().iter().map(|store| store.reaped().values).sum()
        });
        watch(
            Kind::Counter,
            "tontine_expiry_bytes_reaped_total",
            "Bytes of expired values reaped.",
            |node| node.replica.view().get().stores().iter().map(|store| store.reaped().bytes).sum(),
        );
        watch(Kind::Counter, "tontine_node_events_total", "Events recorded.", |node| node.events.recorded());
        watch(
            Kind::Counter,
            "tontine_node_requests_total",
            "Requests of the native protocol.",
            Node::requests,
        );
    }

    /// How collection stands.
    fn watch_collection(self: &Arc<Self>) {
        let watch = |kind, name, help, read: fn(&Node) -> u64| {
            let weak = Arc::downgrade(self);
            self.metrics
                .watch(kind, name, help, &[], move || weak.upgrade().map_or(0.0, |node| read(&node) as f64));
        };
        watch(
            Kind::Gauge,
            "tontine_collection_tombstones_pending",
            "Keys that are nothing but tombstones and wait to be forgotten.",
            |node| {
                node.replica.view().get().stores().iter().map(|store| store.tombstones_known() as u64).sum()
            },
        );
        watch(Kind::Gauge, "tontine_collection_epoch", "The collection epoch it goes by.", |node| {
            node.replica.epochs().tag().0
        });
        watch(
            Kind::Gauge,
            "tontine_collection_rounds_waiting",
            "1 while rounds wait for a node that is away or has not compared its epoch.",
            |node| node.collection.get().map_or(0, |collection| u64::from(collection.is_waiting())),
        );
    }

    /// Requests of the native protocol so far, over all workers.
    fn requests(&self) -> u64 {
        self.requests.lock().iter().map(Counter::get).sum()
    }

    /// What is written into this node's row: its load since it was measured last.
    pub(super) fn measure(self: &Arc<Self>) -> impl Fn() -> Load + Send + Sync + 'static {
        let weak = Arc::downgrade(self);
        let before = Mutex::new((self.started, 0_u64));
        move || {
            let Some(node) = weak.upgrade() else { return Load::default() };
            let (now, operations) = (node.ports.clock.now(), node.requests() + node.resp.commands());
            let (since, counted) = std::mem::replace(&mut *before.lock(), (now, operations));
            let millis = now.since(since).as_millis().max(1) as u64;
            let view = node.replica.view().get();
            Load {
                operations_per_second: operations.saturating_sub(counted) * 1000 / millis,
                data_bytes: view.stores().iter().map(|store| store.engine().stats().live_bytes).sum(),
                links: u32::try_from(node.links()).unwrap_or(u32::MAX),
            }
        }
    }
}
