//! What drivers may rely on, seen from outside.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

mod admission;
mod allocation;
mod antientropy;
mod autopilot;
mod collection;
mod disorder;
mod entering;
mod evenness;
mod get_transcripts;
mod golden;
mod gossip;
mod gossip_alone;
mod handoffs;
mod headmaster;
mod merkle;
mod multi;
mod numbers;
mod planner;
mod replay;
mod reshapes;
mod script;
mod sessions;
mod standby;
mod steps;
mod users;
mod write_transcripts;
