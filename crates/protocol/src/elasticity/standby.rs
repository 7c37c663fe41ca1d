//! Machines that stand by: booted and known to the engine, holding nothing, there for a rise of load.
//!
//! ```text
//!   requested ─▶ booting ◀─▶ ready ─▶ joining       called: `standby` becomes false, and the life goes on as that of any other
//!       └────────────┴─▶ failed └─▶ empty ─▶ …      one too many
//! ```
//!
//! A growth calls them before it buys, and what is called is bought anew. A member that was drained does not come to stand
//! by: engines may not take back what has left, so it ends, and a new machine boots.
//!
//! Must never: let one join that was not called, or end one on which others say that something is.

use std::cmp::Ordering;

use model::elasticity::adapter::MemberState;
use model::elasticity::{HeldChange, Machine, MachineState, Mode, Token};

use super::lifecycle::{self, MachineStep, WAIT, lost};
use super::sight::{MachineSight, Sight};
use super::{Question, Work, converge, decisions, guards, since};

/// Calls the machine that is nearest to serving, if one stands by or is on its way to; whether there was one.
pub(super) fn call(work: &mut Work<'_>) -> bool {
    let standing = work.next.machines.iter_mut().filter(|machine| machine.standby);
    let nearest = |machine: &&mut Machine| (rank(machine.state), std::cmp::Reverse(machine.since));
    let Some(machine) = standing.max_by_key(nearest) else { return false };
    machine.standby = false;
    machine.decision = work.next.next_decision.checked_sub(1).filter(|number| *number > 0);
    if let Some(decision) = decisions::open(&mut work.next) {
        decision.from_standby += 1;
    }
    true
}

/// How near to serving a machine is that has not joined.
fn rank(state: MachineState) -> u8 {
    match state {
        MachineState::Ready => 2,
        MachineState::Booting => 1,
        _ => 0,
    }
}

/// What becomes of a machine that is ready. It holds nothing, so that its process ends is no loss: it has the time of a boot
/// to come back.
pub(super) fn ready(work: &Work<'_>, machine: &Machine, seen: MachineSight<'_>) -> MachineStep {
    if seen.is_ended_by_word() {
        let why = seen.told("its machine ended while it stood by");
        return MachineStep::Fail { why, counts: since(work.seen.now, machine.since) < guards::PROVED_MS };
    }
    if seen.is_lost() {
        return lost(work.seen, machine, seen);
    }
    match (seen.member, seen.state()) {
        (_, Some(MemberState::Waiting | MemberState::Standby)) => match machine.standby {
            false if guards::has_slot(work) => MachineStep::To(MachineState::Joining, None),
            _ => WAIT,
        },
        (Sight::Absent, _) | (_, Some(MemberState::Down)) => {
            let note = "its engine does not see it any more".to_owned();
            MachineStep::To(MachineState::Booting, Some(note))
        }
        // Other hands have let it join, or leave.
        (_, Some(MemberState::Joining | MemberState::Serving)) => {
            MachineStep::To(MachineState::Joining, None)
        }
        (_, Some(MemberState::Draining | MemberState::Drained)) => MachineStep::To(MachineState::Empty, None),
        (Sight::Unheard, _) | (Sight::Here(_), None) => WAIT,
    }
}

/// Asks for machines until as many stand by as are wanted, and lets those go that are too many.
pub(super) fn fill(work: &mut Work<'_>) {
    if work.next.target.is_none() && work.next.serving() == 0 {
        // Whoever founds a fleet adopts its members first.
        return;
    }
    let (have, wanted) = (work.next.standing_by(), work.next.standby_wanted());
    let held = match have.cmp(&wanted) {
        // One that leaves may be wanted back, and then nothing need be bought.
        Ordering::Less if work.next.machines.iter().any(|machine| may_be_wanted_back(work, machine)) => None,
        Ordering::Less => buy(work, wanted - have).err(),
        Ordering::Equal => None,
        Ordering::Greater => {
            release(work, have - wanted);
            None
        }
    };
    let kind = |held: &Option<HeldChange>| held.as_ref().map(std::mem::discriminant);
    if kind(&work.next.standby_held) != kind(&held) {
        work.next.standby_held = held;
    }
}

fn may_be_wanted_back(work: &Work<'_>, machine: &Machine) -> bool {
    machine.state == MachineState::Draining || converge::can_come_back(work.seen, machine)
}

fn buy(work: &mut Work<'_>, more: u32) -> Result<(), HeldChange> {
    if work.next.paused.is_some() {
        return Err(HeldChange::Paused);
    }
    if work.next.policy.mode != Mode::Auto {
        return Err(HeldChange::Mode);
    }
    (0..more).try_for_each(|_| converge::buy(work, true))
}

/// Lets some go: first what is farthest from serving. One that is ready goes as an empty member does, by evidence, and only
/// where its provider would end it.
fn release(work: &mut Work<'_>, surplus: u32) {
    let mut standing: Vec<Machine> = work.next.machines.iter().filter(|one| one.standby).cloned().collect();
    standing.sort_by_key(|machine| (rank(machine.state), std::cmp::Reverse(machine.since)));
    let note = || Some("it is not wanted any more".to_owned());
    for machine in standing.into_iter().take(surplus as usize) {
        if machine.state != MachineState::Ready {
            converge::change(work, &machine.token, MachineState::Failed, note());
        } else if would_end(work, &machine) {
            converge::change(work, &machine.token, MachineState::Empty, note());
        }
    }
}

/// Whether the provider would end it; it is asked where that is not known.
fn would_end(work: &mut Work<'_>, machine: &Machine) -> bool {
    let is_as_read = |token: &Token| {
        let as_read = work.seen.fleet.machines.iter().find(|one| &one.token == token);
        as_read.is_some_and(|one| one.state == machine.state)
    };
    let Some(instance) = machine.instance.clone().filter(|_| is_as_read(&machine.token)) else {
        return false;
    };
    match work.seen.preflight.get(&instance) {
        None => {
            work.questions.insert(Question::Preflight { instance });
            false
        }
        Some(answer) => {
            let refusal =
                answer.as_ref().err().map(|why| format!("its provider refuses to end it: {}", why.detail));
            lifecycle::tell(lifecycle::machine_mut(&mut work.next, &machine.token), refusal);
            answer.is_ok()
        }
    }
}
