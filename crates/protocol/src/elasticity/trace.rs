//! A trace of load, played on a fleet: what a policy would have cost, and for how long members would have had too much.
//!
//! The controller that decides is the real one. Provider and engine are the plainest that there can be: a machine boots,
//! joins and drains in given times, and load divides evenly. `sim` plays faults, this plays money.
//!
//! Must never: be taken for a forecast of what an engine does while data moves.

use std::collections::{BTreeMap, VecDeque};

use model::WallMillis;
use model::elasticity::adapter::{
    EngineFacts, Evidence, Instance, InstanceState, MachineType, Member, MemberState, PROTOCOL, ProviderFacts,
};
use model::elasticity::{Decision, Fleet, HeldChange, Machine, MachineState, Mode, Money, Policy, Token};

use super::{Controller, FleetAction, Observation, Question, Sample, samples_kept, setting};

/// Seconds between two looks.
const LOOK_S: u64 = 10;
/// Turns of one look at most: each publishes, and the next begins at once.
const TURNS_MAX: usize = 50;

/// What machines of a trace are like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machines {
    /// What an hour costs.
    pub price_per_hour: Money,
    /// Operations in a second at which one is used to 100 percent.
    pub operations: f64,
    /// Seconds until the engine sees one that was asked for.
    pub boots_s: u64,
    /// Seconds until it serves from then on.
    pub joins_s: u64,
    /// Seconds until nothing is on it.
    pub drains_s: u64,
}

/// What came of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TraceOutcome {
    /// What machines cost.
    pub paid: Money,
    /// Machine-minutes.
    pub machine_minutes: f64,
    /// Minutes in which members were used more than the objective allows with one lost.
    pub minutes_out: f64,
    /// Machine-minutes in which machines stood by, ready.
    pub ready_minutes: f64,
    /// Minutes in which the budget kept it from adding members.
    pub minutes_held: f64,
    /// Minutes of the trace.
    pub minutes: f64,
    /// The most members at a time.
    pub members_most: u32,
    /// Changes of size.
    pub changes: u32,
}

impl TraceOutcome {
    /// What as many machines cost all the time.
    pub fn fixed(trace: &[(u64, f64)], machines: &Machines, policy: &Policy, members: u32) -> TraceOutcome {
        let mut outcome = TraceOutcome::default();
        each_look(trace, |_, load| outcome.count(load, members, members, machines, policy));
        outcome
    }

    /// What whoever knows the future pays: at each time as many as it needs, and no fewer than the policy's fewest.
    pub fn clairvoyant(trace: &[(u64, f64)], machines: &Machines, policy: &Policy) -> TraceOutcome {
        let mut outcome = TraceOutcome::default();
        each_look(trace, |_, load| {
            let members = needed(load, machines, policy);
            outcome.count(load, members, members, machines, policy);
        });
        outcome
    }

    /// What even division pays: whenever it does not rest, as many as carry the mean load of the objective's span at what one
    /// machine carries within the objective. It learns nothing, and knows neither a budget nor a member that may be lost.
    pub fn evenly_divided(trace: &[(u64, f64)], machines: &Machines, policy: &Policy) -> TraceOutcome {
        let mut outcome = TraceOutcome::default();
        let looks = (policy.objective.over / LOOK_S).max(1) as usize;
        let mut serving = needed(trace.first().map_or(0.0, |first| first.1), machines, policy);
        let mut lately: VecDeque<f64> = VecDeque::new();
        // When members will serve, when others will be gone, and when the size changed last, in seconds.
        let (mut coming, mut leaving, mut settled) = (Vec::<u64>::new(), Vec::<u64>::new(), None::<u64>);
        each_look(trace, |at, load| {
            let before = coming.len();
            coming.retain(|ready| *ready > at);
            leaving.retain(|gone| *gone > at);
            if coming.len() < before {
                (serving, settled) = (serving + (before - coming.len()) as u32, Some(at));
            }
            lately.push_back(load);
            lately.drain(..lately.len().saturating_sub(looks));
            let wanted = needed(lately.iter().sum::<f64>() / lately.len() as f64, machines, policy);
            let rests = |seconds: u64| settled.is_some_and(|settled| at < settled + seconds);
            let is_at_rest = coming.is_empty() && leaving.is_empty();
            if is_at_rest && wanted > serving && !rests(policy.cooldowns.grow) {
                let ready = |joined: u32| at + machines.boots_s + machines.joins_s * u64::from(joined);
                coming.extend((1..=wanted - serving).map(ready));
                outcome.changes += 1;
            } else if is_at_rest && wanted < serving && !rests(policy.cooldowns.shrink) {
                leaving
                    .extend((1..=serving - wanted).map(|left: u32| at + machines.drains_s * u64::from(left)));
                (serving, settled) = (wanted, leaving.last().copied());
                outcome.changes += 1;
            }
            let serves = serving + leaving.len() as u32;
            outcome.count(load, serves, serves + coming.len() as u32, machines, policy);
        });
        outcome
    }

