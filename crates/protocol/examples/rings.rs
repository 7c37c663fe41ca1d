//! What strategies for rings and for feeds promise, counted before they are built (`docs/design/placement.md`).
//!
//! ```sh
//! cargo run --release -p protocol --example rings
//! ```
//!
//! Four tables, each from nothing but arithmetic and seeded random numbers:
//!
//! 1. **Rings** that grow one node at a time: how uneven, what each join moves, from how many donors, and how long their
//!    document is. Random positions are consistent hashing as ZStore had it; golden cuts are its own strategy (paper 003,
//!    4.2); halving is its plain rival; equal slices are ours.
//! 2. **Replicas** on golden rings: how uneven nodes are that hold N partitions, and what a join brings in.
//! 3. **Delay by θ**: how long a put waits while windows of θ consecutive keys go to one node after another (4.3).
//! 4. **Order of windows**: which window follows which on a ring, and what that does to the delay.
//!
//! Must never: take a shortcut through the planner. It is a second opinion about what the planner should give.

use std::collections::{BTreeMap, BTreeSet};

/// Buckets of a ring: cuts fall on their bounds, as they do in a cluster.
const BUCKETS: u64 = 4_096;
/// Bytes that one partition with three replicas takes in the cluster's document, measured on one of 1,024.
const PARTITION_BYTES: u64 = 76;
/// The golden ratio, less one: what of the largest partition stays.
const GOLDEN: f64 = 0.618_033_988_749_895;
/// Puts that a node serves a second, and how loaded the cluster is.
const SERVED: f64 = 5_000.0;
const LOADED: f64 = 0.6;
/// Puts that are simulated for a figure.
const PUTS: usize = 2_000_000;

fn main() {
    rings();
    replicas();
    delays();
    orders();
    fanout();
}

/// A seeded generator (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// Above 0 and at most 1.
    fn share(&mut self) -> f64 {
        (self.next() >> 11).wrapping_add(1) as f64 / (1u64 << 53) as f64
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -self.share().ln() * mean
    }
}

// --- rings ----------------------------------------------------------------------------------------------------------

/// A ring: the owner of each slice, with the slice's size in shares of the ring.
#[derive(Clone)]
struct Ring(Vec<(f64, usize)>);

/// How a ring takes in its next node.
#[derive(Clone, Copy)]
enum Growth {
    /// Each node has one random position.
    Random,
    /// The largest slice is halved.
    Halving,
    /// The largest slice is cut by the golden ratio; the newcomer has the smaller part.
    Golden,
    /// 1,024 equal slices; the newcomer takes its share of them, one after another from whoever has most.
    Equal,
}

impl Growth {
    const ALL: [(Growth, &'static str); 4] = [
        (Growth::Random, "random positions"),
        (Growth::Halving, "halving the largest"),
        (Growth::Golden, "golden ratio"),
        (Growth::Equal, "1,024 equal slices"),
    ];

    fn first(self) -> Ring {
        match self {
            Growth::Equal => Ring(vec![(1.0 / 1024.0, 0); 1024]),
            _ => Ring(vec![(1.0, 0)]),
        }
    }

    /// Takes in node `node`. Returns what moved, in shares of the ring, and the donors.
    fn join(self, ring: &mut Ring, node: usize, random: &mut Random) -> (f64, BTreeSet<usize>) {
        match self {
            Growth::Random => {
                let mut at = random.share();
                let place = ring.0.iter().position(|(size, _)| {
                    let inside = at <= *size;
                    at -= if inside { 0.0 } else { *size };
                    inside
                });
                ring.cut(place.unwrap_or(ring.0.len() - 1), at, node)
            }
            Growth::Halving => ring.cut_largest(0.5, node),
            Growth::Golden => ring.cut_largest(1.0 - GOLDEN, node),
            Growth::Equal => ring.take_share(node),
        }
    }
}

impl Ring {
    /// Gives the first `share` of the ring of a slice to a new node.
    fn cut(&mut self, place: usize, share: f64, node: usize) -> (f64, BTreeSet<usize>) {
        let donor = self.0[place].1;
        self.0[place].0 -= share;
        self.0.insert(place, (share, node));
        (share, BTreeSet::from([donor]))
    }

