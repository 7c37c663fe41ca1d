//! What rules and guards say of single observations. `explore` and the simulation have the histories.

mod ended;
mod growths;
mod lapses;
mod means;
mod prices;
mod refusals;
mod sizes;
mod starting;

use model::elasticity::adapter::{InstanceState, MachineType, MemberState, PROTOCOL};
use model::elasticity::{
    Budget, Cooldowns, Deadlines, FleetOrder, FleetOrderGiven, HeldChange, MachineState, Mode, Money,
    Objective, Policy, Resize, RuleVerdict, Sizing,
};

use super::*;

const NOW: u64 = 10_000_000;

fn policy() -> Policy {
    let (add, remove) = Policy::paper_rules();
    Policy {
        engine: "e".to_owned(),
        provider: "p".to_owned(),
        machine_type: "t".to_owned(),
        min: 1,
        max: 6,
        standby: 0,
        mode: Mode::Auto,
        budget: Budget::default(),
        deadlines: Deadlines::default(),
        sources: Vec::new(),
        add,
        remove,
        sizing: Some(Sizing::Rules),
        objective: Objective::default(),
        cooldowns: Cooldowns::default(),
        sample_age_max: 30,
    }
}

/// So many members that serve, and nothing measured.
fn seen(serving: u64) -> Observation {
    let mut fleet = Fleet::new("f", "uid", policy());
    let (mut instances, mut members) = (Vec::new(), Vec::new());
    for number in 1..=serving {
        let (address, member) = (Some(format!("a{number}")), format!("m{number}"));
        let token = Token::new("uid", number);
        instances.push(Instance {
            id: format!("i{number}"),
            token: Some(token.0.clone()),
            address: address.clone(),
            state: InstanceState::Running,
            kind: Some("t".to_owned()),
            detail: None,
        });
        members.push(Member {
            id: member.clone(),
            address: address.clone(),
            state: MemberState::Serving,
            permille: None,
            detail: None,
            measures: BTreeMap::new(),
        });
        fleet.machines.push(Machine {
            token,
            instance: Some(format!("i{number}")),
            address,
            member: Some(member),
            kind: "t".to_owned(),
            price_per_hour: Money(1_000_000),
            state: MachineState::Serving,
            since: WallMillis(0),
            began: WallMillis(NOW),
            decision: None,
            standby: false,
            adopted: false,
            gone: None,
            note: None,
        });
    }
    (fleet.next_token, fleet.target) = (serving + 1, Some(serving as u32));
    let kind = MachineType {
        name: "t".to_owned(),
        price_per_hour: Money(1_000_000),
        processors_milli: None,
        memory_bytes: None,
    };
    Observation {
        now: WallMillis(NOW),
        fleet,
        provider: Ok(ProviderFacts {
            name: "p".to_owned(),
            protocol: PROTOCOL,
            types: vec![kind],
            quota: None,
            warnings: Vec::new(),
        }),
        instances: Ok(instances),
        engine: Ok(engine()),
        members: Ok(members),
        preflight: BTreeMap::new(),
        evidence: BTreeMap::new(),
        refused: BTreeMap::new(),
        samples: Vec::new(),
    }
}

fn engine() -> EngineFacts {
    EngineFacts {
        name: "e".to_owned(),
        protocol: PROTOCOL,
        acts_max: 1,
        drain_cancellable: true,
        joins_at_boot: false,
        members_min: 1,
        measures: Vec::new(),
    }
}

/// A member was measured every ten seconds, from one time ago until another, in seconds.
fn measured(seen: &mut Observation, member: u64, value: f64, (from, until): (u64, u64)) {
    seen.samples.extend((until..=from).step_by(10).map(|age| Sample {
        member: format!("m{member}"),
        measure: "processor".to_owned(),
        value,
        at: WallMillis(NOW - age * 1000),
    }));
}

