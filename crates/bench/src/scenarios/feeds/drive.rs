//! Requests of one client for some seconds: as fast as it can, or this many a second; and what they cost.
//!
//! A closed loop shows what a cluster carries and what a key costs. Only an open loop shows delays that users would see: a
//! latency there is from when the request was due, not from when it left.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use client::{ClientError, PutOptions, StoreHandle};
use futures_util::future::join_all;
use hdrhistogram::Histogram;
use model::NodeId;
use wire::messages::RequestOptions;

use crate::driver::latencies;

use super::site::{Done, Site};

/// Reads by whose keys is counted how many nodes a read asks.
const READS_ROUTED: usize = 64;
/// Requests of an open loop that may be under way; one that is due beyond them counts as refused.
const UNDER_WAY_MAX: usize = 20_000;
/// How often the nodes say what they did.
const LOOK: Duration = Duration::from_secs(1);

/// What is asked.
pub(super) enum Ask {
    /// Entries that are there.
    Get(Vec<Bytes>),
    /// Entries to write.
    Put(Vec<(Bytes, Bytes)>),
}

/// Makes requests, and hears which have ended.
pub(super) trait Asks {
    /// The next one, and what [`Asks::ended`] is told of it.
    fn next(&self) -> (Ask, usize);
    /// One has ended, and was done or not.
    fn ended(&self, _which: usize, _is_done: bool) {}
}

impl<F: Fn() -> Ask> Asks for F {
    fn next(&self) -> (Ask, usize) {
        (self(), 0)
    }
}

/// How fast, and for how long.
#[derive(Clone, Copy, Debug)]
pub(super) struct FeedPace {
    /// Requests under way of a closed loop; an open one begins this many a second instead.
    pub(super) load: PaceLoad,
    /// Seconds that count.
    pub(super) seconds: f64,
    /// Seconds before them.
    pub(super) warm_up: f64,
}

/// By what requests are begun.
#[derive(Clone, Copy, Debug)]
pub(super) enum PaceLoad {
    /// This many are under way.
    Closed(usize),
    /// This many begin in a second.
    Open(f64),
}

/// What came of it.
#[derive(Clone, Debug)]
pub(super) struct RunMeasured {
    /// Seconds that were measured.
    pub(super) seconds: f64,
    /// Requests that were done.
    pub(super) requests: u64,
    /// Their keys.
    pub(super) keys: u64,
    /// Requests that failed, or were not begun because too many were under way.
    pub(super) refused: u64,
    /// Keys that should have been there.
    pub(super) missing: u64,
    /// From when a request was due to its answer.
    pub(super) latencies: Histogram<u64>,
    /// Processor time of all nodes.
    pub(super) ran: Duration,
    /// Requests that all nodes had, from clients and each other.
    pub(super) messages: f64,
    /// Nodes that a read asks on average, by the ring; none where nothing was read.
    pub(super) nodes_asked: Option<f64>,
    /// By the second, what the busiest node did over the mean: all operations, and writes that it stamped.
    pub(super) busiest: Option<f64>,
    /// The same of stamped writes alone.
    pub(super) busiest_stamped: Option<f64>,
}

impl RunMeasured {
    /// A percentile of latencies, in milliseconds.
    pub(super) fn at_ms(&self, quantile: f64) -> f64 {
        self.latencies.value_at_quantile(quantile) as f64 / 1e6
    }
}

/// What is counted while requests run.
struct Counts {
    counting: Cell<bool>,
    over: Cell<bool>,
    under_way: Cell<usize>,
    requests: Cell<u64>,
    keys: Cell<u64>,
    refused: Cell<u64>,
    missing: Cell<u64>,
    latencies: RefCell<Histogram<u64>>,
    read: RefCell<Vec<Vec<Bytes>>>,
}

