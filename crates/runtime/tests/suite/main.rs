//! What the runtime promises about the operating system's network and threads.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod allocations;
mod bytes;
#[cfg(feature = "http")]
mod http;
mod mappings;
mod streams;
mod tcp;
#[cfg(feature = "tls")]
mod tls;
mod workers;
