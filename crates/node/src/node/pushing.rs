//! Orders about artifacts, and the judgement of swaps: what [`protocol::push`] decides, for an operator who asks this node.
//!
//! Each order is one change of the cluster document under compare-and-set. A swap is judged by what all nodes say under
//! exactly the document that it follows, and nothing of it lives in this process: whoever asks again, anywhere, goes on.

use std::sync::{Arc, Weak};
use std::time::Duration;

use client::artifacts_staged;
use coordination::CoordinationError;
use coordination::documents::{self, PublishError, ReadError};
use futures_util::future::{Either, join_all, select};
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
use crate::antientropy::AntiEntropy;
use crate::artifacts::{Artifacts, Parts, ScrubOptions};
use crate::events::Events;
use crate::metrics::Metrics;
use crate::pulse::Pulse;
use crate::view::CurrentView;

/// How often a change is tried that others were faster with, or that the service did not confirm.
const ATTEMPTS: usize = 8;
/// How long another node may take to say what it holds.
const TELL_PATIENCE: Duration = Duration::from_secs(2);
/// How long nodes may take to go by the newest document: until then each of them lacks every artifact.
const STAGED_PATIENCE: Duration = Duration::from_secs(2);
/// How long a source may take to give a manifest that is to be listed. Nodes that fetch it have more patience.
const SOURCE_PATIENCE: Duration = Duration::from_secs(3);
/// Pause between two looks at what they hold.
const STAGED_PAUSE: Duration = Duration::from_millis(100);