/// Runs requests, and says what came of them.
pub(super) fn run(site: &Site, asks: Rc<dyn Asks>, pace: FeedPace) -> RunMeasured {
    let local = tokio::task::LocalSet::new();
    site.runtime.block_on(local.run_until(async {
        let counts = Rc::new(Counts {
            counting: Cell::new(false),
            over: Cell::new(false),
            under_way: Cell::new(0),
            requests: Cell::new(0),
            keys: Cell::new(0),
            refused: Cell::new(0),
            missing: Cell::new(0),
            latencies: RefCell::new(latencies()),
            read: RefCell::new(Vec::new()),
        });
        let load = {
            let (store, counts) = (site.store.clone(), counts.clone());
            tokio::task::spawn_local(async move {
                match pace.load {
                    PaceLoad::Closed(flights) => closed(store, asks, counts, flights).await,
                    PaceLoad::Open(rate) => open(store, asks, counts, rate).await,
                }
            })
        };
        tokio::time::sleep(Duration::from_secs_f64(pace.warm_up)).await;
        let (ran, messages) = (site.ran(), site.messages().await);
        let began = Instant::now();
        counts.counting.set(true);
        let until = began + Duration::from_secs_f64(pace.seconds);
        let looks = looks(site, until).await;
        counts.counting.set(false);
        let (seconds, ran_after) = (began.elapsed().as_secs_f64(), site.ran());
        counts.over.set(true);
        let messages_after = site.messages().await;
        // What is under way comes to its end, so that the next measurement begins with empty queues.
        load.await.expect("it does not panic");
        let read = std::mem::take(&mut *counts.read.borrow_mut());
        let asked: Vec<f64> = read.iter().map(|keys| site.nodes_asked(keys) as f64).collect();
        let latencies = counts.latencies.borrow().clone();
        RunMeasured {
            seconds,
            requests: counts.requests.get(),
            keys: counts.keys.get(),
            refused: counts.refused.get(),
            missing: counts.missing.get(),
            latencies,
            ran: ran_after.saturating_sub(ran),
            messages: (messages_after - messages - site.own_messages(looks.len() + 1, seconds)).max(0.0),
            nodes_asked: mean(&asked),
            busiest: busiest(&looks, |done| &done.operations),
            busiest_stamped: busiest(&looks, |done| &done.stamped),
        }
    }))
}

/// What the nodes say, each second until then.
async fn looks(site: &Site, until: Instant) -> Vec<Done> {
    let mut looks = vec![site.done().await];
    while Instant::now() < until {
        let pause = LOOK.min(until.saturating_duration_since(Instant::now()));
        tokio::time::sleep(pause).await;
        looks.push(site.done().await);
    }
    looks
}

async fn closed(store: StoreHandle, asks: Rc<dyn Asks>, counts: Rc<Counts>, flights: usize) {
    let each = (0..flights).map(|_| async {
        while !counts.over.get() {
            one(&store, &*asks, &counts, Instant::now()).await;
        }
    });
    join_all(each).await;
}

