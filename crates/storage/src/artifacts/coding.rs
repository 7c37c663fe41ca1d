//! Values as they are stored: raw, or compressed where that gains at least a tenth.
//!
//! A compressed value is its length before compression (four bytes), then an lz4 block or a zstd frame. zstd has one
//! dictionary for the whole artifact, trained on the records with the lowest tokens, so that every builder trains the
//! same one.

use std::cell::RefCell;

use zstd_safe::{CCtx, CParameter, DCtx, DDict};

use super::format::u32_at;

/// Bytes of a dictionary at most: with values of some hundred bytes more gains nothing.
pub const DICTIONARY_BYTES_MAX: usize = 16 << 10;
/// The level of zstd: above it building takes much longer and gains little.
const LEVEL: i32 = 3;
/// Values at least that long are tried.
const TRIED_BYTES_MIN: usize = 32;
/// Bytes of the length before a compressed value.
const LENGTH_BYTES: usize = 4;

/// How the values of an artifact are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    None,
    /// With lz4: quick.
    Lz4,
    /// With zstd and a dictionary: small.
    Zstd,
}

impl Compression {
    pub(super) fn code(self) -> u8 {
        match self {
            Compression::None => 0,
            Compression::Lz4 => 1,
            Compression::Zstd => 2,
        }
    }

    pub(super) fn of(code: u8) -> Option<Compression> {
        [Compression::None, Compression::Lz4, Compression::Zstd]
            .into_iter()
            .find(|known| known.code() == code)
    }

    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Compression::None => "none",
            Compression::Lz4 => "lz4",
            Compression::Zstd => "zstd",
        }
    }
}

/// Trains a dictionary on values; empty when there is too little to learn from.
pub fn train(values: &[&[u8]]) -> Vec<u8> {
    let sizes: Vec<usize> = values.iter().map(|value| value.len()).collect();
    let samples = values.concat();
    let mut dictionary = Vec::with_capacity(DICTIONARY_BYTES_MAX);
    match zstd_safe::train_from_buffer(&mut dictionary, &samples, &sizes) {
        Ok(_) => dictionary,
        Err(_) => Vec::new(),
    }
}

/// Compresses values, for one thread.
pub struct Sealer {
    compression: Compression,
    context: Option<CCtx<'static>>,
    buffer: Vec<u8>,
}

impl Sealer {
    /// For an artifact with this compression and dictionary.
    pub fn new(compression: Compression, dictionary: &[u8]) -> Sealer {
        let context = (compression == Compression::Zstd).then(|| {
            let mut context = CCtx::create();
            // The length comes before the frame, and the record has a checksum.
            for parameter in [
                CParameter::CompressionLevel(LEVEL),
                CParameter::ContentSizeFlag(false),
                CParameter::DictIdFlag(false),
                CParameter::ChecksumFlag(false),
            ] {
                context.set_parameter(parameter).expect("zstd knows its parameters");
            }
            if !dictionary.is_empty() {
                context.load_dictionary(dictionary).expect("there is memory for a dictionary");
            }
            context
        });
        Sealer { compression, context, buffer: Vec::new() }
    }

    /// The value as it is stored, and whether it is compressed.
    pub(super) fn seal<'a>(&'a mut self, value: &'a [u8]) -> (Compression, &'a [u8]) {
        if self.compression == Compression::None || value.len() < TRIED_BYTES_MIN {
            return (Compression::None, value);
        }
        let Ok(length) = u32::try_from(value.len()) else { return (Compression::None, value) };
        self.buffer.clear();
        self.buffer.extend_from_slice(&length.to_le_bytes());
        let compressed = match (self.compression, &mut self.context) {
            (Compression::Zstd, Some(context)) => {
                let mut frame = Vec::with_capacity(zstd_safe::compress_bound(value.len()));
                let done = context.compress2(&mut frame, value);
                self.buffer.extend_from_slice(&frame);
                done.is_ok()
            }
            _ => {
                self.buffer.extend_from_slice(&lz4_flex::block::compress(value));
                true
            }
        };
        let gains = self.buffer.len() as u64 * 10 <= value.len() as u64 * 9;
        if compressed && gains { (self.compression, &self.buffer) } else { (Compression::None, value) }
    }
}

