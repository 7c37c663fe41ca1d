//! Whether this node may answer a request at all: by the generation that the request was formed under, by that of this
//! node, and by what it is asked as.
//!
//! ```text
//!   request's generation < since the partition is as it is, here      stale-generation, with the newer document
//!   this node's generation < since it is so, by the caller            behind, unless the document comes in time
//!   otherwise both mean the same nodes: is this node one of them?     not-replica if it is not
//! ```
//!
//! Must never: let a node answer for records, or store them, that it does not hold by the document that it follows.

use std::sync::Arc;
use std::time::Duration;

use model::routing::step;
use model::{Cluster, Generation, NodeId, Partition, PartitionId, Token};
use wire::error::ErrorCode;
use wire::messages::{Failure, Request, Role};

use super::Replica;
use crate::stores::LocalStore;
use crate::view::{Admitted, View};

/// How long a request that is newer than this node waits for the document that it was formed under.
pub(super) const BEHIND_PATIENCE: Duration = Duration::from_millis(500);

/// As what a node is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AskedAs {
    /// To answer for what it holds.
    Reader,
    /// To store what a writer sends.
    Writer,
    /// As one that may have parked hints for a replica, or shall.
    StandIn,
    /// By this node itself, for what it holds in whichever role.
    Either,
    /// To compare what it holds, or is bringing in, or gives away.
    Holder,
}

impl From<Role> for AskedAs {
    fn from(role: Role) -> Self {
        match role {
            Role::Replica => AskedAs::Reader,
            Role::StandIn => AskedAs::StandIn,
        }
    }
}

/// From which generation on a node can answer the request.
pub(super) fn needed(request: &Request) -> Generation {
    match request {
        Request::ReplicaGet(get) => get.terms.since,
        Request::ReplicaMerge(merge) => merge.since,
        Request::Scan(scan) => scan.since,
        _ => Generation::default(),
    }
}

