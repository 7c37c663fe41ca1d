//! Every order in which two controllers that remember nothing can act on one fleet, beside a provider and an engine that err.
//!
//! ```text
//!   operator:    its orders, each at any moment
//!   controller:  read the document ─▶ observe, ask, decide ─▶ one act after another    two of them; each may hang
//!                for any time between, or be killed
//!   provider:    shows a machine late, loses a reply, gives two machines for one token, one that never boots
//!   engine:      joins and drains take their time; a drain may say that it is done and leave keys behind
//! ```
//!
//! Keys have ONE copy: a machine that is ended while it has a key has lost it. Acts that move data are done while the
//! document is as it was read ([`FleetAction::must_be_fresh`]); all others are done however late. From each world in which
//! nothing more can happen, a faithful environment goes on until all is at rest, and that is judged, too.

mod happenings;
mod standby;
mod world;

use model::elasticity::adapter::{InstanceState, MachineType, MemberState, PROTOCOL};
use model::elasticity::{
    Budget, Cooldowns, Deadlines, FleetOrder, FleetOrderGiven, MachineState, Mode, Money, Objective, Policy,
    Resize, Sizing,
};

use super::*;
use crate::explore::WORLDS_MAX;
use happenings::Happening;

/// What a broken driver, adapter or machine would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    /// A document is published over whatever is there.
    PublishesBlindly,
    /// Acts that move data are done however late.
    ActsLate,
    /// The drain's own word is taken for evidence.
    BelievesDrains,
    /// Machines that no entry has are not seen.
    ForgetsStrays,
    /// No time passes.
    KnowsNoDeadlines,
    /// A drain that can be taken back is not.
    BuysInMidDrain,
    /// A drain that the document takes back is never taken back at the engine.
    LeavesShutOut,
    /// The provider is not asked whether it would end a machine.
    SkipsPreflight,
    /// A stranger's token is taken for one of ours.
    TakesStrangers,
    /// Processes that wait to become members are not listed.
    HidesTheReady,
}

