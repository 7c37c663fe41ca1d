//! A thousand feeds, some read and written much more than others: nine reads of the twenty newest for each append.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bytes::Bytes;

use crate::generators::rng::Rng;
use crate::generators::zipfian::{THETA, Zipfian};
use crate::scenarios::ScenarioError;
use crate::scenarios::balance::interrupt::Interrupt;

use super::drive::{Ask, Asks};
use super::rows::Row;
use super::site::{Site, key};
use super::{FeedsScenario, LINES, NUMBERS};

/// Nodes.
const NODES: usize = 4;
/// Feeds.
const GROUPS: u64 = 1_000;
/// The newest that a feed shows.
const NEWEST: u64 = 20;
/// Entries of each feed before: not all at the same place of their windows.
const LOADED: std::ops::Range<u64> = 40..140;
/// Of this many requests one appends.
const ONE_APPENDS_OF: u64 = 10;

/// Feeds, each with how many entries it has, and whether one is on its way.
struct Feeds {
    rng: RefCell<Rng>,
    popular: RefCell<Zipfian>,
    entries: Vec<Cell<u64>>,
    appending: Vec<Cell<bool>>,
    value: Bytes,
}

impl Feeds {
    fn new(entries: &[u64], value: Bytes) -> Feeds {
        Feeds {
            rng: RefCell::new(Rng::from_seed(11)),
            popular: RefCell::new(Zipfian::new(0, GROUPS - 1, THETA)),
            entries: entries.iter().map(|count| Cell::new(*count)).collect(),
            appending: entries.iter().map(|_| Cell::new(false)).collect(),
            value,
        }
    }
}

impl Asks for Feeds {
    fn next(&self) -> (Ask, usize) {
        let group = self.popular.borrow_mut().next(&mut self.rng.borrow_mut()) as usize;
        let (name, count) = (name(group as u64), self.entries[group].get());
        // A feed has one writer: a number is given when the one before is there.
        if self.rng.borrow_mut().below(ONE_APPENDS_OF) == 0 && !self.appending[group].replace(true) {
            return (Ask::Put(vec![(key(&name, count), self.value.clone())]), group + 1);
        }
        (Ask::Get((count - NEWEST..count).map(|number| key(&name, number)).collect()), 0)
    }

    fn ended(&self, which: usize, is_done: bool) {
        if let Some(group) = which.checked_sub(1) {
            // A number whose put failed is given again.
            self.entries[group].set(self.entries[group].get() + u64::from(is_done));
            self.appending[group].set(false);
        }
    }
}

/// A feed's name.
fn name(group: u64) -> String {
    format!("g{group}")
}

impl FeedsScenario {
    /// Reads and appends of Zipfian groups, by each placement.
    pub(super) fn groups(&self, interrupt: &Interrupt) -> Result<Vec<Row>, ScenarioError> {
        let value = Bytes::from(vec![b'v'; 100]);
        let mut rng = Rng::from_seed(3);
        let entries: Vec<u64> =
            (0..GROUPS).map(|_| LOADED.start + rng.below(LOADED.end - LOADED.start)).collect();
        let mut rows = Vec::new();
        for numbers in NUMBERS {
            for line in LINES {
                interrupt.check()?;
                self.say(&format!("{NODES} nodes, {}, {}: {GROUPS} groups", numbers.name, line.name));
                let site = Site::start(&self.tontine, interrupt, (NODES, numbers), line)?;
                for (group, count) in entries.iter().enumerate() {
                    site.load(&name(group as u64), *count, &value)?;
                }
                let measured = self.closed(&site, Rc::new(Feeds::new(&entries, value.clone())));
                let busiest = measured.busiest;
                let row = Row::new(numbers, line, "newest 20, 10 % appends".to_owned(), measured);
                rows.push(Row { busiest, ..row });
            }
        }
        Ok(rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_read_only_when_its_entry_is_there() {
        let feeds = Feeds::new(&[100; GROUPS as usize], Bytes::new());
        let mut on_its_way = Vec::new();
        for _ in 0..1000 {
            match feeds.next() {
                (Ask::Put(entries), which) => {
                    assert_eq!(entries[0].0, key(&name(which as u64 - 1), 100), "one at a time");
                    on_its_way.push(which);
                }
                (Ask::Get(keys), which) => {
                    assert_eq!((keys.len(), which), (20, 0));
                    assert!(keys[19].ends_with(b":99"), "{:?}", keys[19]);
                }
            }
        }
        assert!(!on_its_way.is_empty());
        feeds.ended(on_its_way[0], false);
        assert_eq!(feeds.entries[on_its_way[0] - 1].get(), 100, "it is not there");
        feeds.ended(on_its_way[0], true);
        assert_eq!(feeds.entries[on_its_way[0] - 1].get(), 101);
    }
}
