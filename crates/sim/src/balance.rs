//! A day of load, played on the real headmaster: nodes are curves of capacity, copying takes its time, everything else is
//! what runs in a cluster.
//!
//! ```text
//!   popularity of partitions ──▶ work at each place of each list ──▶ reports ──▶ headmaster ──▶ documents, plans
//!              ▲ shifts, noise            ▲                                                        │
//!              └──────────────────────────┴────────────────── lists ◀─────────────────────────────┘
//! ```
//!
//! Judged is what the thesis feared: that partitions move for ever, or return to where they came from.
//!
//! Must never: know how the headmaster decides.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use model::balance::{Mode, Policy, Settings};
use model::plan::{Phase, PlanState, Planned, Rule, Size};
use model::{
    Cluster, Consistency, Moment, Node, NodeId, PartitionId, Ring, Store, StoreName, WallMillis, Zone,
};
use protocol::headmaster::{Again, Ask, Headmaster, HeadmasterAction, Kept, Observation, Registered, Said};
use protocol::rebalance::balancer::Weights;
use protocol::report::{Entered, NodeFacts};
use protocol::report::{LoadReport, PartitionLoad, WorkDone};

use crate::dice::Dice;

/// What a day is like.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// Nodes.
    pub nodes: u32,
    /// Partitions.
    pub partitions: usize,
    /// Replicas of each; R and W are majorities.
    pub replicas: u8,
    /// The noise of a node's load, as a standard deviation, in permille.
    pub noise: u64,
    /// Every so often other partitions become popular; never, where this is `None`.
    pub shifts: Option<Duration>,
    /// How long it is.
    pub lasts: Duration,
    /// Every so often the headmaster ends, and another one begins that remembers nothing.
    pub succession: Option<Duration>,
    /// By which rule the headmaster decides.
    pub rule: Rule,
}

impl Weather {
    /// As the dice of a seed draw it: 15 to 30 % of noise, another hot set every three hours.
    pub fn of_seed(seed: u64) -> Weather {
        let mut dice = Dice::apart(seed, 31);
        Weather {
            nodes: dice.between(3, 8) as u32,
            partitions: *dice.pick(&[32, 64, 128]),
            replicas: *dice.pick(&[1, 3, 3]),
            noise: dice.between(150, 300),
            shifts: Some(Duration::from_secs(3 * 3600)),
            lasts: Duration::from_secs(24 * 3600),
            succession: dice.chance(300).then_some(Duration::from_secs(5000)),
            rule: Rule::Even,
        }
    }
}

/// How a day went.
#[derive(Clone, Debug, Default)]
pub struct Day {
    /// Plans that were carried out, by the shift in which they began.
    pub plans: Vec<u64>,
    /// Lists that got another order.
    pub reorders: u64,
    /// Copies that went to another node.
    pub copies: u64,
    /// Copies that came back to a node that they had left within an hour.
    pub returns: u64,
    /// Lists that got an order back that they had lost within ten minutes.
    pub flips: u64,
    /// The highest utilisation compared with the mean, without noise: at the beginning and the end of each shift.
    pub imbalance: Vec<(f64, f64)>,
    /// When the last plan began, in seconds.
    pub last_plan_s: u64,
    /// Each decision in short.
    pub told: Vec<String>,
    /// The policy's mode at the end.
    pub mode: Mode,
}

impl Day {
    /// The most plans of one shift.
    pub fn most(&self) -> u64 {
        self.plans.iter().copied().max().unwrap_or(0)
    }
}

/// What a node can do.
#[derive(Clone, Debug)]
struct PlayedMachine {
    capacity: f64,
    /// What an operation costs it, compared with the weights.
    factor: f64,
    /// What it counted, by partition.
    counted: BTreeMap<PartitionId, [f64; 3]>,
    ran: f64,
    waited: f64,
    noise: f64,
}

struct World {
    weather: Weather,
    dice: Dice,
    now: Duration,
    cluster: Cluster,
    policy: Policy,
    plans: BTreeMap<u64, Planned>,
    /// The same, as the headmaster is told of them.
    kept: BTreeMap<u64, Kept>,
    machines: BTreeMap<NodeId, PlayedMachine>,
    /// Operations a second of each partition.
    rates: BTreeMap<PartitionId, f64>,
    bytes: BTreeMap<PartitionId, u64>,
    /// When a node began to bring a partition in.
    entering: BTreeMap<(NodeId, PartitionId), Duration>,
    left: BTreeMap<(NodeId, PartitionId), Duration>,
    ordered: BTreeMap<PartitionId, Vec<(Duration, Vec<NodeId>)>>,
    day: Day,
}