fn judged(seen: &Observation) -> (RuleVerdict, Option<HeldChange>) {
    let judged = rules::judge(seen, &seen.fleet);
    (judged.verdict, judged.held)
}

/// The document that a turn publishes, after preflight was granted and evidence proved nothing; as it was where none is.
fn published(seen: &Observation) -> Fleet {
    let mut seen = seen.clone();
    for _ in 0..10 {
        let actions = Controller::new().decide(&seen).actions;
        for action in &actions {
            match action {
                FleetAction::Publish(next) => return (**next).clone(),
                FleetAction::Ask(Question::Preflight { instance }) => {
                    seen.preflight.insert(instance.clone(), Ok(()));
                }
                FleetAction::Ask(
                    Question::EvidenceOf { member: name } | Question::EvidenceAt { address: name },
                ) => {
                    seen.evidence.insert(name.clone(), Ok(Evidence::default()));
                }
                _ => {}
            }
        }
    }
    seen.fleet
}

fn ordered(mut seen: Observation, order: FleetOrder) -> (Observation, Result<(), HeldChange>) {
    let number = seen.fleet.orders.len() as u64 + 1;
    let given = FleetOrderGiven { number, order, by: "op".to_owned(), at: WallMillis(NOW), answer: None };
    seen.fleet.orders.push(given);
    let next = published(&seen);
    let answer = next.orders.last().unwrap().answer.clone().unwrap();
    seen.fleet = next;
    (seen, answer)
}

#[test]
fn must_not_3_what_is_missing_old_or_no_number_shrinks_nothing() {
    let all = |value: f64, until: u64| {
        let mut seen = seen(3);
        (1..=3).for_each(|member| measured(&mut seen, member, value, (300, until)));
        seen
    };
    assert_eq!(judged(&all(5.0, 0)), (RuleVerdict::Remove, None));
    assert_eq!(judged(&seen(3)).0, RuleVerdict::Unknown, "nothing is measured");
    assert_eq!(judged(&all(5.0, 40)).0, RuleVerdict::Unknown, "the newest is 40 s old");
    assert_eq!(judged(&all(f64::NAN, 0)).0, RuleVerdict::Unknown, "no numbers");
    let mut half = seen(3);
    (1..=2).for_each(|member| measured(&mut half, member, 5.0, (300, 0)));
    assert_eq!(
        judged(&half),
        (
            RuleVerdict::Unknown,
            Some(HeldChange::Samples { fresh: 2, wanted: 3, since: None, covers: None, wants_s: 180 })
        )
    );
    let mut young = seen(3);
    (1..=3).for_each(|member| measured(&mut young, member, 5.0, (140, 0)));
    assert_eq!(judged(&young).0, RuleVerdict::Unknown, "they cover less than 60 % of five minutes");
    let settled = Some(WallMillis(NOW - 100_000));
    let mut changed = all(5.0, 0);
    changed.fleet.settled = settled;
    let since_then =
        HeldChange::Samples { fresh: 0, wanted: 2, since: settled, covers: settled, wants_s: 180 };
    assert_eq!(judged(&changed).1, Some(since_then));
    let mut future = all(5.0, 0);
    future.samples.iter_mut().for_each(|sample| sample.at.0 += 400_000);
    assert_eq!(judged(&future).0, RuleVerdict::Unknown, "a clock is ahead");
}

#[test]
fn a_majority_is_enough_to_grow_and_less_is_not() {
    let mut seen = seen(3);
    measured(&mut seen, 1, 90.0, (300, 0));
    assert_eq!(judged(&seen).0, RuleVerdict::Unknown);
    measured(&mut seen, 2, 10.0, (300, 0));
    assert_eq!(judged(&seen).0, RuleVerdict::Add);
    let next = published(&seen);
    assert_eq!((next.target, next.in_state(MachineState::Requested).count()), (Some(4), 1));
    let decision = next.decisions.last().unwrap();
    assert_eq!(
        (decision.verdict, decision.readings.len(), decision.expected),
        (RuleVerdict::Add, 3, Some(37.5))
    );
    assert!(
        decision.readings.iter().any(|reading| reading.mean.is_none()),
        "what is unknown is kept as such"
    );
}

