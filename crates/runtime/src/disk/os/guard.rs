//! What happens when a mapped page cannot be read: the file was cut, or the device failed behind a page that had been
//! evicted.
//!
//! The kernel tells it by a signal (SIGBUS), which would end the process. The handler here puts a page of zeros in the
//! place of the one that is missing and notes that the mapping is not sound, so that the thread goes on, meets a
//! checksum that does not hold, and answers *corrupt*. A signal that concerns no mapping of ours ends the process as
//! before.
//!
//! Must never: do in the handler what is not allowed there; it reads atomics and makes one system call.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;

/// Files that may be mapped at a time: half of what Linux allows a process by default (`vm.max_map_count`), since
/// allocators and thread stacks take some, too.
pub(super) const MAPPINGS_MAX: usize = 1 << 15;

/// One mapping, as the handler sees it. `end` is set last and cleared first.
struct MappedRange {
    start: AtomicUsize,
    end: AtomicUsize,
    broken: AtomicBool,
}

static PLACES: [MappedRange; MAPPINGS_MAX] = [const {
    MappedRange { start: AtomicUsize::new(0), end: AtomicUsize::new(0), broken: AtomicBool::new(false) }
}; MAPPINGS_MAX];

/// Places that no mapping has: those that were given back, and how many were ever given out.
static FREE: Mutex<(Vec<u32>, u32)> = Mutex::new((Vec::new(), 0));

/// How many places mappings have.
pub(super) fn taken() -> usize {
    let free = FREE.lock();
    free.1 as usize - free.0.len()
}

/// A mapping under guard.
pub(super) struct Guarded {
    place: u32,
}

impl Guarded {
    /// Whether no page of it was missing so far.
    #[inline]
    pub(super) fn is_sound(&self) -> bool {
        !PLACES[self.place as usize].broken.load(Ordering::Acquire)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        PLACES[self.place as usize].end.store(0, Ordering::Release);
        FREE.lock().0.push(self.place);
    }
}

/// Guards a mapping; `None` when there are too many.
pub(super) fn guard(start: usize, bytes: usize) -> Option<Guarded> {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(install);
    let number = {
        let mut free = FREE.lock();
        match free.0.pop() {
            Some(number) => number,
            None if (free.1 as usize) < MAPPINGS_MAX => {
                free.1 += 1;
                free.1 - 1
            }
            None => return None,
        }
    };
    let place = &PLACES[number as usize];
    place.broken.store(false, Ordering::Release);
    place.start.store(start, Ordering::Release);
    place.end.store(start + bytes, Ordering::Release);
    Some(Guarded { place: number })
}

fn install() {
    // SAFETY: the structure is plain, zeros are valid for it, and the handler keeps to what is allowed in one.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handle as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
        libc::sigemptyset(&mut action.sa_mask);
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
    }
}

extern "C" fn handle(_: libc::c_int, facts: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel hands over valid facts; of a SIGBUS the address is set.
    let address = unsafe { (*facts).si_addr() } as usize;
    let place = PLACES.iter().find(|place| {
        let end = place.end.load(Ordering::Acquire);
        end != 0 && (place.start.load(Ordering::Acquire)..end).contains(&address)
    });
    let replaced = place.is_some_and(|place| {
        place.broken.store(true, Ordering::Release);
        // SAFETY: the page belongs to a mapping of ours, which is only read.
        unsafe {
            let page = libc::sysconf(libc::_SC_PAGESIZE).max(4096) as usize;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
            let at = (address & !(page - 1)) as *mut libc::c_void;
            libc::mmap(at, page, libc::PROT_READ, flags, -1, 0) != libc::MAP_FAILED
        }
    });
    if !replaced {
        // SAFETY: puts the default back; the same access is tried again on return, and ends the process.
        unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
    }
}
