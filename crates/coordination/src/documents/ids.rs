//! The ids of nodes. Each is given once, to one data directory, whatever becomes of that.
//!
//! One document holds the greatest id that was given. It is raised by compare-and-set before anybody uses the id, so
//! an id whose taker ended before it could keep it is lost, and never given again. A sequential document for each id was
//! rejected: its numbers belong to the service, and begin anew where the documents are moved to.
//!
//! Must never: give an id that a cluster document, a registration or a member's document names.

use model::{NodeId, Unknown};
use serde::{Deserialize, Serialize};

use super::service_move::counts;
use super::{ReadError, active_path, create_parents, decode, encode, known, member_path, read_cluster};
use crate::{CoordinationError, CoordinationService, CreateMode, DocumentPath, Expected};

/// Where the ids are.
pub fn ids_path() -> DocumentPath {
    known("/config/ids")
}

/// The ids that were given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ids {
    /// Made up when the document was: tells it from that of every other cluster. It goes with the documents when they
    /// are moved to another service.
    pub origin: String,
    /// The greatest id that was given.
    pub last: u32,
    /// Ids up to this one were named by the command that created the cluster. No data directory took one by itself.
    pub named: u32,
    /// Fields of a later program.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// The ids that were given; `None` when nobody has prepared a cluster here.
///
/// # Errors
/// When the document is malformed or the service refuses.
pub async fn read_ids(service: &dyn CoordinationService) -> Result<Option<Ids>, ReadError> {
    let path = ids_path();
    match service.get(&path).await {
        Ok(document) => decode(&path, &document.data).map(Some),
        Err(CoordinationError::NoNode { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Prepares a service for a cluster: from then on nodes may take ids there. Ids up to `named` are those that whoever
/// creates the cluster gives himself. `dice` makes this document unlike every other one.
///
/// # Errors
/// When the document is malformed or the service refuses.
pub async fn prepare_ids(service: &dyn CoordinationService, named: u32, dice: u64) -> Result<Ids, ReadError> {
    let prepare = |ids: &mut Ids| {
        let changes = ids.named < named || ids.last < named;
        ids.named = ids.named.max(named);
        ids.last = ids.last.max(named);
        changes
    };
    change_ids(service, dice, 0, prepare).await
}

/// Takes an id that was never given, and says by whom it is given.
///
/// # Errors
/// When a document is malformed or the service refuses. After [`CoordinationError::Indeterminate`] an id may have been
/// given to nobody, which does no harm.
pub async fn take_id(service: &dyn CoordinationService, dice: u64) -> Result<(NodeId, String), ReadError> {
    let mut used =
        read_cluster(service).await?.iter().flat_map(|cluster| &cluster.nodes).map(|node| node.id.0).max();
    for directory in [active_path(), member_path(NodeId(0)).parent().expect("members have one")] {
        let names = match service.children(&directory).await {
            Ok(names) => names,
            Err(CoordinationError::NoNode { .. }) => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        used = used.max(names.iter().filter_map(|name| name.strip_prefix('n')?.parse().ok()).max());
    }
    let take = |ids: &mut Ids| {
        ids.last += 1;
        true
    };
    let ids = change_ids(service, dice, used.unwrap_or(0), take).await?;
    Ok((NodeId(ids.last), ids.origin))
}

/// Changes the document by compare-and-set, as long as `change` says that there is something to change. No id up to
/// `used` is given.
async fn change_ids(
    service: &dyn CoordinationService,
    dice: u64,
    used: u32,
    change: impl Fn(&mut Ids) -> bool,
) -> Result<Ids, ReadError> {
    let path = ids_path();
    create_parents(service, &path).await?;
    loop {
        let found = match service.get(&path).await {
            Ok(document) => Some((decode::<Ids>(&path, &document.data)?, document.stat.version)),
            Err(CoordinationError::NoNode { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        let version = found.as_ref().map(|(_, version)| *version);
        let new = || Ids { origin: format!("{dice:016x}"), last: 0, named: 0, unknown: Unknown::new() };
        let mut ids = found.map_or_else(new, |(ids, _)| ids);
        ids.last = ids.last.max(used);
        let changed = change(&mut ids);
        let written = match version {
            Some(_) if !changed => Ok(()),
            Some(version) => {
                let expected = Expected::Version(version);
                service.set(&path, encode(&ids), expected).await.map(|_| ())
            }
            None => service.create(&path, encode(&ids), CreateMode::Persistent).await.map(|_| ()),
        };
        match written {
            Ok(()) => return counts(service).await.map(|()| ids).map_err(ReadError::from),
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
