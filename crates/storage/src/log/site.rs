//! Where one engine lives. Nothing of it changes while the engine is open.

use std::sync::Arc;

use runtime::{Clock, Disk};

use super::options::LogOptions;

/// Its ports, its directory, its settings and the identity of its data.
pub(super) struct Site {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) clock: Arc<dyn Clock>,
    /// Below the disk's root.
    pub(super) directory: String,
    /// Within their limits.
    pub(super) options: LogOptions,
    /// Identity of the data: seeds all checksums.
    pub(super) engine: u64,
}
