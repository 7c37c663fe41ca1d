//! Every workload against a real redis-server, started and stopped by the test.

use std::sync::Arc;
use std::time::Duration;

use bench::compare::{Contestant, MeasureError, alternate};
use bench::driver::{DriverOptions, Phase};
use bench::peers::{Peer, PeerError, PeerOptions, Persistence, RedisOptions};
use bench::report::Comparison;
use bench::target::resp::RespTarget;
use bench::workload::{OperationKind, Preset, WorkloadOptions};

const RECORDS: u64 = 500;

/// Starts a Redis; where none is installed, checks that the error says how to get one, and there is nothing more
/// to test.
fn redis(persistence: Persistence) -> Option<Contestant> {
    let options = PeerOptions::Redis(RedisOptions { persistence, ..RedisOptions::default() });
    match Contestant::start("redis", &options) {
        Ok(started) => Some(started),
        Err(MeasureError::Peer(error @ PeerError::NotInstalled { .. })) => {
            assert!(error.to_string().contains("apt-get install redis-server"));
            eprintln!("skipped: {error}");
            None
        }
        Err(other) => panic!("{other}"),
    }
}

fn driver(operations: u64) -> DriverOptions {
    DriverOptions {
        connections: 4,
        depth: 3,
        threads: 2,
        warm_up: 0.05,
        operations: Some(operations),
        quiet: true,
        ..DriverOptions::default()
    }
}

#[test]
fn writes_that_wait_for_a_replica_are_done_and_those_that_have_none_are_in_doubt() {
    let options = RedisOptions { replicas: 1, ..RedisOptions::default() };
    let mut redis = match Contestant::start("redis", &PeerOptions::Redis(options)) {
        Err(MeasureError::Peer(PeerError::NotInstalled { .. })) => return,
        started => started.unwrap(),
    };
    let address = redis.peer.as_ref().unwrap().resp[0].clone();
    let names: Vec<&str> = redis.watched.iter().map(|process| process.name.as_str()).collect();
    assert_eq!(names, ["redis primary", "redis replica 1"]);
    let target = |copies, timeout| RespTarget { copies, timeout, ..RespTarget::new(&address) };
    redis.target = Arc::new(target(1, Duration::from_secs(60)));
    let loaded = redis.load(&WorkloadOptions::preset(Preset::A, RECORDS), &driver(1)).unwrap();
    assert_eq!(loaded.outcomes.done, RECORDS);
    redis.target = Arc::new(target(2, Duration::from_secs(1)));
    let one_by_one = DriverOptions { depth: 1, ..driver(4) };
    let run = redis.measure(&WorkloadOptions::preset(Preset::Set, RECORDS), &one_by_one, Phase::Run).unwrap();
    assert_eq!(run.outcomes.done, 0, "there is one replica");
    assert_eq!(run.outcomes.indeterminate.values().sum::<u64>(), 4, "{:?}", run.outcomes);
}

#[test]
fn every_workload_runs_without_a_wrong_answer() {
    let Some(mut redis) = redis(Persistence::None) else { return };
    let address = redis.peer.as_ref().unwrap().resp[0].clone();
    redis.target = Arc::new(RespTarget { scan_index: true, ..RespTarget::new(&address) });
    let loaded = redis.load(&WorkloadOptions::preset(Preset::A, RECORDS), &driver(1)).unwrap();
    assert_eq!((loaded.operations, loaded.outcomes.done), (RECORDS, RECORDS));
    assert!(loaded.server.as_deref().is_some_and(|version| version.starts_with("Redis ")));
    for preset in [Preset::A, Preset::B, Preset::C, Preset::D, Preset::E, Preset::F, Preset::Hotspot] {
        let run = redis.measure(&WorkloadOptions::preset(preset, RECORDS), &driver(400), Phase::Run).unwrap();
        assert!(run.outcomes.clean(), "{preset:?}: {:?}", run.outcomes);
        assert_eq!(run.operations, 400, "{preset:?}");
        assert!(run.processes[0].alive && run.processes[0].rss_bytes > 0, "{:?}", run.processes);
        let per_second: u64 = run.series.iter().map(|second| second.operations).sum();
        assert_eq!(per_second, 400, "the time series holds every operation once");
        if preset == Preset::F {
            let count = |kind| run.kinds[&kind].count;
            assert_eq!(
                count(OperationKind::ReadModifyWrite),
                count(OperationKind::Update),
                "each has one write"
            );
            assert_eq!(count(OperationKind::Read), 400, "each operation has one read");
        }
    }
}

#[test]
fn deletes_and_multi_gets_and_an_open_loop_work_too() {
    let Some(redis) = redis(Persistence::EverySecond) else { return };
    let workload = WorkloadOptions {
        read: Some(1.0),
        delete: Some(1.0),
        multi_get: Some(1.0),
        update: Some(1.0),
        ..WorkloadOptions::preset(Preset::Uniform, RECORDS)
    };
    redis.load(&workload, &driver(1)).unwrap();
    let open_loop = DriverOptions { rate: Some(4_000.0), ..driver(400) };
    let run = redis.measure(&workload, &open_loop, Phase::Run).unwrap();
    let outcomes = &run.outcomes;
    assert_eq!(run.operations, 400);
    assert_eq!(outcomes.done + outcomes.missing, 400, "{outcomes:?}");
    assert!(outcomes.missing > 0, "deleted records are missed: {outcomes:?}");
    assert_eq!(run.kinds.len(), 4);
    assert!(run.lag_us.is_some());
}

#[test]
fn a_comparison_runs_both_in_turn_and_names_both() {
    let (Some(mut one), Some(mut two)) = (redis(Persistence::None), redis(Persistence::Always)) else {
        return;
    };
    one.label = "plain".to_owned();
    two.label = "synced".to_owned();
    let workload = WorkloadOptions::preset(Preset::B, RECORDS);
    for contestant in [&one, &two] {
        contestant.load(&workload, &driver(1)).unwrap();
    }
    let pairs = alternate(&one, &two, &workload, &driver(300), 2).unwrap();
    let comparison = Comparison::of("both", &pairs);
    assert_eq!((comparison.a.as_str(), comparison.b.as_str(), comparison.pairs), ("plain", "synced", 2));
    let names: Vec<&str> = comparison.metrics.iter().map(|metric| metric.name.as_str()).collect();
    assert!(names.contains(&"throughput, op/s") && names.contains(&"update p99.9, µs"), "{names:?}");
    let synced = two.peer.as_ref().unwrap();
    assert!(synced.process.bytes_on_disk() > RECORDS * 1024, "nothing was logged");
}

#[test]
fn a_stopped_server_is_gone() {
    let options = PeerOptions::Redis(RedisOptions::default());
    let Ok(peer) = Peer::start("redis", &options) else { return };
    let (pid, address) = (peer.process.pid(), peer.resp[0].clone());
    assert!(std::net::TcpStream::connect(&address).is_ok());
    drop(peer);
    assert_eq!(bench::processes::start_ticks(pid), None);
    assert!(std::net::TcpStream::connect(&address).is_err());
}
