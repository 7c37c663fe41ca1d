//! A store's name inside a message.

use std::fmt;
use std::ops::Deref;

use bytes::{Bytes, BytesMut};
use model::StoreName;
use model::limits::STORE_NAME_BYTES_MAX;

use crate::codec::{Field, Reader};
use crate::decode_error::DecodeError;

/// The name of a store, sharing the bytes of the frame that it came in: short ASCII text, whether or not such a
/// store exists. A [`StoreName`] would have to be allocated anew for every request.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StoreRef(Bytes);

impl StoreRef {
    /// The name.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("a store reference is checked to be ASCII where it is made")
    }

    /// The name's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Deref for StoreRef {
    type Target = str;
    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Debug for StoreRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

impl fmt::Display for StoreRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl From<&StoreName> for StoreRef {
    /// Copies the name; clones of the result share it.
    fn from(name: &StoreName) -> Self {
        StoreRef(Bytes::copy_from_slice(name.as_str().as_bytes()))
    }
}

impl Field for StoreRef {
    const BYTES_MIN: usize = 1;
    fn bytes_bound(&self) -> usize {
        self.0.bytes_bound()
    }
    fn write(&self, out: &mut BytesMut) {
        self.0.write(out);
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let name = Bytes::read(reader)?;
        if name.len() > STORE_NAME_BYTES_MAX || !name.is_ascii() {
            return Err(DecodeError::NotText);
        }
        Ok(StoreRef(name))
    }
}
