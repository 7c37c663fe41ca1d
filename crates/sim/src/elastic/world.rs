//! The provider, the engine, the metrics and the drivers of a day.

use std::collections::BTreeMap;

use model::WallMillis;
use model::elasticity::adapter::{Instance, InstanceState, Member, MemberState};
use model::elasticity::{
    Budget, Cooldowns, Deadlines, Fleet, FleetOrder, FleetOrderGiven, Machine, MachineState, Mode, Money,
    Objective, Policy, Resize, Sizing, Token,
};
use protocol::elasticity::{Controller, FleetAction, Sample, samples_kept};

use super::{Day, Load, Weather, judge};
use crate::dice::Dice;

/// What passes between two looks, in seconds.
pub(super) const STEP_S: u64 = 20;
const DAY_S: u64 = 24 * 3600;
/// From this hour on nothing errs any more, so that the end of the day is judged at rest.
const CALM_FROM_S: u64 = 20 * 3600;
/// What one member can do in a second is a hundred of these.
const CAPACITY: f64 = 100.0;
/// Operations in a second that take a hundredth of a member.
const OPERATIONS: f64 = 10.0;
const KEYS: usize = 64;
const MIN: u32 = 2;
const MAX: u32 = 8;
const UID: &str = "day";
pub(super) const STRANGER: &str = "other-1";

/// A machine at the provider.
#[derive(Clone, Debug)]
pub(super) struct Hosted {
    pub instance: Instance,
    pub shown_at: u64,
    pub boots_at: Option<u64>,
    /// Since when it is paid for without serving.
    pub idle_since: u64,
}

/// A member and what it does.
#[derive(Clone, Debug)]
pub(super) struct FleetNode {
    pub member: Member,
    pub done_at: Option<u64>,
    /// Its drain has said once that it was done, and was not.
    lied: bool,
    /// When it was measured last.
    pub measured_at: u64,
}

/// A controller that stands still in the middle of a turn.
pub(super) struct Sleeper {
    pub wakes_at: u64,
    pub generation: u64,
    pub actions: Vec<FleetAction>,
}

/// What of metrics comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Metrics {
    All,
    Half,
    Nothing,
    NoNumbers,
}

pub(super) struct World {
    pub weather: Weather,
    pub dice: Dice,
    /// Seconds since the day began.
    pub now: u64,
    pub fleet: Fleet,
    pub hosted: Vec<Hosted>,
    pub nodes: Vec<FleetNode>,
    pub keys: Vec<String>,
    pub samples: Vec<Sample>,
    pub refused: BTreeMap<Token, String>,
    pub controller: Controller,
    pub sleeper: Option<Sleeper>,
    base: f64,
    burst_until: u64,
    metrics: (Metrics, u64),
    pub provider_away_until: u64,
    pub engine_away_until: u64,
    pub protects_until: u64,
    pub day: Day,
}

/// Plays one day.
pub fn play(seed: u64, weather: Weather) -> Day {
    let mut world = World::new(seed, weather);
    while world.now < DAY_S {
        world.step();
    }
    judge::at_the_end(&mut world);
    world.day
}

fn policy(dice: &mut Dice, sizing: Sizing) -> Policy {
    let (add, remove) = Policy::paper_rules();
    Policy {
        engine: "played".to_owned(),
        provider: "played".to_owned(),
        machine_type: "t".to_owned(),
        min: MIN,
        max: MAX,
        standby: 0,
        mode: Mode::Auto,
        budget: Budget {
            per_hour: dice.chance(500).then_some(Money(u64::from(MAX) * 1_000_000)),
            per_day: None,
        },
        deadlines: Deadlines { boot: 600, join: 1800, drain: 1800, terminate: 600 },
        sources: Vec::new(),
        add,
        remove,
        sizing: Some(sizing),
        objective: Objective::default(),
        cooldowns: Cooldowns::default(),
        sample_age_max: 30,
    }
}

impl World {
    fn new(seed: u64, weather: Weather) -> World {
        let mut dice = Dice::apart(seed, 42);
        let mut fleet = Fleet::new("day", UID, policy(&mut dice, weather.sizing));
        fleet.policy.standby = u32::from(Dice::apart(seed, 43).chance(400));
        let base = match weather.load {
            Load::Constant => dice.between(60, 260) as f64,
            _ => dice.between(130, 170) as f64,
        };
        let mut world = World {
            weather,
            dice,
            now: 0,
            fleet,
            hosted: Vec::new(),
            nodes: Vec::new(),
            keys: Vec::new(),
            samples: Vec::new(),
            refused: BTreeMap::new(),
            controller: Controller::new(),
            sleeper: None,
            base,
            burst_until: 0,
            metrics: (Metrics::All, 0),
            provider_away_until: 0,
            engine_away_until: 0,
            protects_until: 0,
            day: Day::default(),
        };
        world.host(STRANGER, true);
        for number in 1..=u64::from(MIN) {
            world.found(number);
        }
        world.keys = (0..KEYS).map(|key| format!("m{}", 1 + key as u64 % u64::from(MIN))).collect();
        world
    }

