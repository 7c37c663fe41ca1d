//! Reads whole files without pushing others out of memory.
//!
//! ```text
//!   which pages are in memory? ─▶ read ─▶ those that were not are told to leave
//! ```
//!
//! The kernel is asked by a mapping that nobody touches. Where it does not say, all pages stay.
//!
//! Must never: tell a page to leave that was in memory before.

use std::fs;
use std::num::NonZeroU64;
use std::ops::Range;
use std::ptr;

use rustix::fs::Advice;
use rustix::mm::{MapFlags, ProtFlags};

/// Bytes of a file of which some were not in memory before.
pub(super) struct Passing<'a> {
    file: &'a fs::File,
    page_bytes: u64,
    /// The first page that is read.
    first: u64,
    /// One for each page that is read: whether it was in memory.
    there: Vec<bool>,
}

impl<'a> Passing<'a> {
    /// Before bytes are read that begin at `offset`. There is at least one of them.
    pub(super) fn begin(file: &'a fs::File, offset: u64, bytes: u64) -> Passing<'a> {
        // Only what is asked for is read: reading ahead would bring in what looks as if it had been there.
        let _ = rustix::fs::fadvise(file, 0, None, Advice::Random);
        // SAFETY: it only answers.
        let page_bytes = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096).max(1);
        let pages = offset / page_bytes..(offset + bytes).div_ceil(page_bytes);
        let there = in_memory(file, &pages, page_bytes);
        let there = there.unwrap_or_else(|| vec![true; (pages.end - pages.start) as usize]);
        Passing { file, page_bytes, first: pages.start, there }
    }

    /// When they have been read.
    pub(super) fn end(self) {
        let mut at = 0;
        for run in self.there.chunk_by(|one, next| one == next) {
            let (start, length) = (self.first + at, run.len() as u64);
            at += length;
            if !run[0] {
                let length = NonZeroU64::new(length * self.page_bytes);
                let _ = rustix::fs::fadvise(self.file, start * self.page_bytes, length, Advice::DontNeed);
            }
        }
    }
}

/// Which pages of a file are in memory; nothing where the system does not say.
fn in_memory(file: &fs::File, pages: &Range<u64>, page_bytes: u64) -> Option<Vec<bool>> {
    let count = usize::try_from(pages.end - pages.start).ok()?;
    let bytes = count.checked_mul(page_bytes as usize)?;
    let (read, offset) = (ProtFlags::READ, pages.start * page_bytes);
    // SAFETY: the kernel chooses the address, so nothing else lies there, and nobody touches what lies there.
    let start =
        unsafe { rustix::mm::mmap(ptr::null_mut(), bytes, read, MapFlags::SHARED, file, offset) }.ok()?;
    let mut there = vec![0_u8; count];
    // SAFETY: the range was mapped just now, and the buffer has a byte for each of its pages.
    let answered = unsafe { libc::mincore(start.cast(), bytes, there.as_mut_ptr()) };
    // SAFETY: nobody else has seen the mapping.
    let _ = unsafe { rustix::mm::munmap(start, bytes) };
    (answered == 0).then(|| there.into_iter().map(|page| page & 1 == 1).collect())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    /// The pages of a file that are in memory.
    fn pages(file: &fs::File, bytes: u64) -> Vec<u64> {
        let there = in_memory(file, &(0..bytes / 4096), 4096).unwrap();
        (0..).zip(there).filter(|(_, there)| *there).map(|(page, _)| page).collect()
    }

    #[test]
    fn what_is_read_in_passing_stays_in_memory_only_where_it_was_before() {
        const BLOCK: usize = 1 << 20;
        let name = format!("tontine-passing-{}", std::process::id());
        // Not below /tmp, which may be memory itself.
        let path = std::env::current_exe().unwrap().with_file_name(name);
        let bytes: Vec<u8> = (0..3 * BLOCK as u32).map(|at| (at % 251) as u8).collect();
        fs::write(&path, &bytes).unwrap();
        let file = fs::File::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        file.sync_all().unwrap();
        // The system may have a hold of a page at that moment, and then it stays.
        let evicted = |_| {
            rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(10));
            pages(&file, bytes.len() as u64).is_empty()
        };
        assert!((0..100).any(evicted), "pages that nobody reads are evicted");
        rustix::fs::fadvise(&file, 0, None, Advice::Random).unwrap();
        for page in [0, 255, 256, 257, 610] {
            file.read_exact_at(&mut [0; 4096], page * 4096).unwrap();
        }
        let before = pages(&file, bytes.len() as u64);
        // The kernel may have brought in a page or two beside them.
        assert!(before.contains(&610) && before.len() < 100, "{before:?}");
        let mut read = vec![0; bytes.len()];
        for (number, block) in read.chunks_mut(BLOCK).enumerate() {
            let at = (number * BLOCK) as u64;
            let passing = Passing::begin(&file, at, BLOCK as u64);
            file.read_exact_at(block, at).unwrap();
            passing.end();
        }
        assert!(read == bytes);
        assert_eq!(pages(&file, bytes.len() as u64), before);
    }
}
