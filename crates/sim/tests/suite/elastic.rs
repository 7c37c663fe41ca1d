//! Days of load on a fleet that grows and shrinks: what must not happen. `sim elastic --seeds 1000` plays more.

use model::elasticity::Sizing;
use sim::elastic::{Load, Plant, Weather, play};

/// Days that are played here.
const SEEDS: u64 = 100;

/// Plays every second day; the other half is another test, so that both run at once.
#[track_caller]
fn play_from(first: u64) {
    let days: Vec<_> =
        (first..=SEEDS).step_by(2).map(|seed| (seed, play(seed, Weather::of_seed(seed)))).collect();
    for (seed, day) in &days {
        assert!(day.broken.is_empty(), "seed {seed}: {:?}; sim elastic --seeds {seed}..={seed}", day.broken);
    }
    let sum = |of: fn(&sim::elastic::Day) -> u64| days.iter().map(|(_, day)| of(day)).sum::<u64>();
    assert!(sum(|day| day.moves.len() as u64) > 250, "the days move something");
    assert!(sum(|day| day.failures) > 10 && sum(|day| day.cancelled) > 2 && sum(|day| day.late_acts) > 25);
}

#[test]
fn fifty_odd_days_with_errors_break_no_promise() {
    play_from(1);
}

#[test]
fn fifty_even_days_with_errors_break_no_promise() {
    play_from(2);
}

#[test]
fn must_not_10_a_day_of_constant_noisy_load_makes_machines_flip() {
    for seed in 1..=10 {
        let weather = Weather { load: Load::Constant, noise: 300, errs: false, ..Weather::of_seed(seed) };
        let day = play(seed, weather);
        assert!(day.broken.is_empty() && day.flips() == 0, "seed {seed}: {day:?}");
    }
}

/// Load goes up and down in six hours, so that a removal may soon be wanted back in each of them.
#[test]
fn must_not_10_a_size_by_load_follows_a_wave_and_seldom_flips() {
    for (seed, sizing) in
        [(1, Sizing::Target), (2, Sizing::Forecast), (3, Sizing::Target), (4, Sizing::Forecast)]
    {
        let weather = Weather { load: Load::Sinusoid(360), sizing, errs: false, ..Weather::of_seed(seed) };
        let day = play(seed, weather);
        assert!(
            day.broken.is_empty() && day.moves.len() > 6,
            "seed {seed}: {:?} {:?}",
            day.broken,
            day.moves
        );
    }
}

#[test]
fn must_not_10_load_in_step_with_the_cooldown_makes_machines_flip() {
    for seed in 1..=5 {
        let weather = Weather { load: Load::Steps, errs: false, ..Weather::of_seed(seed) };
        let day = play(seed, weather);
        assert!(day.broken.is_empty(), "seed {seed}: {:?}", day.broken);
    }
}

/// Whether a day of one of the first seeds convicts a broken driver of this.
#[track_caller]
fn convicts(plant: Plant, load: Load, of: &str) {
    let is_convicted = |seed| {
        let (plant, sizing) = (Some(plant), Sizing::Rules);
        let day = play(seed, Weather { plant, load, sizing, errs: true, ..Weather::of_seed(seed) });
        day.broken.iter().any(|broken| broken.contains(of))
    };
    assert!((1..=30).any(is_convicted), "{plant:?} survives");
}

#[test]
fn must_not_3_taking_missing_values_for_0_is_convicted() {
    convicts(Plant::MissingIsZero, Load::Sinusoid(360), "is not measured");
}

#[test]
fn must_not_3_taking_frozen_values_for_new_ones_is_convicted() {
    convicts(Plant::AgesAreLost, Load::Sinusoid(360), "is not measured");
}

#[test]
fn must_not_2_believing_a_drain_is_convicted() {
    convicts(Plant::BelievesDrains, Load::Sinusoid(360), "keys");
}

#[test]
fn must_not_4_hiding_a_second_machine_is_convicted() {
    convicts(Plant::HidesSeconds, Load::Sinusoid(360), "entries");
}

#[test]
fn must_not_10_forgetting_wrong_removals_is_convicted() {
    convicts(Plant::ForgetsDecisions, Load::Steps, "soon wanted back");
}
