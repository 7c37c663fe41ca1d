//! What a handoff is told, what it wants done, and its settings.

use std::ops::Range;
use std::time::Duration;

/// Settings of the handoff to one target. The defaults suit a machine with a disk; tests make everything small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandoffOptions {
    /// Hints that travel together. Default: 64.
    pub batch_hints_max: usize,
    /// Bytes that travel together; a batch holds at least one hint. Default: 256 KiB.
    pub batch_bytes_max: u64,
    /// Batches under way at the same time. Default: 2, so that one is on its way while the other is answered.
    pub batches_max: usize,
    /// Rate in bytes per second below which pacing does not fall, of all holders together: each begins with its part
    /// after a target came back. Default: 1 MiB/s.
    pub rate_min: u64,
    /// Rate in bytes per second that no holder exceeds. Default: 8 MiB/s.
    pub rate_max: u64,
    /// Bytes per second that each quick answer adds. Default: 128 KiB/s.
    pub rate_step: u64,
    /// An answer that takes longer is late: the target has other things to do. Default: 50 ms.
    pub late_after: Duration,
    /// A batch that takes longer is lost. Default: 5 s.
    pub lost_after: Duration,
    /// First pause after a failure; doubles with each failure in a row. Default: 200 ms.
    pub pause_min: Duration,
    /// Longest pause. Default: 15 s.
    pub pause_max: Duration,
    /// Pause between two walks over the hints of a target that is alive. Default: 100 ms.
    pub rest: Duration,
    /// A hint older than this is given up, once another replica holds what it holds. Default: 3 h.
    pub age_max: Duration,
    /// How often hints of a target that is away are looked over, at most, for those that grew too old or could not be
    /// moved. Default: 10 min.
    pub sweep_every: Duration,
}

impl Default for HandoffOptions {
    fn default() -> Self {
        HandoffOptions {
            batch_hints_max: 64,
            batch_bytes_max: 256 << 10,
            batches_max: 2,
            rate_min: 1 << 20,
            rate_max: 8 << 20,
            rate_step: 128 << 10,
            late_after: Duration::from_millis(50),
            lost_after: Duration::from_secs(5),
            pause_min: Duration::from_millis(200),
            pause_max: Duration::from_secs(15),
            rest: Duration::from_millis(100),
            age_max: Duration::from_secs(3 * 60 * 60),
            sweep_every: Duration::from_secs(10 * 60),
        }
    }
}

/// A page that the machine asked for: the number grows with each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PageId(pub u64);

/// A batch that the machine sent: the number grows with each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct BatchId(pub u64);

/// What the machine needs to know of one hint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HintFacts {
    /// Bytes that it takes to send.
    pub bytes: u64,
    /// How long ago it was parked.
    pub age: Duration,
    /// Whether the target no longer is a replica of the key.
    pub moved: bool,
}

/// Why hints of a batch stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The target cannot be reached, or its answer never came.
    Unreachable,
    /// The target has too much to do.
    Overloaded,
    /// The target answered, but did not take all: a full disk, a newer ring.
    Refused,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HandoffEvent {
    /// The target was found alive.
    TargetRose,
    /// The target is suspected, down, or no member any more.
    TargetFell,
    /// A hint was parked for the target.
    Parked,
    /// The ring changed: hints may have to go elsewhere.
    Rerouted,
    /// A page was read.
    PageRead {
        /// Which.
        page: PageId,
        /// Its hints.
        hints: Vec<HintFacts>,
        /// Whether others follow.
        more: bool,
    },
    /// A page could not be read.
    PageFailed {
        /// Which.
        page: PageId,
    },
    /// A batch came to its end.
    Settled {
        /// Which.
        batch: BatchId,
        /// How many of its hints are gone from the store.
        removed: usize,
        /// How many of its hints stay, because they were not taken or have changed meanwhile.
        left: usize,
        /// Why, if something went wrong.
        fault: Option<Fault>,
    },
    /// The workers of this node and of the target were asked for nothing, and the slowest took this many times what is
    /// ordinary; 1 is in time.
    WorkersAsked {
        /// See [`crate::lateness::Lateness::times`].
        times: u32,
    },
    /// Time has passed.
    Elapsed,
}

/// What is done with the hints of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Errand {
    /// Merge them at the target, and remove them.
    Deliver,
    /// Park them for the replicas that the ring names now instead, and remove them.
    Readdress,
    /// See that another replica holds what they hold, and remove them: they are too old.
    GiveUp,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HandoffAction {
    /// Read a page of the target's hints.
    ReadPage {
        /// Its number.
        page: PageId,
        /// Whether it is the first of a walk; otherwise it follows the page before.
        first: bool,
    },
    /// Do this with these hints of the last page.
    Carry {
        /// Number of the batch.
        batch: BatchId,
        /// What to do.
        errand: Errand,
        /// Positions in the page.
        hints: Range<usize>,
    },
}
