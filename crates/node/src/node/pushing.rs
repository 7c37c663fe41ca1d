//! Orders about artifacts, and the judgement of swaps: what [`protocol::push`] decides, for an operator who asks this node.
//!
//! Each order is one change of the cluster document under compare-and-set. A swap is judged by what all nodes say under
//! exactly the document that it follows, and nothing of it lives in this process: whoever asks again, anywhere, goes on.

use std::sync::{Arc, Weak};
use std::time::Duration;

use client::artifacts_staged;
use client::peers::Peers;
use coordination::CoordinationError;
use coordination::documents::{self, PublishError, ReadError};
use futures_util::future::join_all;
use model::readonly::{ArtifactError, Order, Push, Standing};
use model::{ArtifactNumber, ArtifactsError, Cluster, NodeId, ReadOnlyStore, StoreName, WallMillis};
use protocol::push::{Enough, Judgement, Report, judge};
use runtime::{Disk, Ports};
use wire::error::ErrorCode;
use wire::messages::{
    ArtifactsDocument, ArtifactsGet, ArtifactsOrder, ClusterDocument, Failure, Request, Response,
};

use super::defining::{OLDER_ASKED, OLDER_PAUSE, known};
use super::{Node, NodeConfig};
use crate::artifacts::{Artifacts, Parts};
use crate::events::Events;
use crate::metrics::Metrics;
use crate::pulse::Pulse;
use crate::view::CurrentView;

/// How often a change is tried that others were faster with, or that the service did not confirm.
const ATTEMPTS: usize = 8;
/// How long another node may take to say what it holds.
const TELL_PATIENCE: Duration = Duration::from_secs(2);

/// Looks after a node's artifacts from then on.
pub(super) async fn start(
    config: &NodeConfig,
    (ports, disk): (&Ports, &Arc<dyn Disk>),
    view: &Arc<CurrentView>,
    peers: &Arc<Peers>,
    (pulse, events, metrics): (Arc<Pulse>, Arc<Events>, Arc<Metrics>),
) -> Arc<Artifacts> {
    let parts = Parts {
        node: config.id,
        view: view.clone(),
        ports: ports.clone(),
        disk: disk.clone(),
        sources: config.sources.clone(),
        peers: peers.clone(),
        pulse,
        events,
        metrics,
        fetch_ceiling: config.fetch_ceiling,
        bytes_max: config.artifact_bytes_max,
    };
    Artifacts::start(parts).await
}

/// Answers what is asked about artifacts.
pub(super) async fn answer(node: Weak<Node>, request: Request) -> Result<Response, Failure> {
    match request {
        Request::ArtifactsOrder(ArtifactsOrder { json }) => {
            let order = serde_json::from_slice(&json);
            let order =
                order.map_err(|error| artifact_refused(format!("the order cannot be read: {error}")))?;
            carry_out(node, order).await
        }
        Request::ArtifactRead(read) => {
            let artifacts = node.upgrade().ok_or_else(ended)?.artifacts.clone();
            artifacts.give(read).await
        }
        _ => {
            let node = node.upgrade().ok_or_else(ended)?;
            let json = serde_json::to_vec(&node.artifacts.told()).expect("progress is plain data").into();
            Ok(Response::ArtifactsDocument(ArtifactsDocument { json }))
        }
    }
}

fn ended() -> Failure {
    Failure::new(ErrorCode::ShuttingDown, "the node is stopping")
}

async fn carry_out(node: Weak<Node>, mut order: Order) -> Result<Response, Failure> {
    let (session, now) = {
        let node = node.upgrade().ok_or_else(ended)?;
        (node.coordination.lock().clone(), node.ports.clock.wall())
    };
    let (mut unconfirmed, mut asked) = (false, 1);
    for _ in 0..ATTEMPTS {
        let read = documents::read_cluster(&*session).await;
        let cluster = read.map_err(|error| refused(&error.into()))?.ok_or_else(no_cluster)?;
        let (known, clock) = known(&*node.upgrade().ok_or_else(ended)?);
        if let Err(older) = documents::check_known(&cluster, Some(&known)) {
            if asked == OLDER_ASKED {
                return Err(refused(&older));
            }
            asked += 1;
            clock.sleep(OLDER_PAUSE).await;
            continue;
        }
        settle_target(&mut order, &cluster)?;
        if unconfirmed && is_done(&order, &cluster) {
            return done(&node, cluster);
        }
        let next = changed(&cluster, &order, now)?;
        if next.read_only == cluster.read_only {
            return done(&node, cluster);
        }
        check_staged(&node, &cluster, &order).await?;
        match documents::publish_cluster(&*session, &next).await {
            Ok(()) => {
                tracing::info!(generation = next.generation.0, ?order, "artifacts changed");
                return done(&node, next);
            }
            // Somebody was faster: change what they stored.
            Err(PublishError::Superseded { .. }) => {}
            Err(PublishError::Read(ReadError::Coordination(CoordinationError::Indeterminate { .. }))) => {
                unconfirmed = true;
            }
            Err(error) => return Err(refused(&error)),
        }
    }
    let code = match unconfirmed {
        true => ErrorCode::CoordinationUnconfirmed,
        false => ErrorCode::CoordinationUnavailable,
    };
    Err(Failure::new(code, format!("the cluster document was changed by others {ATTEMPTS} times; try again")))
}

/// Takes the new document in, and answers with it.
fn done(node: &Weak<Node>, cluster: Cluster) -> Result<Response, Failure> {
    let json = serde_json::to_vec(&cluster).expect("a cluster is plain data").into();
    node.upgrade().ok_or_else(ended)?.offer(cluster);
    Ok(Response::ClusterDocument(ClusterDocument { json }))
}