/// The part of operations that are gets, in permille.
const GETS: f64 = 0.95;
/// How long a node's noise stays.
const NOISE_STAYS: Duration = Duration::from_secs(2);
/// Bytes that a node brings in within a second.
const COPIED_PER_SECOND: u64 = 16 * 1024 * 1024;

/// Plays one day.
pub fn play(seed: u64, weather: Weather) -> Day {
    World::new(seed, weather).play()
}

impl World {
    fn new(seed: u64, weather: Weather) -> World {
        let mut dice = Dice::apart(seed, 32);
        let ids: Vec<NodeId> = (1..=weather.nodes).map(NodeId).collect();
        let node =
            |id: NodeId| Node::new(id, Zone(format!("z{}", id.0 % 3)), format!("127.0.0.1:{}", id.0), None);
        let nodes: Vec<Node> = ids.iter().copied().map(node).collect();
        let members: Vec<_> = nodes.iter().map(|node| (node.id, node.zone.clone())).collect();
        let quorum = weather.replicas / 2 + 1;
        let numbers =
            Consistency { replicas: weather.replicas, reads_required: quorum, writes_required: quorum };
        let store = Store::new(StoreName::new("default").expect("well formed"), numbers).expect("they fit");
        let ring =
            Ring::equal_slices_listing(weather.partitions, &members, usize::from(weather.replicas) + 2);
        let ids_of_partitions: Vec<PartitionId> = ring.partitions().iter().map(|one| one.id).collect();
        let machine = |dice: &mut Dice| PlayedMachine {
            capacity: dice.between(500, 2000) as f64 / 1000.0,
            factor: dice.between(800, 1250) as f64 / 1000.0,
            counted: BTreeMap::new(),
            ran: 0.0,
            waited: 0.0,
            noise: 1.0,
        };
        let machines = ids.iter().map(|id| (*id, machine(&mut dice))).collect();
        let bytes = ids_of_partitions.iter().map(|id| (*id, dice.between(1, 200) << 20)).collect();
        let mut world = World {
            weather,
            dice,
            now: Duration::from_secs(1_000_000),
            cluster: Cluster::new("day", nodes, ring, vec![store]),
            policy: Policy {
                settings: Settings { policy: weather.rule, ..Settings::default() },
                ..Policy::founded(0)
            },
            plans: BTreeMap::new(),
            kept: BTreeMap::new(),
            machines,
            rates: BTreeMap::new(),
            bytes,
            entering: BTreeMap::new(),
            left: BTreeMap::new(),
            ordered: BTreeMap::new(),
            day: Day::default(),
        };
        world.shift();
        world
    }

    /// Other partitions become popular; all nodes together have half to seven tenths of their capacity to do.
    fn shift(&mut self) {
        if let Some(last) = self.day.imbalance.last().map(|(before, _)| *before) {
            let after = self.imbalance();
            *self.day.imbalance.last_mut().expect("as above") = (last, after);
        }
        let mut ids: Vec<PartitionId> = self.cluster.ring.partitions().iter().map(|one| one.id).collect();
        for position in (1..ids.len()).rev() {
            ids.swap(position, self.dice.below(position as u64 + 1) as usize);
        }
        self.rates = ids.iter().enumerate().map(|(rank, id)| (*id, 1.0 / (rank as f64 + 8.0))).collect();
        let capacity: f64 = self.machines.values().map(|machine| machine.capacity).sum();
        let wanted = capacity * self.dice.between(450, 650) as f64 / 1000.0;
        let demand: f64 = self.demands().values().sum();
        self.rates.values_mut().for_each(|rate| *rate *= wanted / demand);
        self.day.plans.push(0);
        let imbalance = self.imbalance();
        self.day.imbalance.push((imbalance, imbalance));
    }

    /// What each kind of work comes to in a second at a place of a list.
    fn work(&self, rate: f64, place: usize) -> [f64; 3] {
        let readers = usize::from(self.weather.replicas / 2 + 1);
        let gets = if place < readers { rate * GETS } else { 0.0 };
        let puts = rate * (1.0 - GETS);
        if place == 0 { [gets, 0.0, puts] } else { [gets, puts, 0.0] }
    }

