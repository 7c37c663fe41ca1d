//! The paper's format, written and read in a few lines of its own: an index of MD5 and offset, sorted; values behind
//! their lengths. Neither key nor checksum is stored.

use std::path::Path;

use std::fs::File;
use std::io::{BufWriter, Write};

use super::{KEY_BYTES, Lookups, key, value};

/// Bytes of an index entry: MD5 and offset.
const ENTRY_BYTES: usize = 20;
/// Bytes of values in one file: the paper's limit is 2 GB.
const DATA_BYTES_MAX: u64 = 1 << 30;

pub(crate) struct Files {
    /// Index and data of each chunk.
    chunks: Vec<(Mapped, Mapped)>,
}

/// A mapped file, as the paper maps it.
struct Mapped(&'static [u8]);

impl Mapped {
    fn of(path: &Path) -> Mapped {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let file = File::open(path).unwrap();
        let bytes = file.metadata().unwrap().len() as usize;
        // SAFETY: nobody changes the file while this program runs, and the mapping stays until it is dropped.
        let bytes = unsafe {
            let start =
                mmap(std::ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, &file, 0).unwrap();
            std::slice::from_raw_parts(start.cast_const().cast(), bytes)
        };
        Mapped(bytes)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: whoever borrowed the bytes borrowed the files.
        unsafe { rustix::mm::munmap(self.0.as_ptr().cast_mut().cast(), self.0.len()).unwrap() };
    }
}

/// The first four bytes of the MD5, modulo the number of chunks, are the chunk.
fn chunk_of(md5: &[u8; 16], chunks: usize) -> usize {
    u32::from_be_bytes(md5[..4].try_into().unwrap()) as usize % chunks
}

pub(crate) fn write(directory: &Path, records: u64, value_bytes: usize, pool: &[u8]) -> Files {
    std::fs::create_dir_all(directory).unwrap();
    let count = (records * value_bytes as u64).div_ceil(DATA_BYTES_MAX) as usize;
    let mut hashed: Vec<([u8; 16], u64)> =
        (0..records).map(|number| (md5::compute(key(2 * number)).0, number)).collect();
    hashed.sort_unstable();
    let chunk = |chunk: usize| {
        let paths = ["index", "data"].map(|part| directory.join(format!("{chunk}.{part}")));
        let [mut index, mut data] = paths.clone().map(|path| BufWriter::new(File::create(path).unwrap()));
        let mut offset = 0_u32;
        for (md5, number) in hashed.iter().filter(|(md5, _)| chunk_of(md5, count) == chunk) {
            let value = value(pool, *number, value_bytes);
            index.write_all(md5).unwrap();
            index.write_all(&offset.to_be_bytes()).unwrap();
            data.write_all(&(value.len() as u32).to_be_bytes()).unwrap();
            data.write_all(value).unwrap();
            offset += 4 + value.len() as u32;
        }
        drop((index, data));
        (Mapped::of(&paths[0]), Mapped::of(&paths[1]))
    };
    Files { chunks: (0..count).map(chunk).collect() }
}

impl Files {
    fn views(&self, md5: &[u8; 16]) -> (&[u8], &[u8]) {
        let (index, data) = &self.chunks[chunk_of(md5, self.chunks.len())];
        (index.0, data.0)
    }

    fn resident_bytes(&self) -> u64 {
        self.chunks.iter().map(|(index, _)| index.0.len() as u64).sum()
    }
}

fn take(data: &[u8], entry: &[u8], out: &mut Vec<u8>) {
    let at = u32::from_be_bytes(entry[16..20].try_into().unwrap()) as usize;
    let bytes = u32::from_be_bytes(data[at..at + 4].try_into().unwrap()) as usize;
    out.extend_from_slice(&data[at + 4..at + 4 + bytes]);
}

/// As the paper searches.
pub(crate) struct Binary<'a>(pub(crate) &'a Files);

impl Lookups for Binary<'_> {
    fn get(&self, key: &[u8; KEY_BYTES], out: &mut Vec<u8>) -> bool {
        let md5 = md5::compute(key).0;
        let (index, data) = self.0.views(&md5);
        let (mut low, mut high) = (0, index.len() / ENTRY_BYTES);
        while low < high {
            let middle = low.midpoint(high);
            let entry = &index[middle * ENTRY_BYTES..(middle + 1) * ENTRY_BYTES];
            match entry[..16].cmp(&md5) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
                std::cmp::Ordering::Equal => {
                    take(data, entry, out);
                    return true;
                }
            }
        }
        false
    }

    fn resident_bytes(&self) -> u64 {
        self.0.resident_bytes()
    }
}

/// As the paper would like to search: from where the hash should be.
pub(crate) struct Interpolation<'a>(pub(crate) &'a Files);

impl Lookups for Interpolation<'_> {
    fn get(&self, key: &[u8; KEY_BYTES], out: &mut Vec<u8>) -> bool {
        let md5 = md5::compute(key).0;
        let (index, data) = self.0.views(&md5);
        let entries = index.len() / ENTRY_BYTES;
        let entry = |at: usize| &index[at * ENTRY_BYTES..(at + 1) * ENTRY_BYTES];
        let wanted = u64::from_be_bytes(md5[..8].try_into().unwrap());
        let mut at = ((u128::from(wanted) * entries as u128) >> 64) as usize;
        // One more step by what the first one missed, then along.
        let found = u64::from_be_bytes(entry(at)[..8].try_into().unwrap());
        let missed = ((i128::from(wanted) - i128::from(found)) * entries as i128) >> 64;
        at = (at as i128 + missed).clamp(0, entries as i128 - 1) as usize;
        while at > 0 && entry(at)[..16] > md5[..] {
            at -= 1;
        }
        while at + 1 < entries && entry(at)[..16] < md5[..] {
            at += 1;
        }
        let there = entry(at)[..16] == md5[..];
        if there {
            take(data, entry(at), out);
        }
        there
    }

    fn resident_bytes(&self) -> u64 {
        self.0.resident_bytes()
    }
}
