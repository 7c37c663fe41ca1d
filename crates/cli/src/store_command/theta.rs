//! Between which bounds θ lies, from what nodes measured: pure arithmetic.
//!
//! ```text
//!   lower bound   keys of a typical read: a window that is smaller makes it ask more nodes
//!   upper bound   puts that one node serves within the delay that users accept: while a window is open, its node gets
//!                 all of them. It counts where puts come near what one node serves: one that keeps up delays nothing
//! ```
//!
//! The verdict is by the very numbers that are shown, and speaks against θ of a store only by a clear margin: another θ
//! is another store, and all keys copied.
//!
//! Must never: make up a figure. What too little was measured for is [`None`], and the words say so.

use model::placement::THETA_MAX;
use model::{Cluster, NodeId, Store};
use protocol::rebalance::balancer::Weights;
use protocol::report::{KeyCounts, LoadReport, StoreDemand, WorkDone};

/// Of fewer reads nobody can tell what is typical.
const READS_MIN: f64 = 20.0;
/// Of fewer keys that a node served between the looks nobody can tell what one costs.
const OPERATIONS_MIN: u64 = 500;
/// What θ is best where both bounds allow it (`docs/design/placement.md`).
const THETA_BEST: u64 = 64;
/// A request for more keys is no read of a feed: pages of a wide range, exports and batches. Half a page of a range.
pub(super) const READ_KEYS_MAX: u64 = 500;
const _: () = assert!(READ_KEYS_MAX < client::RANGE_PAGE_MAX);
/// Where so large a share of reads are messages for whole windows, reads are larger than windows: reads of two windows
/// lie in three on average, and fill one of these.
const FILLED_MIN: f64 = 1.0 / 3.0;
/// A bound counts against θ when it is missed by more than this factor.
pub(super) const MARGIN: f64 = 1.5;
/// From this share of what one node serves on, puts come near it, and the upper bound counts: they come unevenly.
const NEAR_SHARE: f64 = 0.5;
/// By what factor windows must have a read ask fewer nodes to be worth it.
const GAIN_MIN: f64 = 1.5;

/// How large the reads of several keys are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Reads {
    /// How many there were, as far as that can be known.
    pub(super) count: f64,
    /// How many of them are guessed from messages.
    pub(super) guessed: f64,
    /// This many keys, or fewer, half of them ask for.
    pub(super) median: u64,
    /// The same of nine in ten.
    pub(super) most: u64,
    /// Whether a window cuts typical reads, so that they may be larger.
    pub(super) is_cut: bool,
    /// Requests for more than [`READ_KEYS_MAX`] keys, about, which count as no reads.
    pub(super) wide: f64,
}

impl Reads {
    /// Of what all nodes counted; `None` where that is too little.
    ///
    /// A read that a node drove is known whole. Of one that a client drove, each node knows its part: of windows the whole
    /// window, asked of R nodes; by hash R keys of n. A part of more than one window is of a read that has windows at the
    /// other nodes, too, so it tells a wide request.
    pub(super) fn of(store: &Store, nodes: usize, demand: &[&StoreDemand]) -> Option<Reads> {
        let (replies, nodes) = (f64::from(store.consistency.reads_required), nodes.max(1) as f64);
        let theta = store.placement.windows().map(|windows| windows.theta);
        let spread = (nodes / replies).max(1.0);
        let (keys_each, reads_each) =
            if theta.is_some() { (1.0, 1.0 / replies) } else { (spread, 1.0 / nodes) };
        let mut sizes: Vec<(u64, f64)> = Vec::new();
        let (mut whole, mut filled, mut wide) = (0.0, 0.0, 0.0);
        let each = |of: fn(&StoreDemand) -> &KeyCounts| demand.iter().flat_map(move |demand| of(demand));
        for &(keys, count) in each(|demand| &demand.reads_whole) {
            if u64::from(keys) > READ_KEYS_MAX {
                wide += count as f64;
                continue;
            }
            sizes.push((keys.into(), count as f64));
            whole += count as f64;
        }
        for &(keys, count) in each(|demand| &demand.reads_in_parts) {
            let in_one_window = theta.is_some_and(|theta| u64::from(keys) <= theta);
            let asked = f64::from(keys) * if in_one_window { 1.0 } else { spread };
            if asked > READ_KEYS_MAX as f64 {
                wide += count as f64 / nodes;
                continue;
            }
            let reads = count as f64 * reads_each;
            sizes.push(((f64::from(keys) * keys_each).round() as u64, reads));
            // Large numbers of keys lose a sixteenth.
            filled += theta.filter(|theta| u64::from(keys) >= theta - theta / 16).map_or(0.0, |_| reads);
        }
        sizes.sort_by_key(|(keys, _)| *keys);
        let all: f64 = sizes.iter().map(|(_, count)| count).sum();
        if all < READS_MIN {
            return None;
        }
        let at = |share: f64| {
            let mut seen = 0.0;
            let found = sizes.iter().find(|(_, count)| {
                seen += count;
                seen >= share * all
            });
            found.map_or(0, |(keys, _)| *keys)
        };
        let cut = theta.filter(|_| filled > all * FILLED_MIN);
        // Of reads that windows cut, it is known that they are no smaller than these.
        let median = at(0.5).max(cut.unwrap_or(0));
        let most = at(0.9).max(median);
        Some(Reads { count: all, guessed: all - whole, median, most, is_cut: cut.is_some(), wide })
    }
}

