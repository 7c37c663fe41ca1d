//! What can be asked of a node.

use bytes::{BufMut, Bytes, BytesMut};
use model::{Context, Epoch, Generation, NodeId, PartitionId, Token, VersionSet, WallMillis};
use smallvec::SmallVec;

use super::access::Authenticate;
use super::antientropy::{AntiEntropyControl, KeyDigests, RecordsGet, RecordsPage, TreeNodes, TreeSums};
use super::artifacts::{ArtifactGet, ArtifactRead, ArtifactScan};
use super::collection::{Collect, CollectCandidates, CollectConfirm, CollectFence, CollectRelease};
use super::declare::messages;
use super::gossip::Gossip;
use super::orders::{OfficeGet, OrderAnswer, OrderGive, PlanGet};
use super::report::ReportGet;
use super::store_ref::StoreRef;
use crate::codec::{Field, Reader, fields, tags};
use crate::decode_error::DecodeError;

messages! {
    /// A question to a node.
    pub enum Request {
        0x01 Hello "hello",
        0x02 Ping "ping",
        0x03 ClusterGet "cluster-get",
        0x04 ReportGet "report-get",
        0x06 EventsGet "events-get",
        0x07 MetricsGet "metrics-get",
        0x09 AntiEntropyControl "repair-control",
        0x0a OrderGive "order-give",
        0x0c OrderAnswer "order-answer",
        0x0d PlanGet "plan-get",
        0x0e OfficeGet "office-get",
        0x0f Authenticate "authenticate",
        0x10 Get "get",
        0x11 Put "put",
        0x12 Delete "delete",
        0x13 MultiGet "multi-get",
        0x14 MultiPut "multi-put",
        0x15 MultiDelete "multi-delete",
        0x23 ReplicaGet "replica-get",
        0x24 ReplicaMerge "replica-merge",
        0x25 Scan "scan",
        0x30 Gossip "gossip",
        0x31 TreeSums "tree-sums",
        0x32 TreeNodes "tree-nodes",
        0x33 KeyDigests "key-digests",
        0x34 RecordsGet "records-get",
        0x35 RecordsPage "records-page",
        0x38 CollectCandidates "collect-candidates",
        0x39 CollectConfirm "collect-confirm",
        0x3a CollectFence "collect-fence",
        0x3b Collect "collect",
        0x3c CollectRelease "collect-release",
        0x42 ArtifactGet "artifact-get",
        0x43 ArtifactRead "artifact-read",
        0x44 ArtifactScan "artifact-scan",
    }
}

fields! {
    /// The first request on a link. Its layout is the same in every version of the protocol.
    pub struct Hello {
        /// Oldest version that the sender speaks.
        pub version_min: u16,
        /// Newest version that the sender speaks.
        pub version_max: u16,
        /// The cluster that the sender means to talk to, if it knows its name.
        pub cluster: Option<String>,
        /// Who the sender is.
        pub peer: Peer,
    }
}

/// Who opens a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// An application, tool or front door.
    Client {
        /// What it calls itself, for logs.
        name: String,
    },
    /// Another node of the cluster.
    Node {
        /// Its id.
        id: NodeId,
        /// Its incarnation: two processes with one id are told apart by it.
        incarnation: u64,
    },
}

impl Field for Peer {
    const BYTES_MIN: usize = 2;
    fn bytes_bound(&self) -> usize {
        match self {
            Peer::Client { name } => 1 + name.bytes_bound(),
            Peer::Node { .. } => 16,
        }
    }
    fn write(&self, out: &mut BytesMut) {
        match self {
            Peer::Client { name } => {
                out.put_u8(0);
                name.write(out);
            }
            Peer::Node { id, incarnation } => {
                out.put_u8(1);
                id.write(out);
                incarnation.write(out);
            }
        }
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match reader.u8()? {
            0 => Ok(Peer::Client { name: Field::read(reader)? }),
            1 => Ok(Peer::Node { id: Field::read(reader)?, incarnation: Field::read(reader)? }),
            tag => Err(DecodeError::UnknownTag { what: "a peer", tag }),
        }
    }
}

fields! {
    /// Answered at once by whoever is alive.
    pub struct Ping {}
}

fields! {
    /// Asks for the newest cluster document that the node knows.
    pub struct ClusterGet {}
}

fields! {
    /// Asks for the node's events after one that the caller has seen.
    pub struct EventsGet {
        /// The run of the node that the caller has read from, 0 if none: another run is read from its first event.
        pub run: u64,
        /// Sequence number of the last event that the caller has seen.
        pub after: u64,
        /// Events at most; the node grants at most 1,000.
        pub count_max: u32,
        /// Milliseconds to wait for an event when there is none yet; the node grants at most 30,000.
        pub wait_ms: u32,
    }
}

fields! {
    /// Asks for the node's numbers.
    pub struct MetricsGet {}
}

fields! {
    /// How hard a coordinated operation tries; what is absent is the store's own setting.
    #[derive(Default)]
    pub struct RequestOptions {
        /// Acks that it must have: R of a get, W of a put or delete.
        pub required: Option<u8>,
        /// Acks that it hopes for in time.
        pub preferred: Option<u8>,
        /// Whether fallbacks may acknowledge for replicas that are down.
        pub sloppy: Option<bool>,
        /// Milliseconds that the caller still waits from now on; 0 leaves it to the node.
        pub deadline_ms: u32,
    }
}

tags! {
    /// What must hold, as far as the coordinator knows, for a write to be made.
    #[derive(Default)]
    pub enum Condition: "a condition" {
        /// Nothing.
        #[default]
        None = 0,
        /// The key has no live value.
        IfAbsent = 1,
        /// The key has a live value.
        IfPresent = 2,
        /// The write's context covers every version of the key.
        IfCurrent = 3,
        /// As `IfCurrent`; and the value is not new (only its expiry is), so the write is stamped right after what the
        /// context has seen: any put that did not see it wins under last-write-wins.
        Touch = 4,
    }
}

