//! A provider that would not end machines: how often a turn asks, and what is told.

use super::*;

/// Rounds of questions after which a driver gives a turn up, and does nothing of it.
const ROUNDS_MAX: usize = 8;

/// So many members, and an order for this many fewer.
fn shrinking(serving: u64, by: i32, acts_max: u32) -> Observation {
    let mut seen = seen(serving);
    seen.fleet.policy.max = serving as u32;
    seen.engine.as_mut().unwrap().acts_max = acts_max;
    let (order, by) = (FleetOrder::Plan(Resize(-by)), "op".to_owned());
    seen.fleet.orders.push(FleetOrderGiven { number: 1, order, by, at: WallMillis(NOW), answer: None });
    seen
}

/// The document of a turn at a provider that would end these instances only.
fn asked(seen: &Observation, lets: &[&str]) -> Fleet {
    let mut seen = seen.clone();
    for _ in 0..ROUNDS_MAX {
        let actions = Controller::new().decide(&seen).actions;
        let mut asks = false;
        for action in actions {
            match action {
                FleetAction::Ask(Question::Preflight { instance }) => {
                    let refusal = VerbRefusal { for_good: false, detail: "protected".to_owned() };
                    let answer = if lets.contains(&instance.as_str()) { Ok(()) } else { Err(refusal) };
                    assert!(seen.preflight.insert(instance, answer).is_none(), "asked twice");
                    asks = true;
                }
                FleetAction::Publish(next) => return *next,
                other => panic!("{other:?}"),
            }
        }
        assert!(asks, "nothing is published");
    }
    panic!("the driver gives the turn up");
}

/// One machine was asked about in each round, so with eight of them or more no turn came to its end.
#[test]
fn a_provider_that_would_end_none_of_many_machines_is_told_and_stops_no_turn() {
    let nine = shrinking(9, 1, 1);
    let next = asked(&nine, &[]);
    assert_eq!((&next.orders[0].answer, next.target, next.serving()), (&Some(Ok(())), Some(8), 9));
    let protected = HeldChange::Preflight { detail: "protected".to_owned() };
    assert_eq!(setting(&next).unwrap().held, Some(protected.clone()));
    assert_eq!(why(&next, nine.now).unwrap().fewer, Obstacle::Held(protected));
    // The one machine that it would end leaves.
    let next = asked(&nine, &["i1"]);
    let leaving: Vec<&Machine> = next.in_state(MachineState::Draining).collect();
    assert!(leaving.len() == 1 && leaving[0].instance.as_deref() == Some("i1"), "{leaving:?}");
    assert_eq!(setting(&next).unwrap().held, None);
}

#[test]
fn many_that_leave_at_a_time_are_asked_about_at_once() {
    let all: Vec<String> = (1..=9).map(|number| format!("i{number}")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let next = asked(&shrinking(9, 8, 9), &all);
    assert_eq!((next.serving(), next.in_state(MachineState::Draining).count()), (1, 8));
}