/// What one node can carry.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Serves {
    /// Which.
    pub(super) node: NodeId,
    /// Puts in a second, beside what it reads now.
    pub(super) puts_per_second: f64,
    /// Microseconds of a processor that a put takes.
    pub(super) put_us: f64,
    /// Processors that it could use.
    pub(super) processors: f64,
}

impl Serves {
    /// Of what a node said at two looks; `None` where it served too little in between, or nobody counts its time.
    ///
    /// A put costs the first replica of its key a stamp and the driving of the others. What kinds of work cost beside each
    /// other was measured once; what they cost here follows from the time that the node's workers ran.
    pub(super) fn of(node: NodeId, before: &LoadReport, after: &LoadReport) -> Option<Serves> {
        let weights = Weights::MEASURED;
        let span_us = after.uptime_ms.checked_sub(before.uptime_ms).filter(|ms| *ms > 0)? as f64 * 1000.0;
        let grew = |of: fn(&LoadReport) -> Option<u64>| of(after)?.checked_sub(of(before)?);
        let (ran, waited) = (grew(|load| load.ran_us)? as f64, grew(|load| load.waited_us)? as f64);
        let work = after.work().since(before.work());
        let gets = after.coordinated_gets.saturating_sub(before.coordinated_gets);
        let puts = after.coordinated_puts.saturating_sub(before.coordinated_puts);
        if work.operations() + gets + puts < OPERATIONS_MIN || ran <= 0.0 {
            return None;
        }
        let reading = weights.of(WorkDone { puts: 0, stamped: 0, ..work }) + weights.of_coordinated(gets, 0);
        let all = weights.of(work) + weights.of_coordinated(gets, puts);
        // What one weighs costs so much here.
        let scale = ran / all;
        let put_us = (weights.stamped + weights.coordinated_put) * scale;
        let free = (f64::from(after.workers) - waited / span_us).max(ran / span_us);
        let processors = free.min(after.processors).max(0.01);
        let left = (processors - reading * scale / span_us).max(0.0);
        Some(Serves { node, puts_per_second: left * 1e6 / put_us, put_us, processors })
    }

    /// Puts that it serves within this many milliseconds: the largest θ.
    pub(super) fn theta(&self, delay_ms: u64) -> u64 {
        (self.puts_per_second * delay_ms as f64 / 1000.0) as u64
    }

    /// How long a put waits at most while so large a window is open, in milliseconds, once puts outgrow the node.
    pub(super) fn delay_ms(&self, theta: u64) -> f64 {
        theta as f64 * 1000.0 / self.puts_per_second.max(0.001)
    }

    /// Whether this many puts come near what it serves.
    pub(super) fn is_neared_by(&self, puts_per_second: f64) -> bool {
        puts_per_second >= self.puts_per_second * NEAR_SHARE
    }
}

/// Both bounds, as they are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bounds {
    /// Keys of a typical read.
    pub(super) lower: u64,
    /// They may be more, because windows cut them.
    pub(super) is_cut: bool,
    /// What one node serves within the delay.
    pub(super) upper: u64,
    /// Puts come near what one node serves, so that the upper bound counts.
    pub(super) binds: bool,
}

/// Whether the first is larger than the second by a clear margin.
fn is_clear(larger: u64, smaller: u64) -> bool {
    larger as f64 > smaller as f64 * MARGIN
}

