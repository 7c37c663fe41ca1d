//! What a node tells of itself and of each of its stores, for people and tools that ask for its status. It is one
//! document, put together from numbers that are kept anyway. Must never: read a record.

use storage::{Room, StorageEngine, StorageError};

use super::Node;
use crate::stores::LocalStore;

impl Node {
    /// The node's account of itself, as JSON.
    pub fn status(&self) -> Vec<u8> {
        let view = self.replica.view().get();
        let hints = self.replica.hints();
        let pending = self.handoffs.get().map_or_else(Vec::new, |handoffs| handoffs.status());
        let uptime = self.ports.clock.now().since(self.started);
        let load = self.admission.load();
        let (room, stopped) = self.room();
        let stores: Vec<_> = view.stores().iter().map(|store| store_status(store)).collect();
        let status = serde_json::json!({
            "node": self.config.id,
            "cluster": self.config.cluster,
            "generation": view.cluster().generation,
            "incarnation": self.incarnation(),
            "version": env!("CARGO_PKG_VERSION"),
            "engine": self.engines.kind(),
            "uptime_s": uptime.as_secs(),
            "clock_ms": self.ports.clock.wall(),
            "place": self.installation(),
            "native_connections": self.links(),
            "resp_connections": self.resp.connections(),
            "password_required": self.config.resp.password.is_some(),
            "requests_running": load.requests,
            "request_bytes": load.bytes,
            "resp_commands_total": self.resp.commands(),
            "disk_available_bytes": self.disk.available_bytes(),
            "disk_total_bytes": self.disk.total_bytes(),
            "room_bytes": room,
            "storage_stopped": stopped,
            "hints": pending,
            "repair_stopped": self.antientropy.is_stopped(),
            "repair_stopped_parts": self.antientropy.stopped_parts(),
            "refill": self.antientropy.refill_status(),
            "hint_bytes": hints.engine().stats().live_bytes,
            "hint_bytes_max": hints.bytes_max(),
            "hints_refused_total": hints.refused(),
            "hint_bytes_wanted": wanted(&**hints.engine()).bytes,
            "collection": self.collection.get().map(|collection| collection.status()),
            "stores": stores,
            "read_only": self.artifacts.told(),
        });
        serde_json::to_vec(&status).expect("a status is plain data")
    }

    /// Bytes that writes may take before they are refused, where that is known, and why storage has stopped, if it has.
    pub(super) fn room(&self) -> (Option<u64>, Option<String>) {
        let view = self.replica.view().get();
        let engines = view.stores().iter().map(|store| store.engine()).chain([self.replica.hints().engine()]);
        let (mut room, mut stopped) = (None, None);
        for engine in engines {
            match engine.room() {
                Ok(Room { bytes: u64::MAX, .. }) => {}
                Ok(Room { bytes, .. }) => room = Some(room.map_or(bytes, |least: u64| least.min(bytes))),
                Err(StorageError::Fatal { reason }) => stopped = Some(reason),
                // It is being closed.
                Err(_) => {}
            }
        }
        (room, stopped)
    }
}

/// What an engine had no room for.
struct Wanted {
    /// Bytes of the largest put that it refused and that it has no room for now; 0 for none.
    bytes: u64,
    /// Puts refused since it was opened.
    refused: u64,
}

fn wanted(engine: &dyn StorageEngine) -> Wanted {
    let room = engine.room().unwrap_or(Room::UNLIMITED);
    Wanted { bytes: room.wanted, refused: room.refused }
}

/// One store, as JSON.
fn store_status(store: &LocalStore) -> serde_json::Value {
    let (stats, wanted) = (store.engine().stats(), wanted(&**store.engine()));
    let damage = store.engine().repairable().map(|engine| engine.damage()).unwrap_or_default();
    let (definition, reaped) = (store.definition(), store.reaped());
    serde_json::json!({
        "store": definition.name,
        "replicas": definition.consistency.replicas,
        "reads_required": definition.consistency.reads_required,
        "writes_required": definition.consistency.writes_required,
        "resolver": definition.resolver,
        "records": stats.records,
        "live_bytes": stats.live_bytes,
        "disk_bytes": stats.disk_bytes,
        "memory_bytes": stats.memory_bytes,
        "corrupt_records_total": damage.found,
        "corrupt_records_left": damage.left,
        "corrupt_unplaced": damage.unplaced,
        "put_bytes_wanted": wanted.bytes,
        "puts_refused_total": wanted.refused,
        "syncs_total": stats.syncs,
        "compacted_bytes_total": stats.compacted_bytes,
        "expiring_keys": store.expiring_known(),
        "expired_values_reaped_total": reaped.values,
        "expired_bytes_reaped_total": reaped.bytes,
    })
}
