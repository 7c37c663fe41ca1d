//! Moves all documents of a cluster to another service while its nodes run, and back.
//!
//! ```text
//!   claim the new place ─▶ fence the old one ─▶ copy ─▶ verify ─▶ decide ─▶ finish
//!                          └──────────── abort ─────────────┘
//! ```
//!
//! Each step looks at what both places say and does what comes next, so whoever repeats the command after it has ended
//! half way goes on. `documents::service_move` says what lies where, and why exactly one place is in force at any instant.
//!
//! One process at a time writes to the new place: the one whose session holds the lock there.
//!
//! Must never: change a document of the new place that others may have changed; write into a place that is not empty.
//! Where the cluster's documents once left, what lies there of its own counts for nothing, and goes.

mod places;

use std::collections::BTreeMap;

use bytes::Bytes;
use thiserror::Error;

use crate::documents::service_move::{
    self, Arriving, ClusterPlace, arriving, look, moved, moving, still_moving,
};
use crate::documents::{ActiveNode, ReadError, ServiceMove, active_nodes_now, cluster_path, create_parents};
use crate::{CoordinationError, CoordinationService, CreateMode, DocumentPath, DocumentVersion, Expected};

use self::places::{Contents, clear, read_contents, touch, try_lock};

/// Both places.
pub struct Ends<'a> {
    /// The place that the documents leave.
    pub from: &'a dyn CoordinationService,
    /// Its address, as programs on every machine of the cluster write it.
    pub from_address: String,
    /// The place that they go to.
    pub to: &'a dyn CoordinationService,
    /// Its address.
    pub to_address: String,
    /// As whom the new place is written to; empty for nobody in particular.
    pub user: String,
}

/// Why documents were not moved.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MigrateError {
    /// Both places are the same.
    #[error("the documents are at {place} already; name another place with --to")]
    SamePlace {
        /// The place.
        place: String,
    },
    /// There is nothing to move.
    #[error("{place} holds no cluster; name the place of its documents with --coordination")]
    NoCluster {
        /// The old place.
        place: String,
    },
    /// Another move has begun and not ended.
    #[error(
        "the documents of cluster {:?} are on their way from {} to {} already; finish that move with the same two addresses, \
         or abort it",
        .0.name, .0.from, .0.to
    )]
    Unfinished(Box<ServiceMove>),
    /// The documents have gone elsewhere.
    #[error("the documents of cluster {:?} have moved to {}; name that address with --coordination", .0.name, .0.to)]
    MovedElsewhere(Box<ServiceMove>),
    /// The move has been decided, and cannot be taken back.
    #[error(
        "the documents of cluster {:?} have moved to {} already; to bring them back, move them from there to {}",
        .0.name, .0.to, .0.from
    )]
    Decided(Box<ServiceMove>),
    /// There is nothing to take back.
    #[error("no move from {from} to {to} has begun, so there is nothing to abort")]
    NothingToAbort {
        /// The old place.
        from: String,
        /// The new one.
        to: String,
    },
    /// The new place holds something.
    #[error("{place} is not empty: it holds {path}; choose a new directory or chroot with --to")]
    NotEmpty {
        /// The new place.
        place: String,
        /// A document there.
        path: DocumentPath,
    },
    /// A node would not go along.
    #[error(
        "{} would stay behind: it does not follow moved documents; stop it first",
        .0.node.id
    )]
    StaysBehind(Box<ActiveNode>),
    /// A node would go along and could not write.
    #[error(
        "{} could not register in the new place: it runs {} instead of those of user {user:?}; restart it with \
         --coordination-credentials first",
        .node.node.id,
        match .node.follows_as.as_deref() {
            Some("") | None => "without credentials".to_owned(),
            Some(own) => format!("with the credentials of user {own:?}"),
        }
    )]
    OtherUser {
        /// The node.
        node: Box<ActiveNode>,
        /// As whom the documents are moved.
        user: String,
    },
    /// Another process moves documents to the same place.
    #[error("another process is moving documents to {place}; wait until it has ended")]
    Busy {
        /// The new place.
        place: String,
    },
    /// What was read back is not what was written.
    #[error("document {path} is not the same at {place}; run the command again")]
    Differs {
        /// The document.
        path: DocumentPath,
        /// The new place.
        place: String,
    },
    /// A document cannot be read, or the service refuses.
    #[error("{place}: {error}")]
    Read {
        /// Where.
        place: String,
        /// What.
        error: ReadError,
    },
}

