//! Whether requests have to wait: told by how long workers take for the least of them.
//!
//! Background work (hints on their way, replicas that compare) asks the workers of the nodes concerned for nothing,
//! now and then, and measures the answer. A worker that has requests to serve, or finds no processor to run on, takes
//! longer than one that was idle. It is the same for every kind of load, and needs to know neither what the machine
//! can bear nor who else uses it.
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
    /// Takes in that an answer took so long, and says how many times as long as is ordinary that is: 1 is in time, and
    /// 16 is the most that is said.
    pub fn times(&mut self, took: Duration) -> u32 {
        let usual = self.usual.map_or(took, |usual| usual.min(took));
        self.usual = Some(usual);
        let times = took.as_nanos() / (NOISE * usual.max(USUAL_MIN).as_nanos());
        u32::try_from(times).unwrap_or(TIMES_MAX).clamp(1, TIMES_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_takes_far_longer_than_ever_before_is_late() {
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
