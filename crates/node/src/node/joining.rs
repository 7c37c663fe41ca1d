//! How a node joins its cluster: what it finds, what it has lost, and that it is there.
//!
//! Must never: let a node pass for whole, or for one that never was, because it ended half way through joining.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use coordination::documents::{self, ActiveNode, ReadError, RegisterError};
use coordination::{CoordinationError, CoordinationService};
use model::order::Order;
use model::{Cluster, Node, NodeId, PartitionId, Store};
use protocol::antientropy::merkle::Tree;
use protocol::collection::{Remembered, Start, judge_start};
use runtime::{Disk, Ports};
use storage::Remains;

use super::{NodeConfig, StartError};
use crate::engines::Engines;
use crate::epochs::Epochs;
use crate::events::Event;
use crate::hints::Hints;
use crate::identity::{Found, Gone, Homecoming, Identity, IdentityError, KnownMember, bring_back};
use crate::local_copy;
use crate::rebalance::{self, Refill};
use crate::replica::Replica;
use crate::stores::{LocalStore, Stamper};
use crate::view::{CurrentView, View};

/// How long at least the registration of this directory's last process may be in the way: its session has not ended
/// yet.
const PREDECESSOR_PATIENCE_MIN: Duration = Duration::from_secs(10);

/// What a node is once it has joined.
pub(super) struct Joined {
    pub(super) identity: Identity,
    pub(super) stamper: Arc<Stamper>,
    /// Where below the data directory the records lie.
    pub(super) replica: Arc<Replica>,
    /// What it has lost.
    pub(super) refill: Refill,
    /// How it comes back.
    standing: Homecoming,
    /// Which of its engines were gone.
    gone: Vec<Gone>,
    /// The stores that were brought back.
    back: Vec<String>,
    /// Where what it must not serve any more lies now.
    aside: Option<String>,
    /// Stores of which the only copy lies there.
    only_copies: Vec<String>,
}

/// What `hints` and stores are called among engines.
const HINTS: &str = "hints";
const STORES: &str = "stores/";

impl Joined {
    /// What people should know about how it comes back.
    pub(super) fn events(&self) -> Vec<Event> {
        let whole = match self.standing {
            Homecoming::Lost => Some(Event::DiskLost {}),
            Homecoming::RolledBack => Some(Event::RollbackNoticed {}),
            Homecoming::New | Homecoming::Stopped { .. } | Homecoming::Ended => None,
        };
        let gone = self.gone.iter().map(|gone| match gone.engine.rsplit_once(STORES) {
            Some((_, store)) => Event::StoreLost { store: store.to_owned() },
            None => Event::HintsLost {},
        });
        let aside =
            self.aside.iter().map(|directory| Event::ContentsSetAside { directory: directory.clone() });
        let only = self.aside.iter().flat_map(|directory| {
            let only = |store: &String| Event::OnlyCopySetAside {
                store: store.clone(),
                directory: directory.clone(),
            };
            self.only_copies.iter().map(only)
        });
        let back = self.back.iter().map(|store| Event::StoreBroughtBack { store: store.clone() });
        whole.into_iter().chain(gone).chain(back).chain(aside).chain(only).collect()
    }
}