impl MigrateError {
    /// Whether running the same command again may help: a service could not be reached, or did not confirm a write.
    pub fn is_retryable(&self) -> bool {
        match self {
            MigrateError::Busy { .. } | MigrateError::Differs { .. } => true,
            MigrateError::Read { error: ReadError::Coordination(error), .. } => matches!(
                error,
                CoordinationError::Unavailable { .. }
                    | CoordinationError::Indeterminate { .. }
                    | CoordinationError::SessionLost
            ),
            _ => false,
        }
    }
}

/// What was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// The move.
    pub this: ServiceMove,
    /// Nodes that were registered at the old place when the documents had moved, and are to go along.
    pub following: Vec<ActiveNode>,
}

impl Ends<'_> {
    fn at_from<E: Into<ReadError>>(&self) -> impl Fn(E) -> MigrateError {
        |error| MigrateError::Read { place: self.from_address.clone(), error: error.into() }
    }

    fn at_to<E: Into<ReadError>>(&self) -> impl Fn(E) -> MigrateError {
        |error| MigrateError::Read { place: self.to_address.clone(), error: error.into() }
    }

    fn is_this(&self, other: &ServiceMove) -> bool {
        other.from == self.from_address && other.to == self.to_address
    }

    /// Takes the lock of the new place. What this session reads at the old one from then on is no older than that: it
    /// would otherwise claim the new place anew, or give it back, when the documents are in force there already.
    async fn lock(&self) -> Result<(), MigrateError> {
        if self.from_address == self.to_address {
            return Err(MigrateError::SamePlace { place: self.from_address.clone() });
        }
        match try_lock(self.to).await.map_err(self.at_to())? {
            true => {}
            false => return Err(MigrateError::Busy { place: self.to_address.clone() }),
        }
        match look(self.from).await.map_err(self.at_from())? {
            Some(_) => touch(self.from).await.map_err(self.at_from()),
            None => Ok(()),
        }
    }

    async fn set_from(&self, data: Bytes, version: DocumentVersion) -> Result<bool, MigrateError> {
        set(self.from, data, version).await.map_err(self.at_from())
    }

    async fn set_to(&self, data: Bytes, version: DocumentVersion) -> Result<bool, MigrateError> {
        set(self.to, data, version).await.map_err(self.at_to())
    }
}

