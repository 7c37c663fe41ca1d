//! How fast each kind of background work goes at least, at most and in the beginning.

/// Bytes a second that a node fetches at most unless its operator says otherwise: about half of what one core copies and
/// verifies, and of a common disk.
pub const FETCH_CEILING_DEFAULT: u64 = 128 << 20;
/// The lowest ceiling: one block a second.
pub const FETCH_CEILING_MIN: u64 = 1 << 20;
/// The lowest rate of artifacts is this part of their ceiling, and so is a step.
const ARTIFACT_SHARE: u64 = 16;
/// Artifacts begin at this part of their ceiling.
const ARTIFACT_FIRST_SHARE: u64 = 4;

/// What a pace keeps to. The rates are in bytes a second, with 0 < `least` ≤ `first` ≤ `most`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PaceLimits {
    /// It never goes slower.
    pub least: u64,
    /// It never goes faster.
    pub most: u64,
    /// How fast it begins.
    pub first: u64,
    /// How it grows.
    pub growth: Growth,
}

/// How much faster a pace becomes each time that requests are in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// By so many bytes a second.
    Step(u64),
}

impl PaceLimits {
    /// Of artifacts that a node fetches, merges or gives, of all stores together: at most `ceiling` bytes a second, but
    /// no less than [`FETCH_CEILING_MIN`].
    pub fn for_artifacts(ceiling: u64) -> PaceLimits {
        let most = ceiling.max(FETCH_CEILING_MIN);
        let share = most / ARTIFACT_SHARE;
        PaceLimits { least: share, most, first: most / ARTIFACT_FIRST_SHARE, growth: Growth::Step(share) }
    }
}
