//! The Redis protocol, versions 2 and 3: commands in, replies out.
//!
//! [`CommandParser`] takes whole commands off the front of a connection's receive buffer and never looks at a byte
//! twice, however the input is cut. [`ReplyWriter`] writes replies in the version that the connection has settled on.
//! [`ReplyParser`] is the other side, for tests and for measuring against a real Redis.
//!
//! Refusals use Redis's own words, because clients and people know them.
//!
//! **Architecture Invariant:** what a command means is not known here.

mod argument;
mod command;
mod error;
mod inline;
mod number;
mod protocol;
mod reply;
mod reply_parser;

pub use command::{Arrived, Command, CommandLimits, CommandParser, CommandRead};
pub use error::{HTTP, RespError};
pub use number::integer;
pub use protocol::Protocol;
pub use reply::ReplyWriter;
pub use reply_parser::{Reply, ReplyParser};
