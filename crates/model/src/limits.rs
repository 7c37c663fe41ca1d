//! Every limit that clients and nodes must agree on, beside its reason.

/// Longest key. An index entry and a routing decision must stay small next to the value.
pub const KEY_BYTES_MAX: usize = 4 * 1024;

/// Largest value, the default of a store. Larger objects belong in pieces: one value crosses the network whole.
pub const VALUE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Most concurrent versions of one key, the default of a store. More means that nobody merges.
pub const SIBLINGS_MAX: usize = 64;

/// Most keys in one multi-get or multi-put.
pub const MULTI_KEYS_MAX: usize = 10_000;

/// Largest frame on the wire: one full sibling set of moderate values, or one value at its limit with room for
/// its key and versions.
pub const FRAME_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Bytes of keys and values after which a message of a multi-request ends and another one begins; a message holds at
/// least one key. Far below a frame, so that many such messages do not hold up a link.
pub const MESSAGE_BYTES_MAX: usize = FRAME_BYTES_MAX / 4;

/// Most stores of a cluster: each costs every node an engine with its files, and a share of each round of repair.
pub const STORES_MAX: usize = 256;

/// Most artifacts that a read-only store lists: the served one, one to roll back to, and some that are staged. The cluster
/// document holds them all.
pub const ARTIFACTS_MAX: usize = 8;

/// Most artifacts that a read-only store keeps beside the served one, so that its list has room for the one that comes.
pub const ARTIFACTS_KEPT_MAX: u8 = ARTIFACTS_MAX as u8 - 2;

/// Longest URL of an artifact's source in bytes.
pub const ARTIFACT_SOURCE_BYTES_MAX: usize = 1024;

/// Most users of a cluster: all of them are in the cluster document, which each node and client keeps.
pub const USERS_MAX: usize = 256;

/// Most rights of one user; a prefix of keys covers more than a list of them.
pub const USER_GRANTS_MAX: usize = 32;

/// Longest name of a user in bytes.
pub const USER_NAME_BYTES_MAX: usize = 64;

/// Longest prefix of keys that a right names, in bytes.
pub const GRANT_PREFIX_BYTES_MAX: usize = 128;

/// Longest store name in bytes.
pub const STORE_NAME_BYTES_MAX: usize = 64;

/// Most partitions of one ring.
pub const PARTITIONS_MAX: usize = 1 << 20;

/// Partitions of a new hash ring, unless asked otherwise.
pub const PARTITIONS_DEFAULT: usize = 1024;

/// Buckets of a new cluster, unless it begins with more partitions: so often its partitions can be doubled.
pub const BUCKETS_DEFAULT: u32 = 4096;

/// Most nodes of one cluster.
pub const NODES_MAX: usize = 4096;

/// Nodes that a partition lists behind its replicas, as fallbacks: enough for several failures at a time, and few, so
/// that the cluster document stays small.
pub const FALLBACKS_LISTED: usize = 3;
