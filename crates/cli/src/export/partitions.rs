//! Walking a whole store, partition by partition in token order.

use std::ops::ControlFlow;

use ::bytes::Bytes;
use client::{ClientError, StoreHandle, StoreWalk, WalkError, WalkOptions};
use futures_util::{StreamExt, stream};
use model::{Cluster, Store, VersionSet};
use wire::ErrorCode;

use crate::failure::CliError;
use crate::output::program;
use crate::text::count;

/// Partitions whose beginning is fetched before their turn.
const PARTITIONS_AHEAD: usize = 8;

/// Records of a partition, in order.
pub(crate) type Chunk = Vec<(Bytes, VersionSet)>;

/// What is met on the way.
pub(crate) enum What {
    /// Records, in order.
    Records(Chunk),
    /// The end of a partition.
    PartitionEnd,
}

/// One step of the way.
pub(crate) struct WalkStep {
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
    mut take: impl FnMut(WalkStep) -> Result<ControlFlow<()>, CliError>,
) -> Result<u64, CliError> {
    let mut walks = stream::iter(cluster.ring.partitions())
        .map(|partition| async move {
            let bounds = cluster.ring.bounds(partition.id).expect("the ring has its partitions");
            let mut walk = StoreWalk::new(handle.clone(), store, bounds, options);
            let first = walk.next().await;
            (walk, first)
        })
        .buffered(PARTITIONS_AHEAD);
    let (mut done, mut damaged) = (0, 0);
    while let Some((mut walk, mut chunk)) = walks.next().await {
        while let Some(records) = chunk.map_err(|error| stopped(handle, store, error))? {
            if take(WalkStep { what: What::Records(records), done })?.is_break() {
                return Ok(damaged + walk.damaged());
            }
            chunk = walk.next().await;
        }
        damaged += walk.damaged();
        done += 1;
        if take(WalkStep { what: What::PartitionEnd, done })?.is_break() {
            return Ok(damaged);
        }
    }
    Ok(damaged)
}

/// Why the walk cannot go on, and what to do.
fn stopped(handle: &StoreHandle, store: &Store, error: WalkError) -> CliError {
    match error {
        WalkError::Refused(error) => error.into(),
        WalkError::Unanswered { partition, required, last } => {
            let few = match required {
                1 => "no replica answers".to_owned(),
                _ => format!("fewer than {required} replicas answer"),
            };
            let advice = advice(handle, store, &last);
            CliError::Other(format!("partition {partition}: {few}: {last}; {advice}"))
        }
        WalkError::TooFewReplicas { partition, required, left } => CliError::Other(format!(
            "partition {partition} has {}, and a get needs {required}; add nodes, or ask for fewer with `{} store set {} \
             --consistency N,R,W`",
            count(left as u64, "replica"),
            program(),
            store.name
        )),
    }
}

fn advice(handle: &StoreHandle, store: &Store, error: &ClientError) -> &'static str {
    let is_read_only = handle.cluster().read_only(store.name.as_str()).is_some();
    match error {
        // Of an artifact no record is left out: its nodes fetch damaged chunks again.
        ClientError::Failed { code: ErrorCode::Corrupt, .. } if is_read_only => {
            "nodes fetch damaged chunks again where they can; to see what they lack, run `tontine doctor`"
        }
        ClientError::Failed { code: ErrorCode::Corrupt, .. } => {
            "to export the other records, run `tontine export --leave-out-damaged`"
        }
        _ => "to see which nodes are down, run `tontine doctor`",
    }
}