#[test]
fn a_removal_that_would_bring_its_own_growth_is_not_made() {
    let mut seen = seen(2);
    seen.fleet.policy.remove[0].bound = 35.0;
    (1..=2).for_each(|member| measured(&mut seen, member, 25.0, (300, 0)));
    assert_eq!(judged(&seen).0, RuleVerdict::Stay, "one alone would have 50 %");
    seen.samples.iter_mut().for_each(|sample| sample.value = 15.0);
    assert_eq!(judged(&seen).0, RuleVerdict::Remove);
    let next = published(&seen);
    assert_eq!((next.target, next.in_state(MachineState::Draining).count()), (Some(1), 1));
}

#[test]
fn counters_that_go_back_are_no_samples() {
    let at = WallMillis;
    assert_eq!(per_second((5.0, at(1000)), (9.0, at(3000))), Some(2.0));
    assert_eq!(per_second((9.0, at(1000)), (5.0, at(3000))), None);
    assert_eq!(per_second((9.0, at(3000)), (9.0, at(3000))), None);
    assert_eq!(per_second((9.0, at(3000)), (10.0, at(1000))), None);
    assert_eq!(per_second((f64::NAN, at(1000)), (10.0, at(2000))), None);
}

#[test]
fn modes_propose_and_wait_for_an_approval() {
    let mut seen = seen(2);
    (1..=2).for_each(|member| measured(&mut seen, member, 90.0, (300, 0)));
    seen.fleet.policy.mode = Mode::Advise;
    seen.fleet = published(&seen);
    assert_eq!((seen.fleet.target, seen.fleet.machines.len()), (Some(2), 2));
    assert_eq!(seen.fleet.decisions.last().unwrap().held, Some(HeldChange::Mode));
    assert_eq!(published(&seen), seen.fleet, "it is proposed once");
    let why = why(&seen.fleet, WallMillis(NOW)).unwrap();
    assert_eq!(why.more, Obstacle::Held(HeldChange::Mode));
    assert!(matches!(&why.fewer, Obstacle::Rules(rules) if rules[0].value == Some(90.0)), "{:?}", why.fewer);
    let (_, wrong) = ordered(seen.clone(), FleetOrder::Approve { decision: 7 });
    assert!(matches!(wrong, Err(HeldChange::Order { .. })), "{wrong:?}");
    let (seen, answer) = ordered(seen, FleetOrder::Approve { decision: 1 });
    assert_eq!((answer, seen.fleet.target, seen.fleet.machines.len()), (Ok(()), Some(3), 3));
}

#[test]
fn money_of_the_hour_and_of_the_day_holds_an_order() {
    let mut seen = seen(2);
    seen.fleet.policy.budget.per_hour = Some(Money(3_000_000));
    let plan = |by| FleetOrder::Plan(Resize(by));
    let (_, answer) = ordered(seen.clone(), plan(2));
    let span = "hour".to_owned();
    assert_eq!(answer, Err(HeldChange::Budget { cost: 4_000_000, most: 3_000_000, span }));
    assert_eq!(ordered(seen.clone(), plan(1)).1, Ok(()));
    seen.fleet.policy.budget.per_day = Some(Money(2_500_000));
    let (_, answer) = ordered(seen.clone(), plan(1));
    assert!(matches!(answer, Err(HeldChange::Budget { ref span, .. }) if span == "day"), "{answer:?}");
    assert_eq!(ordered(seen.clone(), plan(5)).1, Err(HeldChange::Most { max: 6 }));
    assert_eq!(ordered(seen, plan(-2)).1, Err(HeldChange::Fewest { min: 1 }));
}

