//! Primitives of the encoding: how one field is written and read.
//!
//! A [`Field`] knows its bytes. Structures write their fields in order of declaration, options start with a byte 0
//! or 1, lists and byte strings with their length. Reading checks every length against what is left of the input
//! *before* it allocates, so a short frame cannot ask for a lot of memory.

use bytes::{BufMut, Bytes, BytesMut};
use smallvec::SmallVec;

use crate::decode_error::{DecodeError, LIST_COUNT_MAX};
use crate::error::ErrorCode;

/// Reads fields off the front of some bytes.
pub(crate) struct Reader<'a> {
    source: &'a Bytes,
    at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(source: &'a Bytes) -> Self {
        Reader { source, at: 0 }
    }

    pub(crate) fn remaining(&self) -> usize {
        self.source.len() - self.at
    }

    pub(crate) fn finish(self) -> Result<(), DecodeError> {
        match self.remaining() {
            0 => Ok(()),
            bytes => Err(DecodeError::Trailing { bytes }),
        }
    }

    #[inline]
    pub(crate) fn u8(&mut self) -> Result<u8, DecodeError> {
        let byte = *self.source.get(self.at).ok_or(DecodeError::Truncated)?;
        self.at += 1;
        Ok(byte)
    }

    #[inline]
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let bytes = self.source[self.at..].first_chunk::<N>().ok_or(DecodeError::Truncated)?;
        self.at += N;
        Ok(*bytes)
    }

    #[inline]
    pub(crate) fn u64_fixed(&mut self) -> Result<u64, DecodeError> {
        self.array().map(u64::from_le_bytes)
    }

    /// A varint of up to 64 bits in its shortest form.
    #[inline]
    pub(crate) fn varint(&mut self) -> Result<u64, DecodeError> {
        let first = self.u8()?;
        if first < 0x80 {
            return Ok(u64::from(first));
        }
        self.varint_rest(first)
    }

    /// A varint of more than one byte: at once when eight bytes hold it, else byte by byte.
    #[inline]
    fn varint_rest(&mut self, first: u8) -> Result<u64, DecodeError> {
        if let Some(bytes) = self.source[self.at - 1..].first_chunk::<8>() {
            let word = u64::from_le_bytes(*bytes);
            let last = !word & 0x8080_8080_8080_8080;
            if last != 0 {
                let bits = last.trailing_zeros() + 1;
                self.at += (bits / 8 - 1) as usize;
                let word = word & (u64::MAX >> (64 - bits));
                if word >> (bits - 8) == 0 {
                    return Err(DecodeError::Number);
                }
                return Ok(join_sevens(word));
            }
        }
        self.varint_slow(first)
    }

    fn varint_slow(&mut self, first: u8) -> Result<u64, DecodeError> {
        let mut value = u64::from(first & 0x7f);
        for shift in (7..64).step_by(7) {
            let byte = self.u8()?;
            if byte == 0 || (shift == 63 && byte > 1) {
                return Err(DecodeError::Number);
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(DecodeError::Number)
    }

    /// Passes over the four varints of a dot without computing them.
    #[inline]
    pub(crate) fn skip_dot(&mut self) -> Result<(), DecodeError> {
        if let Some(bytes) = self.source[self.at..].first_chunk::<16>() {
            let mut lasts = !u128::from_le_bytes(*bytes) & 0x8080_8080_8080_8080_8080_8080_8080_8080;
            for _ in 0..3 {
                lasts &= lasts.wrapping_sub(1);
            }
            if lasts != 0 {
                self.at += (lasts.trailing_zeros() / 8 + 1) as usize;
                return Ok(());
            }
        }
        for _ in 0..4 {
            self.skip_varint()?;
        }
        Ok(())
    }

    /// Passes over a varint without computing it.
    pub(crate) fn skip_varint(&mut self) -> Result<(), DecodeError> {
        while self.u8()? >= 0x80 {}
        Ok(())
    }

    /// Passes over bytes.
    #[inline]
    pub(crate) fn skip(&mut self, bytes: usize) -> Result<(), DecodeError> {
        if bytes > self.remaining() {
            return Err(DecodeError::Truncated);
        }
        self.at += bytes;
        Ok(())
    }

    /// A length that the rest of the input can hold.
    #[inline]
    pub(crate) fn length(&mut self) -> Result<usize, DecodeError> {
        let length = self.varint()?;
        if length > self.remaining() as u64 {
            return Err(DecodeError::Truncated);
        }
        Ok(length as usize)
    }

    /// The next bytes, shared with the input.
    #[inline]
    pub(crate) fn slice(&mut self, length: usize) -> Result<Bytes, DecodeError> {
        if length > self.remaining() {
            return Err(DecodeError::Truncated);
        }
        let slice = self.source.slice(self.at..self.at + length);
        self.at += length;
        Ok(slice)
    }

    /// The number of elements of a list whose elements take at least `bytes_min` each.
    pub(crate) fn count(&mut self, bytes_min: usize) -> Result<usize, DecodeError> {
        let count = self.varint()?;
        if count > LIST_COUNT_MAX as u64 {
            return Err(DecodeError::ListTooLong { count });
        }
        if count as usize * bytes_min > self.remaining() {
            return Err(DecodeError::Truncated);
        }
        Ok(count as usize)
    }
}

/// The lower seven bits of each byte, without the gaps.
#[inline]
fn join_sevens(word: u64) -> u64 {
    let pairs = word & 0x007f_007f_007f_007f | (word & 0x7f00_7f00_7f00_7f00) >> 1;
    let fours = pairs & 0x0000_3fff_0000_3fff | (pairs & 0x3fff_0000_3fff_0000) >> 2;
    fours & 0x0fff_ffff | (fours & 0x0fff_ffff_0000_0000) >> 4
}

/// Bytes that a varint takes.
#[inline]
pub(crate) fn varint_bytes(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

/// Appends a varint: seven bits a byte, least significant first, the high bit set on all but the last.
#[inline]
pub(crate) fn put_varint(mut value: u64, out: &mut BytesMut) {
    if value < 0x80 {
        out.put_u8(value as u8);
        return;
    }
    let mut bytes = [0; 10];
    let mut length = 0;
    while value >= 0x80 {
        bytes[length] = value as u8 | 0x80;
        value >>= 7;
        length += 1;
    }
    bytes[length] = value as u8;
    out.put_slice(&bytes[..=length]);
}

/// Something with exactly one encoding.
pub(crate) trait Field: Sized {
    /// Fewest bytes that any value takes.
    const BYTES_MIN: usize;
    /// Upper bound of the bytes that this value takes, so that a message reserves its room once.
    fn bytes_bound(&self) -> usize;
    fn write(&self, out: &mut BytesMut);
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError>;
}

impl Field for u8 {
    const BYTES_MIN: usize = 1;
    fn bytes_bound(&self) -> usize {
        1
    }
    fn write(&self, out: &mut BytesMut) {
        out.put_u8(*self);
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.u8()
    }
}

impl Field for bool {
    const BYTES_MIN: usize = 1;
    fn bytes_bound(&self) -> usize {
        1
    }
    fn write(&self, out: &mut BytesMut) {
        out.put_u8(u8::from(*self));
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match reader.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            tag => Err(DecodeError::UnknownTag { what: "a yes or no", tag }),
        }
    }
}

impl Field for u16 {
    const BYTES_MIN: usize = 1;
    fn bytes_bound(&self) -> usize {
        3
    }
    fn write(&self, out: &mut BytesMut) {
        put_varint(u64::from(*self), out);
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.varint()?.try_into().map_err(|_| DecodeError::Number)
    }
}

impl Field for u32 {
    const BYTES_MIN: usize = 1;
    fn bytes_bound(&self) -> usize {
        5
    }
    fn write(&self, out: &mut BytesMut) {
        put_varint(u64::from(*self), out);
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.varint()?.try_into().map_err(|_| DecodeError::Number)
    }
}

impl Field for u64 {
    const BYTES_MIN: usize = 1;
    fn bytes_bound(&self) -> usize {
        10
    }
    fn write(&self, out: &mut BytesMut) {
        put_varint(*self, out);
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.varint()
    }
}

impl Field for Bytes {
    const BYTES_MIN: usize = 1;
    fn bytes_bound(&self) -> usize {
        10 + self.len()
    }
    fn write(&self, out: &mut BytesMut) {
        put_varint(self.len() as u64, out);
        out.put_slice(self);
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let length = reader.length()?;
        reader.slice(length)
    }
}

impl Field for String {
    const BYTES_MIN: usize = 1;
    fn bytes_bound(&self) -> usize {
        10 + self.len()
    }
    fn write(&self, out: &mut BytesMut) {
        put_varint(self.len() as u64, out);
        out.put_slice(self.as_bytes());
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let bytes = Bytes::read(reader)?;
        std::str::from_utf8(&bytes).map(str::to_owned).map_err(|_| DecodeError::NotText)
    }
}

impl<T: Field> Field for Option<T> {
    const BYTES_MIN: usize = 1;
    fn bytes_bound(&self) -> usize {
        1 + self.as_ref().map_or(0, T::bytes_bound)
    }
    fn write(&self, out: &mut BytesMut) {
        out.put_u8(u8::from(self.is_some()));
        if let Some(value) = self {
            value.write(out);
        }
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(if bool::read(reader)? { Some(T::read(reader)?) } else { None })
    }
}

impl<T: Field, E: Field> Field for Result<T, E> {
    const BYTES_MIN: usize = 1 + if T::BYTES_MIN < E::BYTES_MIN { T::BYTES_MIN } else { E::BYTES_MIN };
    fn bytes_bound(&self) -> usize {
        1 + self.as_ref().map_or_else(E::bytes_bound, T::bytes_bound)
    }
    fn write(&self, out: &mut BytesMut) {
        match self {
            Ok(value) => {
                out.put_u8(0);
                value.write(out);
            }
            Err(error) => {
                out.put_u8(1);
                error.write(out);
            }
        }
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match reader.u8()? {
            0 => Ok(Ok(T::read(reader)?)),
            1 => Ok(Err(E::read(reader)?)),
            tag => Err(DecodeError::UnknownTag { what: "an outcome", tag }),
        }
    }
}

impl<A: Field, B: Field> Field for (A, B) {
    const BYTES_MIN: usize = A::BYTES_MIN + B::BYTES_MIN;
    fn bytes_bound(&self) -> usize {
        self.0.bytes_bound() + self.1.bytes_bound()
    }
    fn write(&self, out: &mut BytesMut) {
        self.0.write(out);
        self.1.write(out);
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok((A::read(reader)?, B::read(reader)?))
    }
}

impl<T: Field> Field for Vec<T> {
    const BYTES_MIN: usize = 1;
    fn bytes_bound(&self) -> usize {
        10 + self.iter().map(T::bytes_bound).sum::<usize>()
    }
    fn write(&self, out: &mut BytesMut) {
        put_varint(self.len() as u64, out);
        self.iter().for_each(|element| element.write(out));
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let count = reader.count(T::BYTES_MIN)?;
        let mut list = Vec::with_capacity(count);
        for _ in 0..count {
            list.push(T::read(reader)?);
        }
        Ok(list)
    }
}

impl<T: Field> Field for SmallVec<[T; 1]> {
    const BYTES_MIN: usize = 1;
    fn bytes_bound(&self) -> usize {
        10 + self.iter().map(T::bytes_bound).sum::<usize>()
    }
    fn write(&self, out: &mut BytesMut) {
        put_varint(self.len() as u64, out);
        self.iter().for_each(|element| element.write(out));
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let count = reader.count(T::BYTES_MIN)?;
        let mut list = SmallVec::with_capacity(count);
        for _ in 0..count {
            list.push(T::read(reader)?);
        }
        Ok(list)
    }
}

impl Field for ErrorCode {
    const BYTES_MIN: usize = 2;
    fn bytes_bound(&self) -> usize {
        2
    }
    fn write(&self, out: &mut BytesMut) {
        out.put_u16_le(self.number());
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let code = u16::from_le_bytes(reader.array()?);
        ErrorCode::from_number(code).ok_or(DecodeError::UnknownErrorCode { code })
    }
}

/// A newtype is encoded as what it wraps.
macro_rules! newtype_field {
    ($($type:path => $inner:ty),* $(,)?) => {$(
        impl Field for $type {
            const BYTES_MIN: usize = <$inner as Field>::BYTES_MIN;
            fn bytes_bound(&self) -> usize {
                self.0.bytes_bound()
            }
            fn write(&self, out: &mut BytesMut) {
                self.0.write(out);
            }
            fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
                <$inner>::read(reader).map($type)
            }
        }
    )*};
}

