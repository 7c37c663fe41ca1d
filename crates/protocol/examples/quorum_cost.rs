//! What counting acknowledgements costs: `cargo run --release -p protocol --example quorum_cost`.
//!
//! Prints nanoseconds for whole requests (start and every answer) and, for multi-gets, per key.

use std::hint::black_box;
use std::time::{Duration, Instant};

use model::store::Consistency;
use model::versions::Stamp;
use model::{
    Actor, Generation, Moment, NodeId, Partition, PartitionId, PreferenceList, Store, StoreName, Timestamp,
    Value, VersionSet,
};
use protocol::quorum::{
    Candidates, Get, GetActions, GetEvent, Local, MultiGet, MultiGetAction, MultiGetEvent, Origin,
    QuorumOptions, Write, WriteActions, WriteEvent,
};

/// Short enough that most runs are not interrupted.
const ROUNDS: u32 = 1_000;
const RUNS: u32 = 2_000;
const GENERATION: Generation = Generation(1);

fn main() {
    for (replicas, required) in [(1, 1), (3, 2)] {
        let preference = preference(replicas);
        let nanos = best_of(RUNS, || gets(&preference, required)) / f64::from(ROUNDS);
        println!("get    N={replicas} R={required}: {nanos:.0} ns");
        let nanos = best_of(RUNS, || writes(&preference, required)) / f64::from(ROUNDS);
        println!("write  N={replicas} W={required}: {nanos:.0} ns");
    }
    for keys in [100, 1_000, 10_000] {
        let nanos = best_of(20, || multi_get(keys)) / keys as f64;
        println!("multi-get of {keys} keys, N=3 R=2: {nanos:.0} ns per key");
    }
}

/// The shortest of several runs, in nanoseconds: the others were disturbed.
fn best_of(runs: u32, run: impl Fn()) -> f64 {
    let times = (0..runs).map(|_| {
        let start = Instant::now();
        run();
        start.elapsed().as_nanos() as f64
    });
    times.fold(f64::INFINITY, f64::min)
}

fn preference(replicas: u8) -> PreferenceList {
    let consistency = Consistency { replicas, reads_required: 1, writes_required: 1 };
    let name = StoreName::new("cost").expect("a good name");
    let store = Store::new(name, consistency).expect("a good store");
    let nodes = (1..=u32::from(replicas)).map(NodeId).collect();
    PreferenceList::of(&store, &Partition::settled(PartitionId(0), 0, nodes))
}

fn options(required: u8) -> QuorumOptions {
    QuorumOptions {
        required,
        preferred: required,
        sloppy: true,
        held: 0,
        spared: Default::default(),
        hedge_after: Duration::from_millis(10),
        deadline: Moment { nanos: u64::MAX / 2 },
        wall: Default::default(),
        generation: GENERATION,
        since: GENERATION,
    }
}

fn held() -> VersionSet {
    let actor = Actor { node: NodeId(1), incarnation: 1, birth: 1 };
    let value = Value::Present(vec![7; 1024].into());
    let mut set = VersionSet::default();
    set.put(Stamp { actor, timestamp: Timestamp(1), expires: None, value }, None);
    set
}

fn gets(preference: &PreferenceList, required: u8) {
    let (held, options) = (held(), options(required));
    for round in 0..ROUNDS {
        let now = Moment { nanos: u64::from(round) };
        let mut actions = GetActions::new();
        let candidates = Candidates { preference: black_box(preference), suspected: &[], lagging: &[] };
        let mut get = Get::start(candidates, Some(NodeId(1)), options, now, &mut actions);
        for node in (1..=u32::from(required)).map(NodeId) {
            black_box(&actions);
            actions.clear();
            let event = GetEvent::Answered { node, generation: GENERATION, set: held.clone() };
            get.step(event, now, &mut actions);
        }
        black_box(&actions);
        assert!(get.deadline().is_none());
    }
}

fn writes(preference: &PreferenceList, required: u8) {
    let origin = Origin { own: NodeId(1), local: Local::Applied, possible: false };
    let replicas = preference.replicas().len() as u32;
    let options = options(required);
    for round in 0..ROUNDS {
        let now = Moment { nanos: u64::from(round) };
        let mut actions = WriteActions::new();
        let candidates = Candidates { preference: black_box(preference), suspected: &[], lagging: &[] };
        let mut write = Write::start(candidates, origin, options, now, &mut actions);
        for node in (1..=replicas).map(NodeId) {
            black_box(&actions);
            actions.clear();
            let event = WriteEvent::Acknowledged { node, generation: GENERATION, superseded: false };
            write.step(event, now, &mut actions);
        }
        black_box(&actions);
        assert!(write.deadline().is_none());
    }
}

fn multi_get(keys: usize) {
    let (preference, held) = (preference(3), held());
    let preferences = std::iter::repeat_n(&preference, keys);
    let now = Moment { nanos: 1 };
    let mut actions = Vec::new();
    let mut multi = MultiGet::start(preferences, &[], &[], Some(NodeId(1)), options(2), now, &mut actions);
    for action in std::mem::take(&mut actions) {
        let MultiGetAction::Fetch { node, keys } = action else { continue };
        let answers = keys.into_iter().map(|key| (key, Ok(held.clone()))).collect();
        multi.step(MultiGetEvent::Answered { node, generation: GENERATION, answers }, now, &mut actions);
    }
    black_box(&actions);
    assert_eq!(multi.unanswered(), 0);
}
