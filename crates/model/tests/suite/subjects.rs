//! What a history is played on: the real version set, and one that is wrong in the classic way.

use std::collections::BTreeSet;
use std::fmt::Debug;

use model::versions::Stamp;
use model::{Context, Dot, Resolver, Timestamp, Vector, VersionSet};

/// The state of one key at one replica.
pub trait Subject: Clone + Debug + Default + PartialEq {
    fn put(&mut self, stamp: Stamp, context: Option<&Context>) -> Dot;
    fn merge(&mut self, other: &Self);
    fn siblings(&self) -> BTreeSet<Dot>;
    fn context(&self) -> Context;
    /// Promises beyond those that a history checks itself.
    fn check(&self) -> Result<(), String>;
}

/// The real thing, once with its siblings and once resolved after every step as a last-write-wins store does it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Real {
    pub full: VersionSet,
    pub resolved: VersionSet,
}

impl Subject for Real {
    fn put(&mut self, stamp: Stamp, context: Option<&Context>) -> Dot {
        let vector = context.map(|context| &context.vector);
        let dot = self.full.put(stamp.clone(), vector);
        assert_eq!(self.resolved.put(stamp, vector), dot, "both stamp the same dot");
        self.resolved.resolve(Resolver::LastWriteWins);
        dot
    }

    fn merge(&mut self, other: &Self) {
        self.full.merge(&other.full);
        self.resolved.merge(&other.resolved);
        self.resolved.resolve(Resolver::LastWriteWins);
    }

    fn siblings(&self) -> BTreeSet<Dot> {
        self.full.versions().iter().map(|version| version.dot).collect()
    }

    fn context(&self) -> Context {
        self.full.context()
    }

    fn check(&self) -> Result<(), String> {
        let parts = (self.full.vector().clone(), self.full.versions().iter().cloned().collect());
        if VersionSet::from_parts(parts.0, parts.1).as_ref() != Some(&self.full) {
            return Err("the set breaks its own invariants".to_owned());
        }
        let mut resolved = self.full.clone();
        resolved.resolve(Resolver::LastWriteWins);
        if resolved != self.resolved {
            return Err("resolving late and resolving at every step differ".to_owned());
        }
        if self.resolved.context() != self.full.context() {
            return Err("resolving changed what a reader has seen".to_owned());
        }
        if self.full.winner().cloned() != self.resolved.winner().cloned() {
            return Err("resolving changed the winner".to_owned());
        }
        Ok(())
    }
}

/// A planted bug: plain version vectors counted at the replica, without dots. Of two puts with one context through
/// one replica the second seems to have seen the first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlainVectors {
    versions: Vec<(Vector, Dot, Timestamp)>,
}

impl PlainVectors {
    fn vector(&self) -> Vector {
        let mut joined = Vector::default();
        self.versions.iter().for_each(|(vector, ..)| joined.join(vector));
        joined
    }
}

impl Subject for PlainVectors {
    fn put(&mut self, stamp: Stamp, context: Option<&Context>) -> Dot {
        let seen = self.vector();
        let mut vector = context.map_or_else(|| seen.clone(), |context| context.vector.clone());
        let dot =
            Dot { actor: stamp.actor, count: seen.count(stamp.actor).max(vector.count(stamp.actor)) + 1 };
        vector.see(dot);
        self.versions.retain(|(other, ..)| !vector.descends(other));
        self.versions.push((vector, dot, stamp.timestamp));
        dot
    }

    fn merge(&mut self, other: &Self) {
        for theirs in &other.versions {
            if !self.versions.iter().any(|(mine, ..)| mine.descends(&theirs.0)) {
                self.versions.retain(|(mine, ..)| !theirs.0.descends(mine));
                self.versions.push(theirs.clone());
            }
        }
    }

    fn siblings(&self) -> BTreeSet<Dot> {
        self.versions.iter().map(|(_, dot, _)| *dot).collect()
    }

    fn context(&self) -> Context {
        let timestamp = self.versions.iter().map(|(_, _, timestamp)| *timestamp).max().unwrap_or_default();
        Context { vector: self.vector(), timestamp }
    }

    fn check(&self) -> Result<(), String> {
        Ok(())
    }
}

/// A planted bug: merging keeps whatever either side holds, and forgets that the other side had replaced it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Union(VersionSet);

impl Subject for Union {
    fn put(&mut self, stamp: Stamp, context: Option<&Context>) -> Dot {
        self.0.put(stamp, context.map(|context| &context.vector))
    }

    fn merge(&mut self, other: &Self) {
        let mut versions: Vec<_> = self.0.versions().iter().chain(other.0.versions()).cloned().collect();
        versions.sort_by_key(|version| version.dot);
        versions.dedup_by_key(|version| version.dot);
        let mut vector = self.0.vector().clone();
        vector.join(other.0.vector());
        self.0 = VersionSet::from_parts(vector, versions.into()).unwrap();
    }

    fn siblings(&self) -> BTreeSet<Dot> {
        self.0.versions().iter().map(|version| version.dot).collect()
    }

    fn context(&self) -> Context {
        self.0.context()
    }

    fn check(&self) -> Result<(), String> {
        Ok(())
    }
}