impl Replica {
    /// The store of a request by `view`.
    ///
    /// # Errors
    /// `UnknownStore`, or `Behind` when the request is newer than the view.
    pub(crate) fn store_of<'v>(
        &self,
        view: &'v View,
        store: &str,
        generation: Generation,
    ) -> Result<&'v Arc<LocalStore>, Failure> {
        view.store(store).ok_or_else(|| {
            // Callers inside this process name the greatest number there is.
            if generation > view.cluster().generation && generation != Generation(u64::MAX) {
                return self.behind(view, generation);
            }
            if view.read_only(store).is_some() {
                return read_only(store);
            }
            let known: Vec<&str> = view.cluster().store_names().map(|name| name.as_str()).collect();
            let detail = format!("store {store:?} does not exist; the stores are: {}", known.join(", "));
            Failure::new(ErrorCode::UnknownStore, detail)
        })
    }

    /// Whether a request formed under `generation` may be answered here for a partition of `store`.
    ///
    /// # Errors
    /// `StaleGeneration` with the newer document, `Behind`, `NotReplica`.
    pub(crate) fn check(
        &self,
        view: &View,
        store: &LocalStore,
        partition: &Partition,
        (generation, asked): (Generation, AskedAs),
    ) -> Result<(), Failure> {
        let since = view.cluster().accepted_since(store.definition(), partition);
        if generation < since {
            return Err(stale(view, partition, (generation, since)));
        }
        let own = self.node();
        let is_it = match asked {
            AskedAs::Reader => model::routing::replicas(store.definition(), partition).contains(&own),
            AskedAs::Writer => {
                view.writes(own, store, partition)
                    || (step(store.definition(), partition).is_some() && view.holds(own, store, partition))
            }
            AskedAs::StandIn => !model::routing::replicas(store.definition(), partition).contains(&own),
            AskedAs::Holder => view.holds(own, store, partition),
            AskedAs::Either => true,
        };
        if is_it { Ok(()) } else { Err(self.misplaced(view, partition, generation)) }
    }

    /// Refuses a request that is newer than this node.
    pub(super) fn behind(&self, view: &View, generation: Generation) -> Failure {
        let detail = format!(
            "{} follows generation {} of the cluster, and the request needs {}",
            self.node(),
            view.cluster().generation.0,
            generation.0
        );
        Failure::new(ErrorCode::Behind, detail)
    }

    /// Refuses what this node was not to be asked, with news if it has any.
    pub(crate) fn misplaced(&self, view: &View, partition: &Partition, generation: Generation) -> Failure {
        let own = view.cluster().generation;
        let partition = view.cluster().ring.partition(Token(partition.start)).id;
        let detail = format!("{} is not what it was asked as for partition {partition}", self.node());
        match generation.cmp(&own) {
            std::cmp::Ordering::Less => {
                Failure { code: ErrorCode::StaleGeneration, detail, cluster: Some(view.document().clone()) }
            }
            std::cmp::Ordering::Equal => Failure::new(ErrorCode::NotReplica, detail),
            std::cmp::Ordering::Greater => self.behind(view, generation),
        }
    }

    /// Refuses what was asked about a partition that the ring does not have: it was split or merged since, or will be.
    pub(crate) fn unknown(&self, view: &View, partition: PartitionId, generation: Generation) -> Failure {
        if generation > view.cluster().generation {
            return self.behind(view, generation);
        }
        let detail = format!("partition {partition} is not one of the ring's");
        Failure { code: ErrorCode::StaleGeneration, detail, cluster: Some(view.document().clone()) }
    }

    /// Leave to store what was routed by `at`: the view as it is now, if the keys lie there as they do by `at`.
    ///
    /// # Errors
    /// `StaleGeneration` with the newer document when one of the keys has moved since.
    pub(crate) fn admit_as<'k>(
        &self,
        at: &View,
        store: &LocalStore,
        keys: impl IntoIterator<Item = &'k [u8]>,
    ) -> Result<Admitted<'_>, Failure> {
        let admitted = self.view().admit();
        let generation = at.cluster().generation;
        if admitted.cluster().generation != generation {
            for key in keys {
                let (_, partition) = admitted.partition(store, key);
                self.check(&admitted, store, partition, (generation, AskedAs::Writer))?;
            }
        }
        Ok(admitted)
    }

    /// Whether `target` is a node for which a hint may be parked, and this one a node that may hold it: one that has left, or
    /// that no partition names any more because it leaves, might be gone with it.
    pub(super) fn check_target(
        &self,
        view: &View,
        store: &LocalStore,
        partition: &Partition,
        (target, generation): (NodeId, Generation),
    ) -> Result<(), Failure> {
        let since = view.cluster().accepted_since(store.definition(), partition);
        if generation < since {
            return Err(stale(view, partition, (generation, since)));
        }
        let is_it = view.writes(target, store, partition) && self.stays(view.cluster());
        if is_it { Ok(()) } else { Err(self.misplaced(view, partition, generation)) }
    }
}

impl Replica {
    fn stays(&self, cluster: &Cluster) -> bool {
        let own = self.node();
        cluster.node(own).is_some_and(|node| node.role != model::Role::Leaving || cluster.ring.lists(own))
    }
}

/// Refuses whatever a read-only store does not do.
fn read_only(store: &str) -> Failure {
    let detail = format!("store {store} serves an artifact: it takes no writes");
    Failure::new(ErrorCode::ReadOnly, detail)
}

/// Refuses a request that is too old for a store's keys in a partition, and tells what is newer.
fn stale(view: &View, partition: &Partition, (generation, since): (Generation, Generation)) -> Failure {
    let cluster = view.cluster();
    // One of a bucket is shown as what it belongs to.
    let partition = cluster.ring.partition(Token(partition.start)).id;
    Failure {
        code: ErrorCode::StaleGeneration,
        detail: format!(
            "the request was formed under generation {}; the cluster is at generation {} and accepts none before {} for \
             partition {partition}",
            generation.0, cluster.generation.0, since.0
        ),
        cluster: Some(view.document().clone()),
    }
}