/// Settles who the node is, and opens what it holds. Also says whether the coordination service knows that it is there.
pub(super) async fn join(
    config: &NodeConfig,
    ports: &Ports,
    disk: &Arc<dyn Disk>,
    engines: &dyn Engines,
    coordination: &dyn CoordinationService,
) -> Result<(Joined, bool), StartError> {
    let mut identity = Identity::open(disk.clone(), &config.member.cluster, config.member.id)?;
    identity
        .require_password(config.doors.resp.password.is_some(), config.doors.may_stop_requiring_password)?;
    let cluster = find_cluster(config, &**disk, coordination).await?;
    // Engines that forget have nothing that could be gone.
    let (mut gone, back) = match engines.forget() {
        true => identity.refuse_to_forget().map(|()| Default::default())?,
        false => (
            identity.gone(&find_lost(engines, &cluster)?),
            bring_back::find(&**disk, &cluster).map_err(IdentityError::Disk)?,
        ),
    };
    gone.retain(|gone| back.iter().all(|store| gone.engine != store_engine(store)));
    // What makes way for what is brought back is set aside like what is not the node's own.
    let replaced: Vec<Gone> = back
        .iter()
        .map(|store| Gone { engine: store_engine(store), replaced: true })
        .chain(gone.iter().cloned())
        .collect();
    let known = known_of(coordination, config.member.id, identity.incarnation_before().is_none()).await?;
    let standing = identity.settle(known, ports.clock.wall(), &replaced);
    let registered = introduce(config, ports, coordination, &cluster, (&identity, standing)).await?;
    // First what is lost, then who the node is, then that it was: whatever ends in between, nothing passes for whole.
    let refill = missing(disk, engines, (config.member.id, &cluster), standing, &gone).await?;
    // Before its epoch, which must not be that of contents that are no part of it.
    let aside = identity.set_aside().await.map_err(IdentityError::Disk)?;
    let only_copies = match &aside {
        Some(directory) => only_copies(&**disk, &cluster, directory)?,
        None => Vec::new(),
    };
    let epochs = settle_epochs(disk, coordination, standing).await?;
    refuse_elsewhere(coordination).await?;
    identity.begin().await?;
    for store in &back {
        let engine = store_engine(store);
        bring_back::take(&**disk, store, &engine).await.map_err(IdentityError::Disk)?;
    }
    let told = remember_member(coordination, config.member.id, &identity, standing).await?;
    let stamper =
        Stamper::new(config.member.id, identity.incarnation(), identity.births_used(), ports.clock.clone());
    let stamper = Arc::new(stamper);
    stamper.rise_above(epochs.known().floor);
    let mut remembered = crate::antientropy::recall(&**disk).await.map_err(IdentityError::Disk)?;
    if standing.owns_nothing() {
        remembered.clear();
    }
    remembered.retain(|store, _| replaced.iter().all(|gone| gone.engine != store_engine(store)));
    let hints_engine = open(engines, HINTS).await?;
    let hints = Arc::new(Hints::new(hints_engine, stamper.clone(), config.hints.bytes_max));
    let mut stores = Vec::new();
    for definition in &cluster.stores {
        let trees = remembered.remove(definition.name.as_str()).unwrap_or_default();
        let margin = config.repair.expiry.margin;
        stores.push(open_store(engines, definition, &stamper, (trees, margin)).await?);
    }
    let found = find_engines(engines, engine_names(&cluster))?;
    identity.hold(found).await.map_err(IdentityError::Disk)?;
    let view = begin(disk, cluster, stores).await;
    for store in view.get().stores() {
        for partition in refill.incomplete(store.definition().name.as_str()) {
            store.trees().set_incomplete(partition, true);
        }
    }
    let replica = Arc::new(Replica::new(
        config.member.id,
        view,
        hints,
        epochs,
        (ports.tasks.clone(), ports.clock.clone()),
    ));
    let joined = Joined { identity, stamper, replica, refill, standing, gone, back, aside, only_copies };
    Ok((joined, registered && told))
}

/// Registers the node under the incarnation that it takes, and makes the cluster document say where it is.
async fn introduce(
    config: &NodeConfig,
    ports: &Ports,
    coordination: &dyn CoordinationService,
    cluster: &Cluster,
    (identity, standing): (&Identity, Homecoming),
) -> Result<bool, StartError> {
    let entry = cluster.node(config.member.id).expect("membership was checked");
    let active = config.registration(entry, identity.incarnation());
    documents::check_addresses(&active.node, &cluster.nodes)?;
    let before = identity.incarnations_registered();
    identity.announce().await?;
    if !register(ports, coordination, &active, &before).await? {
        return match identity.incarnation_before() {
            Some(_) => Ok(false),
            None => {
                let detail = "it did not register the node".to_owned();
                Err(StartError::PastUnknown { node: config.member.id, detail })
            }
        };
    }
    ask_again(config, coordination, (identity, standing)).await?;
    // Another address is ordered when the node follows its documents.
    Ok(*entry == active.node)
}

