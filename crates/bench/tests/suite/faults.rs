//! What the driver says of servers that go wrong.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bench::compare::{Contestant, MeasureError};
use bench::driver::{Arrivals, DriveError, DriverOptions, Phase};
use bench::report::RunReport;
use bench::target::resp::RespTarget;
use bench::workload::{OperationKind, Preset, WorkloadOptions, values};

use crate::misbehaving::{Act, bulk, ok, start};

const OPERATIONS: u64 = 200;

fn driver() -> DriverOptions {
    DriverOptions {
        connections: 2,
        warm_up: 0.0,
        operations: Some(OPERATIONS),
        quiet: true,
        ..DriverOptions::default()
    }
}

/// Longer than any machine takes to answer what is answered at all.
const PATIENCE: Duration = Duration::from_secs(120);

fn run(address: String, preset: Preset, driver: &DriverOptions) -> RunReport {
    run_within(PATIENCE, address, preset, driver)
}

fn run_within(timeout: Duration, address: String, preset: Preset, driver: &DriverOptions) -> RunReport {
    let target = RespTarget { timeout, ..RespTarget::new(address) };
    let contestant = Contestant::running("test", Arc::new(target), Vec::new());
    contestant.measure(&WorkloadOptions::preset(preset, 100), driver, Phase::Run).unwrap()
}

#[test]
fn good_values_bad_values_and_missing_ones_are_told_apart() {
    let count = AtomicU64::new(0);
    let address = start(move |command| match count.fetch_add(1, Ordering::Relaxed) % 4 {
        0 => bulk(&values::make(&command[1], 0, 64)),
        1 => bulk(&values::make(b"another key", 0, 64)),
        2 => bulk(b"never written"),
        _ => Act::Reply(b"$-1\r\n".to_vec()),
    });
    let run = run(address, Preset::Get, &driver());
    assert_eq!(run.operations, OPERATIONS);
    let outcomes = run.outcomes;
    assert_eq!((outcomes.done, outcomes.corrupt, outcomes.missing), (50, 100, 50));
    assert_eq!(run.kinds[&OperationKind::Read].count, 100, "only answered reads have a latency");
}

#[test]
fn an_error_reply_is_a_failure_and_a_doubtful_one_is_not() {
    let count = AtomicU64::new(0);
    let address = start(move |_| match count.fetch_add(1, Ordering::Relaxed) % 4 {
        0 => ok(),
        1 => Act::Reply(b"-OVERLOADED try later\r\n".to_vec()),
        2 => Act::Reply(b"-INDETERMINATE one of two replicas answered\r\n".to_vec()),
        _ => Act::Reply(b":1\r\n$1\r\nx\r\n".to_vec()),
    });
    // The extra reply of the last case shifts every later one: the stream stays RESP, its answers are refused.
    let outcomes = run(address, Preset::Set, &driver()).outcomes;
    assert!(outcomes.failed["OVERLOADED try later"] > 0);
    assert!(outcomes.indeterminate["INDETERMINATE one of two replicas answered"] > 0);
    assert!(outcomes.failed["unexpected reply: a bulk string"] > 0);
    assert!(outcomes.done > 0);
}

#[test]
fn a_lost_connection_leaves_writes_in_doubt_and_reads_failed_and_is_opened_again() {
    let hang_up = AtomicBool::new(true);
    let address = start(move |command| match (hang_up.fetch_not(Ordering::Relaxed), &command[0][..]) {
        (true, _) => Act::HangUp,
        (false, b"GET") => Act::Reply(b"$-1\r\n".to_vec()),
        (false, _) => ok(),
    });
    let driver = DriverOptions { operations: Some(20), ..driver() };
    let outcomes = run(address, Preset::A, &driver).outcomes;
    let in_doubt: u64 = outcomes.indeterminate.values().sum();
    let failed: u64 = outcomes.failed.values().sum();
    assert!(in_doubt > 0 && failed > 0, "{outcomes:?}");
    assert!(outcomes.done + outcomes.missing > 0, "nothing went well after connecting again: {outcomes:?}");
    assert!(
        outcomes.indeterminate.keys().all(|reason| reason.starts_with("connection lost")),
        "{outcomes:?}"
    );
}

