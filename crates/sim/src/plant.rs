//! Bugs planted on purpose, to prove that each judge can convict.
//!
//! They live in wrappers around the ports, so production code has no path for them.

/// One planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// A disk that says a sync is done and does nothing.
    LyingDisk,
    /// An engine that now and then drops a record instead of answering with it.
    ForgetfulEngine,
    /// An engine that sometimes answers a get with the record before the last.
    StaleEngine,
    /// A network that changes a byte of a value.
    TamperingNetwork,
    /// A node that comes back with an old identity and goes on stamping under it.
    RewoundIdentity,
    /// A client that hands back no context where it says that it does.
    DroppedContext,
    /// A client that overwrites blindly where it says that it read before.
    ForgottenRead,
    /// An engine of hints that says a hint is removed and keeps it.
    HoardedHints,
    /// Stores that promise monotonic reads and answer without writing back.
    HastyReads,
    /// Engines that forget a deletion as soon as it is stored, without asking anybody.
    HastyCollection,
    /// Nodes that keep nothing of a value once it has expired by their own clock, however wrong that is.
    HastyReaping,
    /// Nodes that never compare with each other, and have no room for hints.
    IdleRepair,
    /// Nodes that compare and overlook the records of every other leaf, and have no room for hints.
    OverlookedLeaves,
    /// An engine that answers with a damaged record as if its checksum held.
    UncheckedReads,
    /// Engines that say a write is durable when it is in memory.
    AcksEarly,
    /// Engines that say a write is durable when the one before it is.
    AcksOneBehind,
    /// Engines of hints that say a hint is durable when it is in memory.
    HintsAckedEarly,
}

impl Plant {
    /// All of them.
    pub const ALL: [Plant; 17] = [
        Plant::LyingDisk,
        Plant::ForgetfulEngine,
        Plant::StaleEngine,
        Plant::TamperingNetwork,
        Plant::RewoundIdentity,
        Plant::DroppedContext,
        Plant::ForgottenRead,
        Plant::HoardedHints,
        Plant::HastyReads,
        Plant::HastyCollection,
        Plant::HastyReaping,
        Plant::IdleRepair,
        Plant::OverlookedLeaves,
        Plant::UncheckedReads,
        Plant::AcksEarly,
        Plant::AcksOneBehind,
        Plant::HintsAckedEarly,
    ];

    /// The invariant whose judge must convict it.
    pub fn breaks(self) -> u8 {
        match self {
            Plant::LyingDisk
            | Plant::ForgetfulEngine
            | Plant::AcksEarly
            | Plant::AcksOneBehind
            | Plant::HintsAckedEarly => 1,
            Plant::HoardedHints | Plant::IdleRepair | Plant::OverlookedLeaves => 2,
            Plant::HastyCollection | Plant::HastyReaping => 3,
            Plant::DroppedContext | Plant::ForgottenRead => 4,
            Plant::TamperingNetwork | Plant::RewoundIdentity | Plant::UncheckedReads => 5,
            Plant::StaleEngine | Plant::HastyReads => 7,
        }
    }

    /// The plant with this name on the command line.
    pub fn named(name: &str) -> Option<Plant> {
        Plant::ALL.into_iter().find(|plant| format!("{plant:?}").eq_ignore_ascii_case(name))
    }
}
