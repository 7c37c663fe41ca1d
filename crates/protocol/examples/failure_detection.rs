//! How fast and how truthful failure detection is, with the machines of `protocol::gossip` and a network made of
//! numbers. `docs/benchmarks/failure-detection.md` shows what it printed.
//!
//! ```text
//! cargo run --profile proof -p protocol --example failure_detection -- day          24 hours, pauses and loss
//! cargo run --profile proof -p protocol --example failure_detection -- sizes        a silent machine, 8 to 512 nodes
//! cargo run --profile proof -p protocol --example failure_detection -- sizes FILE   and a plot of it
//! ```

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::{Duration, Instant};

use model::{Moment, NodeId};
use protocol::gossip::{Action, EXCHANGE_PATIENCE, Event, Gossip, Row, State};

/// What a node does or gets at a moment.
#[derive(Clone, Debug, PartialEq)]
enum Item {
    Round,
    Table { from: usize, rows: Vec<Row>, exchange: u64 },
    Answer { from: usize, rows: Vec<Row>, exchange: u64 },
    Lapse { with: usize, exchange: u64 },
    Pause,
}

struct Due {
    at: Moment,
    number: u64,
    node: usize,
    item: Item,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}
impl Eq for Due {}
impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

struct World {
    now: Moment,
    number: u64,
    seed: u64,
    due: BinaryHeap<Reverse<Due>>,
    machines: Vec<Gossip>,
    /// Until when a node's process stands still; what comes for it waits in its sockets.
    paused_until: Vec<Moment>,
    dead: Vec<bool>,
    /// Exchanges that wait for an answer, by node and number.
    open: Vec<BTreeMap<u64, usize>>,
    loss_per_mille: u64,
    /// Mean time between two pauses of one node; zero for none.
    pause_every: Duration,
    pause_max: Duration,
    announced: Vec<(Moment, usize, NodeId, State)>,
    exchanges: u64,
    pauses: u64,
}

impl World {
    fn new(nodes: usize, seed: u64) -> World {
        let ids: Vec<NodeId> = (1..=nodes as u32).map(NodeId).collect();
        let now = Moment::default().after(Duration::from_secs(1));
        let mut world = World {
            now,
            number: 0,
            seed,
            due: BinaryHeap::new(),
            machines: ids.iter().map(|&id| Gossip::start(id, 1, now)).collect(),
            paused_until: vec![now; nodes],
            dead: vec![false; nodes],
            open: vec![BTreeMap::new(); nodes],
            loss_per_mille: 0,
            pause_every: Duration::ZERO,
            pause_max: Duration::ZERO,
            announced: Vec::new(),
            exchanges: 0,
            pauses: 0,
        };
        for node in 0..nodes {
            let named = Event::MembersNamed { nodes: ids.clone() };
            world.step(node, named, None);
            // Processes start within a second of each other.
            let start = Duration::from_micros(world.below(1_000_000));
            world.post(node, start, Item::Round);
        }
        world
    }

