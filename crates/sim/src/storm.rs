//! Storms: the power of W nodes, or of all, goes within a few milliseconds, right after a client was told *done*.
//!
//! Only where every write is synced before it is acknowledged: there no number of power cuts may take one away.

use std::sync::Arc;
use std::time::Duration;

use crate::cluster::World;
use crate::dice::Dice;
use crate::executor::ProcessId;

/// How often it is looked whether a write was acknowledged.
const LOOK: Duration = Duration::from_micros(200);
/// How long a storm waits for an acknowledgement.
const PATIENCE: Duration = Duration::from_millis(500);
/// Within this time the power of all that are struck is gone.
const WITHIN_US: u64 = 3000;

/// Lets the run's storms strike, one after the other, until its span is over.
pub async fn storms(world: Arc<World>, process: ProcessId) {
    let mut dice = Dice::apart(world.setup.seed, 16);
    let end = world.executor.now().after(world.setup.span);
    let pause = world.setup.span.as_micros() as u64 / (world.setup.storms + 1);
    for _ in 0..world.setup.storms {
        world.executor.sleep(Duration::from_micros(dice.between(pause / 2, pause))).await;
        await_acknowledgement(&world).await;
        if world.executor.now() >= end {
            return;
        }
        strike(&world, process, &mut dice);
    }
}

async fn await_acknowledgement(world: &World) {
    let (before, give_up) = (world.acknowledgements(), world.executor.now().after(PATIENCE));
    while world.acknowledgements() == before && world.executor.now() < give_up {
        world.executor.sleep(LOOK).await;
    }
}

fn strike(world: &Arc<World>, process: ProcessId, dice: &mut Dice) {
    let mut victims: Vec<usize> = (0..world.machines().len()).collect();
    let many = if dice.chance(500) { victims.len() } else { usize::from(world.setup.writes) };
    while victims.len() > many {
        victims.swap_remove(dice.below(victims.len() as u64) as usize);
    }
    world.harmed("Storm".to_owned());
    world.tell(format!("a storm cuts the power of {many} nodes"));
    for victim in victims {
        let (world, mut dice) = (world.clone(), Dice::new(dice.roll()));
        let executor = world.executor.clone();
        let blow = async move {
            world.executor.sleep(Duration::from_micros(dice.below(WITHIN_US + 1))).await;
            let (silence, linger) = (dice.millis(0, 2000), dice.millis(0, 3000));
            world.cut_power(victim, dice.roll(), silence, linger);
            world.executor.sleep(dice.millis(1, 1500)).await;
            world.start(victim);
        };
        executor.spawn(process, Box::pin(blow));
    }
}
