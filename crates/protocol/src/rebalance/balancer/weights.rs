//! What kinds of work cost, compared with each other.

use crate::report::WorkDone;

/// Microseconds of a processor that a kind of work takes, as a benchmark measured it on one machine. Only how they compare
/// matters: what an operation really costs a node is found from what its workers ran ([`super::Loads`]).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weights {
    /// A get that a replica answers.
    pub get: f64,
    /// A write that a replica merges.
    pub put: f64,
    /// That a replica stamps a write, beside merging it.
    pub stamped: f64,
    /// A get that is coordinated for a client.
    pub coordinated_get: f64,
    /// A write that is coordinated for a client.
    pub coordinated_put: f64,
}

impl Weights {
    /// As measured: `docs/benchmarks/balance.md`.
    pub const MEASURED: Weights =
        Weights { get: 3.0, put: 6.0, stamped: 8.0, coordinated_get: 9.0, coordinated_put: 12.0 };

    /// What work for partitions weighs, in microseconds.
    pub fn of(&self, work: WorkDone) -> f64 {
        work.gets as f64 * self.get + work.puts as f64 * self.put + work.stamped as f64 * self.stamped
    }

    /// What coordinating weighs.
    pub fn of_coordinated(&self, gets: u64, puts: u64) -> f64 {
        gets as f64 * self.coordinated_get + puts as f64 * self.coordinated_put
    }
}
