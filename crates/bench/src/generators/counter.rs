//! Record numbers: handed out one by one, and readable only once their insertion was acknowledged.
//!
//! Readers must never be sent to a record that is still being inserted by somebody else:
//! the newest readable record is the end of the unbroken run of acknowledged numbers.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many numbers may be handed out beyond the oldest one that is not acknowledged yet.
pub const PENDING_MAX: u64 = 1 << 20;

/// An insertion stayed unacknowledged while [`PENDING_MAX`] later ones were handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("record {number} is more than {PENDING_MAX} ahead of the oldest insertion still under way")]
pub struct TooManyPending {
    /// The number that found no place.
    pub number: u64,
}

/// A counter shared by all lanes: 0, 1, 2, …
#[derive(Debug)]
pub struct Counter {
    next: AtomicU64,
}

impl Counter {
    /// A counter whose first number is `first`.
    pub fn new(first: u64) -> Self {
        Counter { next: AtomicU64::new(first) }
    }

    /// The next number; nobody else gets it.
    pub fn take(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// The number that will be taken next.
    pub fn peek(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }
}

/// A counter that also knows up to which number every insertion was acknowledged.
#[derive(Debug)]
pub struct AcknowledgedCounter {
    taken: Counter,
    /// All numbers below this one are acknowledged.
    settled: AtomicU64,
    window: Mutex<Box<[bool]>>,
}

impl AcknowledgedCounter {
    /// A counter whose first number is `first`; everything below counts as acknowledged.
    pub fn new(first: u64) -> Self {
        AcknowledgedCounter {
            taken: Counter::new(first),
            settled: AtomicU64::new(first),
            window: Mutex::new(vec![false; PENDING_MAX as usize].into_boxed_slice()),
        }
    }

    /// The next number to insert; it must be acknowledged afterwards, whatever became of it.
    pub fn take(&self) -> u64 {
        self.taken.take()
    }

    /// The newest number that is acknowledged together with all before it.
    pub fn newest(&self) -> Option<u64> {
        self.settled.load(Ordering::Acquire).checked_sub(1)
    }

    /// Marks `number`, obtained from [`AcknowledgedCounter::take`], as done.
    ///
    /// # Errors
    /// [`TooManyPending`] when an older insertion hangs while a whole window of later ones went by.
    pub fn acknowledge(&self, number: u64) -> Result<(), TooManyPending> {
        let mut window = self.window.lock().expect("no holder of this lock can panic");
        let mut settled = self.settled.load(Ordering::Relaxed);
        if number < settled || number - settled >= PENDING_MAX {
            return Err(TooManyPending { number });
        }
        window[slot(number)] = true;
        while std::mem::take(&mut window[slot(settled)]) {
            settled += 1;
        }
        self.settled.store(settled, Ordering::Release);
        Ok(())
    }
}

fn slot(number: u64) -> usize {
    (number % PENDING_MAX) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_becomes_readable_only_with_all_before_it() {
        let counter = AcknowledgedCounter::new(10);
        assert_eq!(counter.newest(), Some(9));
        let taken: Vec<u64> = (0..3).map(|_| counter.take()).collect();
        assert_eq!(taken, [10, 11, 12]);
        counter.acknowledge(12).unwrap();
        counter.acknowledge(11).unwrap();
        assert_eq!(counter.newest(), Some(9));
        counter.acknowledge(10).unwrap();
        assert_eq!(counter.newest(), Some(12));
    }

    #[test]
    fn nothing_is_readable_before_the_first_insertion() {
        let counter = AcknowledgedCounter::new(0);
        assert_eq!(counter.newest(), None);
        let number = counter.take();
        counter.acknowledge(number).unwrap();
        assert_eq!(counter.newest(), Some(0));
    }

    #[test]
    fn one_hanging_insertion_is_reported_after_a_whole_window() {
        let counter = AcknowledgedCounter::new(0);
        let hanging = counter.take();
        for _ in 1..PENDING_MAX {
            let number = counter.take();
            counter.acknowledge(number).unwrap();
        }
        let number = counter.take();
        assert_eq!(counter.acknowledge(number), Err(TooManyPending { number: PENDING_MAX }));
        counter.acknowledge(hanging).unwrap();
        assert_eq!(counter.newest(), Some(PENDING_MAX - 1));
        counter.acknowledge(number).unwrap();
        assert_eq!(counter.newest(), Some(PENDING_MAX));
    }

    #[test]
    fn the_same_number_cannot_be_acknowledged_twice_once_settled() {
        let counter = AcknowledgedCounter::new(5);
        let number = counter.take();
        counter.acknowledge(number).unwrap();
        assert_eq!(counter.acknowledge(number), Err(TooManyPending { number }));
    }
}
