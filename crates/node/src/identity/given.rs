//! The id that a data directory was given before its cluster named it.
//!
//! ```text
//! tontine-given-id 1
//! node 4
//! since 1763754000123    (milliseconds since 1970, when the directory kept it)
//! origin 5f2c...         (by which cluster's document of ids it was given)
//! checksum 9c01...       (XXH3-64 of all lines before)
//! ```
//!
//! The identity file says more, and counts as soon as there is one. This file is written once, and stays.
//!
//! Must never: let two processes take an id for one directory, or use an id before the file is durable.

use std::sync::Arc;

use coordination::documents::ServiceMove;
use model::NodeId;
use runtime::{Disk, DiskError};

use super::file::{checked, damaged, lock, read, replace};
use super::{FILE, IdentityError, occupied};
use crate::service_moved;

/// The file's name below the data directory.
pub(super) const GIVEN: &str = "given-id";
/// Newest format that this program reads and writes.
const FORMAT: u32 = 1;

/// An id that a directory was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenId {
    /// The id.
    pub node: NodeId,
    /// When the directory kept it, in milliseconds since 1970. Only the directory and its registration know it.
    pub since: u64,
    /// By which cluster's ids.
    pub origin: String,
}

/// Whose a data directory is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Nobody's yet.
    Nobody,
    /// It was given an id, and no node began with it.
    Given(GivenId),
    /// That of a node.
    Node {
        /// The node's cluster.
        cluster: String,
        /// The node.
        node: NodeId,
    },
}

/// A data directory of which it is to be found out whose it is. It stays locked while this lives.
pub struct Directory {
    disk: Arc<dyn Disk>,
    _lock: Box<dyn Send + Sync>,
}

impl Directory {
    /// Locks the directory. Writes nothing.
    ///
    /// # Errors
    /// When another process holds it, or it holds other things than a node's.
    pub fn open(disk: Arc<dyn Disk>) -> Result<Directory, IdentityError> {
        occupied::refuse(&*disk, None)?;
        let held = lock(&*disk)?;
        Ok(Directory { disk, _lock: held })
    }

    /// Whose it is.
    ///
    /// # Errors
    /// When what says so is damaged, or was written by a newer version.
    pub fn owner(&self) -> Result<Owner, IdentityError> {
        if let Some(found) = read(&*self.disk, FILE)? {
            return Ok(Owner::Node { cluster: found.cluster, node: found.node });
        }
        Ok(read_given(&*self.disk)?.map_or(Owner::Nobody, Owner::Given))
    }

    /// Keeps an id durably.
    ///
    /// # Errors
    /// What the disk refuses.
    pub async fn keep(&self, given: &GivenId) -> Result<(), IdentityError> {
        let text = format!(
            "tontine-given-id {FORMAT}\nnode {}\nsince {}\norigin {}\n",
            given.node.0, given.since, given.origin
        );
        Ok(replace(&*self.disk, GIVEN, text).await?)
    }

    /// Remembers durably where the documents have moved, from the place that the command line calls `own`.
    ///
    /// # Errors
    /// What the disk refuses.
    pub async fn remember_move(&self, this: &ServiceMove, own: &str) -> Result<(), DiskError> {
        service_moved::remember(self.disk.clone(), this, own).await
    }
}

fn read_given(disk: &dyn Disk) -> Result<Option<GivenId>, IdentityError> {
    let file = match disk.open(GIVEN) {
        Ok(file) => file,
        Err(DiskError::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let mut bytes = vec![0; usize::try_from(file.length().min(4096)).expect("a few pages")];
    let length = file.read_at(0, &mut bytes)?;
    bytes.truncate(length);
    let text = String::from_utf8(bytes).map_err(|_| damaged("it is not text"))?;
    let body = checked(&text)?;
    let field = |name: &str| {
        let value = body.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.ok_or_else(|| damaged(&format!("{GIVEN} has no line {name:?}")))
    };
    let format: u32 = field("tontine-given-id")?.parse().map_err(|_| damaged("its format is no number"))?;
    if format > FORMAT {
        return Err(IdentityError::Newer { found: format });
    }
    let node = field("node")?.parse().map_err(|_| damaged("its id is no number"))?;
    let since = field("since")?.parse().map_err(|_| damaged("its time is no number"))?;
    Ok(Some(GivenId { node: NodeId(node), since, origin: field("origin")?.to_owned() }))
}

#[cfg(test)]
mod tests {
    use runtime::disk::simulated::SimulatedDisk;

    use super::*;
    use crate::identity::Identity;

    fn given(node: u32) -> GivenId {
        GivenId { node: NodeId(node), since: 17, origin: "00ff".to_owned() }
    }

    #[tokio::test]
    async fn a_directory_keeps_the_id_that_it_was_given_until_a_node_begins() {
        let disk: Arc<SimulatedDisk> = Arc::new(SimulatedDisk::new(1));
        let directory = Directory::open(disk.clone()).unwrap();
        assert_eq!(directory.owner().unwrap(), Owner::Nobody);
        assert!(matches!(Directory::open(disk.clone()), Err(IdentityError::InUse)));
        directory.keep(&given(4)).await.unwrap();
        drop(directory);
        let directory = Directory::open(disk.clone()).unwrap();
        assert_eq!(directory.owner().unwrap(), Owner::Given(given(4)));
        drop(directory);
        let mut identity = Identity::open(disk.clone(), "shop", NodeId(4)).unwrap();
        identity.settle(super::super::KnownMember::Nothing, model::WallMillis(7), &[]);
        identity.begin().await.unwrap();
        drop(identity);
        let owner = Directory::open(disk).unwrap().owner().unwrap();
        assert_eq!(owner, Owner::Node { cluster: "shop".to_owned(), node: NodeId(4) });
    }

    #[tokio::test]
    async fn a_given_id_whose_file_is_damaged_or_newer_is_refused() {
        let disk: Arc<SimulatedDisk> = Arc::new(SimulatedDisk::new(1));
        let directory = Directory::open(disk.clone()).unwrap();
        directory.keep(&given(4)).await.unwrap();
        let digit = disk.contents(GIVEN).unwrap().iter().position(|&byte| byte == b'4').unwrap();
        disk.flip_bit(GIVEN, digit as u64, 0);
        assert!(matches!(directory.owner(), Err(IdentityError::Damaged { .. })));
        let newer = "tontine-given-id 2\nnode 4\n".to_owned();
        replace(&*disk, GIVEN, newer).await.unwrap();
        assert_eq!(directory.owner(), Err(IdentityError::Newer { found: 2 }));
    }
}
