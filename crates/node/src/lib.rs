//! A storage node: it keeps records, answers for them, and carries the requests of thin clients to their quorums.
//!
//! In reading order: [`Node`] starts and stops, and [`waiting`] comes before that where its cluster does not name it
//! yet; [`view`] is what it believes about the cluster; [`stores`] is what a get, a put and a merge do to one record;
//! [`replica`] answers for this node alone; [`front`] takes requests for any key; [`doors`] are the ways in.
//!
//! Beside requests [`antientropy`] compares replicas and scrubs, [`rebalance`] brings partitions in and gives them back,
//! [`handoff`] delivers hints, and [`collection`] forgets deletions. [`events`] and [`metrics`] tell what all of them did.
//!
//! **Architecture Invariant:** nothing here opens a socket, a file or a thread; the ports do.

mod chores;
mod identity;
mod local_copy;
mod node;

pub mod access;
pub mod antientropy;
pub mod artifacts;
pub mod audit;
pub mod collection;
pub mod disk_watch;
pub mod doors;
pub mod engines;
pub mod epochs;
pub mod events;
pub mod expiry;
pub mod front;
pub mod gossip;
pub mod handoff;
pub mod hints;
pub mod hot;
pub mod metrics;
pub mod pulse;
pub mod rebalance;
pub mod replica;
pub mod service_moved;
pub mod stores;
pub mod transport;
pub mod trees;
pub mod view;
pub mod waiting;
pub mod work;

#[cfg(test)]
#[allow(dead_code, reason = "the suite uses more of it")]
mod driven;

pub use identity::IdentityError;
pub use identity::given::{Directory, GivenId, Owner};
pub use local_copy::{newest as newest_document, read as own_copy};
pub use node::{
    Advertised, ArtifactConfig, DoorConfig, HintConfig, MemberConfig, Node, NodeConfig, RepairConfig,
    RequestConfig, StartError, Worker,
};