/// What is advised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// A bound is not known.
    Unknown,
    /// The bounds cross by a clear margin.
    NoneFits,
    /// The store's own θ misses neither bound that counts.
    Fits,
    /// It misses one by little, or nobody knows by how much: it is good enough.
    Near,
    /// The store's θ is below the lower bound by a clear margin; this one would do.
    TooSmall(u64),
    /// The store's θ is above the upper bound by a clear margin; this one would do.
    TooLarge(u64),
    /// A store by hash would gain by windows of this θ.
    Pays(u64),
    /// A store by hash would gain little by them.
    PaysLittle(u64),
}

impl Verdict {
    /// Its name for programs.
    pub(super) fn name(self) -> &'static str {
        match self {
            Verdict::Unknown => "unknown",
            Verdict::NoneFits => "none-fits",
            Verdict::Fits => "fits",
            Verdict::Near => "near",
            Verdict::TooSmall(_) => "too-small",
            Verdict::TooLarge(_) => "too-large",
            Verdict::Pays(_) => "windows-pay",
            Verdict::PaysLittle(_) => "windows-pay-little",
        }
    }

    /// The θ that it advises.
    pub(super) fn theta(self) -> Option<u64> {
        match self {
            Verdict::TooSmall(theta)
            | Verdict::TooLarge(theta)
            | Verdict::Pays(theta)
            | Verdict::PaysLittle(theta) => Some(theta),
            Verdict::Unknown | Verdict::NoneFits | Verdict::Fits | Verdict::Near => None,
        }
    }

    /// By the two bounds. Where windows cut reads, nobody knows how much larger than the lower bound they are.
    pub(super) fn of(store: &Store, nodes: usize, bounds: Option<Bounds>) -> Verdict {
        let Some(Bounds { lower, is_cut, upper, binds }) = bounds else { return Verdict::Unknown };
        if binds && is_clear(lower, upper) {
            return Verdict::NoneFits;
        }
        // Where the bounds cross, and that does not count, reads decide.
        let best = THETA_BEST.min(upper).max(lower).min(THETA_MAX);
        match store.placement.windows().map(|windows| windows.theta) {
            Some(theta) if is_clear(lower, theta) || (is_cut && is_clear(best, theta)) => {
                Verdict::TooSmall(best)
            }
            Some(theta) if binds && is_clear(theta, upper.max(best)) => Verdict::TooLarge(best),
            Some(theta) if theta < lower || is_cut || (binds && theta > upper) => Verdict::Near,
            Some(_) => Verdict::Fits,
            None => {
                let (hash, windows) = (asked(store, nodes, lower, 1), asked(store, nodes, lower, best));
                match hash > windows * GAIN_MIN {
                    true => Verdict::Pays(best),
                    false => Verdict::PaysLittle(best),
                }
            }
        }
    }
}

/// Nodes that a read of this many keys asks on average, where windows of θ lie anywhere; θ = 1 is by hash.
pub(super) fn asked(store: &Store, nodes: usize, keys: u64, theta: u64) -> f64 {
    let (nodes, replies) = (nodes.max(1) as f64, f64::from(store.consistency.reads_required));
    let windows = 1.0 + keys.saturating_sub(1) as f64 / theta as f64;
    nodes * (1.0 - (1.0 - replies.min(nodes) / nodes).powf(windows))
}

/// Nodes that hold a part of the ring.
pub(super) fn holders(cluster: &Cluster) -> usize {
    let holds = |id| cluster.ring.partitions().iter().any(|partition| partition.nodes.contains(&id));
    cluster.nodes.iter().filter(|node| holds(node.id)).count()
}

#[cfg(test)]
mod tests {
    use model::{Consistency, KeyPattern, Placement, StoreName, Windows};
    use protocol::report::PartitionLoad;

    use super::*;

    fn store(theta: Option<u64>, reads_required: u8) -> Store {
        let consistency =
            Consistency { replicas: reads_required, reads_required, writes_required: reads_required };
        let store = Store::new(StoreName::new("feeds").unwrap(), consistency).unwrap();
        let key = KeyPattern::new("feed:{group}:{sequence}").unwrap();
        let windows = |theta| Windows { theta, key, buckets: 4096, unknown: model::Unknown::new() };
        Store { placement: theta.map(windows).map_or(Placement::Hash, Placement::Windows), ..store }
    }

