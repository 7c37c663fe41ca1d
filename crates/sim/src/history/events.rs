//! Events that no client was told of, as nodes were seen to store them.
//!
//! A plain client hears no version, so only these name the events of its values, its deletions and its expiries.
//!
//! Must never: say what a client was told.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use bytes::Bytes;
use model::{Dot, Moment, Timestamp, Version, WallMillis};

use super::{Action, Operation};

/// Events that no client was told of.
#[derive(Clone, Debug, Default)]
pub struct Events {
    /// The event that each value is, and its timestamp. Each value of a run is written once.
    pub values: BTreeMap<Bytes, (Dot, Timestamp)>,
    /// Later events of values whose expiry was changed, in the order in which they were first stored.
    pub touches: Vec<Touch>,
    /// Deletions, in the order in which they were first stored.
    pub deletions: Vec<Deletion>,
    /// All events of each key in their order, and how long the values live that they wrote.
    pub lives: BTreeMap<(String, Bytes), BTreeMap<(Timestamp, Dot), ValueLife>>,
    /// When any node removed its own record of each key, or a hint of a deletion, in order. Only collection rounds remove
    /// records; a hint may also have been delivered.
    pub removals: BTreeMap<(String, Bytes), Vec<Moment>>,
}

/// An event that deleted a key.
#[derive(Clone, Debug, PartialEq)]
pub struct Deletion {
    /// The store.
    pub store: String,
    /// The key.
    pub key: Bytes,
    /// The event.
    pub dot: Dot,
    /// When it was stamped, by the clocks of nodes.
    pub timestamp: Timestamp,
    /// When it was first stored.
    pub at: Moment,
}

/// How long what an event wrote lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueLife {
    /// It was a deletion.
    Gone,
    /// For ever.
    Ever,
    /// Until then, by the clocks of nodes.
    Until(WallMillis),
}

/// A value that was written again, by the same key's EXPIRE, PERSIST or their kin: only its expiry is another.
#[derive(Clone, Debug, PartialEq)]
pub struct Touch {
    /// The store.
    pub store: String,
    /// The key.
    pub key: Bytes,
    /// The value, as it was.
    pub value: Bytes,
    /// The event.
    pub dot: Dot,
    /// When it was stamped, by the clocks of nodes.
    pub timestamp: Timestamp,
    /// Whether the value expires since.
    pub ends: bool,
    /// When it was first stored.
    pub at: Moment,
}

/// A key of a store.
pub(crate) type Place = (String, Bytes);

impl Events {
    /// What was seen of one key, by these operations.
    pub(crate) fn of_key(&self, store: &str, key: &Bytes, operations: &[Operation]) -> Events {
        let place = (store.to_owned(), key.clone());
        let values = operations.iter().filter_map(|operation| match &operation.action {
            Action::Put(value) => self.values.get_key_value(value),
            _ => None,
        });
        let touches = self.touches.iter().filter(|touch| (touch.store.as_str(), &touch.key) == (store, key));
        let deletions = self.deletions.iter().filter(|one| (one.store.as_str(), &one.key) == (store, key));
        Events {
            values: values.map(|(value, event)| (value.clone(), *event)).collect(),
            touches: touches.cloned().collect(),
            deletions: deletions.cloned().collect(),
            lives: self
                .lives
                .get_key_value(&place)
                .map(|(at, lives)| (at.clone(), lives.clone()))
                .into_iter()
                .collect(),
            removals: self
                .removals
                .get_key_value(&place)
                .map(|(at, all)| (at.clone(), all.clone()))
                .into_iter()
                .collect(),
        }
    }

    /// The first moment, not before `since`, at which a node removed its own record of the key, or a hint of its deletion.
    pub fn removed_after(&self, (store, key): (&str, &Bytes), since: Moment) -> Option<Moment> {
        let removals = self.removals.get(&(store.to_owned(), key.clone()))?;
        removals.get(removals.partition_point(|&moment| moment < since)).copied()
    }

    /// The only event that changed this key's expiry so and was first stored within this time.
    pub fn only_touch(
        &self,
        (store, key): (&str, &Bytes),
        ends: bool,
        within: RangeInclusive<Moment>,
    ) -> Option<(Dot, Timestamp)> {
        let mut found = self.touches.iter().filter(|touch| {
            (touch.store.as_str(), &touch.key, touch.ends) == (store, key, ends) && within.contains(&touch.at)
        });
        let only = found.next().filter(|_| found.next().is_none())?;
        Some((only.dot, only.timestamp))
    }

    /// The only event that deleted this key and was first stored within this time.
    pub fn only_deletion(
        &self,
        (store, key): (&str, &Bytes),
        within: RangeInclusive<Moment>,
    ) -> Option<(Dot, Timestamp)> {
        let mut found = self.deletions((store, key), within);
        let only = found.next().filter(|_| found.next().is_none())?;
        Some((only.dot, only.timestamp))
    }

    /// The events that deleted this key and were first stored within this time.
    pub fn deletions<'a>(
        &'a self,
        (store, key): (&'a str, &'a Bytes),
        within: RangeInclusive<Moment>,
    ) -> impl Iterator<Item = &'a Deletion> {
        let from = self.deletions.partition_point(|deletion| deletion.at < *within.start());
        let during = self.deletions[from..].iter().take_while(move |deletion| deletion.at <= *within.end());
        during.filter(move |deletion| (deletion.store.as_str(), &deletion.key) == (store, key))
    }

    /// An event that deletes a key is stored for the first time.
    pub(crate) fn deleted(&mut self, (store, key): &Place, version: &Version, at: Moment) {
        let (store, key) = (store.clone(), key.clone());
        self.deletions.push(Deletion { store, key, dot: version.dot, timestamp: version.timestamp, at });
    }

    /// An event of a key is stored, which writes what lives this long.
    pub(crate) fn lived(&mut self, place: &Place, version: &Version, life: ValueLife) {
        let event = (version.timestamp, version.dot);
        match self.lives.get_mut(place) {
            Some(lives) => lives.entry(event).or_insert(life),
            None => self.lives.entry(place.clone()).or_default().entry(event).or_insert(life),
        };
    }

    /// A value is stored again, by an event that changed its expiry.
    pub(crate) fn touched(&mut self, (store, key): &Place, value: &Bytes, version: &Version, at: Moment) {
        if self.touches.iter().any(|known| known.dot == version.dot) {
            return;
        }
        self.touches.push(Touch {
            store: store.clone(),
            key: key.clone(),
            value: value.clone(),
            dot: version.dot,
            timestamp: version.timestamp,
            ends: version.expires.is_some(),
            at,
        });
    }
}