/// Looks after a node's artifacts from then on.
pub(super) async fn start(
    config: &NodeConfig,
    (ports, disk): (&Ports, &Arc<dyn Disk>),
    view: &Arc<CurrentView>,
    antientropy: &AntiEntropy,
    (pulse, events, metrics): (Arc<Pulse>, Arc<Events>, Arc<Metrics>),
) -> Arc<Artifacts> {
    let parts = Parts {
        node: config.id,
        view: view.clone(),
        ports: ports.clone(),
        disk: disk.clone(),
        sources: config.sources.clone(),
        peers: antientropy.peers().clone(),
        pulse,
        events,
        metrics,
        fetch_ceiling: config.fetch_ceiling,
        bytes_max: config.artifact_bytes_max,
        scrub: ScrubOptions::new(&config.antientropy, antientropy.scrub_orders().clone()),
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
    let command = command_of(&order);
    let (mut unconfirmed, mut asked, mut attempts, mut is_readable) = (false, 1, 0, false);
    let mut patient_until = None;
    while attempts < ATTEMPTS {
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
        if !std::mem::replace(&mut is_readable, true) {
            check_source(&node, &cluster, &next, &order).await?;
        }
        if let Some(refusal) = check_staged(&node, &cluster, &order, &command).await? {
            let until = *patient_until.get_or_insert_with(|| clock.now().after(STAGED_PATIENCE));
            if clock.now() >= until {
                return Err(refusal);
            }
            clock.sleep(STAGED_PAUSE).await;
            continue;
        }
        attempts += 1;
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
        Order::Create { store, replicas, kept } => {
            let is_it = |store: &ReadOnlyStore| (store.replicas, store.kept) == (*replicas, *kept);
            cluster.read_only(store.as_str()).is_some_and(is_it)
        }
        Order::Keep { store, kept } => {
            cluster.read_only(store.as_str()).is_some_and(|store| store.kept == Some(*kept))
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
        Order::Create { store, replicas, kept } => {
            let created = cluster
                .with_read_only(store.clone(), *replicas)
                .map_err(|error| Failure::new(ErrorCode::StoreRefused, error.to_string()))?;
            let Some(kept) = kept else { return Ok(created) };
            let generation = created.generation;
            let kept = created.with_artifacts(store.as_str(), |found| found.keep(*kept));
            kept.map(|kept| Cluster { generation, ..kept }).map_err(artifact_refused)
        }
        Order::Keep { store, kept } => change(store, &|found| found.keep(*kept)),
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

/// Refuses to list what this node cannot read where it is said to be. A source that takes long may come to it later.
async fn check_source(
    node: &Weak<Node>,
    cluster: &Cluster,
    next: &Cluster,
    order: &Order,
) -> Result<(), Failure> {
    let (Order::Push { store, number, .. } | Order::Stage { store, number, .. }) = order else {
        return Ok(());
    };
    let node = node.upgrade().ok_or_else(ended)?;
    let listed = |cluster: &Cluster| {
        cluster.read_only(store.as_str()).and_then(|store| store.artifact(*number)).cloned()
    };
    let Some(coming) = listed(next).filter(|_| node.config.sources_checked) else { return Ok(()) };
    let is_known = listed(cluster).is_some_and(|known| known.source == coming.source);
    if is_known {
        return Ok(());
    }
    let (artifacts, clock) = (node.artifacts.clone(), node.ports.clock.clone());
    let reading = Box::pin(artifacts.unreadable(store, &coming));
    match select(reading, clock.sleep(SOURCE_PATIENCE)).await {
        Either::Left((Some(error), _)) => Err(artifact_refused(format!(
            "{} cannot read artifact {number} of store {store} at {}: {error}; nothing was listed. Every node must be able to \
             read it: to try it on the machine of {0}, run `tontine artifact show {1}`",
            node.config.id, coming.source
        ))),
        _ => Ok(()),
    }
}

/// How an operator gives an order that serves something.
fn command_of(order: &Order) -> String {
    match order {
        Order::Rollback { store, .. } => format!("tontine artifact rollback {store}"),
        Order::Swap { store, number, .. } => format!("tontine artifact swap {store} {number}"),
        _ => String::new(),
    }
}

/// Why too few replicas of some slice hold what a swap will serve, by exactly this document; `None` when enough do.
async fn check_staged(
    node: &Weak<Node>,
    cluster: &Cluster,
    order: &Order,
    command: &str,
) -> Result<Option<Failure>, Failure> {
    let Order::Swap { store: name, number, replicas, .. } = order else { return Ok(None) };
    let (reports, silent) = reports(&node.upgrade().ok_or_else(ended)?, cluster, name).await;
    let store = found(cluster, name)?;
    let judged = |enough| judge(cluster, store, *number, &reports, enough);
    let Judgement::NotYet { slices, lacking } = judged(replicas.map_or(Enough::All, Enough::Replicas)) else {
        return Ok(None);
    };
    let (silent, lacking): (Vec<NodeId>, Vec<NodeId>) =
        lacking.into_iter().partition(|node| silent.contains(node));
    let named = |nodes: &[NodeId], one: &str, more: &str| {
        let names: Vec<String> = nodes.iter().map(NodeId::to_string).collect();
        let verb = if names.len() == 1 { one } else { more };
        (!names.is_empty()).then(|| format!("{} {verb}", names.join(", ")))
    };
    let who = [named(&silent, "does not answer", "do not answer"), named(&lacking, "lacks it", "lack it")];
    let fewer = (1..store.replicas).rev().find(|count| judged(Enough::Replicas(*count)) == Judgement::Ready);
    let go_on = fewer.map_or_else(String::new, |count| {
        format!("; to serve it where {count} of each slice hold it, run `{command} --replicas {count}`")
    });
    let detail = format!(
        "artifact {number} of store {name} is not held by enough replicas of {slices} of {} slices: {}{go_on}; to see how far \
         the nodes are, run `tontine artifact list {name}`",
        cluster.ring.partitions().len(),
        who.into_iter().flatten().collect::<Vec<_>>().join(", and ")
    );
    Ok(Some(Failure::new(ErrorCode::NotStaged, detail)))
}

/// What all nodes that answer hold of the artifacts of a store, and the nodes that do not answer.
async fn reports(node: &Arc<Node>, cluster: &Cluster, store: &StoreName) -> (Vec<Report>, Vec<NodeId>) {
    let tell = cluster.nodes.iter().map(|entry| async move {
        let told = match entry.id == node.config.id {
            true => node.artifacts.told().to_string().into_bytes().into(),
            false => {
                let asked = node.antientropy.peers().call(entry.id, ArtifactsGet {}.into());
                match asked.within(&node.ports.clock, TELL_PATIENCE).await {
                    Ok(Response::ArtifactsDocument(document)) => document.json,
                    _ => return Err(entry.id),
                }
            }
        };
        let staged = artifacts_staged(entry.id, &told).into_iter();
        Ok(staged.filter(|(name, _)| name == store).map(|(_, report)| report).collect::<Vec<_>>())
    });
    let (mut reports, mut silent) = (Vec::new(), Vec::new());
    for told in join_all(tell).await {
        match told {
            Ok(of_one) => reports.extend(of_one),
            Err(node) => silent.push(node),
        }
    }
    (reports, silent)
}
