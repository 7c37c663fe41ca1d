//! One seed, from the founding of the cluster to the verdict.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use model::{Moment, NodeId, WallMillis};
use parking_lot::Mutex;
use runtime::BoxFuture;

use crate::absences;
use crate::artifacts;
use crate::by_hash::ByHash;
use crate::check::absent::Absences;
use crate::check::reads::Pairs;
use crate::check::sloppy::SloppyTold;
use crate::check::{self, Violation};
use crate::cluster::World;
use crate::dice::Dice;
use crate::executor::{Halt, ProcessId, WALL_START_MS};
use crate::headmasters;
use crate::history::{History, Outcome, Recorder, Remains};
use crate::nemesis;
use crate::plant::Plant;
use crate::played::Played;
use crate::promises::Promises;
use crate::rebalance;
use crate::redis::RedisClient;
use crate::scenario;
use crate::storm;
use crate::swarm::{Fault, Setup};
use crate::tampering;
use crate::workload::Worker;

/// Verdicts of the judges of a whole run that get the evidence of the run beside them.
const EXPLAINED_MAX: usize = 10;

/// Virtual time after which a run counts as hanging.
const LIMIT: Duration = Duration::from_secs(1200);
/// How long a healed cluster has until it must run and answer.
const RECOVERY: Duration = Duration::from_secs(60);
/// How long after the clients have ended their work the copies of what they wrote are still looked at.
const AFTERWARDS: Duration = Duration::from_secs(2);
/// How long hints have to reach their targets once everything runs. Where frames are lost, a batch may need several
/// attempts, with pauses that grow.
const DRAIN: Duration = Duration::from_secs(600);
/// How long what is under way has to settle before the nodes are read.
const SETTLE: Duration = Duration::from_secs(4);
/// How long moves and pushes have to end, and what is not a node's own to go.
const SETTLED: Duration = Duration::from_secs(180);
/// How long replicas have to become equal after that.
const CONVERGENCE: Duration = Duration::from_secs(60);

/// What a run was like.
#[derive(Clone, Debug)]
pub struct Report {
    /// What it was made of.
    pub setup: Setup,
    /// Broken promises.
    pub violations: Vec<Violation>,
    /// Hash of everything observable.
    pub trace: u64,
    /// What clients asked and heard.
    pub history: History,
    /// What happened, for people.
    pub log: Vec<String>,
    /// Virtual time that it took.
    pub lasted: Duration,
    /// Frames delivered.
    pub frames: u64,
    /// Reads that were begun again because they would have held up a worker.
    pub refused_reads: u64,
    /// How many reads were judged.
    pub pairs: Pairs,
    /// How many answers depended on absence.
    pub absences: Absences,
    /// How many answers said that a fallback stood in.
    pub sloppy: SloppyTold,
    /// How often it came to what is rare.
    pub played: Played,
    /// Polls of tasks.
    pub steps: u64,
}

impl Report {
    /// Operations that were done, failed, and of unknown outcome.
    pub fn outcomes(&self) -> (usize, usize, usize) {
        let mut counts = (0, 0, 0);
        for operation in &self.history.operations {
            match operation.outcome {
                Outcome::Got(_) | Outcome::Shown(_) | Outcome::Written { .. } | Outcome::Acknowledged => {
                    counts.0 += 1
                }
                Outcome::Failed(_) => counts.1 += 1,
                Outcome::Pending | Outcome::Indeterminate(_) => counts.2 += 1,
            }
        }
        counts
    }
}

/// What the conductor of a run found out.
#[derive(Default)]
struct RunFindings {
    remains: Vec<Remains>,
    /// Hints that did not reach their targets: holder, target, how many.
    hints: Vec<(NodeId, NodeId, u64)>,
    wrong: Vec<String>,
    /// Why the replicas are not equal although nothing has disturbed them for long.
    unequal: Option<String>,
    /// What is left of a value that has expired.
    left: Option<Violation>,
    /// What is left of moves and pushes.
    moved: Vec<Violation>,
}

/// What happens to a cluster while clients work: given the world, and the process in which it may run tasks.
pub type Story = Box<dyn FnOnce(Arc<World>, ProcessId) -> BoxFuture<'static, ()> + Send>;

/// Plays a run with the harm that its setup has drawn.
pub fn play(setup: Setup) -> Report {
    play_story(
        setup,
        Box::new(|world, process| {
            if world.setup.storms > 0 {
                world.executor.spawn(process, Box::pin(storm::storms(world.clone(), process)));
            }
            match world.setup.scenario {
                Some(scenario) => Box::pin(scenario::tell(scenario, world)),
                None => Box::pin(nemesis::harm(world, process)),
            }
        }),
    )
}