#[test]
fn only_a_machine_with_our_tag_whose_member_serves_is_adopted() {
    let adopt = |instance: &str, member: &str| FleetOrder::Adopt {
        instance: Some(instance.to_owned()),
        member: member.to_owned(),
    };
    let mut two = seen(2);
    two.fleet.machines.pop();
    two.fleet.target = Some(1);
    // Its token is one that this document never gave.
    two.instances.as_mut().unwrap()[1].token = Some("other-2".to_owned());
    assert_eq!(published(&two).machines, two.fleet.machines, "a stranger is left alone");
    for (instance, member) in [("i9", "m2"), ("i2", "m9"), ("i1", "m2"), ("i2", "m1")] {
        let (_, answer) = ordered(two.clone(), adopt(instance, member));
        assert!(matches!(answer, Err(HeldChange::Order { .. })), "{instance} {member}: {answer:?}");
    }
    let (seen, answer) = ordered(two, adopt("i2", "m2"));
    assert_eq!((answer, seen.fleet.target, seen.fleet.serving()), (Ok(()), Some(2), 2));
    assert!(seen.fleet.machines[1].adopted && seen.fleet.in_state(MachineState::Failed).next().is_none());
}

#[test]
fn three_failures_in_a_row_pause_and_an_order_resumes() {
    let mut seen = seen(1);
    seen.fleet.policy.mode = Mode::Observe;
    let (mut seen, _) =
        { ordered(std::mem::replace(&mut seen, super::tests::seen(1)), FleetOrder::Plan(Resize(1))) };
    for _ in 0..20 {
        let requested = seen.fleet.in_state(MachineState::Requested).map(|machine| machine.token.clone());
        seen.refused = requested.map(|token| (token, "no such image".to_owned())).collect();
        seen.fleet = published(&seen);
    }
    assert_eq!((seen.fleet.failures, seen.fleet.machines.len()), (3, 4));
    assert!(seen.fleet.paused.is_some());
    let (_, answer) = ordered(seen.clone(), FleetOrder::Plan(Resize(1)));
    assert_eq!(answer, Err(HeldChange::Paused));
    seen.refused.clear();
    let (seen, answer) = ordered(seen, FleetOrder::Resume);
    assert_eq!((answer, seen.fleet.in_state(MachineState::Requested).count()), (Ok(()), 1));
}

#[test]
fn a_silent_adapter_lets_nothing_begin() {
    let mut deaf = seen(2);
    (1..=2).for_each(|member| measured(&mut deaf, member, 90.0, (300, 0)));
    deaf.members = Err("it hangs".to_owned());
    let next = published(&deaf);
    assert_eq!((next.target, next.machines.len()), (Some(2), 2));
    assert!(matches!(next.decisions[0].held, Some(HeldChange::Unheard { .. })));
    let (_, answer) = ordered(deaf, FleetOrder::Plan(Resize(-1)));
    assert!(matches!(answer, Err(HeldChange::Unheard { .. })), "{answer:?}");
}

/// The machine of this number is this far, and its member is.
fn put(seen: &mut Observation, number: usize, machine: MachineState, member: MemberState) {
    seen.fleet.machines[number - 1].state = machine;
    seen.members.as_mut().unwrap()[number - 1].state = member;
}

/// What a turn does but publish, after each question was answered; evidence proves nothing.
fn acts(seen: &Observation) -> Vec<FleetAction> {
    let mut seen = seen.clone();
    for _ in 0..10 {
        let actions = Controller::new().decide(&seen).actions;
        let asked = seen.clone();
        for action in &actions {
            match action {
                FleetAction::Ask(Question::Preflight { instance }) => {
                    seen.preflight.insert(instance.clone(), Ok(()));
                }
                FleetAction::Ask(
                    Question::EvidenceOf { member: name } | Question::EvidenceAt { address: name },
                ) => {
                    seen.evidence.insert(name.clone(), Ok(Evidence::default()));
                }
                _ => {}
            }
        }
        if asked == seen {
            return actions.into_iter().filter(|action| !matches!(action, FleetAction::Publish(_))).collect();
        }
    }
    panic!("it never stops asking");
}

