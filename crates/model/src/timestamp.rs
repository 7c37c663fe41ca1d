//! Time as data: hybrid logical timestamps, wall-clock milliseconds, and points on a monotonic clock.
//!
//! Nothing here reads a clock: whoever decides by time is handed it.
//!
//! Source: Kulkarni, Demirbas et al., "Logical Physical Clocks" (2014): 48 bits of milliseconds, 16 bits of counter.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Milliseconds since the Unix epoch, as some node's wall clock saw them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WallMillis(pub u64);

/// A hybrid logical timestamp: never goes backwards along causality, stays near the wall clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(pub u64);

/// Bits of the logical counter.
const COUNTER_BITS: u32 = 16;
/// Timestamps between two writes: room for what changes only the expiry of the first, and must not win against the
/// second where that did not see it.
const ROOM: u64 = 1 << 4;

impl Timestamp {
    /// The timestamp of a write after both `self` and everything the wall clock has seen.
    ///
    /// The counter overflows into the milliseconds: at 4,096 writes in one millisecond the timestamp runs ahead
    /// of the wall clock, which is harmless, and it still only grows.
    pub fn next(self, wall: WallMillis) -> Timestamp {
        Timestamp((self.0 | (ROOM - 1)).saturating_add(1).max(wall.0 << COUNTER_BITS))
    }

    /// The timestamp right after `self`, whatever the clock says. Any [`Timestamp::next`] of what `self` is the next of
    /// is later, also where clocks are slow; but for the sixteenth in a row without one between them.
    pub fn right_after(self) -> Timestamp {
        Timestamp(self.0.saturating_add(1))
    }

    /// The milliseconds part.
    pub fn wall(self) -> WallMillis {
        WallMillis(self.0 >> COUNTER_BITS)
    }
}

/// A point on a clock that never goes backwards; only differences mean anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Moment {
    /// Nanoseconds since some start.
    pub nanos: u64,
}

impl Moment {
    /// This much later; saturates.
    pub fn after(self, duration: Duration) -> Moment {
        Moment { nanos: self.nanos.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)) }
    }

    /// Time since `earlier`; zero when `earlier` is later.
    pub fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.nanos.saturating_sub(earlier.nanos))
    }
}
