//! What a node answers.

use bytes::Bytes;
use model::{Context, Dot, Epoch, Generation, NodeId, VersionSet};
use smallvec::SmallVec;

use super::antientropy::{KeyDigested, RecordsGot, RecordsPaged, TreeNoded, TreeSummed};
use super::artifacts::ArtifactBytes;
use super::collection::{
    CollectCandidated, CollectConfirmed, CollectFenced, CollectReleased, Collected, StaleEpoch,
};
use super::declare::messages;
use super::gossip::Gossiped;
use super::orders::{OfficeTold, OrderTold, PlanTold};
use super::report::ReportGot;
use super::request::ScanAfter;
use crate::codec::{Field, Reader, fields, tags};
use crate::decode_error::DecodeError;
use crate::error::ErrorCode;

messages! {
    /// A node's answer.
    pub enum Response {
        0x81 Welcome "welcome",
        0x82 Pong "pong",
        0x83 ClusterDocument "cluster-document",
        0x84 ReportGot "report-got",
        0x86 EventsDocument "events-document",
        0x87 MetricsText "metrics-text",
        0x8a OrderTold "order-told",
        0x8b PlanTold "plan-told",
        0x8c OfficeTold "office-told",
        0x90 Got "got",
        0x91 Written "written",
        0x93 MultiGot "multi-got",
        0x94 MultiWritten "multi-written",
        0xa3 ReplicaGot "replica-got",
        0xa4 ReplicaMerged "replica-merged",
        0xa2 Scanned "scanned",
        0xb0 Gossiped "gossiped",
        0xb6 TreeSummed "tree-summed",
        0xb2 TreeNoded "tree-noded",
        0xb3 KeyDigested "key-digested",
        0xb4 RecordsGot "records-got",
        0xb5 RecordsPaged "records-paged",
        0xb8 CollectCandidated "collect-candidated",
        0xb9 CollectConfirmed "collect-confirmed",
        0xba CollectFenced "collect-fenced",
        0xbb Collected "collected",
        0xbc StaleEpoch "stale-epoch",
        0xbd CollectReleased "collect-released",
        0xc1 ArtifactBytes "artifact-bytes",
        0xff Failure "failure",
    }
}

fields! {
    /// Answers a hello: how the two go on.
    pub struct Welcome {
        /// The version that all later frames on this link use.
        pub version: u16,
        /// The cluster's name.
        pub cluster: String,
        /// Who answers.
        pub node: NodeId,
        /// The newest generation that it knows.
        pub generation: Generation,
        /// Longest key in bytes that it accepts.
        pub key_bytes_max: u32,
        /// Largest frame in bytes that it accepts.
        pub frame_bytes_max: u32,
    }
}

fields! {
    /// Answers a ping.
    pub struct Pong {}
}

fields! {
    /// The newest cluster document that the node knows.
    pub struct ClusterDocument {
        /// `model::Cluster` as JSON.
        pub json: Bytes,
    }
}

fields! {
    /// Some of the node's events.
    pub struct EventsDocument {
        /// As JSON, for people and tools.
        pub json: Bytes,
    }
}

fields! {
    /// The node's numbers.
    pub struct MetricsText {
        /// In the text format of Prometheus, version 0.0.4.
        pub text: Bytes,
    }
}

fields! {
    /// What a get found, merged over the replicas that answered in time.
    pub struct Got {
        /// Replicas that answered.
        pub replicas_answered: u8,
        /// Whether a fallback stood in for one of them.
        pub sloppy: bool,
        /// The key's state; empty when it was never written.
        pub set: VersionSet,
    }
}

fields! {
    /// A put or delete that has the acks it required.
    pub struct Written {
        /// The event that is this write.
        pub dot: Dot,
        /// Nodes that have it.
        pub acks: u8,
        /// Whether a fallback stood in for one of them.
        pub sloppy: bool,
        /// What the next write by the same caller should hand back: all that the key has seen when this write now
        /// is alone, otherwise the context that the caller sent. A vector cannot say "this write but not the
        /// sibling stamped just before it", and a context that covered unread siblings would lose them.
        pub context: Context,
    }
}

fields! {
    /// What a multi-get found, in the order of its keys.
    pub struct MultiGot {
        /// Each key's state, or why it is not known.
        pub results: Vec<Result<VersionSet, Failure>>,
    }
}

fields! {
    /// What became of a multi-put, in the order of its entries.
    pub struct MultiWritten {
        /// Each entry's outcome.
        pub results: Vec<Result<Written, Failure>>,
    }
}

fields! {
    /// What one replica holds, in the order of the keys.
    pub struct ReplicaGot {
        /// The generation by which the replica went.
        pub generation: Generation,
        /// The collection epoch before the sets were read.
        pub epoch: Epoch,
        /// Each key's state, empty when never written, or why the replica cannot tell. Fewer than were asked for, but
        /// at least one, when all would be too long for one message: ask again for the rest.
        pub sets: SmallVec<[Result<VersionSet, ErrorCode>; 1]>,
    }
}

tags! {
    /// What merging did to a replica's record.
    pub enum Merged: "a merge" {
        /// The record changed; it is as durable as the store promises.
        Changed = 0,
        /// The replica already held all of it.
        Known = 1,
        /// The replica knows versions that replaced every version offered.
        Superseded = 2,
    }
}

fields! {
    /// What merging did, in the order of the entries.
    pub struct ReplicaMerged {
        /// The generation by which the replica went.
        pub generation: Generation,
        /// Each entry's outcome.
        pub outcomes: SmallVec<[Result<Merged, ErrorCode>; 1]>,
    }
}

fields! {
    /// A page of a partition.
    pub struct Scanned {
        /// Keys and their states, in order of token and key.
        pub records: Vec<(Bytes, VersionSet)>,
        /// Where to go on; `None` when the partition is exhausted.
        pub next: Option<ScanAfter>,
        /// Records that are left out because they are damaged here: other replicas may have them.
        pub damaged: u64,
    }
}

fields! {
    /// The request was not done, or nobody knows: see [`ErrorCode::outcome`].
    pub struct Failure {
        /// Why.
        pub code: ErrorCode,
        /// The facts of this case, for people.
        pub detail: String,
        /// With [`ErrorCode::StaleGeneration`]: the newer cluster document as JSON, to go on with at once.
        pub cluster: Option<Bytes>,
    }
}

impl Failure {
    /// A failure without a document.
    pub fn new(code: ErrorCode, detail: impl Into<String>) -> Self {
        Failure { code, detail: detail.into(), cluster: None }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.detail.as_str() {
            "" => write!(f, "{}: {}", self.code, self.code.description()),
            detail => write!(f, "{}: {detail}", self.code),
        }
    }
}

impl std::error::Error for Failure {}