async fn open(store: StoreHandle, asks: Rc<dyn Asks>, counts: Rc<Counts>, rate: f64) {
    let (began, mut due) = (Instant::now(), 0_u64);
    while !counts.over.get() {
        // All that are due by now, each from its own moment.
        while due as f64 / rate <= began.elapsed().as_secs_f64() && !counts.over.get() {
            let at = began + Duration::from_secs_f64(due as f64 / rate);
            due += 1;
            if counts.under_way.get() >= UNDER_WAY_MAX {
                count(&counts.refused, &counts, 1);
                continue;
            }
            let (store, asks, counts) = (store.clone(), asks.clone(), counts.clone());
            tokio::task::spawn_local(async move { one(&store, &*asks, &counts, at).await });
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    while counts.under_way.get() > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn count(cell: &Cell<u64>, counts: &Counts, more: u64) {
    if counts.counting.get() {
        cell.set(cell.get() + more);
    }
}

/// One request. It counts where it was due while others were counted, or ended then.
async fn one(store: &StoreHandle, asks: &dyn Asks, counts: &Counts, due: Instant) {
    let (ask, which) = asks.next();
    counts.under_way.set(counts.under_way.get() + 1);
    let was_counted = counts.counting.get();
    let keys = match &ask {
        Ask::Get(keys) => keys.len(),
        Ask::Put(entries) => entries.len(),
    };
    let read = match &ask {
        Ask::Get(keys) if was_counted && counts.read.borrow().len() < READS_ROUTED => Some(keys.clone()),
        _ => None,
    };
    counts.read.borrow_mut().extend(read);
    let outcome = carry_out(store, ask).await;
    asks.ended(which, outcome.is_ok());
    counts.under_way.set(counts.under_way.get() - 1);
    if counts.counting.get() || was_counted {
        let took = u64::try_from(due.elapsed().as_nanos()).unwrap_or(u64::MAX);
        counts.latencies.borrow_mut().saturating_record(took);
    }
    match outcome {
        Ok(missing) => {
            count(&counts.requests, counts, 1);
            count(&counts.keys, counts, keys as u64);
            count(&counts.missing, counts, missing);
        }
        Err(_) => count(&counts.refused, counts, 1),
    }
}

/// Carries a request out: one of a single key as such. Says how many keys were not there.
async fn carry_out(store: &StoreHandle, ask: Ask) -> Result<u64, ClientError> {
    let options = RequestOptions::default();
    match ask {
        Ask::Get(mut keys) if keys.len() == 1 => {
            let found = store.get(keys.remove(0)).await?;
            Ok(u64::from(found.value().is_none()))
        }
        Ask::Put(mut entries) if entries.len() == 1 => {
            let (key, value) = entries.remove(0);
            store.put(key, value, PutOptions::default()).await.map(|_| 0)
        }
        Ask::Get(keys) => {
            let mut missing = 0;
            // A request has 10,000 keys at most: more are several, one after another.
            for part in keys.chunks(model::limits::MULTI_KEYS_MAX) {
                for found in store.multi_get(part.iter().cloned(), &options).await? {
                    missing += u64::from(found?.value().is_none());
                }
            }
            Ok(missing)
        }
        Ask::Put(entries) => {
            for part in entries.chunks(model::limits::MULTI_KEYS_MAX) {
                let written = store.multi_put(part.iter().cloned(), &options).await?;
                written.into_iter().collect::<Result<Vec<_>, _>>()?;
            }
            Ok(0)
        }
    }
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// What the busiest node did over the mean, on average over the seconds in which all said something.
fn busiest(looks: &[Done], of: fn(&Done) -> &std::collections::BTreeMap<NodeId, u64>) -> Option<f64> {
    let ratios = looks.windows(2).filter_map(|pair| {
        let (before, after) = (of(&pair[0]), of(&pair[1]));
        let nodes: BTreeSet<&NodeId> = before.keys().filter(|node| after.contains_key(node)).collect();
        if nodes.len() != after.len() || nodes.len() != before.len() || nodes.is_empty() {
            return None;
        }
        let grew: Vec<u64> = nodes.iter().map(|node| after[node].saturating_sub(before[node])).collect();
        let (most, sum) = (grew.iter().max()?, grew.iter().sum::<u64>());
        (sum > 0).then(|| *most as f64 * grew.len() as f64 / sum as f64)
    });
    mean(&ratios.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(operations: &[u64]) -> Done {
        let nodes = (1..).map(NodeId).zip(operations.iter().copied());
        Done { operations: nodes.collect(), ..Done::default() }
    }

    #[test]
    fn the_busiest_is_compared_with_the_mean_of_each_second() {
        let over = |looks: &[Done]| busiest(looks, |done| &done.operations);
        assert_eq!(over(&[done(&[0, 0]), done(&[30, 10])]), Some(1.5));
        assert_eq!(over(&[done(&[0, 0]), done(&[30, 10]), done(&[40, 40])]), Some(1.5));
        assert_eq!(over(&[done(&[0, 0]), done(&[0, 0])]), None, "nothing was done");
        assert_eq!(over(&[done(&[0, 0]), done(&[30])]), None, "one said nothing");
    }
}
