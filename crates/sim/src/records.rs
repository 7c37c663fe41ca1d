//! What engines hold, as nodes write it: the names of engines, and what records and hints say.
//!
//! Must never: ask a node. It reads bytes, and what cannot be read is nothing.

use bytes::Bytes;
use model::{StoreName, VersionSet};

/// The name of the engine of hints.
pub(crate) const HINTS: &str = "hints";
/// What the names of engines of stores begin with.
const STORES: &str = "stores/";
/// Bytes of a hint before its record.
const HINT_HEADER_BYTES: usize = 9;

/// The name of the engine that holds the records of a store.
pub(crate) fn engine_of(store: &str) -> String {
    format!("{STORES}{store}")
}

/// The store whose records an engine holds, by the engine's name.
pub(crate) fn store_of(engine: &str) -> Option<&str> {
    engine.strip_prefix(STORES)
}

/// The set in a record, if it can be read.
pub(crate) fn read_record(record: &Bytes) -> Option<VersionSet> {
    wire::versions::decode_record(record).ok().map(|record| record.set)
}

/// The store, the key and the set of a hint, if it can be read.
pub(crate) fn read_hint(name: &Bytes, hint: &Bytes) -> Option<((String, Bytes), VersionSet)> {
    let zero = name.iter().position(|&byte| byte == 0)?;
    let store = String::from_utf8(name[..zero].to_vec()).ok()?;
    let record = (hint.len() > HINT_HEADER_BYTES).then(|| hint.slice(HINT_HEADER_BYTES..))?;
    Some(((store, name.slice(zero + 1..)), read_record(&record)?))
}

/// The name under which a key of a store has its hints.
pub(crate) fn hint_name(store: &str, key: &[u8]) -> Bytes {
    debug_assert!(StoreName::new(store).is_ok(), "no zero byte ends it early");
    [store.as_bytes(), &[0], key].concat().into()
}
