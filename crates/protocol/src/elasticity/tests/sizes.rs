//! Sizes by load: growths that gain nothing, and removals that what is left could not carry.

use model::elasticity::{Decision, Observed, Reason};

use super::*;

const HOUR_MS: u64 = 3_600_000;

/// Every member had this of a measure all the time.
fn all_had(seen: &mut Observation, measure: &str, value: f64) {
    for member in 1..=seen.fleet.machines.len() as u64 {
        let before = seen.samples.len();
        measured(seen, member, value, (300, 0));
        seen.samples[before..].iter_mut().for_each(|sample| sample.measure = measure.to_owned());
    }
}

/// The same as if all of it were so much later.
fn moved(seen: &mut Observation, millis: u64) {
    seen.now.0 += millis;
    seen.samples.iter_mut().for_each(|sample| sample.at.0 += millis);
    seen.fleet.history.note(seen.now, 0.0);
}

fn verdict(seen: &Observation) -> (u32, Option<HeldChange>) {
    let next = published(seen);
    (next.target.unwrap(), next.decisions.last().unwrap().held.clone())
}

/// Two members with this many reads and updates each; the growth to two gained nothing with updates, nor did one before it.
fn futile(reads: f64, updates: f64) -> Observation {
    let mut two = seen(2);
    (two.fleet.policy.sizing, two.fleet.policy.max) = (Some(Sizing::Target), 40);
    all_had(&mut two, "processor", 95.0);
    all_had(&mut two, "reads", reads);
    all_had(&mut two, "updates", updates);
    two.fleet.history.note(two.now, 2.0 * (reads + updates));
    two.fleet.capacity.learn(Observed { members: 1, reads: 0.0, updates: 1000.0, used: 90.0 });
    two.fleet.capacity.learn(Observed { members: 2, reads: 0.0, updates: 1050.0, used: 95.0 });
    two.fleet.futile = 2;
    two.fleet.decisions.push(Decision {
        number: 1,
        at: WallMillis(NOW - HOUR_MS - 1),
        members: 1,
        verdict: RuleVerdict::Add,
        target: 2,
        reasons: vec![Reason::Load { load: 1000, carries: 600 }],
        set: true,
        held: None,
        from_standby: 0,
        readings: Vec::new(),
        expected: Some(45.0),
        came: Some(90.0),
        ended: Some(WallMillis(NOW - HOUR_MS)),
    });
    two.fleet.next_decision = 2;
    two
}

#[test]
fn growths_that_gained_nothing_hold_for_a_day() {
    let mut two = futile(0.0, 525.0);
    assert_eq!(verdict(&two), (2, Some(HeldChange::NoGain { growths: 2 })));
    moved(&mut two, 22 * HOUR_MS);
    assert_eq!(verdict(&two), (2, Some(HeldChange::NoGain { growths: 2 })));
    moved(&mut two, HOUR_MS);
    assert_eq!(verdict(&two), (4, None), "what they lacked may have come since");
}

#[test]
fn an_order_for_more_ends_a_hold_and_one_for_fewer_does_not() {
    let mut two = futile(0.0, 525.0);
    two.fleet.policy.objective.strained = 1e9;
    let plan = |by| ordered(two.clone(), FleetOrder::Plan(Resize(by)));
    let (fewer, answer) = plan(-1);
    assert_eq!((answer, fewer.fleet.futile), (Ok(()), 2));
    let (more, answer) = plan(1);
    assert_eq!((answer, more.fleet.target, more.fleet.futile), (Ok(()), Some(3), 0));
    let (refused, answer) = plan(100);
    assert_eq!((answer, refused.fleet.futile), (Err(HeldChange::Most { max: 40 }), 2));
}

#[test]
fn another_kind_of_load_ends_a_hold_where_it_gains() {
    let mut two = futile(3000.0, 0.0);
    assert_eq!(verdict(&two).1, Some(HeldChange::NoGain { growths: 2 }), "nothing is known of reads yet");
    let reads = Observed { members: 2, reads: 3000.0, updates: 0.0, used: 60.0 };
    (0..20).for_each(|_| two.fleet.capacity.learn(reads));
    assert_eq!(verdict(&two), (4, None));
    let mut updates = futile(0.0, 525.0);
    updates.fleet.capacity = two.fleet.capacity.clone();
    assert_eq!(verdict(&updates).1, Some(HeldChange::NoGain { growths: 2 }), "they gain as little as before");
}

/// Four members that carry 1,000 reads a second each within 60 %, and 1,500 within 90 %; they have this many.
fn four(reads: f64) -> Observation {
    let mut four = seen(4);
    four.fleet.policy.sizing = Some(Sizing::Target);
    all_had(&mut four, "processor", 0.06 * reads);
    all_had(&mut four, "reads", reads);
    all_had(&mut four, "updates", 0.0);
    four.fleet.history.note(four.now, 4.0 * reads);
    four.fleet.capacity.learn(Observed { members: 4, reads: 4000.0, updates: 0.0, used: 60.0 });
    four
}

