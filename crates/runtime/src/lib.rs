//! The doors to the world: clock, tasks, randomness, network, disk, where artifacts come from and are put.
//!
//! Everything above this crate reaches the outside through these ports, so that the same code runs in production
//! and in simulation. Each port is a trait used as `dyn`, with an implementation for the operating system here (in
//! `os` modules) and a simulated one (`disk::simulated` here, the rest in `sim`).
//!
//! **Architecture Invariant:** ports speak in bytes, paths, times and addresses; none knows a key, a ring or a message.

pub mod clock;
pub mod disk;
pub mod entropy;
#[cfg(feature = "http")]
pub mod http;
pub mod locks;
pub mod network;
pub mod outputs;
pub mod pace;
pub mod panics;
pub mod programs;
#[cfg(feature = "secret")]
pub mod secret;
pub mod sources;
pub mod tasks;
pub mod workers;

pub use clock::{Clock, Moment};
pub use disk::mapping::{Mapping, View};
pub use disk::{Disk, DiskError, File, FileStat};
pub use entropy::Entropy;
pub use network::{Link, LinkReceiver, LinkSender, Listener, Network, NetworkError, Proof};
pub use outputs::Output;
pub use programs::{Program, ProgramError, Programs};
pub use sources::Sources;
pub use tasks::{ProcessorTime, Tasks};
pub use workers::{Stop, Worker, Workers};

/// A future that may cross threads, as the object-safe ports return it.
pub type BoxFuture<'a, T> = std::pin::Pin<Box<dyn std::future::Future<Output = T> + Send + 'a>>;

/// All doors of one process (or of one simulated node), handed down by value.
#[derive(Clone)]
pub struct Ports {
    /// What time it is, and waiting.
    pub clock: std::sync::Arc<dyn Clock>,
    /// Running futures beside the caller.
    pub tasks: std::sync::Arc<dyn Tasks>,
    /// Randomness.
    pub entropy: std::sync::Arc<dyn Entropy>,
    /// Frames to and from other processes.
    pub network: std::sync::Arc<dyn Network>,
}

impl Ports {
    /// The doors of the operating system.
    ///
    /// # Errors
    /// When the operating system refuses the background thread.
    pub fn os() -> std::io::Result<Ports> {
        Ok(Ports {
            clock: std::sync::Arc::new(clock::os::OsClock::new()),
            tasks: std::sync::Arc::new(tasks::os::OsTasks::start()?),
            entropy: std::sync::Arc::new(entropy::os::OsEntropy),
            network: std::sync::Arc::new(network::tcp::TcpNetwork::new()),
        })
    }
}
