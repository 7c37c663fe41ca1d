//! The ways in: [`native`] for clients and other nodes, [`resp`] for Redis clients, [`http`] for everybody else. Each turns
//! what it hears into the requests of [`crate::front::Front`].

mod closing;
pub(crate) mod counters;
pub mod http;
pub mod native;
mod parting;
pub(crate) mod refusals;
pub mod resp;
mod secret;