#[test]
fn what_carries_the_load_with_one_lost_stays_whatever_is_ordered() {
    let plan = |by| FleetOrder::Plan(Resize(by));
    // Two that are left of three carry 3,000.
    let (_, answer) = ordered(four(740.0), plan(-1));
    assert_eq!(answer, Ok(()));
    let (after, answer) = ordered(four(800.0), plan(-1));
    assert_eq!(answer, Err(HeldChange::Carries { load: 3200, carries: 3000, left: 3 }));
    assert_eq!((after.fleet.target, after.fleet.in_state(MachineState::Draining).count()), (Some(4), 0));
    // Of two that are left, one: all of an order is looked at, not its first drain alone.
    let (_, answer) = ordered(four(740.0), plan(-2));
    assert_eq!(answer, Err(HeldChange::Carries { load: 2960, carries: 1500, left: 2 }));
    // More is never refused for that, nor is anything where the load or the capacity is not known.
    assert_eq!(ordered(four(2000.0), plan(1)).1, Ok(()));
    let mut unknown = four(800.0);
    unknown.samples.clear();
    assert_eq!(ordered(unknown, plan(-1)).1, Ok(()));
    let mut unlearned = four(800.0);
    unlearned.fleet.capacity = Default::default();
    assert_eq!(ordered(unlearned, plan(-1)).1, Ok(()));
}

#[test]
fn bounds_and_load_that_rises_after_an_order_remove_no_member_that_carries() {
    let mut bound = four(800.0);
    bound.fleet.policy.max = 3;
    let (target, held) = verdict(&bound);
    assert!(target == 4 && matches!(held, Some(HeldChange::Carries { left: 3, .. })), "{held:?}");
    // The order was taken while the load was low, and its drain has not begun.
    let mut rises = four(800.0);
    rises.fleet.policy.mode = Mode::Observe;
    rises.fleet.target = Some(3);
    assert_eq!(published(&rises).in_state(MachineState::Draining).count(), 0);
    let mut low = four(700.0);
    low.fleet.policy.mode = Mode::Observe;
    low.fleet.target = Some(3);
    assert_eq!(published(&low).in_state(MachineState::Draining).count(), 1);
}

#[test]
fn what_a_member_that_leaves_still_does_counts_for_those_that_stay() {
    let mut three = four(700.0);
    put(&mut three, 4, MachineState::Draining, MemberState::Draining);
    three.fleet.target = Some(3);
    let (_, answer) = ordered(three, FleetOrder::Plan(Resize(-1)));
    assert_eq!(answer, Err(HeldChange::Carries { load: 2800, carries: 1500, left: 2 }));
}

/// What was decided by load, and carried out, this long ago.
fn carried(verdict: RuleVerdict, (members, target): (u32, u32), ago: u64) -> Decision {
    Decision {
        number: 1,
        at: WallMillis(NOW - ago),
        members,
        verdict,
        target,
        reasons: vec![Reason::Load { load: 2000, carries: 3000 }],
        set: true,
        held: None,
        from_standby: 0,
        readings: Vec::new(),
        expected: None,
        came: None,
        ended: Some(WallMillis(NOW - ago + 60_000)),
    }
}

/// Only removals by rules counted, so by load a fleet removed and added for ever.
#[test]
fn a_removal_by_load_that_was_wanted_back_makes_the_next_one_rest_four_times_as_long() {
    let mut low = four(500.0);
    for minute in (0..20).rev() {
        low.fleet.history.note(WallMillis(NOW - minute * 60_000), 2000.0);
    }
    low.fleet.settled = Some(WallMillis(NOW - 700_000));
    assert_eq!(verdict(&low), (3, None));
    let removed = carried(RuleVerdict::Remove, (4, 3), 2_400_000);
    low.fleet.decisions = vec![removed, carried(RuleVerdict::Add, (3, 4), 800_000)];
    low.fleet.next_decision = 3;
    assert_eq!(verdict(&low), (4, Some(HeldChange::Rests { seconds: 1_700 })));
}

/// It spoke of the size that was wanted, as if the fleet had it.
#[test]
fn why_speaks_of_the_members_that_serve_while_what_is_wanted_is_held_up() {
    let mut busy = four(1500.0);
    busy.fleet.policy.mode = Mode::Observe;
    busy.fleet.policy.min = 4;
    let after = published(&busy);
    let answer = super::super::why(&after, busy.now).unwrap();
    assert!(answer.newest.target > 4 && answer.newest.held == Some(HeldChange::Mode), "{answer:?}");
    assert_eq!(answer.more, Obstacle::Held(HeldChange::Mode));
    assert_eq!(answer.fewer, Obstacle::Held(HeldChange::Fewest { min: 4 }));
}

#[test]
fn why_by_load_tells_what_members_carry_and_no_rules_that_do_not_count() {
    let mut busy = four(800.0);
    assert!(!busy.fleet.policy.add.is_empty() && !busy.fleet.policy.remove.is_empty());
    let room = |load, needed, members, carries, low_s| {
        Obstacle::Load(LoadRoom { load, needed, members, carries, low_s })
    };
    let why = |seen: &Observation| super::super::why(&published(seen), seen.now).unwrap();
    let more = room(Some(3200), Some(3200), 4, Some(4000), None);
    assert_eq!(why(&busy).more, more);
    assert_eq!(why(&busy).fewer, room(Some(3200), None, 3, Some(3000), Some(900)), "it was measured once");
    for minute in (0..16).rev() {
        let load = if minute == 12 { 3400.0 } else { 3200.0 };
        busy.fleet.history.note(WallMillis(NOW - minute * 60_000), load);
    }
    let after = why(&busy);
    assert_eq!((&after.more, &after.newest.verdict), (&more, &RuleVerdict::Stay));
    assert_eq!(after.fewer, room(Some(3200), Some(3570), 3, Some(3000), Some(900)));
    busy.fleet.policy.sizing = Some(Sizing::Rules);
    assert!(matches!(why(&busy).fewer, Obstacle::Rules(rules) if rules.len() == 1));
}
