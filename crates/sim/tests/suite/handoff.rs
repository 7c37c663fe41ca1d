//! Named stories about hints, each played with several seeds: whatever happens, hints reach their targets, and nothing
//! that was acknowledged is lost.

use std::sync::Arc;
use std::time::Duration;

use model::NodeId;
use sim::check::Violation;
use sim::cluster::World;
use sim::dice::Dice;
use sim::history::Outcome;
use sim::network::Conditions;
use sim::run::{Report, Story, play_story};
use sim::swarm::{EngineKind, Losses, Setup};
use storage::Durability;

use crate::stage;

const SEEDS: std::ops::RangeInclusive<u64> = 1..=3;

/// Five nodes that sync every write, three replicas, stand-ins allowed, and clients that never rest for long.
fn setup(seed: u64) -> Setup {
    let mut setup = Setup::ordinary(seed);
    (setup.nodes, setup.replicas, setup.reads, setup.writes, setup.sloppy) = (5, 3, 2, 2, true);
    // Fallbacks answer for replicas only where reads may go backwards.
    setup.monotonic = false;
    (setup.engine, setup.losses) = (EngineKind::Log(Durability::Always), Losses::None);
    setup.conditions = Conditions::calm();
    (setup.clients, setup.keys, setup.span) = (4, 8, Duration::from_secs(8));
    (setup.think, setup.deadline) = (Duration::from_millis(20), Duration::from_secs(2));
    (setup.puts, setup.deletes, setup.blind) = (600, 50, 100);
    (setup.faults, setup.harms) = (Vec::new(), 0);
    // These stories count what clients are refused, and a condition that is not met is a refusal.
    (setup.redis_clients, setup.conditional) = (0, 0);
    // Nor may a request want more replicas than the stories leave.
    (setup.own_quorums, setup.touches) = (0, 0);
    (setup.walks, setup.long_values, setup.crowded) = (0, 0, None);
    // Each story is about the replicas that its first document names.
    setup.moves = false;
    setup
}

/// Plays a story with each seed, and hands every report to `judge`.
fn tell(story: impl Fn(Setup) -> (Setup, Story), judge: impl Fn(&Report)) {
    for seed in SEEDS {
        let (setup, story) = story(setup(seed));
        let report = play_story(setup, story);
        let log = report.log.join("\n");
        assert_eq!(report.violations, Vec::<Violation>::new(), "seed {seed}\n{log}");
        judge(&report);
    }
}

