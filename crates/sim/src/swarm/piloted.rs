//! Runs in which the autopilot is on, over processors that are played.
//!
//! It looks for half a minute before it decides, so these runs are long and quiet: orders, harm and the ends of
//! headmasters come far apart. What may take copies away is only a machine that stays dead, one after the other.

use std::sync::Arc;
use std::time::Duration;

use model::balance::{Join, Mode, Policy, Settings};
use protocol::rebalance::balancer::Weights;
use storage::Durability;

use super::{EngineKind, Fault, Losses, SafetyNet, Setup};
use crate::dice::Dice;
use crate::executor::{Executor, Power, Processor};
use crate::plant::Plant;

/// Of the runs with headmasters this many in a thousand have the autopilot on: they take ten times as long as others.
const PILOTED: u64 = 200;
/// Most nodes that serve from the beginning.
const SERVING_MAX: u32 = 5;
/// What a request costs beside the pause of its client, in seconds.
const REQUEST_S: f64 = 0.02;
/// How many operations a request makes on average: some name many keys.
const KEYS_PER_REQUEST: f64 = 1.6;

/// What only such a run has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piloted {
    /// What the autopilot may do.
    pub settings: Settings,
    /// How many of the last machines wait to be named.
    pub waiting: u32,
    /// Those before them are standbys from the beginning.
    pub standbys: u32,
    /// Zones in which the nodes lie, by turns.
    pub zones: u32,
    /// What part of all processors the clients ask for, in permille.
    pub busy: u64,
    /// Machines that die for good.
    pub deaths: u64,
    /// Times that a node is away, or stopped, for long.
    pub absences: u64,
    /// Whether each absence is a process that is stopped.
    pub only_stops: bool,
    /// How much dearer operations are while a neighbour runs on the machine, at most, in permille.
    pub neighbours: u64,
    /// Longest pause between two orders, in milliseconds; no orders where this is `None`.
    pub orders_ms: Option<u64>,
}

impl Piloted {
    /// The policy with which the cluster is founded.
    pub fn policy(&self) -> Policy {
        Policy { mode: Mode::On, settings: self.settings.clone(), ..Policy::founded(0) }
    }
}

impl Setup {
    /// Draws a run. The autopilot is on in a part of those with headmasters.
    pub fn of_seed(seed: u64) -> Setup {
        let (mut setup, mut dice) = (Setup::ordinary(seed), Dice::apart(seed, 34));
        // Keys of a tenth of the runs lie in windows, of which a few are all that a run has.
        let mut placement = Dice::apart(seed, 40);
        setup.theta = placement.chance(100).then(|| *placement.pick(&[1, 2, 3, 64]));
        if setup.theta.is_some() && placement.chance(500) {
            setup.groups = *placement.pick(&[1, 2, 3, 7]);
        }
        if setup.headmasters && dice.chance(PILOTED) { setup.with_autopilot() } else { setup }
    }

    /// The same run with the autopilot on, over played processors, with standbys, and machines that stay dead.
    pub fn with_autopilot(mut self) -> Setup {
        let mut dice = Dice::apart(self.seed, 35);
        self.calm_down(&mut dice);
        let waiting = dice.below(2) as u32;
        let bears_deaths = self.replicas >= 3;
        let standbys = if bears_deaths { dice.below(3) as u32 } else { dice.below(2) as u32 };
        let serving = (u32::from(self.replicas) + dice.between(0, 2) as u32)
            .clamp(3, SERVING_MAX.max(u32::from(self.replicas)));
        self.nodes = serving + standbys + waiting;
        let deaths = if bears_deaths && standbys > 0 { dice.between(1, u64::from(standbys)) } else { 0 };
        let settings = Settings {
            residence_s: dice.between(60, 600) as u32,
            rest_s: 60,
            least: dice.between(5, 30) as u32,
            join: *dice.pick(&[Join::Auto, Join::Ordered]),
            replace_after_s: dice.between(60, 75) as u32,
            ..Settings::default()
        };
        self.autopilot = Some(Piloted {
            settings,
            waiting,
            standbys,
            zones: *dice.pick(&[3, self.nodes, self.nodes]),
            busy: dice.between(500, 800),
            deaths,
            absences: dice.below(3),
            only_stops: false,
            neighbours: dice.between(1500, 5000),
            orders_ms: dice.chance(600).then(|| *dice.pick(&[40_000, 100_000, 200_000])),
        });
        self
    }