    fn told(reads: &[(u32, u64)], parts: &[(u32, u64)]) -> StoreDemand {
        StoreDemand { stamped_total: 0, reads_whole: reads.to_vec(), reads_in_parts: parts.to_vec() }
    }

    #[test]
    fn typical_is_what_half_of_the_reads_ask_for_wherever_they_are_driven() {
        let (one, other) = (told(&[(20, 30), (100, 10)], &[]), told(&[(20, 20)], &[]));
        let reads = Reads::of(&store(Some(64), 1), 4, &[&one, &other]).unwrap();
        assert_eq!(
            (reads.count, reads.guessed, reads.median, reads.most, reads.wide),
            (60.0, 0.0, 20, 100, 0.0)
        );
        assert_eq!(Reads::of(&store(Some(64), 1), 4, &[&told(&[(20, 19)], &[])]), None, "that is little");
    }

    #[test]
    fn what_clients_drive_is_guessed_from_their_messages() {
        // By hash, of four nodes, a read of 20 keys sends each 5 on average.
        let parts = told(&[], &[(4, 100), (5, 200), (6, 100)]);
        let reads = Reads::of(&store(None, 1), 4, &[&parts]).unwrap();
        assert_eq!((reads.count, reads.guessed, reads.median), (100.0, 100.0, 20));
        // Of windows, R nodes get all of it.
        let parts = told(&[], &[(20, 200)]);
        let reads = Reads::of(&store(Some(64), 2), 4, &[&parts]).unwrap();
        assert_eq!((reads.count, reads.median, reads.is_cut), (100.0, 20, false));
        let reads = Reads::of(&store(Some(20), 2), 4, &[&parts]).unwrap();
        assert!(reads.is_cut, "they may be of more windows");
        // Whoever reads more than a window hears that it is too small.
        let (store, parts) = (store(Some(4), 1), told(&[], &[(2, 60), (4, 100)]));
        let reads = Reads::of(&store, 4, &[&parts]).unwrap();
        assert!(reads.is_cut && reads.median == 4);
        let bounds = Bounds { lower: reads.median, is_cut: true, upper: 80, binds: true };
        assert_eq!(Verdict::of(&store, 4, Some(bounds)), Verdict::TooSmall(64));
        let bounds = Bounds { upper: 5, ..bounds };
        assert_eq!(Verdict::of(&store, 4, Some(bounds)), Verdict::Near, "nobody knows that 5 is better");
    }

    /// One range over two million numbers, and a store that fitted its readers was told to have a larger θ.
    #[test]
    fn pages_of_a_wide_range_are_no_reads_of_a_feed() {
        // Reads of 16 keys, most in one window, beside 1,000 pages of 1,000 numbers that four nodes share as their windows
        // lie: few messages are for one window alone, and nobody can tell these from a part of a read.
        let parts =
            told(&[], &[(4, 300), (12, 300), (16, 2_000), (64, 150), (128, 700), (192, 900), (496, 250)]);
        let reads = Reads::of(&store(Some(64), 1), 4, &[&parts]).unwrap();
        assert_eq!((reads.median, reads.most, reads.is_cut), (16, 16, false));
        assert_eq!((reads.count, reads.wide), (2_750.0, 1_850.0 / 4.0));
        // Those that a node drives are known whole.
        let reads = Reads::of(&store(Some(64), 1), 4, &[&told(&[(20, 30), (992, 1_000)], &[])]).unwrap();
        assert_eq!((reads.median, reads.most, reads.count, reads.wide), (20, 20, 30.0, 1_000.0));
        assert_eq!(Reads::of(&store(Some(64), 1), 4, &[&told(&[(992, 1_000)], &[])]), None);
        // By hash each of four nodes has a fourth of a page.
        let reads = Reads::of(&store(None, 1), 4, &[&told(&[], &[(5, 400), (248, 4_000)])]).unwrap();
        assert_eq!((reads.median, reads.most, reads.wide), (20, 20, 1_000.0));
    }

    fn load(uptime_ms: u64, ran_us: u64, work: WorkDone, puts: u64) -> LoadReport {
        let partitions = vec![PartitionLoad { work, ..PartitionLoad::default() }];
        LoadReport {
            uptime_ms,
            ran_us: Some(ran_us),
            waited_us: Some(0),
            workers: 1,
            processors: 1.0,
            coordinated_puts: puts,
            partitions,
            ..LoadReport::default()
        }
    }

