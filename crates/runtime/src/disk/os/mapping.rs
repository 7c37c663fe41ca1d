//! Mappings of the operating system: read-only, with a note of each page that was seen in memory.
//!
//! ```text
//! view ─▶ noted? ─ yes ─▶ the mapped bytes
//!            │ no
//!            ├─ caller may wait:  pread (an error is an error), note, the mapped bytes
//!            └─ caller would not: preadv2(NOWAIT) of a byte: there? note : refuse
//! ```
//!
//! A mapping keeps its descriptor: the kernel is asked by it whether a page is in memory, and reads by it what is not. So a
//! process can map half as many files as it may open ([`crate::Disk::mappings_left`]); the other half is for everything else.
//!
//! Pages that the kernel evicts stay noted until [`Mapping::refresh`], which a node runs once a second, and more rarely
//! where it maps much: a page that was used since is not what a kernel evicts first. It also notes what has come into memory
//! by another way, so that nobody asks for such pages one by one.

use std::fs;
use std::io::{ErrorKind, IoSliceMut};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::{Errno, ReadWriteFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::guard::{self, Guarded};
use super::translate;
use crate::disk::mapping::{Mapping, View};
use crate::disk::{DiskError, waiting};

/// Bytes of a page: what is noted, and what is brought in at once. The kernel's pages may be larger, never smaller.
const PAGE_BYTES: u64 = 4096;

/// A mapped file.
pub(super) struct OsMapping {
    path: Arc<str>,
    file: Arc<fs::File>,
    start: *const u8,
    length: u64,
    /// One bit for each page that was seen in memory.
    noted: Box<[AtomicU64]>,
    /// `None` for an empty file, of which nothing can be mapped.
    guarded: Option<Guarded>,
}

// SAFETY: the mapping is read-only and lives as long as the value; everything else in it may cross threads.
unsafe impl Send for OsMapping {}
// SAFETY: as above; what changes is atomic.
unsafe impl Sync for OsMapping {}

impl OsMapping {
    /// Maps a whole file.
    pub(super) fn new(path: Arc<str>, file: Arc<fs::File>) -> Result<OsMapping, DiskError> {
        let length = file.metadata().map_err(|error| translate(&path, &error))?.len();
        let pages = length.div_ceil(PAGE_BYTES);
        let noted = (0..pages.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        let mut mapping = OsMapping { path, file, start: ptr::null(), length, noted, guarded: None };
        if length == 0 {
            return Ok(mapping);
        }
        let bytes = usize::try_from(length).map_err(|_| mapping.failed("the file is longer than memory"))?;
        // Each page is asked for by itself: reading ahead would bring in what nobody wants.
        let _ = rustix::fs::fadvise(&*mapping.file, 0, None, rustix::fs::Advice::Random);
        let refused = |errno: Errno| DiskError::Failed {
            path: mapping.path.to_string(),
            reason: match errno {
                Errno::NOMEM => {
                    "the system's limit of mappings is reached (sysctl vm.max_map_count)".to_owned()
                }
                errno => std::io::Error::from(errno).to_string(),
            },
        };
        // SAFETY: the kernel chooses the address, so nothing else lies there; the mapping is only read.
        let start = unsafe {
            rustix::mm::mmap(ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, &*mapping.file, 0)
        }
        .map_err(refused)?;
        // SAFETY: the range was mapped just now.
        let _ = unsafe { rustix::mm::madvise(start, bytes, Advice::Random) };
        mapping.start = start.cast_const().cast();
        match guard::guard(start as usize, bytes) {
            Some(guarded) => mapping.guarded = Some(guarded),
            None => {
                // SAFETY: nobody has seen the mapping yet.
                let _ = unsafe { rustix::mm::munmap(start, bytes) };
                mapping.start = ptr::null();
                let limit = guard::MAPPINGS_MAX;
                return Err(mapping.failed(&format!("{limit} files are mapped, which is the limit")));
            }
        }
        Ok(mapping)
    }

    fn failed(&self, reason: &str) -> DiskError {
        DiskError::Failed { path: self.path.to_string(), reason: reason.to_owned() }
    }

    #[inline]
    fn is_noted(&self, page: u64) -> bool {
        self.noted[(page / 64) as usize].load(Ordering::Relaxed) & (1 << (page % 64)) != 0
    }

    fn note(&self, page: u64) {
        self.noted[(page / 64) as usize].fetch_or(1 << (page % 64), Ordering::Relaxed);
    }

    /// The pages that bytes lie on; the range is not empty.
    #[inline]
    fn pages(range: &Range<u64>) -> Range<u64> {
        range.start / PAGE_BYTES..(range.end - 1) / PAGE_BYTES + 1
    }

    /// Brings in what is not noted.
    #[cold]
    fn bring(&self, pages: Range<u64>) -> Result<(), DiskError> {
        for page in pages {
            if self.is_noted(page) {
                continue;
            }
            let wanted = PAGE_BYTES.min(self.length - page * PAGE_BYTES) as usize;
            match waiting::may_wait() {
                true => self.read(page, wanted)?,
                false => self.look(page)?,
            }
            self.note(page);
        }
        Ok(())
    }

    /// Reads a page, so that it is in memory; this may wait.
    fn read(&self, page: u64, wanted: usize) -> Result<(), DiskError> {
        let mut buffer = [0; PAGE_BYTES as usize];
        let mut filled = 0;
        while filled < wanted {
            match self.file.read_at(&mut buffer[filled..wanted], page * PAGE_BYTES + filled as u64) {
                Ok(0) => return Err(self.cut()),
                Ok(count) => filled += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(translate(&self.path, &error)),
            }
        }
        Ok(())
    }

    /// Finds out whether a page is in memory.
    fn look(&self, page: u64) -> Result<(), DiskError> {
        if waiting::is_refused() {
            return Err(waiting::refuse());
        }
        let mut byte = [0];
        loop {
            let mut buffer = [IoSliceMut::new(&mut byte)];
            return match rustix::io::preadv2(
                &*self.file,
                &mut buffer,
                page * PAGE_BYTES,
                ReadWriteFlags::NOWAIT,
            ) {
                // The end of the file, or on Linux 5.9 and 5.10 what is not in memory: a thread that waits will tell.
                Ok(0) | Err(Errno::AGAIN) => Err(waiting::refuse()),
                // A file system that does not know this is taken to have everything in memory.
                Ok(_) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(()),
                Err(Errno::INTR) => continue,
                Err(errno) => Err(translate(&self.path, &errno.into())),
            };
        }
    }

    fn cut(&self) -> DiskError {
        self.failed("the file is shorter than it was when it was mapped")
    }
}

impl Mapping for OsMapping {
    fn length(&self) -> u64 {
        self.length
    }

    #[inline]
    fn view(&self, range: Range<u64>) -> Result<View<'_>, DiskError> {
        if range.start >= range.end || range.end > self.length {
            return match range.start == range.end && range.end <= self.length {
                true => Ok(View::Mapped(&[])),
                false => Err(self.failed("bytes beyond the end of the file were asked for")),
            };
        }
        if !self.is_sound() {
            return Err(self.failed("the file was cut, or failed, while it was read"));
        }
        let pages = OsMapping::pages(&range);
        if !pages.clone().all(|page| self.is_noted(page)) {
            self.bring(pages)?;
        }
        // SAFETY: the range lies within the mapping, which is only unmapped when the value is dropped. Should the file
        // be cut, the guard puts zeros in its place.
        let bytes = unsafe {
            std::slice::from_raw_parts(
                self.start.add(range.start as usize),
                (range.end - range.start) as usize,
            )
        };
        Ok(View::Mapped(bytes))
    }

    #[inline]
    fn prefetch(&self, offset: u64) {
        #[cfg(target_arch = "x86_64")]
        if offset < self.length {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: a prefetch reads nothing, and the address lies within the mapping.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(self.start.add(offset as usize).cast()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = offset;
    }

    fn fetch_ahead(&self, range: Range<u64>) {
        if range.start >= range.end || range.end > self.length {
            return;
        }
        let mut pages = OsMapping::pages(&range);
        if pages.clone().all(|page| self.is_noted(page)) {
            return;
        }
        let start = pages.start * PAGE_BYTES;
        let end = (pages.next_back().unwrap_or(0) + 1) * PAGE_BYTES;
        // What the device has begun to read nobody waits for here; if it begins nothing, the read does.
        let length = std::num::NonZeroU64::new(end - start);
        let _ = rustix::fs::fadvise(&*self.file, start, length, rustix::fs::Advice::WillNeed);
    }

    #[inline]
    fn is_sound(&self) -> bool {
        self.guarded.as_ref().is_none_or(Guarded::is_sound)
    }

    fn refresh(&self) {
        let pages = self.length.div_ceil(PAGE_BYTES) as usize;
        let mut there = [0_u8; 4096];
        for first in (0..pages).step_by(there.len()) {
            let count = there.len().min(pages - first);
            // SAFETY: the pages lie within the mapping, and the buffer has a byte for each.
            let answered = unsafe {
                let address = self.start.add(first * PAGE_BYTES as usize);
                libc::mincore(address.cast_mut().cast(), count * PAGE_BYTES as usize, there.as_mut_ptr())
            };
            for (page, &there) in there[..count].iter().enumerate() {
                let page = first + page;
                // Who cannot tell looks again at the next view.
                let is_there = answered == 0 && there & 1 == 1;
                if is_there != self.is_noted(page as u64) {
                    match is_there {
                        true => self.note(page as u64),
                        false => {
                            self.noted[page / 64].fetch_and(!(1 << (page % 64)), Ordering::Relaxed);
                        }
                    }
                }
            }
        }
    }
}

impl Drop for OsMapping {
    fn drop(&mut self) {
        if !self.start.is_null() {
            // SAFETY: nobody looks any more, since every view borrows the value. The guard goes after the mapping.
            let _ = unsafe { rustix::mm::munmap(self.start.cast_mut().cast(), self.length as usize) };
        }
    }
}
