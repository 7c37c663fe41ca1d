//! Arrivals of an open loop: operations that become due whether or not anybody has time for them.
//!
//! A closed loop waits for a slow server before it asks again, and so forgives it: coordinated omission.
//! Here operations arrive on their own schedule; every latency counts from the scheduled instant.
//!
//! One pacer serves all lanes of a thread, through one queue: an operation waits only when every lane is busy.
//! The runtime's own timer ticks in milliseconds, which would show up in every latency; a kernel timer does not.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use serde::{Deserialize, Serialize};
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

use super::rates::Rates;
use crate::generators::{Exponential, Rng};

/// Arrivals closer together than this come out together. Each wake-up costs three system calls, and what comes out
/// together shares its packets: at twenty thousand arrivals a second, one by one, the client took more of the
/// machine than the servers that it measured. Nothing is later by more than this, and lateness counts as latency.
const SLEEP_MIN: Duration = Duration::from_micros(100);

/// How arrivals are spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arrivals {
    /// Independent of each other, as from many users: exponential gaps.
    Poisson,
    /// Evenly spaced.
    Uniform,
}

/// The schedule of one thread.
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    /// Poisson arrivals only: how many arrivals of an even schedule lie between two.
    gaps: Option<Exponential>,
    pace: ArrivalRate,
    rng: Rng,
    next: Instant,
}

/// How many arrivals a second a schedule has.
#[derive(Clone, Debug)]
pub(super) struct ArrivalRate {
    /// The rates of all threads together.
    pub(super) rates: Rates,
    /// The share of this one.
    pub(super) share: f64,
    /// When the time of the rates begins.
    pub(super) from: Instant,
}

/// A rate that changes is taken for constant for this long, in seconds.
const STEP: f64 = 0.05;

impl ArrivalRate {
    fn at(&self, at: Instant) -> f64 {
        let seconds = at.saturating_duration_since(self.from).as_secs_f64();
        self.rates.at(seconds) * self.share
    }

    /// When this many arrivals of an even schedule are over, from `at` on.
    fn after(&self, mut at: Instant, mut arrivals: f64) -> Instant {
        loop {
            let rate = self.at(at);
            let is_constant = matches!(self.rates, Rates::Constant(_));
            if is_constant || arrivals <= rate * STEP {
                return at + Duration::try_from_secs_f64(arrivals / rate).unwrap_or(Duration::from_secs(1));
            }
            arrivals -= rate * STEP;
            at += Duration::from_secs_f64(STEP);
        }
    }
}

impl Schedule {
    /// Arrivals from `start` on.
    pub(super) fn new(arrivals: Arrivals, pace: ArrivalRate, start: Instant, rng: Rng) -> Self {
        let gaps = (arrivals == Arrivals::Poisson).then(|| Exponential::with_mean(1.0));
        let mut schedule = Schedule { gaps, pace, rng, next: start };
        // The first of evenly spaced arrivals falls anywhere within a gap, so that threads do not march in step.
        let first = match schedule.gaps {
            Some(_) => schedule.gap(),
            None => schedule.rng.unit(),
        };
        schedule.next = schedule.pace.after(start, first);
        schedule
    }

    /// How many arrivals of an even schedule lie before the next one.
    fn gap(&mut self) -> f64 {
        self.gaps.as_ref().map_or(1.0, |gaps| gaps.next(&mut self.rng))
    }

    /// The instant of the next arrival.
    pub(super) fn peek(&self) -> Instant {
        self.next
    }

    /// Takes the next arrival.
    pub(super) fn pop(&mut self) -> Instant {
        let due = self.next;
        let gap = self.gap();
        self.next = self.pace.after(due, gap);
        due
    }
}

/// Operations that are due and not started, and the lanes waiting for more.
#[derive(Debug, Default)]
pub(super) struct DueQueue {
    due: Mutex<VecDeque<Instant>>,
    arrived: Notify,
    closed: AtomicBool,
}

impl DueQueue {
    /// Waits for arrivals and takes up to `most` of them; leaves `taken` empty when there will be no more.
    pub(super) async fn take(&self, most: usize, taken: &mut Vec<Instant>) {
        loop {
            {
                let mut due = self.due.lock().expect("no holder of this lock can panic");
                let count = most.min(due.len());
                taken.extend(due.drain(..count));
            }
            if !taken.is_empty() || self.closed.load(Ordering::Relaxed) {
                return;
            }
            // Pacer and lanes share a thread, so nothing can arrive between the look above and this wait.
            self.arrived.notified().await;
        }
    }

    fn push(&self, arrival: Instant) {
        self.due.lock().expect("no holder of this lock can panic").push_back(arrival);
        self.arrived.notify_one();
    }

    /// No more arrivals will come.
    fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.arrived.notify_waiters();
        self.arrived.notify_one();
    }

    /// Takes away and counts whatever nobody started.
    pub(super) fn abandon(&self) -> u64 {
        self.due.lock().expect("no holder of this lock can panic").drain(..).count() as u64
    }
}

