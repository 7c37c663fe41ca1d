//! The native protocol's messages: a client or node asks, a node answers.
//!
//! ```text
//! frame body   kind 1   request id (varint)   the message's fields in order of declaration
//! ```
//!
//! The sender chooses request ids; an answer carries its request's. Answers come in any order. The first request on
//! a link is [`Hello`], whose layout never changes, the first answer [`Welcome`]: they settle the version that all
//! later frames on the link use. The length prefix of a frame and the preamble of a link belong to `runtime`.
//!
//! Four groups: what anybody may ask a node about itself; *coordinated* operations, which the receiving node drives
//! to their quorum; *replica* operations, which a node answers from its own storage alone; and what nodes tell each
//! other about themselves.
//!
//! **Architecture Invariant:** unknown kinds, unknown tags and trailing bytes are errors; nothing is skipped that is
//! not understood.

mod access;
mod antientropy;
mod artifacts;
mod collection;
mod declare;
mod gossip;
mod orders;
mod report;
mod request;
mod response;
mod store_ref;

pub use access::{Authenticate, SecretText};
pub use antientropy::{
    AnswererState, AntiEntropyControl, AntiEntropyOrder, KeyDigested, KeyDigests, RecordsGet, RecordsGot,
    RecordsPage, RecordsPaged, TreeNoded, TreeNodes, TreeSummed, TreeSums,
};
pub use artifacts::{ArtifactBytes, ArtifactFile, ArtifactGet, ArtifactRead, ArtifactScan};
pub use collection::{
    Collect, CollectCandidated, CollectCandidates, CollectConfirm, CollectConfirmed, CollectFence,
    CollectFenced, CollectPlace, CollectRelease, CollectReleased, Collectable, Collected, StaleEpoch,
};
pub use gossip::{Gossip, Gossiped};
pub use orders::{OfficeGet, OfficeTold, OrderAnswer, OrderGive, OrderTold, PlanGet, PlanTold};
pub use report::{ReportGet, ReportGot};
pub use request::{
    ClusterGet, Condition, Delete, DeleteEntry, EventsGet, Get, Hello, MetricsGet, MultiDelete, MultiGet,
    MultiPut, Peer, Ping, Put, PutEntry, ReplicaGet, ReplicaMerge, Request, RequestOptions, Role, Scan,
    ScanAfter, Terms,
};
pub use response::{
    ClusterDocument, EventsDocument, Failure, Got, Merged, MetricsText, MultiGot, MultiWritten, Pong,
    ReplicaGot, ReplicaMerged, Response, Scanned, Welcome, Written,
};
pub use store_ref::StoreRef;

use bytes::{BufMut, Bytes, BytesMut};

use crate::codec::{Reader, put_varint};
use crate::decode_error::DecodeError;

/// Low bits of a request id that the sender may use as it likes; the rest grows by at least one with each request of
/// the link, so that the receiver can tell a request that the network has duplicated.
pub const SLOT_BITS: u32 = 16;

/// Oldest version of the protocol that this program speaks.
pub const VERSION_MIN: u16 = 5;

/// First version that knows [`Authenticate`].
pub const VERSION_WITH_USERS: u16 = 6;

/// Newest version of the protocol that this program speaks.
pub const VERSION_MAX: u16 = 6;

/// Kind and request id.
const FRAME_HEAD_BYTES_MAX: usize = 11;

/// Appends the body of a request's frame. Reserves once, and copies each value once.
pub fn encode_request(id: u64, request: &Request, out: &mut BytesMut) {
    out.reserve(FRAME_HEAD_BYTES_MAX + request.fields_bytes_bound());
    out.put_u8(request.kind());
    put_varint(id, out);
    request.write_fields(out);
}

/// Reads the body of a request's frame; keys and values share its bytes.
pub fn decode_request(body: Bytes) -> Result<(u64, Request), DecodeError> {
    let mut reader = Reader::new(&body);
    let (kind, id) = (reader.u8()?, reader.varint()?);
    let request = Request::read_fields(kind, &mut reader)?;
    reader.finish()?;
    Ok((id, request))
}

/// Appends the body of a response's frame. Reserves once, and copies each value once.
pub fn encode_response(id: u64, response: &Response, out: &mut BytesMut) {
    out.reserve(FRAME_HEAD_BYTES_MAX + response.fields_bytes_bound());
    out.put_u8(response.kind());
    put_varint(id, out);
    response.write_fields(out);
}

/// Reads the body of a response's frame; keys and values share its bytes.
pub fn decode_response(body: Bytes) -> Result<(u64, Response), DecodeError> {
    let mut reader = Reader::new(&body);
    let (kind, id) = (reader.u8()?, reader.varint()?);
    let response = Response::read_fields(kind, &mut reader)?;
    reader.finish()?;
    Ok((id, response))
}

/// The request id of a body that may not decode otherwise, so that its sender can be answered.
pub fn request_id(body: &Bytes) -> Option<u64> {
    let mut reader = Reader::new(body);
    reader.u8().ok()?;
    reader.varint().ok()
}

/// The version that two peers with these ranges speak: the newest that both know.
pub fn negotiate(theirs_min: u16, theirs_max: u16) -> Option<u16> {
    let version = theirs_max.min(VERSION_MAX);
    (version >= theirs_min && version >= VERSION_MIN).then_some(version)
}