/// Plays a run in which `story` happens, instead of harm that was drawn. Healing and judging are the same.
pub fn play_story(setup: Setup, story: Story) -> Report {
    let world = World::new(setup.clone());
    let recorder = Recorder::default();
    let found = Arc::new(Mutex::new(RunFindings::default()));
    let promises = Promises::watch(world.clone(), &recorder);
    let done = Arc::new(AtomicBool::new(false));
    let operator = world.executor.process();
    if let Some(plant) = setup.plant {
        world.wires.tamper(tampering::tamper(plant, Dice::apart(setup.seed, 7), ByHash::of(&setup)));
        let late =
            tampering::tamper_late(plant).or_else(|| tampering::artifacts_late(plant, &world.artifacts));
        world.wires.tamper_late(late);
        world.wires.refuse_stopped(plant == Plant::StoppedRefuse);
    }
    let conductor = conduct(world.clone(), recorder.clone(), found.clone(), (operator, story), done.clone());
    world.executor.spawn(operator, Box::pin(conductor));
    let looking =
        promises.clone().look_on(recorder.clone(), Moment::default().after(setup.span + AFTERWARDS));
    world.executor.spawn(operator, Box::pin(looking));
    let ended = world.executor.run(&done, Moment::default().after(LIMIT));

    let history = history_of(&world, &recorder);
    let RunFindings { remains, hints, wrong, unequal, left, moved } = std::mem::take(&mut *found.lock());
    let (mut violations, judged) = check::all(&history, &remains, setup.rules());
    for violation in violations.iter_mut().filter(|found| found.about.is_some()).take(EXPLAINED_MAX) {
        violation.detail.extend(violation.about.map(|write| promises.evidence(&history, write, &remains)));
    }
    violations.extend(promises.broken());
    violations.extend(unequal.map(|detail| Violation { invariant: 2, about: None, detail }));
    violations.extend(left);
    violations.extend(moved);
    violations.extend(world.artifacts.broken());
    violations.extend(world.backwards());
    let (broken, piloted) = world.piloted();
    violations.extend(broken);
    violations.extend(check::drained::check(&hints));
    violations.extend(wrong.into_iter().map(|detail| Violation { invariant: 0, about: None, detail }));
    if let Err(halt) = ended {
        violations.push(Violation {
            invariant: 0,
            about: None,
            detail: describe(&halt, world.executor.now()),
        });
    }
    let played = Played::of(&history);
    let report = Report {
        setup,
        violations,
        trace: world.executor.trace(),
        history,
        log: world.whole_log(),
        lasted: world.executor.now().since(Moment::default()),
        frames: world.wires.frames(),
        refused_reads: world.refused_reads(),
        pairs: judged.pairs,
        absences: judged.absences,
        sloppy: judged.sloppy,
        played: Played {
            lifetimes: judged.lifetimes as u64,
            crowded: world.crowded_batches(),
            artifacts: world.artifacts.counts(),
            service: world.service.fault_counts(),
            piloted,
            looks: promises.looks(),
            harm: world.harm(),
            ..played
        },
        steps: world.executor.steps(),
    };
    world.end();
    report
}

/// What clients asked and heard, and what was seen beside them.
fn history_of(world: &World, recorder: &Recorder) -> History {
    History {
        epochs: world.epochs(),
        strikes: world.strikes(),
        witnessed: world.witness.events(),
        circumstances: world.circumstances(),
        looks: world.witness.looks(),
        ..recorder.history()
    }
}

fn describe(halt: &Halt, at: Moment) -> String {
    match halt {
        Halt::Panicked { message } => {
            format!("a task panicked at {:.6}: {message}", at.nanos as f64 / 1e9)
        }
        Halt::Stuck => "nothing can go on, but the run is not over".to_owned(),
        Halt::Spinning => "tasks wake each other without end".to_owned(),
        Halt::TooLong => format!("the run is not over after {LIMIT:?} of virtual time"),
    }
}

async fn conduct(
    world: Arc<World>,
    recorder: Recorder,
    found: Arc<Mutex<RunFindings>>,
    (operator, story): (ProcessId, Story),
    done: Arc<AtomicBool>,
) {
    world.found().await;
    world.service.set_faults(world.setup.service);
    for position in 0..world.machines().len() {
        world.start(position);
    }
    let end = world.executor.now().after(world.setup.span);
    if world.setup.pushes() {
        begin_pushes(&world, operator, end);
    }
    if world.setup.moves {
        let managing: BoxFuture<'static, ()> = match world.setup.headmasters {
            true => Box::pin(headmasters::reign(world.clone(), operator, end)),
            false => Box::pin(rebalance::manage(world.clone(), operator, end)),
        };
        world.executor.spawn(operator, managing);
    }
    if world.setup.autopilot.is_some() {
        world.executor.spawn(operator, Box::pin(absences::befall(world.clone(), operator, end)));
    }
    let clients = world.executor.process();
    let working = Arc::new(tokio::sync::Semaphore::new(0));
    for number in 1..=world.setup.clients {
        let worker = Worker::new(world.clone(), recorder.clone(), number, clients);
        let working = working.clone();
        world.executor.spawn(
            clients,
            Box::pin(async move {
                worker.work(end).await;
                working.add_permits(1);
            }),
        );
    }
    for number in 1..=world.setup.redis_clients {
        let client = RedisClient::new(world.clone(), recorder.clone(), number, clients);
        let working = working.clone();
        world.executor.spawn(
            clients,
            Box::pin(async move {
                client.work(end).await;
                working.add_permits(1);
            }),
        );
    }
    story(world.clone(), operator).await;
    let mut dice = Dice::apart(world.setup.seed, 6);
    nemesis::heal(&world, &mut dice).await;
    let all = working.acquire_many(world.setup.clients + world.setup.redis_clients).await;
    drop(all);
    let wrong = last_words(&world, recorder, clients, &found).await;
    found.lock().wrong.extend(wrong.err());
    done.store(true, Ordering::Relaxed);
}