    fn roll(&mut self) -> u64 {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.seed;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.roll()) * u128::from(bound)) >> 64) as u64
    }

    fn post(&mut self, node: usize, after: Duration, item: Item) {
        self.number += 1;
        self.due.push(Reverse(Due { at: self.now.after(after), number: self.number, node, item }));
    }

    /// Sends over the network: half a millisecond, more for one in a hundred, lost for some.
    fn send(&mut self, to: usize, item: Item) {
        if self.below(1000) < self.loss_per_mille {
            return;
        }
        let slow = if self.below(100) == 0 { 20 } else { 1 };
        let delay = Duration::from_micros(slow * (200 + self.below(600)));
        self.post(to, delay, item);
    }

    fn step(&mut self, node: usize, event: Event, asked: Option<(usize, u64)>) {
        let mut actions = Vec::new();
        self.machines[node].step(event, self.now, &mut actions);
        for action in actions {
            match action {
                Action::Exchange { with, rows } => {
                    self.exchanges += 1;
                    let (exchange, with) = (self.exchanges, with.0 as usize - 1);
                    self.open[node].insert(exchange, with);
                    self.send(with, Item::Table { from: node, rows, exchange });
                    self.post(node, EXCHANGE_PATIENCE, Item::Lapse { with, exchange });
                }
                Action::Answer { rows } => {
                    let Some((to, exchange)) = asked else { continue };
                    self.send(to, Item::Answer { from: node, rows, exchange });
                }
                Action::Announce { node: about, to, .. } => self.announced.push((self.now, node, about, to)),
            }
        }
    }

    fn run(&mut self, duration: Duration) {
        let end = self.now.after(duration);
        while self.due.peek().is_some_and(|due| due.0.at <= end) {
            let Some(Reverse(Due { at, node, item, .. })) = self.due.pop() else { return };
            self.now = at;
            if self.dead[node] {
                continue;
            }
            if item != Item::Pause && at < self.paused_until[node] {
                let wait = self.paused_until[node].since(at);
                self.post(node, wait, item);
                continue;
            }
            self.happen(node, item);
        }
        self.now = end;
    }

    fn happen(&mut self, node: usize, item: Item) {
        match item {
            Item::Round => {
                let roll = self.roll();
                self.step(node, Event::Elapsed { roll }, None);
                let next = self.machines[node].deadline().since(self.now);
                self.post(node, next, Item::Round);
            }
            Item::Table { from, rows, exchange } => {
                let from_id = NodeId(from as u32 + 1);
                self.step(node, Event::TableReceived { from: from_id, rows }, Some((from, exchange)));
            }
            Item::Answer { from, rows, exchange } => {
                if self.open[node].remove(&exchange).is_some() {
                    self.step(node, Event::AnswerReceived { from: NodeId(from as u32 + 1), rows }, None);
                }
            }
            Item::Lapse { with, exchange } => {
                if self.open[node].remove(&exchange).is_some() {
                    self.step(node, Event::ExchangeFailed { with: NodeId(with as u32 + 1) }, None);
                }
            }
            Item::Pause => {
                let length = Duration::from_micros(self.below(self.pause_max.as_micros() as u64 + 1));
                self.paused_until[node] = self.now.after(length);
                self.pauses += 1;
                let every = self.pause_every.as_micros() as u64;
                let next = length + Duration::from_micros(every / 2 + self.below(every));
                self.post(node, next, Item::Pause);
            }
        }
    }

    fn count(&self, state: State) -> usize {
        self.announced.iter().filter(|(.., to)| *to == state).count()
    }
}

/// A day of eight nodes that pause for up to five seconds each other minute, with 2% of all messages lost.
fn day() {
    let began = Instant::now();
    let mut world = World::new(8, 24);
    world.loss_per_mille = 20;
    world.pause_every = Duration::from_secs(60);
    world.pause_max = Duration::from_secs(5);
    for node in 0..8 {
        let first = Duration::from_micros(world.below(60_000_000));
        world.post(node, first, Item::Pause);
    }
    let hours = 24;
    for hour in 1..=hours {
        world.run(Duration::from_secs(3600));
        eprintln!(
            "hour {hour}: {} suspicions, {} downs",
            world.count(State::Suspected),
            world.count(State::Down)
        );
    }
    println!(
        "{hours} simulated hours, 8 nodes, {} pauses of up to 5 s, 2% loss, {} exchanges: {} suspicions, {} false downs \
         ({:.0} s of processor time)",
        world.pauses,
        world.exchanges,
        world.count(State::Suspected),
        world.count(State::Down),
        began.elapsed().as_secs_f64()
    );
    let all_alive = (0..8).all(|node| (1..=8).all(|of| world.machines[node].state(NodeId(of)).is_some()));
    assert!(all_alive && world.count(State::Down) == 0, "a node that only paused was believed down");
}

struct Measured {
    nodes: usize,
    median: Duration,
    worst: Duration,
}

/// One machine falls silent: when does each of the others suspect it? Nothing but the rumours' absence tells.
fn silence(nodes: usize, seed: u64) -> Vec<Duration> {
    let mut world = World::new(nodes, seed);
    world.run(Duration::from_secs(25));
    let before = world.announced.len();
    let phase = Duration::from_micros(world.below(200_000));
    world.run(phase);
    let victim = world.below(nodes as u64) as usize;
    world.dead[victim] = true;
    let died = world.now;
    world.run(Duration::from_secs(8));
    let about = NodeId(victim as u32 + 1);
    let mut first: BTreeMap<usize, Duration> = BTreeMap::new();
    for &(at, viewer, node, to) in &world.announced[before..] {
        if node == about && to != State::Alive {
            first.entry(viewer).or_insert(at.since(died));
        }
    }
    assert_eq!(first.len(), nodes - 1, "somebody never noticed");
    first.into_values().collect()
}

