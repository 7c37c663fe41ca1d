//! What members did over the span of a rule.

use super::*;

/// Looks are close together around an order. What was seen then counted as much as what lasted ten times as long.
#[test]
fn a_mean_counts_samples_by_the_time_that_they_cover() {
    let mut one = seen(1);
    measured(&mut one, 1, 10.0, (300, 20));
    // Within two seconds of the last half minute, four looks.
    for (before, value) in
        [(10_000, 10.0), (4_000, 10.0), (3_500, 90.0), (3_000, 90.0), (2_500, 90.0), (2_000, 90.0)]
    {
        let (member, measure) = ("m1".to_owned(), "processor".to_owned());
        one.samples.push(Sample { member, measure, value, at: WallMillis(NOW - before) });
    }
    let mut rule = one.fleet.policy.add[0].clone();
    rule.over = 30;
    let means = rules::means(&one, &one.fleet, &rule);
    // 26 s of 10 and 2 s of 90.
    let mean = means.value(model::elasticity::Spread::Mean).expect("it is measured");
    assert!((mean - 440.0 / 28.0).abs() < 0.01, "{mean}");
}

/// What is told of a verdict that is to come counts from here on, also where a controller began to look after it was noted.
#[test]
fn it_is_noted_from_when_on_samples_cover_the_time_and_noted_anew_where_that_changes() {
    let covers = |fleet: &Fleet| match fleet.decisions.last().unwrap().held {
        Some(HeldChange::Samples { covers, wants_s: 180, .. }) => covers,
        ref held => panic!("{held:?}"),
    };
    let none = published(&seen(2));
    assert_eq!(covers(&none), None, "nothing was measured");
    let mut some = Observation { fleet: none, ..seen(2) };
    (1..=2).for_each(|member| measured(&mut some, member, 10.0, (50, 0)));
    let noted = published(&some);
    // The first of them stands for half a minute before it.
    assert_eq!((covers(&noted), noted.decisions.len()), (Some(WallMillis(NOW - 80_000)), 1));
    let mut later = Observation { fleet: noted.clone(), ..some.clone() };
    later.now.0 += 5_000;
    assert_eq!(published(&later), noted, "what is known already is not published again");
    let mut half = Observation { fleet: noted.clone(), ..seen(2) };
    measured(&mut half, 1, 10.0, (200, 0));
    measured(&mut half, 2, 10.0, (50, 0));
    let held = published(&half).decisions.last().unwrap().held.clone();
    assert!(
        matches!(held, Some(HeldChange::Samples { fresh: 1, .. })),
        "another member can be judged: {held:?}"
    );
    let mut anew = Observation { fleet: noted, ..seen(2) };
    (1..=2).for_each(|member| measured(&mut anew, member, 10.0, (10, 0)));
    assert_eq!(covers(&published(&anew)), Some(WallMillis(NOW - 40_000)), "another controller began to look");
}

#[test]
fn a_decision_says_how_much_of_its_rules_span_was_covered() {
    let mut two = seen(2);
    (1..=2).for_each(|member| measured(&mut two, member, 90.0, (170, 0)));
    let decision = published(&two).decisions.pop().unwrap();
    assert_eq!(decision.verdict, RuleVerdict::Add);
    assert_eq!(covered_s(&decision.readings, &two.fleet.policy.add[0]), Some(200));
    let Obstacle::Rules(rooms) = why(&published(&two), WallMillis(NOW)).unwrap().fewer else {
        panic!("no rules")
    };
    assert_eq!(rooms[0].covered_s, Some(200));
}
