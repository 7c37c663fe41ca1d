//! What Tontine keeps where: the places of the tree, and typed access to them.
//!
//! ```text
//! /active/<node>    ephemeral   who is alive: addresses and incarnation
//! /config/cluster   persistent  the cluster document; its generation only grows
//! /members/<node>   persistent  that a node existed: the last incarnation it took, the last clean stop it came back from
//! /config/epochs    persistent  collection epochs given out and completed; both only grow
//! /config/ids       persistent  the greatest id that was given to a node; it only grows
//! /headmaster/...   ephemeral, sequential  candidates for the headmaster's office
//! /plans/<number>   persistent  what shall move, and below it how far that is
//! /wishes/<number>  persistent  orders of operators, each with its answer
//! /elasticity/...   fleets, the managed clusters of elasticity ([`elasticity`])
//! ```
//!
//! Documents are JSON, so that an operator can read them with any tool; unknown fields are ignored, so that a newer
//! program may add some.

pub mod balance;
pub mod elasticity;
mod ids;
mod membership;
pub mod numbered;
pub mod office;
pub mod orders;
pub mod plans;
mod restoring;
pub(crate) mod service_move;

use std::sync::Arc;

use bytes::Bytes;
use model::{Cluster, ClusterError, Epoch, Generation, Node, NodeId, unquoted};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{CoordinationError, CoordinationService, CreateMode, DocumentPath, Expected, Watch};

pub use self::ids::{Ids, ids_path, prepare_ids, read_ids, take_id};
pub use self::membership::{AddressTaken, check_addresses, registered_before};
pub use self::restoring::{Restored, restored, restored_last};
pub use self::service_move::{ServiceMove, arrive};

/// What a cluster's documents lie below, of the names at the top of its place. Everything else there is not its own.
pub(crate) const OWN_NAMES: [&str; 8] =
    ["active", "balance", "config", "elasticity", "headmaster", "members", "plans", "wishes"];

/// Whether a name at the top of a cluster's place is that of its own documents.
pub fn is_own(name: &str) -> bool {
    OWN_NAMES.contains(&name)
}

/// Where active nodes register.
pub fn active_path() -> DocumentPath {
    known("/active")
}

/// Where one node registers while it is active.
pub fn active_node_path(node: NodeId) -> DocumentPath {
    active_path().child(&node.to_string()).expect("the names of nodes are short")
}

/// Where the cluster document is.
pub fn cluster_path() -> DocumentPath {
    known("/config/cluster")
}

/// Where it is remembered that a node existed.
pub fn member_path(node: NodeId) -> DocumentPath {
    known("/members").child(&node.to_string()).expect("the names of nodes are short")
}

/// Where the collection epochs are.
pub fn epochs_path() -> DocumentPath {
    known("/config/epochs")
}

/// Below which candidates for the headmaster's office register, each as an ephemeral sequential document.
pub fn headmaster_path() -> DocumentPath {
    known("/headmaster")
}

fn known(path: &str) -> DocumentPath {
    debug_assert!(
        path.split('/').nth(1).is_some_and(|name| OWN_NAMES.contains(&name)),
        "{path} is not listed"
    );
    DocumentPath::new(path).expect("the paths in this module are well formed")
}

/// A node that is alive, as it says itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActiveNode {
    /// Who it is and where it can be reached.
    pub node: Node,
    /// How often its data directory was begun anew; greater ones are later. Of a node that waits to be named, when its
    /// directory was given its id.
    pub incarnation: u64,
    /// The user of ZooKeeper as whom it would go along if the documents moved there, empty for none; `None` when it
    /// would not go along.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follows_as: Option<String>,
    /// The cluster whose member the node is. `None` of a node that waits to be named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// The greatest form of the cluster document that it understands.
    pub reads_form: u32,
}

impl ActiveNode {
    /// A node that waits to be named, and does not go along with its documents.
    pub fn new(node: Node, incarnation: u64) -> Self {
        let reads_form = model::cluster::FORM_MAX;
        ActiveNode { node, incarnation, follows_as: None, cluster: None, reads_form }
    }
}

/// That a node existed, as it says itself at each start. What its disk knows less than this, the disk has lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The greatest incarnation that it took.
    pub incarnation: u64,
    /// The last clean stop of this incarnation that it came back from. A disk that offers it, or an earlier one, is a
    /// copy.
    pub redeemed: Option<u64>,
}