/// Bytes of a value before compression, as its stored bytes say; `None` when no sealer made them.
pub(super) fn value_bytes(coding: Compression, stored: &[u8]) -> Option<usize> {
    match coding {
        Compression::None => Some(stored.len()),
        _ => (stored.len() >= LENGTH_BYTES).then(|| u32_at(stored, 0) as usize),
    }
}

/// What decompressing needs: shared by all readers of an artifact.
pub(super) struct Opener {
    dictionary: Option<DDict<'static>>,
}

impl Opener {
    pub(super) fn new(dictionary: &[u8]) -> Opener {
        Opener { dictionary: (!dictionary.is_empty()).then(|| DDict::create(dictionary)) }
    }

    /// The value before compression; `None` when the stored bytes are none that a sealer made.
    pub(super) fn open(&self, coding: Compression, stored: &[u8], bytes_max: usize) -> Option<Vec<u8>> {
        if coding == Compression::None {
            return Some(stored.to_vec());
        }
        if stored.len() < LENGTH_BYTES {
            return None;
        }
        let length = u32_at(stored, 0) as usize;
        if length > bytes_max {
            return None;
        }
        let packed = &stored[LENGTH_BYTES..];
        let value = match coding {
            Compression::Lz4 => lz4_flex::block::decompress(packed, length).ok()?,
            _ => {
                let mut value = Vec::with_capacity(length);
                CONTEXT
                    .with_borrow_mut(|context| match &self.dictionary {
                        Some(dictionary) => context.decompress_using_ddict(&mut value, packed, dictionary),
                        None => context.decompress(&mut value, packed),
                    })
                    .ok()?;
                value
            }
        };
        (value.len() == length).then_some(value)
    }
}

thread_local! {
    /// A context takes 150 KB and longer to make than a value to decompress.
    static CONTEXT: RefCell<DCtx<'static>> = RefCell::new(DCtx::create());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back_as_they_were_and_what_gains_little_stays_raw() {
        let value = |number: u32| {
            format!("{{\"name\": \"user {number}\", \"visits\": {}}}", number * 7919).into_bytes()
        };
        let values: Vec<Vec<u8>> = (0..3000).map(value).collect();
        let samples: Vec<&[u8]> = values.iter().map(Vec::as_slice).collect();
        let dictionary = train(&samples);
        assert_eq!(train(&samples), dictionary, "every builder trains the same one");
        let noise: Vec<u8> =
            (0..200_u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect();
        for (compression, dictionary) in [
            (Compression::None, &[][..]),
            (Compression::Lz4, &[]),
            (Compression::Zstd, &[]),
            (Compression::Zstd, &dictionary),
        ] {
            let mut sealer = Sealer::new(compression, dictionary);
            let opener = Opener::new(dictionary);
            let long = b"ab".repeat(5000);
            for value in values.iter().chain([&noise, &long, &Vec::new()]) {
                let (coding, stored) = sealer.seal(value);
                assert!(coding == Compression::None || stored.len() * 10 <= value.len() * 9);
                assert_eq!(opener.open(coding, stored, 1 << 20).as_deref(), Some(&value[..]));
            }
            assert_eq!(sealer.seal(&noise).0, Compression::None);
            let small = sealer.seal(&long).0;
            assert_eq!(small, compression);
        }
        let mut sealer = Sealer::new(Compression::Zstd, &dictionary);
        let with: usize = values.iter().map(|value| sealer.seal(value).1.len()).sum();
        assert!(with * 10 < samples.concat().len() * 8, "the dictionary is used");
    }

    #[test]
    fn stored_bytes_that_lie_are_refused() {
        let opener = Opener::new(&[]);
        for coding in [Compression::Lz4, Compression::Zstd] {
            for stored in [&[][..], &[1], &[255; 40], &[4, 0, 0, 0], &[0, 0, 0, 0, 9, 9]] {
                assert_eq!(opener.open(coding, stored, 1 << 20), None);
            }
        }
    }
}