fn story<F>(tale: impl FnOnce(Arc<World>) -> F + Send + 'static) -> Story
where
    F: Future<Output = ()> + Send + 'static,
{
    Box::new(move |world, _| Box::pin(tale(world)))
}

async fn sleep(world: &World, millis: u64) {
    world.executor.sleep(Duration::from_millis(millis)).await;
}

/// Waits for hints that `wanted` accepts; a story in which they never come proves nothing.
async fn await_hints(world: &World, wanted: impl Fn(&(NodeId, NodeId, u64)) -> bool) -> NodeId {
    for _ in 0..6000 {
        if let Some((holder, _, _)) = world.hints().into_iter().find(&wanted) {
            return holder;
        }
        sleep(world, 10).await;
    }
    panic!("no hint is parked");
}

fn kill(world: &World, node: NodeId) {
    world.kill(node.0 as usize - 1, Duration::ZERO, Duration::ZERO);
}

fn start(world: &Arc<World>, node: NodeId) {
    world.start(node.0 as usize - 1);
}

#[test]
fn hints_outlive_the_death_of_their_holder_before_delivery() {
    let tale = |world: Arc<World>| async move {
        sleep(&world, 1000).await;
        kill(&world, NodeId(2));
        let holder = await_hints(&world, |hint| hint.1 == NodeId(2)).await;
        sleep(&world, 1500).await;
        kill(&world, holder);
        start(&world, NodeId(2));
        sleep(&world, 3000).await;
        start(&world, holder);
        sleep(&world, 1000).await;
    };
    tell(|setup| (setup, story(tale)), |_| {});
}

#[test]
fn a_hint_storm_drains_after_its_target_has_flapped() {
    let tale = |world: Arc<World>| async move {
        let mut dice = Dice::new(world.setup.seed);
        sleep(&world, 500).await;
        for _ in 0..10 {
            kill(&world, NodeId(3));
            let wait = dice.between(10, 600);
            sleep(&world, wait).await;
            start(&world, NodeId(3));
            let wait = dice.between(10, 600);
            sleep(&world, wait).await;
        }
        kill(&world, NodeId(3));
        await_hints(&world, |hint| hint.1 == NodeId(3)).await;
        start(&world, NodeId(3));
    };
    tell(|setup| (setup, story(tale)), |_| {});
}

#[test]
fn three_of_five_nodes_restarted_one_by_one_under_load_fail_no_request() {
    const RESTARTED: usize = 3;
    let tale = |world: Arc<World>| async move {
        sleep(&world, 500).await;
        // A node whose first calls of the coordination service failed starts later, and its links open later still.
        while !world.all_up() {
            sleep(&world, 10).await;
        }
        sleep(&world, 300).await;
        for node in (1..=RESTARTED as u32).map(NodeId) {
            kill(&world, node);
            await_hints(&world, |hint| hint.1 == node).await;
            sleep(&world, 700).await;
            start(&world, node);
            while !world.all_up() {
                sleep(&world, 10).await;
            }
            sleep(&world, 300).await;
        }
        sleep(&world, 500).await;
    };
    tell(
        |setup| (setup, story(tale)),
        |report| {
            let (done, _, unknown) = report.outcomes();
            assert!(done > 300, "{done} requests prove little");
            let failed = |outcome: &Outcome| match outcome {
                // A put with a context that another client has overtaken is answered, not failed.
                Outcome::Failed(reason) if !reason.contains("newer version") => Some(reason.clone()),
                _ => None,
            };
            let outcomes = report.history.operations.iter().map(|operation| &operation.outcome);
            let failed: Vec<String> = outcomes.filter_map(failed).collect();
            assert_eq!(failed, Vec::<String>::new(), "seed {}", report.setup.seed);
            // What a node had under way when it was killed: nobody can know. One request, or all keys of one.
            let under_way = RESTARTED * report.setup.clients as usize * report.setup.keys as usize;
            assert!(unknown <= under_way, "{unknown} of unknown outcome");
        },
    );
}

#[test]
fn hints_drain_although_the_network_loses_three_frames_in_ten() {
    let lossy = |mut setup: Setup| {
        setup.conditions.loss_per_mille = 300;
        setup.span = Duration::from_secs(20);
        let tale = |world: Arc<World>| async move {
            sleep(&world, 3000).await;
            kill(&world, NodeId(4));
            await_hints(&world, |hint| hint.1 == NodeId(4)).await;
            sleep(&world, 2000).await;
            start(&world, NodeId(4));
            sleep(&world, 2000).await;
        };
        (setup, story(tale))
    };
    tell(lossy, |_| {});
}

/// Hints are given up only where another replica has what they hold, so no write is lost by it.
#[test]
fn hints_that_grow_too_old_are_given_up_while_the_target_is_away() {
    let impatient = |mut setup: Setup| {
        setup.handoff.age_max = Duration::from_secs(2);
        setup.handoff.sweep_every = Duration::from_secs(1);
        // A node that was away that long learns the rest from anti-entropy; until then W copies are not there.
        setup.losses = Losses::Nodes(1);
        let tale = |world: Arc<World>| async move {
            sleep(&world, 500).await;
            kill(&world, NodeId(5));
            await_hints(&world, |hint| hint.1 == NodeId(5)).await;
            // Clients stop after ten seconds.
            sleep(&world, 15_000).await;
            for _ in 0..600 {
                if world.hints().is_empty() {
                    return;
                }
                sleep(&world, 100).await;
            }
            panic!("hints are still held: {:?}", world.hints());
        };
        (setup, story(tale))
    };
    tell(impatient, |_| {});
}

/// Thousands of keys, a target that comes and goes, and holders with little room: what they hold stays within its limit,
/// no write fails for it, and what they deliver keeps to its pace. What was refused comes by comparing.
#[test]
fn a_storm_of_thousands_of_hints_stays_within_its_bytes_and_its_pace_while_the_target_flaps() {
    const LIMIT: u64 = 48 << 10;
    const RATE: u64 = 16 << 10;
    let mut setup = setup(1);
    setup.hint_bytes_max = LIMIT;
    (setup.handoff.rate_min, setup.handoff.rate_max) = (RATE, RATE);
    setup.handoff.batch_bytes_max = 2 << 10;
    stage::play(setup, |world, client| async move {
        let keys = stage::keys(2400);
        let target = NodeId(3);
        let bytes = |world: &World| -> Vec<u64> {
            let nodes = (0..5).filter_map(|position| world.node(position));
            nodes.map(|node| node.replica().hints().engine().stats().live_bytes).collect()
        };
        for (round, keys) in keys.chunks(400).enumerate() {
            kill(&world, target);
            for keys in keys.chunks(50) {
                stage::put_all(&world, &client, keys, "a value of some forty bytes, or a bit more").await;
                // A hint is refused once there is no room; the last one may reach over the limit.
                assert!(bytes(&world).iter().all(|held| *held <= LIMIT + 512), "{:?}", bytes(&world));
            }
            start(&world, target);
            sleep(&world, 40 * (round as u64 + 1)).await;
        }
        stage::until(&world, "all nodes stand", || world.all_up()).await;
        let refused = (0..5).filter_map(|position| world.node(position));
        let refused: u64 = refused.map(|node| node.replica().hints().refused()).sum();
        assert!(refused > 0, "the storm was not too much for them");
        // From here on nobody parks: bytes only leave, and each holder keeps to its rate.
        let (began, before) = (world.executor.now(), bytes(&world));
        let most = before.iter().copied().max().unwrap_or(0);
        assert!(most > LIMIT / 2, "{before:?}");
        let mut left = before;
        while left.iter().any(|held| *held > 0) {
            sleep(&world, 100).await;
            let passed = world.executor.now().since(began);
            assert!(passed < Duration::from_secs(60), "hints are still held: {left:?}");
            left = bytes(&world);
        }
        // A tenth of a second's worth may go at once.
        let least = Duration::from_secs_f64((most - RATE / 10) as f64 / RATE as f64 / 2.0);
        let took = world.executor.now().since(began);
        assert!(took >= least, "{most} bytes in {took:?} at {RATE} a second");
        stage::until(&world, "equal replicas", || world.difference(&keys).is_none()).await;
    });
}