/// Why a document could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The content is not what belongs there.
    #[error("document {path} is malformed: {reason}")]
    Malformed {
        /// The document.
        path: DocumentPath,
        /// What is wrong with it.
        reason: String,
    },
    /// Another program wrote the content, in a form that this one does not understand.
    #[error("document {path} is not for this program: {reason}")]
    OtherForm {
        /// The document.
        path: DocumentPath,
        /// Which form it has, and what to do.
        reason: String,
    },
    /// The documents are in another service.
    #[error("the documents of cluster {:?} have moved to {}; name that address", .0.name, .0.to)]
    Moved(Box<ServiceMove>),
    /// The documents are being moved to another service, and nobody may change them meanwhile.
    #[error(
        "the documents of cluster {:?} are being moved to {}; wait until that is done, or if it has ended half way, move \
         them with the same addresses again",
        .0.name, .0.to
    )]
    Moving(Box<ServiceMove>),
    /// The documents are being moved to this service, and are not in force here yet.
    #[error(
        "the documents of cluster {:?} are being moved here from {}, which is still in force; wait until that is done, or \
         if it has ended half way, move them with the same addresses again",
        .0.name, .0.from
    )]
    Arriving(Box<ServiceMove>),
    /// The service refused.
    #[error(transparent)]
    Coordination(#[from] CoordinationError),
}

/// Why a node could not register.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// Another session has registered this node and is alive.
    #[error(
        "two nodes with one id: node {id} is already running{}; give this node another id or stop the other process (if \
         that was this node's last process and it was killed, its registration expires within seconds: try again in \
         10 s)",
        .other.as_ref().map(|other| format!(" at {}", other.node.native)).unwrap_or_default()
    )]
    AlreadyActive {
        /// The id that both claim.
        id: NodeId,
        /// The other one, if its document can be read. When it has the addresses of the one that registers, and an
        /// incarnation that only its directory can know, it is its predecessor, whose session ends soon: try again.
        other: Option<Box<ActiveNode>>,
    },
    /// The service refused.
    #[error(transparent)]
    Coordination(#[from] CoordinationError),
}

/// Why a cluster document could not be published.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PublishError {
    /// What is stored is at least as new.
    #[error("cannot store generation {1}: generation {0} is stored already", .stored.0, .offered.0)]
    Superseded {
        /// Generation of the stored document.
        stored: Generation,
        /// Generation of the refused one.
        offered: Generation,
    },
    /// What is stored belongs to another cluster.
    #[error("the coordination service holds cluster {stored:?}, not cluster {offered:?}")]
    OtherCluster {
        /// Name of the stored cluster.
        stored: String,
        /// Name of the refused one.
        offered: String,
    },
    /// The document does not hold together: nobody could read it.
    #[error("cannot store generation {}, which contradicts itself: {error}", .offered.0)]
    Invalid {
        /// Generation of the refused one.
        offered: Generation,
        /// The first thing that does not hold.
        error: ClusterError,
    },
    /// What is stored cannot be read, so nothing is written over it.
    #[error(transparent)]
    Read(#[from] ReadError),
}

impl From<CoordinationError> for PublishError {
    fn from(error: CoordinationError) -> PublishError {
        PublishError::Read(error.into())
    }
}

/// Reads a registration.
pub(crate) fn parse_active(path: &DocumentPath, data: &[u8]) -> Result<ActiveNode, ReadError> {
    decode(path, data)
}

fn encode(document: &impl Serialize) -> Bytes {
    Bytes::from(serde_json::to_vec(document).expect("documents have text keys and finite numbers"))
}

fn decode<T: DeserializeOwned>(path: &DocumentPath, data: &[u8]) -> Result<T, ReadError> {
    serde_json::from_slice(data)
        .map_err(|error| ReadError::Malformed { path: path.clone(), reason: unquoted::document(&error) })
}

