//! What replicas hold of each key whenever they look, and who has stored which event: seen at the engines' seam.
//!
//! Who says that a key is absent must have asked nodes that looked and found nothing. So each reading of a record is
//! written down, with whether something lived there.
//!
//! A node that has lost a live value with its disk holds nothing of the key and cannot know: until it has stored the key
//! again, what it looks at does not count as absent while another replica holds a live value.
//!
//! Must never: change what an engine does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use model::{Dot, Moment, NodeId, Value, VersionSet, WallMillis};

use crate::executor::WALL_START_MS;

/// By no clock of a run has what lives longer expired.
const CLOCKS_DIFFER_MS: u64 = 310_000;

/// A node read its own record of a key.
#[derive(Clone, Debug, PartialEq)]
pub struct Look {
    /// When.
    pub at: Moment,
    /// Which node.
    pub node: NodeId,
    /// What its record held.
    pub held: Option<Arc<VersionSet>>,
    /// Whether something lives in its record.
    pub lives: bool,
    /// Whether it cannot know: something lived there that was lost with its disk.
    pub lost: bool,
    /// Whether it read for somebody who asked. If not, it read because it was about to write.
    pub reads: bool,
}

/// A node stored an event for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// When.
    pub at: Moment,
    /// Which node.
    pub node: NodeId,
    /// For whom it parked it; `None` for its own record.
    pub hint_for: Option<NodeId>,
}

/// What was seen of one key.
#[derive(Clone, Debug, Default)]
pub struct KeyLooks {
    /// Each reading of a record, in order.
    pub looks: Vec<Look>,
    /// Who stored each event first as its own record, or parked it.
    pub stored: BTreeMap<Dot, Vec<Stored>>,
    /// From when on how many hints held something that lives.
    hinted: Vec<(Moment, usize)>,
    /// Whether something lives in the record of each node that has one.
    own: BTreeMap<NodeId, bool>,
    /// Nodes that lost something that lives.
    lost: BTreeSet<NodeId>,
    /// Hints, by their holders and targets, that hold something that lives.
    hints: BTreeSet<(NodeId, NodeId)>,
    /// All that hints held by then of which nothing lived, merged.
    dead_hints: Vec<(Moment, VersionSet)>,
    /// What each node's record was when it was last read, and what that held.
    read: BTreeMap<NodeId, (Option<Bytes>, Option<Arc<VersionSet>>)>,
}

/// What was seen of all keys of all stores.
#[derive(Clone, Debug, Default)]
pub struct Looks(BTreeMap<String, BTreeMap<Bytes, KeyLooks>>);

impl Looks {
    /// What was seen of a key.
    pub fn of(&self, store: &str, key: &Bytes) -> Option<&KeyLooks> {
        self.0.get(store)?.get(key)
    }

    /// What was seen of one key alone.
    pub fn only(&self, store: &str, key: &Bytes) -> Looks {
        let seen = self.of(store, key).cloned().unwrap_or_default();
        Looks(BTreeMap::from([(store.to_owned(), BTreeMap::from([(key.clone(), seen)]))]))
    }

    /// What was seen of a key, to be written down.
    pub fn of_mut(&mut self, store: &str, key: &Bytes) -> &mut KeyLooks {
        if !self.0.contains_key(store) {
            self.0.insert(store.to_owned(), BTreeMap::new());
        }
        let keys = self.0.get_mut(store).expect("it was just put there");
        if !keys.contains_key(key) {
            keys.insert(key.clone(), KeyLooks::default());
        }
        keys.get_mut(key).expect("it was just put there")
    }

    /// A node has lost all that it held.
    pub fn lost(&mut self, node: NodeId, now: Moment) {
        for key in self.0.values_mut().flat_map(BTreeMap::values_mut) {
            if key.own.remove(&node) == Some(true) {
                key.lost.insert(node);
            }
            key.hints.retain(|(holder, _)| *holder != node);
            key.note_hints(now);
        }
    }
}

impl KeyLooks {
    /// A node reads its record; `decode` says what a record holds, if it can be read.
    pub fn look(
        &mut self,
        node: NodeId,
        record: Option<&Bytes>,
        (reads, now): (bool, Moment),
        decode: impl FnOnce(&Bytes) -> Option<VersionSet>,
    ) {
        let held = match self.read.get(&node) {
            Some((before, held)) if before.as_ref() == record => held.clone(),
            _ => {
                let held = match record.map(decode) {
                    // What cannot be read says nothing.
                    Some(None) => return,
                    set => set.flatten().map(Arc::new),
                };
                self.read.insert(node, (record.cloned(), held.clone()));
                held
            }
        };
        let lives = held.as_ref().is_some_and(|set| lives(set, now));
        let others = || self.own.iter().any(|(other, lives)| *other != node && *lives);
        let lost = self.lost.contains(&node) && others();
        self.looks.push(Look { at: now, node, held, lives, lost, reads });
    }

    /// A node stores its own record, or removes it.
    pub fn store(&mut self, node: NodeId, set: Option<&VersionSet>, now: Moment) {
        self.lost.remove(&node);
        self.own.insert(node, set.is_some_and(|set| lives(set, now)));
        self.note_stored(node, None, set, now);
    }

