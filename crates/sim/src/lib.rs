//! A whole cluster in one thread: network, time, disks, faults, checkers.
//!
//! Each line of rooms imports only lines above it:
//!
//! ```text
//!   dice host plant                         all else is drawn from dice; a bug may be planted
//!   executor circumstances sources          time and tasks; what is in the way of requests
//!   network disk looks records              what processes use, and what is seen of it
//!   history                                 what clients asked, and what they heard
//!   check witness                           judges; what engines were seen to store
//!   swarm bounds                            everything that one seed draws
//!   machine by_hash book piloting numbers   what outlives a process; what documents say
//!   engine copies
//!   cluster                                 real nodes on machines
//!   workload headmasters artifacts rebalance storm scenario absences tampering promises played
//!   redis nemesis
//!   run
//!   catalogue
//! ```
//!
//! In reading order: [`dice`], [`host`], [`executor`], [`network`] and [`disk`] are the world.
//! [`cluster`] puts real nodes, each on its [`machine`], and real clients into it.
//! [`workload`] and [`redis`] keep the clients busy and write the [`history`]; [`check`] judges it.
//! [`promises`] judges on the way, with what [`witness`] saw engines store and what [`copies`] would be left.
//! [`looks`] has what nodes see when they read, and [`circumstances`] knows what was in the way of requests.
//!
//! [`nemesis`], [`storm`] and [`scenario`] do harm; [`rebalance`], [`bounds`], [`numbers`] and [`headmasters`] change who
//! holds what. Where the autopilot is on, each node has an [`executor::Processor`] that is played, [`absences`] lets
//! machines die, and [`piloting`] follows what it does. [`artifacts`] pushes and reads tables of a read-only store, which
//! come from [`sources`] and of which [`book`] knows. [`swarm`] draws all of this from one seed, and [`run`] plays it.
//!
//! [`balance`] and [`elastic`] are worlds of their own, without nodes: days of a headmaster, and of elastic controllers.
//!
//! **Architecture Invariant:** a run depends on its seed and on nothing else: one seed run twice gives one trace.

pub mod absences;
pub mod artifacts;
pub mod balance;
pub mod book;
pub mod bounds;
pub mod by_hash;
pub mod catalogue;
pub mod check;
pub mod circumstances;
pub mod cluster;
pub mod copies;
pub mod dice;
pub mod disk;
pub mod elastic;
pub mod engine;
pub mod executor;
pub mod headmasters;
pub mod history;
pub mod host;
pub mod looks;
pub mod machine;
pub mod nemesis;
pub mod network;
pub mod numbers;
pub mod piloting;
pub mod plant;
pub mod played;
pub mod promises;
pub mod rebalance;
mod records;
pub mod redis;
pub mod run;
pub mod scenario;
pub mod sources;
pub mod storm;
pub mod swarm;
pub mod tampering;
pub mod witness;
pub mod workload;