/// Asks about the node's past once more, now that the node is registered: what is read from here on is no older than
/// that, and nobody else has its id. Before, a server that was behind may have answered, or another process of this node
/// may have ended in between. Nothing was written so far.
async fn ask_again(
    config: &NodeConfig,
    coordination: &dyn CoordinationService,
    (identity, standing): (&Identity, Homecoming),
) -> Result<(), StartError> {
    let known = known_of(coordination, config.member.id, identity.incarnation_before().is_none()).await?;
    let now = identity.standing_by(known);
    if known != KnownMember::Unavailable && now.owns_nothing() && now != standing {
        return Err(StartError::PastChanged { node: config.member.id });
    }
    Ok(())
}

/// The view by which the node begins. It has adopted the document once the copy of it is durable.
async fn begin(disk: &Arc<dyn Disk>, cluster: Cluster, stores: Vec<Arc<LocalStore>>) -> Arc<CurrentView> {
    let copied = local_copy::write(disk.clone(), &cluster).await;
    let generation = cluster.generation;
    let view = Arc::new(CurrentView::new(View::new(Arc::new(cluster), stores)));
    match copied {
        Ok(()) => view.settle(generation),
        Err(error) => tracing::warn!(%error, "local copy of the cluster document not written"),
    }
    view
}

/// The stores of one replica of which something lies below a directory, set aside: nobody has another copy of that.
fn only_copies(disk: &dyn Disk, cluster: &Cluster, directory: &str) -> Result<Vec<String>, StartError> {
    let mut stores = Vec::new();
    for store in cluster.stores.iter().filter(|store| store.consistency.replicas <= 1) {
        let name = store.name.as_str();
        let files = disk.list(&format!("{directory}/{}", store_engine(name))).map_err(IdentityError::Disk)?;
        if !files.is_empty() {
            stores.push(name.to_owned());
        }
    }
    Ok(stores)
}

/// The name of a store's engine.
pub(super) fn store_engine(store: &str) -> String {
    format!("{STORES}{store}")
}

/// The engines of a node of this cluster.
fn engine_names(cluster: &Cluster) -> Vec<String> {
    let stores = cluster.stores.iter().map(|store| store_engine(store.name.as_str()));
    stores.chain([HINTS.to_owned()]).collect()
}

/// What lies under these names.
pub(super) fn find_engines(engines: &dyn Engines, names: Vec<String>) -> Result<Vec<Found>, StartError> {
    let find = |name: String| match engines.remains(&name) {
        Ok(found) => Ok((name, found)),
        Err(error) => Err(StartError::Storage { store: name, error }),
    };
    names.into_iter().map(find).collect()
}

/// What lies under the names of a node's engines. What is left of a store without another replica counts as all there
/// is: it is better than nothing.
fn find_lost(engines: &dyn Engines, cluster: &Cluster) -> Result<Vec<Found>, StartError> {
    let mut found = find_engines(engines, engine_names(cluster))?;
    for store in cluster.stores.iter().filter(|store| store.consistency.replicas <= 1) {
        let name = store_engine(store.name.as_str());
        for (_, remains) in found.iter_mut().filter(|(engine, _)| *engine == name) {
            if let Remains::Part(number) = *remains {
                *remains = Remains::Whole(number);
            }
        }
    }
    Ok(found)
}

pub(super) async fn open(
    engines: &dyn Engines,
    name: &str,
) -> Result<Arc<dyn storage::StorageEngine>, StartError> {
    engines.open(name).await.map_err(|error| StartError::Storage { store: name.to_owned(), error })
}

pub(super) async fn open_store(
    engines: &dyn Engines,
    definition: &Store,
    stamper: &Arc<Stamper>,
    (trees, margin): (BTreeMap<PartitionId, Tree>, Duration),
) -> Result<Arc<LocalStore>, StartError> {
    let engine = open(engines, &store_engine(definition.name.as_str())).await?;
    // An older record in the place of a damaged one leaves their number as it was, but not the tree.
    let damaged = engine.repairable().is_some_and(|engine| engine.damage().found > 0);
    let trees = if damaged { BTreeMap::new() } else { trees };
    let store = LocalStore::new(definition.clone(), engine, stamper.clone());
    Ok(Arc::new(store.keeping_expired(margin).remembering(trees)))
}

