//! The paper's experiments 1 to 5.

use std::cell::Cell;
use std::rc::Rc;

use bytes::Bytes;

use crate::generators::rng::Rng;
use crate::scenarios::ScenarioError;
use crate::scenarios::balance::interrupt::Interrupt;

use super::drive::{Ask, Asks, FeedPace, PaceLoad, RunMeasured, run};
use super::rows::Row;
use super::site::{Site, key};
use super::{FeedsScenario, LINES, Line, NUMBERS, QuorumNumbers};

/// Measures a cluster with one placement, and adds rows.
type Measure<'a> = &'a mut dyn FnMut(&Site, &mut Vec<Row>, (QuorumNumbers, Line));

/// The one feed.
const GROUP: &str = "a";
/// Seconds that do not count before each measurement, as a share of it.
const WARM_UP: f64 = 0.2;
/// Bytes of values that are loaded at most.
const BYTES_MAX: u64 = 128 << 20;
/// Keys of the requests of experiment 2.
const TEN: u64 = 10;

/// How large requests and their pairs are, and how many entries there are.
pub(super) struct Sizes {
    value_bytes: usize,
    nodes: usize,
    keys: u64,
    items: &'static [u64],
}

impl Sizes {
    /// Experiment 1.
    pub(super) fn small(quick: bool) -> Sizes {
        let (keys, items): (_, &[u64]) = match quick {
            true => (40_000, &[1, 20, 200, 2_000]),
            false => (2_600_000, &[1, 10, 20, 100, 200, 1_000, 2_000, 10_000, 20_000]),
        };
        Sizes { value_bytes: 10, nodes: 3, keys, items }
    }

    /// Experiment 3. The paper's 400,000 are loaded with --keys 400000.
    pub(super) fn kilobyte(quick: bool) -> Sizes {
        let (keys, items): (_, &[u64]) = match quick {
            true => (10_000, &[1, 20, 200, 2_000]),
            false => (100_000, &[1, 10, 20, 100, 200, 1_000, 2_000, 10_000, 20_000]),
        };
        Sizes { value_bytes: 1024, nodes: 1, keys, items }
    }
}

/// Reads runs of entries that follow each other by `gap`, each from a random place on.
fn reads(keys: u64, items: u64, gap: u64) -> Rc<dyn Asks> {
    let rng = std::cell::RefCell::new(Rng::from_seed(7));
    let places = keys.saturating_sub((items - 1) * gap).max(1);
    Rc::new(move || {
        let first = rng.borrow_mut().below(places);
        Ask::Get((0..items).map(|item| key(GROUP, (first + item * gap) % keys)).collect())
    })
}

/// Appends entries behind those that are there: with one active node, it gets all of them.
fn appends(newest: Rc<Cell<u64>>, items: u64, value: Bytes) -> Rc<dyn Asks> {
    Rc::new(move || {
        let first = newest.get();
        newest.set(first + items);
        Ask::Put((first..first + items).map(|number| (key(GROUP, number), value.clone())).collect())
    })
}

impl FeedsScenario {
    /// Experiments 1 and 3: requests of one key to many.
    pub(super) fn items(&self, interrupt: &Interrupt, sizes: Sizes) -> Result<Vec<Row>, ScenarioError> {
        let keys = self.keys.unwrap_or(sizes.keys);
        let value = Bytes::from(vec![b'v'; sizes.value_bytes]);
        self.each_site(interrupt, sizes.nodes, keys, &value, &mut |site, rows, (numbers, line)| {
            let newest = Rc::new(Cell::new(keys));
            for &items in sizes.items.iter().filter(|items| **items <= keys) {
                let read = self.closed(site, reads(keys, items, 1));
                rows.push(Row::new(numbers, line, format!("get of {items}"), read));
                let written = self.closed(site, appends(newest.clone(), items, value.clone()));
                rows.push(Row::new(numbers, line, format!("put of {items}"), written));
            }
        })
    }