/// What is explored: how it begins, what is ordered, and how often what may go wrong.
#[derive(Clone, Debug)]
struct Scenario {
    serving: u32,
    orders: Vec<FleetOrder>,
    cancellable: bool,
    ticks: u8,
    faults: u8,
    /// Whether the provider refuses to end machines: never, from the beginning, or from some moment on.
    refuses: Refuses,
    /// Whether a member that was drained has left for good: it can neither be taken back nor join again.
    leaves: bool,
    /// Turns that the second controller may begin.
    second_turns: u8,
    /// Machines that stand by from the beginning. If any do, the policy wants one.
    standby: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refuses {
    Never,
    Always,
    Sometime,
}

#[derive(Clone, Debug)]
struct Host {
    instance: Instance,
    hidden: bool,
    stuck: bool,
    /// It had ended and was cleaned up, so nobody lists it any more.
    cleaned: bool,
}

/// What a controller is about to do.
#[derive(Clone, Debug)]
enum Phase {
    Idle,
    Read(Box<Fleet>),
    Acts { generation: u64, actions: Vec<FleetAction> },
}

#[derive(Clone, Debug)]
struct World {
    bug: Option<Bug>,
    now: u64,
    fleet: Fleet,
    boxes: Vec<Host>,
    members: Vec<Member>,
    /// The member that has each key.
    keys: Vec<String>,
    controllers: [Phase; 2],
    /// Turns that the second one may yet begin.
    second_turns: u8,
    /// Orders that are yet to be given.
    orders: Vec<FleetOrder>,
    cancellable: bool,
    leaves: bool,
    /// What the engine refused for good since a controller decided last.
    refused: BTreeMap<Token, String>,
    refuses: bool,
    /// It has refused from the beginning, so no drain may ever begin.
    protects: bool,
    may_refuse: bool,
    ticks: u8,
    faults: u8,
}

const TICK_MS: u64 = 101_000;
const STRANGER: &str = "stranger";

fn policy() -> Policy {
    Policy {
        engine: "e".to_owned(),
        provider: "p".to_owned(),
        machine_type: "t".to_owned(),
        min: 1,
        max: 3,
        standby: 0,
        mode: Mode::Observe,
        budget: Budget::default(),
        deadlines: Deadlines { boot: 100, join: 100, drain: 100, terminate: 100 },
        sources: Vec::new(),
        add: Vec::new(),
        remove: Vec::new(),
        sizing: Some(Sizing::Rules),
        objective: Objective::default(),
        cooldowns: Cooldowns::default(),
        sample_age_max: 30,
    }
}

fn instance(id: &str, token: &str, address: &str) -> Instance {
    Instance {
        id: id.to_owned(),
        token: Some(token.to_owned()),
        address: Some(address.to_owned()),
        state: InstanceState::Running,
        kind: Some("t".to_owned()),
        detail: None,
    }
}

fn member(id: &str, address: &str, state: MemberState) -> Member {
    Member {
        id: id.to_owned(),
        address: Some(address.to_owned()),
        state,
        permille: None,
        detail: None,
        measures: BTreeMap::new(),
    }
}

impl World {
    fn new(scenario: &Scenario, bug: Option<Bug>) -> World {
        let mut fleet = Fleet::new("f", "uid", policy());
        let mut world_boxes = vec![Host {
            instance: instance("i0", STRANGER, "a0"),
            hidden: false,
            stuck: false,
            cleaned: false,
        }];
        let mut members = Vec::new();
        fleet.policy.standby = scenario.standby.min(1);
        if scenario.standby > 0 {
            // In the other modes nothing is bought to stand by.
            fleet.policy.mode = Mode::Auto;
        }
        for number in 1..=u64::from(scenario.serving + scenario.standby) {
            let serves = number <= u64::from(scenario.serving);
            let (id, address) = (format!("i{number}"), format!("a{number}"));
            let token = Token::new("uid", number);
            world_boxes.push(Host {
                instance: instance(&id, &token.0, &address),
                hidden: false,
                stuck: false,
                cleaned: false,
            });
            let state = if serves { MemberState::Serving } else { MemberState::Waiting };
            members.push(member(&format!("m{number}"), &address, state));
            fleet.machines.push(Machine {
                token,
                instance: Some(id),
                address: Some(address),
                member: Some(format!("m{number}")),
                kind: "t".to_owned(),
                price_per_hour: Money(1_000_000),
                state: if serves { MachineState::Serving } else { MachineState::Ready },
                since: WallMillis(0),
                began: WallMillis(0),
                decision: None,
                standby: !serves,
                adopted: false,
                gone: None,
                note: None,
            });
        }
        fleet.next_token = fleet.machines.len() as u64 + 1;
        fleet.target = Some(scenario.serving);
        let keys = (0..2).map(|key| members[key % scenario.serving as usize].id.clone()).collect();
        World {
            bug,
            now: 1_000_000,
            fleet,
            boxes: world_boxes,
            members,
            keys,
            controllers: [Phase::Idle, Phase::Idle],
            second_turns: scenario.second_turns,
            orders: scenario.orders.clone(),
            cancellable: scenario.cancellable,
            leaves: scenario.leaves,
            refused: BTreeMap::new(),
            refuses: scenario.refuses == Refuses::Always,
            protects: scenario.refuses == Refuses::Always,
            may_refuse: scenario.refuses == Refuses::Sometime,
            ticks: scenario.ticks,
            faults: scenario.faults,
        }
    }

    /// What tells this world from others: not what only people read, times as ages, generations as *fresh* or *late*.
    fn key(&self) -> World {
        let bare = |fleet: &mut Fleet| {
            (fleet.settled, fleet.failed, fleet.next_decision) = (None, None, 0);
            fleet.decisions.clear();
            fleet.charges.clear();
            fleet.generation = u64::from(fleet.generation == self.fleet.generation);
            fleet.orders.retain(|order| order.answer.is_none());
            for machine in &mut fleet.machines {
                machine.decision = None;
                machine.note = machine.note.as_ref().map(|_| String::new());
                machine.since = WallMillis((self.now - machine.since.0).div_ceil(TICK_MS).min(2));
                machine.began = WallMillis(0);
                machine.gone = machine.gone.map(|_| WallMillis(0));
            }
        };
        self.with(|world| {
            world.now = 0;
            bare(&mut world.fleet);
            for controller in &mut world.controllers {
                match controller {
                    Phase::Idle => {}
                    Phase::Read(fleet) => bare(fleet),
                    Phase::Acts { generation, actions } => {
                        *generation = u64::from(*generation == self.fleet.generation);
                        for action in actions {
                            if let FleetAction::Publish(next) = action {
                                bare(next);
                            }
                        }
                    }
                }
            }
        })
    }