/// Lets a user push artifacts and readers read them until `end`; a headmaster carries pushes out, until the run is over.
fn begin_pushes(world: &Arc<World>, operator: ProcessId, end: Moment) {
    if !world.setup.headmasters {
        headmasters::stand_until(world, operator, end);
    }
    let spawn = |process, task: BoxFuture<'static, ()>| world.executor.spawn(process, task);
    let user = world.executor.process();
    spawn(user, Box::pin(artifacts::push(world.clone(), user, end)));
    for number in 1..=world.setup.readers {
        let reader = world.executor.process();
        spawn(reader, Box::pin(artifacts::read(world.clone(), number, reader, end)));
    }
}

/// Waits until everything runs, reads every key through a client, and then what each node holds.
async fn last_words(
    world: &Arc<World>,
    recorder: Recorder,
    clients: ProcessId,
    found: &Mutex<RunFindings>,
) -> Result<(), String> {
    let give_up = world.executor.now().after(RECOVERY);
    while !world.all_up() {
        if world.executor.now() > give_up {
            return Err(format!("a node does not start after healing: {}", world.why_not_up()));
        }
        world.executor.sleep(Duration::from_millis(50)).await;
    }
    // Links that broke in the storm back off for a second at most.
    world.executor.sleep(SETTLE).await;
    let reader = Worker::new(world.clone(), recorder, world.setup.clients + 1, clients);
    reader.read_all(give_up.after(SETTLE)).await?;
    world.executor.sleep(SETTLE).await;
    // A planted bug that keeps hints need not be waited for that long.
    let patience = if world.setup.plant.is_some() { DRAIN / 20 } else { DRAIN };
    let give_up = world.executor.now().after(patience);
    while !world.hints().is_empty() && world.executor.now() < give_up {
        world.executor.sleep(Duration::from_millis(500)).await;
    }
    found.lock().hints = world.hints();
    if world.setup.moves {
        let moved = rebalance::end(world, world.executor.now().after(SETTLED)).await;
        found.lock().moved = moved;
    }
    if world.setup.pushes() {
        let patience = if world.setup.plant.is_some() { SETTLED / 6 } else { SETTLED };
        let ended = artifacts::end(world, world.executor.now().after(patience)).await;
        found.lock().moved.extend(ended);
    }
    found.lock().unequal = become_equal(world).await;
    found.lock().left = forget_expired(world).await;
    if world.setup.faults.contains(&Fault::FlippedBits) {
        world.tell_of_damage();
    }
    world.tell("reading what is left");
    for store in world.stores() {
        for number in 0..world.setup.keys {
            let remains = world.remains(store, &world.setup.key(number))?;
            found.lock().remains.push(remains);
        }
    }
    Ok(())
}

/// Waits until every replica of every key holds the same; says why not, if they never do.
async fn become_equal(world: &Arc<World>) -> Option<String> {
    if !world.setup.equal_at_the_end() {
        return None;
    }
    let keys: Vec<_> = (0..world.setup.keys).map(|number| world.setup.key(number)).collect();
    let give_up = world.executor.now().after(CONVERGENCE);
    loop {
        let difference = world.difference(&keys)?;
        if world.executor.now() > give_up {
            return Some(difference);
        }
        world.executor.sleep(Duration::from_millis(200)).await;
    }
}

/// Waits until nothing is left of what has expired; says of which key something is, if it never is gone.
async fn forget_expired(world: &Arc<World>) -> Option<Violation> {
    if !world.setup.reaps() {
        return None;
    }
    let give_up = world.executor.now().after(CONVERGENCE);
    loop {
        let keys = || (0..world.setup.keys).map(|number| world.setup.key(number));
        let remains = world.stores().iter().flat_map(|store| keys().map(|key| world.remains(store, &key)));
        let remains: Vec<Remains> = remains.filter_map(Result::ok).collect();
        let now = WallMillis(WALL_START_MS + world.executor.now().nanos / 1_000_000);
        let left = check::expired::left(&remains, now)?;
        if world.executor.now() > give_up {
            return Some(left);
        }
        world.executor.sleep(Duration::from_millis(500)).await;
    }
}