/// Creates a document's parents, where they are missing.
///
/// # Errors
/// As [`CoordinationService::create`].
pub async fn create_parents(
    service: &dyn CoordinationService,
    path: &DocumentPath,
) -> Result<(), CoordinationError> {
    let parents: Vec<DocumentPath> = std::iter::successors(path.parent(), DocumentPath::parent).collect();
    for parent in parents.iter().rev().filter(|parent| !parent.is_root()) {
        match service.create(parent, Bytes::new(), CreateMode::Persistent).await {
            Ok(_) | Err(CoordinationError::NodeExists { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Registers a node as active, for as long as the session lives. Registering again in the same session replaces
/// what was registered.
///
/// # Errors
/// [`RegisterError::AlreadyActive`] when another living session has registered the id.
pub async fn register(service: &dyn CoordinationService, active: &ActiveNode) -> Result<(), RegisterError> {
    let path = active_node_path(active.node.id);
    create_parents(service, &path).await?;
    loop {
        match service.create(&path, encode(active), CreateMode::Ephemeral).await {
            Ok(_) => return Ok(()),
            Err(CoordinationError::NodeExists { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        match service.get(&path).await {
            Ok(found) if found.stat.owner == Some(service.session()) => {
                service.set(&path, encode(active), Expected::Any).await?;
                return Ok(());
            }
            Ok(found) => {
                let other = decode(&path, &found.data).ok().map(Box::new);
                return Err(RegisterError::AlreadyActive { id: active.node.id, other });
            }
            // It has just vanished.
            Err(CoordinationError::NoNode { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The nodes that are active, sorted by id, and a watch for when one comes or goes.
///
/// # Errors
/// When a registration is malformed or the service refuses.
pub async fn active_nodes(service: &dyn CoordinationService) -> Result<(Vec<ActiveNode>, Watch), ReadError> {
    let path = active_path();
    let (names, watch) = match service.children_and_watch(&path).await {
        Err(CoordinationError::NoNode { .. }) => {
            create_parents(service, &active_node_path(NodeId(0))).await?;
            service.children_and_watch(&path).await?
        }
        other => other?,
    };
    Ok((read_active(service, names).await?, watch))
}

/// The nodes that are active now, sorted by id. Changes nothing.
///
/// # Errors
/// When a registration is malformed or the service refuses.
pub async fn active_nodes_now(service: &dyn CoordinationService) -> Result<Vec<ActiveNode>, ReadError> {
    let names = match service.children(&active_path()).await {
        Err(CoordinationError::NoNode { .. }) => return Ok(Vec::new()),
        other => other?,
    };
    read_active(service, names).await
}

async fn read_active(
    service: &dyn CoordinationService,
    names: Vec<String>,
) -> Result<Vec<ActiveNode>, ReadError> {
    let mut nodes: Vec<ActiveNode> = Vec::with_capacity(names.len());
    for name in names {
        let Ok(path) = active_path().child(&name) else { continue };
        match service.get(&path).await {
            Ok(document) => nodes.push(decode(&path, &document.data)?),
            // It left while we were reading; the watch has fired.
            Err(CoordinationError::NoNode { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    nodes.sort_by_key(|active| active.node.id);
    Ok(nodes)
}

/// What is remembered of a node; `None` when it never was.
///
/// # Errors
/// When it is malformed or the service refuses.
pub async fn read_member(
    service: &dyn CoordinationService,
    node: NodeId,
) -> Result<Option<Member>, ReadError> {
    let path = member_path(node);
    match service.get(&path).await {
        Ok(document) => decode(&path, &document.data).map(Some),
        Err(CoordinationError::NoNode { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Remembers a node. Only the node itself does, while it is registered, so nobody else writes at the same time.
///
/// # Errors
/// What the service refuses.
pub async fn write_member(
    service: &dyn CoordinationService,
    node: NodeId,
    member: &Member,
) -> Result<(), CoordinationError> {
    let path = member_path(node);
    create_parents(service, &path).await?;
    match service.create(&path, encode(member), CreateMode::Persistent).await {
        Err(CoordinationError::NodeExists { .. }) => {
            service.set(&path, encode(member), Expected::Any).await.map(|_| ())?;
        }
        created => created.map(|_| ())?,
    }
    service_move::counts(service).await
}

/// The stored cluster document, if there is one.
///
/// # Errors
/// When it is malformed or the service refuses.
pub async fn read_cluster(service: &dyn CoordinationService) -> Result<Option<Cluster>, ReadError> {
    let found = service_move::look(service).await?;
    found.map(|(standing, ..)| service_move::for_readers(standing)).transpose()
}

/// Stores a cluster document if its generation is greater than that of the stored one; of several at the same time
/// with the same generation one succeeds. One that nobody could read is refused.
///
/// # Errors
/// [`PublishError::Superseded`] when the stored one is at least as new. After
/// [`CoordinationError::Indeterminate`] read what is stored, or publish again: if it was stored nevertheless, it is
/// `Superseded` by itself.
pub async fn publish_cluster(
    service: &dyn CoordinationService,
    cluster: &Cluster,
) -> Result<(), PublishError> {
    let offered = cluster.generation;
    cluster.check().map_err(|error| PublishError::Invalid { offered, error })?;
    let path = cluster_path();
    create_parents(service, &path).await?;
    loop {
        let written = match service_move::look(service).await? {
            Some((standing, _, version)) => {
                check_newer(&service_move::for_writers(standing)?, cluster)?;
                service.set(&path, encode(cluster), Expected::Version(version)).await.map(|_| ())
            }
            None => service.create(&path, encode(cluster), CreateMode::Persistent).await.map(|_| ()),
        };
        match written {
            Ok(()) => return Ok(()),
            // Somebody was faster: look at what they stored.
            Err(
                CoordinationError::BadVersion { .. }
                | CoordinationError::NodeExists { .. }
                | CoordinationError::NoNode { .. },
            ) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn check_newer(stored: &Cluster, offered: &Cluster) -> Result<(), PublishError> {
    if !stored.is_also(offered) {
        let (stored, offered) = (stored.called(), offered.called());
        return Err(PublishError::OtherCluster { stored, offered });
    }
    if stored.generation >= offered.generation {
        return Err(PublishError::Superseded { stored: stored.generation, offered: offered.generation });
    }
    Ok(())
}

/// How far the cluster's collection rounds are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Epochs {
    /// The greatest epoch that was given out to a round.
    pub opened: Epoch,
    /// The greatest epoch whose round was carried out by all nodes: each of them remembers at least this one.
    pub completed: Epoch,
}

/// The collection epochs; zeros when there was no round yet.
///
/// # Errors
/// When the document is malformed or the service refuses.
pub async fn read_epochs(service: &dyn CoordinationService) -> Result<Epochs, ReadError> {
    let path = epochs_path();
    match service.get(&path).await {
        Ok(document) => decode(&path, &document.data),
        Err(CoordinationError::NoNode { .. }) => Ok(Epochs::default()),
        Err(error) => Err(error.into()),
    }
}

/// Takes a new epoch for a round: greater than `above` and than every one taken before.
///
/// # Errors
/// As [`read_epochs`]. After [`CoordinationError::Indeterminate`] an epoch may have been taken for nobody, which does
/// no harm.
pub async fn open_epoch(service: &dyn CoordinationService, above: Epoch) -> Result<Epoch, ReadError> {
    let open = |epochs: Epochs| Epochs { opened: Epoch(epochs.opened.max(above).0 + 1), ..epochs };
    Ok(change_epochs(service, open).await?.opened)
}

/// Writes down that an epoch is completed, unless a greater one is.
///
/// # Errors
/// As [`read_epochs`]; after [`CoordinationError::Indeterminate`] it may be written.
pub async fn complete_epoch(service: &dyn CoordinationService, epoch: Epoch) -> Result<(), ReadError> {
    let complete = |epochs: Epochs| Epochs { completed: epochs.completed.max(epoch), ..epochs };
    change_epochs(service, complete).await.map(|_| ())
}

async fn change_epochs(
    service: &dyn CoordinationService,
    change: impl Fn(Epochs) -> Epochs,
) -> Result<Epochs, ReadError> {
    let path = epochs_path();
    create_parents(service, &path).await?;
    loop {
        let (epochs, written) = match service.get(&path).await {
            Ok(document) => {
                let epochs = change(decode(&path, &document.data)?);
                let expected = Expected::Version(document.stat.version);
                (epochs, service.set(&path, encode(&epochs), expected).await.map(|_| ()))
            }
            Err(CoordinationError::NoNode { .. }) => {
                let epochs = change(Epochs::default());
                let created = service.create(&path, encode(&epochs), CreateMode::Persistent).await;
                (epochs, created.map(|_| ()))
            }
            Err(error) => return Err(error.into()),
        };
        match written {
            Ok(()) => return service_move::counts(service).await.map(|()| epochs).map_err(ReadError::from),
            // Somebody was faster: change what they stored.
            Err(
                CoordinationError::BadVersion { .. }
                | CoordinationError::NodeExists { .. }
                | CoordinationError::NoNode { .. },
            ) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Follows the cluster document.
pub struct ClusterWatch {
    service: Arc<dyn CoordinationService>,
    /// Only newer ones are handed out.
    generation: Option<Generation>,
    /// Set with the last reading, which is not to be repeated before it fires.
    watch: Option<Watch>,
}

/// Follows the cluster document: every one that is newer than `known` (any, when `None`), as soon as it is stored.
pub fn watch_cluster(service: Arc<dyn CoordinationService>, known: Option<Generation>) -> ClusterWatch {
    ClusterWatch { service, generation: known, watch: None }
}

impl ClusterWatch {
    /// The next newer document; those in between may be skipped. Cancel safe.
    ///
    /// # Errors
    /// After [`ReadError::Malformed`], [`ReadError::Moved`] and [`ReadError::Arriving`] the next call waits for another
    /// document; after
    /// [`CoordinationError::Unavailable`] it reads again (pause before calling it);
    /// [`CoordinationError::SessionLost`] is final.
    pub async fn next(&mut self) -> Result<Cluster, ReadError> {
        let path = cluster_path();
        loop {
            if let Some(watch) = self.watch.take() {
                watch.fired().await?;
            }
            let (document, watch) = self.service.get_and_watch(&path).await?;
            self.watch = Some(watch);
            let Some(document) = document else { continue };
            let cluster = service_move::for_readers(service_move::read_standing(&document.data)?)?;
            match self.generation {
                Some(known) if cluster.generation <= known => {
                    if cluster.generation < known {
                        let generation = cluster.generation.0;
                        tracing::warn!(
                            generation,
                            kept = known.0,
                            "coordination service holds an older cluster document, the newer one is kept"
                        );
                    }
                }
                _ => {
                    self.generation = Some(cluster.generation);
                    return Ok(cluster);
                }
            }
        }
    }
}
