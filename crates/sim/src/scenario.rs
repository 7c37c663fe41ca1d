//! Harm in an order that chance hardly finds: stories in which one rule decides.
//!
//! Must never: do harm after the span of a run.

use std::sync::Arc;
use std::time::Duration;

use crate::cluster::World;
use crate::dice::Dice;
use crate::host::Host;
use crate::swarm::Scenario;

/// Lets a story happen, until the run's span is over.
pub async fn tell(scenario: Scenario, world: Arc<World>) {
    let end = world.executor.now().after(world.setup.span);
    match scenario {
        Scenario::LostDiskBehindCut => lose_disk_behind_cut(&world, false).await,
        Scenario::PowerCutInRefill => lose_disk_behind_cut(&world, true).await,
        Scenario::HeldMerges => hold_merges(&world).await,
    }
    world.executor.sleep_until(end).await;
}

async fn lose_disk_behind_cut(world: &Arc<World>, cuts_power: bool) {
    let mut dice = Dice::apart(world.setup.seed, 20);
    world.executor.sleep(dice.millis(1000, 1500)).await;
    world.kill(0, Duration::ZERO, Duration::ZERO);
    world.executor.sleep(dice.millis(1000, 1500)).await;
    let third = world.machines()[2].host();
    let others = [1, 2].into_iter().chain(101..=100 + world.setup.clients).map(Host);
    for other in others {
        world.wires.block(third, other);
        world.wires.block(other, third);
    }
    world.kill(1, Duration::ZERO, Duration::ZERO);
    world.wipe(1);
    world.start(1);
    world.start(0);
    world.executor.sleep(dice.millis(500, 1500)).await;
    if cuts_power {
        world.cut_power(1, dice.roll(), Duration::ZERO, Duration::ZERO);
        world.start(1);
    }
    world.executor.sleep(dice.millis(2000, 3000)).await;
}

async fn hold_merges(world: &Arc<World>) {
    let (from, to) = (world.machines()[1].host(), world.machines()[2].host());
    for _ in 0..2 {
        world.executor.sleep(Duration::from_millis(500)).await;
        world.wires.block(from, to);
        world.executor.sleep(Duration::from_millis(5500)).await;
        world.wires.unblock(from, to);
    }
}
