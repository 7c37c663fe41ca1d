//! Bytes: what versions, requests, answers and errors look like on a network and on a disk.
//!
//! - [`versions`]: vectors, contexts, version sets and the stored record;
//! - [`messages`]: the native protocol's requests and responses;
//! - [`error`]: the stable error codes that every door speaks;
//! - [`resp`]: the Redis protocol, versions 2 and 3.
//!
//! All of it is little endian, with LEB128 varints in their shortest form, so that one value has exactly one
//! encoding. Decoding borrows from the [`bytes::Bytes`] it is given and copies no key and no value.
//! `docs/reference/wire.md` describes the formats byte by byte; golden tests pin them.
//!
//! **Architecture Invariant:** pure functions. Nothing here reads a socket, keeps a connection or decides what an
//! answer should be; no decoder panics, and none allocates more than a small multiple of its input.

pub mod error;
pub mod messages;
pub mod resp;
pub mod versions;

mod codec;
mod decode_error;

pub use decode_error::DecodeError;
pub use error::ErrorCode;
