//! The log of the embedded coordination service.

use bytes::Bytes;
use coordination::documents;
use coordination::embedded::EmbeddedSession;
use coordination::{CoordinationService, documents::cluster_path};
use xxhash_rust::xxh3::xxh3_64;

const HEADER: usize = 12;
const PREFIX: usize = 16;
const MARK: &[u8] = b"\xf5TC\n";

/// Panics when a directory with this log makes the service panic, or opens and then cannot be read.
pub fn check(input: &[u8]) {
    open(input);
    let repaired = with_right_checksums(input);
    if repaired != input {
        open(&repaired);
    }
}

fn open(log: &[u8]) {
    let folder = tempfile::tempdir().expect("there is room for a small file");
    std::fs::write(folder.path().join("coordination.log"), log).expect("there is room for a small file");
    let executor =
        tokio::runtime::Builder::new_current_thread().build().expect("an executor needs no rights");
    executor.block_on(async {
        let Ok(session) = EmbeddedSession::open(folder.path()).await else { return };
        // Documents may be anything; what is no cluster is refused by name.
        let _ = documents::read_cluster(&session).await;
        let _ = session.get(&cluster_path()).await.map(|document| -> Bytes { document.data });
        session.close().await.expect("a session that opened can be closed");
    });
}

/// The same bytes, with the checksum of each record as it must be for its body.
fn with_right_checksums(log: &[u8]) -> Vec<u8> {
    let mut bytes = log.to_vec();
    let mut at = HEADER;
    while let Some(prefix) = bytes.get(at..at + PREFIX) {
        let length = u32::from_le_bytes([prefix[4], prefix[5], prefix[6], prefix[7]]) as usize;
        let end = (at + PREFIX).saturating_add(length);
        if !prefix.starts_with(MARK) || bytes.len() < end {
            break;
        }
        let check = xxh3_64(&bytes[at + PREFIX..end]);
        bytes[at + 8..at + PREFIX].copy_from_slice(&check.to_le_bytes());
        at = end;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_put_right_as_the_service_does() {
        let log = include_bytes!("../corpus/coordination/beginning");
        assert_eq!(with_right_checksums(log), log);
    }
}