#[test]
fn silence_is_a_timeout_and_a_write_in_silence_is_in_doubt() {
    let address = start(|_| Act::Ignore);
    let driver = DriverOptions { operations: Some(4), depth: 2, ..driver() };
    let outcomes = run_within(Duration::from_millis(200), address, Preset::Set, &driver).outcomes;
    assert_eq!(outcomes.indeterminate["no answer in time"], 4);
    assert_eq!(outcomes.done, 0);
}

#[test]
fn what_is_no_resp_is_said_to_be_malformed() {
    let address = start(|_| Act::Reply(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()));
    let driver = DriverOptions { operations: Some(4), ..driver() };
    let outcomes = run(address, Preset::Get, &driver).outcomes;
    assert_eq!(outcomes.failed["malformed reply"], 4);
}

#[test]
fn nobody_there_is_an_error_before_anything_runs() {
    let target = RespTarget::new("127.0.0.1:1");
    let contestant = Contestant::running("test", Arc::new(target), Vec::new());
    let error =
        contestant.measure(&WorkloadOptions::preset(Preset::A, 10), &driver(), Phase::Run).unwrap_err();
    assert!(matches!(error, MeasureError::Drive(DriveError::Open(_))), "{error}");
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
}

/// One stall of 300 ms while operations are due every millisecond: a closed loop would see one slow operation.
#[test]
fn an_open_loop_sees_everybody_who_waited_behind_a_stall() {
    let stalled = AtomicBool::new(false);
    let address = start(move |_| match stalled.swap(true, Ordering::Relaxed) {
        false => Act::Stall(Duration::from_millis(300), b"+OK\r\n".to_vec()),
        true => ok(),
    });
    let driver = DriverOptions {
        connections: 1,
        rate: Some(1_000.0),
        arrivals: Arrivals::Uniform,
        operations: Some(300),
        ..driver()
    };
    let run = run(address, Preset::Set, &driver);
    assert_eq!((run.operations, run.outcomes.unstarted), (300, 0));
    let update = &run.kinds[&OperationKind::Update];
    // Half of the operations were due in the first 150 ms: each waited for at least the other 150.
    assert!(update.latency_us.p50 >= 100_000.0, "{update:?}");
    let service = update.service_us.unwrap();
    assert!(service.p50 <= update.latency_us.p50 && service.max >= 300_000.0 * 0.99, "{update:?}");
    let lag = run.lag_us.unwrap();
    assert!(lag.p50 >= 100_000.0 * 0.9, "{lag:?}");
}

#[test]
fn an_open_loop_that_cannot_keep_up_counts_what_it_never_started() {
    let address = start(|_| Act::Stall(Duration::from_millis(50), b"+OK\r\n".to_vec()));
    let driver = DriverOptions {
        connections: 1,
        rate: Some(1_000.0),
        operations: None,
        duration: Some(0.3),
        drain_time_max: Duration::from_millis(500),
        ..driver()
    };
    let run = run(address, Preset::Set, &driver);
    // 300 are due; in 0.3 s and the half second after it there is time for 16.
    assert!(run.operations <= 20, "{}", run.operations);
    assert!(run.outcomes.unstarted > 0);
    assert!(!run.outcomes.clean());
}

/// The server stalls when the last operations are due: they are late, not forgotten.
#[test]
fn an_open_loop_carries_out_what_was_due_before_its_end() {
    let asked = AtomicU64::new(0);
    let address = start(move |_| match asked.fetch_add(1, Ordering::Relaxed) {
        50 => Act::Stall(Duration::from_millis(400), b"+OK\r\n".to_vec()),
        _ => ok(),
    });
    let driver = DriverOptions {
        connections: 1,
        rate: Some(200.0),
        arrivals: Arrivals::Uniform,
        operations: None,
        duration: Some(0.3),
        drain_time_max: PATIENCE,
        ..driver()
    };
    let run = run(address, Preset::Set, &driver);
    // 60 are due, less what was due before its thread ran: three, once, on a busy machine. Those behind the stall count.
    assert_eq!(run.outcomes.unstarted, 0);
    assert!((53..=61).contains(&run.operations), "{}", run.operations);
    assert!(run.elapsed_s > 0.6, "the last ones were late: {}", run.elapsed_s);
}
