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
