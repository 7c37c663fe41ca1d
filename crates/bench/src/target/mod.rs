//! Targets: what a benchmark can be pointed at.
//!
//! A target opens sessions; a session carries one batch at a time. Over RESP the batch is a pipeline, natively
//! it is that many requests in flight. The driver knows nothing else, so that real Redis and Tontine meet the
//! very same client code.
//! **Never** dress a write whose fate is unknown as a failed one: that is [`Outcome::Indeterminate`].

pub mod native;
pub mod resp;
pub(crate) mod resp_codec;

use std::time::Instant;

use async_trait::async_trait;
use bytes::Bytes;

use crate::workload::Operation;

/// How one operation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// What a read found.
    Value(Option<Bytes>),
    /// What a multi-get found, in the order of its keys.
    Values(Vec<Option<Bytes>>),
    /// What a scan found: keys and values.
    Range(Vec<(Bytes, Bytes)>),
    /// A write was acknowledged.
    Written,
    /// The operation certainly had no effect, or was a read; with a short, bounded name of the reason.
    Failed(String),
    /// The write may or may not have happened.
    Indeterminate(String),
}

/// How one operation ended, and when its answer was complete.
#[derive(Clone, Debug)]
pub struct TimedOutcome {
    /// How.
    pub outcome: Outcome,
    /// When.
    pub at: Instant,
}

/// Why no session could be opened.
#[derive(Debug, thiserror::Error)]
pub enum TargetOpenError {
    /// The address does not answer.
    #[error("cannot connect to {address}: {source}")]
    Unreachable {
        /// Where to.
        address: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// Something answers, but not as this protocol demands.
    #[error("{address} does not answer as expected: {detail}")]
    Refused {
        /// Where.
        address: String,
        /// What it said instead.
        detail: String,
    },
}

/// Something that can be measured.
#[async_trait]
pub trait Target: Send + Sync {
    /// Protocol and address, for reports.
    fn describe(&self) -> String;

    /// Opens sessions for one client thread, on whose runtime they will be used.
    ///
    /// # Errors
    /// [`TargetOpenError`] when the target is not there or not what it should be.
    async fn open(&self, sessions: usize) -> Result<Vec<Box<dyn Session>>, TargetOpenError>;
}

/// One connection, or one caller's place in a shared client.
#[async_trait]
pub trait Session: Send {
    /// Carries out a batch: appends exactly one answer for each operation, in their order.
    ///
    /// A broken session answers for everything under way and reconnects on its next batch.
    async fn run(&mut self, batch: &[Operation], answers: &mut Vec<TimedOutcome>);
}
