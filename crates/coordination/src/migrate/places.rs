//! What a place holds, and how it is emptied and locked.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::documents::{OWN_NAMES, active_path, cluster_path, headmaster_path};
use crate::{CoordinationError, CoordinationService, CreateMode, Document, DocumentPath, Expected};

/// The ephemeral document of the process that moves documents, at both places.
fn lock_path() -> DocumentPath {
    DocumentPath::root().child("migrate").expect("the name is short")
}

/// What ZooKeeper keeps at its root for itself.
const ZOOKEEPER: &str = "zookeeper";

/// What a place holds, but the root and the lock.
pub(super) struct Contents {
    /// The cluster's documents, parents first.
    own: BTreeMap<DocumentPath, Document>,
    /// What lies at the top and is none of the cluster's: other programs use the ensemble, or another cluster lives
    /// below. It is looked at no further, never copied and never deleted.
    foreign: Vec<DocumentPath>,
}

impl Contents {
    pub(super) fn get(&self, path: &DocumentPath) -> Option<&Document> {
        self.own.get(path)
    }

    /// The documents that are the same at both places. Nodes make the lists of what is registered when they need them.
    pub(super) fn copied(&self) -> impl DoubleEndedIterator<Item = (&DocumentPath, &Document)> {
        let others = [cluster_path(), active_path(), headmaster_path()];
        self.own
            .iter()
            .filter(move |(path, document)| document.stat.owner.is_none() && !others.contains(path))
    }

    /// The first document that says that the place is somebody's.
    pub(super) fn first_in_the_way(&self) -> Option<&DocumentPath> {
        let config = cluster_path().parent();
        // An attempt may have ended between the parent and the claim.
        let begun = |(path, document): &(&DocumentPath, &Document)| {
            config.as_ref() == Some(*path) && document.data.is_empty()
        };
        let own = self.own.iter().filter(|found| !begun(found)).map(|(path, _)| path);
        self.foreign.iter().chain(own).next()
    }
}

/// Reads a place. What goes meanwhile is left out.
pub(super) async fn read_contents(service: &dyn CoordinationService) -> Result<Contents, CoordinationError> {
    let (mut own, mut foreign) = (BTreeMap::new(), Vec::new());
    let mut waiting = Vec::new();
    for name in service.children(&DocumentPath::root()).await? {
        let Ok(path) = DocumentPath::root().child(&name) else { continue };
        match OWN_NAMES.contains(&&*name) {
            true => waiting.push(path),
            false if path == lock_path() || name == ZOOKEEPER => {}
            false => foreign.push(path),
        }
    }
    while let Some(path) = waiting.pop() {
        let document = match service.get(&path).await {
            Ok(document) => document,
            Err(CoordinationError::NoNode { .. }) => continue,
            Err(error) => return Err(error),
        };
        if document.stat.owner.is_none() {
            match service.children(&path).await {
                // What a service holds, its rules allow.
                Ok(names) => waiting.extend(names.iter().filter_map(|name| path.child(name).ok())),
                Err(CoordinationError::NoNode { .. }) => continue,
                Err(error) => return Err(error),
            }
        }
        own.insert(path, document);
    }
    Ok(Contents { own, foreign })
}

/// Deletes what was read, but for the cluster document and what is above it, and for what is registered.
pub(super) async fn clear(
    service: &dyn CoordinationService,
    contents: &Contents,
) -> Result<(), CoordinationError> {
    let above = cluster_path().parent();
    let gone: Vec<_> = contents.copied().filter(|(path, _)| above.as_ref() != Some(path)).collect();
    for (path, _) in gone.into_iter().rev() {
        match service.delete(path, Expected::Any).await {
            Ok(()) | Err(CoordinationError::NoNode { .. } | CoordinationError::NotEmpty { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Takes the lock of a place for as long as the session lives. False when another session has it.
pub(super) async fn try_lock(service: &dyn CoordinationService) -> Result<bool, CoordinationError> {
    let path = lock_path();
    match service.create(&path, Bytes::new(), CreateMode::Ephemeral).await {
        Ok(_) => Ok(true),
        Err(CoordinationError::NodeExists { .. }) => match service.get(&path).await {
            Ok(found) => Ok(found.stat.owner == Some(service.session())),
            Err(CoordinationError::NoNode { .. }) => Ok(false),
            Err(error) => Err(error),
        },
        Err(error) => Err(error),
    }
}

/// Writes something that nobody reads: what the session reads from then on is no older than that.
pub(super) async fn touch(service: &dyn CoordinationService) -> Result<(), CoordinationError> {
    try_lock(service).await?;
    match service.set(&lock_path(), Bytes::new(), Expected::Any).await {
        Ok(_) | Err(CoordinationError::NoNode { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}
