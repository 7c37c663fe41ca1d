//! What θ does to puts: one feed, four bounded nodes, θ from 1 to 100,000, and by hash.
//!
//! First a closed loop says what the nodes carry by hash. Then each placement gets a part of that as an open loop: at the same
//! rate, delays can be compared. A cluster whose nodes are not bounded shows nothing: its nodes share one machine.

use std::cell::Cell;
use std::rc::Rc;

use bytes::Bytes;

use crate::scenarios::ScenarioError;
use crate::scenarios::balance::interrupt::Interrupt;

use super::drive::{Ask, Asks, FeedPace, PaceLoad, run};
use super::rows::Row;
use super::site::{Site, key};
use super::{FeedsScenario, Line, NUMBERS};

/// Nodes.
const NODES: usize = 4;
/// The open loop's rate, as a share of what hash carries.
const LOADED: f64 = 0.6;
/// Requests under way in the closed loop: enough for all nodes.
const FLIGHTS: usize = 256;
/// Reads of the twenty newest by which is counted how many nodes they ask.
const READS_ROUTED: u64 = 256;
/// The newest that a feed shows.
const NEWEST: u64 = 20;
/// Entries that are there before.
const LOADED_FIRST: u64 = 1_000;
/// How much longer the open loop is measured.
const OPEN_LONGER: f64 = 2.0;
/// Windows that it is measured for: delays repeat from one to the next.
const WINDOWS: f64 = 3.0;
/// Seconds for which that is borne, and with --quick. Where windows take longer, delays are said to be the least.
const OPEN_S_MAX: (f64, f64) = (60.0, 3.0);

/// All placements: by hash first, whose rate the others get.
const THETAS: [Option<u64>; 11] = [
    None,
    Some(1),
    Some(5),
    Some(20),
    Some(64),
    Some(200),
    Some(1_000),
    Some(5_000),
    Some(10_000),
    Some(50_000),
    Some(100_000),
];
const THETAS_QUICK: [Option<u64>; 5] = [None, Some(1), Some(64), Some(1_000), Some(100_000)];

impl FeedsScenario {
    /// The greatest rate of puts, their delays at one rate, the busiest node, and the nodes that the newest twenty ask.
    pub(super) fn theta(&self, interrupt: &Interrupt) -> Result<Vec<Row>, ScenarioError> {
        let mut rows = Vec::new();
        let thetas = if self.quick { &THETAS_QUICK[..] } else { &THETAS[..] };
        for numbers in NUMBERS {
            let mut rate = 0.0;
            for &theta in thetas {
                interrupt.check()?;
                let name = theta.map_or("hash".to_owned(), |theta| format!("theta {theta}"));
                self.say(&format!("{NODES} nodes, {}, {name}", numbers.name));
                let line = Line { name: "", theta };
                let site = Site::start(&self.tontine, interrupt, (NODES, numbers), line)?;
                let value = Bytes::from_static(b"0123456789");
                site.load("a", LOADED_FIRST, &value)?;
                site.bound(self.cap)?;
                let newest = Rc::new(Cell::new(LOADED_FIRST));
                let asks = appends(&newest, value);
                let seconds = self.seconds();
                let pace = |load, seconds: f64| FeedPace {
                    load,
                    seconds,
                    warm_up: if self.quick { 0.3 } else { 2.0 },
                };
                let greatest = run(&site, asks.clone(), pace(PaceLoad::Closed(FLIGHTS), seconds));
                if theta.is_none() {
                    rate = (greatest.requests as f64 / greatest.seconds * LOADED).max(1.0);
                }
                let wanted = WINDOWS * theta.unwrap_or(0) as f64 / rate;
                let most = if self.quick { OPEN_S_MAX.1 } else { OPEN_S_MAX.0 };
                let lasts = (seconds * OPEN_LONGER).max(wanted.min(most));
                let open = run(&site, asks, pace(PaceLoad::Open(rate), lasts));
                let least = if wanted > lasts { ", delays at least" } else { "" };
                let asked = newest_asked(&site, newest.get());
                for (ask, measured) in
                    [("put, greatest rate".to_owned(), greatest), (format!("put, {rate:.0}/s{least}"), open)]
                {
                    let busiest = measured.busiest_stamped;
                    let row = Row::new(numbers, line, ask, measured);
                    rows.push(Row { line: name.clone(), busiest, newest: Some(asked), ..row });
                }
            }
        }
        Ok(rows)
    }
}

/// One entry after another, behind those that are there.
fn appends(newest: &Rc<Cell<u64>>, value: Bytes) -> Rc<dyn Asks> {
    let newest = newest.clone();
    Rc::new(move || {
        let number = newest.get();
        newest.set(number + 1);
        Ask::Put(vec![(key("a", number), value.clone())])
    })
}

/// Nodes that a read of the twenty newest asks on average, over all moments at which it may come.
fn newest_asked(site: &Site, newest: u64) -> f64 {
    let step = ((newest - NEWEST) / READS_ROUTED).max(1);
    let moments: Vec<u64> = (NEWEST..newest).step_by(step as usize).collect();
    let asked = moments.iter().map(|end| {
        let keys: Vec<Bytes> = (end - NEWEST..*end).map(|number| key("a", number)).collect();
        site.nodes_asked(&keys) as f64
    });
    asked.sum::<f64>() / moments.len().max(1) as f64
}