/// Changes what the place of the cluster document says; false when somebody else was faster.
async fn set(
    service: &dyn CoordinationService,
    data: Bytes,
    version: DocumentVersion,
) -> Result<bool, CoordinationError> {
    match service.set(&cluster_path(), data, Expected::Version(version)).await {
        Ok(_) => Ok(true),
        Err(CoordinationError::BadVersion { .. } | CoordinationError::NoNode { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Moves the documents, or goes on with a move that ended half way. `attempt` makes a new one unlike every other.
///
/// # Errors
/// See [`MigrateError`]. Whatever the error, one place is in force and the same call goes on.
pub async fn migrate(ends: &Ends<'_>, attempt: &str) -> Result<Done, MigrateError> {
    ends.lock().await?;
    loop {
        let found = look(ends.from).await.map_err(ends.at_from())?;
        let Some((standing, data, version)) = found else {
            return Err(MigrateError::NoCluster { place: ends.from_address.clone() });
        };
        match standing {
            ClusterPlace::InForce(cluster) => {
                check_followers(ends).await?;
                let this = ServiceMove {
                    name: cluster.name,
                    from: ends.from_address.clone(),
                    to: ends.to_address.clone(),
                    attempt: attempt.to_owned(),
                };
                claim(ends, &this).await?;
                // When somebody was faster, this looks again.
                ends.set_from(moving(&this, &data), version).await?;
            }
            ClusterPlace::Moving(this, cluster) if ends.is_this(&this) => {
                let text = still_moving(&data).expect("it was read as one that is moving");
                copy(ends, &this, &text, version).await?;
                ends.set_from(moved(&this, cluster.generation), version).await?;
            }
            ClusterPlace::Moved(this) if ends.is_this(&this) => return finish(ends, this).await,
            ClusterPlace::Moving(other, _) => return Err(MigrateError::Unfinished(Box::new(other))),
            ClusterPlace::Moved(other) => return Err(MigrateError::MovedElsewhere(Box::new(other))),
            ClusterPlace::Arriving(arriving) => {
                return Err(MigrateError::Unfinished(Box::new(arriving.this)));
            }
        }
    }
}

/// Takes a move back that is not decided: the old place is in force as it was, and the new one as empty.
///
/// # Errors
/// See [`MigrateError`].
pub async fn abort(ends: &Ends<'_>) -> Result<(), MigrateError> {
    ends.lock().await?;
    let mut aborted = false;
    loop {
        let found = look(ends.from).await.map_err(ends.at_from())?;
        match found {
            Some((ClusterPlace::Moving(this, _), data, version)) if ends.is_this(&this) => {
                let cluster = still_moving(&data).expect("it was read as one that is moving");
                aborted |= ends.set_from(cluster, version).await?;
            }
            Some((ClusterPlace::Moved(this), ..)) if ends.is_this(&this) => {
                return Err(MigrateError::Decided(Box::new(this)));
            }
            Some((ClusterPlace::Moving(other, _) | ClusterPlace::Moved(other), ..)) => {
                return Err(MigrateError::Unfinished(Box::new(other)));
            }
            _ => break,
        }
    }
    match look(ends.to).await.map_err(ends.at_to())? {
        Some((ClusterPlace::Arriving(arriving), ..)) if ends.is_this(&arriving.this) => {
            give_back(ends, arriving).await
        }
        _ if aborted => Ok(()),
        _ => {
            Err(MigrateError::NothingToAbort { from: ends.from_address.clone(), to: ends.to_address.clone() })
        }
    }
}

/// Refuses to leave a node behind.
async fn check_followers(ends: &Ends<'_>) -> Result<(), MigrateError> {
    for node in active_nodes_now(ends.from).await.map_err(ends.at_from())? {
        match node.follows_as.as_deref() {
            None => return Err(MigrateError::StaysBehind(Box::new(node))),
            Some(user) if user != ends.user && !ends.user.is_empty() => {
                return Err(MigrateError::OtherUser { node: Box::new(node), user: ends.user.clone() });
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// Claims the new place for this move, if nothing is there but what an earlier attempt has left.
async fn claim(ends: &Ends<'_>, this: &ServiceMove) -> Result<(), MigrateError> {
    let contents = read_contents(ends.to).await.map_err(ends.at_to())?;
    let found = look(ends.to).await.map_err(ends.at_to())?;
    let (before, stale, version) = match found {
        Some((ClusterPlace::Arriving(claim), _, _)) if claim.this == *this => return Ok(()),
        Some((ClusterPlace::Arriving(claim), _, version)) if ends.is_this(&claim.this) => {
            (claim.before, true, Some(version))
        }
        // The documents come back to a place that they have left.
        Some((ClusterPlace::Moved(left), data, version)) if left.name == this.name => {
            (Some(data), false, Some(version))
        }
        Some(_) => {
            return Err(MigrateError::NotEmpty { place: ends.to_address.clone(), path: cluster_path() });
        }
        None => (None, false, None),
    };
    if stale {
        clear(ends.to, &contents).await.map_err(ends.at_to())?;
    } else if version.is_none()
        && let Some(path) = contents.first_in_the_way()
    {
        return Err(MigrateError::NotEmpty { place: ends.to_address.clone(), path: path.clone() });
    }
    let claim = arriving(&Arriving { this: this.clone(), cluster: None, before });
    let claimed = match version {
        Some(version) => ends.set_to(claim, version).await?,
        None => {
            let path = cluster_path();
            create_parents(ends.to, &path).await.map_err(ends.at_to())?;
            match ends.to.create(&path, claim, CreateMode::Persistent).await {
                Ok(_) => true,
                Err(CoordinationError::NodeExists { .. }) => false,
                Err(error) => return Err(ends.at_to()(error)),
            }
        }
    };
    match claimed {
        true => Ok(()),
        // It is no migration that writes there: the lock is ours.
        false => Err(MigrateError::NotEmpty { place: ends.to_address.clone(), path: cluster_path() }),
    }
}

/// Copies all documents but the cluster document, which the claim takes up at the end, when the others have been read
/// back. The old place is fenced at `version` meanwhile.
async fn copy(
    ends: &Ends<'_>,
    this: &ServiceMove,
    cluster: &Bytes,
    version: DocumentVersion,
) -> Result<(), MigrateError> {
    claim(ends, this).await?;
    let there = read_contents(ends.to).await.map_err(ends.at_to())?;
    // Whoever held the lock before may have decided meanwhile. What this session reads after its own write is not
    // older than that, and what was read at the new place before is checked again by its version.
    touch(ends.from).await.map_err(ends.at_from())?;
    match look(ends.from).await.map_err(ends.at_from())? {
        Some((_, _, now)) if now == version => {}
        _ => return Ok(()),
    }
    let here = read_contents(ends.from).await.map_err(ends.at_from())?;
    for (path, document) in here.copied() {
        let written = match there.get(path) {
            Some(found) if found.data == document.data => continue,
            Some(found) => {
                let expected = Expected::Version(found.stat.version);
                ends.to.set(path, document.data.clone(), expected).await.map(drop)
            }
            None => ends.to.create(path, document.data.clone(), CreateMode::Persistent).await.map(drop),
        };
        written.map_err(ends.at_to())?;
    }
    // A node that had not heard that the documents were gone may have written here; it was told that this counts for
    // nothing.
    for (path, late) in there.copied().rev().filter(|(path, _)| here.get(path).is_none()) {
        match ends.to.delete(path, Expected::Version(late.stat.version)).await {
            Ok(()) | Err(CoordinationError::NoNode { .. }) => {}
            Err(error) => return Err(ends.at_to()(error)),
        }
    }
    verify(ends, &here).await?;
    let found = look(ends.to).await.map_err(ends.at_to())?;
    match found {
        Some((ClusterPlace::Arriving(claim), _, version)) if claim.this == *this => {
            let ready = Arriving { cluster: Some(cluster.clone()), ..claim };
            ends.set_to(arriving(&ready), version).await.map(drop)
        }
        // It was decided, and a node has arrived; or somebody has taken the claim away, which the next look tells.
        _ => Ok(()),
    }
}

/// Reads back what was copied.
async fn verify(ends: &Ends<'_>, here: &Contents) -> Result<(), MigrateError> {
    let there = read_contents(ends.to).await.map_err(ends.at_to())?;
    let data = |contents: &Contents| -> BTreeMap<DocumentPath, Bytes> {
        contents.copied().map(|(path, document)| (path.clone(), document.data.clone())).collect()
    };
    let (wanted, found) = (data(here), data(&there));
    let differs = |path: &&DocumentPath| wanted.get(path) != found.get(path);
    match wanted.keys().chain(found.keys()).find(differs) {
        Some(path) => Err(MigrateError::Differs { path: path.clone(), place: ends.to_address.clone() }),
        None => Ok(()),
    }
}

/// It is decided: the new place says so, and the old one keeps nothing but where the documents went.
async fn finish(ends: &Ends<'_>, this: ServiceMove) -> Result<Done, MigrateError> {
    match service_move::arrive(ends.to, &this).await {
        // They have moved on since.
        Ok(()) | Err(ReadError::Moved(_)) => {}
        Err(error) => return Err(ends.at_to()(error)),
    }
    let following = active_nodes_now(ends.from).await.map_err(ends.at_from())?;
    let left = read_contents(ends.from).await.map_err(ends.at_from())?;
    // What was decided holds, whatever becomes of this.
    if let Err(error) = clear(ends.from, &left).await {
        tracing::warn!(%error, "old documents not deleted");
    }
    Ok(Done { this, following })
}

/// Leaves the new place as it was before the claim.
async fn give_back(ends: &Ends<'_>, claim: Arriving) -> Result<(), MigrateError> {
    let contents = read_contents(ends.to).await.map_err(ends.at_to())?;
    clear(ends.to, &contents).await.map_err(ends.at_to())?;
    let path = cluster_path();
    let given = match claim.before {
        Some(before) => ends.to.set(&path, before, Expected::Any).await.map(drop),
        None => ends.to.delete(&path, Expected::Any).await,
    };
    given.map_err(ends.at_to())?;
    if let Some(parent) = path.parent() {
        // It may have become somebody else's.
        let _ = ends.to.delete(&parent, Expected::Any).await;
    }
    Ok(())
}
