//! This node's own copy of the cluster document, so that it can start while the coordination service is away (D6).

use std::sync::Arc;

use model::Cluster;
use runtime::{Disk, DiskError};

/// The file below the data directory.
const FILE: &str = "cluster.json";

/// Reads the copy; `None` when there is none, or none that can be read: it is only a copy.
pub(crate) fn read(disk: &dyn Disk) -> Option<Cluster> {
    let file = disk.open(FILE).ok()?;
    let mut bytes = vec![0; usize::try_from(file.length()).ok()?];
    let read = file.read_at(0, &mut bytes).ok()?;
    serde_json::from_slice(&bytes[..read]).ok()
}

/// Replaces the copy.
pub(crate) async fn write(disk: Arc<dyn Disk>, cluster: &Cluster) -> Result<(), DiskError> {
    let temporary = format!("{FILE}.new");
    match disk.remove(&temporary) {
        Ok(()) | Err(DiskError::NotFound { .. }) => {}
        Err(error) => return Err(error),
    }
    let file = disk.create(&temporary)?;
    file.append(&serde_json::to_vec_pretty(cluster).expect("a cluster is plain data"))?;
    file.sync().await?;
    disk.rename(&temporary, FILE)?;
    disk.sync_directory("").await
}
