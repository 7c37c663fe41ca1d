//! What must not happen on a day, judged by what the world knows and the machine does not.

use model::elasticity::adapter::{InstanceState, MemberState};
use model::elasticity::{Fleet, Machine, MachineState, Reason, RuleVerdict};

use super::world::{Hosted, STEP_S, STRANGER, World};
use super::{Load, Weather};

/// The longest that a machine may be paid for without serving, in seconds: all deadlines, and what errs beside them.
const IDLE_MAX_S: u64 = 3 * 3600;
/// The longest that a sample may be old by which a member is removed, in seconds.
const SAMPLE_AGE_MAX_S: u64 = 30;
/// Removals of a day that soon were wanted back, at most: load in step with the cooldown may deceive so often.
const FLIPS_MAX: usize = 5;
/// Changes of size under constant load, at most: from the first size to the right one.
const MOVES_CONSTANT_MAX: usize = 6;

fn is_paid(one: &&Hosted) -> bool {
    matches!(one.instance.state, InstanceState::Pending | InstanceState::Running)
        && one.instance.token.as_deref() != Some(STRANGER)
}

fn note(world: &mut World, broken: String) {
    let at = world.now;
    world.day.broken.push(format!("{at} s: {broken}"));
}

/// A document is published.
pub(super) fn published(world: &mut World, next: &Fleet) {
    let before = &world.fleet;
    let number = before.next_decision;
    let by_itself = |reason: &Reason| matches!(reason, Reason::Rule { .. } | Reason::Load { .. });
    let mut decided = next.decisions.iter().filter(|one| one.number >= number);
    let decided = decided.find(|one| one.held.is_none() && one.reasons.iter().any(by_itself));
    let moved = decided
        .filter(|one| matches!(one.verdict, RuleVerdict::Add | RuleVerdict::Remove))
        .map(|one| one.verdict);
    let stale = before.in_state(MachineState::Serving).find(|machine| {
        let node = world.nodes.iter().find(|node| Some(&node.member.id) == machine.member.as_ref());
        node.is_some_and(|node| node.measured_at + SAMPLE_AGE_MAX_S < world.now)
    });
    let mut broken = Vec::new();
    if let (Some(RuleVerdict::Remove), Some(stale)) = (moved, stale) {
        broken.push(format!("a member is removed while {} is not measured", stale.token));
    }
    let is_new = |machine: &&Machine| !before.machines.iter().any(|one| one.token == machine.token);
    let mut bought = next.in_state(MachineState::Requested).filter(is_new);
    if bought.any(|machine| !machine.standby)
        && next.machines.iter().any(|machine| machine.standby && !is_new(&machine))
    {
        broken.push("a machine is bought beside one that stands by".to_owned());
    }
    let buys = next.machines.iter().any(|machine| {
        machine.state == MachineState::Requested
            && !before.machines.iter().any(|one| one.token == machine.token)
    });
    let is_drained = |id: &String| {
        let drains = |state| matches!(state, MemberState::Draining | MemberState::Serving);
        world.nodes.iter().any(|node| node.member.id == *id && drains(node.member.state))
    };
    let leaves =
        next.in_state(MachineState::Draining).any(|machine| machine.member.as_ref().is_some_and(is_drained));
    if buys && leaves && world.weather.cancellable {
        broken.push("a machine is bought while a drain could be taken back".to_owned());
    }
    let most = next.policy.budget.per_hour;
    if buys && most.is_some_and(|most| next.cost_per_hour() > most) {
        broken.push(format!("{} an hour is above the budget", next.cost_per_hour()));
    }
    if next.serving() < before.serving() && next.serving() < next.policy.min {
        broken.push(format!("{} serve, fewer than the fewest", next.serving()));
    }
    if next.generation != before.generation + 1 {
        broken.push("a document follows that is not the next".to_owned());
    }
    let cancelled = before.in_state(MachineState::Draining).filter(|machine| {
        next.machines.iter().any(|one| one.token == machine.token && one.state == MachineState::Serving)
    });
    world.day.cancelled += cancelled.count() as u64;
    let is_called = |machine: &&Machine| {
        let called = |one: &Machine| one.token == machine.token && one.state == MachineState::Joining;
        next.machines.iter().any(called)
    };
    let called = before.in_state(MachineState::Ready).filter(is_called).count() as u64;
    world.day.called += called;
    let failed = |fleet: &Fleet| fleet.in_state(MachineState::Failed).count() as u64;
    world.day.failures += failed(next).saturating_sub(failed(before));
    if let Some(verdict) = moved {
        world.day.moves.push((world.now, verdict));
    }
    if next.serving() != before.serving() {
        world.day.sizes.push((world.now, next.serving()));
    }
    broken.into_iter().for_each(|broken| note(world, broken));
}