#[test]
fn what_has_left_is_not_taken_back_and_one_that_is_refused_for_good_fails() {
    for (member, comes_back) in [(MemberState::Drained, false), (MemberState::Draining, true)] {
        let mut two = seen(2);
        put(&mut two, 2, MachineState::Empty, member);
        two.fleet.target = Some(1);
        let (seen, answer) = ordered(two, FleetOrder::Abort);
        let serving = if comes_back { 2 } else { 1 };
        assert_eq!((answer, seen.fleet.serving(), seen.fleet.target), (Ok(()), serving, Some(serving)));
    }
    let mut two = seen(2);
    put(&mut two, 2, MachineState::Serving, MemberState::Drained);
    assert!(matches!(acts(&two)[..], [FleetAction::Join { .. }]), "{:?}", acts(&two));
    two.refused.insert(Token::new("uid", 2), "it was a member".to_owned());
    let next = published(&two);
    assert_eq!(next.machines[1].state, MachineState::Failed);
    assert_eq!(next.in_state(MachineState::Requested).count(), 1, "another one takes its place");
}

#[test]
fn a_member_that_stands_by_is_drained_before_its_machine_goes() {
    for state in [MachineState::Failed, MachineState::Empty] {
        let mut two = seen(2);
        put(&mut two, 2, state, MemberState::Standby);
        two.fleet.target = Some(1);
        let acts = acts(&two);
        assert!(
            matches!(&acts[..], [FleetAction::Drain { member, .. }] if member == "m2"),
            "{state:?}: {acts:?}"
        );
    }
}

#[test]
fn bounds_wait_for_members_of_no_machine_whatever_they_do() {
    for state in [MemberState::Down, MemberState::Serving, MemberState::Draining, MemberState::Standby] {
        let mut three = seen(3);
        put(&mut three, 3, MachineState::Serving, state);
        three.fleet.machines.truncate(1);
        three.instances.as_mut().unwrap().truncate(1);
        (three.fleet.target, three.fleet.policy.min) = (Some(1), 3);
        let next = published(&three);
        assert_eq!(next.machines.len(), 1, "{state:?}");
        assert!(matches!(next.decisions[0].held, Some(HeldChange::Engine { .. })), "{:?}", next.decisions);
        // Nothing but what waits or has left: it is bought.
        let left = [MemberState::Waiting, MemberState::Drained];
        let members = three.members.as_mut().unwrap();
        (members[1].state, members[2].state) = (left[0], left[1]);
        assert_eq!(published(&three).machines.len(), 3);
    }
}

/// The machine of this number has ended, and its member is down.
fn end(seen: &mut Observation, number: usize) {
    seen.instances.as_mut().unwrap()[number - 1].state = InstanceState::Ended;
    seen.instances.as_mut().unwrap()[number - 1].detail = Some("killed by\nsignal 9".to_owned());
    seen.members.as_mut().unwrap()[number - 1].state = MemberState::Down;
}

/// This much later, in milliseconds, by the document that is published now.
fn later(seen: &mut Observation, millis: u64) {
    seen.fleet = published(seen);
    seen.now.0 += millis;
}

#[test]
fn machines_that_die_soon_after_they_serve_pause_and_a_lapse_of_the_list_replaces_nothing() {
    let mut four = seen(4);
    four.fleet.machines[1].since = WallMillis(0);
    for number in [2, 3, 4] {
        four.fleet.machines[number - 1].since = WallMillis(NOW - 60_000);
        end(&mut four, number);
    }
    later(&mut four, 100_000);
    assert_eq!(four.fleet.serving(), 4, "it must last");
    assert!(four.fleet.machines[1].note.as_ref().unwrap().contains("killed by signal 9"));
    let mut lapsed = four.clone();
    lapsed.instances.as_mut().unwrap().iter_mut().for_each(|one| one.state = InstanceState::Running);
    later(&mut lapsed, 100_000);
    assert_eq!((lapsed.fleet.machines[1].gone, &lapsed.fleet.machines[1].note), (None, &None));
    assert_eq!(published(&lapsed).serving(), 4, "it did not last");
    later(&mut four, 30_000);
    let next = published(&four);
    assert_eq!((next.in_state(MachineState::Failed).count(), next.failures), (3, 3));
    assert!(next.paused.as_ref().unwrap().why.contains("killed by signal 9"), "{:?}", next.paused);
    assert_eq!(next.in_state(MachineState::Requested).count(), 0, "it pauses before it buys");
}

