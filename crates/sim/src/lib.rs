//! A whole cluster in one thread: network, time, disks, faults, checkers.
//!
//! In reading order: [`dice`], [`host`], [`executor`], [`network`] and [`disk`] are the world; [`cluster`] puts real nodes, each on its [`machine`], and
//! real clients into it; [`witness`] sees what engines store, and [`looks`] what nodes see when they read; [`circumstances`] knows what was in the way of requests; [`nemesis`], [`storm`] and [`scenario`] do them harm; [`rebalance`], [`bounds`],
//! [`numbers`] and [`headmasters`] change who holds what; [`workload`] and [`redis`] keep the clients busy and write the [`history`];
//! [`check`] judges it, and [`promises`] judges on the way, with what [`witness`] saw and what [`copies`] would be left; both read what engines hold by `records`.
//! Where the autopilot is on, each node has an [`executor::Processor`] that is played, [`absences`] lets machines die, and [`piloting`] follows what it does.
//! [`artifacts`] pushes and reads tables of a read-only store, which come from [`sources`] and of which [`book`] knows. [`swarm`] draws all of this from one seed, and [`run`] plays it.
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
