//! What kinds of work cost, compared with each other.

use crate::report::WorkDone;

/// Microseconds of a processor that a kind of work takes, as a benchmark measured it on one machine. Only how they compare
/// matters: what an operation really costs a node is found from what its workers ran ([`super::Loads`]).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weights {
    /// A get that a replica answers.
    pub get: f64,
    /// A write that a replica merges, which another node stamped.
    pub put: f64,
    /// A write that a replica stamps: it reads, makes the version and keeps it.
    pub stamped: f64,
    /// A get that is coordinated for a client.
    pub coordinated_get: f64,
    /// A write that is coordinated for a client.
    pub coordinated_put: f64,
}

impl Weights {
    /// As measured with pipelines of eight on 2026-11-28: `docs/benchmarks/balance.md`.
    pub const MEASURED: Weights =
        Weights { get: 1.9, put: 2.1, stamped: 3.4, coordinated_get: 4.5, coordinated_put: 4.3 };

    /// What work for partitions weighs, in microseconds.
    pub fn of(&self, work: WorkDone) -> f64 {
        work.gets as f64 * self.get + work.puts as f64 * self.put + work.stamped as f64 * self.stamped
    }

    /// The same without gets that a node drives itself, and without this part of what it stamped: they do not go with its
    /// place.
    pub fn of_placed(&self, work: WorkDone, own_stamped: f64) -> f64 {
        let own = work.own_gets.min(work.gets) as f64 * self.get;
        self.of(work) - own - work.stamped as f64 * self.stamped * own_stamped
    }

    /// What coordinating weighs.
    pub fn of_coordinated(&self, gets: u64, puts: u64) -> f64 {
        gets as f64 * self.coordinated_get + puts as f64 * self.coordinated_put
    }
}
