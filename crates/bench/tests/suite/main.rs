//! Integration tests of the benchmark crate: real servers on loopback.
