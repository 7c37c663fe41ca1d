//! Error codes: what a node answers when it cannot do what it was asked.
//!
//! A code is a number that never changes its meaning and is never reused; clients, logs and metrics depend on it.
//! Each says whether the request [failed or may have happened](Outcome) (D7), whether sending the same request again
//! can help, and what a person can do. `docs/reference/errors.md` is this table; a test keeps the two equal.
//!
//! **Architecture Invariant:** an outcome that is not known is never dressed as a failure.

/// What is known about a write that was answered with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It did not happen and will not.
    Failed,
    /// It may have happened, or may still.
    Indeterminate,
}

macro_rules! error_codes {
    ($($variant:ident = $number:literal $name:literal $outcome:ident $retryable:literal $description:literal $remedy:literal;)*) => {
        /// Why a node refused, or could not finish.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u16)]
        #[non_exhaustive]
        pub enum ErrorCode {
            $(#[doc = $description] $variant = $number,)*
        }

        impl ErrorCode {
            /// Every code, in order of its number.
            pub const ALL: &'static [ErrorCode] = &[$(ErrorCode::$variant,)*];

            /// The code with this number, if there is one.
            pub fn from_number(number: u16) -> Option<Self> {
                match number {
                    $($number => Some(ErrorCode::$variant),)*
                    _ => None,
                }
            }

            /// Its name in messages, logs and metrics: lowercase words joined by hyphens.
            pub fn name(self) -> &'static str {
                match self { $(ErrorCode::$variant => $name,)* }
            }

            /// What happened, in one sentence.
            pub fn description(self) -> &'static str {
                match self { $(ErrorCode::$variant => $description,)* }
            }

            /// What to do next, in one sentence.
            pub fn remedy(self) -> &'static str {
                match self { $(ErrorCode::$variant => $remedy,)* }
            }

            /// Whether the request did not happen, or may have.
            pub fn outcome(self) -> Outcome {
                match self { $(ErrorCode::$variant => Outcome::$outcome,)* }
            }

            /// Whether the same request, sent again after a pause or to another node, can succeed.
            pub fn is_retryable(self) -> bool {
                match self { $(ErrorCode::$variant => $retryable,)* }
            }
        }
    };
}

