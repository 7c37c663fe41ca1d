//! Where an export's bytes go: as they are, or compressed as the name of the file says.
//!
//! Must never: end a compressed file without its end, so [`Sink::finish`] comes last; or leave a zstd frame behind that
//! does not decompress to what was written, since an export may be the only copy.

use std::io::{self, Read, Write};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use ruzstd::decoding::StreamingDecoder;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

/// Bytes that one frame of zstd holds. `load` and `zstd` read frames one after another.
const FRAME_BYTES: usize = 1 << 20;

/// Takes the bytes of an export.
pub(super) enum Sink {
    Plain(Box<dyn Write>),
    Gzip(GzEncoder<Box<dyn Write>>),
    Zstd(Frames),
}

impl Sink {
    /// Writes to `output`, compressed as the name of `file` says. Standard output has no name.
    pub(super) fn new(file: Option<&Path>, output: Box<dyn Write>) -> Sink {
        match file.and_then(Path::extension).and_then(|extension| extension.to_str()) {
            Some("gz") => Sink::Gzip(GzEncoder::new(output, Compression::default())),
            Some("zst" | "zstd") => Sink::Zstd(Frames { output, frame: Vec::new(), is_begun: false }),
            _ => Sink::Plain(output),
        }
    }

    /// Writes what a compressed file ends with, and hands everything to the system.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        match self {
            Sink::Plain(output) => output.flush(),
            Sink::Gzip(packer) => {
                packer.try_finish()?;
                packer.get_mut().flush()
            }
            Sink::Zstd(frames) => frames.finish(),
        }
    }

    /// Takes all of these bytes.
    pub(super) fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Sink::Plain(output) => output.write_all(bytes),
            Sink::Gzip(packer) => packer.write_all(bytes),
            Sink::Zstd(frames) => frames.put(bytes),
        }
    }
}

/// Frames of zstd, one after another.
pub(super) struct Frames {
    output: Box<dyn Write>,
    /// What the next frame will hold.
    frame: Vec<u8>,
    is_begun: bool,
}

impl Frames {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.frame.extend_from_slice(bytes);
        if self.frame.len() >= FRAME_BYTES { self.end_frame() } else { Ok(()) }
    }

    fn end_frame(&mut self) -> io::Result<()> {
        let packed = compress_to_vec(&self.frame[..], CompressionLevel::Fastest);
        check(&packed, &self.frame)?;
        self.frame.clear();
        self.is_begun = true;
        self.output.write_all(&packed)
    }

    fn finish(&mut self) -> io::Result<()> {
        // No frame at all would be no file of zstd.
        if !self.frame.is_empty() || !self.is_begun {
            self.end_frame()?;
        }
        self.output.flush()
    }
}

/// Whether a frame decompresses to what it was made of: the encoder is younger than the decoder.
fn check(packed: &[u8], plain: &[u8]) -> io::Result<()> {
    let mut unpacked = Vec::with_capacity(plain.len());
    let read = StreamingDecoder::new(packed).map(|mut frame| frame.read_to_end(&mut unpacked));
    match read {
        Ok(Ok(_)) if unpacked == plain => Ok(()),
        _ => Err(io::Error::other(
            "a zstd frame does not decompress to its records; export to a file whose name ends in .gz",
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    /// A file that the test can look into.
    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn written(name: &str, parts: &[&[u8]]) -> Vec<u8> {
        let file = Shared::default();
        let mut sink = Sink::new(Some(Path::new(name)), Box::new(file.clone()));
        parts.iter().for_each(|part| sink.put(part).unwrap());
        sink.finish().unwrap();
        std::mem::take(&mut *file.0.lock())
    }

    fn unzip(packed: &[u8]) -> Vec<u8> {
        let mut plain = Vec::new();
        flate2::read::MultiGzDecoder::new(packed).read_to_end(&mut plain).unwrap();
        plain
    }

    fn unzstd(mut packed: &[u8]) -> Vec<u8> {
        let mut plain = Vec::new();
        while !packed.is_empty() {
            let mut frame = StreamingDecoder::new(&mut packed).unwrap();
            frame.read_to_end(&mut plain).unwrap();
        }
        plain
    }

    #[test]
    fn the_name_of_the_file_says_how_it_is_compressed() {
        let line = b"{\"key\":\"a\",\"value\":\"b\"}\n".repeat(5_000);
        let noise: Vec<u8> = (0..3 * FRAME_BYTES as u64)
            .map(|at| (at.wrapping_mul(at).wrapping_mul(2_654_435_761) >> 13) as u8)
            .collect();
        let cases: [&[&[u8]]; 4] = [&[], &[b"one\n"], &[&line, &noise, &line], &[&line[..]; 20]];
        for parts in cases {
            let plain = parts.concat();
            assert_eq!(written("x.jsonl", parts), plain);
            let (gzip, zstd) = (written("x.jsonl.gz", parts), written("x.csv.zst", parts));
            assert!(gzip.starts_with(&[0x1f, 0x8b]) && unzip(&gzip) == plain);
            assert!(zstd.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) && unzstd(&zstd) == plain);
            assert!(parts.len() != 20 || zstd.len() * 20 < plain.len(), "{} of {}", zstd.len(), plain.len());
        }
    }

    #[test]
    fn a_frame_that_holds_something_else_is_refused() {
        let packed = compress_to_vec(&b"one"[..], CompressionLevel::Fastest);
        assert!(check(&packed, b"one").is_ok());
        assert!(check(&packed, b"two").is_err());
        assert!(check(&packed[..packed.len() - 5], b"one").is_err());
    }
}
