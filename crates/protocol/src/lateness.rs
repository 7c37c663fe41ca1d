//! Whether requests have to wait: told by how long workers take for the least of them.
//!
//! Background work (hints on their way, replicas that compare) asks the workers of the nodes concerned for nothing,
//! now and then, and measures the answer. A worker that has requests to serve, or finds no processor to run on, takes
//! longer than one that was idle. It is the same for every kind of load, and needs to know neither what the machine
//! can bear nor who else uses it.
//!
//! Requests of a machine whose processors are all busy may still be quick, and yet everything that background work
//! takes is taken from them. So it is also measured for how long the background thread itself has to wait for a
//! processor ([`Contention`]).
//!
//! **Architecture Invariant:** being late slows background work down; it never stops it, which is up to each pace.

use std::time::Duration;

/// The shortest time that anybody is measured against: below it, noise is as large as what is measured.
const USUAL_MIN: Duration = Duration::from_micros(100);
/// Twice as long as usual is the ordinary noise of a machine that does something.
const NOISE: u128 = 2;
/// Later than this is not told apart.
const TIMES_MAX: u32 = 16;

/// What the workers of one node usually take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lateness {
    /// The shortest answer so far.
    usual: Option<Duration>,
}

impl Lateness {
    /// Takes in that an answer took that long, and says how many times as long as is ordinary that is: 1 is in time, and
    /// 16 is the most that is said.
    pub fn times(&mut self, took: Duration) -> u32 {
        let usual = self.usual.map_or(took, |usual| usual.min(took));
        self.usual = Some(usual);
        let times = took.as_nanos() / (NOISE * usual.max(USUAL_MIN).as_nanos());
        u32::try_from(times).unwrap_or(TIMES_MAX).clamp(1, TIMES_MAX)
    }
}

/// A thread runs or waits for this long after a judgement before it is judged again: several turns on a processor.
const JUDGED_AFTER: Duration = Duration::from_millis(4);

/// Whether a thread finds a processor when it has something to do.
///
/// Where nothing else wants to run, it hardly waits; on a machine that is full, at least as long as it runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Contention {
    /// When it was judged last: how long it had run, and waited.
    judged: Option<(Duration, Duration)>,
    /// The last judgement.
    times: u32,
}

impl Contention {
    /// Takes in for how long the thread has run and waited since it began, and says how many times as long as with a
    /// processor of its own it takes now: 1 is in time, and 16 is the most that is said.
    pub fn times(&mut self, ran: Duration, waited: Duration) -> u32 {
        let (ran_before, waited_before) = *self.judged.get_or_insert((ran, waited));
        let (ran_since, waited_since) =
            (ran.saturating_sub(ran_before), waited.saturating_sub(waited_before));
        let since = ran_since + waited_since;
        if since >= JUDGED_AFTER {
            self.judged = Some((ran, waited));
            let times = since.as_nanos() / ran_since.as_nanos().max(1);
            self.times = u32::try_from(times).unwrap_or(TIMES_MAX).clamp(1, TIMES_MAX);
        }
        self.times.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_waits_as_long_as_it_runs_is_late() {
        let mut contention = Contention::default();
        let mut times =
            |ran, waited| contention.times(Duration::from_millis(ran), Duration::from_millis(waited));
        assert_eq!(times(1000, 70_000), 1, "what was before says nothing");
        assert_eq!(times(1001, 70_002), 1, "too short to tell");
        assert_eq!(times(1004, 70_003), 1, "it waited three of seven");
        assert_eq!(times(1006, 70_005), 2, "two of four");
        assert_eq!(times(1007, 70_005), 2, "as before");
        assert_eq!(times(1007, 80_000), 16);
        assert_eq!(times(1100, 80_010), 1);
    }

    #[test]
    fn a_node_that_takes_far_longer_than_ever_before_is_late() {
        let mut lateness = Lateness::default();
        let mut times = |micros| lateness.times(Duration::from_micros(micros));
        assert_eq!(times(3000), 1, "nothing to compare with");
        assert_eq!(times(1000), 1);
        assert_eq!(times(3000), 1, "noise");
        assert_eq!(times(8000), 4);
        assert_eq!(times(60_000_000), 16);
        assert_eq!(times(0), 1);
        assert_eq!(times(199), 1, "too short to tell");
        assert_eq!(times(400), 2);
    }
}
