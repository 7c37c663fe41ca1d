//! Stored records: bytes to version sets and back, and what a caller hears when an engine refuses.

use bytes::{Bytes, BytesMut};
use model::{Actor, PartitionId, VersionSet};
use storage::StorageError;
use wire::error::ErrorCode;
use wire::messages::Failure;

/// The record's own actor and its set.
pub(crate) fn decode(record: &Bytes, partition: PartitionId) -> Result<(Option<Actor>, VersionSet), Failure> {
    let record = wire::versions::decode_record(record).map_err(|_| corrupt(partition))?;
    Ok((record.own, record.set))
}

/// A stored record. Its buffer has exactly its size: then its bytes are counted without an allocation of their own.
pub(crate) fn encode(own: Option<Actor>, set: &VersionSet) -> Bytes {
    let bytes = wire::versions::record_bytes(own, set);
    let mut buffer = BytesMut::with_capacity(bytes);
    wire::versions::encode_record(own, set, &mut buffer);
    assert_eq!(buffer.len(), bytes, "a record has the size that was computed for it");
    buffer.freeze()
}

pub(crate) fn corrupt(partition: PartitionId) -> Failure {
    refuse(StorageError::Corrupt { partition })
}

/// What a caller hears when the engine refuses.
pub(crate) fn refuse(error: StorageError) -> Failure {
    let code = match &error {
        StorageError::Full => ErrorCode::DiskFull,
        StorageError::Corrupt { .. } => ErrorCode::Corrupt,
        StorageError::Closed => ErrorCode::ShuttingDown,
        StorageError::TooLong { .. } => ErrorCode::RecordTooLong,
        _ => ErrorCode::StorageFailed,
    };
    Failure::new(code, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record that was too long was answered as a failing disk, with the advice to replace it.
    #[test]
    fn each_refusal_of_an_engine_has_its_code() {
        let code = |error| refuse(error).code;
        assert_eq!(code(StorageError::Full), ErrorCode::DiskFull);
        assert_eq!(code(StorageError::TooLong { bytes: 9, bytes_max: 8 }), ErrorCode::RecordTooLong);
        assert_eq!(code(StorageError::Fatal { reason: "fsync".to_owned() }), ErrorCode::StorageFailed);
        assert_eq!(code(StorageError::Closed), ErrorCode::ShuttingDown);
        let failure = refuse(StorageError::TooLong { bytes: 9, bytes_max: 8 });
        assert_eq!(failure.detail, "a record or key of 9 bytes is over the engine's limit of 8 bytes");
    }
}
