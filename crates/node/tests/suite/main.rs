//! What a node does with records, identities and commands, and what a few of them do together.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

mod client_library;
mod closed;
mod closing;
mod cluster;
mod cold;
mod collection;
mod conditions;
mod damage;
mod door;
mod driven;
mod drivers;
mod expiry;
mod handoff;
mod hints;
mod http;
mod http_door;
mod identity;
mod monotonic;
mod native;
mod overload;
mod pipelines;
mod sessions;
mod sizes;
mod stamping;
mod stores;
mod support;
mod transactions;
mod waiting;
mod work;
