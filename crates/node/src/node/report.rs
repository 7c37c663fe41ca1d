//! What a node says of itself: the parts of its report, put together from numbers that are kept anyway. Must never: read a
//! record.

use model::Generation;
use protocol::report::{Parts, Report, Status, StoreStatus};
use storage::{Room, StorageEngine, StorageError};

use super::Node;
use crate::stores::LocalStore;

impl Node {
    /// These parts of what the node says of itself.
    pub fn report(&self, parts: Parts) -> Report {
        // Before anything else: what was done under a later document then counts under an earlier one, never the reverse.
        let generation: Generation = self.replica.view().get().cluster().generation;
        Report {
            status: parts.has(Parts::STATUS).then(|| self.status()),
            moves: parts.has(Parts::MOVES).then(|| self.chores.rebalance.report()),
            nodes: parts.has(Parts::NODES).then(|| self.liveness.gossip.report()),
            repair: parts.has(Parts::REPAIR).then(|| self.chores.antientropy.report()),
            artifacts: parts.has(Parts::ARTIFACTS).then(|| self.chores.artifacts.report()),
            load: parts.has(Parts::LOAD).then(|| self.load()),
            keys: parts.has(Parts::KEYS).then(|| self.hot_keys()),
            ..Report::new(self.config.member.id, self.incarnation(), self.ports.clock.wall(), generation)
        }
    }

    fn status(&self) -> Status {
        let view = self.replica.view().get();
        let hints = self.replica.hints();
        let uptime = self.ports.clock.now().since(self.telling.started);
        let load = self.doors.admission.load();
        let (room, stopped) = self.room();
        Status {
            cluster: self.config.member.cluster.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            engine: self.engines.kind().to_owned(),
            uptime_s: uptime.as_secs(),
            place: self.installation(),
            native_connections: self.doors.links() as u64,
            resp_connections: self.doors.resp.connections() as u64,
            password_required: self.config.doors.resp.password.is_some(),
            tls: self.config.doors.certificate.as_ref().map(|certificate| certificate.status()),
            requests_running: load.requests as u64,
            request_bytes: load.bytes as u64,
            resp_commands_total: self.doors.resp.commands(),
            disk_available_bytes: self.disk.available_bytes(),
            disk_total_bytes: self.disk.total_bytes(),
            room_bytes: room,
            storage_stopped: stopped,
            hints: self.chores.handoffs.get().map_or_else(Vec::new, |handoffs| handoffs.report()),
            hint_bytes: hints.engine().stats().live_bytes,
            hint_bytes_max: hints.bytes_max(),
            hints_refused_total: hints.refused(),
            hint_bytes_wanted: wanted(&**hints.engine()).bytes,
            collection: self.chores.collection.get().map(|collection| collection.report()),
            chores: self.chores.board.report(),
            stores: view.stores().iter().map(|store| store_status(store)).collect(),
        }
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

fn store_status(store: &LocalStore) -> StoreStatus {
    let (stats, wanted) = (store.engine().stats(), wanted(&**store.engine()));
    let damage = store.engine().repairable().map(|engine| engine.damage()).unwrap_or_default();
    let (definition, reaped) = (store.definition(), store.reaped());
    StoreStatus {
        store: definition.name.clone(),
        consistency: definition.consistency,
        resolver: definition.resolver,
        records: stats.records,
        live_bytes: stats.live_bytes,
        disk_bytes: stats.disk_bytes,
        memory_bytes: stats.memory_bytes,
        corrupt_records_total: damage.found,
        corrupt_records_left: damage.left,
        corrupt_unplaced: damage.unplaced,
        put_bytes_wanted: wanted.bytes,
        puts_refused_total: wanted.refused,
        syncs_total: stats.syncs,
        compacted_bytes_total: stats.compacted_bytes,
        expiring_keys: store.expiring_known() as u64,
        expired_values_reaped_total: reaped.values,
        expired_bytes_reaped_total: reaped.bytes,
        demand: Some(store.demand().report()),
    }
}
