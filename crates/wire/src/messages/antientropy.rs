//! How replicas compare what they hold, and what operators ask of it.
//!
//! Contents come with the collection epoch at which they were read: whoever merges them names it.

use bytes::{Bytes, BytesMut};
use model::{Epoch, Generation, PartitionId, StoreName, Token, VersionSet};
use protocol::antientropy::merkle::{Digest, Span};

use super::store_ref::StoreRef;
use crate::codec::{Field, Reader, fields, tags};
use crate::decode_error::DecodeError;
use crate::error::ErrorCode;

impl Field for Digest {
    const BYTES_MIN: usize = 16;
    fn bytes_bound(&self) -> usize {
        16
    }
    fn write(&self, out: &mut BytesMut) {
        bytes::BufMut::put_u128_le(out, self.0);
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.array().map(|bytes| Digest(u128::from_le_bytes(bytes)))
    }
}

impl Field for Span {
    const BYTES_MIN: usize = 2;
    fn bytes_bound(&self) -> usize {
        11
    }
    fn write(&self, out: &mut BytesMut) {
        self.bits.write(out);
        self.prefix.write(out);
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (bits, prefix) = (u8::read(reader)?, u64::read(reader)?);
        let fits = bits <= 64 && (bits == 64 || prefix >> bits == 0);
        if fits { Ok(Span { bits, prefix }) } else { Err(DecodeError::Number) }
    }
}

tags! {
    /// What shall happen to repair.
    pub enum AntiEntropyOrder: "an order to repair" {
        /// Compare with all peers now, and go on by the schedule.
        Start = 0,
        /// Compare with nobody until started again.
        Stop = 1,
        /// Read all records now, and compare where something is wrong.
        Scrub = 2,
        /// Change nothing; the answer is about that store and partition.
        Look = 3,
    }
}

fields! {
    /// An order to repair at the node; answered with its report of repair, about that store and partition.
    pub struct AntiEntropyControl {
        /// Which.
        pub order: AntiEntropyOrder,
        /// Only this store; all when absent.
        pub store: Option<String>,
        /// Only this partition; all when absent.
        pub partition: Option<PartitionId>,
    }
}

fields! {
    /// Compares the sums over whole partitions.
    pub struct TreeSums {
        /// Which store.
        pub store: StoreRef,
        /// The generation under which both are replicas.
        pub generation: Generation,
        /// The sender's sums, and the bits of its leaves; `None` while it is not sure of its records.
        pub sums: Vec<(PartitionId, Option<(Digest, u8)>)>,
    }
}

fields! {
    /// The state of a node while it answers.
    #[derive(Copy)]
    pub struct AnswererState {
        /// Its incarnation: in another one it may have lost what it held.
        pub incarnation: u64,
        /// The generation that it had adopted before it looked at its records.
        pub adopted: Generation,
    }
}

fields! {
    /// Which partitions differ.
    pub struct TreeSummed {
        /// The state of the answering node.
        pub standing: AnswererState,
        /// Those whose sums differ, with the bits of the shallower of the two trees' leaves.
        pub differing: Vec<(PartitionId, u8)>,
        /// Those that cannot be compared now: one of the trees is doubtful.
        pub unready: Vec<PartitionId>,
        /// Those of which the answering node has not all: it has lost their records and not refilled them yet, or holds
        /// records that it cannot read. The latter are named whether or not they were asked for.
        pub incomplete: Vec<PartitionId>,
    }
}

fields! {
    /// Asks for the sums of the parts of spans.
    pub struct TreeNodes {
        /// Which store.
        pub store: StoreRef,
        /// The generation under which both are replicas.
        pub generation: Generation,
        /// Partition, span, and the bits of its parts: at most four more than the span's.
        pub spans: Vec<(PartitionId, (Span, u8))>,
    }
}

fields! {
    /// The sums of the parts of each span, in order; `None` where the node cannot say.
    pub struct TreeNoded {
        /// In the order of the request.
        pub sums: Vec<Option<Vec<Digest>>>,
    }
}

fields! {
    /// Asks which keys lie in spans, and for their digests.
    pub struct KeyDigests {
        /// Which store.
        pub store: StoreRef,
        /// The generation under which both are replicas.
        pub generation: Generation,
        /// The spans.
        pub spans: Vec<(PartitionId, Span)>,
    }
}

fields! {
    /// Keys and digests of the first spans asked for, at least of one; ask for the others again.
    pub struct KeyDigested {
        /// In the order of the request; damaged records are left out.
        pub keys: Vec<Vec<(Bytes, Digest)>>,
    }
}

fields! {
    /// Asks for the sets of keys, whether or not the node answers gets for them.
    pub struct RecordsGet {
        /// Which store.
        pub store: StoreRef,
        /// The generation under which both are replicas.
        pub generation: Generation,
        /// The keys.
        pub keys: Vec<Bytes>,
    }
}

fields! {
    /// The sets of the first keys asked for, at least of one; ask for the others again.
    pub struct RecordsGot {
        /// When they were read.
        pub epoch: Epoch,
        /// In the order of the request.
        pub sets: Vec<Result<VersionSet, ErrorCode>>,
    }
}

fields! {
    /// Asks for the records of a partition in order of their tokens.
    pub struct RecordsPage {
        /// Which store.
        pub store: StoreRef,
        /// The generation under which both are replicas.
        pub generation: Generation,
        /// Which partition.
        pub partition: PartitionId,
        /// The first token of the page.
        pub from: Token,
    }
}

fields! {
    /// A page of records; those that are damaged are left out.
    pub struct RecordsPaged {
        /// When they were read.
        pub epoch: Epoch,
        /// Keys and sets.
        pub records: Vec<(Bytes, VersionSet)>,
        /// Where the next page begins; `None` when this is the last.
        pub next: Option<Token>,
    }
}

impl AntiEntropyControl {
    /// The store that it names.
    ///
    /// # Errors
    /// When no store can have that name.
    pub fn store(&self) -> Result<Option<StoreName>, model::StoreError> {
        self.store.as_deref().map(StoreName::new).transpose()
    }
}