    fn with(&self, change: impl FnOnce(&mut World)) -> World {
        let mut next = self.clone();
        change(&mut next);
        next
    }

    /// Whether acts would change anything: a verb that is repeated in vain is rest.
    fn changes(&self, actions: &[FleetAction]) -> Result<bool, String> {
        let mut done = self.clone();
        for action in actions {
            if !done.act(self.fleet.generation, action)? {
                break;
            }
        }
        Ok(!actions.is_empty() && done.fingerprint() != self.fingerprint())
    }

    fn fingerprint(&self) -> u128 {
        xxhash_rust::xxh3::xxh3_128(format!("{:?}", self.key()).as_bytes())
    }

    fn order(&mut self) {
        let order = self.orders.remove(0);
        let number = self.fleet.orders.len() as u64 + 1;
        let given =
            FleetOrderGiven { number, order, by: "op".to_owned(), at: WallMillis(self.now), answer: None };
        self.fleet.orders.push(given);
        self.fleet.generation += 1;
    }

    /// A faithful environment and one controller, until nothing happens any more.
    fn settle(&self) -> Result<World, String> {
        let mut world = self.clone();
        let mut quiet = 0;
        for _ in 0..400 {
            let fleet = world.fleet.clone();
            let actions = world.decided(&fleet)?;
            let mut happened = !actions.is_empty();
            for action in &actions {
                if !world.act(fleet.generation, action)? {
                    break;
                }
            }
            while let Some(next) = world.environment().into_iter().next() {
                world = world.by_itself(next);
                happened = true;
                if world.members.iter().any(|one| one.state == MemberState::Draining)
                    && world.members.iter().filter(|one| one.state == MemberState::Serving).count() == 0
                {
                    break;
                }
            }
            // A provider that refuses is asked again and again; that is rest.
            let is_same = fleet == world.fleet;
            quiet = if is_same { quiet + 1 } else { 0 };
            if quiet > 12 && (!happened || is_same) {
                return Ok(world);
            }
            world.now += 30_000;
        }
        Err(format!("it never rests: {:#?}", world.fleet))
    }

