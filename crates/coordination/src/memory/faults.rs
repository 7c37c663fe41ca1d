//! What may go wrong with a call, drawn from a seed: the same seed and the same calls give the same faults.

/// How often calls go wrong, in thousandths of them. By default nothing does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryFaults {
    /// Where the dice begin.
    pub seed: u64,
    /// A call finds that its session has ended.
    pub lost_per_mille: u32,
    /// A write is answered `Indeterminate`: as often as not it has happened, has not, or happens just before the
    /// session's next call.
    pub indeterminate_per_mille: u32,
    /// How many changes of others a session may not have seen yet. It catches up as it reads, by some at a time; after
    /// its own write that was answered, done or refused, and before a watch fires, by all.
    pub behind_max: usize,
    /// Whether a new session may be behind, too: it finds a server that is. Sessions of ZooKeeper are so where the
    /// ensemble is told to keep them local to a server.
    pub behind_at_first: bool,
}

/// How often calls have gone wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryFaultCounts {
    /// Sessions that ended at a call.
    pub sessions_lost: u64,
    /// Writes that were not answered.
    pub writes_in_doubt: u64,
    /// Readings by sessions that were behind.
    pub reads_behind: u64,
}

/// What happens to a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is carried out and confirmed.
    Confirmed,
    /// It is carried out, and nobody says so.
    Unconfirmed,
    /// It is lost, and nobody says so.
    Lost,
    /// It is carried out later.
    Late,
}

/// Faults with the dice that they are drawn from (SplitMix64).
#[derive(Debug, Default)]
pub(super) struct FaultDice {
    pub(super) faults: MemoryFaults,
    pub(super) counts: MemoryFaultCounts,
    state: u64,
}

impl FaultDice {
    /// Rolls for these faults from now on.
    pub(super) fn begin(&mut self, faults: MemoryFaults) {
        (self.faults, self.state) = (faults, faults.seed);
    }

    fn roll(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn happens(&mut self, per_mille: u32) -> bool {
        per_mille > 0 && self.roll() % 1000 < u64::from(per_mille)
    }

    /// Whether the session ends at this call.
    pub(super) fn ends_session(&mut self) -> bool {
        let ends = self.happens(self.faults.lost_per_mille);
        self.counts.sessions_lost += u64::from(ends);
        ends
    }

    /// What happens to this write.
    pub(super) fn fate(&mut self) -> Fate {
        if !self.happens(self.faults.indeterminate_per_mille) {
            return Fate::Confirmed;
        }
        self.counts.writes_in_doubt += 1;
        [Fate::Unconfirmed, Fate::Lost, Fate::Late][(self.roll() % 3) as usize]
    }

    /// By how many of `missing` changes a reader catches up.
    pub(super) fn catches_up(&mut self, missing: usize) -> usize {
        if self.faults.behind_max == 0 || missing == 0 {
            return missing;
        }
        (self.roll() % (missing as u64 + 1)) as usize
    }
}
