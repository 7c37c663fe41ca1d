//! Stories that a run may tell in place of drawn harm.

/// A story, of a cluster of three nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// The first node misses writes. Then the second loses its disk, while the third, which has them, is cut off: who
    /// asks the first two must not be told that there is nothing.
    LostDiskBehindCut,
    /// The same, and the power of the second node goes while it refills.
    PowerCutInRefill,
    /// What the second node sends to the third arrives after a collection round.
    HeldMerges,
}