    /// What must hold when all is at rest.
    fn has_settled(&self) -> Result<(), String> {
        let wrong = |what: &str| Err(format!("{what} at rest: {self:#?}"));
        let runs = |one: &&Host| {
            matches!(one.instance.state, InstanceState::Pending | InstanceState::Running)
                && one.instance.token.as_deref() != Some(STRANGER)
        };
        for one in self.boxes.iter().filter(runs) {
            let entries = self.fleet.machines.iter();
            let entry = entries
                .filter(|machine| machine.instance.as_ref() == Some(&one.instance.id))
                .collect::<Vec<_>>();
            let [entry] = entry[..] else { return wrong("a machine without an entry, or with two") };
            let is_told = self.refuses && !self.protects && entry.note.is_some();
            let may_wait =
                matches!(entry.state, MachineState::Empty | MachineState::Failed | MachineState::Terminating);
            let may_stand_by = entry.state == MachineState::Ready && entry.standby;
            if entry.state != MachineState::Serving && !may_stand_by && !(is_told && may_wait) {
                return wrong("a machine that is paid for and does not serve");
            }
        }
        for machine in self.fleet.in_state(MachineState::Serving) {
            let member = self.members.iter().find(|one| Some(&one.id) == machine.member.as_ref());
            if member.is_none_or(|member| member.state != MemberState::Serving) {
                return wrong("a member that is shut out");
            }
        }
        let ended = self.fleet.machines.iter().filter(|machine| machine.state.is_leaving()).count();
        if !self.refuses && (ended > 0 || self.fleet.target != Some(self.fleet.serving())) {
            return wrong("another size than the target");
        }
        if !self.refuses && self.fleet.standing_by() != self.fleet.standby_wanted() {
            return wrong("another number stands by");
        }
        Ok(())
    }
}

/// Visits every world; the number of them.
fn explore(scenario: &Scenario, bug: Option<Bug>) -> Result<usize, String> {
    crate::explore::explore(World::new(scenario, bug), WORLDS_MAX)
}

fn scenario(serving: u32, orders: Vec<FleetOrder>) -> Scenario {
    Scenario {
        serving,
        orders,
        cancellable: true,
        ticks: 1,
        faults: 1,
        refuses: Refuses::Never,
        leaves: false,
        second_turns: 1,
        standby: 0,
    }
}

fn plan(by: i32) -> FleetOrder {
    FleetOrder::Plan(Resize(by))
}

fn whole(scenario: &Scenario) -> usize {
    let one = |ticks, faults| {
        let scenario = Scenario { ticks, faults, ..scenario.clone() };
        explore(&scenario, None).unwrap_or_else(|wrong| panic!("{scenario:?}: {wrong}"))
    };
    one(1, 0) + one(0, 1)
}

#[test]
fn two_controllers_grow_a_fleet_without_harm_whatever_is_late_lost_or_doubled() {
    let visited = whole(&scenario(1, vec![plan(1)]));
    assert!(visited > 1_000, "{visited} worlds");
}

#[test]
fn two_controllers_shrink_a_fleet_without_harm_whatever_its_drain_says() {
    for cancellable in [true, false] {
        let visited = whole(&Scenario { cancellable, ..scenario(2, vec![plan(-1)]) });
        assert!(visited > 1_000, "{visited} worlds");
    }
}

#[test]
fn load_that_comes_back_takes_a_drain_back() {
    let comes_back = scenario(2, vec![plan(-1), plan(1)]);
    // What may go wrong is explored with one controller, and two of them where nothing does.
    let visited = whole(&Scenario { second_turns: 0, ..comes_back.clone() });
    let beside = explore(&Scenario { ticks: 0, faults: 0, ..comes_back }, None).unwrap();
    assert!(visited > 100 && beside > 1_000, "{visited} and {beside} worlds");
}

#[test]
fn a_member_that_has_left_for_good_is_not_taken_back() {
    for then in [plan(1), FleetOrder::Abort] {
        // Its end brings a growth, so a second controller would make this one endless.
        let alone = Scenario { leaves: true, second_turns: 0, ..scenario(2, vec![plan(-1), then]) };
        let visited = explore(&Scenario { ticks: 0, faults: 0, ..alone }, None);
        assert!(visited.as_ref().is_ok_and(|visited| *visited > 100), "{visited:?} worlds");
    }
}

#[test]
fn an_order_is_taken_back_at_any_moment() {
    for (serving, by) in [(1, 1), (2, -1)] {
        let visited = whole(&scenario(serving, vec![plan(by), FleetOrder::Abort]));
        assert!(visited > 1_000, "{visited} worlds");
    }
}

#[test]
fn a_provider_that_refuses_leaves_a_member_that_serves_or_is_told() {
    for refuses in [Refuses::Always, Refuses::Sometime] {
        let visited = whole(&Scenario { refuses, ..scenario(2, vec![plan(-1)]) });
        assert!(visited > 10, "{visited} worlds");
    }
}

#[test]
fn each_broken_driver_is_convicted() {
    let shrinks = scenario(2, vec![plan(-1)]);
    let comes_back = Scenario { faults: 0, ..scenario(2, vec![plan(-1), plan(1)]) };
    let taken_back = Scenario { ticks: 0, faults: 0, ..scenario(1, vec![plan(1), FleetOrder::Abort]) };
    let grows = Scenario { ticks: 0, ..scenario(1, vec![plan(1)]) };
    let refused = Scenario { refuses: Refuses::Always, ..shrinks.clone() };
    for (bug, scenario, why) in [
        (Bug::PublishesBlindly, &grows, "after"),
        (Bug::ActsLate, &taken_back, "is ended with a key"),
        (Bug::BelievesDrains, &shrinks, "is ended with a key"),
        (Bug::ForgetsStrays, &grows, "a machine without an entry"),
        (Bug::KnowsNoDeadlines, &grows, "paid for and does not serve"),
        (Bug::BuysInMidDrain, &comes_back, "while a drain could be taken back"),
        (Bug::LeavesShutOut, &comes_back, "shut out"),
        (Bug::SkipsPreflight, &refused, "does not serve"),
        (Bug::TakesStrangers, &grows, "a stranger is ended"),
    ] {
        match explore(scenario, Some(bug)) {
            Ok(visited) => panic!("{bug:?} was not found in {visited} worlds"),
            Err(wrong) => assert!(wrong.contains(why), "{bug:?}: {}", &wrong[..wrong.len().min(3000)]),
        }
    }
}
