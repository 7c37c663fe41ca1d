//! How the user of a link says who it is.

use std::fmt;

use bytes::BytesMut;

use crate::codec::{Field, Reader, fields};
use crate::decode_error::DecodeError;

fields! {
    /// Says whose requests follow on this link; answered with a pong, or `unauthenticated`. Sent over TLS only.
    pub struct Authenticate {
        /// The user's name; empty where the secret alone says it.
        pub user: String,
        /// The user's secret.
        pub secret: SecretText,
    }
}

/// The text of a secret, which `Debug` does not show.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretText(pub String);

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a secret")
    }
}

impl Field for SecretText {
    const BYTES_MIN: usize = String::BYTES_MIN;
    fn bytes_bound(&self) -> usize {
        self.0.bytes_bound()
    }
    fn write(&self, out: &mut BytesMut) {
        self.0.write(out);
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        String::read(reader).map(SecretText)
    }
}
