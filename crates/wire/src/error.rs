//! Error codes: what a node answers when it cannot do what it was asked.
//!
//! A code is a number that never changes its meaning and is never reused; clients, logs and metrics depend on it.
//! Each says whether the request [failed or may have happened](Outcome) (D7), whether sending the same request again
//! can help. What a person can do is told where the person is. `docs/reference/errors.md` is this table; a test keeps the
//! two equal. Numbers that are missing were codes once, and are not used again.
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
    ($($variant:ident = $number:literal $name:literal $outcome:ident $retryable:literal $description:literal;)*) => {
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
        "The cluster has no store of this name.";
    KeyEmpty = 101 "key-empty" Failed false
        "The key has no bytes.";
    KeyTooLong = 102 "key-too-long" Failed false
        "The key is longer than the limit.";
    ValueTooLarge = 103 "value-too-large" Failed false
        "The value is larger than the store's limit.";
    TooManyKeys = 104 "too-many-keys" Failed false
        "One request names more keys than the limit.";
    RecordTooLong = 105 "record-too-long" Failed false
        "The key's record, with all its concurrent versions, is longer than the node's storage can hold.";
    ReadOnly = 107 "read-only" Failed false
        "The store is read-only: it takes no writes.";
    ArtifactRefused = 108 "artifact-refused" Failed false
        "This change to the store's artifacts is not allowed.";
    KeyUnfit = 109 "key-unfit" Failed false
        "The key does not fit the pattern of the store's keys.";
    TooManySiblings = 200 "too-many-siblings" Failed false
        "The key already has as many concurrent versions as the store allows.";
    Obsolete = 201 "obsolete" Failed false
        "A newer version has already replaced what this put was based on.";
    ConditionFailed = 202 "condition-failed" Failed false
        "The key is not in the state that the request's condition asks for.";
    StaleGeneration = 300 "stale-generation" Failed true
        "The request was formed under a generation of the cluster that is too old.";
    InsufficientReplicas = 301 "insufficient-replicas" Failed true
        "Fewer replicas answered than the request requires; a write certainly did not happen.";
    Indeterminate = 302 "indeterminate" Indeterminate true
        "Fewer replicas acknowledged the write than required, and some may have stored it.";
    Overloaded = 303 "overloaded" Failed true
        "The node has reached its limit of requests in flight.";
    ShuttingDown = 304 "shutting-down" Failed true
        "The node is stopping and takes no new requests.";
    Isolated = 305 "isolated" Failed true
        "The node cannot reach enough nodes for the write, and has not started it.";
    CoordinationUnavailable = 306 "coordination-unavailable" Failed true
        "The coordination service cannot be reached, so the cluster's documents cannot be changed now; data is served.";
    CoordinationUnconfirmed = 307 "coordination-unconfirmed" Indeterminate true
        "The coordination service did not confirm a change of the cluster's documents, which may have happened.";
    Behind = 308 "behind" Failed true
        "The node's cluster document is older than the request's, and it could not get the newer one in time.";
    NotReplica = 309 "not-replica" Failed true
        "The node is neither a replica nor a fallback of the key.";
    NoHeadmaster = 311 "no-headmaster" Failed true
        "No headmaster runs, so nothing was ordered.";
    DiskFull = 400 "disk-full" Failed true
        "The node refuses writes because its disk is full; it still answers gets.";
    StorageFailed = 401 "storage-failed" Indeterminate true
        "The node's storage has stopped, and the write may or may not be on its disk.";
    Corrupt = 402 "corrupt" Failed true
        "The node's copy of the record is corrupt and is not served until another replica has repaired it.";
    Refilling = 403 "refilling" Failed true
        "The node has lost its copy of the key's partition and is fetching it from other replicas.";
    ArtifactNotHere = 404 "artifact-not-here" Failed true
        "The node does not hold the part of the artifact that the key belongs to.";
    Malformed = 500 "malformed" Failed false
        "The node cannot decode the request.";
    UnknownRequest = 501 "unknown-request" Failed false
        "The node does not know this kind of request.";
    FrameTooLong = 502 "frame-too-long" Failed false
        "The frame is longer than the limit.";
    UnsupportedVersion = 503 "unsupported-version" Failed false
        "Client and node share no version of the protocol.";
    WrongCluster = 504 "wrong-cluster" Failed false
        "The peer belongs to a cluster of another name.";
    DuplicateNode = 505 "duplicate-node" Failed false
        "Another running process has this node's id.";
    TooManyConnections = 506 "too-many-connections" Failed true
        "The node has reached its limit of connections.";
    Unauthenticated = 507 "unauthenticated" Failed false
        "The connection is not authenticated.";
    ForeignOrigin = 508 "foreign-origin" Failed false
        "A web page of another origin may have sent the request, or it names a host that is not this node.";
    Forbidden = 509 "forbidden" Failed false
        "The user or client has no right to this request.";
    Internal = 900 "internal" Indeterminate false
        "The node hit a bug: it reached a state that should be impossible.";
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