    /// A machine that serves from the beginning.
    fn found(&mut self, number: u64) {
        let token = Token::new(UID, number);
        self.host(&token.0, true);
        let id = format!("m{number}");
        let hosted = self.hosted.last().expect("it was hosted now");
        let address = hosted.instance.address.clone();
        self.fleet.machines.push(Machine {
            token,
            instance: Some(hosted.instance.id.clone()),
            address: address.clone(),
            member: Some(id.clone()),
            kind: "t".to_owned(),
            price_per_hour: Money(1_000_000),
            state: MachineState::Serving,
            since: WallMillis(0),
            began: WallMillis(0),
            decision: None,
            standby: false,
            adopted: false,
            gone: None,
            note: None,
        });
        self.fleet.next_token = number + 1;
        self.nodes.push(node(id, address, MemberState::Serving));
    }

    fn errs(&self) -> bool {
        self.weather.errs && self.now < CALM_FROM_S
    }

    pub(super) fn wrong(&mut self, permille: u64) -> bool {
        self.errs() && self.dice.chance(permille)
    }

    /// The machines that are the fleet's own begin to be paid for here.
    pub(super) fn host(&mut self, token: &str, runs: bool) {
        let number = self.hosted.len();
        let hidden = if self.errs() && !runs { self.dice.below(40) } else { 0 };
        let never = !runs && self.wrong(60);
        let boots_at = (!runs && !never).then(|| self.now + self.dice.between(40, 200));
        self.hosted.push(Hosted {
            instance: Instance {
                id: format!("i{number}"),
                token: Some(token.to_owned()),
                address: Some(format!("a{number}")),
                state: if runs { InstanceState::Running } else { InstanceState::Pending },
                kind: Some("t".to_owned()),
                detail: None,
            },
            shown_at: self.now + hidden,
            boots_at,
            idle_since: self.now,
        });
    }

    /// What all members together have to do.
    fn load(&mut self) -> f64 {
        let turn = |period: u64| (self.now % period) as f64 / period as f64;
        match self.weather.load {
            Load::Constant => self.base,
            Load::Steps => {
                let rest = self.fleet.policy.cooldowns.shrink;
                if (self.now / rest).is_multiple_of(2) { self.base } else { 20.0 }
            }
            Load::Sinusoid(minutes) => self.base + 110.0 * (turn(minutes * 60) * std::f64::consts::TAU).sin(),
            Load::Bursts => {
                if self.now >= self.burst_until && self.dice.chance(1) {
                    self.burst_until = self.now + 1800;
                }
                if self.now < self.burst_until { self.base * 2.0 } else { 40.0 }
            }
        }
    }

    fn step(&mut self) {
        self.now += STEP_S;
        self.weather_changes();
        self.provider_goes_on();
        self.engine_goes_on();
        self.measure();
        self.operator();
        self.sleeper_wakes();
        if self.wrong(20) {
            self.controller = Controller::new();
        }
        for _ in 0..6 {
            if !self.turn() {
                break;
            }
        }
        judge::step(self);
    }

    fn weather_changes(&mut self) {
        if self.now >= self.metrics.1 {
            let kinds = [Metrics::Half, Metrics::Nothing, Metrics::NoNumbers];
            let kind = *self.dice.pick(&kinds);
            self.metrics = match self.wrong(3) {
                true => (kind, self.now + self.dice.between(60, 5400)),
                false => (Metrics::All, 0),
            };
        }
        let length = self.dice.between(20, 1200);
        if self.wrong(2) {
            self.provider_away_until = self.now + length;
        }
        if self.wrong(2) {
            self.engine_away_until = self.now + length;
        }
        if self.wrong(1) {
            self.protects_until = self.now + 3 * length;
        }
    }

    fn provider_goes_on(&mut self) {
        for place in 0..self.hosted.len() {
            let one = &mut self.hosted[place];
            if one.instance.state == InstanceState::Ending {
                one.instance.state = InstanceState::Ended;
            }
            if one.instance.state == InstanceState::Pending && one.boots_at.is_some_and(|at| at <= self.now) {
                one.instance.state = InstanceState::Running;
                let address = one.instance.address.clone();
                self.nodes.push(node(format!("m{}", 100 + place), address, MemberState::Waiting));
            }
        }
    }

    fn engine_goes_on(&mut self) {
        for place in 0..self.nodes.len() {
            let is_done = self.nodes[place].done_at.is_some_and(|at| at <= self.now);
            match self.nodes[place].member.state {
                MemberState::Joining if is_done => self.joined(place),
                MemberState::Draining if is_done => self.drained(place),
                _ => {}
            }
        }
    }