    /// Cuts the largest slice at a bucket's bound, so that the newcomer gets about this part of it.
    fn cut_largest(&mut self, part: f64, node: usize) -> (f64, BTreeSet<usize>) {
        let largest = (0..self.0.len()).rev().max_by(|a, b| self.0[*a].0.total_cmp(&self.0[*b].0));
        let largest = largest.expect("a ring has a slice");
        let buckets = (self.0[largest].0 * part * BUCKETS as f64).round().max(1.0);
        self.cut(largest, buckets / BUCKETS as f64, node)
    }

    fn take_share(&mut self, node: usize) -> (f64, BTreeSet<usize>) {
        let (wanted, mut donors) = (self.0.len() / (node + 1), BTreeSet::new());
        for _ in 0..wanted {
            let mut held = BTreeMap::new();
            self.0.iter().for_each(|(_, owner)| *held.entry(*owner).or_insert(0) += 1);
            let (_, richest) =
                held.iter().map(|(owner, count)| (*count, *owner)).max().expect("it has owners");
            let owned = (0..self.0.len()).filter(|place| self.0[*place].1 == richest);
            // Any of its slices: which one, no key's place should hang on.
            let taken = owned.min_by_key(|place| Random(*place as u64).next()).expect("it owns one");
            self.0[taken].1 = node;
            donors.insert(richest);
        }
        (wanted as f64 / self.0.len() as f64, donors)
    }

    /// What the node with most has, over the mean.
    fn unevenness(&self, nodes: usize) -> f64 {
        let mut held = vec![0.0; nodes];
        self.0.iter().for_each(|(size, owner)| held[*owner] += size);
        held.into_iter().fold(0.0, f64::max) * nodes as f64
    }