#[test]
fn a_machine_that_dies_after_hours_is_replaced_and_failures_are_forgiven_after_an_hour_of_service() {
    let mut two = seen(2);
    end(&mut two, 2);
    later(&mut two, 121_000);
    let next = published(&two);
    assert_eq!((next.failures, next.in_state(MachineState::Requested).count()), (0, 1));
    for (served, failures) in [(3_500_000, 2), (3_600_000, 0)] {
        let mut one = seen(1);
        (one.fleet.failures, one.fleet.failed) = (2, Some(WallMillis(NOW - 3_600_000)));
        one.fleet.machines[0].since = WallMillis(NOW - served);
        assert_eq!(published(&one).failures, failures, "after {served} ms of service");
    }
}

#[test]
fn entries_are_bounded_whatever_failed() {
    let mut one = seen(1);
    one.fleet.policy.max = 2;
    for number in 2..=6 {
        let mut failed = one.fleet.machines[0].clone();
        (failed.token, failed.state) = (Token::new("uid", number), MachineState::Failed);
        (failed.instance, failed.member, failed.since) = (None, None, WallMillis(NOW));
        one.fleet.machines.push(failed);
    }
    one.fleet.next_token = 7;
    let (_, answer) = ordered(one.clone(), FleetOrder::Plan(Resize(1)));
    assert!(matches!(answer, Err(HeldChange::Provider { .. })), "{answer:?}");
    one.fleet.machines.pop();
    assert_eq!(ordered(one, FleetOrder::Plan(Resize(1))).1, Ok(()));
}

#[test]
fn load_at_most_doubles_a_fleet_and_says_where_nothing_was_learned() {
    let mut three = seen(3);
    (three.fleet.policy.sizing, three.fleet.policy.max) = (Some(Sizing::Target), 40);
    (1..=2).for_each(|member| measured(&mut three, member, 95.0, (300, 0)));
    let mut operations = three.samples.clone();
    operations.iter_mut().for_each(|one| (one.measure, one.value) = ("operations".to_owned(), 1000.0));
    three.samples.extend(operations);
    // Nothing is learned of a size while one of its members is not measured.
    let next = published(&three);
    assert_eq!(next.decisions.last().unwrap().held, Some(HeldChange::Unlearned), "{:?}", next.decisions);
    let learned = model::elasticity::Observed { members: 3, reads: 100.0, updates: 0.0, used: 90.0 };
    three.fleet.capacity.learn(learned);
    assert_eq!(published(&three).target, Some(6));
}

#[test]
fn what_set_the_target_is_told_also_once_rules_want_nothing() {
    let mut two = seen(2);
    (1..=2).for_each(|member| measured(&mut two, member, 30.0, (300, 0)));
    let (mut two, _) = ordered(two, FleetOrder::Plan(Resize(1)));
    two.fleet = published(&two);
    let newest = two.fleet.decisions.last().unwrap();
    assert_eq!(newest.verdict, RuleVerdict::Stay, "{:?}", two.fleet.decisions);
    let set = setting(&two.fleet).unwrap();
    assert_eq!((set.verdict, set.target, set.number), (RuleVerdict::Add, 3, 1));
    let why = why(&two.fleet, two.now).unwrap();
    assert_eq!((&why.decision, &why.newest, why.more), (set, newest, Obstacle::Done));
}