fn sizes(plot: Option<&str>) {
    println!("| nodes | runs | median survivor | last survivor, median run | last survivor, worst run |");
    println!("|---:|---:|---:|---:|---:|");
    let mut measured = Vec::new();
    for nodes in [8, 16, 32, 64, 128, 256, 512] {
        let runs = match nodes {
            0..=64 => 20,
            65..=128 => 5,
            _ => 1,
        };
        let (mut all, mut lasts) = (Vec::new(), Vec::new());
        for seed in 0..runs {
            let mut each = silence(nodes, 1000 * nodes as u64 + seed);
            each.sort();
            lasts.extend(each.last().copied());
            all.extend(each);
        }
        all.sort();
        lasts.sort();
        let (median, typical, worst) = (all[all.len() / 2], lasts[lasts.len() / 2], lasts[lasts.len() - 1]);
        println!("| {nodes} | {runs} | {median:.2?} | {typical:.2?} | {worst:.2?} |");
        measured.push(Measured { nodes, median, worst });
    }
    if let Some(path) = plot {
        std::fs::write(path, svg(&measured)).expect("the plot's file can be written");
    }
}

/// Detection time over cluster size, size on a logarithmic scale.
fn svg(measured: &[Measured]) -> String {
    let x = |nodes: usize| 70.0 + 80.0 * ((nodes as f64).log2() - 3.0);
    let y = |seconds: f64| 260.0 - 50.0 * seconds;
    let line = |of: &dyn Fn(&Measured) -> Duration, colour: &str| {
        let points: Vec<String> = measured
            .iter()
            .map(|point| format!("{:.1},{:.1}", x(point.nodes), y(of(point).as_secs_f64())))
            .collect();
        let dots: String = points
            .iter()
            .filter_map(|point| point.split_once(','))
            .map(|(x, y)| format!("<circle cx=\"{x}\" cy=\"{y}\" r=\"3\" fill=\"{colour}\"/>"))
            .collect();
        format!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>{dots}\n",
            points.join(" ")
        )
    };
    let mut text = String::from(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"640\" height=\"320\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"640\" height=\"320\" fill=\"white\"/>\n\
         <text x=\"70\" y=\"24\" font-size=\"14\">Until every survivor suspects a machine that fell silent</text>\n",
    );
    for seconds in 0..=4 {
        let at = y(f64::from(seconds));
        text.push_str(&format!(
            "<line x1=\"70\" x2=\"570\" y1=\"{at}\" y2=\"{at}\" stroke=\"#ddd\"/><text x=\"40\" y=\"{}\">{seconds} s</text>\n",
            at + 4.0
        ));
    }
    for point in measured {
        text.push_str(&format!(
            "<text x=\"{:.1}\" y=\"280\" text-anchor=\"middle\">{}</text>\n",
            x(point.nodes),
            point.nodes
        ));
    }
    text.push_str("<text x=\"320\" y=\"300\" text-anchor=\"middle\">nodes</text>\n");
    text.push_str(&line(&|point| point.median, "#2a7"));
    text.push_str(&line(&|point| point.worst, "#27a"));
    text.push_str(&format!(
        "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"5\" fill=\"#c33\"/><text x=\"82\" y=\"{:.1}\" fill=\"#c33\">ZStore, 8 nodes: \
         4 s</text>\n",
        x(8),
        y(4.0),
        y(4.0) + 4.0
    ));
    text.push_str(
        "<text x=\"420\" y=\"80\" fill=\"#27a\">last survivor, worst run</text>\
         <text x=\"420\" y=\"98\" fill=\"#2a7\">median survivor</text>\n</svg>\n",
    );
    text
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("day") => day(),
        Some("sizes") => sizes(arguments.get(1).map(String::as_str)),
        _ => eprintln!("usage: failure_detection day | sizes [PLOT.svg]"),
    }
}