    fn places(&self) -> impl Iterator<Item = (PartitionId, NodeId, [f64; 3])> + '_ {
        self.cluster.ring.partitions().iter().flat_map(move |one| {
            let replicas = one.reading().iter().take(self.weather.replicas.into()).enumerate();
            replicas.map(move |(place, node)| (one.id, *node, self.work(self.rates[&one.id], place)))
        })
    }

    /// Processors that each node needs, without noise.
    fn demands(&self) -> BTreeMap<NodeId, f64> {
        let mut demands: BTreeMap<NodeId, f64> = self.machines.keys().map(|id| (*id, 0.0)).collect();
        for (_, node, work) in self.places() {
            *demands.entry(node).or_default() += weigh(work) * self.machines[&node].factor;
        }
        demands
    }

    fn imbalance(&self) -> f64 {
        let demands = self.demands();
        let capacity: f64 = self.machines.values().map(|machine| machine.capacity).sum();
        let mean = demands.values().sum::<f64>() / capacity;
        demands.iter().map(|(node, load)| load / self.machines[node].capacity / mean).fold(0.0, f64::max)
    }

    /// So much time passes.
    fn pass(&mut self, time: Duration) {
        let mut left = time;
        while left > Duration::ZERO {
            let step = left.min(NOISE_STAYS);
            let deviation = self.weather.noise as f64 / 1000.0;
            for machine in self.machines.values_mut() {
                let sum: f64 = (0..12).map(|_| self.dice.below(1_000_000) as f64 / 1e6).sum();
                machine.noise = (1.0 + (sum - 6.0) * deviation).max(0.05);
            }
            let (demands, seconds) = (self.demands(), step.as_secs_f64());
            let places: Vec<_> = self.places().collect();
            for (node, machine) in &mut self.machines {
                let demand = demands[node] * machine.noise;
                machine.ran += demand.min(machine.capacity) * seconds;
            }
            for (partition, node, work) in places {
                let machine = self.machines.get_mut(&node).expect("lists name members");
                let served = (machine.capacity / (demands[&node] * machine.noise)).min(1.0);
                let counted = machine.counted.entry(partition).or_default();
                for (sum, more) in counted.iter_mut().zip(work) {
                    *sum += more * machine.noise * served * seconds;
                }
            }
            self.now += step;
            left -= step;
        }
    }

    fn said(&mut self, node: NodeId, ask: &Ask) -> Said {
        let incarnation = 1;
        let generation = self.cluster.generation;
        let mut facts = NodeFacts {
            incarnation: Some(incarnation),
            adopted: Some((incarnation, generation)),
            ..NodeFacts::default()
        };
        for one in self.cluster.ring.partitions() {
            let Some(coming) = &one.coming else { continue };
            if !coming.nodes.contains(&node) {
                continue;
            }
            let began = *self.entering.entry((node, one.id)).or_insert(self.now);
            let takes = Duration::from_secs_f64(self.bytes[&one.id] as f64 / COPIED_PER_SECOND as f64);
            let merged = self.cluster.stores.iter();
            let merged =
                merged.map(|store| (store.name.clone(), one.nodes.iter().copied().collect())).collect();
            let whole = self.now >= began + takes;
            facts.entered.insert(one.id, Entered { incarnation, generation, whole, merged });
        }
        let size = ask.sizes.then(|| self.size(node));
        let load = ask.loads.then(|| self.report(node));
        Said { facts, size, load, incarnation, ..Said::default() }
    }

    fn size(&self, node: NodeId) -> Size {
        let held = self.cluster.ring.partitions().iter();
        let held = held.filter(|one| self.cluster.replicas_in(&one.nodes).contains(&node));
        let bytes: u64 = held.map(|one| self.bytes[&one.id]).sum();
        Size { records: bytes / 1000, bytes }
    }

    fn report(&self, node: NodeId) -> LoadReport {
        let machine = &self.machines[&node];
        let whole = |counted: &[f64; 3]| WorkDone {
            gets: counted[0] as u64,
            puts: counted[1] as u64,
            stamped: counted[2] as u64,
            own_gets: 0,
        };
        let partitions = machine.counted.iter().map(|(partition, counted)| PartitionLoad {
            partition: *partition,
            work: whole(counted),
            bytes: self.bytes[partition],
            middle: None,
        });
        LoadReport {
            uptime_ms: self.now.as_millis() as u64,
            ran_us: Some((machine.ran * 1e6) as u64),
            waited_us: Some((machine.waited * 1e6) as u64),
            workers: 2,
            processors: machine.capacity,
            partitions: partitions.collect(),
            ..LoadReport::default()
        }
    }

    fn observe(&mut self, asked: Ask) -> Observation {
        let said = asked.nodes.clone().into_iter().map(|node| (node, Ok(self.said(node, &asked)))).collect();
        let registered = self.cluster.nodes.iter().map(|node| Registered {
            node: node.clone(),
            incarnation: 1,
            is_member: true,
            reads_form: u32::MAX,
        });
        Observation {
            now: Moment { nanos: self.now.as_nanos() as u64 },
            wall: WallMillis(self.now.as_millis() as u64),
            registered: registered.collect(),
            cluster: self.cluster.clone(),
            remembered: BTreeMap::new(),
            order: None,
            plans: self.kept.clone(),
            policy: Some(self.policy.clone()),
            policy_unread: None,
            asked,
            said,
            listens: true,
        }
    }

    fn act(&mut self, action: HeadmasterAction) {
        match action {
            HeadmasterAction::Publish(next) => self.publish(*next),
            HeadmasterAction::CreatePlan { number, plan } => {
                self.plans.insert(number, Planned { number, plan: *plan, state: None });
                while self.plans.len() > 100 {
                    self.plans.pop_first();
                    self.kept.pop_first();
                }
                self.keep(number);
            }
            HeadmasterAction::Note { plan, state } => self.note(plan, *state),
            HeadmasterAction::SetPolicy(policy) => self.policy = *policy,
            HeadmasterAction::Tell(_) | HeadmasterAction::Answer { .. } => {}
        }
    }

    fn note(&mut self, number: u64, state: PlanState) {
        let planned = self.plans[&number].clone();
        if planned.state.is_none() && state.phase == Phase::Applying {
            *self.day.plans.last_mut().expect("a shift has begun") += 1;
            self.day.last_plan_s = (self.now - Duration::from_secs(1_000_000)).as_secs();
            if let Some(decision) = planned.plan.decision.clone() {
                let moves: Vec<_> = planned
                    .plan
                    .change
                    .moves()
                    .iter()
                    .map(|m| {
                        (
                            m.partition.0,
                            m.from.iter().map(|n| n.0).collect::<Vec<_>>(),
                            m.to.iter().map(|n| n.0).collect::<Vec<_>>(),
                        )
                    })
                    .collect();
                let truth: Vec<_> = self
                    .demands()
                    .iter()
                    .map(|(n, d)| (n.0, (d / self.machines[n].capacity * 1000.0) as u64))
                    .collect();
                self.day.told.push(format!("   truth {truth:?} {moves:?}"));
                self.day.told.push(format!(
                    "{} s: {} at {} of {}, {:?}, over {} ms: {} acts, then {}; lost {:?}",
                    self.day.last_plan_s,
                    decision.node,
                    decision.largest,
                    decision.mean,
                    decision.exceeds,
                    decision.window_ms,
                    decision.acts,
                    decision.predicted.largest_over_mean,
                    decision.lost.iter().map(|lost| (lost.because, lost.count)).collect::<Vec<_>>(),
                ));
            }
        }
        self.plans.get_mut(&number).expect("it was created").state = Some(state);
        self.keep(number);
    }

    /// What the headmaster is told of a plan from now on.
    fn keep(&mut self, number: u64) {
        self.kept.insert(number, Kept::of(self.plans[&number].clone()));
    }

    /// A document comes into force; who left where, and who came back, is counted.
    fn publish(&mut self, next: Cluster) {
        for (before, after) in self.cluster.ring.partitions().iter().zip(next.ring.partitions()) {
            let old = self.cluster.replicas_in(&before.nodes);
            let new = next.replicas_in(&after.nodes);
            if old == new {
                continue;
            }
            let (gone, here): (BTreeSet<_>, BTreeSet<_>) = (old.iter().collect(), new.iter().collect());
            for node in gone.difference(&here) {
                self.left.insert((**node, before.id), self.now);
            }
            for node in here.difference(&gone) {
                self.day.copies += 1;
                let since = self.left.get(&(**node, before.id)).map(|left| self.now - *left);
                self.day.returns += u64::from(since.is_some_and(|since| since < Duration::from_secs(3600)));
                self.entering.remove(&(**node, before.id));
            }
            if gone == here {
                self.day.reorders += 1;
                let orders = self.ordered.entry(before.id).or_default();
                orders.retain(|(at, _)| self.now - *at < Duration::from_secs(600));
                self.day.flips += u64::from(orders.iter().any(|(_, order)| order == new));
                orders.push((self.now, old.to_vec()));
            }
        }
        self.cluster = next;
    }

    fn play(mut self) -> Day {
        let (mut headmaster, mut ask) = (Headmaster::new(1 << 20), Ask::default());
        let end = self.now + self.weather.lasts;
        let mut shift = self.weather.shifts.map(|every| self.now + every);
        let mut succession = self.weather.succession.map(|every| self.now + every);
        while self.now < end {
            if shift.is_some_and(|at| self.now >= at) {
                self.shift();
                shift = self.weather.shifts.map(|every| self.now + every);
            }
            let seen = self.observe(std::mem::take(&mut ask));
            let decision = headmaster.decide(&seen);
            ask = decision.ask;
            let mut actions = decision.actions.into_iter();
            if succession.is_some_and(|at| self.now >= at) {
                // It ends in the middle of what it does.
                actions.by_ref().take(1).for_each(|action| self.act(action));
                (headmaster, ask) = (Headmaster::new(1 << 20), Ask::default());
                succession = self.weather.succession.map(|every| self.now + every);
                continue;
            }
            actions.for_each(|action| self.act(action));
            match decision.again {
                Again::Now => self.pass(Duration::from_millis(5)),
                Again::After(pause) | Again::Paced(pause) | Again::WhenWoken(pause) => self.pass(pause),
            }
        }
        let after = self.imbalance();
        self.day.imbalance.last_mut().expect("a shift has begun").1 = after;
        self.day.mode = self.policy.mode;
        self.day
    }
}