    pub(super) fn serving(&self) -> Vec<String> {
        let serves = self.nodes.iter().filter(|node| node.member.state == MemberState::Serving);
        serves.map(|node| node.member.id.clone()).collect()
    }

    fn joined(&mut self, place: usize) {
        self.nodes[place].done_at = None;
        self.nodes[place].member.state = MemberState::Serving;
        let id = self.nodes[place].member.id.clone();
        let share = KEYS / self.serving().len();
        for _ in 0..share {
            let mut counts: BTreeMap<&String, usize> = BTreeMap::new();
            self.keys.iter().for_each(|owner| *counts.entry(owner).or_default() += 1);
            let richest = counts.iter().max_by_key(|(_, count)| **count).map(|(owner, _)| (*owner).clone());
            let key = self.keys.iter().position(|owner| Some(owner) == richest.as_ref() && *owner != id);
            if let Some(key) = key {
                self.keys[key].clone_from(&id);
            }
        }
    }

    fn drained(&mut self, place: usize) {
        let id = self.nodes[place].member.id.clone();
        let others: Vec<String> = self.serving().into_iter().filter(|other| *other != id).collect();
        let lies = !self.nodes[place].lied && self.wrong(100);
        if others.is_empty() {
            return;
        }
        let owned: Vec<usize> = (0..self.keys.len()).filter(|key| self.keys[*key] == id).collect();
        let moved = if lies { owned.len() / 2 } else { owned.len() };
        for (count, key) in owned.into_iter().take(moved).enumerate() {
            self.keys[key].clone_from(&others[count % others.len()]);
        }
        let node = &mut self.nodes[place];
        (node.lied, node.done_at, node.member.state) = (lies || node.lied, None, MemberState::Drained);
    }

    fn measure(&mut self) {
        let load = self.load();
        let serving = self.nodes.iter().filter(|node| does_work(node)).count().max(1);
        let share = load / serving as f64;
        if share > CAPACITY {
            self.day.overloaded_minutes += 1;
        }
        for place in 0..self.nodes.len() {
            let sum: f64 = (0..12).map(|_| self.dice.below(1_000_000) as f64 / 1e6).sum();
            let comes = match self.metrics.0 {
                Metrics::All => true,
                Metrics::Half => place % 2 == 0,
                Metrics::Nothing | Metrics::NoNumbers => false,
            };
            let node = &mut self.nodes[place];
            let is_no_number = self.metrics.0 == Metrics::NoNumbers;
            if !does_work(node) || !(comes || is_no_number) {
                continue;
            }
            let noisy = share * (1.0 + (sum - 6.0) * self.weather.noise as f64 / 1000.0);
            if comes {
                node.measured_at = self.now;
            }
            // What is counted has no noise.
            let measures = [("processor", noisy.max(0.0)), ("operations", share * OPERATIONS)];
            for (measure, value) in measures {
                let most = if measure == "processor" { CAPACITY } else { CAPACITY * OPERATIONS };
                self.samples.push(Sample {
                    member: node.member.id.clone(),
                    measure: measure.to_owned(),
                    value: if is_no_number { f64::NAN } else { value.min(most) },
                    at: WallMillis(self.now * 1000),
                });
            }
        }
        let kept = samples_kept(&self.fleet.policy);
        let now = self.now * 1000;
        self.samples.retain(|sample| sample.at.0 + kept >= now);
    }

    /// Pauses are ended after a while, and now and then somebody orders something.
    fn operator(&mut self) {
        let waits = self.fleet.paused.as_ref().is_some_and(|paused| paused.at.0 / 1000 + 1200 < self.now);
        let orders = [FleetOrder::Plan(Resize(1)), FleetOrder::Plan(Resize(-1)), FleetOrder::Abort];
        let order = match waits {
            true => Some(FleetOrder::Resume),
            false if self.wrong(1) => Some(self.dice.pick(&orders).clone()),
            false => None,
        };
        let Some(order) = order else { return };
        let number = self.fleet.orders.last().map_or(0, |given| given.number) + 1;
        let at = WallMillis(self.now * 1000);
        self.fleet.orders.push(FleetOrderGiven { number, order, by: "op".to_owned(), at, answer: None });
        self.fleet.generation += 1;
    }

    fn sleeper_wakes(&mut self) {
        if let Some(sleeper) = self.sleeper.take_if(|sleeper| sleeper.wakes_at <= self.now) {
            self.day.late_acts += sleeper.actions.len() as u64;
            for action in &sleeper.actions {
                if !self.act(sleeper.generation, action) {
                    break;
                }
            }
        }
    }
}

/// Whether requests come to it.
pub(super) fn does_work(node: &FleetNode) -> bool {
    matches!(node.member.state, MemberState::Serving | MemberState::Draining)
}

fn node(id: String, address: Option<String>, state: MemberState) -> FleetNode {
    let member = Member { id, address, state, permille: None, detail: None, measures: BTreeMap::new() };
    FleetNode { member, done_at: None, lied: false, measured_at: 0 }
}