fn no_cluster() -> Failure {
    let detail = "the coordination service holds no cluster; create it with `tontine cluster create`";
    Failure::new(ErrorCode::CoordinationUnavailable, detail)
}

fn refused(error: &PublishError) -> Failure {
    Failure::new(ErrorCode::CoordinationUnavailable, error.to_string())
}

fn artifact_refused(error: impl ToString) -> Failure {
    Failure::new(ErrorCode::ArtifactRefused, error.to_string())
}

fn found<'a>(cluster: &'a Cluster, store: &StoreName) -> Result<&'a ReadOnlyStore, Failure> {
    let missing = || artifact_refused(ArtifactsError::NoStore { store: store.to_string() });
    cluster.read_only(store.as_str()).ok_or_else(missing)
}

/// Makes a rollback a swap to the artifact that is behind the served one now, so that trying again does not go further
/// back.
fn settle_target(order: &mut Order, cluster: &Cluster) -> Result<(), Failure> {
    if let Order::Rollback { store, replicas } = order {
        let number = found(cluster, store)?.behind().map_err(artifact_refused)?;
        *order = Order::Swap { store: store.clone(), number, replicas: *replicas, first: false };
    }
    Ok(())
}

/// Whether the document says what the order wants.
fn is_done(order: &Order, cluster: &Cluster) -> bool {
    let listed = |name: &StoreName, number: &ArtifactNumber| {
        cluster.read_only(name.as_str()).and_then(|store| store.artifact(*number))
    };
    match order {
        Order::Create { store, replicas } => {
            cluster.read_only(store.as_str()).is_some_and(|store| store.replicas == *replicas)
        }
        Order::Stage { store, number, manifest, source } => listed(store, number)
            .is_some_and(|artifact| (artifact.manifest, &artifact.source) == (*manifest, source)),
        // Asked again it changes nothing, or tells why it is over.
        Order::Push { .. } => false,
        Order::Swap { store, number, .. } => {
            listed(store, number).is_some_and(|artifact| artifact.standing == Standing::Served)
        }
        Order::Delete { store, number } | Order::Abort { store, number } => listed(store, number).is_none(),
        Order::Rollback { .. } => false,
    }
}

/// The document that carries out the order; its stores are the same when that is done already.
fn changed(cluster: &Cluster, order: &Order, now: WallMillis) -> Result<Cluster, Failure> {
    type Change<'a> = &'a dyn Fn(&ReadOnlyStore) -> Result<ReadOnlyStore, ArtifactError>;
    let change = |store: &StoreName, change: Change<'_>| {
        cluster.with_artifacts(store.as_str(), change).map_err(artifact_refused)
    };
    match order {
        Order::Create { store, replicas } => cluster
            .with_read_only(store.clone(), *replicas)
            .map_err(|error| Failure::new(ErrorCode::StoreRefused, error.to_string())),
        Order::Stage { store, number, manifest, source } => {
            change(store, &|found| found.stage(*number, *manifest, source))
        }
        Order::Push { store, number, manifest, source, replicas, abort_after_ms } => {
            let abort_at = abort_after_ms.map(|after| WallMillis(now.0.saturating_add(after)));
            let push = Push { replicas: *replicas, abort_at, ..Push::default() };
            change(store, &|found| found.push(*number, *manifest, source, &push))
        }
        Order::Swap { store, number, first, .. } => {
            let listed = found(cluster, store)?.artifact(*number);
            if *first && listed.is_some_and(|artifact| artifact.standing != Standing::Staging) {
                let (store, number) = (store.clone(), *number);
                return Err(artifact_refused(ArtifactError::WasServed { store, number }));
            }
            change(store, &|found| found.swap(*number))
        }
        Order::Delete { store, number } => change(store, &|found| found.delete(*number)),
        Order::Abort { store, number } => change(store, &|found| found.abort(*number)),
        Order::Rollback { .. } => unreachable!("a rollback was made a swap"),
    }
}

/// Whether enough replicas of each slice hold what a swap will serve, by exactly this document.
async fn check_staged(node: &Weak<Node>, cluster: &Cluster, order: &Order) -> Result<(), Failure> {
    let Order::Swap { store, number, replicas, .. } = order else { return Ok(()) };
    let reports = reports(&node.upgrade().ok_or_else(ended)?, cluster, store).await;
    let enough = replicas.map_or(Enough::All, Enough::Replicas);
    match judge(cluster, found(cluster, store)?, *number, &reports, enough) {
        Judgement::Ready => Ok(()),
        Judgement::NotYet { slices, lacking } => {
            let lacking: Vec<String> = lacking.iter().map(NodeId::to_string).collect();
            let detail = format!(
                "artifact {number} of store {store} is not held by enough replicas of {slices} of {} slices; {} lack it",
                cluster.ring.partitions().len(),
                lacking.join(", ")
            );
            Err(Failure::new(ErrorCode::NotStaged, detail))
        }
    }
}

/// What all nodes that answer hold of the artifacts of a store.
async fn reports(node: &Arc<Node>, cluster: &Cluster, store: &StoreName) -> Vec<Report> {
    let tell = cluster.nodes.iter().map(|entry| async move {
        let told = match entry.id == node.config.id {
            true => node.artifacts.told().to_string().into_bytes().into(),
            false => {
                let asked = node.antientropy.peers().call(entry.id, ArtifactsGet {}.into());
                match asked.within(&node.ports.clock, TELL_PATIENCE).await {
                    Ok(Response::ArtifactsDocument(document)) => document.json,
                    _ => return Vec::new(),
                }
            }
        };
        let staged = artifacts_staged(entry.id, &told).into_iter();
        staged.filter(|(name, _)| name == store).map(|(_, report)| report).collect()
    });
    join_all(tell).await.into_iter().flatten().collect()
}
