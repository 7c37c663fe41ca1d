//! What clients asked of a store: what `tontine store advise` finds θ by.

use serde::{Deserialize, Serialize};

/// Numbers of keys, each with how many requests asked for so many. Up to 31 keys they are exact; above, a sixteenth of
/// their power of two is lost, and the least of each class is told.
pub type KeyCounts = Vec<(u32, u64)>;

/// What clients asked of a store since a node started, as far as that node knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreDemand {
    /// Writes that the node stamped.
    pub stamped_total: u64,
    /// Reads of several keys that the node drove: of Redis and HTTP clients, and of native ones that leave it to nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reads_whole: KeyCounts,
    /// Messages for several keys from clients that drive their reads themselves. A read may be several of them, at several
    /// nodes; none knows how large the read was.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reads_in_parts: KeyCounts,
}