/// Feeds `queue` from `schedule` until `more` says for an arrival that it is past the end.
///
/// # Errors
/// When the kernel gives no timer.
pub(super) async fn pace(
    queue: &DueQueue,
    mut schedule: Schedule,
    more: impl Fn(Instant) -> bool,
) -> io::Result<()> {
    let timer = Timer::new()?;
    loop {
        let now = Instant::now();
        while schedule.peek() <= now {
            let arrival = schedule.pop();
            if !more(arrival) {
                queue.close();
                return Ok(());
            }
            queue.push(arrival);
        }
        timer.sleep(schedule.peek().saturating_duration_since(now).max(SLEEP_MIN)).await?;
    }
}

/// A kernel timer with microsecond resolution.
struct Timer {
    descriptor: AsyncFd<OwnedFd>,
}

impl Timer {
    fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let descriptor = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?;
        // SAFETY: an owned descriptor is open, stays the same, and is closed only when it is dropped; the
        // registration owns it and goes first.
        let descriptor = unsafe { AsyncFd::register(descriptor) }.map_err(|error| error.into_parts().1)?;
        Ok(Timer { descriptor })
    }

    async fn sleep(&self, duration: Duration) -> io::Result<()> {
        let value = Timespec {
            tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: duration.subsec_nanos().into(),
        };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        rustix::time::timerfd_settime(self.descriptor.get_ref(), TimerfdTimerFlags::empty(), &once)?;
        loop {
            let mut ready = self.descriptor.readable().await?;
            let mut expirations = [0u8; 8];
            let read = ready.try_io(|timer| Ok(rustix::io::read(timer.get_ref(), &mut expirations)?));
            if let Ok(done) = read {
                return done.map(|_| ());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn constant(rate: f64, from: Instant) -> ArrivalRate {
        ArrivalRate { rates: Rates::Constant(rate), share: 1.0, from }
    }

    #[test]
    fn a_rate_that_changes_brings_as_many_arrivals_as_it_says() {
        let from = Instant::now();
        let rates: Rates = "sinusoid:min=100,max=1900,period=10".parse().unwrap();
        for arrivals in [Arrivals::Poisson, Arrivals::Uniform] {
            let pace = ArrivalRate { rates: rates.clone(), share: 0.5, from };
            let mut schedule = Schedule::new(arrivals, pace, from, Rng::from_seed(3));
            let (mut low, mut high) = (0, 0);
            loop {
                let at = (schedule.pop() - from).as_secs_f64();
                match at {
                    at if at >= 100.0 => break,
                    at if (2.5..7.5).contains(&(at % 10.0)) => high += 1,
                    _ => low += 1,
                }
            }
            // Half of all threads' mean of 1,000; the half wave around the top has a mean of 500 + 450 × 2/π of it.
            let (all, share) = (f64::from(low + high) / 100.0, f64::from(high) / f64::from(low + high));
            assert!((all - 500.0).abs() < 10.0, "{all}");
            assert!((share - 0.786).abs() < 0.01, "{share}");
        }
    }

    #[test]
    fn poisson_gaps_have_the_mean_and_the_spread_of_an_exponential() {
        let start = Instant::now();
        let mut schedule =
            Schedule::new(Arrivals::Poisson, constant(1_000.0, start), start, Rng::from_seed(1));
        let arrivals: Vec<Instant> = (0..20_000).map(|_| schedule.pop()).collect();
        let gaps: Vec<f64> = arrivals.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean * 1_000.0 - 1.0).abs() < 0.04, "{mean}");
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.05, "{variance}");
    }

    #[test]
    fn even_arrivals_are_evenly_spaced_from_a_random_offset() {
        let start = Instant::now();
        let mut schedule = Schedule::new(Arrivals::Uniform, constant(500.0, start), start, Rng::from_seed(1));
        let first = schedule.pop();
        assert!(first - start < Duration::from_millis(2));
        assert_eq!(schedule.pop() - first, Duration::from_millis(2));
        assert_eq!(schedule.pop() - first, Duration::from_millis(4));
    }

    #[tokio::test]
    async fn lanes_get_every_arrival_once_and_in_order() {
        let start = Instant::now();
        let schedule = Schedule::new(Arrivals::Poisson, constant(50_000.0, start), start, Rng::from_seed(2));
        let expected: Vec<Instant> = {
            let mut copy = schedule.clone();
            (0..500).map(|_| copy.pop()).collect()
        };
        let queue = DueQueue::default();
        let end = expected[499];
        let lane = async {
            let mut all = Vec::new();
            loop {
                let mut batch = Vec::new();
                queue.take(7, &mut batch).await;
                assert!(batch.len() <= 7);
                if batch.is_empty() {
                    return all;
                }
                assert!(batch.iter().all(|due| *due <= Instant::now()), "nothing starts early");
                all.extend(batch);
                tokio::task::yield_now().await;
            }
        };
        let (paced, one, two) = tokio::join!(pace(&queue, schedule, |at| at <= end), lane, async {
            let mut all = Vec::new();
            queue.take(3, &mut all).await;
            all
        });
        paced.unwrap();
        let mut all = [one, two].concat();
        all.sort();
        assert_eq!(all, expected);
        assert_eq!(queue.abandon(), 0);
    }
}
