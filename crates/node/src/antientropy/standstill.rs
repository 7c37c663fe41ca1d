//! That an operator has stopped comparing, remembered over restarts: a file below the data directory that is there or
//! not. Each node has its own, as each is given the order: a node that was away when comparing was stopped compares.
//!
//! Must never: keep a node from starting. Without the file it compares, which harms nothing.

use runtime::{Disk, DiskError};

/// The file below the data directory.
const FILE: &str = "repair-stopped";

/// Whether comparing was stopped here.
pub(super) fn is_remembered(disk: &dyn Disk) -> bool {
    disk.open(FILE).is_ok()
}

/// Remembers, durably, whether comparing is stopped.
pub(super) async fn remember(disk: &dyn Disk, stopped: bool) -> Result<(), DiskError> {
    match (stopped, is_remembered(disk)) {
        (true, false) => disk.create(FILE)?.sync().await?,
        (false, true) => disk.remove(FILE)?,
        _ => return Ok(()),
    }
    disk.sync_directory("").await
}
