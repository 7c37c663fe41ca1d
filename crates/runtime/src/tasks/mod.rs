//! Running futures beside the caller.

pub mod os;

use crate::BoxFuture;

/// Where futures run.
///
/// Code above this crate never calls an executor directly. Channels, locks and notifications of `tokio::sync` are
/// allowed everywhere, because they work on any executor; `tokio::{spawn, time, net, fs}` only in this crate.
pub trait Tasks: Send + Sync {
    /// Runs `future` on the caller's own executor thread, so that it shares the caller's connections and caches.
    fn spawn(&self, future: BoxFuture<'static, ()>);

    /// Runs `future` on the executor thread kept for work that may hold the processor or the disk for milliseconds
    /// (compaction, syncing, scrubbing), away from requests.
    fn spawn_background(&self, future: BoxFuture<'static, ()>);
}
