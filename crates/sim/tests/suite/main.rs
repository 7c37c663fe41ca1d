//! The simulated world keeps the promises of the ports, one seed gives one run, and every judge can convict.

mod antientropy;
mod artifacts;
mod balance;
mod collection;
mod convictions;
mod deletes;
mod detection;
mod elastic;
mod expiry;
mod fetching;
mod handoff;
mod http;
mod increments;
mod locks;
mod messages;
mod piloted;
mod plants;
mod reach;
mod replays;
mod scans;
mod stage;
mod world;
