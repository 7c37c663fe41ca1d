//! From this many machines to as many as are wanted, as far as the guards let.
//!
//! A drain is taken back before a machine is bought. Must never: change the target.

use model::elasticity::adapter::MemberState;
use model::elasticity::{HeldChange, Machine, MachineState, Token};

use super::{Observation, Question, Work, decisions, guards, lifecycle, standby};

/// Begins what leads to the target.
pub(super) fn converge(work: &mut Work<'_>) {
    let Some(target) = work.next.target else { return };
    let have = work.next.will_serve();
    let held = match have.cmp(&target) {
        std::cmp::Ordering::Less => grow(work, target - have),
        std::cmp::Ordering::Greater => shrink(work, have - target),
        std::cmp::Ordering::Equal => Ok(()),
    };
    decisions::hold_up(work, held.err());
}

fn grow(work: &mut Work<'_>, more: u32) -> Result<(), HeldChange> {
    for _ in 0..more {
        if take_back_a_drain(work) {
            continue;
        }
        if work.next.paused.is_some() {
            return Err(HeldChange::Paused);
        }
        if standby::call(work) {
            continue;
        }
        buy(work, false)?;
    }
    Ok(())
}

/// Puts a request for one machine into the document, if it may be bought.
pub(super) fn buy(work: &mut Work<'_>, standby: bool) -> Result<(), HeldChange> {
    guards::may_start(work, standby)?;
    let price_per_hour = guards::may_buy(work.seen, &work.next, 1)?;
    let fleet = &mut work.next;
    let token = Token::new(&fleet.uid, fleet.next_token);
    fleet.next_token += 1;
    fleet.machines.push(Machine {
        token,
        instance: None,
        address: None,
        member: None,
        kind: fleet.policy.machine_type.clone(),
        price_per_hour,
        state: MachineState::Requested,
        since: work.seen.now,
        began: work.seen.now,
        decision: fleet.next_decision.checked_sub(1).filter(|number| *number > 0),
        standby,
        adopted: false,
        gone: None,
        note: None,
    });
    Ok(())
}

/// Whether a drain can be taken back: the engine can, and its member has not left. An engine may never take one in again that
/// has left.
pub(super) fn can_come_back(seen: &Observation, machine: &Machine) -> bool {
    let (Ok(engine), Ok(members)) = (&seen.engine, &seen.members) else { return false };
    let has_left =
        |state| !matches!(state, MemberState::Draining | MemberState::Serving | MemberState::Joining);
    let member = members.iter().find(|one| machine.member.as_ref() == Some(&one.id));
    engine.drain_cancellable
        && matches!(machine.state, MachineState::Draining | MachineState::Empty)
        && member.is_some_and(|member| !has_left(member.state))
}

/// Lets the machine serve again that began to leave last, if that can be; whether there was one.
pub(super) fn take_back_a_drain(work: &mut Work<'_>) -> bool {
    let seen = work.seen;
    let leaving = work.next.machines.iter_mut().filter(|machine| can_come_back(seen, machine));
    // One that is being drained has more left than one that is empty.
    let Some(machine) =
        leaving.max_by_key(|machine| (machine.state == MachineState::Draining, machine.since))
    else {
        return false;
    };
    lifecycle::set(machine, MachineState::Serving, work.seen.now, Some("its drain is taken back".to_owned()));
    work.next.settled = Some(work.seen.now);
    true
}

/// Which of two machines leaves first: one that is not there yet, then the one that was asked for last; adopted ones last.
fn place(machine: &Machine, uid: &str) -> (bool, MachineState, bool, std::cmp::Reverse<u64>) {
    let has_joined =
        !matches!(machine.state, MachineState::Requested | MachineState::Booting | MachineState::Ready);
    (has_joined, machine.state, machine.adopted, std::cmp::Reverse(machine.token.number(uid).unwrap_or(0)))
}

fn shrink(work: &mut Work<'_>, less: u32) -> Result<(), HeldChange> {
    let uid = work.next.uid.clone();
    let goes = |machine: &&Machine| {
        !machine.is_unmanaged() && (machine.is_coming() || machine.state == MachineState::Serving)
    };
    let mut candidates: Vec<Machine> = work.next.machines.iter().filter(goes).cloned().collect();
    if candidates.is_empty() {
        let detail = "only members without a machine of the provider are left, and these are never ended";
        return Err(HeldChange::Provider { detail: detail.to_owned() });
    }
    candidates.sort_by_key(|machine| place(machine, &uid));
    let (mut left, mut asked, mut refusal) = (less, 0, None);
    for candidate in candidates {
        if left == 0 {
            return Ok(());
        }
        if !matches!(candidate.state, MachineState::Joining | MachineState::Serving) {
            // It has not joined, so it stands by; of those that are too many, `standby::fill` lets some go.
            lifecycle::machine_mut(&mut work.next, &candidate.token).standby = true;
            left -= 1;
            continue;
        }
        let is_as_read = |one: &Machine| one.token == candidate.token && one.state == candidate.state;
        if !work.seen.fleet.machines.iter().any(is_as_read) {
            // It has taken a step in this turn; the next turn sees to it.
            return Ok(());
        }
        if work.next.paused.is_some() {
            return Err(HeldChange::Paused);
        }
        // One that joins has a slot, and keeps it.
        if candidate.state == MachineState::Serving && !guards::has_slot(work) {
            return Err(HeldChange::UnderWay);
        }
        guards::may_drain(work, &candidate)?;
        let Some(instance) = &candidate.instance else { continue };
        match work.seen.preflight.get(instance) {
            None => {
                work.questions.insert(Question::Preflight { instance: instance.clone() });
                asked += 1;
                // As many are asked about as shall go. Where one of them is refused, all others are asked about at once:
                // a driver answers in so many rounds only, and would give the turn up.
                if refusal.is_none() && asked == left {
                    return Ok(());
                }
            }
            Some(Err(why)) => refusal = Some(HeldChange::Preflight { detail: why.detail.clone() }),
            Some(Ok(())) => {
                change(work, &candidate.token, MachineState::Draining, None);
                left -= 1;
            }
        }
    }
    refusal.filter(|_| left > 0).map_or(Ok(()), Err)
}

pub(super) fn change(work: &mut Work<'_>, token: &Token, state: MachineState, note: Option<String>) {
    let number = work.next.next_decision.checked_sub(1).filter(|number| *number > 0);
    let machine = work.next.machines.iter_mut().find(|machine| &machine.token == token);
    let machine = machine.expect("it is one of them");
    lifecycle::set(machine, state, work.seen.now, note);
    machine.decision = number;
}