    /// Long, with few requests and little harm, of which none takes copies away.
    fn calm_down(&mut self, dice: &mut Dice) {
        (self.moves, self.headmasters) = (true, true);
        (self.span, self.think) = (Duration::from_secs(dice.between(300, 600)), Duration::from_millis(600));
        (self.clients, self.keys) = (dice.between(3, 5) as u32, dice.between(24, 48) as u32);
        self.redis_clients = self.redis_clients.min(1);
        (self.readers, self.storms, self.crowded) = (0, 0, None);
        // Of what may have been deleted, long runs would excuse too much.
        (self.long_values, self.too_long, self.deletes) = (0, 0, self.deletes.min(10));
        if self.replicas >= 3 {
            let quorum = self.replicas / 2 + 1;
            (self.reads, self.writes) = (quorum, quorum);
        }
        (self.engine, self.losses) = (EngineKind::Log(Durability::Always), Losses::None);
        let taken = |setup: &Setup, fault: Fault| {
            setup.forgets_on(fault) || !setup.bears(fault) || fault == Fault::Crowd
        };
        self.faults = self.faults.iter().copied().filter(|&fault| !taken(self, fault)).collect();
        self.harms = if self.faults.is_empty() { 0 } else { dice.below(6) };
        // A hint on a machine that stays dead is replaced by comparing alone.
        self.without.retain(|&net| net != SafetyNet::AntiEntropy);
    }

    /// A run in which a planted bug of the autopilot has its chance.
    pub(super) fn bring_out_piloted(&mut self, plant: Plant) -> (Vec<Fault>, u64) {
        *self = self.clone().with_autopilot();
        let piloted = self.autopilot.as_mut().expect("it was just drawn");
        (piloted.waiting, piloted.deaths, piloted.orders_ms) = (0, 0, None);
        match plant {
            Plant::StoppedRefuse => {
                (self.nodes, piloted.standbys, piloted.absences) = (4, 1, 3);
                (piloted.only_stops, piloted.neighbours) = (true, 1000);
            }
            _ => {
                // One replica: only copies relieve a node. Of two nodes each is tempted to give back what it got.
                (self.nodes, self.replicas, self.reads, self.writes) = (2, 1, 1, 1);
                (self.keys, self.span) = (8, Duration::from_secs(500));
                (piloted.standbys, piloted.absences) = (0, 0);
                (piloted.busy, piloted.neighbours) = (400, 8000);
                piloted.settings.residence_s = 3600;
            }
        }
        piloted.zones = self.nodes;
        (Vec::new(), 0)
    }

    /// The processors of all machines, if the run plays them; the last ones do not serve at first.
    pub fn processors(&self, executor: &Arc<Executor>) -> Vec<Option<Arc<Processor>>> {
        let Some(piloted) = &self.autopilot else { return (0..self.nodes).map(|_| None).collect() };
        let mut dice = Dice::apart(self.seed, 36);
        let drawn: Vec<(f64, f64)> = (0..self.nodes)
            .map(|_| (dice.between(250, 1000) as f64 / 1000.0, dice.between(800, 1250) as f64 / 1000.0))
            .collect();
        let serving = (self.nodes - piloted.waiting - piloted.standbys) as usize;
        let cost = self.cost_of_work(drawn[..serving].iter().map(|(processors, _)| processors).sum());
        let power = drawn.into_iter().map(|(processors, factor)| Power { processors, cost: cost * factor });
        power.map(|power| Some(Arc::new(Processor::new(executor.clone(), power)))).collect()
    }

    /// Microseconds of a played processor that a microsecond of weighted work costs, so that all clients together ask for
    /// the part of `processors` that was drawn.
    fn cost_of_work(&self, processors: f64) -> f64 {
        let Some(piloted) = &self.autopilot else { return 1.0 };
        let pause = self.think.as_secs_f64() / 2.0 + REQUEST_S;
        let operations = f64::from(self.clients + self.redis_clients) / pause * KEYS_PER_REQUEST;
        let (weights, puts) = (Weights::MEASURED, (self.puts + self.deletes) as f64 / 1000.0);
        let put = weights.stamped + weights.put * f64::from(self.replicas - 1);
        let weight = puts * put + (1.0 - puts) * weights.get * f64::from(self.reads);
        processors * 1e6 * piloted.busy as f64 / 1000.0 / (operations * weight)
    }

    /// Longest pause between two looks at the copies of what was acknowledged, in milliseconds, and the shortest one
    /// between two acknowledgements that are looked at. Each opens logs anew, so long runs look less often.
    pub fn look_pauses_ms(&self) -> (u64, u64) {
        if self.autopilot.is_some() { (6000, 1000) } else { (400, 10) }
    }
}