    /// Experiment 2: ten pairs of growing size, singly and together, on one node.
    pub(super) fn values(&self, interrupt: &Interrupt) -> Result<Vec<Row>, ScenarioError> {
        let kibibytes: &[u64] = if self.quick { &[1, 100, 1_024] } else { &[1, 10, 50, 100, 500, 1_024] };
        let mut rows = Vec::new();
        for &size in kibibytes {
            let most = if self.quick { BYTES_MAX / 8 } else { BYTES_MAX };
            let keys = self.keys.unwrap_or(100_000).min(most / (size * 1024)).max(TEN);
            let value = Bytes::from(vec![b'v'; size as usize * 1024]);
            rows.extend(self.each_site(interrupt, 1, keys, &value, &mut |site, rows, (numbers, line)| {
                for items in [1, TEN] {
                    let read = self.closed(site, reads(keys, items, 1));
                    rows.push(Row::new(numbers, line, format!("get of {items} x {size} KiB"), read));
                    // What is there is written again: appended, large values would fill the memory.
                    let newest = Rc::new(Cell::new(0));
                    let (counter, value) = (newest.clone(), value.clone());
                    let written = self.closed(
                        site,
                        Rc::new(move || {
                            let first = counter.get();
                            counter.set(first + items);
                            let entries = (first..first + items).map(|number| number % keys);
                            Ask::Put(entries.map(|number| (key(GROUP, number), value.clone())).collect())
                        }),
                    );
                    rows.push(Row::new(numbers, line, format!("put of {items} x {size} KiB"), written));
                }
            })?);
        }
        Ok(rows)
    }

    /// Experiment 4: one node, four and sixteen.
    pub(super) fn nodes(&self, interrupt: &Interrupt) -> Result<Vec<Row>, ScenarioError> {
        let keys = self.keys.unwrap_or(if self.quick { 20_000 } else { 1_100_000 });
        let value = Bytes::from_static(b"0123456789");
        let mut rows = Vec::new();
        for nodes in [1, 4, 16] {
            rows.extend(self.each_site(
                interrupt,
                nodes,
                keys,
                &value,
                &mut |site, rows, (numbers, line)| {
                    for items in [1, 100] {
                        let read = self.closed(site, reads(keys, items, 1));
                        let nodes = site.cluster().nodes.len();
                        rows.push(Row::new(numbers, line, format!("get of {items}, {nodes} nodes"), read));
                    }
                },
            )?);
        }
        Ok(rows)
    }

    /// Experiment 5: ten keys with gaps between them.
    pub(super) fn gaps(&self, interrupt: &Interrupt) -> Result<Vec<Row>, ScenarioError> {
        let gaps: &[u64] = match self.quick {
            true => &[1, 10, 1_000, 10_000],
            false => &[1, 2, 3, 10, 50, 100, 1_000, 5_000, 10_000, 20_000, 50_000],
        };
        let keys = self.keys.unwrap_or(if self.quick { 200_000 } else { 2_000_000 });
        let value = Bytes::from_static(b"0123456789");
        self.each_site(interrupt, 4, keys, &value, &mut |site, rows, (numbers, line)| {
            for &gap in gaps.iter().filter(|gap| (TEN - 1) * **gap < keys) {
                let read = self.closed(site, reads(keys, TEN, gap));
                rows.push(Row::new(numbers, line, format!("get of 10, gap {gap}"), read));
            }
            let single = self.closed(site, reads(keys, 1, 1));
            rows.push(Row::new(numbers, line, "get of 1".to_owned(), single));
        })
    }

    /// A cluster with this many entries for N=1 and N=3, and each placement. Where there are too few nodes for three replicas,
    /// there are three.
    fn each_site(
        &self,
        interrupt: &Interrupt,
        nodes: usize,
        keys: u64,
        value: &Bytes,
        measure: Measure<'_>,
    ) -> Result<Vec<Row>, ScenarioError> {
        let mut rows = Vec::new();
        for numbers in NUMBERS {
            for line in LINES {
                interrupt.check()?;
                let nodes = nodes.max(numbers.replicas);
                self.say(&format!("{nodes} nodes, {}, {}: {keys} entries", numbers.name, line.name));
                let site = Site::start(&self.tontine, interrupt, (nodes, numbers), line)?;
                site.load(GROUP, keys, value)?;
                measure(&site, &mut rows, (numbers, line));
            }
        }
        Ok(rows)
    }

    /// As fast as one client can.
    pub(super) fn closed(&self, site: &Site, asks: Rc<dyn Asks>) -> RunMeasured {
        let seconds = self.seconds();
        let pace =
            FeedPace { load: PaceLoad::Closed(self.connections.max(1)), seconds, warm_up: seconds * WARM_UP };
        run(site, asks, pace)
    }
}