fn weigh(work: [f64; 3]) -> f64 {
    let weights = Weights::MEASURED;
    (work[0] * weights.get + work[1] * weights.put + work[2] * weights.stamped) / 1e6
}

/// Plans of one shift, at most.
const PLANS_MAX: u64 = 3;
/// Plans of a day on which nothing changes, at most: the first ones, and what noise made of a small rest.
const PLANS_CONSTANT_MAX: u64 = 6;

/// What must not happen, if it did.
pub fn broken(day: &Day, is_constant: bool) -> Option<String> {
    if day.returns > 0 {
        return Some(format!("{} copies returned within an hour", day.returns));
    }
    if day.flips > 0 {
        return Some(format!("{} lists got back within ten minutes the order that they had", day.flips));
    }
    let most = if is_constant { PLANS_CONSTANT_MAX } else { PLANS_MAX };
    (day.most() > most).then(|| format!("{} plans in one shift, more than {most}", day.most()))
}

/// The heading of a table with a row for each rule.
pub const TABLE: &str = "| policy | days | returns | flips | plans a shift: mean, most | reorderings a shift | copies a shift | largest over \
     mean, a shift begins: median, 90 % | ends: median, 90 % | turned to observe |
|---|---|---|---|---|---|---|---|---|---|";

/// What the days of a rule have in common, as a row of [`TABLE`].
pub fn row(rule: Rule, days: &[Day]) -> String {
    let sum = |of: fn(&Day) -> u64| days.iter().map(of).sum::<u64>();
    let shifts = days.iter().map(|day| day.plans.len()).sum::<usize>().max(1) as f64;
    let imbalances = || days.iter().flat_map(|day| &day.imbalance);
    format!(
        "| {} | {} | {} | {} | {:.2}, {} | {:.2} | {:.2} | {} | {} | {} |",
        rule.word(),
        days.len(),
        sum(|day| day.returns),
        sum(|day| day.flips),
        sum(|day| day.plans.iter().sum()) as f64 / shifts,
        days.iter().map(Day::most).max().unwrap_or(0),
        sum(|day| day.reorders) as f64 / shifts,
        sum(|day| day.copies) as f64 / shifts,
        middle(imbalances().map(|(before, _)| *before)),
        middle(imbalances().map(|(_, after)| *after)),
        days.iter().filter(|day| day.mode != Mode::On).count(),
    )
}

/// The median, and what nine of ten do not exceed.
fn middle(values: impl Iterator<Item = f64>) -> String {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    let at = |permille: usize| sorted.get(sorted.len() * permille / 1000).copied().unwrap_or(1.0);
    format!("{:.2}, {:.2}", at(500), at(900))
}
