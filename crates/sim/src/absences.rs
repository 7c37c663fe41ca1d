//! Machines that die for good, nodes that are away for long, processes that are stopped, and neighbours that come and go:
//! what the autopilot must tell from each other.
//!
//! One machine at a time: the next one is struck when the one before serves again, or is no member any more. So no
//! replica of a write is lost before the one before was replaced.
//!
//! Must never: strike after the span of a run. What is dead and was not replaced by then rises when all is healed.

use std::sync::Arc;
use std::time::Duration;

use model::{Moment, Role};

use crate::cluster::World;
use crate::dice::Dice;
use crate::executor::ProcessId;
use crate::swarm::Piloted;

/// Pause between two looks at whether a machine that was struck is a matter of the past.
const LOOK: Duration = Duration::from_secs(1);
/// The session of a process that has ended lasts for this long, at most.
const LINGER_MS: u64 = 3000;

/// What may become of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AbsenceFate {
    /// It is dead for good.
    Dies,
    /// Its process ends, and another one starts after a while.
    Away,
    /// Its process stands still, and its session ends.
    Stopped,
}

/// Lets all of it happen until `end`.
pub async fn befall(world: Arc<World>, process: ProcessId, end: Moment) {
    let Some(piloted) = world.setup.autopilot.clone() else { return };
    let neighbours = crowd(world.clone(), piloted.neighbours, end);
    world.executor.spawn(process, Box::pin(neighbours));
    let mut dice = Dice::apart(world.setup.seed, 37);
    // The autopilot acts on loads only while all members answer: it has some time for that first.
    world.executor.sleep(dice.millis(20_000, 120_000)).await;
    for fate in fates(&piloted, &mut dice) {
        world.executor.sleep(dice.millis(20_000, 80_000)).await;
        let Some(victim) = victim(&world, &mut dice) else { continue };
        if world.executor.now() >= end {
            return;
        }
        world.tell(format!("{}: {fate:?}", world.machines()[victim].id()));
        world.harmed(format!("{fate:?}"));
        let length = dice.millis(20_000, u64::from(piloted.settings.replace_after_s) * 2000);
        let until = world.executor.now().after(length).min(end);
        strike(&world, victim, (fate, until), &mut dice).await;
        while world.executor.now() < end && !is_past(&world, victim) {
            world.executor.sleep(LOOK).await;
        }
    }
}

/// All that will happen, in an order that is drawn.
fn fates(piloted: &Piloted, dice: &mut Dice) -> Vec<AbsenceFate> {
    let mut fates = vec![AbsenceFate::Dies; piloted.deaths as usize];
    for _ in 0..piloted.absences {
        let stops = piloted.only_stops || dice.chance(500);
        let at = dice.below(fates.len() as u64 + 1) as usize;
        fates.insert(at, if stops { AbsenceFate::Stopped } else { AbsenceFate::Away });
    }
    fates
}

/// A serving member whose process runs.
fn victim(world: &World, dice: &mut Dice) -> Option<usize> {
    let cluster = world.newest()?;
    let serves = |position: &usize| {
        let node = cluster.node(world.machines()[*position].id());
        node.is_some_and(|node| node.role == Role::Serving && !node.gone) && world.node(*position).is_some()
    };
    let serving: Vec<usize> = (0..world.machines().len()).filter(serves).collect();
    (!serving.is_empty()).then(|| *dice.pick(&serving))
}

async fn strike(world: &Arc<World>, victim: usize, (fate, until): (AbsenceFate, Moment), dice: &mut Dice) {
    match fate {
        AbsenceFate::Dies => world.lay_dead(victim, dice.millis(0, LINGER_MS)),
        AbsenceFate::Away => {
            world.lay_dead(victim, dice.millis(0, LINGER_MS));
            world.executor.sleep_until(until).await;
            world.rise(victim);
            world.start(victim);
        }
        AbsenceFate::Stopped => {
            let length = until.since(world.executor.now());
            world.end_session_in(victim, dice.millis(0, LINGER_MS));
            world.pause(victim, length).await;
        }
    }
}

/// Whether a machine that was struck serves again, or is no member any more.
fn is_past(world: &World, victim: usize) -> bool {
    let is_named = |id| world.newest().is_some_and(|cluster| cluster.node(id).is_some());
    world.node(victim).is_some() || !is_named(world.machines()[victim].id())
}

/// Neighbours run on one machine after the other, and make its work dearer.
async fn crowd(world: Arc<World>, most: u64, end: Moment) {
    let mut dice = Dice::apart(world.setup.seed, 38);
    while world.executor.now() < end {
        let victim = dice.below(world.machines().len() as u64) as usize;
        let Some(processor) = world.machines()[victim].processor.clone() else { return };
        processor.shared(dice.between(most / 2, most));
        world.executor.sleep(dice.millis(60_000, 120_000)).await;
        processor.shared(1000);
    }
}
