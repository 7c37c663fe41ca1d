//! How a benchmark of a cluster that runs already finds it.
//!
//! It is apart from the command line, because scenarios are handed it, and the command line names every scenario.
//!
//! **Never** does it open a connection: [`crate::target`] does.

/// What every command of the program knows about its cluster, and benchmarks share.
#[derive(Clone, Debug)]
pub struct Reach {
    /// Native addresses of the cluster, for a run that names no other target.
    pub connect: Vec<String>,
    /// The store of a Tontine that is reached over the native protocol.
    pub store: String,
}
