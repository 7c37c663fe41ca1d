//! The laws of the model, as properties of everything that can happen and not of chosen examples.

#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

mod access;
mod artifacts;
mod buckets;
mod changes;
mod clusters;
mod histories;
mod numbers;
mod planted_bugs;
mod rings;
mod steps;
mod subjects;
mod timestamps;
mod version_examples;
mod version_laws;
