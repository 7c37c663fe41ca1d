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

const SEEDS: std::ops::RangeInclusive<u64> = 1..=3;

/// Five nodes that sync every write, three replicas, stand-ins allowed, and clients that never rest for long.
fn setup(seed: u64) -> Setup {
    let mut setup = Setup::of_seed(seed);
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
    setup.redis_clients = 0;
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
        // Whoever was away so long learns the rest from anti-entropy; until then W copies are not there.
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
