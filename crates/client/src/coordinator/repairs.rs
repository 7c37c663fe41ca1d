//! How many read repairs are under way, and how many were not begun because of the limit.
//!
//! A repair goes on after its get was answered, and nobody waits for it; without a limit, gets of a cluster whose
//! replicas differ much would fill its memory with repairs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use wire::messages::{MultiGet, ReplicaMerge, Request, RequestOptions};

/// Most read repairs under way at the same time, over all workers of a node (or of one client), unless the
/// coordinator's settings say otherwise. A healthy one takes a millisecond, so this is far more than a node can be busy
/// with.
pub const REPAIRS_MAX: usize = 1024;

/// The account of read repairs. Shared by all coordinators of a node.
#[derive(Debug, Default)]
pub struct Repairs {
    under_way: AtomicUsize,
    begun: AtomicU64,
    refused: AtomicU64,
}

/// A repair under way, until it is dropped.
#[derive(Debug)]
pub(super) struct Repairing(Arc<Repairs>);

impl Repairs {
    /// Repairs sent so far: one for each message to one replica.
    pub fn begun(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    /// Repairs that were left to the next get, or to anti-entropy, because as many were under way as may be.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Counts one more; `None` when `most` are under way.
    pub(super) fn begin(self: &Arc<Self>, most: usize) -> Option<Repairing> {
        let more = |under_way| (under_way < most).then_some(under_way + 1);
        match self.under_way.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(_) => {
                self.begun.fetch_add(1, Ordering::Relaxed);
                Some(Repairing(self.clone()))
            }
            Err(_) => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    }
}

impl Drop for Repairing {
    fn drop(&mut self) {
        let before = self.0.under_way.fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "more repairs have ended than were begun: {}", self.0.begun());
    }
}

/// The request by which a node finds and repairs what a client was about to repair itself. It asks all replicas, so that
/// it finds it.
pub(super) fn read_by_node(merge: ReplicaMerge) -> Request {
    let ReplicaMerge { store, generation, entries, .. } = merge;
    let options = RequestOptions { preferred: Some(u8::MAX), ..RequestOptions::default() };
    let keys = entries.into_iter().map(|(key, _)| key).collect();
    Request::MultiGet(MultiGet { store, generation, options, keys })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_the_limit_repairs_are_refused_and_counted_until_one_has_ended() {
        let repairs = Arc::new(Repairs::default());
        let mut under_way: Vec<Repairing> =
            (0..REPAIRS_MAX).map(|_| repairs.begin(REPAIRS_MAX).unwrap()).collect();
        assert!(repairs.begin(REPAIRS_MAX).is_none() && repairs.begin(0).is_none());
        assert_eq!((repairs.begun(), repairs.refused()), (REPAIRS_MAX as u64, 2));
        under_way.pop();
        assert!(repairs.begin(REPAIRS_MAX).is_some());
        assert_eq!(repairs.refused(), 2);
    }
}