/// What the coordination service remembers of a node; `fresh` when its directory remembers nothing, and so nobody else
/// can tell a lost disk from a new one.
pub(super) async fn known_of(
    coordination: &dyn CoordinationService,
    id: NodeId,
    fresh: bool,
) -> Result<KnownMember, StartError> {
    match documents::read_member(coordination, id).await {
        Ok(Some(member)) => Ok(KnownMember::Member(member)),
        Ok(None) => Ok(KnownMember::Nothing),
        Err(error) if fresh => Err(StartError::PastUnknown { node: id, detail: error.to_string() }),
        // The service is there. It says what it knows under another session.
        Err(ReadError::Coordination(error @ CoordinationError::SessionLost)) => {
            Err(StartError::Register(error.into()))
        }
        Err(error) => {
            tracing::warn!(%error, "coordination service not asked about this node's past");
            Ok(KnownMember::Unavailable)
        }
    }
}

/// Remembers in the coordination service that the node is. False when that must be done later.
pub(super) async fn remember_member(
    coordination: &dyn CoordinationService,
    id: NodeId,
    identity: &Identity,
    standing: Homecoming,
) -> Result<bool, StartError> {
    let redeemed = if let Homecoming::Stopped { stop } = standing { Some(stop) } else { None };
    let member = documents::Member { incarnation: identity.incarnation(), redeemed };
    match documents::write_member(coordination, id, &member).await {
        Ok(()) => Ok(true),
        // The service knows that the node was, with an earlier incarnation. It is told of this one with the registration.
        Err(error) if standing == Homecoming::Ended => {
            tracing::warn!(%error, "coordination service not told of this start");
            Ok(false)
        }
        Err(error) => Err(StartError::Register(error.into())),
    }
}

/// Remembers in the coordination service that the node is, where the service was away when it started: until then an
/// older copy of its directory looks like one that was merely ended.
///
/// # Errors
/// What the service refuses; call again.
pub(super) async fn remember_late(
    coordination: &dyn CoordinationService,
    id: NodeId,
    incarnation: u64,
) -> Result<(), ReadError> {
    if documents::read_member(coordination, id).await?.is_some_and(|known| known.incarnation >= incarnation) {
        return Ok(());
    }
    let member = documents::Member { incarnation, redeemed: None };
    Ok(documents::write_member(coordination, id, &member).await?)
}

/// The partitions whose records this node has lost, remembered durably.
pub(super) async fn missing(
    disk: &Arc<dyn Disk>,
    engines: &dyn Engines,
    (id, cluster): (NodeId, &Cluster),
    standing: Homecoming,
    gone: &[Gone],
) -> Result<Refill, StartError> {
    let forgotten = engines.forget() && standing != Homecoming::New;
    let refill = if forgotten || matches!(standing, Homecoming::Lost | Homecoming::RolledBack) {
        Refill::everything(id, cluster)
    } else {
        let before = Refill::load(&**disk).map_err(IdentityError::Disk)?;
        // What it followed when it ended; the service may say something else by now.
        let begun = rebalance::begun(id, local_copy::read(&**disk).as_ref(), cluster);
        if before.is_none() && gone.is_empty() && begun.is_empty() {
            return Ok(Refill::default());
        }
        // A list that cannot be read counts as everything.
        let before = before
            .map_or_else(Refill::default, |list| list.unwrap_or_else(|| Refill::everything(id, cluster)));
        let lost = |store: &str| {
            gone.iter().any(|gone| gone.engine.rsplit_once(STORES).is_some_and(|(_, name)| name == store))
        };
        let mut refill = before.and(Refill::of(id, cluster, lost));
        refill.announce(begun);
        refill
    };
    Refill::save(disk.clone(), refill.text()).await.map_err(IdentityError::Disk)?;
    Ok(refill)
}

