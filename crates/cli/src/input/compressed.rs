//! Files that gzip or zstd has packed, known by their first bytes and read as if they were not.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;

use super::record::Input;

/// How a gzip member begins.
const GZIP: &[u8] = &[0x1f, 0x8b];
/// How a zstd frame begins.
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
/// Bytes that are unpacked at a time.
const UNPACKED_BYTES: usize = 256 * 1024;

/// Whether a file is packed. What cannot be read is told by whoever opens it.
pub(super) fn is_compressed(path: &Path) -> bool {
    let mut start = Vec::new();
    let read = File::open(path).and_then(|file| file.take(ZSTD.len() as u64).read_to_end(&mut start));
    read.is_ok() && (start.starts_with(GZIP) || start.starts_with(ZSTD))
}

/// The bytes as they were before they were packed, if they were.
pub(super) fn unpacked<Packed: Read + Send + 'static>(mut packed: BufReader<Packed>) -> io::Result<Input> {
    let start = packed.fill_buf()?;
    // A pipe may hand out fewer bytes than that at first, and no text begins so.
    if start.starts_with(GZIP) {
        return Ok(Box::new(BufReader::with_capacity(UNPACKED_BYTES, MultiGzDecoder::new(packed))));
    }
    if start.starts_with(ZSTD) {
        return Ok(Box::new(BufReader::with_capacity(UNPACKED_BYTES, Frames::new(packed)?)));
    }
    Ok(Box::new(packed))
}

/// Frames of zstd, one after the other, as parallel compressors write them.
struct Frames<Packed: BufRead> {
    /// None only while a frame gives way to the next, and when that could not be begun.
    frame: Option<StreamingDecoder<Packed, ruzstd::decoding::FrameDecoder>>,
}

impl<Packed: BufRead> Frames<Packed> {
    fn new(packed: Packed) -> io::Result<Self> {
        Ok(Frames { frame: Some(begin(packed)?) })
    }
}

fn begin<Packed: BufRead>(
    packed: Packed,
) -> io::Result<StreamingDecoder<Packed, ruzstd::decoding::FrameDecoder>> {
    StreamingDecoder::new(packed)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))
}

impl<Packed: BufRead> Read for Frames<Packed> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let Some(frame) = &mut self.frame else { return Ok(0) };
            let read = frame.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            let Some(ended) = self.frame.take() else { return Ok(0) };
            let mut packed = ended.into_inner();
            if packed.fill_buf()?.is_empty() {
                return Ok(0);
            }
            self.frame = Some(begin(packed)?);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn read(packed: Vec<u8>) -> io::Result<String> {
        let mut text = String::new();
        unpacked(BufReader::new(io::Cursor::new(packed)))?.read_to_string(&mut text)?;
        Ok(text)
    }

    fn gzip(text: &str) -> Vec<u8> {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packer.write_all(text.as_bytes()).unwrap();
        packer.finish().unwrap()
    }

    fn zstd(text: &str) -> Vec<u8> {
        ruzstd::encoding::compress_to_vec(text.as_bytes(), ruzstd::encoding::CompressionLevel::Fastest)
    }

    #[test]
    fn packed_bytes_read_as_they_were_also_in_several_parts() {
        let long = "line\n".repeat(100_000);
        for pack in [gzip, zstd] {
            assert_eq!(read([pack("one\n"), pack(&long)].concat()).unwrap(), format!("one\n{long}"));
        }
        assert_eq!(read(b"plain".to_vec()).unwrap(), "plain");
        assert_eq!(read(Vec::new()).unwrap(), "");
    }

    #[test]
    fn a_packed_file_that_was_cut_is_an_error_and_no_early_end() {
        for pack in [gzip, zstd] {
            let whole = pack(&"line 1\nline 22\n".repeat(5_000));
            assert!(read(whole[..whole.len() - 3].to_vec()).is_err());
        }
    }
}
