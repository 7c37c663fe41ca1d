//! What nodes say to each other in a collection round, and to whoever comes with contents from before one.

use bytes::{Bytes, BytesMut};
use model::{Epoch, Generation, Timestamp, VersionSet};
use protocol::collection::RoundId;

use super::store_ref::StoreRef;
use crate::codec::{Field, Reader, fields};
use crate::decode_error::DecodeError;

impl Field for RoundId {
    const BYTES_MIN: usize = 8;
    fn bytes_bound(&self) -> usize {
        8
    }
    fn write(&self, out: &mut BytesMut) {
        bytes::BufMut::put_u64_le(out, self.0);
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.u64_fixed().map(RoundId)
    }
}

/// A key with the tombstones that shall be forgotten, and its store.
pub type Collectable = (StoreRef, (Bytes, VersionSet));

/// A store and a key in it: a place in the order in which candidates are named.
pub type CollectPlace = (StoreRef, Bytes);

fields! {
    /// Asks which tombstones wait at the node, in the order of stores' names, tokens and keys.
    pub struct CollectCandidates {
        /// Only those behind this store and key.
        pub after: Option<CollectPlace>,
        /// How many it shall name at most.
        pub keys_max: u32,
        /// Bytes of keys and tombstones after which it shall end.
        pub bytes_max: u32,
    }
}

fields! {
    /// Some of the tombstones that wait at the node, in that order.
    pub struct CollectCandidated {
        /// Keys and tombstones.
        pub keys: Vec<Collectable>,
        /// How far it has looked, if there may be more behind that.
        pub next: Option<CollectPlace>,
    }
}

fields! {
    /// The first step of a round: keep these keys clean from now on, and make them so.
    pub struct CollectConfirm {
        /// Which round.
        pub round: RoundId,
        /// The cluster document of the round.
        pub generation: Generation,
        /// Keys and tombstones.
        pub keys: Vec<Collectable>,
    }
}

fields! {
    /// The keys are clean, on the device, and guarded, but for those that are left out.
    pub struct CollectConfirmed {
        /// The node's epoch when it began to guard them.
        pub epoch: Epoch,
        /// Positions, in the list that was asked for, of keys that the node could not make clean.
        pub left_out: Vec<u32>,
    }
}

fields! {
    /// The round is over, and the node was not fenced: it need not guard the round's keys any longer.
    pub struct CollectRelease {
        /// Which round.
        pub round: RoundId,
    }
}

fields! {
    /// The node guards nothing for that round.
    pub struct CollectReleased {}
}

fields! {
    /// Turns a node to a round's epoch; asked a second time, whether it has done so.
    pub struct CollectFence {
        /// Which round.
        pub round: RoundId,
        /// Its epoch.
        pub epoch: Epoch,
        /// The greatest timestamp of the round's tombstones.
        pub floor: Timestamp,
    }
}

fields! {
    /// The epoch is remembered, and nothing older is accepted any more.
    pub struct CollectFenced {}
}

fields! {
    /// Removes what is nothing but these tombstones.
    pub struct Collect {
        /// Keys and tombstones.
        pub keys: Vec<Collectable>,
    }
}

fields! {
    /// What was removed.
    pub struct Collected {
        /// Records and hints.
        pub records: u64,
    }
}

fields! {
    /// Answers contents that were read before the node's epoch: nothing was stored.
    pub struct StaleEpoch {
        /// The node's epoch: what is read from now on may carry it.
        pub epoch: Epoch,
    }
}