newtype_field! {
    model::ArtifactNumber => u64,
    model::Epoch => u64,
    model::Generation => u64,
    model::ManifestDigest => [u8; 16],
    model::NodeId => u32,
    model::PartitionId => u32,
    model::WallMillis => u64,
}

impl Field for [u8; 16] {
    const BYTES_MIN: usize = 16;
    fn bytes_bound(&self) -> usize {
        16
    }
    fn write(&self, out: &mut BytesMut) {
        out.put_slice(self);
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.array()
    }
}

impl Field for model::Token {
    const BYTES_MIN: usize = 8;
    fn bytes_bound(&self) -> usize {
        8
    }
    fn write(&self, out: &mut BytesMut) {
        out.put_u64_le(self.0);
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.u64_fixed().map(model::Token)
    }
}

impl Field for model::Timestamp {
    const BYTES_MIN: usize = 8;
    fn bytes_bound(&self) -> usize {
        8
    }
    fn write(&self, out: &mut BytesMut) {
        out.put_u64_le(self.0);
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.u64_fixed().map(model::Timestamp)
    }
}

/// Declares a structure whose encoding is its fields in order of declaration.
macro_rules! fields {
    ($(#[$meta:meta])* pub struct $name:ident { $($(#[$field_meta:meta])* pub $field:ident: $type:ty,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name { $($(#[$field_meta])* pub $field: $type,)* }

        impl crate::codec::Field for $name {
            const BYTES_MIN: usize = 0 $(+ <$type as crate::codec::Field>::BYTES_MIN)*;
            fn bytes_bound(&self) -> usize {
                0 $(+ crate::codec::Field::bytes_bound(&self.$field))*
            }
            fn write(&self, _out: &mut bytes::BytesMut) {
                $(crate::codec::Field::write(&self.$field, _out);)*
            }
            fn read(_reader: &mut crate::codec::Reader<'_>) -> Result<Self, crate::decode_error::DecodeError> {
                Ok($name { $($field: crate::codec::Field::read(_reader)?,)* })
            }
        }
    };
}
pub(crate) use fields;

/// Declares an enumeration without data that is encoded as one byte.
macro_rules! tags {
    ($(#[$meta:meta])* pub enum $name:ident : $what:literal { $($(#[$variant_meta:meta])* $variant:ident = $tag:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$variant_meta])* $variant,)* }

        impl crate::codec::Field for $name {
            const BYTES_MIN: usize = 1;
            fn bytes_bound(&self) -> usize {
                1
            }
            fn write(&self, out: &mut bytes::BytesMut) {
                bytes::BufMut::put_u8(out, match self { $($name::$variant => $tag,)* });
            }
            fn read(reader: &mut crate::codec::Reader<'_>) -> Result<Self, crate::decode_error::DecodeError> {
                match reader.u8()? {
                    $($tag => Ok($name::$variant),)*
                    tag => Err(crate::decode_error::DecodeError::UnknownTag { what: $what, tag }),
                }
            }
        }
    };
}
pub(crate) use tags;
