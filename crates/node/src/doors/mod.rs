//! The ways in: [`native`] for clients and other nodes, [`resp`] for Redis clients, [`http`] for everybody else. Each turns
//! what it hears into the requests of [`crate::front::Front`].

mod closing;
pub mod http;
pub mod native;
pub(crate) mod numbers;
mod parting;
pub(crate) mod refusals;
pub mod resp;
mod secret;
