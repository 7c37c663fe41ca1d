//! What is fuzzed: a function for each decoder that meets bytes from outside. It panics when it finds something.
//!
//! | target | bytes of | must hold |
//! |---|---|---|
//! | [`frame`] | the network, native | whatever decodes encodes to the very same bytes |
//! | [`record`] | a stored record, a context | the same, and the fast path agrees with the set |
//! | [`resp`] | the network, Redis | any cutting of the input gives the same commands, replies and errors |
//! | [`http`] | the network, HTTP | any cutting of the input gives the same requests; paths and ETags are understood in one way |
//! | [`cluster`] | a cluster document | what is read can be routed by, and is read again as the same |
//! | [`segment`] | a segment of the log engine | it opens; what it serves was written |
//! | [`snapshot`] | the log engine's index | it opens, and serves what the segments hold |
//! | [`artifact`] | a chunk of an artifact | it opens or is refused; what it serves was built |
//! | [`manifest`] | a manifest of an artifact | what is read is written as the very same bytes |
//! | [`delta`] | a delta of an artifact's chunk | a merge makes what was built, or refuses |
//! | [`coordination`] | the coordination service's log | it opens or is refused; what is opened can be written to |
//!
//! Checksums would keep almost every mutation at the door, so the targets on files also put the checksums right and
//! try again.

pub mod artifact;
pub mod cluster;
pub mod coordination;
pub mod delta;
pub mod frame;
pub mod http;
pub mod manifest;
pub mod mutate;
pub mod record;
pub mod resp;
pub mod segment;
pub mod snapshot;

/// A target: its name, its check, and how many bytes an input may have.
pub struct Target {
    /// The name, also of its corpus.
    pub name: &'static str,
    /// Panics when it finds something.
    pub check: fn(&[u8]),
    /// Bytes of the longest input that is tried.
    pub input_bytes_max: usize,
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target { name: "frame", check: frame::check, input_bytes_max: 1024 },
    Target { name: "record", check: record::check, input_bytes_max: 1024 },
    Target { name: "resp", check: resp::check, input_bytes_max: 1024 },
    Target { name: "http", check: http::check, input_bytes_max: 1024 },
    Target { name: "cluster", check: cluster::check, input_bytes_max: 4096 },
    Target { name: "segment", check: segment::check, input_bytes_max: 4096 },
    Target { name: "snapshot", check: snapshot::check, input_bytes_max: 4096 },
    Target { name: "artifact", check: artifact::check, input_bytes_max: 16384 },
    Target { name: "manifest", check: manifest::check, input_bytes_max: 4096 },
    Target { name: "delta", check: delta::check, input_bytes_max: 4096 },
    Target { name: "coordination", check: coordination::check, input_bytes_max: 4096 },
];