    /// The owner of each bucket.
    fn owners(&self) -> Vec<usize> {
        let mut owners = Vec::new();
        let mut end = 0.0;
        for (size, owner) in &self.0 {
            end += size * BUCKETS as f64;
            owners.resize((end.round() as usize).min(BUCKETS as usize), *owner);
        }
        owners.resize(BUCKETS as usize, self.0.last().map_or(0, |(_, owner)| *owner));
        owners
    }
}

fn rings() {
    const SIZES: [usize; 5] = [5, 12, 20, 50, 100];
    const LAST: usize = 299;
    println!("rings that grow by one node at a time, {BUCKETS} buckets");
    println!(
        "  largest share over the mean, at n nodes; what a join moves, over the newcomer's fair share; donors of a join"
    );
    print!("  {:22}", "n =");
    SIZES.iter().for_each(|n| print!("{n:>6}"));
    println!("{:>8}{:>10}{:>8}{:>14}", "worst", "moved", "donors", "doc. bytes");
    for (growth, name) in Growth::ALL {
        // Random positions are a mean over many rings.
        let runs = if matches!(growth, Growth::Random) { 200 } else { 1 };
        let (mut at, mut worst, mut moved, mut donors) = (BTreeMap::<usize, f64>::new(), 0.0_f64, 0.0, 0);
        let mut slices = 0;
        for run in 0..runs {
            let (mut ring, mut random) = (growth.first(), Random(run));
            for node in 1..LAST {
                let (share, from) = growth.join(&mut ring, node, &mut random);
                moved += share * (node + 1) as f64;
                donors += from.len();
                *at.entry(node + 1).or_default() += ring.unevenness(node + 1) / runs as f64;
            }
            slices = ring.0.len() as u64;
        }
        at.values().for_each(|value| worst = worst.max(*value));
        print!("  {name:22}");
        SIZES.iter().for_each(|n| print!("{:>6.2}", at[n]));
        let joins = (runs as usize * (LAST - 1)) as f64;
        let bytes = slices * PARTITION_BYTES;
        println!("{worst:>8.2}{:>10.2}{:>8.1}{bytes:>14}", moved / joins, donors as f64 / joins);
    }
    println!();
}

/// Golden rings with N replicas: each partition lies on its owner and the next N - 1 along the ring, and the newcomer gets
/// the part behind its donor's.
fn replicas() {
    const LAST: usize = 100;
    println!(
        "golden rings with N replicas: the node with most over the mean; what a join brings in over its fair share"
    );
    println!("  {:>3}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}{:>10}", "N", 5, 12, 20, 50, 100, "worst", "brings in");
    for replicas in 1..=3 {
        let mut ring = vec![(BUCKETS, 0)];
        let (mut at, mut worst, mut brought) = (BTreeMap::new(), 0.0_f64, 0.0);
        for node in 1..LAST {
            let largest = (0..ring.len()).rev().max_by_key(|place| ring[*place].0).expect("it has a slice");
            let stays = (ring[largest].0 as f64 * GOLDEN).round() as u64;
            let part = ring[largest].0 - stays;
            ring[largest].0 = stays;
            ring.insert(largest + 1, (part, node));
            let mut held = vec![0; node + 1];
            for place in 0..ring.len() {
                let list = (0..replicas.min(ring.len())).map(|step| ring[(place + step) % ring.len()].1);
                list.for_each(|holder| held[holder] += ring[place].0);
            }
            let mean = BUCKETS as f64 * replicas.min(node + 1) as f64 / (node + 1) as f64;
            let most = held.iter().max().map_or(0.0, |most| *most as f64 / mean);
            at.insert(node + 1, most);
            worst = worst.max(most);
            brought += held[node] as f64 / mean;
        }
        print!("  {replicas:>3}");
        [5, 12, 20, 50, 100].iter().for_each(|size| print!("{:>8.2}", at[size]));
        println!("{worst:>8.2}{:>10.2}", brought / (LAST - 1) as f64);
    }
    println!();
}

// --- delay ----------------------------------------------------------------------------------------------------------

/// The delays of puts in seconds, at 50 and 99 %, and how loaded the busiest node was over the mean, by the second.
///
/// `owner` says which node put number `n` goes to. Nodes serve one put after another; arrivals and service are random.
fn queue(nodes: usize, mut owner: impl FnMut(usize, &mut Random) -> usize) -> (f64, f64, f64) {
    let mut random = Random(34);
    let (mut now, mut free) = (0.0, vec![0.0_f64; nodes]);
    let (mut delays, mut second, mut ended, mut busiest) =
        (Vec::with_capacity(PUTS), vec![0u64; nodes], 1.0, Vec::new());
    let between = 1.0 / (SERVED * LOADED * nodes as f64);
    for put in 0..PUTS {
        now += random.exponential(between);
        if now >= ended {
            let (most, all) = (second.iter().max().copied().unwrap_or(0), second.iter().sum::<u64>().max(1));
            busiest.push(most as f64 * nodes as f64 / all as f64);
            second.fill(0);
            ended += 1.0;
        }
        let node = owner(put, &mut random);
        second[node] += 1;
        free[node] = free[node].max(now) + random.exponential(1.0 / SERVED);
        delays.push(free[node] - now);
    }
    delays.sort_by(f64::total_cmp);
    let mean = busiest.iter().sum::<f64>() / busiest.len().max(1) as f64;
    (delays[PUTS / 2], delays[PUTS / 100 * 99], mean)
}

fn delays() {
    const NODES: usize = 8;
    println!("delay of a put by θ: {NODES} nodes of {SERVED} puts a second, {:.0} % loaded", LOADED * 100.0);
    println!("  {:>10}{:>12}{:>12}{:>20}", "θ", "p50 ms", "p99 ms", "busiest over mean");
    let told = |name: &str, (half, most, busiest): (f64, f64, f64)| {
        println!("  {name:>10}{:>12.2}{:>12.1}{busiest:>20.2}", half * 1e3, most * 1e3);
    };
    told("by hash", queue(NODES, |_, random| (random.next() % NODES as u64) as usize));
    for theta in [1, 5, 20, 64, 200, 1_000, 10_000, 100_000] {
        told(&theta.to_string(), queue(NODES, |put, _| put / theta % NODES));
    }
    println!();
}

// --- order of windows -----------------------------------------------------------------------------------------------

/// The stride over buckets: odd, so it visits each once, and near the golden section, so that neighbours lie apart.
fn stride() -> u64 {
    ((BUCKETS as f64 * GOLDEN) as u64) | 1
}

/// A ring of equal slices, in which nodes follow each other, and one to which nodes were added.
fn fresh(partitions: usize, nodes: usize) -> Ring {
    Ring((0..partitions).map(|place| (1.0 / partitions as f64, place % nodes)).collect())
}

fn grown(partitions: usize, from: usize, to: usize) -> Ring {
    let mut ring = fresh(partitions, from);
    (from..to).for_each(|node| {
        ring.take_share(node);
    });
    ring
}

fn orders() {
    const THETA: usize = 64;
    println!("order of windows, θ = {THETA}: p99 of a put in ms");
    println!("  {:34}{:>24}{:>10}{:>10}", "ring", "partition by partition", "by hash", "stride");
    let rings = [
        ("10 nodes, 1,024 slices, fresh", fresh(1_024, 10), 1_024, 10),
        ("10 nodes, 1,024 slices, from 5", grown(1_024, 5, 10), 1_024, 10),
        ("4 nodes, 16 slices, fresh", fresh(16, 4), 16, 4),
        ("4 nodes, 16 slices, from 1", grown(16, 1, 4), 16, 4),
    ];
    for (name, ring, partitions, nodes) in rings {
        let owners = ring.owners();
        let width = BUCKETS as usize / partitions;
        let of_bucket = |bucket: u64| owners[(bucket % BUCKETS) as usize];
        let next = queue(nodes, |put, _| of_bucket((put / THETA * width) as u64));
        let hashed = queue(nodes, |put, _| of_bucket(Random((put / THETA) as u64).next()));
        let strided = queue(nodes, |put, _| of_bucket((put / THETA) as u64 * stride()));
        println!("  {name:34}{:>24.0}{:>10.0}{:>10.0}", next.1 * 1e3, hashed.1 * 1e3, strided.1 * 1e3);
    }
    println!();
}

// --- nodes asked ----------------------------------------------------------------------------------------------------

fn fanout() {
    const READ: usize = 20;
    /// Of a hundred nodes, one is slow: how often does a read of twenty meet it?
    const TURNS: usize = 20_000;
    println!(
        "the {READ} newest of a feed: nodes asked, and reads that meet the one node that is slow just now"
    );
    println!("  {:>8}{:>12}{:>10}{:>14}", "nodes", "placement", "asked", "meet it, %");
    for nodes in [4, 10, 100] {
        let owners = grown(1_024, nodes / 2 + 1, nodes).owners();
        let told = |name: &str, bucket: &mut dyn FnMut(usize, &mut Random) -> u64| {
            let (mut random, mut asked, mut met) = (Random(20), 0, 0);
            for turn in 0..TURNS {
                let first = (random.next() % 1_000_000) as usize;
                let seen: BTreeSet<usize> = (first..first + READ)
                    .map(|key| owners[(bucket(key, &mut random) % BUCKETS) as usize])
                    .collect();
                asked += seen.len();
                met += usize::from(seen.contains(&(turn % nodes)));
            }
            let of = |count: usize| count as f64 / TURNS as f64;
            println!("  {nodes:>8}{name:>12}{:>10.2}{:>14.1}", of(asked), of(met) * 100.0);
        };
        told("hash", &mut |key, _| Random(key as u64).next());
        for theta in [20, 64, 1_000] {
            told(&format!("θ = {theta}"), &mut |key, _| (key / theta) as u64 * stride());
        }
    }
}
