//! Actors, dots, vectors and the context that clients carry.

use std::cmp::Ordering;
use std::fmt;

use smallvec::SmallVec;

use crate::node::NodeId;
use crate::timestamp::Timestamp;

/// Who stamps: see the [module documentation](crate::versions) for why it has three parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Actor {
    /// The node.
    pub node: NodeId,
    /// Grows with every start of the node that may have forgotten writes.
    pub incarnation: u64,
    /// Minted when the node first stamps a key it holds no stamping record of; unique within the incarnation.
    pub birth: u64,
}

/// One event: the `count`-th write that `actor` stamped on a key. Counts start at 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Dot {
    /// Who stamped it.
    pub actor: Actor,
    /// Which of its writes on this key.
    pub count: u64,
}

impl fmt::Display for Dot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Actor { node, incarnation, birth } = self.actor;
        write!(f, "{node}:{incarnation:x}:{birth:x}.{}", self.count)
    }
}

/// For each actor, how many of its events have been seen: all of 1..=count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Vector {
    /// Sorted by actor, each at most once, no count of 0.
    entries: SmallVec<[(Actor, u64); 2]>,
}

impl Vector {
    /// The vector of these entries; of equal actors the greatest count wins, counts of 0 vanish.
    pub fn from_entries(entries: impl IntoIterator<Item = (Actor, u64)>) -> Self {
        let mut vector = Vector::default();
        for (actor, count) in entries {
            vector.see(Dot { actor, count });
        }
        vector
    }

    /// Takes entries that are already sorted by actor, distinct and not zero; `None` when they are not.
    pub fn from_sorted(entries: SmallVec<[(Actor, u64); 2]>) -> Option<Self> {
        let ordered = entries.windows(2).all(|pair| pair[0].0 < pair[1].0);
        (ordered && entries.iter().all(|(_, count)| *count > 0)).then_some(Vector { entries })
    }

    /// The entries, sorted by actor.
    pub fn entries(&self) -> &[(Actor, u64)] {
        &self.entries
    }

    /// How many events of `actor` have been seen.
    pub fn count(&self, actor: Actor) -> u64 {
        match self.position(actor) {
            Ok(position) => self.entries[position].1,
            Err(_) => 0,
        }
    }

    /// Whether the event has been seen.
    pub fn covers(&self, dot: Dot) -> bool {
        dot.count <= self.count(dot.actor)
    }

    /// Sees an event and all earlier ones of its actor.
    pub fn see(&mut self, dot: Dot) {
        if dot.count == 0 {
            return;
        }
        match self.position(dot.actor) {
            Ok(position) => self.entries[position].1 = self.entries[position].1.max(dot.count),
            Err(position) => self.entries.insert(position, (dot.actor, dot.count)),
        }
    }

    /// Sees everything that `other` has seen. Linear in both.
    pub fn join(&mut self, other: &Vector) {
        if self.entries.is_empty() {
            self.entries.clone_from(&other.entries);
            return;
        }
        if let [(actor, count)] = other.entries[..] {
            return self.see(Dot { actor, count });
        }
        let mut mine = std::mem::take(&mut self.entries).into_iter().peekable();
        let mut theirs = other.entries.iter().copied().peekable();
        loop {
            let next = match (mine.peek(), theirs.peek()) {
                (None, None) => return,
                (Some(_), None) => mine.next(),
                (None, Some(_)) => theirs.next(),
                (Some(a), Some(b)) => match a.0.cmp(&b.0) {
                    Ordering::Less => mine.next(),
                    Ordering::Greater => theirs.next(),
                    Ordering::Equal => {
                        let count = a.1.max(b.1);
                        mine.next();
                        theirs.next().map(|(actor, _)| (actor, count))
                    }
                },
            };
            self.entries.extend(next);
        }
    }

    /// Whether everything that `other` has seen has been seen here.
    pub fn descends(&self, other: &Vector) -> bool {
        other.entries.iter().all(|&(actor, count)| self.count(actor) >= count)
    }

    /// Whether nothing has been seen.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn position(&self, actor: Actor) -> Result<usize, usize> {
        // Vectors are short; a scan beats a binary search, and most have one entry.
        for (position, (entry, _)) in self.entries.iter().enumerate() {
            match (*entry).cmp(&actor) {
                Ordering::Less => {}
                Ordering::Equal => return Ok(position),
                Ordering::Greater => return Err(position),
            }
        }
        Err(self.entries.len())
    }
}

impl PartialOrd for Vector {
    /// Causal order: `None` when neither has seen all that the other has.
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        match (self.descends(other), other.descends(self)) {
            (true, true) => Some(Ordering::Equal),
            (true, false) => Some(Ordering::Greater),
            (false, true) => Some(Ordering::Less),
            (false, false) => None,
        }
    }
}

/// What a get returns and the next put hands back: what the reader has seen. Opaque to applications.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Context {
    /// The events that the reader's answer covered.
    pub vector: Vector,
    /// The greatest timestamp among them, so that the next write's is greater.
    pub timestamp: Timestamp,
}

impl Context {
    /// Sees everything that `other` has seen.
    pub fn join(&mut self, other: &Context) {
        self.vector.join(&other.vector);
        self.timestamp = self.timestamp.max(other.timestamp);
    }
}
