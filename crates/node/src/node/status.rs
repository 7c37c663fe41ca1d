//! What a node tells of each of its stores, for people and tools that ask for its status. Must never: read a record.

use crate::stores::LocalStore;

/// One store, as JSON.
pub(super) fn store_status(store: &LocalStore) -> serde_json::Value {
    let stats = store.engine().stats();
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
        "corrupt_records_total": stats.corrupt_records,
        "syncs_total": stats.syncs,
        "compacted_bytes_total": stats.compacted_bytes,
        "expiring_keys": store.expiring_known(),
        "expired_values_reaped_total": reaped.values,
        "expired_bytes_reaped_total": reaped.bytes,
    })
}