    /// A node parks a hint, or drops one.
    pub fn park(&mut self, holder: NodeId, target: NodeId, set: Option<&VersionSet>, now: Moment) {
        match set.map(|set| lives(set, now)) {
            Some(true) => drop(self.hints.insert((holder, target))),
            dead => {
                self.hints.remove(&(holder, target));
                if let (Some(_), Some(set)) = (dead, set) {
                    let mut all = self.dead_hints.last().map(|(_, all)| all.clone()).unwrap_or_default();
                    if !all.includes(set) {
                        all.merge(set);
                        self.dead_hints.push((now, all));
                    }
                }
            }
        }
        self.note_hints(now);
        self.note_stored(holder, Some(target), set, now);
    }

    fn note_stored(&mut self, node: NodeId, hint_for: Option<NodeId>, set: Option<&VersionSet>, now: Moment) {
        for version in set.into_iter().flat_map(VersionSet::versions) {
            let stored = self.stored.entry(version.dot).or_default();
            if !stored.iter().any(|other| (other.node, other.hint_for) == (node, hint_for)) {
                stored.push(Stored { at: now, node, hint_for });
            }
        }
    }

    fn note_hints(&mut self, now: Moment) {
        let count = self.hints.len();
        if self.hinted.last().map_or(0, |(_, before)| *before) != count {
            self.hinted.push((now, count));
        }
    }

    /// The readings between two moments.
    pub fn between(&self, from: Moment, to: Moment) -> &[Look] {
        let first = self.looks.partition_point(|look| look.at < from);
        let end = self.looks.partition_point(|look| look.at <= to);
        &self.looks[first..end.max(first)]
    }

    /// What hints held by then of which nothing lived.
    pub fn dead_hints(&self, by: Moment) -> Option<&VersionSet> {
        let end = self.dead_hints.partition_point(|(at, _)| *at <= by);
        self.dead_hints[..end].last().map(|(_, all)| all)
    }

    /// Whether a hint held something that lives throughout.
    pub fn is_hinted(&self, from: Moment, to: Moment) -> bool {
        let first = self.hinted.partition_point(|(at, _)| *at <= from);
        let before = first.checked_sub(1).is_some_and(|before| self.hinted[before].1 > 0);
        before && self.hinted[first..].iter().take_while(|(at, _)| *at <= to).all(|(_, count)| *count > 0)
    }

    /// How many of these nodes had stored the event in their own records by then.
    pub fn stored_by(&self, dot: Dot, nodes: &[NodeId], by: Moment) -> usize {
        let stored = self.stored.get(&dot).into_iter().flatten();
        stored.filter(|one| one.hint_for.is_none() && one.at <= by && nodes.contains(&one.node)).count()
    }
}

/// Whether something in the set lives by every clock.
pub fn lives(set: &VersionSet, now: Moment) -> bool {
    let wall = WallMillis(WALL_START_MS + now.nanos / 1_000_000 + CLOCKS_DIFFER_MS);
    set.versions()
        .iter()
        .any(|version| version.value != Value::Tombstone && version.expires.is_none_or(|until| until > wall))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::examples::Story;

    const N: [NodeId; 2] = [NodeId(1), NodeId(2)];

    fn at(nanos: u64) -> Moment {
        Moment { nanos }
    }

    #[test]
    fn a_node_that_lost_a_live_value_has_not_found_the_key_absent_while_another_holds_it() {
        let set = Story::set(&[(Story::dot(1, 1), "a")], &[]);
        let (mut looks, key) = (Looks::default(), Bytes::from("k"));
        for node in N {
            looks.of_mut("s", &key).store(node, Some(&set), at(1));
        }
        looks.lost(N[0], at(2));
        looks.of_mut("s", &key).look(N[0], None, (true, at(3)), |_| None);
        looks.of_mut("s", &key).store(N[1], None, at(4));
        looks.of_mut("s", &key).look(N[0], None, (true, at(5)), |_| None);
        let seen = looks.of("s", &key).expect("it was seen");
        assert_eq!(seen.looks.iter().map(|look| look.lost).collect::<Vec<_>>(), [true, false]);
        assert_eq!(seen.between(at(4), at(5)), &seen.looks[1..]);
        assert_eq!(seen.stored_by(Story::dot(1, 1), &N, at(1)), 2);
        assert_eq!(seen.stored_by(Story::dot(1, 1), &N[1..], at(0)), 0);
    }

    #[test]
    fn a_hint_counts_from_when_it_is_parked_until_it_goes() {
        let set = Story::set(&[(Story::dot(1, 1), "a")], &[]);
        let mut key = KeyLooks::default();
        key.park(N[0], N[1], Some(&set), at(10));
        assert!(key.is_hinted(at(10), at(20)) && !key.is_hinted(at(9), at(20)));
        key.park(N[0], N[1], None, at(30));
        assert!(!key.is_hinted(at(10), at(30)) && key.is_hinted(at(10), at(29)));
    }
}