/// A machine is to be ended.
pub(super) fn ends(world: &mut World, id: &str) {
    let Some(one) = world.hosted.iter().find(|one| one.instance.id == id) else { return };
    if one.instance.token.as_deref() == Some(STRANGER) {
        return note(world, "a stranger is ended".to_owned());
    }
    let node = world.nodes.iter().find(|node| node.member.address == one.instance.address);
    let Some(id) = node.map(|node| node.member.id.clone()) else { return };
    let keys = world.keys.iter().filter(|owner| **owner == id).count();
    if keys > 0 {
        note(world, format!("{id} is ended with {keys} keys"));
    }
}

/// A step has passed.
pub(super) fn step(world: &mut World) {
    let now = world.now;
    let serves = |address: &Option<String>| {
        let serves = |state| matches!(state, MemberState::Serving | MemberState::Draining);
        world.nodes.iter().any(|node| node.member.address == *address && serves(node.member.state))
    };
    let busy: Vec<bool> = world.hosted.iter().map(|one| serves(&one.instance.address)).collect();
    let mut late = Vec::new();
    for (one, busy) in world.hosted.iter_mut().zip(busy) {
        if busy || !is_paid(&&*one) {
            one.idle_since = now;
        }
        let is_ready = world.fleet.machines.iter().any(|machine| {
            machine.instance.as_ref() == Some(&one.instance.id)
                && machine.standby
                && machine.state == MachineState::Ready
        });
        if is_ready {
            one.idle_since = now;
        }
        if now - one.idle_since > IDLE_MAX_S && (now - one.idle_since - IDLE_MAX_S) <= STEP_S {
            let mut entries = world.fleet.machines.iter();
            let entry = entries.find(|machine| machine.instance.as_ref() == Some(&one.instance.id));
            let state = entry.map(|machine| (machine.state, &machine.note));
            late.push(format!("{} is paid for and has not served for long: {state:?}", one.instance.id));
        }
    }
    let paid = world.hosted.iter().filter(is_paid).count() as u64;
    world.day.machine_minutes += paid;
    late.into_iter().for_each(|broken| note(world, broken));
}

/// The day has ended; nothing has erred for four hours.
pub(super) fn at_the_end(world: &mut World) {
    let mut broken = Vec::new();
    for one in world.hosted.iter().filter(is_paid) {
        let entries = world.fleet.machines.iter();
        match entries.filter(|machine| machine.instance.as_ref() == Some(&one.instance.id)).count() {
            1 => {}
            count => broken.push(format!("{} has {count} entries", one.instance.id)),
        }
    }
    for machine in world.fleet.in_state(MachineState::Serving) {
        let node = world.nodes.iter().find(|node| Some(&node.member.id) == machine.member.as_ref());
        if node.is_none_or(|node| !matches!(node.member.state, MemberState::Serving)) {
            broken.push(format!("{} is shut out", machine.token));
        }
    }
    let (stand, wanted) = (world.fleet.standing_by(), world.fleet.standby_wanted());
    let may_lack =
        world.fleet.standby_held.is_some() || world.fleet.in_state(MachineState::Draining).next().is_some();
    if stand > wanted || (stand < wanted && !may_lack) {
        broken.push(format!("{stand} stand by, and {wanted} should"));
    }
    for machine in world.fleet.in_state(MachineState::Failed) {
        broken.push(format!("{} is failed and not ended", machine.token));
    }
    let flips = world.day.flips();
    let Weather { load, errs, .. } = world.weather;
    if flips > FLIPS_MAX || (load == Load::Constant && flips > 0) {
        broken.push(format!("{flips} removals were soon wanted back"));
    }
    if load == Load::Constant && !errs && world.day.moves.len() > MOVES_CONSTANT_MAX {
        broken.push(format!("{} changes of size under constant load", world.day.moves.len()));
    }
    world.day.machine_minutes = world.day.machine_minutes * STEP_S / 60;
    world.day.overloaded_minutes = world.day.overloaded_minutes * STEP_S / 60;
    broken.into_iter().for_each(|broken| note(world, broken));
}
