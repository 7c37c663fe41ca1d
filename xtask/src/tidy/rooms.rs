//! The rule that no two rooms of a crate import each other, be it through third ones.
//!
//! A room is a module at the top of a crate: `crates/model/src/ring.rs` and all below `ring` are the room `ring`.
//! Rooms that meet in a circle are read, changed and tested together or not at all. What both sides need belongs into
//! a room below them.
//!
//! It follows `use crate::…`, paths that are written out, `super` up to the top, and names that `lib.rs` hands on.
//! Items for tests are left aside. It does not follow `super` in a module within a file, macros, or names that reach
//! a file by `*`.
//!
//! [`LEFT`] has the circles from before the rule. It only shrinks: what is mended must leave it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::source::Source;
use super::tree::crate_of;
use super::{Offence, Tree};

/// Rooms of a crate import each other in one direction only.
pub(crate) const RULE: &str = "rooms";

/// This file, where the list is.
const DOCUMENT: &str = "xtask/src/tidy/rooms.rs";
const WHY: &str = "rooms in a circle are understood together or not at all; a room between them is missing";

/// Crates and the rooms of one circle, which nobody mended yet.
const LEFT: &[(&str, &[&str])] = &[
    (
        "node",
        &[
            "antientropy",
            "collection",
            "front",
            "gossip",
            "handoff",
            "rebalance",
            "replica",
            "stores",
            "view",
        ],
    ),
