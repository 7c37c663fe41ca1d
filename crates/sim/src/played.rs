//! How often a run came to what is rare: printed, so that it cannot cease unseen.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::AddAssign;

use coordination::memory::MemoryFaultCounts;
use model::limits::VALUE_BYTES_MAX;

use crate::book::BookCounts;
use crate::history::{Action, History, Outcome};
use crate::piloting::PilotCounts;

/// Counts of rare things.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Played {
    /// Answers that showed a value of no bytes.
    pub empty: u64,
    /// Values above what may be stored, each refused.
    pub too_long: u64,
    /// Commands with a condition on an expiry, or that keep one, that could be judged.
    pub lifetimes: u64,
    /// Batches of hints that failed while a node had no room for requests.
    pub crowded: u64,
    /// Swaps of artifacts, and reads of them.
    pub artifacts: BookCounts,
    /// Calls of the coordination service that went wrong.
    pub service: MemoryFaultCounts,
    /// What the autopilot did, where it was on.
    pub piloted: PilotCounts,
    /// Looks at the durable copies of one key's acknowledged writes.
    pub looks: u64,
    /// Harm that was drawn, by its kind.
    pub harm: BTreeMap<String, u64>,
}

impl Played {
    /// What a history shows of it.
    pub fn of(history: &History) -> Played {
        let shows_empty = |outcome: &Outcome| match outcome {
            Outcome::Shown(Some(value)) => value.is_empty(),
            Outcome::Got(set) => set
                .versions()
                .iter()
                .any(|version| matches!(&version.value, model::Value::Present(value) if value.is_empty())),
            _ => false,
        };
        let mut played = Played::default();
        for operation in &history.operations {
            played.empty += u64::from(shows_empty(&operation.outcome));
            let too_long = matches!(&operation.action, Action::Put(value) if value.len() > VALUE_BYTES_MAX);
            played.too_long += u64::from(too_long && matches!(operation.outcome, Outcome::Failed(_)));
        }
        played
    }
}

impl AddAssign for Played {
    fn add_assign(&mut self, other: Played) {
        self.empty += other.empty;
        self.too_long += other.too_long;
        self.lifetimes += other.lifetimes;
        self.crowded += other.crowded;
        self.artifacts.swaps += other.artifacts.swaps;
        self.artifacts.back += other.artifacts.back;
        self.artifacts.answered += other.artifacts.answered;
        self.artifacts.refused += other.artifacts.refused;
        self.service.sessions_lost += other.service.sessions_lost;
        self.service.writes_in_doubt += other.service.writes_in_doubt;
        self.service.reads_behind += other.service.reads_behind;
        self.piloted += other.piloted;
        self.looks += other.looks;
        for (kind, count) in other.harm {
            *self.harm.entry(kind).or_default() += count;
        }
    }
}

impl fmt::Display for Played {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} answers showed a value of 0 bytes, {} values were refused as too long, {} conditions on expiries were \
             judged, {} batches of hints met a node without room; artifacts were swapped {} times, {} of them back, for {} requests that \
             were answered and {} that were not; of the coordination service {} sessions ended at a call, {} \
             writes stayed in doubt, and {} readings were behind; the autopilot was on in {} runs, and carried {} plans out in {} \
             of them, with {} copies; it replaced {} nodes in {}; {} looks at durable copies; harm:",
            self.empty,
            self.too_long,
            self.lifetimes,
            self.crowded,
            self.artifacts.swaps,
            self.artifacts.back,
            self.artifacts.answered,
            self.artifacts.refused,
            self.service.sessions_lost,
            self.service.writes_in_doubt,
            self.service.reads_behind,
            self.piloted.runs,
            self.piloted.plans,
            self.piloted.with_plans,
            self.piloted.copies,
            self.piloted.replaced,
            self.piloted.with_replaced,
            self.looks
        )?;
        self.harm.iter().try_for_each(|(kind, count)| write!(f, " {kind} {count}"))
    }
}
