//! The ways in: [`native`] for clients and other nodes, [`resp`] for Redis clients. Each turns what it hears into the
//! requests of [`crate::front::Front`].

pub mod native;
pub(crate) mod numbers;
pub(crate) mod refusals;
pub mod resp;
