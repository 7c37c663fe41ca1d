//! Growths that gain nothing, from the first one until the fleet says that it makes no more.

use super::*;

/// The time between two looks, in milliseconds.
const LOOK_MS: u64 = 10_000;
/// How long a member joins, in milliseconds.
const JOINS_MS: u64 = 70_000;

/// Members that together carry 1,000 operations in a second, however many they are, and are busy with that. Each has its
/// first figures so many milliseconds after it began to serve.
fn measure(seen: &mut Observation, after: u64) {
    let share = 1000.0 / f64::from(seen.fleet.serving());
    let measured = seen.fleet.in_state(MachineState::Serving);
    let measured = measured.filter(|one| since(seen.now, one.since) >= after);
    let measured: Vec<String> = measured.flat_map(|one| one.member.clone()).collect();
    for member in measured {
        for (measure, value) in [("processor", 95.0), ("operations", share)] {
            let (member, measure) = (member.clone(), measure.to_owned());
            seen.samples.push(Sample { member, measure, value, at: seen.now });
        }
    }
    let kept = samples_kept(&seen.fleet.policy);
    seen.samples.retain(|sample| sample.at.0 + kept >= seen.now.0);
}

/// Provider and engine go on: what is asked for runs at once, and what joins serves after a while.
fn goes_on(seen: &mut Observation, joins: &mut BTreeMap<String, u64>) {
    let (instances, members) = (seen.instances.as_mut().unwrap(), seen.members.as_mut().unwrap());
    for machine in &seen.fleet.machines {
        let name = machine.token.0.clone();
        let is_there = instances.iter().any(|one| one.token.as_ref() == Some(&name));
        if machine.state == MachineState::Requested && !is_there {
            let (mut instance, mut member) = (instances[0].clone(), members[0].clone());
            (instance.id, instance.token, instance.address) =
                (name.clone(), Some(name.clone()), Some(name.clone()));
            (member.id, member.address, member.state) = (name.clone(), Some(name), MemberState::Waiting);
            instances.push(instance);
            members.push(member);
        } else if machine.state == MachineState::Joining {
            let since = *joins.entry(name.clone()).or_insert(seen.now.0);
            let member = members.iter_mut().find(|one| one.id == name).unwrap();
            let serves = seen.now.0 - since >= JOINS_MS;
            member.state = if serves { MemberState::Serving } else { MemberState::Joining };
        }
    }
}

/// A quarter of an hour of such members, from so many milliseconds after a full minute on.
fn in_vain(from: u64, measured_after: u64) -> Observation {
    let mut seen = seen(2);
    let policy = &mut seen.fleet.policy;
    (policy.sizing, policy.max, policy.add, policy.remove) =
        (Some(Sizing::Target), 40, Vec::new(), Vec::new());
    seen.now.0 = NOW - NOW % 60_000 + from;
    let mut joins = BTreeMap::new();
    for _ in 0..90 {
        measure(&mut seen, measured_after);
        for _ in 0..20 {
            goes_on(&mut seen, &mut joins);
            let next = published(&seen);
            if next == seen.fleet {
                break;
            }
            seen.fleet = next;
        }
        seen.now.0 += LOOK_MS;
    }
    seen
}

/// The old members noted the minute while the new one joined, or the new one was measured later. The growth was judged before
/// its size was learned, and never again: the fleet grew on.
#[test]
fn growths_that_gain_nothing_stop_whenever_in_a_minute_they_end() {
    for (from, after) in (0..60_000).step_by(10_000).flat_map(|from| [(from, 0), (from, 40_000)]) {
        let (seen, case) = (in_vain(from, after), format!("from {from} ms on, measured after {after} ms"));
        let added = seen.fleet.decisions.iter().filter(|one| one.set).map(|one| (one.members, one.target));
        assert_eq!(added.collect::<Vec<_>>(), [(2, 4), (4, 7)], "{case}");
        assert_eq!((seen.fleet.serving(), seen.fleet.futile), (7, 2), "{case}");
        let why = why(&seen.fleet, seen.now).unwrap();
        assert_eq!(why.more, Obstacle::Held(HeldChange::NoGain { growths: 2 }), "{case}");
    }
}