    fn count(&mut self, load: f64, serving: u32, paid_for: u32, machines: &Machines, policy: &Policy) {
        let minutes = LOOK_S as f64 / 60.0;
        let all = Money(machines.price_per_hour.0 * u64::from(paid_for));
        self.paid = self.paid + all.for_millis(LOOK_S * 1000);
        self.machine_minutes += minutes * f64::from(paid_for);
        self.minutes += minutes;
        self.members_most = self.members_most.max(serving);
        let used = 100.0 * load / machines.operations / f64::from(serving.max(1));
        if used > policy.objective.strained {
            self.minutes_out += minutes;
        }
    }
}

/// The members that carry a load within the objective.
pub fn needed(load: f64, machines: &Machines, policy: &Policy) -> u32 {
    wanted(load, machines, policy).clamp(policy.min, policy.max)
}

/// Members that carry a load within the policy's objective, whatever its min and max.
pub fn wanted(load: f64, machines: &Machines, policy: &Policy) -> u32 {
    let each = machines.operations * policy.objective.at_most / 100.0;
    (load / each).ceil() as u32
}

/// Calls with each time of a trace, in seconds, and the load then. The trace is sorted by time; a load lasts until the next.
fn each_look(trace: &[(u64, f64)], mut look: impl FnMut(u64, f64)) {
    let (Some((first, _)), Some((last, _))) = (trace.first(), trace.last()) else { return };
    let (mut at, mut place) = (*first, 0);
    while at <= *last {
        while trace.get(place + 1).is_some_and(|(next, _)| *next <= at) {
            place += 1;
        }
        look(at, trace[place].1);
        at += LOOK_S;
    }
}

/// Plays a trace of `(seconds, operations in a second)`, sorted by time, with a fleet that begins as large as it needs.
pub fn play(trace: &[(u64, f64)], machines: &Machines, policy: &Policy) -> TraceOutcome {
    let mut stage = TraceStage::new(policy, machines, trace.first().map_or(0.0, |first| first.1));
    let mut outcome = TraceOutcome::default();
    each_look(trace, |at, load| {
        stage.look(at, load);
        let serving = stage.serving();
        outcome.count(load, serving, stage.machines.len() as u32, machines, policy);
        outcome.ready_minutes +=
            LOOK_S as f64 / 60.0 * stage.fleet.in_state(MachineState::Ready).count() as f64;
        if stage.is_held_by_budget() {
            outcome.minutes_held += LOOK_S as f64 / 60.0;
        }
    });
    outcome.changes = stage.changes;
    outcome
}

/// A machine of the stage.
struct Played {
    /// When it was asked for.
    began: u64,
    /// When the engine was told to take it in.
    joins: Option<u64>,
    /// When it was told to drain it.
    drains: Option<u64>,
}

struct TraceStage<'a> {
    fleet: Fleet,
    controller: Controller,
    machines: BTreeMap<String, Played>,
    samples: Vec<Sample>,
    facts: &'a Machines,
    now: u64,
    /// How often another size was wanted.
    changes: u32,
}