fields! {
    /// Reads one key through its quorum.
    pub struct Get {
        /// Which store.
        pub store: StoreRef,
        /// The newest generation that the caller knows.
        pub generation: Generation,
        /// How hard to try.
        pub options: RequestOptions,
        /// Which key.
        pub key: Bytes,
    }
}

fields! {
    /// Writes one key through its quorum.
    pub struct Put {
        /// Which store.
        pub store: StoreRef,
        /// The newest generation that the caller knows.
        pub generation: Generation,
        /// How hard to try.
        pub options: RequestOptions,
        /// Which key.
        pub key: Bytes,
        /// What the caller has read; without it the put replaces what its coordinator knows.
        pub context: Option<Context>,
        /// From when on the value reads as absent.
        pub expires: Option<WallMillis>,
        /// What must hold.
        pub condition: Condition,
        /// The value.
        pub value: Bytes,
    }
}

fields! {
    /// Deletes one key through its quorum.
    pub struct Delete {
        /// Which store.
        pub store: StoreRef,
        /// The newest generation that the caller knows.
        pub generation: Generation,
        /// How hard to try.
        pub options: RequestOptions,
        /// Which key.
        pub key: Bytes,
        /// What the caller has read; without it the delete replaces what its coordinator knows.
        pub context: Option<Context>,
        /// What must hold.
        pub condition: Condition,
    }
}

fields! {
    /// Reads many keys, each through its own quorum.
    pub struct MultiGet {
        /// Which store.
        pub store: StoreRef,
        /// The newest generation that the caller knows.
        pub generation: Generation,
        /// How hard to try.
        pub options: RequestOptions,
        /// Which keys; answered in this order.
        pub keys: Vec<Bytes>,
    }
}

fields! {
    /// Writes many keys, each through its own quorum: not a transaction.
    pub struct MultiPut {
        /// Which store.
        pub store: StoreRef,
        /// The newest generation that the caller knows.
        pub generation: Generation,
        /// How hard to try.
        pub options: RequestOptions,
        /// What to write; answered in this order.
        pub entries: Vec<PutEntry>,
    }
}

fields! {
    /// One write of a multi-put.
    pub struct PutEntry {
        /// Which key.
        pub key: Bytes,
        /// What the caller has read; without it the put replaces what its coordinator knows.
        pub context: Option<Context>,
        /// From when on the value reads as absent.
        pub expires: Option<WallMillis>,
        /// What must hold.
        pub condition: Condition,
        /// The value.
        pub value: Bytes,
    }
}

fields! {
    /// Deletes many keys, each through its own quorum: not a transaction. Answered as a multi-put is.
    pub struct MultiDelete {
        /// Which store.
        pub store: StoreRef,
        /// The newest generation that the caller knows.
        pub generation: Generation,
        /// How hard to try.
        pub options: RequestOptions,
        /// What to delete; answered in this order.
        pub entries: Vec<DeleteEntry>,
    }
}

fields! {
    /// One delete of a multi-delete.
    pub struct DeleteEntry {
        /// Which key.
        pub key: Bytes,
        /// What the caller has read; without it the delete replaces what its coordinator knows.
        pub context: Option<Context>,
        /// What must hold.
        pub condition: Condition,
    }
}

tags! {
    /// As what a node is asked for a key.
    pub enum Role: "a role" {
        /// As one of those that hold it.
        Replica = 0,
        /// As one that may have parked hints for a replica.
        StandIn = 1,
    }
}

fields! {
    /// Under which conditions a node may answer a get.
    #[derive(Copy)]
    pub struct Terms {
        /// From which generation on its ring shows the keys' places as the caller's does.
        pub since: Generation,
        /// As what it is asked.
        pub role: Role,
    }
}

fields! {
    /// Asks one replica for what it holds.
    pub struct ReplicaGet {
        /// Under which conditions.
        pub terms: Terms,
        /// Which store.
        pub store: StoreRef,
        /// The generation under which the quorum is formed.
        pub generation: Generation,
        /// Which keys; answered in this order.
        pub keys: SmallVec<[Bytes; 1]>,
    }
}

fields! {
    /// Gives one replica, or a fallback that stands in for it, sets to merge into what it holds.
    pub struct ReplicaMerge {
        /// From which generation on a node's ring shows the keys' places as the caller's does.
        pub since: Generation,
        /// Which store.
        pub store: StoreRef,
        /// The generation under which the quorum is formed.
        pub generation: Generation,
        /// The collection epoch at which the sets were read, taken before reading them.
        pub epoch: Epoch,
        /// The replica that is down and for which the receiver shall keep a hint.
        pub hint_for: Option<NodeId>,
        /// Keys and what to merge; answered in this order.
        pub entries: SmallVec<[(Bytes, VersionSet); 1]>,
    }
}

/// Where a scan goes on: strictly after this token and key.
pub type ScanAfter = (Token, Bytes);

fields! {
    /// Asks one replica for a page of a partition, in order of token and key.
    pub struct Scan {
        /// From which generation on a node's ring shows the partition as the caller's does.
        pub since: Generation,
        /// Which store.
        pub store: StoreRef,
        /// The newest generation that the caller knows.
        pub generation: Generation,
        /// Which partition.
        pub partition: PartitionId,
        /// Where the last page ended; `None` starts from the front.
        pub after: Option<ScanAfter>,
        /// Records at most.
        pub records_max: u32,
        /// Bytes of keys and sets after which the page ends; it holds at least one record if there is one.
        pub bytes_max: u32,
    }
}