/// The newest cluster document: the service's, or this node's copy where that is newer or the service is away.
pub(super) async fn find_cluster(
    config: &NodeConfig,
    disk: &dyn Disk,
    coordination: &dyn CoordinationService,
) -> Result<Cluster, StartError> {
    let (served, detail, passes) = match documents::read_cluster(coordination).await {
        Ok(Some(cluster)) => (Some(cluster), String::new(), false),
        Ok(None) => (None, "there is none".to_owned(), false),
        Err(error @ (ReadError::Moved(_) | ReadError::Arriving(_))) => {
            return Err(StartError::Elsewhere(error));
        }
        Err(error) => {
            let passes = matches!(&error, ReadError::Coordination(error) if is_passing(error));
            (None, error.to_string(), passes)
        }
    };
    let copy = local_copy::read(disk);
    if let (Some(served), Some(copy)) = (&served, &copy)
        && !served.is_also(copy)
    {
        // Of the same name, perhaps: its data belongs to the other one.
        return Err(StartError::OtherCluster { found: served.called(), wanted: copy.called() });
    }
    let cluster = local_copy::newest(served, copy).ok_or(StartError::NoCluster { detail, passes })?;
    if cluster.name != config.member.cluster {
        return Err(StartError::OtherCluster { found: cluster.name, wanted: config.member.cluster.clone() });
    }
    match cluster.node(config.member.id) {
        None => Err(StartError::NotMember { node: config.member.id, cluster: cluster.name }),
        Some(entry) if entry.gone => Err(StartError::Gone { node: config.member.id, cluster: cluster.name }),
        Some(_) => Ok(cluster),
    }
}

/// Whether a node that follows `known` may order its address: not where the service was restored from an older copy.
/// The headmaster looks for the node at the address of that copy, so it would not learn of the newer document.
pub(super) async fn may_readdress(coordination: &dyn CoordinationService, known: &Cluster) -> bool {
    match documents::read_cluster(coordination).await {
        Ok(Some(stored)) if !local_copy::is_overtaken(&stored, known) => true,
        Ok(stored) => {
            let stored = stored.map_or(0, |stored| stored.generation.0);
            tracing::warn!(
                stored,
                known = known.generation.0,
                "new address of this node not ordered, the coordination service holds an older cluster document"
            );
            false
        }
        Err(error) => {
            tracing::warn!(%error, "new address of this node not ordered");
            false
        }
    }
}

/// Orders that the cluster document says where the node is. The node must be registered: then it is the only one with its
/// id. The order is carried out when a headmaster sees to it.
pub(super) async fn readdress(coordination: &dyn CoordinationService, me: &Node, now_ms: u64) {
    let (node, native) = (me.id, me.native.clone());
    tracing::info!(%node, native, "new address of this node ordered");
    let (resp, http, tls) = (me.resp.clone(), me.http.clone(), me.tls);
    let order = Order::Readdress { node, native, resp, http, tls };
    if let Err(error) = documents::orders::give(coordination, order, &format!("{node} itself"), now_ms).await
    {
        tracing::warn!(%error, "new address of this node not ordered");
    }
}

/// Whether the service may answer otherwise after a while.
pub(crate) fn is_passing(error: &CoordinationError) -> bool {
    matches!(
        error,
        CoordinationError::Unavailable { .. }
            | CoordinationError::Indeterminate { .. }
            | CoordinationError::SessionLost
    )
}

/// Refuses to follow what was read from a service that the documents have left meanwhile: it may have held nothing any
/// more.
async fn refuse_elsewhere(coordination: &dyn CoordinationService) -> Result<(), StartError> {
    match documents::read_cluster(coordination).await {
        Err(error @ (ReadError::Moved(_) | ReadError::Arriving(_))) => Err(StartError::Elsewhere(error)),
        _ => Ok(()),
    }
}