impl TraceStage<'_> {
    fn new<'a>(policy: &Policy, facts: &'a Machines, load: f64) -> TraceStage<'a> {
        let policy = Policy { mode: Mode::Auto, ..policy.clone() };
        let members = needed(load, facts, &policy);
        let mut fleet = Fleet::new("trace", "t", policy);
        let mut machines = BTreeMap::new();
        for number in 1..=u64::from(members) {
            let token = Token::new("t", number);
            machines.insert(token.0.clone(), Played { began: 0, joins: Some(0), drains: None });
            fleet.machines.push(Machine {
                instance: Some(token.0.clone()),
                address: Some(token.0.clone()),
                member: Some(token.0.clone()),
                kind: fleet.policy.machine_type.clone(),
                price_per_hour: facts.price_per_hour,
                state: MachineState::Serving,
                since: WallMillis(0),
                began: WallMillis(0),
                decision: None,
                standby: false,
                adopted: false,
                gone: None,
                note: None,
                token,
            });
        }
        fleet.next_token = u64::from(members) + 1;
        TraceStage {
            fleet,
            controller: Controller::new(),
            machines,
            samples: Vec::new(),
            facts,
            now: 0,
            changes: 0,
        }
    }

    /// How far the engine says that a machine is; `None` where it has not seen it.
    fn state(&self, played: &Played) -> Option<MemberState> {
        if self.now < played.began + self.facts.boots_s && played.joins.is_none() {
            return None;
        }
        match (played.joins, played.drains) {
            (_, Some(since)) if self.now >= since + self.facts.drains_s => Some(MemberState::Drained),
            (_, Some(_)) => Some(MemberState::Draining),
            (Some(0), None) => Some(MemberState::Serving),
            (Some(since), None) if self.now >= since + self.facts.joins_s => Some(MemberState::Serving),
            (Some(_), None) => Some(MemberState::Joining),
            (None, None) => Some(MemberState::Waiting),
        }
    }

    /// Members that serve; one that is drained does until it is empty.
    fn serving(&self) -> u32 {
        let serves = |played: &&Played| {
            matches!(self.state(played), Some(MemberState::Serving | MemberState::Draining))
        };
        self.machines.values().filter(serves).count() as u32
    }

    /// Whether members are wanted that the budget does not allow: by the newest verdict, or for a size that was decided.
    fn is_held_by_budget(&self) -> bool {
        let held = |decision: &Decision| matches!(decision.held, Some(HeldChange::Budget { .. }));
        let is_open = |decision: &&Decision| decision.ended.is_none();
        self.fleet.decisions.last().is_some_and(held)
            || setting(&self.fleet).filter(is_open).is_some_and(held)
    }

    fn look(&mut self, at: u64, load: f64) {
        self.now = at;
        let share = load / f64::from(self.serving().max(1));
        let used = (100.0 * share / self.facts.operations).min(100.0);
        let now = WallMillis(at * 1000);
        for (name, played) in &self.machines {
            if self.state(played) == Some(MemberState::Serving) {
                for (measure, value) in [("processor", used), ("operations", share)] {
                    let (member, measure) = (name.clone(), measure.to_owned());
                    self.samples.push(Sample { member, measure, value, at: now });
                }
            }
        }
        let oldest = now.0.saturating_sub(samples_kept(&self.fleet.policy));
        self.samples.retain(|sample| sample.at.0 >= oldest);
        let (mut preflight, mut evidence) = (BTreeMap::new(), BTreeMap::new());
        for _ in 0..TURNS_MAX {
            let seen = self.observed(now, std::mem::take(&mut preflight), std::mem::take(&mut evidence));
            let turn = self.controller.decide(&seen);
            for action in &turn.actions {
                match action {
                    FleetAction::Ask(Question::Preflight { instance }) => {
                        preflight.insert(instance.clone(), Ok(()));
                    }
                    FleetAction::Ask(
                        Question::EvidenceOf { member: name } | Question::EvidenceAt { address: name },
                    ) => {
                        evidence.insert(name.clone(), Ok(self.evidence(name)));
                    }
                    act => self.act(act),
                }
            }
            let asks = turn.actions.iter().any(|action| matches!(action, FleetAction::Ask(_)));
            if !asks && !turn.look_after.is_zero() {
                return;
            }
            if asks {
                // Answers are of this turn, so those of the turn before stay.
                preflight.extend(seen.preflight);
                evidence.extend(seen.evidence);
            }
        }
    }

    fn act(&mut self, action: &FleetAction) {
        let now = self.now;
        let machine = |machines: &mut BTreeMap<String, Played>, name: &str, change: fn(&mut Played, u64)| {
            if let Some(played) = machines.get_mut(name) {
                change(played, now);
            }
        };
        match action {
            FleetAction::Publish(next) => {
                self.changes += u32::from(next.target != self.fleet.target);
                self.fleet = (**next).clone();
            }
            FleetAction::Ensure { token, .. } => {
                let played = Played { began: now, joins: None, drains: None };
                self.machines.entry(token.0.clone()).or_insert(played);
            }
            FleetAction::Terminate { instance, .. } => {
                self.machines.remove(instance);
            }
            FleetAction::Join { member, .. } => machine(&mut self.machines, member, |played, now| {
                (played.joins, played.drains) = (Some(now.max(1)), None);
            }),
            FleetAction::Drain { member, .. } => machine(&mut self.machines, member, |played, now| {
                played.drains = played.drains.or(Some(now));
            }),
            FleetAction::Cancel { member, .. } => machine(&mut self.machines, member, |played, _| {
                (played.joins, played.drains) = (Some(0), None);
            }),
            FleetAction::Forget { .. } | FleetAction::Ask(_) => {}
        }
    }

    fn evidence(&self, name: &str) -> Evidence {
        let is_empty = !self.machines.get(name).is_some_and(|played| {
            !matches!(self.state(played), None | Some(MemberState::Drained | MemberState::Waiting))
        });
        let said = Some(is_empty);
        let witnesses = vec!["others".to_owned()];
        Evidence { witnesses, owns_nothing: said, nothing_moves: said, nothing_short: said, detail: None }
    }

    fn observed(
        &self,
        now: WallMillis,
        preflight: BTreeMap<String, Result<(), super::VerbRefusal>>,
        evidence: BTreeMap<String, Result<Evidence, String>>,
    ) -> Observation {
        let kind = self.fleet.policy.machine_type.clone();
        let price_per_hour = self.facts.price_per_hour;
        let machine_type =
            MachineType { name: kind.clone(), price_per_hour, processors_milli: None, memory_bytes: None };
        let instance = |name: &String| Instance {
            id: name.clone(),
            token: Some(name.clone()),
            address: Some(name.clone()),
            state: InstanceState::Running,
            kind: Some(kind.clone()),
            detail: None,
        };
        let member = |(name, played): (&String, &Played)| {
            let state = self.state(played)?;
            let measures = BTreeMap::new();
            Some(Member {
                id: name.clone(),
                address: Some(name.clone()),
                state,
                permille: None,
                detail: None,
                measures,
            })
        };
        Observation {
            now,
            fleet: self.fleet.clone(),
            provider: Ok(ProviderFacts {
                name: "trace".to_owned(),
                protocol: PROTOCOL,
                types: vec![machine_type],
                quota: None,
                warnings: Vec::new(),
            }),
            instances: Ok(self.machines.keys().map(instance).collect()),
            engine: Ok(EngineFacts {
                name: "trace".to_owned(),
                protocol: PROTOCOL,
                acts_max: 1,
                drain_cancellable: true,
                joins_at_boot: false,
                members_min: 1,
                measures: vec!["processor".to_owned(), "operations".to_owned()],
            }),
            members: Ok(self.machines.iter().filter_map(member).collect()),
            preflight,
            evidence,
            refused: BTreeMap::new(),
            samples: self.samples.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use model::elasticity::{Budget, Cooldowns, Deadlines, Objective, Sizing};

    use super::*;

    const DAY_S: u64 = 24 * 3_600;

    fn machines() -> Machines {
        Machines {
            price_per_hour: Money(100_000),
            operations: 2_000.0,
            boots_s: 90,
            joins_s: 120,
            drains_s: 120,
        }
    }

    fn policy(sizing: Sizing) -> Policy {
        let (add, remove) = Policy::paper_rules();
        Policy {
            engine: "e".to_owned(),
            provider: "p".to_owned(),
            machine_type: "m".to_owned(),
            min: 2,
            max: 30,
            standby: 0,
            mode: Mode::Auto,
            budget: Budget::default(),
            deadlines: Deadlines::default(),
            sources: Vec::new(),
            add,
            remove,
            sizing: Some(sizing),
            objective: Objective::default(),
            cooldowns: Cooldowns::default(),
            sample_age_max: 30,
        }
    }

    fn wave(days: u64, mean: f64, around: f64) -> Vec<(u64, f64)> {
        let at = |minute: u64| {
            let seconds = minute * 60;
            let angle = std::f64::consts::TAU * seconds as f64 / DAY_S as f64;
            // Some noise that is the same in each run.
            let noise = ((minute * 2_654_435_761) % 1_000) as f64 / 1_000.0 - 0.5;
            (seconds, (mean - around * angle.cos()) * (1.0 + 0.1 * noise))
        };
        (0..days * 1_440).map(at).collect()
    }

    /// What a policy makes of a trace, beside machines for the peak and whoever knows the future.
    fn judged(trace: &[(u64, f64)], sizing: Sizing) -> (TraceOutcome, f64, f64) {
        let policy = policy(sizing);
        let peak = trace.iter().map(|one| needed(one.1, &machines(), &policy)).max().unwrap();
        let fixed = TraceOutcome::fixed(trace, &machines(), &policy, peak);
        let best = TraceOutcome::clairvoyant(trace, &machines(), &policy);
        let played = play(trace, &machines(), &policy);
        let part = |of: &TraceOutcome| played.paid.0 as f64 / of.paid.0 as f64;
        let (of_fixed, of_best) = (part(&fixed), part(&best));
        eprintln!("{sizing:?}: {of_fixed:.2} of fixed, {of_best:.2} of the best, {played:?}");
        (played, of_fixed, of_best)
    }

    #[test]
    fn by_load_a_day_costs_less_than_its_peak_and_little_more_than_the_future_known() {
        for (mean, around) in [(8_000.0, 6_000.0), (9_000.0, 7_000.0)] {
            for sizing in [Sizing::Target, Sizing::Forecast] {
                let (played, of_fixed, of_best) = judged(&wave(1, mean, around), sizing);
                assert!(of_fixed <= 0.75 && of_best <= 1.25, "{of_fixed} {of_best}");
                assert!(played.minutes_out <= 0.005 * played.minutes, "{played:?}");
            }
        }
    }

    #[test]
    fn a_machine_that_stands_by_is_paid_for_and_shortens_a_rise() {
        let rise = |(at, load): (u64, f64)| (at, if at < 7_200 { load } else { 2.0 * load });
        let trace: Vec<(u64, f64)> = wave(1, 3_000.0, 0.0).into_iter().take(240).map(rise).collect();
        let with = |standby| play(&trace, &machines(), &Policy { standby, ..policy(Sizing::Target) });
        let (without, with) = (with(0), with(2));
        assert!(with.minutes_out < without.minutes_out, "{with:?} {without:?}");
        assert!(
            with.ready_minutes > 400.0 && with.machine_minutes > without.machine_minutes + 400.0,
            "{with:?}"
        );
    }

    #[test]
    fn minutes_that_the_budget_held_are_counted() {
        let trace = wave(1, 8_000.0, 6_000.0);
        let with = |per_hour| {
            let budget = Budget { per_hour, per_day: None };
            play(&trace, &machines(), &Policy { budget, ..policy(Sizing::Target) })
        };
        let (free, bound) = (with(None), with(Some(Money(600_000))));
        assert_eq!((free.minutes_held, bound.members_most), (0.0, 6), "{free:?} {bound:?}");
        assert!(bound.minutes_held > 60.0 && bound.minutes_out > free.minutes_out, "{bound:?}");
    }

    #[test]
    fn even_division_is_as_late_as_machines_are_and_rests_as_the_policy_says() {
        let policy = policy(Sizing::Target);
        let constant = [(0, 3_000.0), (7_200, 3_000.0)];
        let divided = TraceOutcome::evenly_divided(&constant, &machines(), &policy);
        assert_eq!(divided, TraceOutcome::clairvoyant(&constant, &machines(), &policy));
        // Two carry 2,400 of it and five carry 6,000. The mean asks for a third at once, and later for two more.
        let hill = [(0, 2_000.0), (600, 6_000.0), (3_600, 2_000.0), (7_200, 2_000.0)];
        let divided = TraceOutcome::evenly_divided(&hill, &machines(), &policy);
        assert_eq!((divided.changes, divided.members_most), (4, 5), "{divided:?}");
        // A fourth is there 480 s after the rise: 210 for the third, 60 of rest, 210 more.
        assert!((divided.minutes_out - 8.0).abs() < 0.01, "{divided:?}");
    }

    #[test]
    fn constant_noisy_load_changes_nothing() {
        let (played, ..) = judged(&wave(1, 8_000.0, 0.0), Sizing::Forecast);
        assert!(played.changes <= 2, "{played:?}");
    }

    #[test]
    fn a_burst_that_came_yesterday_finds_machines_and_an_unknown_one_does_not() {
        let burst = |(at, load): (u64, f64)| {
            let is_burst = (36_000..39_600).contains(&(at % DAY_S));
            (at, if is_burst { 4.0 * load } else { load })
        };
        let trace: Vec<(u64, f64)> = wave(2, 3_000.0, 0.0).into_iter().map(burst).collect();
        let out = |sizing| {
            let one_day = |from: u64| trace.iter().filter(move |(at, _)| at / DAY_S == from).copied();
            let first: Vec<(u64, f64)> = one_day(0).collect();
            let both = judged(&trace, sizing).0.minutes_out;
            let first = judged(&first, sizing).0.minutes_out;
            (first, both - first)
        };
        let ((target_first, target_second), (first, second)) = (out(Sizing::Target), out(Sizing::Forecast));
        assert!(
            target_first > 3.0 && target_second > 3.0 && first > 3.0,
            "{target_first} {target_second} {first}"
        );
        assert!(second < first / 4.0, "{first} {second}");
    }
}