#[test]
fn a_member_that_its_engine_does_not_list_any_more_is_dropped_if_it_has_no_machine() {
    let mut two = seen(2);
    two.fleet.machines[1].adopted = true;
    two.fleet.machines[1].instance = None;
    two.instances.as_mut().unwrap().pop();
    two.members.as_mut().unwrap().pop();
    later(&mut two, 200_000);
    let mut deaf = two.clone();
    (deaf.members, deaf.now.0) = (Err("it hangs".to_owned()), NOW + 900_000);
    assert_eq!(published(&deaf).machines.len(), 2, "silence is no answer");
    assert_eq!(published(&two).machines.len(), 2);
    two.now.0 += 100_000;
    let next = published(&two);
    assert_eq!((next.machines.len(), next.target), (1, Some(1)));
}

#[test]
fn a_member_that_leaves_by_another_hand_has_a_slot() {
    for (state, begins) in [(MemberState::Draining, false), (MemberState::Down, true)] {
        let mut three = seen(3);
        put(&mut three, 3, MachineState::Failed, state);
        three.fleet.target = Some(1);
        let next = published(&three);
        assert_eq!(next.in_state(MachineState::Draining).count() == 1, begins, "{state:?}");
    }
}

#[test]
fn a_machine_that_never_started_is_asked_for_again() {
    let mut two = seen(2);
    put(&mut two, 2, MachineState::Booting, MemberState::Waiting);
    two.members.as_mut().unwrap().pop();
    two.fleet.machines[1].member = None;
    two.fleet.machines[1].since = two.now;
    assert_eq!(acts(&two), [], "it runs");
    two.instances.as_mut().unwrap()[1].state = InstanceState::Pending;
    assert!(matches!(acts(&two)[..], [FleetAction::Ensure { .. }]), "{:?}", acts(&two));
}

#[test]
fn a_quota_counts_what_runs_and_what_was_asked_for() {
    let mut two = seen(2);
    two.provider.as_mut().unwrap().quota = Some(3);
    let mut other = two.instances.as_ref().unwrap()[0].clone();
    (other.id, other.token) = ("i9".to_owned(), Some("other-1".to_owned()));
    let plan = || FleetOrder::Plan(Resize(1));
    assert_eq!(ordered(two.clone(), plan()).1, Ok(()));
    two.instances.as_mut().unwrap().push(other);
    assert!(matches!(ordered(two.clone(), plan()).1, Err(HeldChange::Provider { .. })));
    two.instances.as_mut().unwrap()[2].state = InstanceState::Ended;
    assert_eq!(ordered(two, plan()).1, Ok(()));
}

#[test]
fn a_note_says_what_is_waited_for_now() {
    let mut two = seen(2);
    put(&mut two, 2, MachineState::Failed, MemberState::Drained);
    two.fleet.machines[1].note = Some("it did not join in time".to_owned());
    two.fleet.target = Some(1);
    let note = |seen: &Observation| published(seen).machines[1].note.clone().unwrap();
    let says = |detail: &str| Ok(Evidence { detail: Some(detail.to_owned()), ..Evidence::default() });
    let asked = |seen: &Observation, detail: &str| {
        let mut seen = seen.clone();
        seen.evidence.insert("m2".to_owned(), says(detail));
        seen
    };
    let first = note(&asked(&two, "9 ranges are short"));
    let words = "it did not join in time; it waits because evidence is lacking: ";
    assert_eq!(first, format!("{words}9 ranges are short"));
    two.fleet = published(&asked(&two, "9 ranges are short"));
    assert_eq!(note(&asked(&two, "8 ranges are short")), first, "a count makes no document");
    assert_eq!(note(&asked(&two, "m1 is away")), format!("{words}m1 is away"));
    put(&mut two, 2, MachineState::Failed, MemberState::Draining);
    assert_eq!(note(&two), "it did not join in time", "nothing is waited for but its drain");
}
