//! Records that an operator gives back to a store with one replica.
//!
//! What was set aside of such a store is the only copy of what it held, so somebody may want it back, knowing that what
//! was written and deleted since is not in it. Whoever moves it to `bring-back/stores/<store>` below the data directory
//! says so; the next start takes it as the store's own, and sets aside what the store held until then.
//!
//! Must never: bring back a store with more replicas. Its other replicas may have forgotten what they deleted, and
//! would be given it again.

use model::{Cluster, Store};
use runtime::{Disk, DiskError};

use super::above;

/// Where the stores lie that shall be brought back.
pub(crate) const DIRECTORY: &str = "bring-back";

fn place(store: &str) -> String {
    format!("{DIRECTORY}/stores/{store}")
}

/// The stores that shall be brought back.
pub(crate) fn find(disk: &dyn Disk, cluster: &Cluster) -> Result<Vec<String>, DiskError> {
    let mut found = Vec::new();
    for Store { name, consistency, .. } in &cluster.stores {
        if disk.list(&place(name.as_str()))?.is_empty() {
            continue;
        }
        match consistency.replicas {
            0 | 1 => found.push(name.as_str().to_owned()),
            replicas => {
                tracing::warn!(store = %name, replicas, "not brought back: its other replicas have its records")
            }
        }
    }
    Ok(found)
}

/// Moves a store to its place, durably. Nothing lies there any more, and the identity does not name it: what is found
/// under a name that was never given is taken.
pub(crate) async fn take(disk: &dyn Disk, store: &str, engine: &str) -> Result<(), DiskError> {
    let from = place(store);
    disk.rename(&from, engine)?;
    for directory in [&above(engine), "", &above(&from)] {
        disk.sync_directory(directory).await?;
    }
    Ok(())
}