// Hundreds group by whose turn it is: 1 the caller's request, 2 the key's state, 3 the cluster, 4 a disk,
// 5 the connection, 9 us.
error_codes! {
    UnknownStore = 100 "unknown-store" Failed false
        "The cluster has no store of this name."
        "Check the name against `tontine status`.";
    KeyEmpty = 101 "key-empty" Failed false
        "The key has no bytes."
        "Send a key of at least one byte.";
    KeyTooLong = 102 "key-too-long" Failed false
        "The key is longer than the limit."
        "Shorten the key, for example by hashing its long part.";
    ValueTooLarge = 103 "value-too-large" Failed false
        "The value is larger than the store's limit."
        "Split the value over several keys.";
    TooManyKeys = 104 "too-many-keys" Failed false
        "One request names more keys than the limit."
        "Split the request into several.";
    RecordTooLong = 105 "record-too-long" Failed false
        "The key's record, with all its concurrent versions, is longer than the node's storage can hold."
        "Store a smaller value, split over several keys; if the key has siblings, get, merge and put them first.";
    StoreRefused = 106 "store-refused" Failed false
        "The store's definition is not allowed in this cluster."
        "Read the reason; `tontine store list` shows the stores that there are.";
    ReadOnly = 107 "read-only" Failed false
        "The store is read-only: it takes no writes."
        "Build an artifact and put it live with `tontine artifact push`.";
    ArtifactRefused = 108 "artifact-refused" Failed false
        "This change to the store's artifacts is not allowed."
        "Read the reason; `tontine artifact list` shows the artifacts that there are.";
    TooManySiblings = 200 "too-many-siblings" Failed false
        "The key already has as many concurrent versions as the store allows."
        "Get the key, merge its siblings and put the result with the context that the get returned.";
    Obsolete = 201 "obsolete" Failed false
        "A newer version has already replaced what this put was based on."
        "Get the key again and repeat the change on what it returns.";
    ConditionFailed = 202 "condition-failed" Failed false
        "The key is not in the state that the request's condition asks for."
        "Get the key to see its state, then decide.";
    StaleGeneration = 300 "stale-generation" Failed true
        "The request was formed under a generation of the cluster that is too old."
        "Adopt the cluster document in the answer and send the request again at once.";
    InsufficientReplicas = 301 "insufficient-replicas" Failed true
        "Fewer replicas answered than the request requires; a write certainly did not happen."
        "Retry after a pause; find the nodes that are down with `tontine doctor`.";
    Indeterminate = 302 "indeterminate" Indeterminate true
        "Fewer replicas acknowledged the write than required, and some may have stored it."
        "Get the key to learn the outcome, or put again with the same context.";
    Overloaded = 303 "overloaded" Failed true
        "The node has reached its limit of requests in flight."
        "Retry with exponential backoff; if it persists, send fewer requests at once.";
    ShuttingDown = 304 "shutting-down" Failed true
        "The node is stopping and takes no new requests."
        "Send the request to another node.";
    Isolated = 305 "isolated" Failed true
        "The node cannot reach enough nodes for the write, and has not started it."
        "Send the request to another node; if all refuse it, find the nodes that are down with `tontine node list`.";
    CoordinationUnavailable = 306 "coordination-unavailable" Failed true
        "The coordination service cannot be reached, so the cluster's documents cannot be changed now; data is served."
        "Retry later; find out what the service is doing with `tontine coordination show`.";
    CoordinationUnconfirmed = 307 "coordination-unconfirmed" Indeterminate true
        "The coordination service did not confirm a change of the cluster's documents, which may have happened."
        "Look at the document with `tontine coordination show /config/cluster`, then repeat the command if need be.";
    Behind = 308 "behind" Failed true
        "The node's cluster document is older than the request's, and it could not get the newer one in time."
        "Retry: other replicas answer; if it recurs, see with `tontine node list` whether the node reaches the others.";
    NotReplica = 309 "not-replica" Failed true
        "The node is neither a replica nor a fallback of the key."
        "Retry with the newest cluster document; if it recurs, report this bug with the document's generation.";
    NotStaged = 310 "not-staged" Failed true
        "Too few replicas hold the artifact yet, so it is not served."
        "Wait; `tontine artifact list` shows how far each node is.";
    DiskFull = 400 "disk-full" Failed true
        "The node refuses writes because its disk is full; it still answers gets."
        "Free space on the disk of the node's data directory.";
    StorageFailed = 401 "storage-failed" Indeterminate true
        "The node's storage has stopped, and the write may or may not be on its disk."
        "Look at the node's log, replace the disk if it is failing, and restart the node.";
    Corrupt = 402 "corrupt" Failed true
        "The node's copy of the record is corrupt and is not served until another replica has repaired it."
        "Retry: other replicas answer; if the error recurs, check the node's disk.";
    Refilling = 403 "refilling" Failed true
        "The node has lost its copy of the key's partition and is fetching it from other replicas."
        "Retry: other replicas answer; see the progress with `tontine repair status`.";
    ArtifactNotHere = 404 "artifact-not-here" Failed true
        "The node does not hold the part of the artifact that the key belongs to."
        "Retry: other replicas answer; see with `tontine artifact list` how far the node is.";
    Malformed = 500 "malformed" Failed false
        "The node cannot decode the request."
        "Report this bug: client and node disagree about the protocol.";
    UnknownRequest = 501 "unknown-request" Failed false
        "The node does not know this kind of request."
        "Use a client of the node's version, or upgrade the node.";
    FrameTooLong = 502 "frame-too-long" Failed false
        "The frame is longer than the limit."
        "Send fewer keys or smaller values in one request.";
    UnsupportedVersion = 503 "unsupported-version" Failed false
        "Client and node share no version of the protocol."
        "Upgrade the older of the two.";
    WrongCluster = 504 "wrong-cluster" Failed false
        "The peer belongs to a cluster of another name."
        "Check the addresses and the cluster's name in the configuration.";
    DuplicateNode = 505 "duplicate-node" Failed false
        "Another running process has this node's id."
        "Stop one of the two; an id belongs to one data directory.";
    TooManyConnections = 506 "too-many-connections" Failed true
        "The node has reached its limit of connections."
        "Close idle connections or use a pool, then retry.";
    Unauthenticated = 507 "unauthenticated" Failed false
        "The connection is not authenticated."
        "Authenticate first with valid credentials.";
    Internal = 900 "internal" Indeterminate false
        "The node hit a bug: it reached a state that should be impossible."
        "Report it with the node's log around this time.";
}

impl ErrorCode {
    /// The stable number.
    pub fn number(self) -> u16 {
        self as u16
    }
}

impl std::fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
