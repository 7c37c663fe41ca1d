//! The driver against servers on loopback: a real Redis, and one that misbehaves on purpose.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod faults;
mod misbehaving;
mod real_redis;
