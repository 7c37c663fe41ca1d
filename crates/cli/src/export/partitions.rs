//! Walking a whole store, partition by partition in token order.

use std::ops::ControlFlow;

use client::StoreHandle;
use futures_util::{StreamExt, stream};
use model::{Cluster, Store};

use super::walk::{Chunk, Walk, WalkOptions};
use crate::failure::CliError;

/// Partitions whose beginning is fetched before their turn.
const PARTITIONS_AHEAD: usize = 8;

/// What is met on the way.
pub(crate) enum What {
    /// Records, in order.
    Records(Chunk),
    /// The end of a partition.
    PartitionEnd,
}

/// One step of the way.
pub(crate) struct Step {
    /// What was met.
    pub(crate) what: What,
    /// Partitions that were walked to their end.
    pub(crate) done: u64,
}

/// Walks all records of a store until `take` has enough; returns how many damaged records were left out, at most.
pub(crate) async fn walk_store(
    handle: &StoreHandle,
    cluster: &Cluster,
    store: &Store,
    options: WalkOptions,
    mut take: impl FnMut(Step) -> Result<ControlFlow<()>, CliError>,
) -> Result<u64, CliError> {
    let mut walks = stream::iter(cluster.ring.partitions())
        .map(|partition| async move {
            let bounds = cluster.ring.bounds(partition.id).expect("the ring has its partitions");
            let mut walk = Walk::new(handle.clone(), store, bounds, options);
            let first = walk.next().await;
            (walk, first)
        })
        .buffered(PARTITIONS_AHEAD);
    let (mut done, mut damaged) = (0, 0);
    while let Some((mut walk, mut chunk)) = walks.next().await {
        while let Some(records) = chunk? {
            if take(Step { what: What::Records(records), done })?.is_break() {
                return Ok(damaged + walk.damaged());
            }
            chunk = walk.next().await;
        }
        damaged += walk.damaged();
        done += 1;
        if take(Step { what: What::PartitionEnd, done })?.is_break() {
            return Ok(damaged);
        }
    }
    Ok(damaged)
}