    #[test]
    fn a_node_serves_what_its_time_allows_beside_what_it_reads() {
        let stamped = |stamped, gets| WorkDone { stamped, gets, ..WorkDone::default() };
        let before = load(0, 0, stamped(0, 0), 0);
        // 1,000 puts of 100 µs in a second.
        let serves = Serves::of(NodeId(1), &before, &load(1000, 100_000, stamped(1000, 0), 1000)).unwrap();
        assert_eq!((serves.put_us.round(), serves.puts_per_second.round()), (100.0, 10_000.0));
        assert_eq!((serves.theta(10), serves.theta(1)), (100, 10));
        // Half of its time goes into reads.
        let reads = (7700.0_f64 / 1.9).round() as u64;
        let serves = Serves::of(NodeId(1), &before, &load(1000, 200_000, stamped(1000, reads), 1000));
        assert_eq!(serves.unwrap().puts_per_second.round(), 9_000.0);
        assert_eq!(Serves::of(NodeId(1), &before, &load(1000, 100_000, stamped(499, 0), 0)), None);
        let uncounted = LoadReport { ran_us: None, ..load(1000, 0, stamped(1000, 0), 0) };
        assert_eq!(Serves::of(NodeId(1), &before, &uncounted), None);
    }

    #[test]
    fn the_verdict_is_by_both_bounds_and_none_without_them() {
        let at = |lower, upper| Some(Bounds { lower, is_cut: false, upper, binds: true });
        let of = |theta, bounds| Verdict::of(&store(theta, 1), 4, bounds);
        assert_eq!(of(Some(64), None), Verdict::Unknown);
        assert_eq!(of(Some(64), at(200, 80)), Verdict::NoneFits);
        assert_eq!(of(Some(64), at(20, 80)), Verdict::Fits);
        assert_eq!(of(Some(10), at(20, 40)), Verdict::TooSmall(40));
        assert_eq!(of(Some(2000), at(100, 800)), Verdict::TooLarge(100));
        assert_eq!(of(None, at(20, 80)), Verdict::Pays(64));
        assert_eq!(Verdict::of(&store(None, 2), 3, at(20, 80)), Verdict::PaysLittle(64));
        assert_eq!(Verdict::of(&store(None, 1), 1, at(20, 80)), Verdict::PaysLittle(64));
    }

    #[test]
    fn a_bound_that_is_missed_by_little_or_does_not_count_yet_is_no_reason_for_another_store() {
        let of = |theta, (lower, upper), binds, is_cut| {
            Verdict::of(&store(Some(theta), 1), 4, Some(Bounds { lower, is_cut, upper, binds }))
        };
        // 3 % were enough to say so, with puts far below what a node serves.
        assert_eq!(of(64, (20, 62), true, false), Verdict::Near);
        assert_eq!(of(64, (20, 62), false, false), Verdict::Fits);
        assert_eq!(of(64, (20, 43), true, false), Verdict::Near);
        assert_eq!(of(64, (20, 42), true, false), Verdict::TooLarge(42));
        assert_eq!(of(64, (96, 500), true, false), Verdict::Near);
        assert_eq!(of(64, (97, 500), true, false), Verdict::TooSmall(97));
        // One that keeps up delays nothing, however large the window is.
        assert_eq!(of(5_000, (20, 80), false, false), Verdict::Fits);
        assert_eq!(of(64, (200, 80), false, false), Verdict::TooSmall(200));
        // Reads that are known to fill windows, and not by how much they are larger.
        assert_eq!(of(64, (64, 88), true, true), Verdict::Near);
    }

    #[test]
    fn the_upper_bound_counts_from_half_of_what_a_node_serves_on() {
        let serves = Serves { node: NodeId(1), puts_per_second: 8_000.0, put_us: 125.0, processors: 1.0 };
        assert!(!serves.is_neared_by(3_999.0) && serves.is_neared_by(4_000.0));
        assert_eq!((serves.theta(10), serves.delay_ms(64)), (80, 8.0));
    }

    #[test]
    fn reads_of_windows_ask_few_nodes() {
        let by = |theta| (asked(&store(None, 1), 4, 20, theta) * 100.0).round() / 100.0;
        assert_eq!((by(1), by(64)), (3.99, 1.25));
    }
}
