//! Versions: what a key's value *is* when several writers may not have seen each other (D1).
//!
//! A key's state at one replica is a [`VersionSet`]: a [`Vector`] of everything that has happened to the key as far
//! as the replica knows, and the [`Version`]s that nothing known has replaced. Each version carries its [`Dot`], the
//! one event that is this write. Replicas exchange whole sets and [merge](VersionSet::merge) them: a version
//! survives unless the other side has *seen* it (its vector covers the dot) and no longer holds it. Two writes with
//! the same context become siblings, and siblings never multiply by themselves.
//!
//! ```text
//!   put(ctx A)──┐                          vector {n1: 2}
//!               ├─ n1 stamps n1.1, n1.2 →  n1.1 "milk"   } concurrent: neither context
//!   put(ctx A)──┘                          n1.2 "eggs"   } covered the other's dot
//!   put(ctx {n1: 2}) ── n2 stamps n2.1 →   vector {n1: 2, n2: 1}, n2.1 "milk, eggs"
//! ```
//!
//! **Why an actor has three parts.** A vector entry `actor: 7` claims to have seen *all* of the actor's events 1..=7
//! on this key. That claim holds only if an actor's events reach everyone in order and no event is ever repeated.
//! Whole-state exchange gives the order. Against repetition, an [`Actor`] is a node, its incarnation (new after
//! every start that may have forgotten writes) and a *birth*: a number that the node never uses twice, minted when
//! it first stamps a key that it holds no stamping record of. A node that forgot a key (a delivered hint, a
//! collected tombstone, a partition that moved away and came back) therefore stamps under a new actor, and can
//! neither repeat a dot nor claim to have superseded one that it forgot. Riak met this as "kv679"; its remedy, an
//! epoch per key, is the origin of the birth.
//!
//! Source: Preguiça, Baquero et al., "Dotted Version Vectors" (2010), and Almeida et al., "Scalable and Accurate
//! Causality Tracking for Eventually Consistent Stores" (2014).
//!
//! **Architecture Invariant:** pure values. Who may stamp, and when, is decided in `node::stores`.

mod set;
mod vector;

pub use set::{Stamp, Value, Version, VersionSet};
pub use vector::{Actor, Context, Dot, Vector};
