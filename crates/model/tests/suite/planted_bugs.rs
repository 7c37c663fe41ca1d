//! The checks can fail: each planted bug is found, and found as what it is.

use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use super::histories::{Bug, Step, Violation, World, steps};
use super::subjects::{PlainVectors, Real, Subject, Union};

/// Plays histories until one goes wrong, and returns the shortest that does.
fn found<S: Subject>(bug: Option<Bug>) -> (Vec<Step>, Violation) {
    let config = Config { cases: 3_000, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let outcome = runner.run(&steps(), |steps| {
        World::<S>::new(bug).play(&steps).map_err(|violation| TestCaseError::fail(format!("{violation:?}")))
    });
    match outcome {
        Err(TestError::Fail(_, steps)) => {
            let violation = World::<S>::new(bug).play(&steps).expect_err("the shortest failure fails");
            (steps, violation)
        }
        other => panic!("{bug:?} went unnoticed: {other:?}"),
    }
}

#[test]
fn an_actor_reused_after_forgetting_repeats_a_dot() {
    let (steps, violation) = found::<Real>(Some(Bug::ActorReusedAfterForgetting));
    assert!(matches!(violation, Violation::DotTwice(_)), "{violation:?}");
    assert_eq!(steps.len(), 3, "put, forget, put: {steps:?}");
}

#[test]
fn an_actor_kept_after_a_crash_repeats_a_dot() {
    let (steps, violation) = found::<Real>(Some(Bug::ActorKeptAfterCrash));
    assert!(matches!(violation, Violation::DotTwice(_)), "{violation:?}");
    assert!(steps.iter().any(|step| matches!(step, Step::Crash { .. })), "{steps:?}");
}

#[test]
fn plain_version_vectors_lose_one_of_two_concurrent_puts() {
    let (steps, violation) = found::<PlainVectors>(None);
    assert!(matches!(violation, Violation::Siblings { .. } | Violation::Vector { .. }), "{violation:?}");
    assert!(steps.len() <= 4, "{steps:?}");
}

#[test]
fn merging_without_vectors_shows_what_was_replaced() {
    let (_, violation) = found::<Union>(None);
    match violation {
        Violation::Siblings { shown, truth, .. } => assert!(shown.len() > truth.len(), "{shown:?} {truth:?}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_context_that_covers_siblings_nobody_read_loses_them() {
    let (_, violation) = found::<Real>(Some(Bug::ContextOfPutCoversSiblings));
    match violation {
        Violation::Siblings { shown, truth, .. } => assert!(shown.len() < truth.len(), "{shown:?} {truth:?}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn timestamps_that_ignore_the_past_let_an_older_write_win() {
    let (_, violation) = found::<Real>(Some(Bug::TimestampIgnoresPast));
    assert!(matches!(violation, Violation::Promise(_)), "{violation:?}");
}
