//! A server whose transaction log has no room left: it ends, and nothing that it confirmed is lost.

use std::time::Duration;

use bytes::Bytes;
use coordination::{CoordinationError, CoordinationService, CreateMode};

use super::servers::Ensemble;
use super::{open_brief, path, read};

/// Room for some dozens of the documents below, in blocks of 512 bytes.
const BLOCKS_MAX: u32 = 1024;

#[tokio::test]
async fn a_full_transaction_log_loses_nothing_that_was_confirmed_and_calls_end() {
    let mut ensemble = Ensemble::start(1);
    ensemble.servers[0].kill();
    ensemble.servers[0].start_with_little_room(BLOCKS_MAX);
    ensemble.wait_serving();
    let session = open_brief(&ensemble.address("/full")).await;
    let content = Bytes::from(vec![b'x'; 10_000]);
    let mut confirmed = Vec::new();
    let refusal = loop {
        let at = path(&format!("/document-{}", confirmed.len()));
        let created = session.create(&at, content.clone(), CreateMode::Persistent);
        match tokio::time::timeout(Duration::from_secs(60), created).await.expect("calls end") {
            Ok(_) => confirmed.push(at),
            Err(error) => break error,
        }
        assert!(confirmed.len() < 1000, "the log is never full");
    };
    assert!(
        matches!(refusal, CoordinationError::Indeterminate { .. }),
        "the write was sent, and may have reached the disk: {refusal}"
    );
    assert!(confirmed.len() > 10, "{}", confirmed.len());
    ensemble.servers[0].kill();
    ensemble.servers[0].start();
    ensemble.wait_serving();
    let session = open_brief(&ensemble.address("/full")).await;
    for at in confirmed {
        assert_eq!(read(&session, at.as_str()).await.as_ref(), Some(&content), "{at}");
    }
}
