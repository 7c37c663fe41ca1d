//! Time as data: hybrid logical timestamps and wall-clock milliseconds.
//!
//! Source: Kulkarni, Demirbas et al., "Logical Physical Clocks" (2014): 48 bits of milliseconds, 16 bits of counter.

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

impl Timestamp {
    /// The smallest timestamp after both `self` and everything the wall clock has seen.
    ///
    /// The counter overflows into the milliseconds: at 65,536 events in one millisecond the timestamp runs ahead
    /// of the wall clock, which is harmless, and it still only grows.
    pub fn next(self, wall: WallMillis) -> Timestamp {
        Timestamp((self.0 + 1).max(wall.0 << COUNTER_BITS))
    }

    /// The milliseconds part.
    pub fn wall(self) -> WallMillis {
        WallMillis(self.0 >> COUNTER_BITS)
    }
}