/// Registers the node. It waits for the process before it, whose session may not have ended yet: that is known by the
/// incarnations that this directory remembers, `before`. Anybody else who has the id keeps it: if the wait ended when
/// such a one stops, whoever restarts it would find its id taken, by a directory that knows nothing of its records.
///
/// False when the service could not be asked: the node is registered later. A session that has ended is an error, because
/// the service may be there.
pub(crate) async fn register(
    ports: &Ports,
    coordination: &dyn CoordinationService,
    active: &ActiveNode,
    before: &[u64],
) -> Result<bool, StartError> {
    // The service may notice late by half a session's time that it is over, and begins to count anew when it elects
    // another leader.
    let patience = PREDECESSOR_PATIENCE_MIN.max(2 * coordination.session_timeout());
    let give_up = ports.clock.now().after(patience);
    let mut told = false;
    loop {
        match documents::register(coordination, active).await {
            Ok(()) => return Ok(true),
            Err(RegisterError::AlreadyActive { other: Some(other), .. })
                if before.contains(&other.incarnation) && ports.clock.now() < give_up =>
            {
                if !told {
                    tracing::warn!(
                        node = %active.node.id,
                        incarnation = other.incarnation,
                        seconds_max = patience.as_secs(),
                        "waits for the registration of its last process to end"
                    );
                    told = true;
                }
                ports.clock.sleep(Duration::from_millis(100)).await;
            }
            // It may be registered. The next attempt finds that, or that the service is away.
            Err(RegisterError::Coordination(CoordinationError::Indeterminate { .. }))
                if ports.clock.now() < give_up =>
            {
                ports.clock.sleep(Duration::from_millis(100)).await;
            }
            Err(RegisterError::Coordination(error))
                if is_passing(&error) && error != CoordinationError::SessionLost =>
            {
                // The data path does not need the service; whoever watches the list sees the node later.
                tracing::warn!(%error, "coordination service unavailable, the node is registered later");
                return Ok(false);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// The stores of `cluster` that are open already, each under its new definition.
pub(super) fn reuse(current: &View, cluster: &Cluster) -> Vec<Option<Arc<LocalStore>>> {
    let known = |definition: &Store| {
        let open = current.store(definition.name.as_str())?;
        if open.definition() == definition {
            return Some(open.clone());
        }
        Some(Arc::new(open.redefined(definition.clone())))
    };
    cluster.stores.iter().map(known).collect()
}

/// Compares the disk's collection epoch with the completed one; `fresh` when the disk holds no contents, and so has no
/// epoch to begin with but the service's.
async fn compare(
    epochs: &Epochs,
    coordination: &dyn CoordinationService,
    fresh: bool,
) -> Result<(), StartError> {
    let completed = match documents::read_epochs(coordination).await {
        Ok(epochs) => epochs.completed,
        // A directory that was begun without its epoch would pass for a copy of earlier days at every later start.
        Err(error) if fresh => return Err(StartError::EpochUnknown { detail: error.to_string() }),
        Err(error) => {
            tracing::warn!(%error, "collection epochs not read; this node takes over none until they are");
            return Ok(());
        }
    };
    let remembered = epochs.known();
    match judge_start(fresh, remembered, completed) {
        Start::Sound => epochs.compare(remembered.epoch),
        Start::Fresh(epoch) => {
            let begun = Remembered { epoch, ..remembered };
            epochs.remember(begun).await.map_err(IdentityError::Disk)?;
            epochs.compare(epoch);
        }
        Start::RolledBack(epoch) => {
            return Err(StartError::RolledBack { found: remembered.epoch, completed: epoch });
        }
    }
    Ok(())
}

/// The collection epoch of the directory, compared with the service's. It comes before the identity, so that a directory
/// that was begun has one.
async fn settle_epochs(
    disk: &Arc<dyn Disk>,
    coordination: &dyn CoordinationService,
    standing: Homecoming,
) -> Result<Arc<Epochs>, StartError> {
    let epochs = Arc::new(Epochs::open(disk.clone()).map_err(IdentityError::Disk)?);
    compare(&epochs, coordination, standing.owns_nothing()).await?;
    Ok(epochs)
}
