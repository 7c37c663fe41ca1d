//! Who believes what about whom, with whole nodes: partitions, pauses, flapping.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use model::{Moment, NodeId};
use node::events::Event;
use parking_lot::Mutex;
use protocol::gossip::NodeLiveness;
use runtime::BoxFuture;
use sim::check;
use sim::cluster::{STORES, World};
use sim::history::Recorder;
use sim::host::Host;
use sim::network::Conditions;
use sim::swarm::{EngineKind, Setup};
use sim::workload::Worker;
use storage::Durability;

const LIMIT: Duration = Duration::from_secs(600);

/// Five nodes, three replicas, no harm but what `scenario` does; two clients work all the time, and in the end every
/// promise about their operations is checked.
fn play(seed: u64, loss_per_mille: u64, scenario: impl FnOnce(Arc<World>) -> BoxFuture<'static, ()>) {
    let conditions = Conditions { loss_per_mille, ..Conditions::calm() };
    let setup = Setup {
        nodes: 5,
        replicas: 3,
        reads: 2,
        writes: 2,
        clients: 2,
        harms: 0,
        faults: Vec::new(),
        conditions,
        deadline: Duration::from_secs(5),
        think: Duration::from_millis(400),
        shuffle: false,
        plant: None,
        // A collected deletion leaves nothing behind, which the checker of lost writes does not yet tell from a loss.
        deletes: 0,
        engine: EngineKind::Log(Durability::Always),
        ..Setup::ordinary(seed)
    };
    let world = World::new(setup);
    let (recorder, done) = (Recorder::default(), Arc::new(AtomicBool::new(false)));
    let (operator, clients) = (world.executor.process(), world.executor.process());
    let remains = Arc::new(Mutex::new(Vec::new()));
    let scenario = scenario(world.clone());
    let (acting, ended, left, recording) = (world.clone(), done.clone(), remains.clone(), recorder.clone());
    let body = async move {
        acting.found().await;
        for position in 0..5 {
            acting.start(position);
        }
        for number in 1..=2 {
            let worker = Worker::new(acting.clone(), recording.clone(), number, clients);
            let until = acting.executor.now().after(Duration::from_secs(40));
            acting.executor.spawn(clients, Box::pin(worker.work(until)));
        }
        await_states(&acting, |_, _, state| state == NodeLiveness::Alive).await;
        scenario.await;
        acting.wires.heal();
        acting.executor.sleep(Duration::from_secs(50)).await;
        await_states(&acting, |_, _, state| state == NodeLiveness::Alive).await;
        for store in STORES {
            for number in 0..acting.setup.keys {
                left.lock().push(
                    acting.remains(store, &acting.setup.key(number)).expect("what remains can be read"),
                );
            }
        }
        ended.store(true, Ordering::Relaxed);
    };
    world.executor.spawn(operator, Box::pin(body));
    world.executor.run(&done, Moment::default().after(LIMIT)).unwrap_or_else(|halt| {
        panic!("{halt:?}\n{}", world.log().join("\n"));
    });
    let (violations, _) = check::all(&recorder.history(), &remains.lock(), world.setup.rules());
    assert!(violations.is_empty(), "{violations:?}");
    world.end();
}

/// What the node at `viewer` believes about the node at `of`; `None` while it does not run.
fn state(world: &World, viewer: usize, of: usize) -> Option<NodeLiveness> {
    Some(world.node(viewer)?.gossip().state(NodeId(of as u32 + 1)))
}

/// Waits until `wanted` (viewer, of, state) holds for every pair of nodes.
async fn await_states(world: &World, wanted: impl Fn(usize, usize, NodeLiveness) -> bool) {
    let pairs =
        || (0..5).flat_map(|viewer| (0..5).filter(move |&of| of != viewer).map(move |of| (viewer, of)));
    while !pairs().all(|(viewer, of)| state(world, viewer, of).is_some_and(|state| wanted(viewer, of, state)))
    {
        world.executor.sleep(Duration::from_millis(50)).await;
    }
}

/// Whether any node recorded that `peer` is down.
fn was_ever_down(world: &World, peer: u32) -> bool {
    (0..5).filter_map(|position| world.node(position)).any(|node| {
        let events = node.events().after(0, usize::MAX);
        events
            .iter()
            .any(|recorded| matches!(recorded.event, Event::PeerDown { peer: of, .. } if of == NodeId(peer)))
    })
}

#[test]
fn in_a_one_way_partition_only_the_cut_off_pair_avoids_each_other() {
    play(11, 0, |world| {
        Box::pin(async move {
            world.wires.block(Host(1), Host(2));
            await_states(&world, |viewer, of, state| match (viewer, of) {
                (0, 1) | (1, 0) => state == NodeLiveness::Suspected,
                _ => state == NodeLiveness::Alive,
            })
            .await;
            world.executor.sleep(Duration::from_secs(20)).await;
            assert!(!was_ever_down(&world, 1) && !was_ever_down(&world, 2), "others hear both");
        })
    });
}

#[test]
fn a_five_second_pause_is_suspected_and_causes_no_down_and_no_lost_write() {
    play(12, 20, |world| {
        Box::pin(async move {
            for position in [0, 3] {
                let pausing = world.clone();
                let operator = world.executor.process();
                let paused = Arc::new(AtomicBool::new(true));
                let over = paused.clone();
                world.executor.spawn(
                    operator,
                    Box::pin(async move {
                        pausing.pause(position, Duration::from_secs(5)).await;
                        over.store(false, Ordering::Relaxed);
                    }),
                );
                await_states(&world, |viewer, of, state| {
                    viewer == position || of != position || state == NodeLiveness::Suspected
                })
                .await;
                assert!(paused.load(Ordering::Relaxed), "suspected while it paused");
                await_states(&world, |_, of, state| of != position || state == NodeLiveness::Alive).await;
            }
            assert!(!was_ever_down(&world, 1) && !was_ever_down(&world, 4));
        })
    });
}

#[test]
fn a_flapping_node_is_avoided_while_it_is_away_and_never_down() {
    play(13, 0, |world| {
        Box::pin(async move {
            for _ in 0..6 {
                world.pause(1, Duration::from_millis(2_500)).await;
                world.executor.sleep(Duration::from_millis(500)).await;
            }
            await_states(&world, |_, _, state| state == NodeLiveness::Alive).await;
            assert!(!was_ever_down(&world, 2));
            let events = world.node(0).unwrap().events().after(0, usize::MAX);
            let suspected = |event: &Event| matches!(event, Event::PeerSuspected { peer: NodeId(2), .. });
            assert!(events.iter().any(|recorded| suspected(&recorded.event)), "it was noticed");
        })
    });
}

#[test]
fn a_node_that_stops_cleanly_is_seen_as_left_and_as_alive_after_its_restart() {
    play(14, 0, |world| {
        Box::pin(async move {
            world.stop(2).await;
            let before = world.executor.now();
            let others = |world: &World, state: NodeLiveness| {
                [0, 1, 3, 4].iter().all(|&viewer| self::state(world, viewer, 2) == Some(state))
            };
            while !others(&world, NodeLiveness::Left) {
                world.executor.sleep(Duration::from_millis(10)).await;
            }
            assert!(world.executor.now().since(before) < Duration::from_secs(2), "it said so itself");
            world.start(2);
        })
    });
}
