//! Segments of the log engine: recovery takes whole records or nothing.

use std::sync::Arc;

use bytes::Bytes;
use model::Token;
use runtime::clock::os::OsClock;
use runtime::disk::simulated::SimulatedDisk;
use runtime::{BoxFuture, Tasks};
use storage::{Durability, EnginePorts, LogEngine, LogOptions, ScanLimit, StorageEngine, StorageError};
use wire::versions::decode_record;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Says which engine the fixtures belong to.
pub(crate) const FORMAT: &[u8] = include_bytes!("../fixtures/FORMAT");
/// The engine's number in [`FORMAT`].
const ENGINE: u64 = 0x75a4_ee15_6482_1c5b;
const SEGMENT_ID: u32 = 1;
const SEGMENT_HEADER: usize = 64;
const RECORD_HEADER: usize = 48;
/// Pages of one scan; more mean that it never ends.
const PAGES_MAX: usize = 10_000;

/// Panics when an engine with this segment does not open, or serves what nobody wrote.
pub fn check(input: &[u8]) {
    for Found { key, record, read } in contents(input, None).unwrap_or_default() {
        // A checksum held, so this is what some writer wrote: a record, which scans and gets agree on.
        assert!(decode_record(&record).is_ok(), "{} holds {record:?}", key.escape_ascii());
        assert!(read.is_none_or(|read| read == record), "{} reads as two records", key.escape_ascii());
    }
    // Behind the checksums nothing may panic either, whatever it makes of it: the same key under two tokens, say.
    let _ = contents(&with_right_checksums(input), None);
}

/// A record of a scan.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Found {
    pub(crate) key: Bytes,
    pub(crate) record: Bytes,
    /// What a get of the key answers, unless that is corrupt.
    pub(crate) read: Option<Bytes>,
}

/// Opens an engine with this segment and this index, and reads all that it holds in two ways.
pub(crate) fn contents(segment: &[u8], index: Option<&[u8]>) -> Result<Vec<Found>, StorageError> {
    let disk = SimulatedDisk::new(0);
    disk.plant("log/FORMAT", FORMAT);
    disk.plant("log/0000000001.log", segment);
    if let Some(index) = index {
        disk.plant("log/index", index);
    }
    let options = LogOptions { durability: Durability::System, reserve_bytes: 0, ..LogOptions::default() };
    let ports = EnginePorts { clock: Arc::new(OsClock::new()), tasks: Arc::new(NoTasks) };
    let executor =
        tokio::runtime::Builder::new_current_thread().build().expect("an executor needs no rights");
    let engine = executor.block_on(LogEngine::open(Arc::new(disk), "log", options, ports))?;
    let mut all = Vec::new();
    for storage::Held { partition, .. } in engine.partitions() {
        let mut after = None;
        for page in 0.. {
            assert!(page < PAGES_MAX, "a scan that never ends");
            let limit = ScanLimit { records_max: 16, bytes_max: 1 << 20 };
            let Ok(found) = engine.scan(partition, after.as_ref(), limit) else { break };
            for (key, record) in found.records {
                let read = engine.get(partition, Token::of(&key), &key).ok().flatten();
                all.push(Found { key, record, read });
            }
            after = found.next;
            if after.is_none() {
                break;
            }
        }
    }
    Ok(all)
}

/// The same bytes, with the checksum of each record as it must be for what the record says.
fn with_right_checksums(segment: &[u8]) -> Vec<u8> {
    let mut bytes = segment.to_vec();
    let salt = xxh3_64_with_seed(&SEGMENT_ID.to_le_bytes(), ENGINE);
    let mut at = SEGMENT_HEADER;
    while let Some(header) = bytes.get(at..at + RECORD_HEADER) {
        let key_bytes = usize::from(u16::from_le_bytes([header[44], header[45]]));
        let value_bytes = u32::from_le_bytes([header[36], header[37], header[38], header[39]]) as usize;
        let key_end = at + RECORD_HEADER + key_bytes;
        let Some(value) = bytes.get(key_end..key_end.saturating_add(value_bytes)) else { break };
        let value_check = xxh3_64(value);
        bytes[at + 8..at + 16].copy_from_slice(&value_check.to_le_bytes());
        let seed = salt ^ (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let check = xxh3_64_with_seed(&bytes[at + 8..key_end], seed);
        bytes[at..at + 8].copy_from_slice(&check.to_le_bytes());
        at = (key_end + value_bytes).next_multiple_of(8);
    }
    bytes
}

/// Nothing is written, so nothing has to be synced or compacted.
struct NoTasks;

impl Tasks for NoTasks {
    fn spawn(&self, _future: BoxFuture<'static, ()>) {}
    fn spawn_background(&self, _future: BoxFuture<'static, ()>) {}
    /// The disk is simulated, so there is nothing to wait for.
    fn spawn_waiting(&self, work: Box<dyn FnOnce() + Send>) {
        work();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: &[u8] = include_bytes!("../fixtures/segment.log");

    #[test]
    fn the_fixture_is_a_segment_with_the_records_that_were_put() {
        let all = contents(SEGMENT, None).unwrap();
        let keys: Vec<&[u8]> = all.iter().map(|found| &*found.key).collect();
        assert_eq!(keys.len(), 4, "{keys:?}");
        assert_eq!(with_right_checksums(SEGMENT), SEGMENT, "checksums are put right as the engine does");
    }
}
